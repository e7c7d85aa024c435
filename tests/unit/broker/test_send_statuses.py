"""The status of each send in `tests/data/broker/acks.txt`: a real store, simulated replicas."""

from __future__ import annotations

import asyncio
import errno
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.ack_cases import AckCase, ack_cases

from batonmq.broker.config import BrokerConfig
from batonmq.broker.messages.acks import keys_without_effect
from batonmq.broker.messages.answers import CODE_OF, not_stored
from batonmq.broker.messages.appender import Appender, PutStatus
from batonmq.broker.role import RoleState
from batonmq.broker.settings import Settings
from batonmq.broker.stats import BrokerStats
from batonmq.common.clock import SystemClock
from batonmq.ha.config import HAConfig
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.message.record import StoredMessage
from batonmq.store.config import FlushDiskType, StoreConfig
from batonmq.store.mapped import sync_path
from batonmq.store.store import MessageStore

SLAVE_TIMEOUT_MS, FLUSH_TIMEOUT_MS = 60, 140


class Replicas:
    """Stands for `HAService`: slaves that have everything at once, or nothing, or no link."""

    def __init__(self, case: AckCase, store: MessageStore) -> None:
        self.in_sync_replicas = case.members
        self._slaves, self._store = case.slaves, store

    def acked_by(self, copies: int) -> int:
        held = sorted(self._store.max_offset if s == "h" else 0 for s in self._slaves if s != "g")
        held.append(self._store.max_offset)
        return held[-copies] if copies <= len(held) else -1

    def held_by_all(self) -> int:
        """All of `slaves` are members in the table's cases with allAckInSyncStateSet."""
        if "g" in self._slaves:
            return -1
        return 0 if "l" in self._slaves else self._store.max_offset

    def wake(self) -> None:
        own = self._store.flushed_offset if self.sync_flush else self._store.max_offset
        self._store.confirm_offset = max(self._store.confirm_offset, min(own, self.held_by_all()))

    sync_flush = False


class RecordingWaiter:
    def __init__(self, wait: bool) -> None:
        self.wait = wait
        self.answer: asyncio.Future[ResponseCode] = asyncio.get_running_loop().create_future()
        self.after_s = asyncio.get_running_loop().time()

    def stored(self, status: PutStatus, result: Any) -> None:
        self.after_s = asyncio.get_running_loop().time() - self.after_s
        if result is None:
            error = not_stored(status, 0)
            assert error.remark == "in-sync replicas not enough"
            self.answer.set_result(ResponseCode(error.code))
        else:
            self.answer.set_result(ResponseCode(CODE_OF[status]))


def appender_of(case: AckCase, root: Path) -> tuple[Appender, Any]:
    clock, controlled = SystemClock(), case.mode == "controller"
    store_config = StoreConfig(
        store_path_root_dir=str(root),
        mapped_file_size_commit_log=1 << 20,
        message_index_enable=False,
        flush_disk_type=FlushDiskType.ASYNC_FLUSH if case.disk == "async" else FlushDiskType.SYNC_FLUSH,
        sync_flush_timeout=FLUSH_TIMEOUT_MS,
    )
    config = BrokerConfig(
        broker_name="b",
        enable_controller_mode=controlled,
        controller_addr="127.0.0.1:1" if controlled else "",
        enable_slave_acting_master=case.mode == "acting",
        all_ack_in_sync_state_set=case.all_ack,
        in_sync_replicas=case.in_sync_replicas,
        min_in_sync_replicas=case.min_in_sync_replicas,
        enable_auto_in_sync_replicas=case.auto,
        total_replicas=5,
        slave_timeout=SLAVE_TIMEOUT_MS,
    )
    store = MessageStore.open(store_config, clock, wait_for_confirm=controlled)
    replicas = Replicas(case, store)
    replicas.sync_flush = case.disk != "async"
    role = RoleState()
    role.set_master(address="", ha_address="", epoch=1, replicates=case.mode != "async", log_start=0)
    settings, stats = Settings(config, store_config, HAConfig()), BrokerStats(clock.now_ms())
    return Appender(store, settings, role, stats, clock, replicas), store  # type: ignore[arg-type]


def wait_for_disk(appender: Appender, timeout_ms: int) -> None:
    """Flush again 20 ms after a failure; a send waits for so long."""
    settings = appender._settings
    settings.store = replace(settings.store, flush_interval_commit_log=20, sync_flush_timeout=timeout_ms)
    settings.broker = replace(settings.broker, slave_timeout=timeout_ms)


@pytest.mark.parametrize("case", ack_cases(), ids=lambda case: case.text)
async def test_send_status(case: AckCase, tmp_path: Path) -> None:
    appender, store = appender_of(case, tmp_path)
    disk = threading.Event()
    flush = store.flush
    if case.disk == "late":
        store.flush = lambda: (disk.wait(10), flush())[1]
    waiter = RecordingWaiter(case.wait)
    appender.submit(StoredMessage(topic="T", queue_id=0, body=b"x"), waiter)
    code = await asyncio.wait_for(waiter.answer, 5)
    disk.set()
    await appender.stop()
    store.close()
    assert code == case.code
    after_ms = waiter.after_s * 1000
    if code == ResponseCode.FLUSH_SLAVE_TIMEOUT:
        assert after_ms >= SLAVE_TIMEOUT_MS - 5
    elif code == ResponseCode.FLUSH_DISK_TIMEOUT:
        assert after_ms >= FLUSH_TIMEOUT_MS - 5


async def test_a_flush_with_too_many_open_files_is_repeated_without_another_send(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The send is acknowledged when it is on disk; a failed disk afterwards is not kept from the log."""
    case = next(case for case in ack_cases() if case.disk == "done" and case.code == ResponseCode.SUCCESS)
    appender, store = appender_of(case, tmp_path)
    wait_for_disk(appender, 5_000)
    errors = [errno.EMFILE, errno.ENFILE]

    def failing(path: Path) -> None:
        if errors:
            raise OSError(errors.pop(0), "says the test")
        sync_path(path)

    monkeypatch.setattr("batonmq.store.commitlog.sync_path", failing)

    async def send() -> ResponseCode:
        waiter = RecordingWaiter(True)
        appender.submit(StoredMessage(topic="T", queue_id=0, body=b"x"), waiter)
        return await asyncio.wait_for(waiter.answer, 5)

    assert await send() == ResponseCode.SUCCESS
    assert not errors and store.flushed_offset == store.max_offset > 0
    errors += [errno.EMFILE, errno.EIO]
    wait_for_disk(appender, FLUSH_TIMEOUT_MS)
    assert await send() == ResponseCode.FLUSH_DISK_TIMEOUT
    while store.failure is None:
        await asyncio.sleep(0.001)
    failed = [record.message for record in caplog.records if record.levelname == "ERROR"]
    assert [line.partition(": ")[0] for line in failed] == [
        "flush of the commit log failed, it is tried again",
        "flush of the commit log failed, it is tried again",
        "flush of the commit log failed, no more messages are accepted",
    ]
    await appender.stop()
    store.abandon()


async def test_a_flush_for_which_there_is_no_thread_is_logged_and_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    case = next(case for case in ack_cases() if case.disk == "done" and case.code == ResponseCode.SUCCESS)
    appender, store = appender_of(case, tmp_path)
    wait_for_disk(appender, 5_000)
    loop = asyncio.get_running_loop()
    refusals = [RuntimeError("can't start new thread")] * 2
    run = loop.run_in_executor

    def without_threads(*args: Any) -> Any:
        if refusals:
            raise refusals.pop()
        return run(*args)

    monkeypatch.setattr(loop, "run_in_executor", without_threads)
    waiter = RecordingWaiter(True)
    appender.submit(StoredMessage(topic="T", queue_id=0, body=b"x"), waiter)
    assert await asyncio.wait_for(waiter.answer, 5) == ResponseCode.SUCCESS
    assert not refusals and store.flushed_offset == store.max_offset > 0
    failed = [record.message for record in caplog.records if record.levelname == "ERROR"]
    assert failed == ["flush of the commit log failed, it is tried again: can't start new thread"]
    refusals.append(RuntimeError("can't start new thread"))
    await appender.stop()
    store.close()


def test_the_table_has_every_answer_in_every_mode_that_can_give_it() -> None:
    given = {(case.mode, case.code) for case in ack_cases()}
    codes = ("SUCCESS", "FLUSH_SLAVE_TIMEOUT", "FLUSH_DISK_TIMEOUT", "SYSTEM_ERROR")
    assert {("controller", ResponseCode[code]) for code in codes} <= given
    assert sum(case.also_java for case in ack_cases()) >= 10


def test_keys_without_effect_in_a_mode_are_named() -> None:
    keys = ("inSyncReplicas", "minInSyncReplicas", "enableAutoInSyncReplicas", "allAckInSyncStateSet")

    def named(*, controller: bool, acting: bool, all_ack: bool) -> list[str]:
        lines = keys_without_effect(
            controller_mode=controller, slave_acting_master=acting, set_keys=keys, all_ack=all_ack
        )
        assert all(" has no effect here: " in line for line in lines)
        return sorted(line.split()[0] for line in lines)

    asynchronous = keys_without_effect(
        controller_mode=False, slave_acting_master=True, set_keys=keys, all_ack=False, asynchronous=True
    )
    assert [line for line in asynchronous if line.endswith("ASYNC_MASTER waits for no slave")] == [
        f"{key} has no effect here: brokerRole=ASYNC_MASTER waits for no slave" for key in keys[:3]
    ]
    assert named(controller=True, acting=False, all_ack=False) == ["enableAutoInSyncReplicas"]
    assert named(controller=True, acting=False, all_ack=True) == [
        "enableAutoInSyncReplicas",
        "inSyncReplicas",
    ]
    assert named(controller=False, acting=True, all_ack=False) == ["allAckInSyncStateSet"]
    assert named(controller=False, acting=False, all_ack=True) == [
        "allAckInSyncStateSet",
        "enableAutoInSyncReplicas",
        "minInSyncReplicas",
    ]
