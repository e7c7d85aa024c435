"""Users and their access control lists: what changes them, and what a request of a user is answered with.

Codes and remarks are those of `AuthenticationMetadataManagerImpl`, `AuthorizationMetadataManagerImpl` and
`AdminBrokerProcessor` of Apache RocketMQ 5.5.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Final, NoReturn

from batonmq.broker.auth.policies import (
    NO_ACL,
    USER,
    Acl,
    Action,
    Decision,
    Entry,
    PolicyType,
    Resource,
    by_name,
    network_of,
)
from batonmq.broker.versions import age, next_version
from batonmq.protocol.bodies.auth import (
    AccessControlWrapper,
    AclInfo,
    PolicyEntryInfo,
    PolicyInfo,
    UserInfo,
)
from batonmq.protocol.bodies.common import DataVersion
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker.pull import UNIQUE_KEY_QUERY
from batonmq.protocol.json import decode, encode
from batonmq.protocol.signing import ACCESS_KEY, SIGNATURE, signed_by
from batonmq.protocol.versions import V4_9_3

if TYPE_CHECKING:
    from batonmq.protocol.buffers import Buffer

UNSIGNED_FIELD: Final = UNIQUE_KEY_QUERY
"""Old clients set it after they signed a query."""
MAX_DECISIONS: Final = 10_000
"""Decisions that are remembered until users or lists change."""
MAX_REMEMBERED: Final = 255
"""Characters of a resource of which decisions are remembered, as many as names of topics and groups have.
Requests may have longer ones."""
MAX_NAME: Final = 1_024
"""Characters of a user's name or password, and of a resource or address in a list."""
MAX_ENTRIES: Final = 10_000
"""Entries of one access control list."""


class UserType(Enum):
    SUPER = "Super"
    """May do everything."""
    NORMAL = "Normal"


class UserStatus(Enum):
    ENABLE = "enable"
    DISABLE = "disable"


@dataclass(frozen=True, slots=True)
class User:
    name: str
    password: str = field(repr=False)
    type: UserType = UserType.NORMAL
    status: UserStatus = UserStatus.ENABLE

    @property
    def is_super(self) -> bool:
        return self.type is UserType.SUPER

    @property
    def enabled(self) -> bool:
        return self.status is UserStatus.ENABLE

    @property
    def info(self) -> UserInfo:
        return UserInfo(
            username=self.name,
            password=self.password,
            user_type=self.type.value,
            user_status=self.status.value,
        )


@dataclass(frozen=True, slots=True)
class Need:
    """A right that a request needs: one of the actions on the resource."""

    resource: Resource
    actions: tuple[Action, ...]


class AccessTable:
    """Users and access control lists. Values are replaced, never changed in place."""

    def __init__(self) -> None:
        self.version = DataVersion()
        self._users: dict[str, User] = {}
        self._acls: dict[str, Acl] = {}
        self._decisions: dict[tuple[str, Need, str], Decision | None] = {}

    # -- reading

    def __len__(self) -> int:
        return len(self._users)

    @property
    def mark(self) -> str | None:
        """Differs with the contents; None for an empty table."""
        if not self._users:
            return None
        return ".".join(map(str, age(self.version)))

    def user(self, name: str) -> User | None:
        return self._users.get(name)

    def users(self, part: str | None = None) -> list[UserInfo]:
        """The users whose name contains `part`, by name."""
        return [self._users[name].info for name in sorted(self._users) if not part or part in name]

    def acl(self, subject: str | None) -> AclInfo | None:
        """A subject's list; None if it has none. Raises `MQError` for an unknown user."""
        name = _user_of(subject)
        if name not in self._users:
            _refuse("The subject is not exist.")
        return _info(name, self._acls[name]) if name in self._acls else None

    def acls(self, subject_part: str | None = None, resource_part: str | None = None) -> list[AclInfo]:
        """The lists whose subject and entries whose resource contain these texts, by subject."""
        found = []
        for name in sorted(self._acls):
            if subject_part and subject_part not in f"{USER}:{name}":
                continue
            info = _info(name, self._acls[name], resource_part or "")
            if info.policies:
                found.append(info)
        return found

    def may_change_super_users(self, name: str | None) -> bool:
        """Whether the sender of a request may; without a name requests need no signature."""
        user = self._users.get(name or "")
        return user.is_super if user is not None else not name

    # -- deciding

    def authenticate(self, ext: Mapping[str, str], body: Buffer, version: int) -> None:
        """Check the signature of a request. Raises `MQError`."""
        name = ext.get(ACCESS_KEY)
        if not name:
            _refuse("username cannot be null.")
        user = self._users.get(name)
        if user is None:
            _refuse(f"User:{name} is not found.")
        if not user.enabled:
            _refuse(f"User:{name} is disabled.")
        if version <= V4_9_3 and UNSIGNED_FIELD in ext:
            ext = {key: value for key, value in ext.items() if key != UNSIGNED_FIELD}
        if SIGNATURE not in ext or not signed_by(user.password, ext, body):
            _refuse("check signature failed.")

    def authorize(self, name: str | None, needs: Sequence[Need], source_ip: str) -> None:
        """Check that a user has all these rights. Raises `MQError`."""
        if not needs:
            return
        if not name:
            _refuse("Authorization failed. Please verify your access rights and try again.")
        user = self._users.get(name)
        if user is None:
            _refuse(f"User:{name} not found.")
        if not user.enabled:
            _refuse(f"User:{name} is disabled.")
        if user.is_super:
            return
        for need in needs:
            decision = self._decide(name, need, source_ip)
            if decision is not Decision.ALLOW:
                why = "no matched policies." if decision is None else "the decision is deny."
                _refuse(
                    f"{USER}:{name} has no permission to access {need.resource.key} from {source_ip}, {why}"
                )

    def _decide(self, name: str, need: Need, source_ip: str) -> Decision | None:
        asked = name, need, source_ip
        if len(need.resource.name) > MAX_REMEMBERED:
            return self._acls.get(name, NO_ACL).decide(need.resource, need.actions, source_ip)
        if asked not in self._decisions:
            if len(self._decisions) >= MAX_DECISIONS:
                self._decisions.clear()
            acl = self._acls.get(name, NO_ACL)
            self._decisions[asked] = acl.decide(need.resource, need.actions, source_ip)
        return self._decisions[asked]

    # -- changing

    def create_user(self, name: str, info: UserInfo) -> None:
        """Raises `MQError`."""
        if not info.password or info.password.isspace():
            _refuse("password can not be blank")
        if name in self._users:
            _refuse("The user is existed")
        _check_lengths(name, info.password)
        self._users[name] = User(
            name,
            info.password,
            by_name(UserType, info.user_type) or UserType.NORMAL,
            by_name(UserStatus, info.user_status) or UserStatus.ENABLE,
        )

    def update_user(self, name: str, info: UserInfo) -> None:
        """What `info` leaves out stays. Raises `MQError`."""
        user = self._users.get(name)
        if user is None:
            _refuse("The user is not exist")
        password = info.password if info.password and not info.password.isspace() else user.password
        _check_lengths(name, password)
        self._users[name] = replace(
            user,
            password=password,
            type=by_name(UserType, info.user_type) or user.type,
            status=by_name(UserStatus, info.user_status) or user.status,
        )
        self._decisions.clear()

    def delete_user(self, name: str) -> None:
        """Delete a user, if there is one, and its list."""
        self._users.pop(name, None)
        self._acls.pop(name, None)
        self._decisions.clear()

    def update_acl(self, subject: str | None, info: AclInfo) -> None:
        """Add entries to a subject's list; an entry for a resource that has one replaces it. Raises
        `MQError`."""
        name = _user_of(info.subject or subject)
        policies = [_policy(policy) for policy in info.policies if policy.entries]
        if not policies:
            _refuse("The policies is empty.")
        if name not in self._users:
            _refuse(f"The subject of {USER}:{name} is not exist.")
        updated = self._acls.get(name, NO_ACL).updated(policies)
        if sum(len(entries) for _, entries in updated.policies) > MAX_ENTRIES:
            _refuse(f"a list has {MAX_ENTRIES} entries at most; patterns (prefix*) need fewer")
        self._acls[name] = updated
        self._decisions.clear()

    def delete_acl(self, subject: str | None, policy_type: str | None, resource: str | None) -> None:
        """Delete a subject's list, or its entry for one resource. Raises `MQError`."""
        name = _user_of(subject)
        if name not in self._users:
            _refuse("The subject is not exist.")
        acl = self._acls.get(name)
        if acl is None:
            _refuse("The acl is not exist.")
        which = Resource.parse(resource)
        if resource and which is None:  # RocketMQ takes it for none, and deletes the whole list
            raise MQError(ResponseCode.INVALID_PARAMETER, f"{resource} is not a resource, such as Topic:name")
        left = acl.without(by_name(PolicyType, policy_type) or PolicyType.CUSTOM, which) if which else NO_ACL
        if left.policies:
            self._acls[name] = left
        else:
            del self._acls[name]
        self._decisions.clear()

    def add_super_users(self, passwords: Mapping[str, str]) -> bool:
        """Create those of these users that do not exist; whether there were any."""
        missing = {name: password for name, password in passwords.items() if name not in self._users}
        for name, password in missing.items():
            self.create_user(name, UserInfo(password=password, user_type=UserType.SUPER.value))
        return bool(missing)

    def changed(self, now_ms: int, epoch: int) -> None:
        """Count a change."""
        self.version = next_version(self.version, now_ms, epoch)

    # -- the whole table

    def encode(self) -> bytes:
        return encode(AccessControlWrapper(data_version=self.version, users=self.users(), acls=self.acls()))

    def restore(self, data: bytes) -> None:
        """Replace everything by what `encode` wrote. Raises ValueError and then changes nothing."""
        read = AccessTable()
        wrapper = decode(data, AccessControlWrapper)
        try:
            for user in wrapper.users:
                read.create_user(user.username or "", user)
            for acl in wrapper.acls:
                read.update_acl(None, acl)
        except MQError as error:
            raise ValueError(error.remark) from None
        self._users, self._acls = read._users, read._acls
        self.version = wrapper.data_version
        self._decisions.clear()

    def replace(self, data: bytes) -> bool:
        """`restore` the master's table; whether it differs. Raises ValueError."""
        if decode(data, AccessControlWrapper).data_version == self.version:
            return False
        self.restore(data)
        return True

    def take_back(self, data: bytes) -> bool:
        """`restore` a slave's table if it is newer; whether it was. Raises ValueError."""
        if age(decode(data, AccessControlWrapper).data_version) <= age(self.version):
            return False
        self.restore(data)
        return True


def _refuse(remark: str) -> NoReturn:
    raise MQError(ResponseCode.NO_PERMISSION, remark)


def _check_lengths(*texts: str) -> None:
    if any(len(text) > MAX_NAME for text in texts):  # they are kept
        raise MQError(ResponseCode.INVALID_PARAMETER, f"a text of more than {MAX_NAME} characters")


def _user_of(subject: str | None) -> str:
    """The user's name. Raises `MQError` for a subject that is not a user."""
    kind, _, name = (subject or "").partition(":")
    if kind.lower() != USER.lower() or not name:
        raise MQError(ResponseCode.SYSTEM_ERROR, f"the subject must be {USER}:name, not {subject!r:.100}")
    return name


def _policy(info: PolicyInfo) -> tuple[PolicyType, Sequence[Entry]]:
    return by_name(PolicyType, info.policy_type) or PolicyType.CUSTOM, list(map(_entry, info.entries))


def _entry(info: PolicyEntryInfo) -> Entry:
    resource = Resource.parse(info.resource)
    if resource is None:
        _refuse("The resource is null.")
    actions = [action for name in info.actions if (action := by_name(Action, name)) is not None]
    if not actions:
        _refuse("The actions is empty.")
    if Action.ANY in actions:
        _refuse("The actions can not be Any.")
    source_ips = info.source_ips or []
    _check_lengths(resource.name, *source_ips)
    for source_ip in source_ips:
        if not source_ip.strip():
            _refuse("The source ip is empty.")
        try:
            network_of(source_ip)
        except ValueError:
            _refuse("The source ip is invalid.")
    decision = by_name(Decision, info.decision)
    if decision is None:
        _refuse("The decision is null or illegal.")
    return Entry(resource, tuple(dict.fromkeys(actions)), tuple(source_ips), decision)


def _info(name: str, acl: Acl, resource_part: str = "") -> AclInfo:
    """The list as requests have it, with the entries whose resource contains a text."""
    policies = []
    for kind, entries in acl.policies:
        infos = [
            PolicyEntryInfo(
                resource=entry.resource.key,
                actions=[action.value for action in entry.actions],
                source_ips=list(entry.source_ips) or None,
                decision=entry.decision.value,
            )
            for entry in entries
            if resource_part in entry.resource.key
        ]
        if infos:
            policies.append(PolicyInfo(policy_type=kind.value, entries=infos))
    return AclInfo(subject=f"{USER}:{name}", policies=policies)
