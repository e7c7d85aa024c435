"""What a message waits for before its acknowledgement, with a real store and simulated replicas."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from batonmq.broker.config import BrokerConfig
from batonmq.broker.messages.appender import HELD_BYTES, Appender, PutStatus
from batonmq.broker.role import RoleState
from batonmq.broker.settings import Settings
from batonmq.broker.stats import BrokerStats
from batonmq.common.clock import SystemClock
from batonmq.ha.config import HAConfig
from batonmq.protocol.message.record import StoredMessage
from batonmq.store.config import StoreConfig
from batonmq.store.results import PutResult
from batonmq.store.store import MessageStore


class Replicas:
    """Stands for `HAService`: what the replicas hold is set by the test."""

    def __init__(self) -> None:
        self.acks: list[int] = []
        self.in_sync_replicas = 3
        self.wakes = 0

    def wake(self) -> None:
        self.wakes += 1

    def acked_by(self, copies: int) -> int:
        held = sorted([1 << 62, *self.acks], reverse=True)
        return held[copies - 1] if copies <= len(held) else -1

    def held_by_all(self) -> int:
        return min(self.acks, default=-1)


class RecordingWaiter:
    """A waiter that records its outcome."""

    def __init__(self, log: list[tuple[str, PutStatus]], name: str, wait: bool = True) -> None:
        self.log, self.name, self.wait = log, name, wait
        self.end = -1

    def stored(self, status: PutStatus, result: Any) -> None:
        self.log.append((self.name, status))
        self.end = -1 if result is None else result.end_offset


class Rig:
    def __init__(self, root: Path, **keys: Any) -> None:
        store_config = StoreConfig(
            store_path_root_dir=str(root), mapped_file_size_commit_log=1 << 20, message_index_enable=False
        )
        self.controlled = bool(keys.get("all_ack_in_sync_state_set"))
        if self.controlled:
            keys["enable_controller_mode"] = True
        if keys.get("enable_controller_mode"):
            keys["controller_addr"] = "c:1"
        clock = SystemClock()
        self.store = MessageStore.open(store_config, clock, wait_for_confirm=self.controlled)
        self.replicas = Replicas()
        config = BrokerConfig(broker_name="b", total_replicas=3, **keys)
        self.role = RoleState()
        self.role.set_master(address="", ha_address="", epoch=1, replicates=True, log_start=0)
        self.appender = Appender(
            self.store,
            Settings(config, store_config, HAConfig()),
            self.role,
            BrokerStats(clock.now_ms()),
            clock,
            self.replicas,  # type: ignore[arg-type]
        )
        self.visible: list[Any] = []
        self.appender.listeners.append(self.visible.extend)
        self.log: list[tuple[str, PutStatus]] = []

    async def put(self, name: str, *, wait: bool = True) -> int:
        """Submit one message; returns where the log ends afterwards."""
        message = StoredMessage(topic="T", queue_id=0, body=name.encode())
        self.appender.submit(message, RecordingWaiter(self.log, name, wait))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return self.store.max_offset


@pytest.fixture
def rigs(tmp_path: Path) -> Iterator[Any]:
    made: list[Rig] = []

    def make(**keys: Any) -> Rig:
        made.append(Rig(tmp_path / str(len(made)), **keys))
        return made[-1]

    yield make
    for rig in made:
        rig.store.close()


async def test_acknowledged_in_log_order_once_enough_replicas_have_it(rigs: Any) -> None:
    rig = rigs(in_sync_replicas=2)
    first = await rig.put("a")
    second = await rig.put("b")
    assert rig.log == [] and rig.appender.backlog == 2 and rig.replicas.wakes == 2
    rig.replicas.acks = [first - 1, 0]
    rig.appender.progress()
    assert rig.log == []
    rig.replicas.acks = [first, 0]
    rig.appender.progress()
    assert rig.log == [("a", PutStatus.PUT_OK)]
    rig.replicas.acks = [0, second]
    rig.appender.progress()
    assert rig.log[1:] == [("b", PutStatus.PUT_OK)]
    await rig.appender.stop()


async def test_the_whole_sync_state_set_means_the_confirm_offset(rigs: Any) -> None:
    rig = rigs(all_ack_in_sync_state_set=True)
    end = await rig.put("a")
    rig.replicas.acks = [end, end]
    rig.appender.progress()
    assert rig.log == [] and rig.visible == []
    rig.store.confirm_offset = end
    rig.appender.progress()
    assert rig.log == [("a", PutStatus.PUT_OK)]
    assert rig.visible == [(("T", 0), 1)]
    await rig.appender.stop()


async def test_a_part_that_fails_over_new_messages_keeps_nothing_from_the_others(
    rigs: Any, caplog: pytest.LogCaptureFixture
) -> None:
    rig = rigs(all_ack_in_sync_state_set=True)

    def fails(grown: Any) -> None:
        raise RuntimeError("no")

    rig.appender.listeners.insert(0, fails)
    end = await rig.put("a")
    rig.replicas.acks = [end, end]
    rig.store.confirm_offset = end
    rig.appender.progress()
    assert rig.log == [("a", PutStatus.PUT_OK)] and rig.visible == [(("T", 0), 1)]
    assert [each.message for each in caplog.records] == ["a part of the broker failed over new messages"]
    await rig.appender.stop()


async def test_what_is_kept_whole_becomes_visible_at_once(rigs: Any) -> None:
    """Replicas acknowledge the log at any offset; consumers see all of it or nothing."""
    rig = rigs(all_ack_in_sync_state_set=True)
    before = await rig.put("before")
    for queue, name in enumerate("abc"):
        message = StoredMessage(topic="T", queue_id=queue, body=name.encode())
        rig.appender.submit(message, RecordingWaiter(rig.log, name))
    rig.appender.keep_whole(1)  # b and c
    end = await rig.put("after")  # the same turn
    assert before < end
    for held in range(end + 1):
        rig.store.confirm_offset = rig.store.confirmable(held)
        rig.appender.progress()
        seen = {queue: rig.store.queue_bounds("T", queue).max_offset for queue in (1, 2)}
        assert seen in ({1: 0, 2: 0}, {1: 1, 2: 1})
    assert [name for name, _ in rig.log] == ["before", "a", "b", "c", "after"]
    assert rig.store.queue_bounds("T", 0).max_offset == 3
    await rig.appender.stop()


async def test_a_message_that_goes_elsewhere_is_not_counted_among_those_kept_whole(rigs: Any) -> None:
    rig = rigs(all_ack_in_sync_state_set=True)
    rig.appender.divert = lambda message, waiter: message.queue_id == 0
    begin = rig.appender.place
    for queue in range(3):
        message = StoredMessage(topic="T", queue_id=queue, body=b"m")
        rig.appender.submit(message, RecordingWaiter(rig.log, "m"))
    rig.appender.keep_whole(begin)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    end = rig.store.max_offset
    assert [rig.store.confirmable(held) for held in (end - 1, end)] == [0, end]
    await rig.appender.stop()


async def test_settling_includes_messages_that_wait_while_the_log_is_held(rigs: Any) -> None:
    """A hand-back of the role that fails appends them afterwards, to a queue that may have moved."""
    rig = rigs()
    rig.appender.hold()
    await rig.put("held")
    assert not await rig.appender.settle(20)
    settling = asyncio.create_task(rig.appender.settle(5_000))
    await asyncio.sleep(0.02)
    rig.appender.resume()
    assert await settling and rig.store.queue_bounds("T", 0).max_offset == 1
    await rig.appender.stop()


async def test_a_new_term_forgets_what_was_to_be_kept_whole(rigs: Any) -> None:
    rig = rigs(all_ack_in_sync_state_set=True)
    for name in "ab":
        message = StoredMessage(topic="T", queue_id=0, body=name.encode())
        rig.appender.submit(message, RecordingWaiter(rig.log, name))
    rig.appender.keep_whole(0)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    end = rig.store.max_offset
    assert rig.store.confirmable(end - 1) == 0
    rig.store.cut_torn_tail()
    assert rig.store.confirmable(end - 1) == end - 1
    await rig.appender.stop()


async def test_a_message_that_does_not_wait_is_answered_at_once(rigs: Any) -> None:
    rig = rigs(in_sync_replicas=3)
    await rig.put("a")
    await rig.put("b", wait=False)
    assert rig.log == [("b", PutStatus.PUT_OK)]
    await rig.appender.stop()


async def test_too_few_in_sync_refuses_only_those_that_wait(rigs: Any) -> None:
    rig = rigs(in_sync_replicas=2, min_in_sync_replicas=2, enable_controller_mode=True)
    rig.replicas.in_sync_replicas = 1
    assert await rig.put("a") == 0
    assert await rig.put("b", wait=False) > 0
    assert rig.log == [("a", PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH), ("b", PutStatus.PUT_OK)]
    await rig.appender.stop()


async def test_a_message_that_does_not_wait_acknowledges_no_other(rigs: Any) -> None:
    """The SyncStateSet shrank below the minimum while a message waited for it."""
    rig = rigs(all_ack_in_sync_state_set=True, min_in_sync_replicas=2)
    await rig.put("a")
    rig.replicas.in_sync_replicas = 1
    await rig.put("b", wait=False)
    rig.appender.progress()
    assert rig.log == [("b", PutStatus.PUT_OK)]
    await rig.appender.stop()


async def test_a_set_that_shrank_below_the_minimum_acknowledges_nothing(rigs: Any) -> None:
    rig = rigs(all_ack_in_sync_state_set=True, min_in_sync_replicas=2, slave_timeout=60)
    end = await rig.put("a")
    # The slave is gone, and out of the set: this master alone confirms what it has.
    rig.replicas.in_sync_replicas, rig.replicas.acks = 1, [end]
    rig.store.confirm_offset = end
    rig.appender.progress()
    assert rig.log == [] and rig.visible == [(("T", 0), 1)]
    await asyncio.sleep(0.1)
    assert rig.log == [("a", PutStatus.FLUSH_SLAVE_TIMEOUT)]
    await rig.appender.stop()


async def test_a_set_that_is_large_enough_again_acknowledges_what_waits(rigs: Any) -> None:
    rig = rigs(all_ack_in_sync_state_set=True, min_in_sync_replicas=2)
    end = await rig.put("a")
    rig.replicas.in_sync_replicas = 1
    rig.store.confirm_offset = end
    rig.appender.progress()
    assert rig.log == []
    rig.replicas.in_sync_replicas = 2
    rig.appender.progress()
    assert rig.log == [("a", PutStatus.PUT_OK)]
    await rig.appender.stop()


async def test_late_replicas_time_out_and_are_logged_once(rigs: Any) -> None:
    rig = rigs(in_sync_replicas=2, slave_timeout=50)
    end = await rig.put("a")
    await asyncio.sleep(0.12)
    assert rig.log == [("a", PutStatus.FLUSH_SLAVE_TIMEOUT)]
    rig.replicas.acks = [end]
    rig.appender.progress()
    assert len(rig.log) == 1
    await rig.appender.stop()


async def test_a_master_that_became_a_slave_acknowledges_nothing_more(rigs: Any) -> None:
    rig = rigs(in_sync_replicas=2)
    end = await rig.put("a")
    rig.role.set_slave(broker_id=2, epoch=2, master_address=None, master_ha_address=None)
    rig.appender.abandon()
    assert rig.log == [("a", PutStatus.SERVICE_NOT_AVAILABLE)]
    rig.replicas.acks = [end]
    rig.appender.progress()
    assert await rig.put("b") == end
    assert rig.log[1:] == [("b", PutStatus.SERVICE_NOT_AVAILABLE)]
    await rig.appender.stop()


@pytest.mark.parametrize("copies", [1, 2])
async def test_a_waiter_that_fails_keeps_back_no_other(rigs: Any, copies: int) -> None:
    class Broken(RecordingWaiter):
        def stored(self, status: PutStatus, result: PutResult | None) -> None:
            raise ValueError("cannot answer")

    rig = rigs(in_sync_replicas=copies)
    for waiter in (Broken(rig.log, "a", True), RecordingWaiter(rig.log, "b", True)):
        rig.appender.submit(StoredMessage(topic="T", queue_id=0, body=b"x"), waiter)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    rig.replicas.acks = [rig.store.max_offset, rig.store.max_offset]
    rig.appender.progress()
    assert rig.log == [("b", PutStatus.PUT_OK)] and rig.appender.backlog == 0
    assert rig.visible[-1] == (("T", 0), 2)
    await rig.appender.stop()


async def test_a_log_that_is_held_takes_no_more_than_fits(rigs: Any) -> None:
    """Bodies wait in memory then, and each connection may bring 64 MiB."""
    rig = rigs(in_sync_replicas=1)
    rig.appender.hold()
    message = StoredMessage(topic="T", queue_id=0, body=bytes(HELD_BYTES // 16))
    for _ in range(16):
        assert not rig.appender.full(1000)
        rig.appender.submit(message, RecordingWaiter(rig.log, "a", True))
    assert rig.appender.full(1000)
    rig.appender.resume()
    assert not rig.appender.full(1000) and rig.appender.full(16)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(rig.log) == 16 and not rig.appender.full(1)
    await rig.appender.stop()
