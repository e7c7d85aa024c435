"""Request and reply through a broker, over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.broker.rig import Rig, configs

from batonmq.broker.messages import replies
from batonmq.broker.messages.part import MessagesPart
from batonmq.broker.service import BrokerService
from batonmq.net import Dispatcher, RemotingClient, Reply, Request, Response
from batonmq.protocol.bodies.clients import HeartbeatData, ProducerData
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker.clients import Heartbeat, UnregisterClient
from batonmq.protocol.headers.broker.send import SendMessageResponse, SendReplyMessage, SendReplyMessageV2
from batonmq.protocol.headers.client import ReplyMessage
from batonmq.protocol.json import encode
from batonmq.protocol.message.properties import decode_properties
from batonmq.protocol.message.record import MessageExt

TOPIC = "DefaultCluster_REPLY_TOPIC"
FIELDS: dict[str, Any] = {
    "producer_group": "p",
    "topic": TOPIC,
    "default_topic": "TBW102",
    "default_topic_queue_nums": 4,
    "queue_id": 0,
    "sys_flag": 0,
    "born_timestamp": 1_700_000_000_000,
    "flag": 3,
}


class Requester:
    """A client that awaits replies. `result`: code of its answers; None: it does not answer."""

    def __init__(self, rig: Rig, client_id: str) -> None:
        self.received: list[tuple[ReplyMessage, bytes]] = []
        self.result: int | None = 0
        dispatcher = Dispatcher()
        dispatcher.on(ReplyMessage, self._reply)
        self.client = RemotingClient(dispatcher=dispatcher)
        self._address = f"127.0.0.1:{rig.broker.port}"
        self._client_id = client_id

    def _reply(self, request: Request, header: ReplyMessage) -> Reply | None:
        self.received.append((header, bytes(request.command.body)))
        return None if self.result is None else Reply(code=self.result)

    async def heartbeat(self) -> None:
        data = HeartbeatData(self._client_id, producer_data_set=[ProducerData("requests")])
        await self.client.call(self._address, Heartbeat(), encode(data))

    async def leave(self) -> None:
        header = UnregisterClient(client_id=self._client_id, producer_group="requests")
        await self.client.call(self._address, header)


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    service = BrokerService(*configs(tmp_path / "store"))
    await service.start()
    rig = Rig(service, RemotingClient())
    yield rig
    await rig.client.close()
    await service.stop()


@pytest.fixture
async def requester(rig: Rig) -> AsyncIterator[Requester]:
    requester = Requester(rig, "c@1")
    await requester.heartbeat()
    yield requester
    await requester.client.close()


def properties(client: str = "c@1", correlation: str = "k") -> str:
    return f"CORRELATION_ID\x01{correlation}\x02REPLY_TO_CLIENT\x01{client}\x02MSG_TYPE\x01reply\x02"


async def reply(
    rig: Rig, body: bytes = b"answer", header: type = SendReplyMessageV2, **fields: Any
) -> Response:
    return await rig.call(header(**{**FIELDS, "properties": properties(), **fields}), body)


async def stored(rig: Rig) -> list[MessageExt]:
    if not rig.broker.broker.store.queue_bounds(TOPIC, 0).max_offset:
        return []
    return await rig.messages(topic=TOPIC)


@pytest.mark.parametrize("header", [SendReplyMessage, SendReplyMessageV2])
async def test_a_reply_reaches_the_requester_and_the_reply_topic(
    rig: Rig, requester: Requester, header: type
) -> None:
    answer = await reply(rig, header=header)
    ((pushed, body),) = requester.received
    (message,) = await stored(rig)
    assert body == message.body == b"answer"
    assert (pushed.topic, pushed.flag, pushed.born_timestamp) == (TOPIC, 3, 1_700_000_000_000)
    assert pushed.store_host == rig.broker.broker.address and pushed.born_host.startswith("127.0.0.1:")
    received = decode_properties(pushed.properties or "")
    assert (received["CORRELATION_ID"], received["REPLY_TO_CLIENT"]) == ("k", "c@1")
    assert int(received["PUSH_REPLY_TIME"]) == pushed.store_timestamp
    assert "PUSH_REPLY_TIME" not in message.properties
    assert answer.header == SendMessageResponse(message.offset_message_id, 0, 0)


async def test_an_empty_reply_reaches_the_requester_and_is_not_stored(rig: Rig, requester: Requester) -> None:
    # RocketMQ's Go client 2.1.2 sends no others. RocketMQ 5.5 fails on them (NullPointerException).
    assert (await reply(rig, b"")).header == SendMessageResponse("0", 0, 0)
    ((_, body),) = requester.received
    assert body == b"" and not await stored(rig)


async def test_replies_are_not_stored_if_the_configuration_says_so(tmp_path: Path) -> None:
    service = BrokerService(*configs(tmp_path / "store", store_reply_message_enable=False))
    await service.start()
    rig = Rig(service, RemotingClient())
    requester = Requester(rig, "c@1")
    await requester.heartbeat()
    assert (await reply(rig, queue_id=-1)).header == SendMessageResponse("0", 0, 0)
    assert len(requester.received) == 1 and not await stored(rig)
    for fields in ({"queue_id": 7}, {"topic": "bad topic"}, {"topic": "SCHEDULE_TOPIC_XXXX"}):
        with pytest.raises(MQError):
            await reply(rig, **fields)
    assert len(requester.received) == 1
    await requester.client.close()
    await rig.client.close()
    await service.stop()


async def refused(rig: Rig, **fields: Any) -> str:
    with pytest.raises(MQError) as error:
        await reply(rig, **fields)
    assert error.value.code == ResponseCode.SYSTEM_ERROR
    assert error.value.ext == {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
    return error.value.remark


async def test_a_reply_that_cannot_be_delivered_is_an_error_and_stored_nevertheless(
    rig: Rig, requester: Requester
) -> None:
    unknown = await refused(rig, properties=properties("other"))
    assert unknown == "push reply message fail, channel of <other> not found."
    assert await refused(rig, properties="K\x01v\x02") == "reply message properties[REPLY_TO_CLIENT] is null"
    requester.result = int(ResponseCode.SYSTEM_ERROR)
    assert await refused(rig) == "push reply message to c@1fail."
    await requester.leave()
    assert "not found" in await refused(rig)
    await requester.heartbeat()
    await requester.client.close()
    await asyncio.sleep(0.05)
    assert "not found" in await refused(rig)
    assert len(await stored(rig)) == 5


async def test_a_silent_requester_delays_its_own_replies_only(
    rig: Rig, requester: Requester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replies, "PUSH_TIMEOUT_MS", 1_500)  # on a busy machine 300 are too few
    other = Requester(rig, "c@2")
    await other.heartbeat()
    requester.result = None
    slow = asyncio.ensure_future(refused(rig))
    await asyncio.sleep(0.05)
    part = rig.broker.part(MessagesPart)
    assert part.unanswered == 1
    await reply(rig, properties=properties("c@2"))
    assert len(other.received) == 1 and not slow.done()
    assert await slow == "push reply message to c@1fail."
    assert part.unanswered == 0
    await other.client.close()


async def test_the_number_of_replies_under_way_is_bounded(tmp_path: Path) -> None:
    service = BrokerService(*configs(tmp_path / "store", reply_thread_pool_queue_capacity=2))
    await service.start()
    rig = Rig(service, RemotingClient())
    requester = Requester(rig, "c@1")
    requester.result = None
    await requester.heartbeat()
    waiting = [asyncio.ensure_future(reply(rig)) for _ in range(2)]
    await asyncio.sleep(0.1)
    with pytest.raises(MQError) as busy:
        await reply(rig)
    assert busy.value.code == ResponseCode.SYSTEM_BUSY
    for task in waiting:
        task.cancel()
    await requester.client.close()
    await rig.client.close()
    await service.stop()


@pytest.mark.parametrize(
    "fields",
    [
        {"topic": "no such/topic"},
        {"queue_id": 99},
        {"properties": properties("x" * 33_000)},
        {"properties": "\x01\x02\x01"},
        {"properties": properties("c@1", "y" * 32_700)},
    ],
)
async def test_hostile_replies_get_one_error_and_reach_nobody(
    rig: Rig, requester: Requester, fields: dict[str, Any]
) -> None:
    with pytest.raises(MQError):
        await reply(rig, **fields)
    assert not requester.received
    await reply(rig)


async def test_the_requesters_latest_connection_gets_the_reply(rig: Rig, requester: Requester) -> None:
    again = Requester(rig, "c@1")
    await again.heartbeat()
    await requester.client.close()
    await asyncio.sleep(0.05)
    await reply(rig)
    assert len(again.received) == 1
    await again.client.close()
