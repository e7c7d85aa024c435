"""Messages of an acting master on their way to other masters."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from tests.unit.broker.conftest import Served
from tests.unit.broker.fakes import make_broker

from batonmq.broker.config import BrokerConfig
from batonmq.broker.context import Broker
from batonmq.broker.escape import bridge as bridge_module
from batonmq.broker.escape.bridge import EscapeBridge
from batonmq.broker.escape.reads import RemoteReader
from batonmq.broker.messages.appender import PutStatus
from batonmq.net.connection import Response
from batonmq.net.errors import CallTimeout, ConnectFailed
from batonmq.protocol.bodies.routes import BrokerData, QueueData, TopicRouteData
from batonmq.protocol.bodies.topics import TopicConfig
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError, TopicNotExistError
from batonmq.protocol.headers.broker.send import SendMessageResponse, SendMessageV2
from batonmq.protocol.headers.namesrv import GetRouteInfo
from batonmq.protocol.json import encode
from batonmq.protocol.message.properties import encode_properties
from batonmq.protocol.message.record import StoredMessage
from batonmq.protocol.names import SCHEDULE_TOPIC
from batonmq.store.results import PutResult

STORED = SendMessageResponse(msg_id="m", queue_id=0, queue_offset=0)


def message(topic: str = "T", **properties: str) -> StoredMessage:
    return StoredMessage(topic=topic, queue_id=1, body=b"x", properties=encode_properties(properties))


@dataclass
class FakeNet:
    """Stands for `RemotingClient`: a name server, and brokers that answer as the test says."""

    routes: dict[str, TopicRouteData]
    outcomes: dict[str, list[Any]] = field(default_factory=dict)
    """Address -> what its brokers answer; the last one again and again. Without: they store."""
    sent: list[tuple[str, SendMessageV2, bytes]] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    async def call(self, address: str, header: Any, body: bytes = b"", **options: Any) -> Response:
        await asyncio.sleep(0)
        if isinstance(header, GetRouteInfo):
            self.asked.append(header.topic)
            if header.topic not in self.routes:
                raise TopicNotExistError(ResponseCode.TOPIC_NOT_EXIST, "no route")
            return Response(None, encode(self.routes[header.topic]), 0, None)
        self.sent.append((address, header, bytes(body)))
        outcomes = self.outcomes.get(address, [0])
        outcome = outcomes.pop(0) if len(outcomes) > 1 else outcomes[0]
        if isinstance(outcome, Exception):
            raise outcome
        assert outcome in options["accept"]
        return Response(STORED, b"", outcome, None)

    @property
    def addresses(self) -> list[str]:
        return [address for address, _, _ in self.sent]


def route(*names: str, cluster: str = "DefaultCluster") -> TopicRouteData:
    return TopicRouteData(
        [QueueData(name, 1, 1, 6) for name in names],
        [BrokerData(cluster, name, {0: f"{name}:1"}) for name in names],
    )


class Waits:
    """A waiter that remembers its outcome."""

    wait = True

    def __init__(self) -> None:
        self.outcomes: list[tuple[PutStatus, object]] = []

    def stored(self, status: PutStatus, result: object) -> None:
        self.outcomes.append((status, result))


def made(net: FakeNet, *, remote: bool = True, neighbours: tuple[Broker, ...] = ()) -> EscapeBridge:
    broker = make_broker(enable_remote_escape=remote, namesrv_addr="n:1", broker_id=1)
    broker.client = net  # type: ignore[assignment]
    broker.neighbours = lambda: neighbours
    return EscapeBridge(broker)


async def test_messages_go_round_the_other_masters():
    net = FakeNet({"T": route("a", "b", "broker-a")})
    bridge = made(net)
    assert [await bridge.put(message(KEYS=str(n))) for n in range(4)] == [PutStatus.PUT_OK] * 4
    assert sorted(net.addresses) == ["a:1", "a:1", "b:1", "b:1"]
    assert net.asked == ["T"], "the route is kept"
    assert bridge.remote == 4
    _, header, body = net.sent[0]
    assert (header.topic, header.queue_id, body) == ("T", 0, b"x")


@pytest.mark.parametrize(
    "failure",
    [ConnectFailed("a:1", "refused"), CallTimeout("a:1", "3 s"), MQError(ResponseCode.SYSTEM_BUSY, "busy")],
)
async def test_a_message_that_one_master_does_not_take_goes_to_the_next_by_a_new_route(failure):
    net = FakeNet({"T": route("a", "b")}, {"a:1": [failure]})
    bridge = made(net)
    for _ in range(6):
        assert await bridge.put(message()) is PutStatus.PUT_OK
    assert net.addresses.count("b:1") == 6
    assert net.addresses.count("a:1") == 1, "it is passed over for a while"
    assert net.asked == ["T", "T"], "the route is asked for again after the failure only"


async def test_a_master_that_moved_is_found():
    net = FakeNet({"T": route("a")}, {"a:1": [ConnectFailed("a:1", "refused")]})
    bridge = made(net)
    assert await bridge.put(message()) is PutStatus.PUT_TO_REMOTE_BROKER_FAIL
    net.routes["T"].broker_datas[0].broker_addrs[0] = "a:2"
    assert await bridge.put(message()) is PutStatus.PUT_OK
    assert net.addresses == ["a:1", "a:2"]


@pytest.mark.parametrize("topics", [{}, {"T": route("broker-a")}, {"T": route("far", cluster="other")}])
async def test_a_message_without_another_master_is_refused_and_tried_again(topics):
    net = FakeNet(topics)
    bridge = made(net)
    assert await bridge.put(message()) is PutStatus.PUT_TO_REMOTE_BROKER_FAIL
    net.routes = {"T": route("b")}
    bridge._broker.clock.advance(1_000)  # type: ignore[attr-defined]
    assert await bridge.put(message()) is PutStatus.PUT_OK
    assert (bridge.refused, bridge.remote) == (1, 1)


@pytest.mark.parametrize("code", [ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.FLUSH_SLAVE_TIMEOUT])
async def test_a_message_that_the_other_master_has_is_not_sent_again(code):
    net = FakeNet({"T": route("a", "b")}, {"a:1": [code], "b:1": [code]})
    assert await made(net).put(message()) is PutStatus.PUT_OK
    assert len(net.sent) == 1


async def test_an_answer_without_a_place_is_a_refusal():
    class Strange(FakeNet):
        async def call(self, address: str, header: Any, body: bytes = b"", **options: Any) -> Response:
            answer = await super().call(address, header, body, **options)
            return answer if isinstance(header, GetRouteInfo) else Response(None, b"", 11, None)

    assert await made(Strange({"T": route("a")})).put(message()) is PutStatus.PUT_TO_REMOTE_BROKER_FAIL


async def test_retry_topics_that_nobody_has_go_to_any_master():
    net = FakeNet({"DefaultCluster": route("a", "broker-a")})
    assert await made(net).put(message("%RETRY%g_T")) is PutStatus.PUT_OK
    _, header, _ = net.sent[0]
    assert (header.topic, header.queue_id) == ("%RETRY%g_T", 0)


async def test_a_failure_that_nobody_expects_is_answered_too(caplog: pytest.LogCaptureFixture):
    bridge, waits = made(FakeNet({"T": route("a")}, {"a:1": [RuntimeError("a bug")]})), Waits()
    bridge.take([message()], [waits])
    for _ in range(10):
        await asyncio.sleep(0)
    assert waits.outcomes == [(PutStatus.UNKNOWN_ERROR, None)]
    assert "could not leave this broker" in caplog.text


async def test_without_remote_escape_nothing_leaves_the_process():
    net, waits = FakeNet({"T": route("a")}), Waits()
    bridge = made(net, remote=False)
    bridge.take([message()], [waits])
    assert waits.outcomes == [(PutStatus.SERVICE_NOT_AVAILABLE, None)]
    assert not net.sent


async def test_waiters_are_called_once_with_the_outcome():
    net, waiters = FakeNet({"T": route("a")}), [Waits(), Waits()]
    bridge = made(net)
    bridge.take([message(), message("absent")], waiters)
    while not all(each.outcomes for each in waiters):
        await asyncio.sleep(0)
    assert waiters[0].outcomes == [(PutStatus.PUT_OK, None)]
    assert waiters[1].outcomes == [(PutStatus.PUT_TO_REMOTE_BROKER_FAIL, None)]


async def test_the_number_of_messages_on_their_way_is_bounded(monkeypatch):
    monkeypatch.setattr(bridge_module, "MOST", 2)
    net, waiters = FakeNet({"T": route("a")}), [Waits() for _ in range(3)]
    bridge = made(net)
    bridge.take([message() for _ in waiters], waiters)
    assert waiters[2].outcomes == [(PutStatus.SERVICE_NOT_AVAILABLE, None)]
    while not all(each.outcomes for each in waiters):
        await asyncio.sleep(0)
    late = Waits()
    bridge.take([message()], [late])
    while not late.outcomes:
        await asyncio.sleep(0)
    assert late.outcomes == [(PutStatus.PUT_OK, None)]


class TestNeighbours:
    async def test_a_master_in_the_process_comes_first(self, served: Served) -> None:
        net = FakeNet({"TopicJ": route("a")})
        bridge = made(net, remote=False, neighbours=(served.broker,))
        assert await bridge.put(message("TopicJ", KEYS="k")) is PutStatus.PUT_OK
        assert not net.sent
        bounds = [served.store.queue_bounds("TopicJ", queue).max_offset for queue in range(4)]
        assert sum(bounds) == 1
        assert (bridge.local, bridge.remote) == (1, 0)

    async def test_it_delays_what_is_to_be_delayed(self, served: Served) -> None:
        bridge = made(FakeNet({}), remote=False, neighbours=(served.broker,))
        waiting = message(SCHEDULE_TOPIC, DELAY="2", REAL_TOPIC="TopicJ", REAL_QID="0")
        assert await bridge.put(waiting) is PutStatus.PUT_OK
        assert served.store.queue_bounds(SCHEDULE_TOPIC, 1).max_offset == 1

    async def test_one_without_the_topic_is_passed_over(self, served: Served) -> None:
        net = FakeNet({"T": route("a")})
        bridge = made(net, neighbours=(served.broker,))
        assert await bridge.put(message("T")) is PutStatus.PUT_OK
        served.broker.tables.topics.update(TopicConfig(topic_name="T", perm=4))
        assert await bridge.put(message("T")) is PutStatus.PUT_OK
        assert net.addresses == ["a:1", "a:1"]

    async def test_a_neighbour_that_stops_before_its_replicas_have_the_message_has_not_taken_it(
        self, served: Served, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        other = served.broker

        async def late(appender: object, message: StoredMessage) -> tuple[PutStatus, PutResult]:
            return PutStatus.FLUSH_SLAVE_TIMEOUT, other.store.put([message])[0]

        monkeypatch.setattr(bridge_module, "put", late)
        monkeypatch.setattr(other.appender, "is_acked", lambda end_offset: False)
        bridge = made(FakeNet({}), remote=False, neighbours=(other,))
        putting = asyncio.ensure_future(bridge.put(message("TopicJ")))
        await asyncio.sleep(0)
        assert not putting.done()
        other.role.stopping = True
        async with asyncio.timeout(2):
            assert await putting is PutStatus.SERVICE_NOT_AVAILABLE

    async def test_a_slave_and_another_cluster_take_nothing(self, served: Served) -> None:
        served.broker.role.set_slave(broker_id=1, epoch=0, master_address=None, master_ha_address=None)
        bridge = made(FakeNet({}), remote=False, neighbours=(served.broker,))
        assert not bridge.can_write
        assert await bridge.put(message("TopicJ")) is PutStatus.SERVICE_NOT_AVAILABLE
        other = make_broker(broker_cluster_name="other")
        assert isinstance(other.settings.broker, BrokerConfig)
        assert not made(FakeNet({}), remote=False, neighbours=(other,)).can_write


async def test_a_broker_set_of_that_name_in_another_cluster_is_not_read(served: Served):
    """A container may have brokers of several clusters."""
    other, reader = served.broker, make_broker(namesrv_addr="n:1")
    other.store.put([message()])
    other.store.dispatch()
    reader.client, reader.neighbours = FakeNet({}), lambda: (other,)  # type: ignore[assignment]
    name = other.settings.broker.broker_name
    read = RemoteReader(reader).read
    found = await read(name, "T", 1, 0)
    assert found is not None and found.body == b"x"
    other.settings.broker = replace(other.settings.broker, broker_cluster_name="Other")
    with pytest.raises(TopicNotExistError):
        await read(name, "T", 1, 0)
