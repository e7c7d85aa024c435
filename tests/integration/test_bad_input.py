"""What unknown and broken clients send to the ports of real programs: each gets RocketMQ's code, or is
disconnected; other clients are served, and acknowledged messages stay. Every test ends with a check of all.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import struct
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from tests.integration.group import TOPIC, Group, exchange

from batonmq.net import RemotingClient
from batonmq.protocol import headers
from batonmq.protocol.codes import FLAG_RESPONSE, MessageSysFlag, RequestCode, ResponseCode
from batonmq.protocol.frame import Command, encode
from batonmq.protocol.ha_frames import Ack, SlaveHandshake
from batonmq.protocol.headers.broker.send import SendMessageV2
from batonmq.protocol.headers.controller import GetMetadata
from batonmq.protocol.names import is_system_topic
from batonmq.protocol.registry import REQUESTS
from batonmq.raft import messages as raft

headers.load_all()

REMOTING = ("namesrv", "controller", "broker")
MIB = 1 << 20


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    with Group.running(tmp_path_factory.mktemp("group")) as made:
        yield made


@pytest.fixture
async def group(running: Group) -> AsyncIterator[Group]:
    await running.send(3)
    yield running
    await running.check()


@pytest.fixture
async def client() -> AsyncIterator[RemotingClient]:
    made = RemotingClient()
    yield made
    await made.close()


# -- bytes that are not a frame


def frame(header: bytes, body: bytes = b"", *, kind: int = 0, length: int | None = None) -> bytes:
    whole = 4 + len(header) + len(body) if length is None else length
    return struct.pack(">II", whole & 0xFFFF_FFFF, kind << 24 | len(header)) + header + body


GOOD = encode(Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": TOPIC}, opaque=5))
NOT_FRAMES = {
    "zero length": bytes(8),
    "negative length": frame(b"{}", length=-1),
    "one byte over 16 MiB": frame(b"{}", length=16 * MIB - 3),
    "largest length there is": frame(b"{}", length=2**31 - 1),
    "header longer than the frame": struct.pack(">II", 10, 4000) + bytes(10),
    "unknown serialisation": frame(b"{}", kind=9),
    "broken JSON": frame(b'{"code":105,'),
    "JSON without a code": frame(b'{"opaque":1}'),
    "JSON of the wrong shape": frame(b"[1,2,3]"),
    "short binary header": frame(b"\0\1", kind=1),
    "random bytes": bytes((i * 167 + 13) % 256 for i in range(1000)),
    "HTTP": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "TLS hello": bytes.fromhex("16030100c8010000c40303") + bytes(190),
    "good, then bad": GOOD + bytes(8),
}


@pytest.mark.parametrize("port", REMOTING)
async def test_bytes_that_are_no_frame_cost_the_sender_its_connection(group: Group, port: str) -> None:
    for name, data in NOT_FRAMES.items():
        answer = await exchange(group.addresses[port], data)
        # Only the frame that was good may have been answered.
        assert answer == b"" or (name == "good, then bad" and answer[8:9] == b"{"), (name, answer[:100])


@pytest.mark.parametrize("port", REMOTING)
async def test_a_frame_that_is_cut_off_is_forgotten(group: Group, port: str) -> None:
    for cut in (1, 7, 8, len(GOOD) - 1):
        assert await exchange(group.addresses[port], GOOD[:cut], then_close=True) == b""


@pytest.mark.parametrize("port", [*REMOTING, "ha"])
async def test_a_tls_client_on_a_plain_port_is_turned_away(group: Group, port: str) -> None:
    address = group.ha_address if port == "ha" else group.addresses[port]
    host, _, number = address.rpartition(":")
    context = ssl.create_default_context()
    with pytest.raises((ssl.SSLError, ConnectionError)):
        async with asyncio.timeout(5):
            await asyncio.open_connection(host, int(number), ssl=context)


HANDSHAKE = SlaveHandshake(77).encode()
NOT_HA = {
    "random bytes": bytes((i * 167 + 13) % 256 for i in range(1000)),
    "HTTP": b"GET / HTTP/1.1\r\n\r\n",
    "a remoting frame": GOOD,
    "unknown state": struct.pack(">iq", 9, 0),
    "negative state": struct.pack(">iq", -1, 0),
    "ack before the handshake": Ack(0).encode(),
    "negative ack": HANDSHAKE + struct.pack(">iq", 2, -5),
    "ack of more than there is": HANDSHAKE + Ack(1 << 40).encode(),
    "largest ack there is": HANDSHAKE + Ack(2**63 - 1).encode(),
    "ack of what was never sent": HANDSHAKE + Ack(0).encode() + Ack(1 << 40).encode(),
    "handshake of another replica in between": HANDSHAKE + SlaveHandshake(78).encode(),
}


async def test_the_replication_port_drops_what_is_not_a_slave(group: Group) -> None:
    for name, data in NOT_HA.items():
        answer = await exchange(group.ha_address, data)
        assert len(answer) < 2 * MIB, name  # the handshake's answer, at most the log from the start
    for cut in (1, 4, len(HANDSHAKE) - 1):
        assert await exchange(group.ha_address, HANDSHAKE[:cut], then_close=True) == b""


# -- frames that are not a request


@pytest.mark.parametrize("port", REMOTING)
async def test_an_unknown_code_is_said_to_be_unknown(group: Group, client: RemotingClient, port: str) -> None:
    for code in (0, 31_999, 2**31 - 1, -1):
        answer = await client.invoke(group.addresses[port], Command(code), timeout_ms=3000)
        assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        assert answer.remark == f" request type {code} not supported"


async def test_an_answer_to_no_question_is_ignored(group: Group, client: RemotingClient) -> None:
    stray = encode(Command(0, flag=FLAG_RESPONSE, opaque=4711))
    for address in group.addresses.values():
        host, _, number = address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(number))
        writer.write(stray * 100 + GOOD)
        async with asyncio.timeout(5):
            length = int.from_bytes(await reader.readexactly(4), "big")
            assert b'"opaque":5' in await reader.readexactly(length)
        writer.close()
        await writer.wait_closed()


MISSING = {
    "namesrv": (RequestCode.GET_ROUTEINFO_BY_TOPIC, {}, "the custom field <topic> is null"),
    "controller": (RequestCode.CONTROLLER_GET_REPLICA_INFO, {}, "the custom field <brokerName> is null"),
    "broker": (RequestCode.GET_MAX_OFFSET, {"topic": TOPIC}, "the custom field <queueId> is null"),
}
WRONG = {
    "namesrv": (RequestCode.QUERY_DATA_VERSION, {"brokerId": "one"}, "brokerId"),
    "controller": (RequestCode.CONTROLLER_ELECT_MASTER, {"brokerName": "b", "brokerId": "x"}, "brokerId"),
    "broker": (RequestCode.GET_MAX_OFFSET, {"topic": TOPIC, "queueId": "1e99"}, "queueId"),
}


@pytest.mark.parametrize("port", REMOTING)
@pytest.mark.parametrize("table", [MISSING, WRONG], ids=["missing", "wrong"])
@pytest.mark.parametrize("binary", [False, True], ids=["json", "binary"])
async def test_a_header_field_that_is_missing_or_wrong_is_named(
    group: Group, client: RemotingClient, port: str, table: dict[str, Any], binary: bool
) -> None:
    code, ext, remark = table[port]
    if code == RequestCode.QUERY_DATA_VERSION:
        ext = {"brokerName": "b", "brokerAddr": "x:1", "clusterName": "c", **ext}
    answer = await client.invoke(
        group.addresses[port], Command(code, dict(ext), binary=binary), timeout_ms=3000
    )
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert remark in (answer.remark or "")


HOSTILE = ("", "\0", "-1", "9" * 30, "..", "a/../../b", "é" * 300, "{}", "true")


@pytest.mark.parametrize("port", REMOTING)
async def test_no_request_of_the_protocol_makes_a_handler_fail(
    group: Group, client: RemotingClient, port: str
) -> None:
    """Every declared request with nothing, with nonsense in each of its fields, and with a nonsense body:
    an answer each time, and never a traceback in a log (`Group.check`)."""
    assert len(REQUESTS) > 80
    address = group.addresses[port]
    for code, header in sorted(REQUESTS.items()):
        for text in (None, *HOSTILE):
            ext = {} if text is None else dict.fromkeys(header.__struct_encode_fields__, text)
            if code == RequestCode.END_TRANSACTION and ext:
                # Neither commit nor rollback: no answer, as with RocketMQ.
                ext["commitOrRollback"] = str(MessageSysFlag.TRANSACTION_COMMIT)
            for body in (b"", b"\xff\x00garbage{", b'{"a":', b"[1]", b"null"):
                answer = await client.invoke(address, Command(code, ext, body), timeout_ms=8000)
                assert answer.code != ResponseCode.SYSTEM_ERROR or answer.remark, (code, ext)


async def test_raft_messages_of_unknown_peers_change_nothing(group: Group, client: RemotingClient) -> None:
    controller = group.addresses["controller"]
    for ext in (
        {"group": "others", "sender": "n0"},
        {"group": "controllers", "sender": "n0"},
        {"group": "controllers", "sender": "n9"},
    ):
        for body in (b"", b"\0", bytes(range(256)), b"\xff" * 10_000):
            command = Command(RequestCode.RAFT_MESSAGE, dict(ext), body)
            answer = await client.invoke(controller, command, timeout_ms=3000)
            refused = ext["group"] == "others"
            assert answer.code == (ResponseCode.SYSTEM_ERROR if refused else ResponseCode.SUCCESS)
    before = (await client.call(controller, GetMetadata())).header
    forged: list[raft.Message] = [
        raft.RequestVote(2**64 - 1, 0, 0, True),
        raft.RequestVote(2**60, 0, 0, True),
        raft.RequestVote(1000, 0, 0, True),
        raft.VoteReply(2**64 - 1, False),
        raft.VoteReply(1000, False),
        raft.AppendReply(1000, 10**9),
    ]
    for message in forged:
        body = raft.encode(raft.Envelope("controllers", "n9", "n0", [message]))
        await client.invoke(
            controller,
            Command(RequestCode.RAFT_MESSAGE, {"group": "controllers", "sender": "n9"}, body),
            timeout_ms=3000,
        )
    assert (await client.call(controller, GetMetadata())).header == before, "the same one leads"


# -- sends that must be refused


def v2(topic: str = TOPIC, queue: int = 0, **fields: Any) -> SendMessageV2:
    values: dict[str, Any] = {
        "producer_group": "p",
        "topic": topic,
        "default_topic": "TBW102",
        "default_topic_queue_nums": 4,
        "queue_id": queue,
        "sys_flag": 0,
        "born_timestamp": 1_700_000_000_000,
        "flag": 0,
    }
    return SendMessageV2(**{**values, **fields})


ILLEGAL = ResponseCode.MESSAGE_ILLEGAL
INVALID = ResponseCode.INVALID_PARAMETER
FORBIDDEN = ResponseCode.NO_PERMISSION
UNKNOWN = ResponseCode.TOPIC_NOT_EXIST
REFUSED: dict[str, tuple[dict[str, Any], bytes, int, str]] = {
    "illegal character": ({"topic": "a topic"}, b"x", INVALID, "illegal characters"),
    "path in the topic": ({"topic": "../../etc"}, b"x", INVALID, "illegal characters"),
    "empty topic": ({"topic": ""}, b"x", INVALID, "blank"),
    "topic of 128": ({"topic": "t" * 128}, b"x", INVALID, "longer than topic max length: 127"),
    "retry topic of 256": ({"topic": "%RETRY%" + "t" * 249}, b"x", INVALID, "max length: 255"),
    "system topic": ({"topic": "SCHEDULE_TOPIC_XXXX"}, b"x", ResponseCode.NO_PERMISSION, "is forbidden"),
    "half topic": ({"topic": "RMQ_SYS_TRANS_HALF_TOPIC"}, b"x", ResponseCode.NO_PERMISSION, "is forbidden"),
    "unknown template": (
        {"topic": "New", "default_topic": "none"},
        b"x",
        ResponseCode.TOPIC_NOT_EXIST,
        "apply",
    ),
    "queue beyond the topic's": ({"queue": 4}, b"x", INVALID, "request queueId[4] is illegal"),
    "largest queue there is": ({"queue": 2**31 - 1}, b"x", INVALID, "is illegal"),
    "body of 4 MiB and a byte": ({}, bytes(4 * MIB + 1), ILLEGAL, "msg body length limit 4194304B"),
    "no body": ({}, b"", ILLEGAL, "the message is illegal"),
    "properties of 32 KiB": ({"properties": "K\1" + "v" * 32_767 + "\2"}, b"x", ILLEGAL, "limit 32KB"),
    "properties of 1 MiB": ({"properties": "K\1" + "v" * MIB + "\2"}, b"x", ILLEGAL, "limit 32KB"),
    "a batch that is none": ({"batch": True}, b"garbage", ILLEGAL, "message is illegal"),
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("binary", [False, True], ids=["json", "binary"])
async def test_a_send_is_refused_with_rocketmqs_code(
    group: Group, client: RemotingClient, case: str, binary: bool
) -> None:
    fields, body, code, remark = REFUSED[case]
    command = Command(RequestCode.SEND_MESSAGE_V2, v2(**fields).to_ext(), body, binary=binary)
    answer = await client.invoke(group.addresses["broker"], command, timeout_ms=5000)
    assert (answer.code, remark in (answer.remark or "")) == (code, True), answer.remark
    answer = await client.invoke(
        group.addresses["broker"], Command(RequestCode.GET_ALL_TOPIC_CONFIG), timeout_ms=3000
    )
    topics = set(json.loads(bytes(answer.body))["topicConfigTable"])
    topic = fields.get("topic", TOPIC)
    assert TOPIC in topics and (topic == TOPIC or is_system_topic(topic) or topic not in topics)


async def test_a_topic_that_is_created_needs_a_name_that_may_be(group: Group, client: RemotingClient) -> None:
    for name in ("", "a b", "t" * 128, "a/b"):
        ext = {
            "topic": name,
            "defaultTopic": "TBW102",
            "readQueueNums": "4",
            "writeQueueNums": "4",
            "perm": "6",
            "topicFilterType": "SINGLE_TAG",
        }
        command = Command(RequestCode.UPDATE_AND_CREATE_TOPIC, ext)
        answer = await client.invoke(group.addresses["broker"], command, timeout_ms=3000)
        assert answer.code in (INVALID, ResponseCode.SYSTEM_ERROR) and answer.remark, name
