"""A master whose disk fails for good stops, and another replica becomes master.

The disk is a small ext4 file system made to abort, as the kernel does after an error of the device:
that needs root and mkfs.ext4; elsewhere the test is skipped with that reason.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.ha.replica_group import ReplicaGroup

from batonmq import Message, Producer
from batonmq.client.errors import ClientError
from batonmq.net.errors import NetError
from batonmq.protocol.errors import MQError


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """Where the first replica of a group in `tmp_path`/group has its store."""
    if os.geteuid() != 0:
        pytest.skip("a small file system can only be mounted by root")
    if shutil.which("mkfs.ext4") is None:
        pytest.skip("mkfs.ext4 is missing")
    path, image = tmp_path / "group" / "store-0", tmp_path / "image"
    path.mkdir(parents=True)
    with image.open("wb") as file:
        file.truncate(200 << 20)
    subprocess.run(["mkfs.ext4", "-q", str(image)], check=True)
    mounted = subprocess.run(
        ["mount", "-o", "loop,errors=remount-ro", str(image), str(path)], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"a file system cannot be mounted here: {mounted.stderr.strip()}")
    yield path
    subprocess.run(["umount", str(path)], check=True)


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_a_master_whose_disk_failed_makes_way(disk: Path, tmp_path: Path, flush: str) -> None:
    group = ReplicaGroup(tmp_path / "group", replicas=2, settings={"flushDiskType": flush})
    try:
        await group.up()
        await group.send(50, 1000)
        failed, other = group.cluster.brokers
        assert await group.master() is failed
        subprocess.run(["mount", "-o", "remount,abort", str(disk)], check=True)
        async with Producer("p", group.cluster.namesrv_address, send_timeout_ms=1_000) as producer:
            async with asyncio.timeout(30):
                while failed.running:  # what it is sent shows it that its disk is gone
                    try:
                        await producer.send(Message("Other", b"x"))
                    except (ClientError, NetError, MQError):
                        await asyncio.sleep(0.1)
        assert failed.process is not None and failed.process.returncode == 1
        info = await group.in_sync(1)
        assert info.master_address == other.address
        lines = group.lines(failed, "broker: ")
        assert len(lines) == 1 and "Another replica in sync takes over" in lines[0], lines
        assert not group.lines(failed, "Traceback")
        await group.send(10)
        assert await group.stored() == group.acked
    finally:
        await group.close()
