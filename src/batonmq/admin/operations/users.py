"""Users and their access control lists."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from batonmq.admin.session import Admin, naming
from batonmq.protocol.bodies.auth import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo
from batonmq.protocol.headers.broker import auth as wire
from batonmq.protocol.json import decode, encode


async def create(admin: Admin, addresses: Iterable[str], user: UserInfo) -> None:
    """Create a user on these brokers. Raises `MQError` if there is one of this name."""
    await admin.ask_each(addresses, wire.CreateUser(user.username), encode(user))


async def update(admin: Admin, addresses: Iterable[str], user: UserInfo) -> None:
    """Change what `user` says of a user; the rest stays."""
    await admin.ask_each(addresses, wire.UpdateUser(user.username), encode(user))


async def delete(admin: Admin, addresses: Iterable[str], name: str) -> None:
    """Delete a user and its list, if there is one."""
    await admin.ask_each(addresses, wire.DeleteUser(name))


async def find(admin: Admin, address: str, name: str) -> UserInfo | None:
    """A user of one broker."""
    body = (await admin.ask(address, wire.GetUser(name))).body
    return decode(body, UserInfo) if body else None


async def users(admin: Admin, address: str, part: str | None = None) -> list[UserInfo]:
    """The users of one broker whose name contains `part`."""
    body = (await admin.ask(address, wire.ListUsers(part))).body
    return decode(body, list[UserInfo]) if body else []


async def allow(
    admin: Admin,
    addresses: Iterable[str],
    subject: str,
    resources: Sequence[str],
    actions: Sequence[str],
    source_ips: Sequence[str],
    decision: str,
) -> None:
    """Add an entry for each resource to a subject's list; it replaces one for the same resource."""
    entries = [
        PolicyEntryInfo(
            resource=resource,
            actions=list(actions),
            source_ips=list(source_ips) or None,
            decision=decision,
        )
        for resource in resources
    ]
    await put_acl(admin, addresses, AclInfo(subject=subject, policies=[PolicyInfo(entries=entries)]))


async def put_acl(admin: Admin, addresses: Iterable[str], acl: AclInfo) -> None:
    """Add the entries of a list to those of its subject."""
    await admin.ask_each(addresses, wire.UpdateAcl(acl.subject), encode(acl))


async def delete_acl(admin: Admin, addresses: Iterable[str], subject: str, resource: str | None) -> None:
    """Delete a subject's list, or its entry for one resource."""
    await admin.ask_each(addresses, wire.DeleteAcl(subject, resource=resource))


async def acl_of(admin: Admin, address: str, subject: str) -> AclInfo | None:
    """A subject's list on one broker."""
    body = (await admin.ask(address, wire.GetAcl(subject))).body
    return decode(body, AclInfo) if body else None


async def acls(
    admin: Admin, address: str, subject_part: str | None = None, resource_part: str | None = None
) -> list[AclInfo]:
    """The lists of one broker, by parts of subject and resource."""
    body = (await admin.ask(address, wire.ListAcls(subject_part, resource_part))).body
    return decode(body, list[AclInfo]) if body else []


async def copy_users(admin: Admin, source: str, target: str, names: Sequence[str]) -> list[str]:
    """Copy users, with their passwords, from one broker to another; all of them without `names`. Returns
    those that were copied."""
    if names:
        found = [user for name in names if (user := await find(admin, source, name)) is not None]
    else:
        found = await users(admin, source)
    copied: list[str] = []
    with naming(copied):
        for user in found:
            there = await find(admin, target, user.username or "")
            await (create if there is None else update)(admin, [target], user)
            copied.append(user.username or "")
    return copied


async def copy_acls(admin: Admin, source: str, target: str, subjects: Sequence[str]) -> list[str]:
    """As `copy_users`, for access control lists."""
    if subjects:
        found = [acl for each in subjects if (acl := await acl_of(admin, source, each)) is not None]
    else:
        found = await acls(admin, source)
    copied: list[str] = []
    with naming(copied):
        for acl in found:
            await put_acl(admin, [target], acl)
            copied.append(acl.subject or "")
    return copied


ENTRY_COLUMNS: Final = (
    "brokerAddress",
    "subject",
    "policyType",
    "resource",
    "actions",
    "sourceIps",
    "decision",
)


def entries(address: str, lists: Iterable[AclInfo]) -> list[list[str]]:
    """The entries of a broker's lists, in `ENTRY_COLUMNS`."""
    return [
        [
            address,
            acl.subject or "",
            policy.policy_type or "",
            entry.resource or "",
            ", ".join(entry.actions),
            ", ".join(entry.source_ips or []),
            entry.decision or "",
        ]
        for acl in lists
        for policy in acl.policies
        for entry in policy.entries
    ]
