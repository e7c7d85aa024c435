"""Offsets over the wire: codes and remarks as a RocketMQ 5.5 broker was recorded to answer."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest
from tests.unit.broker.conftest import START_MS, Served
from tests.unit.broker.fakes import FakeConnection, ask, become_slave, json_of
from tests.unit.broker.test_handlers_client import heartbeat

from batonmq.broker.role import RoleKind
from batonmq.broker.tables.files import TableFile
from batonmq.broker.tables.handlers import offsets as offset_handlers
from batonmq.broker.tables.offsets import OffsetTable
from batonmq.common.clock import ManualClock
from batonmq.protocol.codes import LanguageCode, ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker.admin import CloneGroupOffset, QueryCorrectionOffset, ResetOffset
from batonmq.protocol.headers.broker.clients import Heartbeat
from batonmq.protocol.headers.broker.pull import (
    GetAllConsumerOffset,
    GetEarliestMsgStoretime,
    GetMaxOffset,
    GetMinOffset,
    QueryConsumerOffset,
    SearchOffset,
    UpdateConsumerOffset,
)
from batonmq.protocol.headers.broker.replication import GetAllResetOffset
from batonmq.protocol.headers.client import ResetConsumerClientOffset
from batonmq.protocol.registry import Header


def commit(group: str = "GroupJ", topic: str = "TopicJ", queue_id: int = 0, offset: int = 1) -> Header:
    return UpdateConsumerOffset(consumer_group=group, topic=topic, queue_id=queue_id, commit_offset=offset)


def query(queue_id: int = 0, zero: bool | None = None) -> Header:
    return QueryConsumerOffset(
        consumer_group="GroupJ", topic="TopicJ", queue_id=queue_id, set_zero_if_not_found=zero
    )


async def ext_of(served: Served, header: Header) -> dict[str, str]:
    reply = await ask(served.dispatcher, header)
    assert reply.header is not None
    return reply.header.to_ext()


async def refusal(served: Served, header: Header) -> tuple[int, str]:
    with pytest.raises(MQError) as refused:
        await ask(served.dispatcher, header)
    return refused.value.code, refused.value.remark


async def test_commit_and_query(served: Served) -> None:
    served.broker.tables.subscriptions.get_or_create("GroupJ")
    await ask(served.dispatcher, commit(offset=1))
    assert await ext_of(served, query()) == {"offset": "1"}


async def test_commit_is_refused_for_unknown_groups_and_topics(served: Served) -> None:
    served.broker.tables.subscriptions.get_or_create("GroupJ")
    assert await refusal(served, commit(group="NoSuch")) == (26, "Group NoSuch not exist!")
    assert await refusal(served, commit(topic="NoTopic")) == (17, "Topic NoTopic not exist!")


async def test_an_offset_that_a_slave_hands_over_is_on_disk_before_the_answer(served: Served) -> None:
    served.broker.tables.subscriptions.get_or_create("GroupJ")
    file = served.root / "config" / "consumerOffset.json"
    offsets = served.broker.tables.offsets

    def handed_over(offset: int) -> Header:
        return UpdateConsumerOffset("GroupJ", "TopicJ", 0, offset, handed_over=True)

    def on_disk() -> object:
        return json.loads(file.read_bytes())["offsetTable"]

    await ask(served.dispatcher, commit(offset=7))
    assert not file.exists(), "ordinary commits are written at intervals"
    await ask(served.dispatcher, handed_over(9))
    assert on_disk() == {"TopicJ@GroupJ": {"0": 9}}
    offsets.commit("GroupJ", "TopicJ", 0, 12)
    await ask(served.dispatcher, handed_over(11))
    assert on_disk() == {"TopicJ@GroupJ": {"0": 12}}, "it does not go back"
    file.unlink()
    file.with_name(file.name + ".bak").unlink()
    await ask(served.dispatcher, handed_over(12))
    assert on_disk() == {"TopicJ@GroupJ": {"0": 12}}, "an earlier attempt may not have written it"


async def test_an_offset_that_is_handed_over_brings_its_group(served: Served) -> None:
    """The group was created by a heartbeat to the acting slave."""
    header = UpdateConsumerOffset("Newcomers", "TopicJ", 0, 9, handed_over=True)
    subscriptions, config = served.broker.tables.subscriptions, served.broker.settings.broker
    subscriptions.configure(replace(config, auto_create_subscription_group=False))
    assert await refusal(served, header) == (26, "Group Newcomers not exist!")
    subscriptions.configure(config)
    await ask(served.dispatcher, header)
    assert "Newcomers" in subscriptions
    assert served.broker.tables.offsets.of("Newcomers", "TopicJ") == {0: 9}


async def test_an_offset_that_cannot_be_written_is_not_taken_over(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: TableFile, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    served.broker.tables.subscriptions.get_or_create("GroupJ")
    monkeypatch.setattr(TableFile, "write", full)
    header = UpdateConsumerOffset("GroupJ", "TopicJ", 0, 9, handed_over=True)
    assert await refusal(served, header) == (1, "in force until a restart: No space left on device")
    monkeypatch.undo()
    await ask(served.dispatcher, header)


async def test_a_group_without_offset_starts_at_the_first_message_or_nowhere(served: Served) -> None:
    boot = (22, "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first")
    assert await refusal(served, query(1)) == boot, "an empty queue has no first message"
    assert await refusal(served, query(99)) == boot
    served.put(1, b"x")
    assert await ext_of(served, query(1)) == {"offset": "0"}
    assert await refusal(served, query(1, zero=False)) == (
        22,
        "Not found, do not set to zero, maybe this group boot first",
    )


async def test_bounds_and_times_of_queues(served: Served) -> None:
    served.put(0, b"1")
    served.put(0, b"2")
    queue = {"topic": "TopicJ", "queue_id": 0}
    assert await ext_of(served, GetMaxOffset(**queue)) == {"offset": "2"}
    assert await ext_of(served, GetMinOffset(**queue)) == {"offset": "0"}
    assert await ext_of(served, GetEarliestMsgStoretime(**queue)) == {"timestamp": str(START_MS + 1_000)}
    late, far = START_MS + 2_000, START_MS + 99_000
    for timestamp, boundary, offset in ((0, None, 0), (late, None, 1), (far, "lower", 2), (far, "upper", 1)):
        header = SearchOffset(**queue, timestamp=timestamp, boundary_type=boundary)
        assert await ext_of(served, header) == {"offset": str(offset)}
    empty = {"topic": "TopicJ", "queue_id": 9}
    assert await ext_of(served, GetMaxOffset(**empty)) == {"offset": "0"}
    assert await ext_of(served, GetEarliestMsgStoretime(**empty)) == {"timestamp": "-1"}


async def test_a_new_master_does_not_answer_before_it_shows_what_its_predecessor_may_have_shown(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.put(0, b"1")
    role = served.broker.role
    role.log_start = served.store.max_offset + 1
    questions: list[Header] = [GetMaxOffset("TopicJ", 0), SearchOffset("TopicJ", 0, START_MS + 99_000)]
    waiting = [asyncio.ensure_future(ask(served.dispatcher, question)) for question in questions]
    await asyncio.sleep(0.05)
    assert not any(each.done() for each in waiting)
    served.put(0, b"2")
    for each in waiting:
        reply = await each
        assert reply.header is not None
        assert reply.header.to_ext() == {"offset": "2"}
    monkeypatch.setattr(offset_handlers, "VISIBLE_TIMEOUT_MS", 0)
    role.log_start = served.store.max_offset + 1
    code, remark = await refusal(served, questions[0])
    assert code == ResponseCode.SYSTEM_BUSY
    assert remark.endswith("takes no questions about the ends of queues until its log is confirmed")
    become_slave(served.broker)
    assert await ext_of(served, questions[0]) == {"offset": "2"}, "as RocketMQ's slaves"
    role.kind = RoleKind.NONE
    assert (await refusal(served, questions[0]))[0] == ResponseCode.SYSTEM_BUSY


def reset(group: str = "GroupJ", topic: str = "TopicJ", timestamp: int = 0, **fields: object) -> Header:
    return ResetOffset(group=group, topic=topic, timestamp=timestamp, is_force=True, **fields)  # type: ignore[arg-type]


async def test_a_reset_on_the_server_takes_precedence_over_commits(served: Served) -> None:
    served.broker.tables.subscriptions.get_or_create("GroupJ")
    for _ in range(3):
        served.put(0, b"x")
    await ask(served.dispatcher, commit(offset=3))
    table = json_of(await ask(served.dispatcher, reset()))["offsetTable"]
    assert table == {f'{{"brokerName": "broker-a", "queueId": {q}, "topic": "TopicJ"}}': 0 for q in range(4)}
    late = await ask(served.dispatcher, commit(offset=3))
    assert late.remark == "Offset has been previously reset"
    assert await ext_of(served, query()) == {"offset": "0"}
    to_end = json_of(await ask(served.dispatcher, reset(timestamp=-1, queue_id=0)))["offsetTable"]
    assert list(to_end.values()) == [3]
    given = json_of(await ask(served.dispatcher, reset(queue_id=0, offset=2)))["offsetTable"]
    assert list(given.values()) == [2]


async def test_resets_outlive_a_restart_and_are_copied_by_slaves(served: Served) -> None:
    served.broker.tables.subscriptions.get_or_create("GroupJ")
    watch = served.broker.tables.watch
    changes = watch.changes
    await ask(served.dispatcher, reset())
    assert watch.changes > changes
    copied = (await ask(served.dispatcher, GetAllResetOffset())).body
    assert isinstance(copied, bytes)
    other = OffsetTable(ManualClock())
    saved: list[None] = []
    other.on_resets = lambda: saved.append(None)
    for _ in range(2):
        other.replace_resets(copied)
    assert len(saved) == 1
    assert [other.take_reset("GroupJ", "TopicJ", queue_id) for queue_id in range(5)] == [0, 0, 0, 0, None]
    other.restore_resets(copied)
    other.remove_group("GroupJ")
    assert not other.has_reset("GroupJ", "TopicJ", 0) and len(saved) == 6
    with pytest.raises(ValueError):
        other.replace_resets(b'{"resetTable":{"a@b":5}}')


async def test_cpp_clients_get_a_reset_as_a_list(served: Served) -> None:
    served.broker.settings.broker = type(served.broker.settings.broker)(
        broker_name="broker-a", use_server_side_reset_offset=False
    )
    for queue_id in range(4):
        served.broker.tables.offsets.commit("GroupJ", "TopicJ", queue_id, 1)
    connection = FakeConnection()
    await ask(served.dispatcher, Heartbeat(), heartbeat(), connection=connection)
    connection.sent.clear()
    await ask(served.dispatcher, reset(), language=int(LanguageCode.CPP))
    ((_, body),) = [sent for sent in connection.sent if isinstance(sent[0], ResetConsumerClientOffset)]
    assert json.loads(body)["offsetTable"][1] == {
        "topic": "TopicJ",
        "brokerName": "broker-a",
        "queueId": 1,
        "offset": 0,
    }


async def test_resets_are_refused(served: Served) -> None:
    served.broker.tables.subscriptions.get_or_create("GroupJ")
    assert await refusal(served, reset(topic="nope")) == (17, "Topic nope does not exist")
    assert await refusal(served, reset(group="Gnope")) == (26, "Group Gnope does not exist")
    assert await refusal(served, reset(queue_id=0, offset=7)) == (
        1,
        "Target offset 7 not in consume queue range [0-0]",
    )


async def test_resets_reach_connected_clients_if_not_kept_on_the_server(served: Served) -> None:
    served.broker.settings.broker = type(served.broker.settings.broker)(
        broker_name="broker-a", use_server_side_reset_offset=False
    )
    served.put(0, b"x")
    assert (await refusal(served, reset()))[1] == "THe consumer group <GroupJ> not exist"
    for queue_id in range(4):
        served.broker.tables.offsets.commit("GroupJ", "TopicJ", queue_id, 1)
    assert (await refusal(served, reset()))[0] == ResponseCode.CONSUMER_NOT_ONLINE
    connection = FakeConnection()
    await ask(served.dispatcher, Heartbeat(), heartbeat(), connection=connection)
    connection.sent.clear()
    reply = await ask(served.dispatcher, reset())
    ((header, body),) = [sent for sent in connection.sent if isinstance(sent[0], ResetConsumerClientOffset)]
    assert header.to_ext()["group"] == "GroupJ" and body == reply.body


async def test_clone_and_all_offsets(served: Served) -> None:
    offsets = served.broker.tables.offsets
    offsets.commit("GroupJ", "TopicJ", 0, 5)
    await ask(served.dispatcher, CloneGroupOffset(src_group="GroupJ", dest_group="GroupK"))
    everything = json_of(await ask(served.dispatcher, GetAllConsumerOffset()))
    assert everything["offsetTable"] == {"TopicJ@GroupJ": {"0": 5}, "TopicJ@GroupK": {"0": 5}}


async def test_correction_offsets(served: Served) -> None:
    offsets = served.broker.tables.offsets
    for group, offset in (("a", 5), ("b", 3), ("filtered", 0), ("compare", 4)):
        offsets.commit(group, "TopicJ", 0, offset)
    header = QueryCorrectionOffset(compare_group="compare", topic="TopicJ", filter_groups="filtered,compare")
    assert json_of(await ask(served.dispatcher, header)) == {"correctionOffsets": {"0": 3}}
    offsets.commit("compare", "TopicJ", 0, 2)
    assert json_of(await ask(served.dispatcher, header)) == {"correctionOffsets": {"0": 2**63 - 1}}
