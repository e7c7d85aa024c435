"""Sends to a topic that the first of them creates: answers wait for the tables' disk and for slaves."""

import asyncio
import errno
import threading
from collections.abc import Iterator

import pytest
from tests.integration.broker.rig import Starter

from batonmq.broker import service as broker_service
from batonmq.broker.messages.part import MessagesPart
from batonmq.broker.replica.part import ReplicaPart
from batonmq.broker.tables.files import TableFile
from batonmq.ha.autoswitch.sync_state import SyncStateSet
from batonmq.net.errors import NetError
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker.replication import WatchTables, WatchTablesResponse


@pytest.fixture
def disk_of_tables(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Tables are not written until it is set."""
    disk, write = threading.Event(), TableFile.write
    disk.set()
    monkeypatch.setattr(TableFile, "write", lambda self, data: (disk.wait(10), write(self, data))[1])
    yield disk
    disk.set()


async def test_sends_to_a_topic_that_one_of_them_makes_are_answered_when_slaves_and_disk_have_it(
    start: Starter, disk_of_tables: threading.Event
) -> None:
    rig = await start()
    await rig.send(topic="Old")
    known = (await rig.call(WatchTables(copied=-1))).header
    assert isinstance(known, WatchTablesResponse)
    slave = asyncio.ensure_future(rig.call(WatchTables(copied=known.changes)))
    await asyncio.sleep(0.05)
    disk_of_tables.clear()
    answered: list[int] = []

    async def send(number: int) -> None:
        header = await rig.send(b"%d" % number, "New", number % 2)
        answered.append(header.queue_offset * 2 + number % 2)

    sends = [asyncio.ensure_future(send(number)) for number in range(6)]
    watched = (await slave).header
    assert isinstance(watched, WatchTablesResponse)
    assert len(await rig.messages(topic="New")) == 3
    await rig.send(topic="Old")
    slave = asyncio.ensure_future(rig.call(WatchTables(copied=watched.changes)))
    await asyncio.sleep(0.2)
    assert not answered
    disk_of_tables.set()
    await asyncio.gather(*sends)
    assert answered == list(range(6))
    await rig.send(topic="New")
    slave.cancel()


async def test_the_disk_of_the_tables_fails_and_sends_to_a_new_topic_are_answered(
    start: Starter, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(self: TableFile, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    rig = await start()
    monkeypatch.setattr(TableFile, "write", fail)
    await rig.send(topic="New")
    assert "topic New: in force until a restart: No space left on device" in caplog.text
    assert len(await rig.messages(topic="New")) == 1


async def test_a_topic_whose_first_send_is_refused_is_waited_for_by_the_next(start: Starter) -> None:
    rig = await start()
    with pytest.raises(MQError, match="queueId"):
        await rig.send(topic="New", queue=99)
    await rig.send(topic="New")
    await rig.send(topic="New")
    assert len(await rig.messages(topic="New")) == 2


async def test_a_backlog_of_sends_to_new_topics_is_bounded(
    start: Starter, disk_of_tables: threading.Event
) -> None:
    rig = await start(send_thread_pool_queue_capacity=20)
    await rig.send(topic="Old")
    disk_of_tables.clear()
    sends = [asyncio.ensure_future(rig.send(topic="New")) for _ in range(30)]
    await asyncio.sleep(0.3)
    await rig.send(topic="Old")
    disk_of_tables.set()
    outcomes = await asyncio.gather(*sends, return_exceptions=True)
    refused = [each for each in outcomes if isinstance(each, MQError)]
    assert len(refused) == 10 and all("[OVERLOAD]" in each.remark for each in refused)
    await rig.send(topic="New")


async def test_a_stop_waits_for_the_disk_of_the_tables_before_a_new_topic_is_acknowledged(
    start: Starter, disk_of_tables: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = await start()
    await rig.send(topic="Old")
    disk_of_tables.clear()
    sent = asyncio.ensure_future(rig.send(topic="New"))
    await asyncio.sleep(0.1)
    stopping = asyncio.ensure_future(rig.broker.stop())
    await asyncio.sleep(0.2)
    assert not sent.done()
    disk_of_tables.set()
    await sent
    await stopping

    monkeypatch.setattr(broker_service, "DRAIN_MS", 100)
    rig = await start()
    disk_of_tables.clear()
    sent = asyncio.ensure_future(rig.send(topic="Newer"))
    await asyncio.sleep(0.1)
    stopping = asyncio.ensure_future(rig.broker.stop())
    with pytest.raises((MQError, NetError)):
        await sent
    disk_of_tables.set()
    await stopping


async def test_who_is_no_longer_master_acknowledges_no_new_topic(
    start: Starter, disk_of_tables: threading.Event
) -> None:
    rig = await start(enable_controller_mode=True, controller_addr="127.0.0.1:1")
    await rig.broker.part(ReplicaPart).switch.become_master(1, SyncStateSet(frozenset({1}), 1), 1)
    await rig.send(topic="Old")
    disk_of_tables.clear()
    sent = asyncio.ensure_future(rig.send(topic="New"))
    await asyncio.sleep(0.1)
    await rig.broker.part(ReplicaPart).switch.become_slave(2, 1, 2, "127.0.0.1:1", "127.0.0.1:2")
    with pytest.raises(MQError) as refused:
        await sent
    assert refused.value.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert not rig.broker.part(MessagesPart).new_topics.held


async def test_sends_create_no_retry_topics_of_unknown_groups_without_end(
    start: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = await start()
    await rig.send(topic="%RETRY%one")
    topics = rig.broker.broker.tables.topics
    rig.broker.broker.tables.subscriptions.ensure(["known"])
    monkeypatch.setattr("batonmq.broker.tables.topics.MOST_CREATED", len(topics))
    for topic in ("%RETRY%two", "Other"):
        with pytest.raises(MQError) as caught:
            await rig.send(topic=topic)
        assert caught.value.code == ResponseCode.TOPIC_NOT_EXIST
    await rig.send(topic="%RETRY%one")
    await rig.send(topic="%RETRY%known")
    assert "%RETRY%two" not in topics and "%RETRY%known" in topics
