"""Replicas with real stores in temporary directories, linked over loopback."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from batonmq.common.clock import SystemClock
from batonmq.ha.autoswitch.service import HAService
from batonmq.ha.autoswitch.sync_state import SyncStateSet
from batonmq.ha.config import HAConfig
from batonmq.ha.role import HARole
from batonmq.protocol.message.record import StoredMessage
from batonmq.store.config import StoreConfig
from batonmq.store.store import MessageStore

from .stores import bodies_of, log_bytes

FILE_SIZE = 64 * 1024


async def until(condition: Callable[[], bool], timeout: float = 5.0) -> None:
    """Wait for a condition; a test that waits in vain fails here."""
    async with asyncio.timeout(timeout):
        while not condition():
            await asyncio.sleep(0.002)


def same_set(*members: int, epoch: int = 1) -> SyncStateSet:
    return SyncStateSet(frozenset(members), epoch)


class Replica:
    """A store, its HAService and a controller that agrees with every proposal."""

    def __init__(self, root: Path, broker_id: int, config: HAConfig, **options) -> None:
        self.root, self.broker_id, self.config, self.options = root, broker_id, config, options
        self.agreeable = True
        self.registered = frozenset(range(1, 6))
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
        self.store = MessageStore.open(store_config, clock, wait_for_confirm=True)
        self.ha = HAService(
            self.store,
            self.config,
            clock,
            epoch_file=self.root / "epochFileCheckpoint",
            host="127.0.0.1",
            port=0,
            file_size=FILE_SIZE,
            **self.options,
        )
        self.ha.local_id = self.broker_id
        self.ha.on_sync_state_change = self._agree

    def _agree(self) -> None:
        tracker = self.ha.tracker
        if self.agreeable and self.registered.issuperset(self.ha.unregistered()):
            tracker.registered = self.registered
        members = self.ha.propose() if self.agreeable else None
        if members is not None:
            self.ha.answered(tracker, SyncStateSet(members, tracker.agreed.epoch + 1))

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

    async def lead(self, epoch: int, *members: int) -> None:
        await self.ha.become_master(epoch, same_set(*(members or (self.broker_id,))))

    async def follow(self, master: Replica, epoch: int) -> None:
        await self.ha.become_slave(master.address, master.broker_id, epoch)

    def put(self, *bodies: bytes, topic: str = "T") -> int:
        """Store messages as the broker does; returns the end of the log."""
        assert self.ha.role is HARole.MASTER
        self.store.put([StoredMessage(topic=topic, queue_id=0, body=body) for body in bodies])
        self.ha.wake()
        self.ha.on_progress()
        return self.store.max_offset

    def log(self) -> bytes:
        return log_bytes(self.store)

    def bodies(self, topic: str = "T") -> list[bytes]:
        return bodies_of(self.store, topic)


@pytest.fixture
async def replicas(tmp_path: Path) -> AsyncIterator[Callable[..., object]]:
    """``await replicas(n, **options)`` -> n started replicas with ids 1 to n, without a role."""
    made: list[Replica] = []

    async def make(count: int, config: HAConfig | None = None, **options) -> list[Replica]:
        for _ in range(count):
            replica = Replica(tmp_path / str(len(made) + 1), len(made) + 1, config or HAConfig(), **options)
            await replica.ha.start()
            made.append(replica)
        return made[-count:]

    yield make
    for replica in made:
        with contextlib.suppress(AssertionError):
            await replica.close()
