"""Forgets parts of logical queues whose messages have all expired, so that their brokers can be shut down.

The leader of a queue looks for such parts in the hours of `deleteWhen`, when messages expire. A group that
has a position in the part and in none after it gets one at the start of the next part. Source: RocketMQ's
`TopicQueueMappingCleanService`, which loses the position.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from batonmq.broker.tables.offsets import NOT_FOUND
from batonmq.protocol.bodies.statistics import ConsumerOffsetSerializeWrapper
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker.pull import (
    GetAllConsumerOffset,
    GetMaxOffset,
    GetMaxOffsetResponse,
    GetMinOffset,
    GetMinOffsetResponse,
    QueryConsumerOffset,
    QueryConsumerOffsetResponse,
    UpdateConsumerOffset,
)
from batonmq.protocol.json import decode
from batonmq.routing.static_topics import is_leader
from batonmq.store.disk import is_delete_hour

if TYPE_CHECKING:
    from batonmq.broker.context import Broker
    from batonmq.broker.statictopic.other_brokers import OtherBrokers
    from batonmq.protocol.bodies.static_topics import LogicQueueMappingItem

log = logging.getLogger(__name__)

PERIOD_S: Final = 300.0
YOUNG_MS: Final = 3_600_000
"""Age of a mapping, whose epoch is a time, at which its parts may be forgotten. After a switch a master hides
its last messages until replicas confirm them: a part that has just ended would seem to be empty."""


class ExpiredParts:
    """The parts of the logical queues that one broker leads."""

    def __init__(self, broker: Broker, others: OtherBrokers) -> None:
        self._broker = broker
        self._others = others

    async def forget_regularly(self) -> None:
        """Forget expired parts in the hours of `deleteWhen`; does not return."""
        broker = self._broker
        while True:
            await asyncio.sleep(PERIOD_S)
            if broker.role.is_master and is_delete_hour(broker.settings.store, broker.clock.now_ms()):
                await self.forget()

    async def forget(self) -> None:
        """Forget the first part of each queue that this broker leads, if the part has no messages left."""
        mappings, name = self._broker.tables.mappings, self._broker.settings.broker.broker_name
        now_ms = self._broker.clock.now_ms()
        for topic, mapping in list(mappings.table.items()):
            if now_ms - mapping.epoch < YOUNG_MS:
                continue
            for queue_id, items in mapping.hosted_queues.items():
                if len(items) < 2 or not is_leader(items, name) or items[1].logic_offset < 0:
                    continue
                try:
                    if await self._empty(topic, items[0]):
                        await self._keep_positions(topic, items)
                        mappings.drop_part(topic, queue_id, items[0].gen)
                except MQError as error:
                    log.warning("static topic %s queue=%d: %s", topic, queue_id, error)

    async def _empty(self, topic: str, part: LogicQueueMappingItem) -> bool:
        if self._here(part):
            bounds = self._broker.store.queue_bounds(topic, part.queue_id)
            return bounds.min_offset == bounds.max_offset
        # A slave may have no message of the part yet.
        least = GetMinOffset(topic=topic, queue_id=part.queue_id, lo=False)
        first = await self._others.call(part.bname, topic, least, master_only=True)
        most = GetMaxOffset(topic=topic, queue_id=part.queue_id, lo=False)
        end = await self._others.call(part.bname, topic, most, master_only=True)
        if not isinstance(first.header, GetMinOffsetResponse):
            return False
        return isinstance(end.header, GetMaxOffsetResponse) and first.header.offset == end.header.offset

    async def _keep_positions(self, topic: str, items: Sequence[LogicQueueMappingItem]) -> None:
        """Commit the start of the second part for the groups that have a position only in the first."""
        for group in await self._groups(topic, items[0]):
            for part in items[1:]:
                if await self._committed(group, topic, part) != NOT_FOUND:
                    break
            else:
                await self._commit(group, topic, items[1])
                log.info("group=%s continues at part %s of static topic %s", group, items[1], topic)

    async def _groups(self, topic: str, part: LogicQueueMappingItem) -> list[str]:
        """The groups with a position in the part."""
        offsets = self._broker.tables.offsets
        if self._here(part):
            groups = offsets.groups_of(topic)
            return sorted(each for each in groups if offsets.of(each, topic).get(part.queue_id, -1) >= 0)
        answer = await self._others.call(part.bname, topic, GetAllConsumerOffset())
        assert isinstance(answer.body, bytes | bytearray | memoryview)
        table = decode(answer.body, ConsumerOffsetSerializeWrapper).offset_table
        return sorted(
            group
            for name, _, group in (key.partition("@") for key in table)
            if name == topic and table[f"{topic}@{group}"].get(part.queue_id, -1) >= 0
        )

    async def _committed(self, group: str, topic: str, part: LogicQueueMappingItem) -> int:
        if self._here(part):
            return self._broker.tables.offsets.query(group, topic, part.queue_id)
        header = QueryConsumerOffset(
            consumer_group=group, topic=topic, queue_id=part.queue_id, set_zero_if_not_found=False, lo=False
        )
        try:
            answer = await self._others.call(part.bname, topic, header)
        except MQError as error:
            if error.code == ResponseCode.QUERY_NOT_FOUND:
                return NOT_FOUND
            raise
        assert isinstance(answer.header, QueryConsumerOffsetResponse)
        return answer.header.offset

    async def _commit(self, group: str, topic: str, part: LogicQueueMappingItem) -> None:
        if self._here(part):
            self._broker.tables.offsets.commit(group, topic, part.queue_id, part.start_offset)
            return
        header = UpdateConsumerOffset(
            consumer_group=group,
            topic=topic,
            queue_id=part.queue_id,
            commit_offset=part.start_offset,
            lo=False,
        )
        await self._others.call(part.bname, topic, header)

    def _here(self, part: LogicQueueMappingItem) -> bool:
        return part.bname == self._broker.settings.broker.broker_name
