"""A master that returns serves nobody before its slaves follow it and it has what they know better."""

from __future__ import annotations

import asyncio
import re
import shutil
import time
from pathlib import Path

from tests.integration.acting.group import TOPIC, Pairs, until

from batonmq.net.errors import NetError
from batonmq.protocol.bodies.groups import SubscriptionGroupConfig
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker.pull import QueryConsumerOffset, UpdateConsumerOffset
from batonmq.protocol.headers.broker.replication import ExchangeHAInfo
from batonmq.protocol.headers.broker.topics import UpdateSubscriptionGroup
from batonmq.protocol.json import encode

GROUP = "g"
WHOLE_S = 5.0


async def commit(pairs: Pairs, broker_id: int, offset: int, queue_id: int = 0) -> None:
    header = UpdateConsumerOffset(consumer_group=GROUP, topic=TOPIC, queue_id=queue_id, commit_offset=offset)
    await pairs.client.call(pairs.address("a", broker_id), header)


async def committed(pairs: Pairs, broker_id: int, queue_id: int = 0) -> int:
    header = QueryConsumerOffset(consumer_group=GROUP, topic=TOPIC, queue_id=queue_id)
    try:
        answer = await pairs.client.call(pairs.address("a", broker_id), header)
    except MQError:
        return -1
    return int(answer.header.offset)  # type: ignore[attr-defined]


async def group_known(pairs: Pairs) -> None:
    body = encode(SubscriptionGroupConfig(group_name=GROUP))
    await pairs.client.call(pairs.address("a", 0), UpdateSubscriptionGroup(), body)


async def registered(pairs: Pairs, broker_id: int = 0) -> bool:
    return broker_id in await pairs.members("a")


async def test_what_an_acting_slave_accepted_outlives_the_return_of_the_master(tmp_path: Path) -> None:
    pairs = Pairs(tmp_path, sets="a", slaves=2)
    try:
        await pairs.up()
        await group_known(pairs)
        await pairs.send("a", 40)
        for offset in range(1, 1_200):  # more than two data versions
            await commit(pairs, 0, offset % 20)
        await commit(pairs, 0, 5)
        await asyncio.sleep(4)  # until the slaves have copied that
        pairs.kill("a", 0)
        await pairs.acting("a")
        await commit(pairs, 1, 17)
        await commit(pairs, 1, 3, queue_id=1)
        began = time.monotonic()
        await pairs.restart("a", 0)
        listening_s = time.monotonic() - began
        await until(lambda: registered(pairs), "the master is registered:\n" + pairs.log("a", 0)[-2000:])
        # Whatever it answers, it answers with what the slave had.
        assert await committed(pairs, 0) == 17 and await committed(pairs, 0, 1) == 3
        await pairs.whole("a")
        whole_s = time.monotonic() - began
        await pairs.acting("a", ends=True)
        print(f"the master listens after {listening_s:.2f} s, the set is whole after {whole_s:.2f} s")
        assert whole_s - listening_s < WHOLE_S
        await pairs.send("a", 1)
        for broker_id in (1, 2):
            await until(lambda i=broker_id: _is(pairs, i, 17), f"slave {broker_id} has the offsets")  # type: ignore[misc]
        assert "taken back from slave 1 at" in pairs.log("a", 0)
    finally:
        await pairs.close()
    assert "Traceback" not in pairs.logs()


async def _is(pairs: Pairs, broker_id: int, offset: int) -> bool:
    return await committed(pairs, broker_id) == offset


async def test_a_replication_address_of_another_network_does_not_matter(tmp_path: Path) -> None:
    """RocketMQ's master looks for links from the host where the slave is registered, and waits for ever."""
    pairs = Pairs(
        tmp_path,
        {"brokerIP1": "127.0.0.3", "brokerIP2": "127.0.0.2", "bindAddress": "0.0.0.0"},
        sets="a",
        slaves=1,
    )
    try:
        await pairs.up()
        await pairs.send("a", 10)
        pairs.kill("a", 0)
        await pairs.acting("a")
        await pairs.restart("a", 0)
        await until(lambda: registered(pairs), "the master is registered:\n" + pairs.log("a", 0)[-2000:])
        await pairs.whole("a")
        await pairs.send("a", 1)
    finally:
        await pairs.close()


async def test_a_master_that_lost_its_log_stays_away_and_says_so_once(tmp_path: Path) -> None:
    pairs = Pairs(tmp_path, sets="a", slaves=1)
    try:
        await pairs.up()
        await pairs.send("a", 20)
        await pairs.whole("a")
        pairs.kill("a", 0)
        await pairs.acting("a")
        shutil.rmtree(tmp_path / "store-a0")
        await pairs.restart("a", 0)

        async def says() -> bool:
            return "not registered and serves nobody" in pairs.log("a", 0)

        await until(says, "the master says what is missing:\n" + pairs.log("a", 0)[-2000:])
        await asyncio.sleep(6)
        assert not await registered(pairs) and pairs.acts("a")
    finally:
        await pairs.close()
    lines = [line for line in pairs.log("a", 0).splitlines() if "serves nobody" in line]
    assert len(lines) == 1 and "slave 1 at" in lines[0] and "does not replicate from" in lines[0]
    assert any("the master lost what" in line or "shorter" in line for line in pairs.logs().splitlines())


async def test_a_slave_registers_when_it_follows_its_master(tmp_path: Path) -> None:
    pairs = Pairs(tmp_path, sets="a", slaves=1)
    try:
        await pairs.up()
        await pairs.send("a", 20)
        pairs.kill("a", 1)
        await until(lambda: _not(registered(pairs, 1)), "the slave is gone")
        await pairs.send("a", 20)
        await pairs.restart("a", 1)
        await until(lambda: registered(pairs, 1), "the slave is registered")
        text = pairs.log("a", 1)
        ready, begin = text.rindex("ready to serve after"), text.rindex("not registered yet")
        assert begin < ready
        assert re.search(r"replicating as slave of 127\.0\.0\.1:\d+", text[begin:ready])
    finally:
        await pairs.close()


async def _not(condition: object) -> bool:
    return not await condition  # type: ignore[misc]


async def test_without_name_servers_that_answer_a_master_waits_and_says_so(tmp_path: Path) -> None:
    pairs = Pairs(tmp_path, sets="a", slaves=1)
    try:
        await pairs.up()
        await pairs.send("a", 5)
        pairs.kill("a", 0)
        await pairs.acting("a")
        await asyncio.to_thread(pairs.namesrv.kill)
        await pairs.restart("a", 0)

        async def says() -> bool:
            return "no name server of" in pairs.log("a", 0)

        await until(says, "the master says that no name server answers")
        await asyncio.to_thread(pairs.namesrv.start)
        await until(lambda: _known(pairs), "the master is registered:\n" + pairs.log("a", 0)[-2000:])
        await pairs.whole("a")
    finally:
        await pairs.close()


async def _known(pairs: Pairs) -> bool:
    try:
        return await registered(pairs)
    except NetError:
        return False


async def test_a_second_master_of_the_same_set_serves_nobody(tmp_path: Path) -> None:
    pairs = Pairs(tmp_path, sets="a", slaves=1)
    try:
        await pairs.up()
        second = pairs.brokers["a", 1]
        await asyncio.to_thread(second.stop)
        second.settings = {**second.settings, "brokerId": 0, "brokerRole": "SYNC_MASTER"}
        await asyncio.to_thread(second.start)

        async def says() -> bool:
            return "another broker a with brokerId=0 is registered at" in pairs.log("a", 1)

        await until(says, "the second master says who is there")
        assert (await pairs.members("a"))[0] == pairs.address("a", 0)
    finally:
        await pairs.close()


async def test_hostile_announcements_change_nothing(tmp_path: Path) -> None:
    pairs = Pairs(tmp_path, sets="a", slaves=1)
    try:
        await pairs.up()
        for address in ("127.0.0.1:9", "no address", "x" * 5_000, ""):
            header = ExchangeHAInfo(master_ha_address=address, master_address="127.0.0.1:9")
            for broker_id in (0, 1):
                try:
                    await pairs.client.call(pairs.address("a", broker_id), header)
                except MQError as error:
                    assert error.code == ResponseCode.INVALID_PARAMETER
        await pairs.send("a", 4)
        await pairs.whole("a")
    finally:
        await pairs.close()
    assert "Traceback" not in pairs.logs()
