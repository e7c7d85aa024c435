"""A slave's copy of what the log does not carry: topics, subscription groups, consumer and delay offsets.

Pulled from the master every few seconds, as RocketMQ's SlaveSynchronize does; at once after a change of the
master, so that a second switch right after the first loses nothing that the first master knew; and at once
when a message of an unknown topic is replicated, so that a topic survives a switch right after its creation.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from batonmq.net.errors import NetError
from batonmq.protocol.bodies import (
    ConsumerOffsetSerializeWrapper,
    DataVersion,
    SubscriptionGroupWrapper,
    TopicConfigAndMappingSerializeWrapper,
    decode,
)
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker import (
    GetAllConsumerOffset,
    GetAllDelayOffset,
    GetAllSubscriptionGroup,
    GetAllTopicConfig,
)

if TYPE_CHECKING:
    from batonmq.broker.context import Broker
    from batonmq.protocol.registry import Header

log = logging.getLogger(__name__)

PERIOD_S: Final = 3.0
LOOK_S: Final = 0.1
"""Time between looks for unknown topics; also the wait after a failure before the first copy is complete."""
TIMEOUT_MS: Final = 3_000


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
        told = ""
        while True:
            try:
                await self._copy(master)
                told, self.complete = "", True
            except (NetError, MQError, ValueError) as error:
                if str(error) != told:
                    log.warning("tables of master %s cannot be copied: %s", master, error)
                    told = str(error)
            await self._pause()

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

    async def _copy(self, master: str) -> None:
        """One round; each table is taken over as soon as it is here."""
        broker = self._broker
        topics = decode(await self._fetch(master, GetAllTopicConfig()), TopicConfigAndMappingSerializeWrapper)
        broker.topics.replace(topics.topic_config_table, topics.data_version)
        offsets = decode(await self._fetch(master, GetAllConsumerOffset()), ConsumerOffsetSerializeWrapper)
        broker.offsets.replace(offsets.offset_table, offsets.data_version or DataVersion())
        delays = await self._fetch(master, GetAllDelayOffset())
        if delays:
            broker.schedule.restore(delays)
            broker.schedule.changed = True
        groups = decode(await self._fetch(master, GetAllSubscriptionGroup()), SubscriptionGroupWrapper)
        broker.subscriptions.replace(
            groups.subscription_group_table, groups.forbidden_table, groups.data_version
        )
