"""AUTH_CREATE_USER (3001) to AUTH_LIST_ACL (3010): users and access control lists are read and changed.

The master changes them. mqadmin sends a change to all brokers of a cluster, slaves too, because each of
RocketMQ's brokers has its own users. A slave here passes it on to its master (PASS_ACCESS_CHANGE), and the
master takes the same change that comes from several brokers of its set for one.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from batonmq.broker.auth.core import UserType
from batonmq.broker.auth.policies import by_name
from batonmq.broker.requests import required_body
from batonmq.net.dispatch import Dispatcher, Reply, Request
from batonmq.net.errors import NetError
from batonmq.protocol.bodies.auth import AclInfo, UserInfo
from batonmq.protocol.codes import RequestCode, ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker import auth as wire
from batonmq.protocol.json import decode_request, encode
from batonmq.protocol.signing import ACCESS_KEY

if TYPE_CHECKING:
    from collections.abc import Callable

    from batonmq.broker.auth.core import AccessTable
    from batonmq.broker.context import Broker

log = logging.getLogger(__name__)

PASS_ON_MS: Final = 3_000
ONE_CHANGE_MS: Final = 60_000
"""The same change through another broker of the set within this time is taken for the one before."""


@dataclass(frozen=True, slots=True)
class Change:
    """A request that changes users or lists."""

    code: int
    username: str | None = None
    subject: str | None = None
    policy_type: str | None = None
    resource: str | None = None
    body: bytes = b""

    @property
    def about(self) -> str:
        """Whom it is about."""
        return self.subject or f"User:{self.username}"


@dataclass(slots=True)
class _Done:
    """The last change about a user: which it was, when, and the brokers through which it came."""

    change: Change
    at_ms: int
    through: set[int]


class AccessHandlers:
    def __init__(self, broker: Broker, table: AccessTable, changed: Callable[[], None]) -> None:
        """`changed` is called after each change: it is stored, and slaves copy it."""
        self._broker = broker
        self._table = table
        self._changed = changed
        self._last: dict[str, _Done] = {}
        """By whom the change is about."""

    def register(self, dispatcher: Dispatcher) -> None:
        dispatcher.on(wire.CreateUser, self.create_user)
        dispatcher.on(wire.UpdateUser, self.update_user)
        dispatcher.on(wire.DeleteUser, self.delete_user)
        dispatcher.on(wire.GetUser, self.get_user)
        dispatcher.on(wire.ListUsers, self.list_users)
        dispatcher.on(wire.CreateAcl, self.update_acl)
        dispatcher.on(wire.UpdateAcl, self.update_acl)
        dispatcher.on(wire.DeleteAcl, self.delete_acl)
        dispatcher.on(wire.GetAcl, self.get_acl)
        dispatcher.on(wire.ListAcls, self.list_acls)
        dispatcher.on(wire.GetAllAccessControl, self.everything)
        dispatcher.on(wire.PassAccessChange, self.passed_on)

    # -- reading

    def get_user(self, request: Request, header: wire.GetUser) -> Reply:
        user = self._table.user(_username(header.username))
        return Reply(body=encode(self._shown(request, user.info)) if user is not None else b"")

    def list_users(self, request: Request, header: wire.ListUsers) -> Reply:
        users = [self._shown(request, user) for user in self._table.users(header.filter)]
        return Reply(body=encode(users) if users else b"")

    def get_acl(self, request: Request, header: wire.GetAcl) -> Reply:
        acl = self._table.acl(header.subject)
        return Reply(body=encode(acl) if acl is not None else b"")

    def list_acls(self, request: Request, header: wire.ListAcls) -> Reply:
        acls = self._table.acls(header.subject_filter, header.resource_filter)
        return Reply(body=encode(acls) if acls else b"")

    def everything(self, request: Request, header: wire.GetAllAccessControl) -> Reply:
        return Reply(body=self._table.encode())

    # -- changing

    async def create_user(self, request: Request, header: wire.CreateUser) -> Reply:
        name = _username(header.username)
        self._check_makes_no_super_user(request, "create")
        return await self._change(Change(header.code, name, body=bytes(request.command.body)))

    async def update_user(self, request: Request, header: wire.UpdateUser) -> Reply:
        name = _username(header.username)
        self._check_makes_no_super_user(request, "update")
        self._check_is_no_super_user(request, name)
        return await self._change(Change(header.code, name, body=bytes(request.command.body)))

    async def delete_user(self, request: Request, header: wire.DeleteUser) -> Reply:
        name = header.username or ""
        if not name.strip():
            raise MQError(ResponseCode.NO_PERMISSION, "username can not be blank")
        self._check_is_no_super_user(request, name)
        return await self._change(Change(header.code, name))

    async def update_acl(self, request: Request, header: wire.CreateAcl | wire.UpdateAcl) -> Reply:
        if not required_body(request, AclInfo).policies:
            raise MQError(ResponseCode.SYSTEM_ERROR, "The body of acl is null")
        change = Change(header.code, subject=header.subject, body=bytes(request.command.body))
        return await self._change(change)

    async def delete_acl(self, request: Request, header: wire.DeleteAcl) -> Reply:
        return await self._change(
            Change(
                header.code,
                subject=header.subject,
                policy_type=header.policy_type,
                resource=header.resource,
            )
        )

    async def passed_on(self, request: Request, header: wire.PassAccessChange) -> Reply:
        """A slave has checked the sender of this change."""
        change = Change(
            header.auth_code,
            header.username,
            header.subject,
            header.policy_type,
            header.resource,
            bytes(request.command.body),
        )
        if not self._broker.role.is_master:
            raise MQError(ResponseCode.SYSTEM_ERROR, "this broker is no longer master, try again")
        return await self._carry_out(change, header.broker_id)

    async def _change(self, change: Change) -> Reply:
        role = self._broker.role
        if role.is_master:
            return await self._carry_out(change, role.broker_id)
        if role.master_address is None:
            raise MQError(
                ResponseCode.SYSTEM_ERROR, "the master of this broker set is away; it alone changes users"
            )
        return await self._pass_on(change, role.master_address)

    async def _carry_out(self, change: Change, through: int) -> Reply:
        now_ms = self._broker.clock.now_ms()
        done = self._last.get(change.about)
        if (
            done is not None
            and done.change == change
            and through not in done.through
            and now_ms - done.at_ms < ONE_CHANGE_MS
        ):
            done.through.add(through)
        else:
            self._apply(change)
            self._last = {k: d for k, d in self._last.items() if now_ms - d.at_ms < ONE_CHANGE_MS}
            self._last[change.about] = _Done(change, now_ms, {through})
        await self._broker.tables.durable()
        return Reply()

    def _apply(self, change: Change) -> None:
        table = self._table
        match change.code:
            case RequestCode.AUTH_CREATE_USER:
                table.create_user(_username(change.username), decode_request(change.body, UserInfo))
            case RequestCode.AUTH_UPDATE_USER:
                table.update_user(_username(change.username), decode_request(change.body, UserInfo))
            case RequestCode.AUTH_DELETE_USER:
                table.delete_user(_username(change.username))
            case RequestCode.AUTH_CREATE_ACL | RequestCode.AUTH_UPDATE_ACL:
                table.update_acl(change.subject, decode_request(change.body, AclInfo))
            case RequestCode.AUTH_DELETE_ACL:
                table.delete_acl(change.subject, change.policy_type, change.resource)
            case _:
                raise MQError(ResponseCode.INVALID_PARAMETER, f"code {change.code} changes no users")
        log.info("access control changed: %s %s", RequestCode(change.code).name, change.about)
        self._changed()

    async def _pass_on(self, change: Change, master: str) -> Reply:
        header = wire.PassAccessChange(
            auth_code=change.code,
            broker_id=self._broker.role.broker_id,
            username=change.username,
            subject=change.subject,
            policy_type=change.policy_type,
            resource=change.resource,
        )
        try:
            await self._broker.client.call(master, header, change.body, timeout_ms=PASS_ON_MS)
        except NetError as error:
            raise MQError(ResponseCode.SYSTEM_ERROR, f"the master does not answer: {error}") from None
        except MQError as error:
            if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise
            self._apply(change)  # a RocketMQ broker: each of the set has its own users
            await self._broker.tables.written()
        return Reply()

    # -- who may

    def _check_makes_no_super_user(self, request: Request, verb: str) -> None:
        """Only super users may. Raises `MQError`, also for a body that is not a user."""
        info = required_body(request, UserInfo)
        if by_name(UserType, info.user_type) is UserType.SUPER and not self._by_super_user(request):
            raise MQError(ResponseCode.SYSTEM_ERROR, f"The super user can only be {verb} by super user")

    def _check_is_no_super_user(self, request: Request, name: str) -> None:
        user = self._table.user(name)
        if user is not None and user.is_super and not self._by_super_user(request):
            raise MQError(ResponseCode.NO_PERMISSION, "The super user can only be update by super user")

    def _shown(self, request: Request, user: UserInfo) -> UserInfo:
        """What the sender may see of a user: only super users see the passwords of super users."""
        if by_name(UserType, user.user_type) is UserType.SUPER and not self._by_super_user(request):
            user.password = None
        return user

    def _by_super_user(self, request: Request) -> bool:
        return self._table.may_change_super_users(request.command.ext.get(ACCESS_KEY))


def _username(name: str | None) -> str:
    if not name or not name.strip():
        raise MQError(ResponseCode.INVALID_PARAMETER, "The username is blank")
    return name
