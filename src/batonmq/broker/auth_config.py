"""Keys of a broker's `.conf` file that switch access control on (`AuthConfig` of RocketMQ).

Users and their rights are not configuration: requests change them (`broker/auth/`). Values with passwords are
secret: no request and no option shows them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Final

import msgspec

from batonmq.common.config import ConfigError, require, wire_key
from batonmq.protocol.signing import Credentials

_IN_MEMORY: Final = "users and ACLs are always in memory"
_PACKAGE: Final = "org.apache.rocketmq.auth."


def _rocketmqs_own(*names: str) -> Any:
    """A key whose value is a class name in RocketMQ; only its own classes have a counterpart here."""
    return field(default="", metadata={"classes": (*(_PACKAGE + name for name in names), "")})


def _secret() -> Any:
    return field(default="", repr=False, metadata={"secret": True})


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthConfig:
    """Whether a broker wants signed requests, and whether users need rights."""

    authentication_enabled: bool = False
    """Only answer requests that a user of this broker has signed."""
    authorization_enabled: bool = False
    """Users other than super users need rights (ACLs); with authenticationEnabled."""
    init_authentication_user: str = _secret()
    """`{"username":"…","password":"…"}`: a super user that the broker creates if there is no such user."""
    inner_client_authentication_credentials: str = _secret()
    """`{"accessKey":"…","secretKey":"…"}`: signs this broker's own requests to other brokers; the broker
    creates a super user with it. All brokers of a cluster have the same."""
    authentication_whitelist: str = ""
    """Request codes that need no signature, `,` between them."""
    authorization_whitelist: str = ""
    """Request codes that need no rights, `,` between them."""
    authentication_provider: str = _rocketmqs_own(
        "authentication.provider.DefaultAuthenticationProvider",
    )
    """Empty or the name of RocketMQ's own class; classes of users cannot be loaded."""
    authentication_metadata_provider: str = _rocketmqs_own(
        "authentication.provider.LocalAuthenticationMetadataProvider",
    )
    """As authenticationProvider."""
    authentication_strategy: str = _rocketmqs_own(
        "authentication.strategy.StatelessAuthenticationStrategy",
        "authentication.strategy.StatefulAuthenticationStrategy",
    )
    """As authenticationProvider; each request is checked with either strategy."""
    authorization_provider: str = _rocketmqs_own("authorization.provider.DefaultAuthorizationProvider")
    """As authenticationProvider."""
    authorization_metadata_provider: str = _rocketmqs_own(
        "authorization.provider.LocalAuthorizationMetadataProvider",
    )
    """As authenticationProvider."""
    authorization_strategy: str = _rocketmqs_own(
        "authorization.strategy.StatelessAuthorizationStrategy",
        "authorization.strategy.StatefulAuthorizationStrategy",
    )
    """As authenticationStrategy."""

    HAS_NO_EFFECT: ClassVar[Mapping[str, str]] = {
        "authConfigPath": "users and ACLs are in config/ of storePathRootDir",
        "userCacheMaxNum": _IN_MEMORY,
        "userCacheExpiredSecond": _IN_MEMORY,
        "userCacheRefreshSecond": _IN_MEMORY,
        "aclCacheMaxNum": _IN_MEMORY,
        "aclCacheExpiredSecond": _IN_MEMORY,
        "aclCacheRefreshSecond": _IN_MEMORY,
        "statefulAuthenticationCacheMaxNum": "each request is checked",
        "statefulAuthenticationCacheExpiredSecond": "each request is checked",
        "statefulAuthorizationCacheMaxNum": "each request is checked",
        "statefulAuthorizationCacheExpiredSecond": "each request is checked",
    }
    """RocketMQ's keys that have no effect here, and the reasons."""

    def __post_init__(self) -> None:
        require(
            self.authentication_enabled or not self.authorization_enabled,
            "authorizationEnabled=true: needs authenticationEnabled=true, for without signatures everyone "
            "may call himself any user",
        )
        for key, name, classes in _class_names(self):
            require(name in classes, f"{key}={name}: only RocketMQ's own class is known here, {classes[0]}")
        self.inner_credentials  # noqa: B018  # raises for a value that is none
        self.first_users  # noqa: B018
        self.unsigned_codes  # noqa: B018
        self.free_codes  # noqa: B018

    @property
    def inner_credentials(self) -> Credentials | None:
        """What this broker signs its requests with. Raises `ConfigError`."""
        text = self.inner_client_authentication_credentials
        if not text:
            return None
        return Credentials(*_pair(text, "innerClientAuthenticationCredentials", "accessKey", "secretKey"))

    @property
    def first_users(self) -> Mapping[str, str]:
        """Names and passwords of the super users that must exist. Raises `ConfigError`."""
        users: dict[str, str] = {}
        if self.init_authentication_user:
            users.update(
                [_pair(self.init_authentication_user, "initAuthenticationUser", "username", "password")]
            )
        inner = self.inner_credentials
        if inner is not None:
            users.setdefault(inner.access_key, inner.secret_key)
        return users

    @property
    def unsigned_codes(self) -> frozenset[int]:
        """The codes of `authentication_whitelist`. Raises `ConfigError`."""
        return _codes("authenticationWhitelist", self.authentication_whitelist)

    @property
    def free_codes(self) -> frozenset[int]:
        """The codes of `authorization_whitelist`. Raises `ConfigError`."""
        return _codes("authorizationWhitelist", self.authorization_whitelist)


def _class_names(config: AuthConfig) -> list[tuple[str, str, tuple[str, ...]]]:
    return [
        (wire_key(each), getattr(config, each.name), each.metadata["classes"])
        for each in fields(config)
        if "classes" in each.metadata
    ]


def _pair(text: str, key: str, first: str, second: str) -> tuple[str, str]:
    """Two texts of a JSON object. Raises `ConfigError`, without the value."""
    try:
        found = msgspec.json.decode(text.encode(), type=dict[str, Any])
    except msgspec.MsgspecError:
        found = {}
    values = found.get(first), found.get(second)
    if not all(isinstance(value, str) and value.strip() for value in values):
        raise ConfigError(f'{key}: expected {{"{first}":"…","{second}":"…"}}, both not empty')
    return values  # type: ignore[return-value]


def _codes(key: str, text: str) -> frozenset[int]:
    try:
        return frozenset(int(code) for code in text.split(",") if code.strip())
    except ValueError:
        raise ConfigError(f"{key}={text}: expected request codes with commas between them") from None
