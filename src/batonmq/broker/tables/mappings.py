"""Static topics: which physical queues make up the logical queues that this broker has a part of.

Owns the table behind ``config/topicQueueMapping.json``. A tool computes the mappings and sends each broker
its own; the broker only checks that a new one may follow the one before. Source: RIP-21,
`TopicQueueMappingManager` of Apache RocketMQ 5.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping

from batonmq.broker.versions import next_version
from batonmq.common.clock import Clock
from batonmq.protocol.bodies.common import DataVersion
from batonmq.protocol.bodies.routes import TopicQueueMappingInfo
from batonmq.protocol.bodies.static_topics import (
    LogicQueueMappingItem,
    TopicQueueMappingDetail,
    TopicQueueMappingSerializeWrapper,
)
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.json import decode, encode
from batonmq.routing.static_topics import check_queues, check_successor, led_queues

log = logging.getLogger(__name__)


class MappingTable:
    """Mappings by topic. Values are replaced, never changed in place."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._mappings: dict[str, TopicQueueMappingDetail] = {}
        self.state_version = 0
        """Master epoch in controller mode; part of every data version."""
        self.version = DataVersion()
        """Stays as it is without static topics: nobody has to compare tables that are empty."""
        self.listeners: list[Callable[[], None]] = []
        """Called after every change."""

    # -- reading

    def get(self, topic: str) -> TopicQueueMappingDetail | None:
        """The mapping of a static topic; None for any other topic."""
        return self._mappings.get(topic)

    def __contains__(self, topic: str) -> bool:
        return topic in self._mappings

    def __len__(self) -> int:
        return len(self._mappings)

    def __iter__(self) -> Iterator[str]:
        return iter(self._mappings)

    @property
    def table(self) -> Mapping[str, TopicQueueMappingDetail]:
        return self._mappings

    def infos(self) -> dict[str, TopicQueueMappingInfo]:
        """What name servers get: the queues that this broker leads."""
        return {
            topic: TopicQueueMappingInfo(
                topic=topic,
                scope=detail.scope,
                total_queues=detail.total_queues,
                bname=detail.bname,
                epoch=detail.epoch,
                dirty=detail.dirty,
                curr_id_map=led_queues(detail),
            )
            for topic, detail in self._mappings.items()
        }

    # -- changing

    def update(self, new: TopicQueueMappingDetail, *, force: bool = False) -> None:
        """Add or replace a mapping. `force`: without regard to the one before, whose other queues stay.

        Raises MQError (SYSTEM_ERROR) if it is not a mapping, or may not follow the one before.
        """
        topic = new.topic or ""
        old = self._mappings.get(topic)
        try:
            check_queues(new)
            merged = new.hosted_queues if old is None else _merged(old, new, force)
        except ValueError as error:
            raise MQError(ResponseCode.SYSTEM_ERROR, str(error)) from None
        self._put(topic, _with_queues(new, merged))
        log.info(
            "static topic %s changed: epoch=%d queues=%d led=%d force=%s",
            *(topic, new.epoch, new.total_queues, len(led_queues(new)), force),
        )

    def drop_part(self, topic: str, queue_id: int, gen: int) -> bool:
        """Forget a logical queue's first part, which no longer has messages; False if it is not there, or
        is the only one."""
        detail = self._mappings.get(topic)
        items = detail.hosted_queues.get(queue_id, []) if detail is not None else []
        if detail is None or len(items) < 2 or items[0].gen != gen:
            return False
        self._put(topic, _with_queues(detail, {**detail.hosted_queues, queue_id: items[1:]}))
        log.info("static topic %s queue=%d no longer has the part %s", topic, queue_id, items[0])
        return True

    def delete(self, topic: str) -> bool:
        """False if the topic is not static."""
        if self._mappings.pop(topic, None) is None:
            return False
        log.info("static topic deleted topic=%s", topic)
        self._changed()
        return True

    def _put(self, topic: str, detail: TopicQueueMappingDetail) -> None:
        self._mappings[topic] = detail
        self._changed()

    def _changed(self) -> None:
        self.version = next_version(self.version, self._clock.now_ms(), self.state_version)
        self._announce()

    def _announce(self) -> None:
        for listener in self.listeners:
            listener()

    def begin_term(self, epoch: int) -> None:
        """This broker is master of `epoch`; every later data version contains it."""
        self.state_version = epoch

    # -- file and replication

    def encode(self) -> bytes:
        """Contents of topicQueueMapping.json, as a RocketMQ broker reads them."""
        return encode(TopicQueueMappingSerializeWrapper(self._mappings, self.version))

    def restore(self, data: bytes) -> None:
        """Load a topicQueueMapping.json. Raises ValueError and then changes nothing."""
        read = decode(data, TopicQueueMappingSerializeWrapper)
        self._mappings = read.topic_queue_mapping_info_map
        self.version = read.data_version

    def replace(self, table: Mapping[str, TopicQueueMappingDetail], version: DataVersion) -> bool:
        """On a slave: load the master's table. False if it is unchanged."""
        changed = bool(table or self._mappings) and (version, table) != (self.version, self._mappings)
        self._mappings, self.version = dict(table), version
        if not changed:
            return False
        self._announce()
        return True


def _merged(
    old: TopicQueueMappingDetail, new: TopicQueueMappingDetail, force: bool
) -> dict[int, list[LogicQueueMappingItem]]:
    """The queues after a change. Raises ValueError."""
    queues = {**old.hosted_queues, **new.hosted_queues}
    if force:
        return queues
    if new.epoch < old.epoch:
        raise ValueError(f"Can't accept data with small epoch {new.epoch} < {old.epoch}")
    if new.scope != old.scope:
        raise ValueError(f"Can't accept data with unmatched scope {new.scope} != {old.scope}")
    same_epoch = new.epoch == old.epoch
    for queue_id, items in old.hosted_queues.items():
        if queue_id in new.hosted_queues:
            check_successor(items, new.hosted_queues[queue_id], same_epoch=same_epoch)
        elif same_epoch:
            raise ValueError("Cannot accept equal epoch with null data")
    return queues


def _with_queues(
    detail: TopicQueueMappingDetail, queues: dict[int, list[LogicQueueMappingItem]]
) -> TopicQueueMappingDetail:
    return TopicQueueMappingDetail(
        topic=detail.topic,
        scope=detail.scope,
        total_queues=detail.total_queues,
        bname=detail.bname,
        epoch=detail.epoch,
        dirty=detail.dirty,
        curr_id_map=detail.curr_id_map,
        hosted_queues=queues,
    )
