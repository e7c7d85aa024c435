"""Users and access control lists, as requests, answers and the broker's file have them.

Source: `UserInfo` and `AclInfo` of Apache RocketMQ 5.
"""

from __future__ import annotations

from msgspec import field

from batonmq.protocol.bodies.common import DataVersion
from batonmq.protocol.json import Body


class UserInfo(Body, omit_defaults=True):
    username: str | None = None
    password: str | None = None
    user_type: str | None = None
    """``Super`` or ``Normal``, in any case of letters."""
    user_status: str | None = None
    """``enable`` or ``disable``."""

    def __repr__(self) -> str:
        return f"UserInfo(username={self.username!r}, user_type={self.user_type!r})"


class PolicyEntryInfo(Body, omit_defaults=True):
    resource: str | None = None
    """``Topic:name``, ``Group:prefix*``, ``Cluster:*``, or ``*`` for everything."""
    actions: list[str] = field(default_factory=list)
    source_ips: list[str] | None = None
    """Addresses or networks (CIDR); None or empty: from everywhere."""
    decision: str | None = None
    """``Allow`` or ``Deny``."""


class PolicyInfo(Body, omit_defaults=True):
    policy_type: str | None = None
    """``Custom`` (also None) or ``Default``, which counts where no custom entry matches."""
    entries: list[PolicyEntryInfo] = field(default_factory=list)


class AclInfo(Body, omit_defaults=True):
    subject: str | None = None
    """``User:name``."""
    policies: list[PolicyInfo] = field(default_factory=list)


class AccessControlWrapper(Body):
    """Everything about users that a slave copies; also the broker's file ``config/accessControl.json``."""

    data_version: DataVersion = field(default_factory=DataVersion)
    users: list[UserInfo] = field(default_factory=list)
    acls: list[AclInfo] = field(default_factory=list)
