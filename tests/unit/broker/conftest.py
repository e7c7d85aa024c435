"""A small real store, and a broker on it with every handler of this room bound."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.unit.broker.fakes import make_broker

from batonmq.broker.context import Broker
from batonmq.broker.parts import PARTS
from batonmq.common.clock import ManualClock
from batonmq.net.dispatch import Dispatcher
from batonmq.protocol.bodies.topics import TopicConfig
from batonmq.protocol.message.ids import pack_host
from batonmq.protocol.message.properties import encode_properties
from batonmq.protocol.message.record import StoredMessage
from batonmq.store.config import StoreConfig
from batonmq.store.store import MessageStore

START_MS = 1_700_000_000_000


class Served:
    """A broker without sockets: `dispatcher` answers, `broker` is what it answers from."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.clock = ManualClock(START_MS)
        config = StoreConfig(
            store_path_root_dir=str(root),
            mapped_file_size_commit_log=1 << 16,
            mapped_file_size_consume_queue=2_000,
            max_hash_slot_num=100,
            max_index_num=400,
        )
        self.store = MessageStore.open(
            config, self.clock, wait_for_confirm=False, disk_usage=lambda path: 0.1
        )
        self.broker: Broker = make_broker(self.store, clock=self.clock, config_path=root / "broker.conf")
        self.dispatcher = Dispatcher()
        self.parts = [kind(self.broker) for kind in PARTS]
        for part in self.parts:
            self.broker.tables.persistence.restore(part.tables())
            part.handlers(self.dispatcher)
        self.broker.tables.topics.update(
            TopicConfig(topic_name="TopicJ", read_queue_nums=4, write_queue_nums=4)
        )

    def put(
        self, queue_id: int, body: bytes, *, key: str = "", tags: str = "tagA", topic: str = "TopicJ"
    ) -> int:
        """Store a message 1 s after the one before; returns its commit log offset."""
        self.clock.advance(1_000)
        properties = {"TAGS": tags, **({"KEYS": key} if key else {})}
        message = StoredMessage(
            topic=topic,
            queue_id=queue_id,
            body=body,
            properties=encode_properties(properties),
            born_timestamp=self.clock.now_ms(),
            store_host=pack_host("10.0.0.1", 10911),
        )
        (result,) = self.store.put([message])
        self.store.dispatch()
        return result.physical_offset


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    served = Served(tmp_path / "store")
    yield served
    await served.broker.tables.persistence.stop()
    served.store.close()
