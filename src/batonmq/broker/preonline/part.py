"""The part that prepares a broker before it takes its role.

A broker that was away does not register at first, so no client finds it. A master announces itself to the
slaves (EXCHANGE_BROKER_HA_INFO), waits until each one replicates from it, and copies their newer tables: an
acting slave has accepted offsets and delivered messages meanwhile. A slave replicates from its master and
copies its tables before it registers. If no other broker of the set is registered, a broker serves at once.

Source: RocketMQ's `BrokerPreOnlineService`.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from batonmq.broker.acting.polling import MemberPolling
from batonmq.broker.part import Part
from batonmq.broker.preonline.core import Answer, linked
from batonmq.broker.preonline.members import RemoteMember, ask_name_servers
from batonmq.broker.replica.fixed_role import SLAVE, starts_isolated
from batonmq.broker.replica.slave_sync import RemoteMaster, SlaveSync
from batonmq.ha.classic.service import ClassicHAService
from batonmq.net.errors import NetError
from batonmq.protocol.codes import MASTER_ID
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker.replication import ExchangeHAInfo, ExchangeHAInfoResponse

if TYPE_CHECKING:
    from collections.abc import Mapping

    from batonmq.broker.context import Broker

log = logging.getLogger(__name__)

RETRY_S: Final = 0.5
"""Time between attempts."""
LOOK_S: Final = 0.05
"""Interval of checks of the links."""
LINK_S: Final = 2.0
"""How long a master waits for links before it asks the name servers again."""
CALL_MS: Final = 3_000
REPEAT_S: Final = 60.0
"""Interval at which the log line with the missing step is repeated."""


class PreOnlinePart(Part):
    """Comes after `ReplicaPart`, which leaves the role to it."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._polling = MemberPolling(broker)
        self._task: asyncio.Task[None] | None = None
        self._members: dict[str, RemoteMember] = {}
        """By client address."""
        self._waited_for: Mapping[int, str] = {}
        """The other members of the last attempt."""
        self._said = ("", 0.0)

    async def start(self) -> None:
        if starts_isolated(self._broker.settings.broker):
            self._task = asyncio.get_running_loop().create_task(self._run())
            self._task.add_done_callback(self._ended)

    async def withdraw(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """An exception here is a bug: without a role the broker is of no use."""
        if not task.cancelled():
            error = task.exception()
            if isinstance(error, Exception):
                log.error("the broker cannot get ready", exc_info=error)
                self._broker.fail(error)

    async def _run(self) -> None:
        broker = self._broker
        replication = broker.replication
        assert isinstance(replication, ClassicHAService), "fixed roles use the plain stream"
        began = asyncio.get_running_loop().time()
        slave = broker.settings.broker.broker_role == SLAVE
        if not slave:
            # Slaves may connect before they get the announcement; after a refusal they would wait.
            replication.serve()
        log.info("not registered yet: the broker first copies what its broker set has (pre-online)")
        while True:
            missing = await (self._slave(replication) if slave else self._master(replication))
            if missing is None:
                break
            self._say(missing)
            await asyncio.sleep(RETRY_S)
        log.info("ready to serve after %.1f s", asyncio.get_running_loop().time() - began)
        broker.assume_role()
        if not slave:
            # The members it waited for are alive: locks and sends need not wait for the next poll.
            own = {broker.settings.broker.broker_id: broker.address}
            broker.members.update({**self._waited_for, **own})

    def _say(self, missing: str) -> None:
        """One line for each new reason, and again once a minute."""
        now = asyncio.get_running_loop().time()
        reason, since = self._said
        if missing != reason or now - since >= REPEAT_S:
            log.warning("the broker is not registered and serves nobody, and tries again: %s", missing)
            self._said = missing, now

    async def _others(self) -> Mapping[int, str] | str:
        """The other members of the broker set, or the reason why they are unknown."""
        broker = self._broker
        config = broker.settings.broker
        members = await ask_name_servers(broker, self._polling)
        if members is None:
            return f"no name server of {config.namesrv_addr} answers"
        others = dict(members)
        same = others.pop(config.broker_id, broker.address)
        if same != broker.address:
            name, own_id = config.broker_name, config.broker_id
            return f"another broker {name} with brokerId={own_id} is registered at {same}"
        return others

    # -- a master

    async def _master(self, replication: ClassicHAService) -> str | None:
        """One attempt; returns what is missing."""
        others = await self._others()
        if isinstance(others, str):
            return others
        self._waited_for = others
        self._members = {
            address: self._members.get(address) or RemoteMember(self._broker.client, address)
            for address in others.values()
        }
        missing = await self._until_linked(replication, others)
        for broker_id in sorted(others):
            member = self._members[others[broker_id]]
            if member.linked and not member.taken:
                missing = await self._take_back(broker_id, member) or missing
        if missing is not None:
            return missing
        for broker_id, address in sorted(others.items()):
            # Copy again what the acting slave has accepted in the meantime.
            if self._members[address].acted:
                missing = await self._take_back(broker_id, self._members[address]) or missing
        return missing

    async def _until_linked(self, replication: ClassicHAService, others: Mapping[int, str]) -> str | None:
        """Announce this master until all members replicate from it, for at most `LINK_S`; returns those that
        do not."""
        loop = asyncio.get_running_loop()
        until = loop.time() + LINK_S
        answers: dict[int, Answer] = {}
        failures: dict[int, str] = {}
        for member in self._members.values():
            member.linked = False
        while True:
            waiting = [i for i in sorted(others) if not self._members[others[i]].linked]
            # RocketMQ's slaves do not report their state: one announcement is enough.
            asked = [i for i in waiting if i not in answers or answers[i].follows is not None]
            found = await asyncio.gather(*(self._announce(others[i]) for i in asked))
            for broker_id, answer in zip(asked, found, strict=True):
                if isinstance(answer, Answer):
                    answers[broker_id] = answer
                    failures.pop(broker_id, None)
                else:
                    failures[broker_id] = answer
            links = [replica.address for replica in replication.replicas()]
            for broker_id in linked(others, answers, links):
                self._members[others[broker_id]].linked = True
            waiting = [i for i in waiting if not self._members[others[i]].linked]
            if not waiting or loop.time() >= until:
                break
            await asyncio.sleep(LOOK_S)
        if not waiting:
            return None
        no_link = "slave {} at {} does not replicate from {}: its log, or a line above, says why"
        return "; ".join(
            failures.get(i) or no_link.format(i, others[i], self._broker.ha_address) for i in waiting
        )

    async def _announce(self, address: str) -> Answer | str:
        """The answer of a slave, or the reason why there is none."""
        broker, member = self._broker, self._members[address]
        header = ExchangeHAInfo(
            master_ha_address=broker.ha_address,
            master_flush_offset=broker.store.flushed_offset,
            master_address=broker.address,
        )
        try:
            answer = (await broker.client.call(address, header, timeout_ms=CALL_MS)).header
        except (NetError, MQError) as error:
            return str(error)
        assert isinstance(answer, ExchangeHAInfoResponse)
        member.announces_changes = answer.follows is not None
        return Answer(answer.follows, answer.linked_from or "")

    async def _take_back(self, broker_id: int, member: RemoteMember) -> str | None:
        """Copy this slave's newer tables; returns the reason of a failure."""
        persistence = self._broker.tables.persistence
        taken = []
        for table in persistence:
            if table.take_back is None:
                continue
            try:
                if await table.take_back(member):
                    taken.append(table.name)
                    persistence.save(table.name)
            except (NetError, MQError, ValueError) as error:
                return f"{table.name} of slave {broker_id} at {member.address} cannot be read: {error}"
        try:
            await persistence.written()
        except OSError as error:
            return f"tables cannot be written: {error}"
        if taken:
            log.info("taken back from slave %d at %s: %s", broker_id, member.address, ", ".join(taken))
        member.taken = True
        return None

    # -- a slave

    async def _slave(self, replication: ClassicHAService) -> str | None:
        """One attempt; returns what is missing."""
        broker = self._broker
        others = await self._others()
        if isinstance(others, str):
            return others
        master = others.get(MASTER_ID)
        if master is None:
            return None
        try:
            answer = (await broker.client.call(master, ExchangeHAInfo(), timeout_ms=CALL_MS)).header
        except (NetError, MQError) as error:
            return f"master {master} does not answer: {error}"
        assert isinstance(answer, ExchangeHAInfoResponse)
        if answer.master_ha_address is None:
            return None
        ha_address = broker.settings.ha.ha_master_address or answer.master_ha_address
        replication.follow(ha_address)
        loop = asyncio.get_running_loop()
        until = loop.time() + LINK_S
        while not replication.following:
            if loop.time() >= until:
                return f"no replication from master {ha_address}, the lines above say why"
            await asyncio.sleep(LOOK_S)
        copying = SlaveSync(broker.client, broker.role, broker.tables, broker.store)
        try:
            await copying.copy(RemoteMaster(broker.client, master))
        except NetError as error:
            return f"tables of master {master} cannot be copied: {error}"
        except (MQError, ValueError) as error:
            log.warning("not all tables of master %s were copied: %s", master, error)
        return None
