"""Static topics on three broker sets with a name server: logical queues that move, and nothing of them lost.

RIP-21; the stories are those of RocketMQ's `StaticTopicIT`, and what it leaves out.
"""

from __future__ import annotations

import asyncio
import dataclasses
import re
import time
from pathlib import Path
from typing import Any

import pytest
from tests.integration.broker.rig import ALL, v2
from tests.integration.static_cluster import BLOCK, cluster

from batonmq.broker.context import Broker
from batonmq.broker.escape.addresses import route_of
from batonmq.broker.service import BrokerService
from batonmq.broker.statictopic import other_brokers
from batonmq.broker.statictopic.expiry import ExpiredParts
from batonmq.broker.statictopic.other_brokers import OtherBrokers
from batonmq.protocol.bodies.groups import SubscriptionGroupConfig
from batonmq.protocol.bodies.routes import TopicRouteData
from batonmq.protocol.bodies.static_topics import LogicQueueMappingItem
from batonmq.protocol.codes import MessageSysFlag, PullSysFlag, ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker.pull import (
    GetEarliestMsgStoretime,
    GetMaxOffset,
    PullMessageResponse,
    QueryConsumerOffset,
    SearchOffset,
)
from batonmq.protocol.headers.broker.send import ConsumerSendMsgBack, EndTransaction, SendMessageResponse
from batonmq.protocol.headers.broker.topics import CreateStaticTopic, CreateTopic, DeleteTopic
from batonmq.protocol.message.ids import decode_message_id


async def test_a_logical_queue_that_moves_keeps_all_messages_in_order(tmp_path: Path) -> None:
    async with cluster(tmp_path) as each:
        await each.create("a")
        assert await each.send(b"0", b"1") == [0, 1]
        for number, name in enumerate(("b", "c", "a"), 1):
            await each.remap(name)
            assert await each.send(b"%d" % number) == [number * BLOCK]
        assert await each.read_all() == [
            (0, b"0"),
            (1, b"1"),
            (BLOCK, b"1"),
            (2 * BLOCK, b"2"),
            (3 * BLOCK, b"3"),
        ]
        assert await each.bounds() == (0, 3 * BLOCK + 1)


async def test_the_position_of_a_group_is_found_on_the_broker_that_has_it(tmp_path: Path) -> None:
    async with cluster(tmp_path) as each:
        await each.create("a")
        await each.send(b"0", b"1")
        await each.pull(0)  # makes the group known
        await each.commit(2)
        for name in ("b", "c", "a"):
            await each.remap(name)
            await each.send(name.encode())
            assert await each.committed() == 2
        assert [body for _, body in await each.read_all(2)] == [b"b", b"c", b"a"]


async def test_a_broker_that_no_longer_leads_refuses_with_the_code_that_makes_clients_ask_again(
    tmp_path: Path,
) -> None:
    async with cluster(tmp_path) as each:
        await each.create("a")
        await each.remap("b")
        for request in (
            each.send(b"x", at="a"),
            each.pull(0, at="a"),
            each.call("a", GetMaxOffset("T", 0)),
            each.call("a", QueryConsumerOffset(consumer_group="g", topic="T", queue_id=0)),
            each.send(b"x", queue=7),
        ):
            with pytest.raises(MQError) as refused:
                await request
            assert refused.value.code == ResponseCode.NOT_LEADER_FOR_QUEUE


async def test_messages_of_a_remapping_under_way_are_readable_when_it_is_finished(tmp_path: Path) -> None:
    async with cluster(tmp_path) as each:
        await each.create("a")
        await each.send(b"old")
        await each.remap("b", decide=False)
        assert await each.send(b"new") == [-1]
        assert await each.read_all() == [(0, b"old")]
        assert await each.bounds() == (0, 1)
        await each.decide(BLOCK)
        assert await each.read_all() == [(0, b"old"), (BLOCK, b"new")]


async def test_a_group_can_be_reset_to_an_older_part(tmp_path: Path) -> None:
    async with cluster(tmp_path) as each:
        await each.create("a")
        await each.send(b"0", b"1")
        for name in ("b", "c"):
            await each.remap(name)
            await each.send(name.encode())
        await each.pull(0)
        for broker in each.brokers.values():
            broker.broker.tables.subscriptions.get_or_create("g")
        for offset in (2 * BLOCK + 1, BLOCK, 1, 2 * BLOCK):
            await each.commit(offset)
            assert await each.committed() == offset


async def test_a_commit_in_an_older_part_is_stored_while_a_later_part_is_away(tmp_path: Path) -> None:
    async with cluster(tmp_path) as each:
        await each.create("a")
        await each.send(b"0", b"1")
        for name in ("b", "c"):
            await each.remap(name)
        await each.pull(0)
        for broker in each.brokers.values():
            broker.broker.tables.subscriptions.get_or_create("g")
        await each.brokers["b"].stop()
        with pytest.raises(MQError, match="b has this part of the queue"):
            await each.commit(1)
        await each.start_broker("b")
        async with asyncio.timeout(5):
            while True:
                try:
                    assert await each.committed() == 1
                    break
                except AssertionError:  # c asks for the new address of b half a second later
                    await asyncio.sleep(0.05)
        # A group that never was in the last part leaves nothing there.
        assert not each.brokers["c"].broker.tables.offsets.of("g", "T")


async def test_a_pull_commits_in_the_part_that_it_reads(tmp_path: Path) -> None:
    async with cluster(tmp_path) as each:
        await each.create("a")
        await each.send(b"0")
        await each.remap("b")
        await each.send(b"1", b"2")
        commits = ALL | PullSysFlag.COMMIT_OFFSET
        await each.pull(BLOCK + 1, sys_flag=commits, commit_offset=BLOCK + 1)
        assert await each.committed() == BLOCK + 1
        await each.pull(BLOCK + 1, sys_flag=commits, commit_offset=0)  # left to the next regular commit
        assert await each.committed() == BLOCK + 1


async def test_times_are_found_in_the_part_that_has_them(tmp_path: Path) -> None:
    async with cluster(tmp_path) as each:
        await each.create("a")
        await each.send(b"0")
        await asyncio.sleep(0.02)
        await each.remap("b")
        await asyncio.sleep(0.02)
        await each.send(b"1")
        times = [record.store_timestamp for offset in (0, BLOCK) for record in await each.records(offset)]

        async def found(time_ms: int) -> int:
            answer = await each.call("b", SearchOffset("T", 0, time_ms))
            offset: int = answer.header.offset  # type: ignore[union-attr]
            return offset

        assert [await found(0), await found(times[0]), await found(times[0] + 1)] == [0, 0, BLOCK]
        assert await found(times[1]) == BLOCK
        assert await found(times[1] + 1_000) >= BLOCK + 1
        earliest = await each.call("b", GetEarliestMsgStoretime("T", 0))
        assert earliest.header.timestamp == times[0]  # type: ignore[union-attr]


async def test_the_last_message_of_a_time_or_before_is_found_in_the_part_that_has_it(tmp_path: Path) -> None:
    async with cluster(tmp_path) as each:
        await each.create("a")
        await each.send(b"0", b"1")
        for name in "bca":
            await asyncio.sleep(0.02)
            await each.remap(name)
            if name != "c":  # its part stays empty
                await each.send(b"2", b"3", at=name)
        places = [0, 1, BLOCK, BLOCK + 1, 3 * BLOCK, 3 * BLOCK + 1]
        times = [(await each.records(place))[0].store_timestamp for place in places]

        async def found(time_ms: int) -> int:
            answer = await each.call("a", SearchOffset("T", 0, time_ms, "UPPER"))
            offset: int = answer.header.offset  # type: ignore[union-attr]
            return offset

        for time_ms in (*times, times[1] + 1, times[3] + 1, times[5] + 1_000):
            last = max(at for at, stored in zip(places, times, strict=True) if stored <= time_ms)
            assert await found(time_ms) == last
        assert await found(0) == 0  # as in an ordinary queue


async def test_the_first_message_is_found_behind_parts_without_messages(tmp_path: Path) -> None:
    async with cluster(tmp_path) as each:
        await each.create("a")
        for name in "bc":
            await each.remap(name)
        earliest = await each.call("c", GetEarliestMsgStoretime("T", 0))
        assert earliest.header.timestamp == -1  # type: ignore[union-attr]
        await each.send(b"0")
        (record,) = await each.records(2 * BLOCK)
        earliest = await each.call("c", GetEarliestMsgStoretime("T", 0))
        assert earliest.header.timestamp == record.store_timestamp  # type: ignore[union-attr]


async def test_a_delayed_message_of_before_the_move_comes_to_the_new_leader(tmp_path: Path) -> None:
    async with cluster(tmp_path) as each:
        await each.create("a")
        await each.call("a", v2("T", properties="DELAY\x011\x02"), b"late")
        await each.remap("b")
        await each.send(b"early")
        async with asyncio.timeout(10):
            while len(found := await each.read_all()) < 2:
                await asyncio.sleep(0.05)
        assert found == [(BLOCK, b"early"), (BLOCK + 1, b"late")]


async def test_a_half_message_of_before_the_move_is_committed_at_the_new_leader(tmp_path: Path) -> None:
    async with cluster(tmp_path) as each:
        await each.create("a")
        half = await each.call(
            "a",
            v2("T", properties="TRAN_MSG\x01true\x02PGROUP\x01p\x02UNIQ_KEY\x01k\x02", sys_flag=4),
            b"half",
        )
        assert isinstance(half.header, SendMessageResponse)
        await each.remap("b")
        end = EndTransaction(
            producer_group="p",
            tran_state_table_offset=half.header.queue_offset,
            commit_log_offset=decode_message_id(half.header.msg_id)[2],
            commit_or_rollback=MessageSysFlag.TRANSACTION_COMMIT,
            msg_id="k",
        )
        await each.call("a", end)
        async with asyncio.timeout(5):
            while not (found := await each.read_all()):
                await asyncio.sleep(0.02)
        assert found == [(BLOCK, b"half")]


async def test_a_late_message_waits_until_the_new_leader_is_back(tmp_path: Path) -> None:
    async with cluster(tmp_path) as each:
        await each.create("a")
        await each.call("a", v2("T", properties="DELAY\x011\x02"), b"late")
        await each.remap("b")
        await each.brokers["b"].stop()
        await asyncio.sleep(2.5)
        await each.start_broker("b")
        async with asyncio.timeout(20):
            while not (found := await each.read_all(BLOCK)):
                await asyncio.sleep(0.05)
        assert found == [(BLOCK, b"late")]


async def test_a_message_of_another_brokers_log_is_not_taken_for_one_of_this_log(tmp_path: Path) -> None:
    async with cluster(tmp_path) as each:
        await each.create("a")
        await each.call("a", v2("T", properties="UNIQ_KEY\x01one\x02"), b"x")
        await each.remap("b")
        await each.call("b", v2("T", properties="UNIQ_KEY\x01two\x02"), b"y")
        (old,), (new,) = await each.records(0), await each.records(BLOCK)
        assert old.physical_offset == new.physical_offset  # in two logs

        async def send_back(unique_key: str) -> None:
            header = ConsumerSendMsgBack(
                offset=0, group="g", delay_level=0, origin_msg_id=unique_key, origin_topic="T"
            )
            await each.call("b", header)

        with pytest.raises(MQError, match="another message is there"):
            await send_back("one")
        await send_back("two")


async def test_an_expired_part_is_forgotten_and_the_groups_keep_their_positions(tmp_path: Path) -> None:
    async with cluster(tmp_path) as each:
        await each.create("a")
        await each.pull(0)
        await each.commit(0)  # "g" is at the end of a part without messages
        await each.remap("b")
        await each.remap("c")
        for broker in each.brokers.values():
            for group in ("g", "ahead"):
                broker.broker.tables.subscriptions.get_or_create(group)
        await each.send(b"1")
        await each.commit(0, "ahead")
        await each.commit(2 * BLOCK + 1, "ahead")
        assert await each.committed() == 0
        broker = each.brokers["c"].broker
        expired = ExpiredParts(broker, OtherBrokers(broker))
        await expired.forget()
        assert (await each.committed(), await each.committed("ahead")) == (BLOCK, 2 * BLOCK + 1)
        assert [part.bname for part in broker.tables.mappings.table["T"].hosted_queues[0]] == ["b", "c"]
        await expired.forget()
        await expired.forget()  # the last part stays
        assert [part.bname for part in broker.tables.mappings.table["T"].hosted_queues[0]] == ["c"]
        assert await each.committed() == 2 * BLOCK
        await each.brokers["a"].stop()
        assert await each.bounds() == (2 * BLOCK, 2 * BLOCK + 1)
        assert await each.read_all() == [(2 * BLOCK, b"1")]
        await each.start_broker("a")


async def test_a_part_with_messages_is_not_forgotten(tmp_path: Path) -> None:
    async with cluster(tmp_path) as each:
        await each.create("a")
        await each.send(b"0")
        await each.remap("b")
        broker = each.brokers["b"].broker
        await ExpiredParts(broker, OtherBrokers(broker)).forget()
        assert await each.read_all() == [(0, b"0")]


async def test_a_part_that_has_just_ended_is_not_forgotten(tmp_path: Path) -> None:
    """It seems to be empty while a new master has not made its messages visible."""
    async with cluster(tmp_path) as each:
        await each.create("a")
        each.epoch = time.time_ns() // 1_000_000
        await each.remap("b")
        broker = each.brokers["b"].broker
        await ExpiredParts(broker, OtherBrokers(broker)).forget()
        assert len(broker.tables.mappings.table["T"].hosted_queues[0]) == 2


async def test_a_slave_without_messages_of_a_part_does_not_make_it_expired(tmp_path: Path) -> None:
    async with cluster(tmp_path) as each:
        await each.create("a")
        await each.remap("b")
        be_slave(each.brokers["a"])
        await each.call("a", CreateTopic("other", "TBW102", 1, 1, 6, "SINGLE_TAG"))  # registers the new id
        async with asyncio.timeout(5):
            while {1} not in [{*group.broker_addrs} for group in (await each.route()).broker_datas]:
                await asyncio.sleep(0.02)
        broker = each.brokers["b"].broker
        await ExpiredParts(broker, OtherBrokers(broker)).forget()
        assert len(broker.tables.mappings.table["T"].hosted_queues[0]) == 2


async def test_a_part_on_a_broker_that_is_away_is_an_error_and_the_others_are_readable(
    tmp_path: Path,
) -> None:
    async with cluster(tmp_path) as each:
        await each.create("a")
        await each.send(b"0")
        await each.remap("b")
        await each.send(b"1")
        await each.brokers["a"].stop()
        with pytest.raises(MQError, match="a has this part of the queue") as refused:
            await each.pull(0)
        assert refused.value.code == ResponseCode.SYSTEM_ERROR
        assert await each.read_all(BLOCK) == [(BLOCK, b"1")]
        await each.start_broker("a")
        async with asyncio.timeout(5):
            while "a" not in {broker.broker_name for broker in (await each.route()).broker_datas}:
                await asyncio.sleep(0.02)
        await asyncio.sleep(other_brokers.DOUBTED_MS / 1000)
        assert await each.read_all() == [(0, b"0"), (BLOCK, b"1")]


async def test_a_restart_keeps_the_mapping(tmp_path: Path) -> None:
    async with cluster(tmp_path) as each:
        await each.create("a")
        await each.send(b"0")
        await each.remap("b")
        for name in ("a", "b"):
            await each.brokers[name].stop()
            await each.start_broker(name)
        assert await each.send(b"1") == [BLOCK]
        assert await each.read_all() == [(0, b"0"), (BLOCK, b"1")]


async def test_a_held_pull_of_a_logical_queue_is_answered_by_the_next_message(tmp_path: Path) -> None:
    async with cluster(tmp_path) as each:
        await each.create("a")
        await each.remap("b")
        pull = asyncio.create_task(
            each.pull(BLOCK, sys_flag=ALL | PullSysFlag.SUSPEND, suspend_timeout_millis=10_000)
        )
        await asyncio.sleep(0.1)
        assert not pull.done()
        await each.send(b"1")
        answer = await pull
        assert isinstance(answer.header, PullMessageResponse)
        assert (answer.code, answer.header.next_begin_offset) == (ResponseCode.SUCCESS, BLOCK + 1)


async def test_a_pull_that_is_held_where_the_queue_was_is_answered_when_it_moves(tmp_path: Path) -> None:
    async with cluster(tmp_path) as each:
        await each.create("a")
        holds = {"sys_flag": ALL | PullSysFlag.SUSPEND, "suspend_timeout_millis": 30_000}
        pull = asyncio.create_task(each.pull(0, **holds))
        await asyncio.sleep(0.1)
        assert not pull.done()
        await each.remap("b")
        async with asyncio.timeout(5):
            assert (await pull).code == ResponseCode.PULL_NOT_FOUND


async def test_a_consumer_does_not_ask_incessantly_while_a_remapping_is_not_finished(tmp_path: Path) -> None:
    """The tool may have died: then this state lasts."""
    async with cluster(tmp_path) as brokers:
        await brokers.create("a")
        await brokers.send(b"0")
        await brokers.remap("b", decide=False)
        began = asyncio.get_running_loop().time()
        for _ in range(3):
            answer = await brokers.pull(1, sys_flag=ALL | PullSysFlag.SUSPEND, suspend_timeout_millis=15_000)
            assert answer.code == ResponseCode.PULL_NOT_FOUND
        assert asyncio.get_running_loop().time() - began > 0.5


def be_slave(broker: BrokerService) -> None:
    settings = broker.broker.settings
    settings.broker = dataclasses.replace(settings.broker, slave_read_enable=True)
    broker.broker.role.set_slave(broker_id=1, epoch=0, master_address="10.0.0.9:1", master_ha_address=None)


@pytest.mark.parametrize("leader", ["b", "a"])
async def test_the_end_of_a_slaves_log_is_not_the_end_of_a_part(tmp_path: Path, leader: str) -> None:
    """Broker a is a slave, or acts as master, when the first part is read. Its log may lack messages."""
    async with cluster(tmp_path) as brokers:
        await brokers.create("a")
        await brokers.send(b"0")
        await brokers.remap("b")
        if leader == "a":
            await brokers.remap("a")
        be_slave(brokers.brokers["a"])
        for asked in (1, 3):
            header = (answer := await brokers.pull(asked, at=leader)).header
            assert isinstance(header, PullMessageResponse)
            assert (answer.code, header.next_begin_offset) == (ResponseCode.PULL_NOT_FOUND, asked)
        assert [record.body for record in await brokers.records(0)] == [b"0"]


@pytest.mark.parametrize("away", [False, True])
async def test_many_requests_about_a_part_elsewhere_ask_for_one_route(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, away: bool
) -> None:
    """A route of thousands of queues takes long to read."""
    asked: list[str] = []

    async def counted(broker: Broker, topic: str) -> TopicRouteData:
        asked.append(topic)
        return await route_of(broker, topic)

    monkeypatch.setattr(other_brokers, "route_of", counted)
    async with cluster(tmp_path) as brokers:
        await brokers.create("a")
        await brokers.send(b"0")
        await brokers.remap("b")
        if away:
            await brokers.brokers["a"].stop()
        for _ in range(2):
            answers = await asyncio.gather(*(brokers.pull(0) for _ in range(50)), return_exceptions=True)
            assert all(isinstance(each, MQError) for each in answers) is away
        assert len(asked) <= 2
        if away:
            await brokers.start_broker("a")
            await asyncio.sleep(other_brokers.DOUBTED_MS / 1000 + 0.1)
            assert [record.body for record in await brokers.records(0)] == [b"0"]


async def test_the_replica_to_read_from_is_one_of_the_leaders_broker_set(tmp_path: Path) -> None:
    async with cluster(tmp_path) as brokers:
        await brokers.create("a")
        await brokers.send(b"0")
        await brokers.remap("b")
        other = brokers.brokers["a"].broker
        other.settings.broker = dataclasses.replace(other.settings.broker, slave_read_enable=True)
        other.tables.subscriptions.update(SubscriptionGroupConfig("g", broker_id=7))
        header = (await brokers.pull(0)).header
        assert isinstance(header, PullMessageResponse) and header.suggest_which_broker_id == 0


async def test_a_slave_refuses_a_mapping_and_names_the_master(tmp_path: Path) -> None:
    """The master would go on with the mapping before; the slave copies that."""
    async with cluster(tmp_path) as brokers:
        await brokers.create("a")
        be_slave(brokers.brokers["a"])
        with pytest.raises(MQError, match=r"not the master of a; the master is 10\.0\.0\.9:1"):
            await brokers.remap("a")
        assert (await brokers.config("a")).mapping_detail.epoch == 1  # type: ignore[union-attr]


async def test_a_deleted_static_topic_may_come_back_as_a_plain_one(tmp_path: Path) -> None:
    async with cluster(tmp_path) as each:
        await each.create("a")
        assert (await each.config("a")).mapping_detail is not None
        await each.call("a", DeleteTopic(topic="T"))
        await each.call("a", v2("T", 3), b"plain")
        assert (await each.config("a")).mapping_detail is None
        async with asyncio.timeout(5):
            while (await each.route()).topic_queue_mapping_by_broker:
                await asyncio.sleep(0.02)


def part(**fields: Any) -> dict[int, list[LogicQueueMappingItem]]:
    return {0: [LogicQueueMappingItem(**{"gen": 0, "queue_id": 0, "bname": "a", **fields})]}


@pytest.mark.parametrize(
    ("changes", "remark"),
    [
        ({"bname": "b"}, "the mapping is of topic T and broker b, not of T and a"),
        ({"topic": "U"}, "the mapping is of topic U and broker a"),
        ({"epoch": 0}, "Can't accept data with small epoch 0 < 1"),
        ({"scope": "other"}, "unmatched scope"),
        ({"hosted_queues": {}}, "equal epoch with null data"),
        ({"hosted_queues": {0: []}}, "null or empty"),
        ({"hosted_queues": part(gen=1, bname="b")}, "leader is different"),
        ({"epoch": 2, "total_queues": 1 << 30}, "cannot have 1073741824 logical queues, at most 16384"),
        ({"epoch": 2, "total_queues": -1}, "cannot have -1 logical queues"),
        ({"epoch": 2, "hosted_queues": {1: part()[0]}}, "has logical queue 1, but the topic has only 1"),
        ({"epoch": 2, "hosted_queues": {-1: part()[0]}}, "has logical queue -1"),
        ({"epoch": 2, "hosted_queues": part(start_offset=5)}, "Part 0 is at"),
        ({"epoch": 2, "hosted_queues": part(logic_offset=5)}, "Part 0 begins at 5, and began at 0"),
        ({"epoch": 2, "hosted_queues": part(gen=-1)}, "should not be negative"),
        ({"epoch": 2, "hosted_queues": part(queue_id=4)}, "the topic has only 1 here"),
    ],
)
async def test_a_mapping_that_cannot_follow_is_refused_and_changes_nothing(
    tmp_path: Path, changes: dict[str, Any], remark: str
) -> None:
    async with cluster(tmp_path) as each:
        await each.create("a")
        before = await each.config("a")
        with pytest.raises(MQError, match=re.escape(remark)) as refused:
            await each.create_static("a", **changes)
        assert refused.value.code == ResponseCode.SYSTEM_ERROR
        assert await each.config("a") == before
        assert await each.send(b"x") == [0]


async def test_a_static_topic_keeps_the_queues_that_it_consists_of(tmp_path: Path) -> None:
    async with cluster(tmp_path) as each:
        await each.create("a")
        await each.remap("b")
        await each.remap("a")  # with a second physical queue
        for read, write in ((1, 2), (2, 1), (0, 0)):
            with pytest.raises(MQError, match="logical queues use 2 queues here") as refused:
                await each.call("a", CreateTopic("T", "TBW102", read, write, 6, "SINGLE_TAG"))
            assert refused.value.code == ResponseCode.INVALID_PARAMETER
        await each.call("a", CreateTopic("T", "TBW102", 2, 2, 4, "SINGLE_TAG"))  # read only, for a while
        assert (await each.config("a")).perm == 4


async def test_a_forced_mapping_replaces_the_one_before(tmp_path: Path) -> None:
    async with cluster(tmp_path) as each:
        await each.create("a")
        await each.create_static("a", force=True, epoch=0, hosted_queues=part(logic_offset=100))
        assert await each.send(b"x") == [100]


async def test_bytes_that_are_no_mapping_are_refused(tmp_path: Path) -> None:
    async with cluster(tmp_path) as each:
        header = CreateStaticTopic("T", "TBW102", 1, 1, 6, "SINGLE_TAG")
        long = b'{"topic":"T","bname":"a","epoch":%d}' % (1 << 63)  # Java could not read it, nor the route
        for body in (b"", b"{", b"[1]", b'{"hostedQueues":{"0":[{"gen":1e40}]}}', long):
            with pytest.raises(MQError) as refused:
                await each.call("a", header, body)
            assert refused.value.code == ResponseCode.SYSTEM_ERROR
        with pytest.raises(MQError):
            await each.config("a")
