"""A controller passes a request on to the leader once, or says why it does not."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from batonmq.controller import events
from batonmq.controller.forwarding import MAX_UNDER_WAY, Forwarding
from batonmq.controller.handlers import FORWARDABLE
from batonmq.controller.heartbeat_handler import HeartbeatHandler
from batonmq.controller.heartbeats import FORWARDED
from batonmq.controller.machine import ControllerMachine
from batonmq.controller.sessions import Sessions
from batonmq.net.errors import CallTimeout
from batonmq.protocol.codes import FLAG_ONEWAY, RequestCode, ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.forwarding import decode_single, encode
from batonmq.protocol.frame import Command
from batonmq.protocol.headers import controller as wire
from batonmq.protocol.headers.namesrv import BrokerHeartbeat


class Leader:
    """Stands in for the client: answers with a refusal, so that codes are seen to pass unchanged."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Command]] = []
        self.silent = False
        self.release = asyncio.Event()
        self.release.set()

    async def invoke(self, address: str, command: Command, *, timeout_ms: float) -> Command:
        self.asked.append((address, command))
        await self.release.wait()
        if self.silent:
            raise CallTimeout(address, "no answer in time")
        return Command(int(ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH), {"a": "b"}, b"body", remark="old")


def forwarding(
    leader: Leader, address: str | None = "h1:1", version: int = events.ENTRY_VERSION
) -> Forwarding:
    return Forwarding(cast("Any", leader), lambda: address, lambda: version, FORWARDABLE, 1_000)


def asked(body: bytes) -> Any:
    return SimpleNamespace(command=Command(int(RequestCode.FORWARD_TO_LEADER), body=body))


def inner(code: int = RequestCode.CONTROLLER_ELECT_MASTER, **more: Any) -> bytes:
    return encode(Command(int(code), wire.ElectMaster("c", "s", 1).to_ext(), b"x", **more))


async def test_the_leader_gets_the_request_and_the_broker_its_answer() -> None:
    leader = Leader()
    reply = await forwarding(leader).forward(asked(inner(flag=FLAG_ONEWAY)), wire.ForwardToLeader())
    ((address, command),) = leader.asked
    assert (address, command.code, bytes(command.body)) == ("h1:1", RequestCode.CONTROLLER_ELECT_MASTER, b"x")
    assert not command.is_oneway, "an answer is wanted"
    assert wire.ElectMaster.from_ext(command.ext) == wire.ElectMaster("c", "s", 1)
    answer = decode_single(cast("bytes", reply.body))
    assert (reply.code, answer.code) == (0, ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH)
    assert (answer.remark, answer.ext, bytes(answer.body)) == ("old", {"a": "b"}, b"body")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x00",
        b"\xff" * 40,
        inner() + inner(),
        inner()[:-1],
        inner(RequestCode.FORWARD_TO_LEADER),
        inner(RequestCode.UPDATE_CONTROLLER_CONFIG),
        inner(RequestCode.REMOVE_CONTROLLER),
        inner(RequestCode.RAFT_MESSAGE),
        inner(999_999),
    ],
)
async def test_what_is_not_a_request_of_a_broker_is_not_passed_on(body: bytes) -> None:
    leader = Leader()
    with pytest.raises(MQError) as refused:
        await forwarding(leader).forward(asked(body), wire.ForwardToLeader())
    assert refused.value.code == ResponseCode.CONTROLLER_INVALID_REQUEST
    assert leader.asked == []


async def test_without_a_leader_and_without_its_answer_the_broker_looks_elsewhere() -> None:
    leader = Leader()
    with pytest.raises(MQError, match="knows no leader") as unknown:
        await forwarding(leader, None).forward(asked(inner()), wire.ForwardToLeader())
    leader.silent = True
    with pytest.raises(MQError, match="h1:1: no answer in time") as silent:
        await forwarding(leader).forward(asked(inner()), wire.ForwardToLeader())
    assert unknown.value.code == silent.value.code == ResponseCode.CONTROLLER_NOT_LEADER


async def test_who_waits_for_the_former_leader_is_sent_to_the_new_one() -> None:
    leader = Leader()
    leader.release.clear()
    passing = forwarding(leader)
    waiting = asyncio.ensure_future(passing.forward(asked(inner()), wire.ForwardToLeader()))
    await asyncio.sleep(0)
    passing.leader_changed()
    with pytest.raises(MQError, match="former leading controller h1:1") as refused:
        await waiting
    assert refused.value.code == ResponseCode.CONTROLLER_NOT_LEADER
    leader.release.set()
    assert (await passing.forward(asked(inner()), wire.ForwardToLeader())).code == 0


async def test_a_leader_of_version_0_1_0_gets_no_heartbeats_of_others() -> None:
    """It would count the broker as down: its own heartbeats come over an older connection."""
    leader = Leader()
    heartbeat = BrokerHeartbeat("c", "h:1", "s", 1, forwarded=True)
    body = encode(Command(int(BrokerHeartbeat.code), heartbeat.to_ext()))
    with pytest.raises(MQError, match="no forwarded heartbeats") as refused:
        await forwarding(leader, version=1).forward(asked(body), wire.ForwardToLeader())
    assert refused.value.code == ResponseCode.SYSTEM_BUSY
    assert leader.asked == []
    await forwarding(leader, version=1).forward(asked(inner()), wire.ForwardToLeader())
    await forwarding(leader, version=2).forward(asked(body), wire.ForwardToLeader())
    assert [command.code for _, command in leader.asked] == [
        RequestCode.CONTROLLER_ELECT_MASTER,
        BrokerHeartbeat.code,
    ]


async def test_a_heartbeat_that_is_passed_on_says_so() -> None:
    leader = Leader()
    for forwarded in (None, False, True):
        heartbeat = BrokerHeartbeat("c", "h:1", "s", 1, forwarded=forwarded)
        body = encode(Command(int(BrokerHeartbeat.code), heartbeat.to_ext()))
        await forwarding(leader).forward(asked(body), wire.ForwardToLeader())
    sent = [decode_single(encode(command)) for _, command in leader.asked]
    assert [BrokerHeartbeat.from_ext(command.ext).forwarded for command in sent] == [True] * 3


async def test_requests_that_wait_for_a_silent_leader_are_bounded() -> None:
    leader = Leader()
    leader.release.clear()
    passing = forwarding(leader)
    waiting = [
        asyncio.ensure_future(passing.forward(asked(inner()), wire.ForwardToLeader()))
        for _ in range(MAX_UNDER_WAY)
    ]
    await asyncio.sleep(0)
    with pytest.raises(MQError) as refused:
        await passing.forward(asked(inner()), wire.ForwardToLeader())
    assert refused.value.code == ResponseCode.SYSTEM_BUSY
    leader.release.set()
    await asyncio.gather(*waiting)
    assert passing.forwarded == MAX_UNDER_WAY
    await passing.forward(asked(inner()), wire.ForwardToLeader())


def beat(session: int, broker_id: int = 1) -> events.Heartbeats:
    return events.Heartbeats((events.Beat("c", "s", broker_id, "h1:1", session, 3_000, 1, 0, 0, 0),))


def machine() -> tuple[ControllerMachine, Any]:
    made = ControllerMachine()
    made.apply(1, events.encode(1_000, (events.ApplyBrokerId("c", "s", 1, "h1:1;1"),)))
    made.apply(2, events.encode(1_000, (events.RegisterBroker("c", "s", 1, "h1:1"), beat(7))))
    return made, made.broker_sets["s"]


def closed(session: int) -> events.ChannelClosed:
    return events.ChannelClosed(session, (("s", 1),), False)


def test_a_broker_that_beats_through_another_controller_outlives_its_former_connection() -> None:
    made, broker_set = machine()
    made.apply(3, events.encode(3_000, (beat(FORWARDED),)))
    assert broker_set.live[1].updated_ms == 3_000
    made.apply(4, events.encode(3_100, (closed(7),)))
    assert broker_set.is_alive(1, 3_100)


def test_a_connection_that_works_again_counts_again() -> None:
    made, broker_set = machine()
    made.apply(3, events.encode(3_000, (beat(FORWARDED),)))
    made.apply(4, events.encode(4_000, (beat(7),)))
    made.apply(5, events.encode(4_100, (closed(7),)))
    assert 1 not in broker_set.live


def test_a_forwarded_heartbeat_does_not_replace_a_direct_one() -> None:
    made, broker_set = machine()
    made.apply(3, events.encode(1_500, (beat(FORWARDED),)))
    assert broker_set.live[1].updated_ms == 1_000
    made.apply(4, events.encode(1_600, (closed(7),)))
    assert 1 not in broker_set.live


def test_a_broker_that_was_down_comes_back_through_another_controller() -> None:
    made, broker_set = machine()
    made.apply(3, events.encode(1_600, (closed(7),)))
    made.apply(4, events.encode(1_700, (beat(FORWARDED),)))
    assert broker_set.is_alive(1, 1_700)
    made.apply(5, events.encode(1_800, (beat(FORWARDED), beat(2))))
    assert broker_set.live[1].session == 2


def test_an_entry_that_names_a_closed_broker_twice_counts_it_once() -> None:
    made, broker_set = machine()
    made.apply(3, events.encode(1_100, (events.ChannelClosed(7, (("s", 1), ("s", 1)), False),)))
    assert 1 not in broker_set.live


@pytest.mark.parametrize("version", [1, 2])
def test_forwarded_heartbeats_wait_until_all_controllers_read_them(version: int) -> None:
    """Version 0.1.0 would take such a heartbeat for one of an old connection, and its state would differ."""
    submitted: list[events.Beat] = []
    made = ControllerMachine()
    made.apply(1, events.encode(1_000, (events.ApplyBrokerId("c", "s", 1, "h1:1;1"),), 1))
    stub: Any = SimpleNamespace(
        leading=True,
        leader_ms=lambda running_ms: running_ms,
        now_ms=lambda: 1,
        submit_beat=lambda beat, answer: submitted.append(beat),
        keeps_up=True,
        heartbeat_came=lambda broker_name, broker_id, *, forwarded: None,
    )
    ext = {"clusterName": "c", "brokerName": "s", "brokerId": "1", "brokerAddr": "h1:1", "forwarded": "true"}
    request = SimpleNamespace(command=SimpleNamespace(raw_ext=b""))
    handler = HeartbeatHandler(made, stub, stub, Sessions(), stub, stub, lambda: version)
    if version == 1:
        with pytest.raises(MQError) as refused:
            handler.handle(cast("Any", request), BrokerHeartbeat.from_ext(ext))
        assert refused.value.code == ResponseCode.SYSTEM_BUSY
        assert submitted == []
    else:
        assert handler.handle(cast("Any", request), BrokerHeartbeat.from_ext(ext)) is None
        assert [beat.session for beat in submitted] == [FORWARDED]
