"""Starts and stops: a whole process, what prevents a start, a stop in the middle of work."""

import asyncio
import errno
import gc
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.integration.broker.rig import Starter, configs, program, write_conf

from batonmq.broker.service import BrokerService
from batonmq.store import queues, store
from batonmq.store.config import FlushDiskType
from batonmq.store.errors import StoreError


def test_a_process_is_ready_within_a_second_and_stops_cleanly_on_sigterm(tmp_path: Path) -> None:
    conf = write_conf(tmp_path / "b.conf", storePathRootDir=tmp_path / "store", namesrvAddr="127.0.0.1:1")
    with subprocess.Popen(
        program(conf), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("The broker[b, 127.0.0.1:")
        assert line.endswith("] boot success. serializeType=JSON and name server is 127.0.0.1:1\n")
        anonymous = next(
            int(row.split()[1])
            for row in Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
            if row.startswith("Anonymous:")
        )
        assert anonymous < 100 * 1024, f"{anonymous} KiB of anonymous memory"
        process.send_signal(signal.SIGTERM)
        assert process.wait(15) == 0
    assert not (tmp_path / "store" / "abort").exists()


async def test_what_cannot_start_says_why_in_one_line(start: Starter, tmp_path: Path) -> None:
    rig = await start()
    (tmp_path / "file").write_text("")
    for keys, expected in (
        ({"storePathRootDir": tmp_path / "s2", "listenPort": rig.broker.port}, str(rig.broker.port)),
        ({"storePathRootDir": tmp_path / "store"}, str(tmp_path / "store")),
        ({"storePathRootDir": tmp_path / "file" / "x"}, str(tmp_path / "file")),
        ({"storePathRootDir": tmp_path / "s3", "slaveTimeout": "soon"}, "slaveTimeout=soon"),
        ({"storePathRootDir": tmp_path / "s3", "messageDelayLevel": "1s 2x"}, "messageDelayLevel"),
        ({"storePathRootDir": tmp_path / "s3", "brokerRole": "SLAVE"}, "brokerId=0"),
    ):
        conf = write_conf(tmp_path / "bad.conf", **keys)
        done = await asyncio.to_thread(
            subprocess.run, program(conf), capture_output=True, text=True, timeout=20, check=False
        )
        assert done.returncode == 1, (keys, done.stderr)
        lines = [line for line in done.stderr.splitlines() if line.startswith("broker: ")]
        assert len(lines) == 1 and expected in lines[0], (keys, done.stderr)
        assert "Traceback" not in done.stderr
    assert (await rig.send()).queue_offset == 0


async def test_stopped_as_soon_as_it_has_started(tmp_path: Path) -> None:
    """All tasks that it has started end without a warning (which is an error in these tests)."""
    before = asyncio.all_tasks()
    service = BrokerService(
        *configs(tmp_path / "quick", enable_controller_mode=True, controller_addr="127.0.0.1:1")
    )
    await service.start()
    assert asyncio.all_tasks() > before
    await service.stop()
    assert asyncio.all_tasks() == before
    assert not (tmp_path / "quick" / "abort").exists()
    gc.collect()


async def test_a_stop_while_queues_are_being_flushed_is_clean(
    start: Starter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two threads took from one list of queues to flush."""
    sync = queues.sync_path
    monkeypatch.setattr(queues, "sync_path", lambda path: (time.sleep(0.01), sync(path))[1])
    rig = await start()
    await asyncio.gather(*(rig.send(topic=f"T{number}") for number in range(60)))
    while not rig.broker.broker.store._flushing_queues.locked():
        await asyncio.sleep(0.005)
    await rig.broker.stop()
    assert not (tmp_path / "store" / "abort").exists()


def fail_to_sync_the_log(monkeypatch: pytest.MonkeyPatch, error: Callable[[], int | None]) -> None:
    """Have the opening of a commit log file for its fsync fail with `error`, if there is one."""
    system_open = os.open

    def open_file(path: str | Path, flags: int, *arguments: Any, **named: Any) -> int:
        log_file = flags == os.O_RDONLY and Path(path).parent.name == "commitlog"
        if log_file and (number := error()) is not None:
            raise OSError(number, os.strerror(number), str(path))
        return system_open(path, flags, *arguments, **named)

    monkeypatch.setattr(os, "open", open_file)


async def test_a_stop_with_too_many_open_files_waits_for_some_to_close(
    start: Starter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other brokers of the process may use them up for a moment; that is not a failed disk."""
    errors = [errno.EMFILE] * 3
    monkeypatch.setattr(store, "FILES_AGAIN_S", 0.01)
    rig = await start(flush_disk_type=FlushDiskType.ASYNC_FLUSH)
    fail_to_sync_the_log(monkeypatch, lambda: errors.pop() if errors else None)
    await rig.send()
    await rig.broker.stop()
    assert not errors
    assert not (tmp_path / "store" / "abort").exists()


@pytest.mark.parametrize("error", [errno.EMFILE, errno.EIO])
async def test_a_last_flush_that_is_not_possible_ends_the_stop_in_order(
    start: Starter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    """It says what happened; everything is closed, and the messages are there at the next start."""
    monkeypatch.setattr(store, "FILES_PATIENCE_S", 0.1)
    rig = await start(flush_disk_type=FlushDiskType.ASYNC_FLUSH)
    await rig.send(b"kept")
    fail_to_sync_the_log(monkeypatch, lambda: error)
    expected = StoreError if error == errno.EMFILE else OSError
    says = "files could be opened" if error == errno.EMFILE else "fsync of the commit log failed"
    with pytest.raises(expected, match=says):
        await rig.broker.stop()
    monkeypatch.undo()
    assert (tmp_path / "store" / "abort").exists()
    again = await start()  # in the same process: the lock of the store is free
    assert [message.body for message in await again.messages()] == [b"kept"]
