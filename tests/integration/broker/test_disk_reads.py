"""Reads from a disk that is slow or fails, for pulls and for the index."""

import asyncio
import errno
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.broker.rig import Starter

from batonmq.broker.upkeep import pace
from batonmq.broker.upkeep.part import UpkeepPart
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker.pull import QueryMessage
from batonmq.protocol.message.record import MessageExt, decode_records
from batonmq.store import commitlog, indexer
from batonmq.store.mapped import MappedFile


@pytest.mark.pure
async def test_nobody_waits_while_old_messages_are_read_from_disk(
    start: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = await start()
    for number in range(3):
        await rig.send(b"%d" % number)
    await rig.broker.stop()
    again = await start()
    fetch, reading, disk = MappedFile.fetch, threading.Event(), threading.Event()

    def slowly(file: MappedFile, position: int, size: int) -> None:
        reading.set()
        assert disk.wait(10)
        fetch(file, position, size)

    monkeypatch.setattr(MappedFile, "fetch", slowly)
    pull = asyncio.create_task(again.messages())
    await asyncio.to_thread(reading.wait, 10)
    assert (await again.send()).queue_offset == 3
    assert len(await again.messages(3)) == 1
    assert not pull.done()
    disk.set()
    assert [message.body for message in await pull][:3] == [b"0", b"1", b"2"]


@pytest.mark.pure
async def test_old_messages_that_the_disk_no_longer_gives_are_an_error_of_the_pull(
    start: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = await start()
    await rig.send()
    await rig.broker.stop()
    again = await start()

    def broken(file: MappedFile, position: int, size: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(MappedFile, "fetch", broken)
    with pytest.raises(MQError, match=r"the messages cannot be read: .*Input/output error") as refused:
        await again.pull(0)
    assert refused.value.code == ResponseCode.SYSTEM_ERROR
    assert (await again.send()).queue_offset == 1


async def test_an_index_far_behind_waits_for_a_disk_that_fails_and_continues_by_itself(
    start: Starter, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """To go on by the map would end the broker: a page that cannot be read is a SIGBUS. (Records are larger
    than what is read at once.)"""
    monkeypatch.setattr(indexer, "READ_BYTES", 8 * 1024)
    monkeypatch.setattr(pace, "INDEX_DELAY_S", 0.01)
    tried: list[int] = []
    by_map = 0
    read_records = indexer.read_records

    def watched(data: Any, begin: int, end: int) -> Iterator[Any]:
        nonlocal by_map
        for record in read_records(data, begin, end):
            by_map += not isinstance(data, bytes)
            yield record

    monkeypatch.setattr(indexer, "read_records", watched)

    def broken(path: Path, position: int, size: int) -> bytes:
        tried.append(position)
        raise OSError(errno.EIO, "Input/output error")

    def logged() -> list[str]:
        return [r.getMessage() for r in caplog.records if r.getMessage().startswith("the index waits")]

    async def found(key: str) -> list[MessageExt]:
        header = QueryMessage(topic="T", key=key, max_num=32, begin_timestamp=0, end_timestamp=1 << 50)
        return decode_records((await rig.call(header, accept=(0, ResponseCode.QUERY_NOT_FOUND))).body)

    async def send_until(done: Callable[[], bool], key: str) -> None:
        deadline = time.monotonic() + 10
        while not done():
            assert time.monotonic() < deadline
            await rig.send(b"x" * 20_000, properties=f"KEYS\x01{key}\x02")
            await asyncio.sleep(0.02)

    with monkeypatch.context() as patch:
        patch.setattr(commitlog, "read_path", broken)
        rig = await start()
        for _ in range(30):
            await rig.send(b"x" * 20_000, properties="KEYS\x01first\x02")
        await send_until(lambda: len(tried) > 5, "next")
    assert len(set(tried)) == 1, "not a step further"
    assert len(logged()) == 1 and "Input/output error" in logged()[0]
    deadline = time.monotonic() + 10
    while rig.broker.part(UpkeepPart).indexing:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)
    assert not by_map
    assert len(await found("first")) == 30
