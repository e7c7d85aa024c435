"""The part for access control: users, their table, and the guard in front of all requests."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from batonmq.broker.auth.core import AccessTable
from batonmq.broker.auth.guard import Guard
from batonmq.broker.auth.handlers import AccessHandlers
from batonmq.broker.auth.needs import Known
from batonmq.broker.auth.record_topics import half_topic_at, topic_at
from batonmq.broker.part import Part
from batonmq.broker.tables.persistence import UNKNOWN_MARK, Master, Member, Table, fetch_if_known
from batonmq.protocol.headers.broker.auth import GetAllAccessControl

if TYPE_CHECKING:
    from batonmq.broker.context import Broker
    from batonmq.broker.role import RoleState
    from batonmq.net import Dispatcher

log = logging.getLogger(__name__)

ACCESS_CONTROL: Final = "accessControl"


class AuthPart(Part):
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.table = AccessTable()

    def tables(self) -> Sequence[Table]:
        return (
            Table(
                name=ACCESS_CONTROL,
                private=True,
                used=lambda: bool(self.table),
                encode=self.table.encode,
                restore=self.table.restore,
                copy=self._copy,
                take_back=self._take_back,
            ),
        )

    def handlers(self, dispatcher: Dispatcher) -> None:
        settings = self._broker.settings
        if settings.auth.authentication_enabled:
            cluster = settings.broker.broker_cluster_name
            known = Known(cluster, self._topic_at, self._half_topic_at)
            guard = Guard(self.table, settings.auth, known)
            dispatcher.intercept(guard.interceptor)
            self._broker.may_send = guard.may_send
        AccessHandlers(self._broker, self.table, self._changed).register(dispatcher)

    def _topic_at(self, offset: int) -> str | None:
        return topic_at(self._broker.store, offset)

    def _half_topic_at(self, offset: int) -> str | None:
        return half_topic_at(self._broker.store, offset)

    def role_changed(self, role: RoleState) -> None:
        """A master creates the users of its file. A slave has its master's; until it has copied them, those
        of its own file may use it."""
        auth = self._broker.settings.auth
        if role.is_master:
            if self.table.add_super_users(auth.first_users):
                self._changed()
            self._mark()
            if auth.authentication_enabled and not self.table:
                log.warning("there is no user, so every request is refused: set initAuthenticationUser")
        elif not self.table:
            self.table.add_super_users(auth.first_users)

    def _changed(self) -> None:
        broker = self._broker
        self.table.changed(broker.clock.now_ms(), broker.role.epoch)
        broker.tables.persistence.save(ACCESS_CONTROL)
        self._mark()
        broker.tables.watch.changed()

    def _mark(self) -> None:
        self._broker.tables.watch.access_control = self.table.mark

    @property
    def _used(self) -> bool:
        """Whether there is anything to compare with another replica that has not said what it has."""
        return self._broker.settings.auth.authentication_enabled or bool(self.table)

    async def _copy(self, master: Master) -> None:
        if master.access_control == self.table.mark:
            return
        if master.access_control == UNKNOWN_MARK and not self._used:
            return
        data = await _fetch(master)
        if data is not None and self.table.replace(data):
            self._broker.tables.persistence.save(ACCESS_CONTROL)

    async def _take_back(self, member: Member) -> bool:
        data = await _fetch(member) if self._used else None
        return data is not None and self.table.take_back(data)


async def _fetch(broker: Master) -> bytes | None:
    """Users and lists of another broker of the set; None of one that does not give them out."""
    if not broker.announces_changes:
        return None
    return await fetch_if_known(broker, GetAllAccessControl())
