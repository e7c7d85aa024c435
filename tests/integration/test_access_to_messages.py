"""Requests that lead to messages of topics on which their senders have no right."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.access import NO, ROOT, Rig, Starter, starting
from tests.integration.broker.rig import v2

from batonmq.net import Dispatcher, RemotingClient, Reply, Request
from batonmq.protocol.bodies.clients import ConsumerData, HeartbeatData, ProducerData
from batonmq.protocol.bodies.transactions import TransactionEnd, TransactionEnds
from batonmq.protocol.codes import MessageSysFlag, ResponseCode
from batonmq.protocol.headers.broker import auth as wire
from batonmq.protocol.headers.broker.clients import Heartbeat
from batonmq.protocol.headers.broker.pull import PullMessage, QueryMessage, ViewMessage
from batonmq.protocol.headers.broker.send import (
    ConsumerSendMsgBack,
    EndTransaction,
    EndTransactions,
    ResumeCheckHalfMessage,
    SendReplyMessageV2,
)
from batonmq.protocol.headers.client import (
    CheckTransactionState,
    ConsumeMessageDirectly,
    GetConsumerRunningInfo,
)
from batonmq.protocol.json import encode
from batonmq.protocol.message.ids import decode_message_id
from batonmq.protocol.message.layout import BODY_POSITION_V4
from batonmq.protocol.message.properties import encode_properties
from batonmq.protocol.message.record import StoredMessage, encode_record
from batonmq.protocol.names import SCHEDULE_TOPIC, TRANS_HALF_TOPIC
from batonmq.protocol.signing import Credentials

COMMIT, ROLLBACK = int(MessageSysFlag.TRANSACTION_COMMIT), int(MessageSysFlag.TRANSACTION_ROLLBACK)
PREPARED = int(MessageSysFlag.TRANSACTION_PREPARED)


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Starter]:
    async with starting(tmp_path / "store") as starter:
        yield starter


async def users(rig: Rig) -> tuple[Credentials, Credentials]:
    """One with rights on topic Secret and group o, one with rights on topic Open and group r."""
    owner, other = await rig.user("owner"), await rig.user("other")
    await rig.allow(owner, "Topic:Secret", "Pub", "Sub", "Get")
    await rig.allow(owner, "Group:o", "Sub")
    await rig.allow(other, "Topic:Open", "Pub", "Sub", "Get")
    await rig.allow(other, "Group:r", "Sub")
    return owner, other


def with_properties(topic: str, *, sys_flag: int = 0, **properties: str) -> Any:
    return v2(topic, sys_flag=sys_flag, properties=encode_properties(properties).decode())


def half(topic: str, key: str, group: str = "p") -> Any:
    return with_properties(topic, sys_flag=PREPARED, TRAN_MSG="true", PGROUP=group, UNIQ_KEY=key)


async def sent(rig: Rig, header: Any, body: bytes, by: Credentials) -> tuple[int, int]:
    """Commit log offset and queue offset."""
    answer = (await rig.ask(header, body, by=by)).header
    return decode_message_id(answer.msg_id)[2], answer.queue_offset


def stored(rig: Rig, topic: str) -> int:
    """How many messages the topic's first queue has."""
    return rig.service.broker.store.queue_bounds(topic, 0).max_offset


async def test_an_offset_gives_no_right_on_the_message_that_is_there(start: Starter) -> None:
    rig = await start()
    owner, other = await users(rig)
    offset, _ = await sent(rig, v2("Secret"), b"s", owner)
    code, remark = await rig.refused(ViewMessage(offset=offset, topic="Open"), by=other)
    assert (code, "Topic:Secret" in remark) == (NO, True)
    assert (await rig.ask(ViewMessage(offset=offset, topic="Secret"), by=owner)).code == 0
    back = ConsumerSendMsgBack(offset=offset, group="r", delay_level=3, origin_topic="Open")
    assert "Topic:Secret" in (await rig.refused(back, by=other))[1]
    end_before = rig.service.broker.store.max_offset
    assert (await rig.ask(ConsumerSendMsgBack(offset=offset, group="o", delay_level=1), by=owner)).code == 0
    # While the message waits for its retry it is still one of its first topic.
    waiting = ViewMessage(offset=end_before)
    assert "Topic:Secret" in (await rig.refused(waiting, by=other))[1]
    assert (await rig.ask(waiting, by=owner)).code == 0
    assert (await rig.refused(ViewMessage(offset=1), by=other))[0] == ResponseCode.SYSTEM_ERROR


async def test_a_half_message_is_ended_by_those_who_may_send_it(start: Starter) -> None:
    rig = await start()
    owner, other = await users(rig)
    offset, queue_offset = await sent(rig, half("Secret", "K"), b"s", owner)
    end = EndTransaction("p", queue_offset, offset, COMMIT, "K", topic="Open")
    assert "Topic:Secret" in (await rig.refused(end, by=other))[1]
    ends = encode(TransactionEnds(ends=[TransactionEnd(queue_offset, offset, "K")]))
    assert "Topic:Secret" in (await rig.refused(EndTransactions("p", COMMIT), ends, by=other))[1]
    for topic in ("Secret", None):
        end = EndTransaction("p", queue_offset, offset, COMMIT, "K", topic=topic)
        assert (await rig.ask(end, by=owner)).code == 0
    assert (await rig.ask(EndTransactions("p", COMMIT), ends, by=owner)).code == 0
    assert stored(rig, "Secret") == 1


async def test_an_unconfirmed_half_message_is_protected_as_well(
    start: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = await start()
    owner, other = await users(rig)
    offset, queue_offset = await sent(rig, half("Secret", "K"), b"s", owner)
    monkeypatch.setattr(rig.service.broker.store, "message_at", lambda _: None)
    end = EndTransaction("p", queue_offset, offset, ROLLBACK, "K", topic="Open")
    assert "Topic:Secret" in (await rig.refused(end, by=other))[1]


@pytest.mark.parametrize("real_topic", ["Open", "%RETRY%o"])
async def test_a_record_inside_a_body_is_not_a_half_message(start: Starter, real_topic: str) -> None:
    rig = await start()
    owner, other = await users(rig)
    victim, queue_offset = await sent(rig, half("Secret", "K"), b"s", owner)
    last, _ = await sent(rig, v2("Open"), b"x", other)
    record = rig.service.broker.store.message_at(last)
    assert record is not None
    inside = last + len(record) + BODY_POSITION_V4
    place = {"REAL_TOPIC": real_topic, "REAL_QID": "0", "RETRY_TOPIC": "Open", "PGROUP": "q"}
    forged = StoredMessage(
        topic=TRANS_HALF_TOPIC, queue_id=0, body=b"f", properties=encode_properties(place), born_timestamp=1
    )
    body = encode_record(forged, queue_offset=queue_offset, physical_offset=inside, store_timestamp=1)
    await sent(rig, v2("Open"), body, other)
    for kind in (ROLLBACK, COMMIT):
        end = EndTransaction("q", queue_offset, inside, kind, "", topic="Open")
        code, remark = await rig.refused(end, by=other)
        assert (code, remark) == (ResponseCode.SYSTEM_ERROR, "Find prepared transaction message failed")
    assert (await rig.ask(EndTransaction("p", queue_offset, victim, COMMIT, "K"), by=owner)).code == 0
    assert stored(rig, "Secret") == 1


async def test_a_reply_needs_a_right_on_any_other_than_the_reply_topic(start: Starter) -> None:
    rig = await start()
    _, other = await users(rig)
    for topic in ("Secret", "Created"):
        fields = {name: getattr(v2(topic), name) for name in v2(topic).__struct_fields__}
        assert (await rig.refused(SendReplyMessageV2(**fields), b"forged", by=other))[0] == NO
        assert topic not in rig.service.broker.tables.topics


async def test_a_consumer_gets_neither_signatures_nor_messages_of_others(start: Starter) -> None:
    rig = await start()
    owner, other = await users(rig)
    answer = (await rig.ask(v2("Secret"), b"s", by=owner)).header
    received: list[dict[str, str]] = []

    def take(request: Request, header: Any) -> Reply:
        received.append(dict(request.command.ext))
        return Reply()

    dispatcher = Dispatcher()
    dispatcher.on(ConsumeMessageDirectly, take)
    dispatcher.on(GetConsumerRunningInfo, take)
    client = RemotingClient(dispatcher=dispatcher, credentials=other)
    try:
        data = HeartbeatData(client_id="root", consumer_data_set=[ConsumerData(group_name="r")])
        await client.call(rig.address, Heartbeat(), encode(data))
        direct = ConsumeMessageDirectly(consumer_group="r", client_id="root", msg_id=answer.msg_id)
        assert "Topic:Secret" in (await rig.refused(direct, by=other))[1]
        await rig.ask(GetConsumerRunningInfo(consumer_group="r", client_id="root"), by=ROOT)
        await rig.ask(direct, by=ROOT)
    finally:
        await client.close()
    assert [ext["clientId"] for ext in received] == ["root", "root"]
    assert not {"AccessKey", "Signature", "SecurityToken"} & {name for ext in received for name in ext}


async def test_a_half_message_is_checked_again_for_those_who_may_update_its_topic(start: Starter) -> None:
    rig = await start()
    owner, other = await users(rig)
    answer = (await rig.ask(half("Secret", "K"), b"s", by=owner)).header
    await rig.allow(other, "Topic:Open", "Update")
    for topic in (None, "Open"):
        resume = ResumeCheckHalfMessage(topic=topic, msg_id=answer.msg_id)
        assert "Topic:Secret" in (await rig.refused(resume, by=other))[1]
    assert (await rig.ask(ResumeCheckHalfMessage(msg_id=answer.msg_id), by=ROOT)).code == 0


@pytest.mark.parametrize("unsigned", ["", "34"])
async def test_only_those_who_may_send_a_half_message_are_asked_about_it(
    start: Starter, unsigned: str
) -> None:
    """Unless heartbeats need no signature: then their users are not known."""
    keys = {"transaction_check_interval": 300, "transaction_time_out": 100}
    rig = await start(broker=keys, authentication_whitelist=unsigned)
    owner, other = await users(rig)
    asked: dict[Credentials, list[bytes]] = {owner: [], other: []}
    clients = []
    for user, bodies in asked.items():
        dispatcher = Dispatcher()
        dispatcher.on(
            CheckTransactionState, lambda request, _, to=bodies: to.append(bytes(request.command.body))
        )
        clients.append(RemotingClient(dispatcher=dispatcher, credentials=user))
        data = HeartbeatData(client_id=user.access_key, producer_data_set=[ProducerData(group_name="p")])
        await clients[-1].call(rig.address, Heartbeat(), encode(data))
    try:
        await sent(rig, half("Secret", "K"), b"secret-body", owner)
        async with asyncio.timeout(20):
            while len(asked[owner]) < 3 or (unsigned and not asked[other]):
                await asyncio.sleep(0.05)
    finally:
        for client in clients:
            await client.close()
    assert all(b"secret-body" in body for body in asked[owner])
    assert bool(asked[other]) == bool(unsigned)


async def test_a_pattern_gives_no_right_on_topics_with_messages_of_all_topics(start: Starter) -> None:
    rig = await start()
    owner, other = await users(rig)
    await rig.allow(other, "Topic:*", "All")
    await rig.allow(other, "Topic:Secret", "All", decision="Deny")
    await sent(rig, with_properties("Secret", DELAY="3"), b"s", owner)
    for topic in (SCHEDULE_TOPIC, TRANS_HALF_TOPIC, "rmq_sys_wheel_timer", "rmq_sys_REVIVE_LOG_c"):
        pull = PullMessage.at_once("r", topic, 2, 0, 32)
        assert f"Topic:{topic}" in (await rig.refused(pull, by=other))[1]
        assert f"Topic:{topic}" in (await rig.refused(v2(topic), b"forged", by=other))[1]
    await rig.allow(other, f"Topic:{SCHEDULE_TOPIC}", "Sub")
    pull.topic = SCHEDULE_TOPIC
    assert (await rig.ask(pull, by=other)).code == 0


async def test_a_query_finds_no_message_of_another_topic(start: Starter) -> None:
    rig = await start()
    owner, _ = await users(rig)
    await sent(rig, with_properties("Secret", KEYS="order#123"), b"s", owner)
    times = {"max_num": 10, "begin_timestamp": 0, "end_timestamp": 1 << 60}
    for topic, key, code in (
        ("Secret", "order#123", 0),
        ("Secret#order", "123", ResponseCode.QUERY_NOT_FOUND),
    ):
        query = QueryMessage(topic=topic, key=key, **times)
        answer = await rig.ask(query, by=ROOT, accept=(0, ResponseCode.QUERY_NOT_FOUND))
        assert answer.code == code


async def test_only_super_users_see_the_passwords_of_super_users(start: Starter) -> None:
    rig = await start()
    watcher = await rig.user("watcher")
    await rig.allow(watcher, "Cluster:DefaultCluster", "Get")
    for header in (wire.GetUser("root"), wire.ListUsers()):
        assert b"root-secret" not in bytes((await rig.ask(header, by=watcher)).body)
        assert b"root-secret" in bytes((await rig.ask(header, by=ROOT)).body)
