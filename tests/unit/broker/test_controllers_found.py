"""How a broker finds controllers that joined after it was configured."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from batonmq.broker.config import BrokerConfig
from batonmq.broker.replica import controllers as controllers_module
from batonmq.broker.replica import replicas_manager
from batonmq.broker.replica.controllers import Controllers, members_of
from batonmq.broker.replica.core import ReplicasCore
from batonmq.broker.replica.registration import ReplicaRegistration
from batonmq.broker.replica.replicas_manager import ReplicasManager
from batonmq.net.connection import Response
from batonmq.net.errors import ConnectFailed, ConnectionLost
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import NotLeaderError
from batonmq.protocol.headers.controller import GetMetadata, GetMetadataReply, GetReplicaInfo
from batonmq.protocol.registry import Header


@pytest.mark.parametrize(
    ("peers", "expected"),
    [
        ("n0:h0:9877;n3:h3:9877;", ["h0:9877", "h3:9877"]),
        ("h0:9877;h3:9877;", ["h0:9877", "h3:9877"]),
        ("h0:9880;h3:9880;", []),  # Raft ports, as RocketMQ's jRaft controllers report them: not for brokers
        ("", []),
        ("nonsense", []),
    ],
)
def test_members_of_a_group_of_controllers(peers: str, expected: list[str]) -> None:
    metadata = GetMetadataReply(
        group="g", controller_leader_id="x", controller_leader_address="h0:9877", is_leader=True, peers=peers
    )
    assert members_of(metadata) == expected


class Network:
    """Controllers `a` and `b` are leaders of separate groups; `a` answers only while `let` is set."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Header]] = []
        self.let = asyncio.Event()
        self.let.set()

    async def call(self, address: str, header: Header, *_: object, **__: object) -> Any:
        self.asked.append((address, header))
        if isinstance(header, GetMetadata):
            if address == "a:1":
                await self.let.wait()
            header = GetMetadataReply(
                group="g",
                controller_leader_id="x",
                controller_leader_address=address,
                is_leader=True,
                peers=f"x:{address}",
            )
        return SimpleNamespace(header=header, body=b"")


@pytest.mark.parametrize("text", ["a:1;b:1", "a:1,b:1", " a:1 ; b:1 ;a:1; "])
def test_controller_addr_is_a_list_at_semicolons_and_commas(text: str) -> None:
    broker = SimpleNamespace(
        settings=SimpleNamespace(broker=BrokerConfig(controller_addr=text)), client=Network()
    )
    assert Controllers(broker).addresses == ["a:1", "b:1"]  # type: ignore[arg-type]


async def test_a_changed_controller_addr_takes_effect_at_once() -> None:
    network = Network()
    broker = SimpleNamespace(
        settings=SimpleNamespace(broker=BrokerConfig(controller_addr="a:1")), client=network
    )
    controllers = Controllers(broker)  # type: ignore[arg-type]
    await controllers.call(GetMetadata())
    assert controllers.addresses == ["a:1"] and {address for address, _ in network.asked} == {"a:1"}
    network.asked.clear()
    broker.settings.broker = BrokerConfig(controller_addr="b:1")
    await controllers.call(GetMetadata())
    assert controllers.addresses == ["b:1"] and {address for address, _ in network.asked} == {"b:1"}


async def test_an_answer_of_a_former_controller_after_the_change_is_ignored() -> None:
    network = Network()
    network.let.clear()
    broker = SimpleNamespace(
        settings=SimpleNamespace(broker=BrokerConfig(controller_addr="a:1")), client=network
    )
    controllers = Controllers(broker)  # type: ignore[arg-type]
    early = asyncio.create_task(controllers.call(GetMetadata()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    broker.settings.broker = BrokerConfig(controller_addr="b:1")
    assert controllers.addresses == ["b:1"]
    network.let.set()
    with pytest.raises(NotLeaderError, match="there are other controllers now"):
        await early
    await controllers.call(GetMetadata())
    assert controllers.addresses == ["b:1"]
    assert network.asked[-1][0] == "b:1"


@pytest.mark.parametrize("turns", range(12))
async def test_an_answer_of_a_former_controller_just_before_the_change_is_ignored(turns: int) -> None:
    """For both searches of the leader: by a call, and the periodic one."""
    network = Network()
    at_once = SimpleNamespace(controller_addr="a:1", sync_controller_metadata_period=1)
    broker = SimpleNamespace(settings=SimpleNamespace(broker=at_once), client=network)
    controllers = Controllers(broker)  # type: ignore[arg-type]
    watch = asyncio.create_task(controllers.watch())
    while not network.asked:
        await asyncio.sleep(0)
    early = asyncio.create_task(controllers.call(GetMetadata()))
    for _ in range(turns):
        await asyncio.sleep(0)
    broker.settings.broker = SimpleNamespace(controller_addr="b:1", sync_controller_metadata_period=3_600_000)
    assert controllers.addresses == ["b:1"]
    await asyncio.gather(early, return_exceptions=True)
    for _ in range(turns):
        await asyncio.sleep(0)
    network.asked.clear()
    await controllers.call(GetMetadata())
    assert {address for address, _ in network.asked} == {"b:1"}
    watch.cancel()


class Dropping:
    """A client that notes which connections it closes."""

    def __init__(self) -> None:
        self.dropped: list[str] = []

    def drop(self, address: str) -> None:
        self.dropped.append(address)


@pytest.mark.parametrize(
    ("at_s", "dropped"),
    [
        ((0, 1, 2, 2.9), 0),
        ((0, 1, 2, 3), 1),
        ((0, 1, 2, 3, 4, 5, 5.9), 1),
        ((0, 2.1, 3.5, 5), 0),  # not in a row: it answered others meanwhile, or this process was stopped
        ((0, 1.5, 3, 4, 5.5, 7), 2),
    ],
)
async def test_a_connection_to_a_silent_controller_is_closed_after_its_timeout(
    at_s: tuple[float, ...], dropped: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, began = Dropping(), asyncio.get_running_loop().time()
    broker = SimpleNamespace(
        settings=SimpleNamespace(broker=BrokerConfig(controller_addr="a:1;b:1")), client=client
    )
    controllers = Controllers(broker)  # type: ignore[arg-type]
    for at in at_s:
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda at=at: began + at)
        controllers.unanswered("a:1")
    assert client.dropped == ["a:1"] * dropped


async def test_an_answer_ends_the_silence_of_a_controller(monkeypatch: pytest.MonkeyPatch) -> None:
    client, began = Dropping(), asyncio.get_running_loop().time()
    broker = SimpleNamespace(
        settings=SimpleNamespace(broker=BrokerConfig(controller_addr="a:1;b:1")), client=client
    )
    controllers = Controllers(broker)  # type: ignore[arg-type]
    for at in range(8):
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda at=at: began + at)
        controllers.unanswered("a:1")
        controllers.answered("a:1")
    assert not client.dropped


class Closing:
    """Controllers that want TLS: they close, or reset, what speaks plain text."""

    def __init__(self) -> None:
        self.asked = 0

    async def call(self, address: str, header: Header, *_: object, **__: object) -> Any:
        self.asked += 1
        raise ConnectionLost(address, f"in words of another system, {self.asked}", by_peer=True)


async def test_controllers_that_close_connections_are_one_line_with_advice(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replicas_manager, "GRACE_S", 0.0)
    monkeypatch.setattr(replicas_manager, "RETRY_S", (0.001, 0.001))
    network = Closing()
    manager: Any = object.__new__(ReplicasManager)
    manager.core = ReplicasCore("c", "s", None, -1)
    broker: Any = SimpleNamespace(
        settings=SimpleNamespace(broker=BrokerConfig(controller_addr="a:1;b:1")),
        client=network,
        address="x:1",
    )
    controllers = Controllers(broker)
    registration: Any = SimpleNamespace(_core=manager.core)
    registration.step = partial(controllers.call, GetReplicaInfo("s"))
    registration.advice = partial(ReplicaRegistration.advice, registration)
    manager._registration = registration
    with caplog.at_level(logging.WARNING):
        running = asyncio.create_task(manager._run())
        while network.asked < 20:
            await asyncio.sleep(0.001)
        running.cancel()
    said = [line for line in caplog.messages if "no controller of controllerAddr leads" in line]
    assert len(said) == 1
    assert "(a:1: connection closed; b:1: connection closed)" in said[0]
    assert said[0].endswith(
        "; if they want TLS or a certificate, set tls.enable=true and tls.client.certPath"
    )


def with_suspected_leader() -> Controllers:
    """Of the controllers a, b and c, a leads and does not answer."""
    broker: Any = SimpleNamespace(
        settings=SimpleNamespace(broker=BrokerConfig(controller_addr="a:1;b:1;c:1"))
    )
    controllers = Controllers(broker)
    controllers._leader = "a:1"
    assert controllers.suspect("a:1")
    return controllers


@pytest.mark.parametrize("refused_first", [False, True])
async def test_a_request_that_a_controller_may_have_passed_on_does_not_count_as_never_sent(
    refused_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who hands the master role back appends again at once if nobody got the request."""
    controllers = with_suspected_leader()
    failures: list[Exception] = [
        NotLeaderError(ResponseCode.CONTROLLER_NOT_LEADER, "a:1 did not answer"),
        ConnectFailed("c:1", "Connection refused"),
    ]
    if refused_first:
        failures.reverse()

    async def call_through(*_: object, **__: object) -> Any:
        raise failures.pop(0)

    monkeypatch.setattr(controllers, "call_through", call_through)
    with pytest.raises(NotLeaderError, match="did not answer"):
        await controllers.call(GetReplicaInfo("s"))
    assert not failures


class Waiting:
    """Controller a:1 is the leader and b:1 passes requests on. Each answers when its event is set."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.direct, self.passed_on = asyncio.Event(), asyncio.Event()

    async def call(self, address: str, header: Any, *_: object, **__: object) -> Any:
        self.asked.append(address)
        await (self.direct if address == "a:1" else self.passed_on).wait()
        return Response(None, address.encode(), 0, None)


def waiting_controllers(monkeypatch: pytest.MonkeyPatch, client: Waiting) -> Controllers:
    broker: Any = SimpleNamespace(
        settings=SimpleNamespace(broker=BrokerConfig(controller_addr="a:1;b:1")), client=client
    )
    found = Controllers(broker)
    found._leader = "a:1"

    async def call_through(address: str, *args: Any, **_: object) -> Any:
        return await client.call(address, *args)

    monkeypatch.setattr(found, "call_through", call_through)
    monkeypatch.setattr(controllers_module, "LATE_S", 0.02)
    return found


async def test_a_leader_that_answers_late_is_also_asked_through_another_controller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = Waiting()
    client.passed_on.set()
    answer = await waiting_controllers(monkeypatch, client).call(GetReplicaInfo("s"))
    assert (client.asked, bytes(answer.body)) == (["a:1", "b:1"], b"b:1")


async def test_the_first_answer_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Waiting()
    calling = asyncio.create_task(waiting_controllers(monkeypatch, client).call(GetReplicaInfo("s")))
    while len(client.asked) < 2:
        await asyncio.sleep(0.001)
    client.direct.set()
    assert bytes((await calling).body) == b"a:1"


async def test_a_request_that_must_not_arrive_twice_goes_one_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second copy of a hand-back might be refused because of the first one."""
    client = Waiting()
    found = waiting_controllers(monkeypatch, client)
    calling = asyncio.create_task(found.call(GetReplicaInfo("s"), once=True))
    await asyncio.sleep(0.1)
    client.direct.set()
    await calling
    assert client.asked == ["a:1"]


async def test_a_request_in_turn_goes_another_way_only_after_a_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two copies of a registration are two starts for the controllers."""
    client = Waiting()
    client.passed_on.set()
    found = waiting_controllers(monkeypatch, client)
    calling = asyncio.create_task(found.call(GetReplicaInfo("s"), in_turn=True))
    await asyncio.sleep(0.1)
    assert client.asked == ["a:1"]
    assert found.suspect("a:1")
    assert bytes((await calling).body) == b"b:1"


@pytest.mark.parametrize(
    ("failure", "asked"),
    [
        (ConnectFailed("b:1", "Connection refused"), ["b:1", "c:1"]),
        (ConnectionLost("b:1", "connection lost"), ["b:1"]),
        (NotLeaderError(ResponseCode.CONTROLLER_NOT_LEADER, "no answer"), ["b:1"]),
    ],
)
async def test_a_request_that_no_controller_got_goes_another_way(
    failure: Exception, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A controller that is down does not keep a broker from handing the role back."""
    controllers = with_suspected_leader()
    tried = []

    async def call_through(address: str, *_: object, **__: object) -> Any:
        tried.append(address)
        if address == "b:1":
            raise failure
        return Response(None, b"", 0, None)

    monkeypatch.setattr(controllers, "call_through", call_through)
    with contextlib.nullcontext() if len(asked) > 1 else pytest.raises(type(failure)):
        await controllers.call(GetReplicaInfo("s"), once=True)
    assert tried == asked


@pytest.mark.parametrize(
    "failure",
    [ConnectFailed("a:1", "Connection refused"), NotLeaderError(ResponseCode.CONTROLLER_NOT_LEADER, "not I")],
)
async def test_a_former_leader_is_forgotten_although_another_controller_passed_the_request_on(
    failure: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Waiting()
    client.passed_on.set()
    found = waiting_controllers(monkeypatch, client)

    async def call(*_: object, **__: object) -> Any:
        raise failure

    monkeypatch.setattr(client, "call", call)
    monkeypatch.setattr(found, "call_through", partial(Waiting.call, client))
    await found.call(GetReplicaInfo("s"))
    assert found.leader is None
