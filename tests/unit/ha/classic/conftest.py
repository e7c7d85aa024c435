"""Replicas with real stores in temporary directories, linked over loopback by RocketMQ's plain stream."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from batonmq.common.clock import SystemClock
from batonmq.ha.classic.service import ClassicHAService
from batonmq.ha.config import HAConfig
from batonmq.ha.role import HARole
from batonmq.protocol.message.record import StoredMessage
from batonmq.store.config import StoreConfig
from batonmq.store.store import MessageStore

from ..stores import bodies_of, log_bytes

FILE_SIZE = 64 * 1024


class ClassicReplica:
    """A store and its ClassicHAService."""

    def __init__(self, root: Path, broker_id: int, config: HAConfig, **options) -> None:
        self.root, self.broker_id, self.config, self.options = root, broker_id, config, options
        self.open()

    def open(self) -> None:
        clock = SystemClock()
        store_config = StoreConfig(
            store_path_root_dir=str(self.root),
            mapped_file_size_commit_log=FILE_SIZE,
            mapped_file_size_consume_queue=2000,
            max_hash_slot_num=1000,
            max_index_num=4000,
        )
        self.store = MessageStore.open(store_config, clock, wait_for_confirm=False)
        self.ha = ClassicHAService(
            self.store,
            self.config,
            clock,
            broker_id=self.broker_id,
            host="127.0.0.1",
            port=0,
            file_size=FILE_SIZE,
            **self.options,
        )

    async def close(self) -> None:
        await self.ha.stop()
        self.store.close()

    async def restart(self, *, crash: bool = False) -> None:
        await self.ha.stop()
        self.store.abandon() if crash else self.store.close()
        self.open()
        await self.ha.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.ha.port}"

    def put(self, *bodies: bytes, topic: str = "T") -> int:
        """Store messages as the broker does; returns the end of the log."""
        assert self.ha.role is HARole.MASTER
        self.store.put([StoredMessage(topic=topic, queue_id=0, body=body) for body in bodies])
        self.ha.wake()
        self.ha.on_progress()
        return self.store.max_offset

    def log(self, begin: int | None = None) -> bytes:
        return log_bytes(self.store, begin)

    def bodies(self, topic: str = "T", begin: int = 0) -> list[bytes]:
        return bodies_of(self.store, topic, begin)


@pytest.fixture
async def replicas(tmp_path: Path) -> AsyncIterator[Callable[..., object]]:
    """``await replicas(n, **options)`` -> n started replicas with ids 0 to n - 1, without a role."""
    made: list[ClassicReplica] = []

    async def make(count: int, config: HAConfig | None = None, **options) -> list[ClassicReplica]:
        for _ in range(count):
            number = len(made)
            replica = ClassicReplica(tmp_path / str(number), number, config or HAConfig(), **options)
            await replica.ha.start()
            made.append(replica)
        return made[-count:]

    yield make
    for replica in made:
        with contextlib.suppress(AssertionError):
            await replica.close()
