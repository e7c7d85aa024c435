"""Our consumer on a broker set without controllers whose master is killed: it goes on at the slave."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from batonmq import ConsumeFromWhere, Consumer, MessageExt
from batonmq.protocol.codes import PullSysFlag, ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker.pull import (
    PullMessage,
    QueryConsumerOffset,
    QueryConsumerOffsetResponse,
)

from .group import NAME, TOPIC, ClassicGroup, until


def consumer_of(group: ClassicGroup, seen: list[bytes], name: str = "g") -> Consumer:
    consumer = Consumer(
        name, group.namesrv.address, from_where=ConsumeFromWhere.FIRST_OFFSET, commit_interval_ms=200
    )

    def handle(message: MessageExt) -> None:
        seen.append(bytes(message.body))

    consumer.subscribe(TOPIC, "*", handle)
    return consumer


async def committed(group: ClassicGroup, broker_id: int) -> int | None:
    header = QueryConsumerOffset("g", TOPIC, 0, set_zero_if_not_found=False)
    try:
        answer = await group.client.call(group.brokers[broker_id].address, header)
    except MQError:
        return None
    assert isinstance(answer.header, QueryConsumerOffsetResponse)
    return answer.header.offset


async def commit_is(group: ClassicGroup, broker_id: int, offset: int) -> None:
    deadline = time.monotonic() + 20
    while await committed(group, broker_id) != offset:
        assert time.monotonic() < deadline, f"{NAME} {broker_id}: {await committed(group, broker_id)}"
        await asyncio.sleep(0.05)


async def test_consumers_that_start_while_the_master_is_dead_read_its_slave(tmp_path: Path) -> None:
    group = ClassicGroup(tmp_path, settings={"slaveReadEnable": "true"})
    try:
        await group.up()
        assert await group.send(10) == 0
        first: list[bytes] = []
        async with consumer_of(group, first):
            await until(lambda: len(first) == 10, "the first messages")
        await commit_is(group, 1, 10)
        assert await group.send(5) == 0
        await group.in_sync(1)
        group.master.kill()

        lagging: list[bytes] = []
        new: list[bytes] = []
        async with consumer_of(group, lagging), consumer_of(group, new, "new"):
            await until(lambda: len(lagging) == 5 and len(new) == 15, "what the slave has", 10)
            assert lagging == group.acked[10:] and sorted(new) == sorted(group.acked)
            await commit_is(group, 1, 15)
            await asyncio.to_thread(group.master.start)
            await commit_is(group, 0, 15)
            await group.serving()
            await until(lambda: lagging[-1] == new[-1] == group.acked[-1], "what the returned master got", 5)
        assert lagging == group.acked[10:]
        assert await committed(group, 0) == len(group.acked)
    finally:
        await group.close()


async def test_a_pull_at_the_end_of_a_slave_without_a_master_is_held(tmp_path: Path) -> None:
    """With a master the slave sends consumers there. Without one they would come back at once, for ever."""
    group = ClassicGroup(tmp_path, settings={"slaveReadEnable": "true"})
    header = PullMessage(
        consumer_group="g",
        topic=TOPIC,
        queue_id=0,
        queue_offset=4,
        max_msg_nums=32,
        sys_flag=int(PullSysFlag.SUBSCRIPTION | PullSysFlag.SUSPEND),
        commit_offset=0,
        suspend_timeout_millis=1_000,
        subscription="*",
        sub_version=0,
    )

    async def code_and_time() -> tuple[int, float]:
        began = time.monotonic()
        answer = await group.client.call(
            group.brokers[1].address, header, timeout_ms=35_000, accept=tuple(ResponseCode)
        )
        return answer.code, time.monotonic() - began

    try:
        await group.up()
        assert await group.send(4) == 0
        await group.in_sync(1)
        await group.bodies(group.brokers[1].address)  # also creates the consumer group
        code, took_s = await code_and_time()
        assert code == ResponseCode.PULL_RETRY_IMMEDIATELY and took_s < 0.9
        group.master.kill()
        await until(lambda: "lost master" in group.log(1), group.log(1))
        code, took_s = await code_and_time()
        assert code == ResponseCode.PULL_NOT_FOUND and took_s > 0.9
        # It ends when the master is back, not only when it would have ended anyway.
        header.suspend_timeout_millis = 30_000
        held = asyncio.ensure_future(code_and_time())
        await asyncio.to_thread(group.master.start)
        code, took_s = await held
        assert code == ResponseCode.PULL_RETRY_IMMEDIATELY and took_s < 15
    finally:
        await group.close()
