"""Keys with which RocketMQ's programs switch access control on. There is none here.

A file that switches it on is refused: a program that started all the same would be open to everyone who
reaches its ports. Everything else about access control is accepted and has no effect.
"""

from __future__ import annotations

from typing import Final

from batonmq.common.config_values import convert

SWITCHES: Final = frozenset(
    {"aclEnable", "authenticationEnabled", "authorizationEnabled", "migrateAuthFromV1Enabled"}
)
ACCESS_CONTROL_KEYS: Final = SWITCHES | {
    "authConfigPath",
    "authenticationProvider",
    "authenticationMetadataProvider",
    "authenticationStrategy",
    "authenticationWhitelist",
    "initAuthenticationUser",
    "innerClientAuthenticationCredentials",
    "authorizationProvider",
    "authorizationMetadataProvider",
    "authorizationStrategy",
    "authorizationWhitelist",
    "userCacheMaxNum",
    "userCacheExpiredSecond",
    "userCacheRefreshSecond",
    "aclCacheMaxNum",
    "aclCacheExpiredSecond",
    "aclCacheRefreshSecond",
    "statefulAuthenticationCacheMaxNum",
    "statefulAuthenticationCacheExpiredSecond",
    "statefulAuthorizationCacheMaxNum",
    "statefulAuthorizationCacheExpiredSecond",
}

NO_ACCESS_CONTROL: Final = "BatonMQ has no access control (users, ACL)"


def check_switch(key: str, text: str) -> None:
    """Raises `ValueError` if the key switches access control on, or is such a switch and no boolean."""
    if key in SWITCHES and convert(text, bool):
        raise ValueError(
            f"{NO_ACCESS_CONTROL}: everyone who reaches the port may do everything; set it to false, and let "
            "the network or TLS with client certificates (tls.server.authClient) keep others out"
        )
