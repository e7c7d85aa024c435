"""A slave's copy of what the log does not carry: topics, subscription groups, consumer and delay offsets.

Copied from the master every few seconds, as RocketMQ's SlaveSynchronize does; at once after a change of the
master, so that a second switch right after the first loses nothing that the first master knew; and at once
when the master says that a topic, a group or a group's first offset is new (`table_watch.py`). A RocketMQ
master does not say it; with one, the copy is renewed when a message of an unknown topic is replicated.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from batonmq.broker.table_watch import HOLD_S
from batonmq.common.log import some
from batonmq.net.errors import NetError
from batonmq.protocol.bodies.common import DataVersion
from batonmq.protocol.bodies.groups import SubscriptionGroupWrapper
from batonmq.protocol.bodies.statistics import ConsumerOffsetSerializeWrapper
from batonmq.protocol.bodies.topics import TopicConfigAndMappingSerializeWrapper
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker.pull import GetAllConsumerOffset, GetAllDelayOffset
from batonmq.protocol.headers.broker.replication import WatchTables, WatchTablesResponse
from batonmq.protocol.headers.broker.topics import GetAllSubscriptionGroup, GetAllTopicConfig
from batonmq.protocol.json import decode

if TYPE_CHECKING:
    from batonmq.broker.context import Broker
    from batonmq.protocol.registry import Header

log = logging.getLogger(__name__)

PERIOD_S: Final = 3.0
LOOK_S: Final = 0.1
"""Time between looks for unknown topics; also the wait after a failure before the first copy is complete."""
COPY_SHARE: Final = 4
"""Copying rests this many times as long as it took, so that it never keeps the master busy."""
GRACE_S: Final = 1.0
"""A master just elected may hear of it a little later than its slaves: that is not worth a line."""
SOON_S: Final = 0.02
"""The wait in that time: the first copy is to be here before this slave may be elected."""
TIMEOUT_MS: Final = 3_000
WATCH_MS: Final = int(HOLD_S * 1000) + TIMEOUT_MS


class SlaveSync:
    """Copies the master's tables while this broker is a slave."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._task: asyncio.Task[None] | None = None
        self._queues = 0
        self.complete = False
        """Whether everything was copied at least once from the current master."""

    def start(self, master_address: str) -> None:
        """Follow this master, beginning now."""
        assert self._task is None
        self.complete = False
        self._task = asyncio.get_running_loop().create_task(self._run(master_address))

    async def stop(self) -> None:
        """Nothing of a former master is taken over after this."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _run(self, master: str) -> None:
        loop = asyncio.get_running_loop()
        started = loop.time()
        told, watching, copied = "", True, -1
        while True:
            try:
                if watching:
                    copied = await self._next_change(master, copied)
                began = loop.time()
                await self._copy(master, rebuilt=watching)
                told, self.complete = "", True
                if watching:
                    await asyncio.sleep(min(COPY_SHARE * (loop.time() - began), PERIOD_S))
                    continue
            except (NetError, MQError, ValueError) as error:
                copied = -1  # a master that is back counts its changes anew
                if isinstance(error, MQError) and error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                    watching = False  # a RocketMQ broker
                    continue
                if str(error) != told and loop.time() - started > GRACE_S:
                    log.warning("tables of master %s cannot be copied: %s", master, error)
                    told = str(error)
            if not self.complete and loop.time() - started < GRACE_S:
                await asyncio.sleep(SOON_S)
            else:
                await self._pause()

    async def _next_change(self, master: str, copied: int) -> int:
        header = WatchTables(copied=copied, broker_id=self._broker.broker_id)
        response = await self._broker.outer.call(master, header, timeout_ms=WATCH_MS)
        if not isinstance(response.header, WatchTablesResponse):
            raise MQError(ResponseCode.SYSTEM_ERROR, "an answer without the number of changes")
        return response.header.changes

    async def _pause(self) -> None:
        """Until the next round is due."""
        broker, loop = self._broker, asyncio.get_running_loop()
        due = loop.time() + (PERIOD_S if self.complete else LOOK_S)
        while loop.time() < due:
            await asyncio.sleep(LOOK_S)
            found = broker.store.queues()
            if len(found) != self._queues:
                self._queues = len(found)
                if any(topic not in broker.topics for topic, _ in found):
                    return

    async def _fetch(self, master: str, header: Header) -> bytes:
        response = await self._broker.outer.call(master, header, timeout_ms=TIMEOUT_MS)
        return bytes(response.body)

    async def _copy(self, master: str, *, rebuilt: bool) -> None:
        """One round; each table is taken over as soon as it is here. `rebuilt`: see `note_deleted`."""
        broker = self._broker
        stored = {topic for topic, _ in broker.store.queues()}
        begun_anew = set(broker.store.begun_anew)
        topics = decode(await self._fetch(master, GetAllTopicConfig()), TopicConfigAndMappingSerializeWrapper)
        table, version = topics.topic_config_table, topics.data_version
        # What the master took since then is not in `stored`.
        if broker.topics.note_deleted(stored, table, version, rebuilt=rebuilt):
            log.warning(
                "master %s has no topic %s, of which this broker has messages: it took over before it had "
                "copied that, or it was deleted meanwhile. updateTopic there makes the messages readable; as "
                "master this broker makes the topic anew",
                master,
                some(sorted(broker.topics.lost)),
            )
        broker.topics.replace(table, version)
        offsets = decode(await self._fetch(master, GetAllConsumerOffset()), ConsumerOffsetSerializeWrapper)
        for topic in begun_anew:
            broker.offsets.remove_topic(topic)
        # Only now: had the master died before, these would still be to be forgotten.
        broker.store.begun_anew.difference_update(begun_anew)
        broker.offsets.replace(offsets.offset_table, offsets.data_version or DataVersion())
        delays = await self._fetch(master, GetAllDelayOffset())
        if delays:
            broker.schedule.restore(delays)
            broker.schedule.changed = True
        groups = decode(await self._fetch(master, GetAllSubscriptionGroup()), SubscriptionGroupWrapper)
        broker.subscriptions.replace(
            groups.subscription_group_table, groups.forbidden_table, groups.data_version
        )
