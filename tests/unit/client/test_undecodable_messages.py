"""Messages that cannot be inflated or decoded stop no queue."""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest

from batonmq.client.consumer import Consumer
from batonmq.client.push import pulling
from batonmq.protocol.bodies.clients import (
    MessageModel,
)
from batonmq.protocol.bodies.common import MessageQueue
from batonmq.protocol.codes import MessageSysFlag, RequestCode, ResponseCode
from batonmq.protocol.compression import CompressionType
from batonmq.protocol.errors import MQError
from batonmq.protocol.message.layout import BODY_POSITION_V4

from .fakes import FakeCluster
from .helpers import FIRST, fill, store_as_sent, until


@pytest.mark.parametrize("orderly", [False, True])
async def test_a_message_that_does_not_inflate_becomes_a_dead_letter_and_the_queue_continues(
    orderly: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pulling, "GIVE_UP_RETRY_S", 0.05)
    async with FakeCluster() as cluster:
        broker = await cluster.broker("a")
        cluster.topic("t", a=1)
        store_as_sent(cluster, b"0")
        store_as_sent(cluster, b"no zlib", CompressionType.ZLIB.sys_flag)
        store_as_sent(cluster, zlib.compress(b"2"), CompressionType.ZLIB.sys_flag)
        store_as_sent(cluster, b"of a kind that nobody knows", MessageSysFlag.COMPRESSED | 7 << 8)
        store_as_sent(cluster, b"4")
        refusals = [0]

        def refuse(code: int) -> Exception | None:
            if code == RequestCode.CONSUMER_SEND_MSG_BACK and refusals[0] < 2:
                refusals[0] += 1
                return MQError(ResponseCode.SYSTEM_BUSY, "not now")
            return None

        broker.answer = refuse
        seen: list[bytes] = []
        consumer = Consumer("g", cluster.namesrv, from_where=FIRST, orderly=orderly)
        consumer.subscribe("t", "*", lambda message: seen.append(message.body))
        async with consumer:
            await until(lambda: len(seen) == 3 and len(broker.log.sent_back) == 2)
        assert sorted(seen) == [b"0", b"2", b"4"] and refusals[0] == 2
        assert {(each.delay_level, each.origin_topic) for each in broker.log.sent_back} == {(-1, "t")}
        assert broker.log.offsets["g", MessageQueue("t", "a", 0)] == 5
        errors = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
        assert len(errors) == 2 and all("dead-letter topic" in each for each in errors)


async def test_a_broadcasting_consumer_leaves_out_what_does_not_inflate(tmp_path: Path) -> None:
    async with FakeCluster() as cluster:
        broker = await cluster.broker("a")
        cluster.topic("t", a=1)
        store_as_sent(cluster, b"no zlib", CompressionType.ZLIB.sys_flag)
        store_as_sent(cluster, b"1")
        seen: list[bytes] = []
        consumer = Consumer(
            "g",
            cluster.namesrv,
            from_where=FIRST,
            model=MessageModel.BROADCASTING,
            offsets_dir=str(tmp_path),
        )
        consumer.subscribe("t", "*", lambda message: seen.append(message.body))
        async with consumer:
            await until(lambda: seen == [b"1"])
        assert broker.log.sent_back == []


@pytest.mark.parametrize("cut", [True, False])
async def test_records_that_cannot_be_decoded_are_left_out_after_some_attempts(
    cut: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulling, "UNREADABLE_RETRY_S", 0.02)
    async with FakeCluster() as cluster:
        broker = await cluster.broker("a")
        cluster.topic("t", a=1)
        await fill(cluster, 3)
        records = broker.log.records[MessageQueue("t", "a", 0)]
        if cut:
            records[2] = records[2][:-1]
        else:
            damaged = bytearray(records[1])
            damaged[BODY_POSITION_V4 - 4 : BODY_POSITION_V4] = b"\xff\xff\xff\xff"
            records[1] = bytes(damaged)
        seen: list[bytes] = []
        consumer = Consumer("g", cluster.namesrv, from_where=FIRST)
        consumer.subscribe("t", "*", lambda message: seen.append(message.body))
        async with consumer:
            await until(lambda: len(seen) == 2)
            pulls = broker.pulls
            await fill(cluster, 1)
            await until(lambda: len(seen) == 3)
        assert sorted(seen[:2]) == ([b"0", b"1"] if cut else [b"0", b"2"])
        assert pulls >= pulling.UNREADABLE_ATTEMPTS
