"""Requests with one wrong field: every declared request, each of its fields with every hostile value, the
others as a client fills them. Each gets an answer, no handler fails, no other client waits for long.
"""

from __future__ import annotations

import asyncio
import json
import time
import typing
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress

import pytest
from tests.integration.group import Group

from batonmq.net import NetError, RemotingClient
from batonmq.protocol import headers
from batonmq.protocol.codes import MessageSysFlag, RequestCode, ResponseCode
from batonmq.protocol.frame import Command
from batonmq.protocol.headers.broker.topics import CreateTopic
from batonmq.protocol.registry import REQUESTS, Header

headers.load_all()

REMOTING = ("namesrv", "controller", "broker")
TOPIC, CONSUMERS, BROKER = "Fuzz", "FuzzGroup", "fuzz-broker"

NUMBERS = ("-1", "0", "1", "32", "2147483647", "-2147483648", "9223372036854775807", "-9223372036854775808")
NO_NUMBERS = ("2147483648", "9223372036854775808", "", "1e3", "٣", "true")
WORDS = (
    *(
        "",
        " ",
        ".",
        "..",
        "../../evil",
        "x" * 300,
        "\0",
        "é",
        "x\ny",
        "a@b",
        "%RETRY%",
        "%DLQ%x",
        "%RETRY%x%y",
    ),
    *(
        "TBW102",
        "SCHEDULE_TOPIC_XXXX",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "{}",
        "[1]",
        "1;2;x",
        "+a=b,-c",
        "a=b\nc=d",
    ),
    *("127.0.0.1:1", "[::1]:1", "host:99999999999", "7F00000100002A9F0000000000000000"),
)

TEXTS = {
    **dict.fromkeys(("topic", "originTopic", "b"), TOPIC),
    **dict.fromkeys(("consumerGroup", "group", "groupName", "srcGroup", "compareGroup"), CONSUMERS),
    **dict.fromkeys(("producerGroup", "a", "destGroup"), "FuzzProducers"),
    **dict.fromkeys(("brokerName", "n"), BROKER),
    **dict.fromkeys(("clusterName", "cluster", "brokerClusterName"), "FuzzCluster"),
    **dict.fromkeys(
        ("brokerAddr", "brokerAddress", "haServerAddr", "masterAddress", "masterHaAddress"), "127.0.0.1:1"
    ),
    **dict.fromkeys(("clientID", "clientId"), "fuzz@1"),
    **dict.fromkeys(("defaultTopic", "c"), "TBW102"),
    **dict.fromkeys(("msgId", "offsetMsgId", "originMsgId"), "7F00000100002A9F0000000000000000"),
    "topicFilterType": "SINGLE_TAG",
    "subscription": "*",
    "namespace": "Fuzz",
    "topicList": TOPIC,
}
KINDS = {"commitOrRollback": str(int(MessageSysFlag.TRANSACTION_COMMIT))}
"""Usual numbers that are not 0."""
NOT_ASKED = {
    RequestCode.UPDATE_BROKER_CONFIG,  # nothing in its header; its bodies are in test_bad_bodies
}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    with Group.running(tmp_path_factory.mktemp("group")) as made:
        yield made


@pytest.fixture
async def group(running: Group) -> AsyncIterator[Group]:
    await running.send(3)
    yield running
    await running.check()


def plausible(field: str, kind: object) -> str:
    kinds = {kind, *typing.get_args(kind)}
    if bool in kinds:
        return "false"
    return KINDS.get(field, "0") if int in kinds else TEXTS.get(field, "x")


def is_answered(code: int, fields: dict[str, str]) -> bool:
    """RocketMQ does not answer a producer that does not know yet how its transaction ends, nor do we."""
    return code != RequestCode.END_TRANSACTION or fields["commitOrRollback"] == KINDS["commitOrRollback"]


def variants(header: type[Header]) -> Iterator[tuple[str, dict[str, str]]]:
    """What is wrong, and the fields."""
    hints = typing.get_type_hints(header)
    fields = dict(zip(header.__struct_encode_fields__, header.__struct_fields__, strict=True))
    usual = {wire: plausible(wire, hints[name]) for wire, name in fields.items()}
    yield "nothing", usual
    for wire, name in fields.items():
        kinds = {hints[name], *typing.get_args(hints[name])}
        hostile = (*NUMBERS, *NO_NUMBERS) if int in kinds else ("yes", "", "1") if bool in kinds else WORDS
        for value in hostile:
            yield f"{wire}={value!r}", {**usual, wire: value}


class Watch:
    """Asks a port for something harmless all the time; how long an answer took at most."""

    def __init__(self, address: str, code: int) -> None:
        self._address, self._code = address, code
        self.longest_s = 0.0
        self._task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        client = RemotingClient()
        try:
            while True:
                began = time.monotonic()
                await client.invoke(self._address, Command(self._code), timeout_ms=20_000)
                self.longest_s = max(self.longest_s, time.monotonic() - began)
                await asyncio.sleep(0.005)
        finally:
            await client.close()

    async def stop(self) -> None:
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task


HARMLESS = {
    "namesrv": RequestCode.GET_NAMESRV_CONFIG,
    "controller": RequestCode.CONTROLLER_GET_METADATA_INFO,
    "broker": RequestCode.GET_BROKER_RUNTIME_INFO,
}
AT_A_TIME = 50


@pytest.mark.parametrize("port", REMOTING)
async def test_one_wrong_field_in_any_request(group: Group, port: str) -> None:
    address = group.addresses[port]
    watch, client = Watch(address, HARMLESS[port]), RemotingClient()
    slow: list[str] = []

    async def ask(code: int, what: str, ext: dict[str, str], body: bytes) -> None:
        began = time.monotonic()
        try:
            answer = await client.invoke(address, Command(code, ext, body), timeout_ms=20_000)
        except NetError as error:
            raise AssertionError(f"{REQUESTS[code].__name__} with {what}: {error}") from error
        if time.monotonic() - began > 10:
            slow.append(f"{REQUESTS[code].__name__} with {what}")
        assert answer.code != ResponseCode.SYSTEM_ERROR or answer.remark, (code, what)

    try:
        for code, header in sorted(REQUESTS.items()):
            if code in NOT_ASKED:
                continue
            if port == "broker":
                await make_topic(client, address)
            body = BODIES.get(code, b"")
            cases = [case for case in variants(header) if is_answered(code, case[1])]
            for start in range(0, len(cases), AT_A_TIME):
                await asyncio.gather(*(ask(code, *case, body) for case in cases[start : start + AT_A_TIME]))
    finally:
        await client.close()
        await watch.stop()
    assert not slow
    assert watch.longest_s < 3, "another client waited for long"


async def make_topic(client: RemotingClient, address: str) -> None:
    """The topic and the group of the usual fields; some requests delete them."""
    await client.call(
        address,
        CreateTopic(
            topic=TOPIC,
            default_topic="TBW102",
            read_queue_nums=4,
            write_queue_nums=4,
            perm=6,
            topic_filter_type="SINGLE_TAG",
            topic_sys_flag=0,
            order=False,
        ),
    )
    await client.invoke(
        address,
        Command(
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
            {},
            json.dumps({"groupName": CONSUMERS}).encode(),
        ),
    )


BODIES = {
    RequestCode.SEND_MESSAGE: b"x",
    RequestCode.SEND_MESSAGE_V2: b"x",
    RequestCode.HEART_BEAT: b'{"clientID":"fuzz@1"}',
}
