"""Each request has one class, and who may answer it follows from the class."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from batonmq.controller import events
from batonmq.controller.config import ControllerConfig
from batonmq.controller.effects import Outcome
from batonmq.controller.handlers import CONSISTENT_READS, UNSAFE_READS, WRITES, Controller, Handlers
from batonmq.controller.heartbeat_handler import HeartbeatHandler
from batonmq.controller.heartbeats import without_heartbeat
from batonmq.controller.machine import ControllerMachine
from batonmq.controller.proposer import NOT_LEADER
from batonmq.net.dispatch import Reply, Request
from batonmq.protocol.bodies.controller import SyncStateSetBody
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.frame import Command
from batonmq.protocol.headers import controller as wire
from batonmq.protocol.headers.namesrv import BrokerHeartbeat
from batonmq.protocol.json import encode

ABOUT_THE_CONTROLLER = {
    wire.GetMetadata,
    wire.GetControllerConfig,
    wire.UpdateControllerConfig,
    wire.GetControllerMembers,
    wire.AddController,
    wire.RemoveController,
    wire.TransferControllerLeadership,
    wire.ForwardToLeader,
}
NOT_FOR_CONTROLLERS = {wire.NotifyBrokerRoleChanged, wire.RaftMessage}

HEADERS: dict[type, Any] = {
    wire.AlterSyncStateSet: wire.AlterSyncStateSet("s", 1, 1),
    wire.ElectMaster: wire.ElectMaster("c", "s", 1),
    wire.RegisterBrokerToController: wire.RegisterBrokerToController("c", "s", 1, "h1:1"),
    wire.ApplyBrokerId: wire.ApplyBrokerId("s", 2, "h2:1;2", "c"),
    wire.CleanBrokerData: wire.CleanBrokerData("c", "s", "1"),
    wire.GetReplicaInfo: wire.GetReplicaInfo("s"),
    wire.GetNextBrokerId: wire.GetNextBrokerId("s", "c"),
    wire.GetSyncStateData: wire.GetSyncStateData(),
}


class Bindings:
    """Stands in for the dispatcher: remembers which function takes which request."""

    def __init__(self) -> None:
        self.handlers: dict[type, Callable[[Any, Any], Reply | None]] = {}

    def on(self, header: type, handler: Callable[[Any, Any], Reply | None]) -> None:
        assert header not in self.handlers
        self.handlers[header] = handler


class Asked:
    """A request; what is answered to it later."""

    def __init__(self, body: bytes = b"") -> None:
        self.command = Command(0, body=body)
        self.connection = "peer"
        self.replies: list[Reply] = []

    def reply(self, reply: Reply) -> None:
        self.replies.append(reply)


class Submitted:
    """Stands in for proposer and barrier; `refusal` is what the barrier says."""

    def __init__(self) -> None:
        self.events: list[events.AnyEvent] = []
        self.reads = 0
        self.refusal: Outcome | None = None

    def submit(self, event: events.AnyEvent, callback: Callable[[Outcome], None]) -> None:
        self.events.append(event)
        callback(Outcome())

    def submit_read(self, callback: Callable[[Outcome | None], None]) -> None:
        self.reads += 1
        callback(self.refusal)


def controller(*, leading: bool, **config: Any) -> tuple[Any, Submitted, Bindings]:
    submitted, bindings, machine = Submitted(), Bindings(), ControllerMachine()
    machine.apply(1, events.encode(1, (events.ApplyBrokerId("c", "s", 1, "h1:1;1"),)))
    peers = "n0-h0:9877;n1-h1:9877"
    settings = ControllerConfig(controller_d_leger_peers=peers, controller_d_leger_self_id="n0", **config)
    stub = SimpleNamespace(
        config=settings,
        topology=settings.topology(),
        machine=machine,
        proposer=submitted,
        reads=SimpleNamespace(submit=submitted.submit_read),
        leading=leading,
        leader_id="n0" if leading else "n1",
        membership=SimpleNamespace(rpc_address=settings.topology().rpc_addresses.get),
        leader_now_ms=lambda: 1,
        decided=lambda outcome: None,
    )
    Handlers(cast("Controller", stub)).register(cast("Any", bindings))
    nothing: Any = None
    HeartbeatHandler(machine, *[nothing] * 6).register(cast("Any", bindings))
    return stub, submitted, bindings


def ask(bindings: Bindings, header: type) -> Reply:
    body = encode(SyncStateSetBody((1,), 1)) if header is wire.AlterSyncStateSet else b""
    asked = Asked(body)
    reply = bindings.handlers[header](cast("Request", asked), HEADERS[header])
    replies = [*asked.replies, *([reply] if reply is not None else [])]
    assert len(replies) == 1
    return replies[0]


def test_each_request_is_of_one_class() -> None:
    declared = {
        kind
        for kind in vars(wire).values()
        if isinstance(kind, type) and issubclass(kind, wire.Header) and getattr(kind, "code", None)
    } - NOT_FOR_CONTROLLERS
    classes = [{*WRITES, BrokerHeartbeat}, {*CONSISTENT_READS}, {*UNSAFE_READS}, ABOUT_THE_CONTROLLER]
    assert sum(map(len, classes)) == len(set().union(*classes)), "a request of two classes"
    assert set().union(*classes) == declared | {BrokerHeartbeat}
    _, _, bindings = controller(leading=True)
    assert set(bindings.handlers) == set().union(*classes)


@pytest.mark.parametrize("header", WRITES)
def test_a_write_is_decided_by_the_log_alone(header: type) -> None:
    stub, submitted, bindings = controller(leading=True)
    before = stub.machine.snapshot()
    assert ask(bindings, header).code == 0
    assert (len(submitted.events), submitted.reads) == (1, 0)
    assert stub.machine.snapshot() == before, "changed although nothing was applied"


@pytest.mark.parametrize("header", CONSISTENT_READS)
def test_a_consistent_read_waits_for_a_barrier(header: type) -> None:
    _, submitted, bindings = controller(leading=True)
    assert ask(bindings, header).code == 0
    assert (submitted.events, submitted.reads) == ([], 1)


@pytest.mark.parametrize("header", UNSAFE_READS)
def test_an_unsafe_read_needs_neither_log_nor_barrier(header: type) -> None:
    _, submitted, bindings = controller(leading=True)
    assert ask(bindings, header).code == 0
    assert (submitted.events, submitted.reads) == ([], 0)


@pytest.mark.parametrize("follower_read", [False, True])
@pytest.mark.parametrize("header", HEADERS)
def test_a_follower_answers_consistent_reads_alone_and_only_if_it_may(
    header: type, follower_read: bool
) -> None:
    _, submitted, bindings = controller(leading=False, enable_follower_read=follower_read)
    reply = ask(bindings, header)
    if follower_read and header in CONSISTENT_READS:
        assert (reply.code, submitted.reads) == (0, 1)
    else:
        assert reply.code == ResponseCode.CONTROLLER_NOT_LEADER
        assert (submitted.events, submitted.reads) == ([], 0)


def test_a_follower_that_may_not_answer_a_read_names_the_leader() -> None:
    _, submitted, bindings = controller(leading=False, enable_follower_read=True)
    submitted.refusal = Outcome(code=NOT_LEADER.code, remark="this controller lags behind: 7 entries behind")
    reply = ask(bindings, wire.GetReplicaInfo)
    assert reply.code == ResponseCode.CONTROLLER_NOT_LEADER
    assert reply.ext == {"controllerLeaderId": "n1", "controllerLeaderAddress": "h1:9877"}
    assert reply.remark == "this controller lags behind: 7 entries behind; ask n1 at h1:9877"


def test_a_read_that_no_quorum_confirms_says_so_and_is_not_run() -> None:
    _, submitted, bindings = controller(leading=True)
    code = int(ResponseCode.CONTROLLER_JRAFT_INTERNAL_ERROR)
    submitted.refusal = Outcome(code=code, remark="no quorum confirmed the read in time")
    reply = ask(bindings, wire.GetReplicaInfo)
    assert (reply.code, reply.remark) == (code, "no quorum confirmed the read in time")
    assert (reply.header, reply.ext, reply.body) == (None, None, b"")


def test_during_an_election_there_is_nobody_to_name() -> None:
    stub, _, bindings = controller(leading=False)
    stub.leader_id = None
    reply = ask(bindings, wire.GetReplicaInfo)
    assert (reply.code, reply.ext) == (ResponseCode.CONTROLLER_NOT_LEADER, None)


@pytest.mark.parametrize(
    "header",
    [
        wire.ElectMaster("other", "s", 1),
        wire.RegisterBrokerToController("other", "s", 1, "h1:1"),
        wire.ApplyBrokerId("s", 2, "h2:1;2", "other"),
        wire.ApplyBrokerId("s" * 256, 1, "h2:1;2", "c"),
        wire.ApplyBrokerId("new", 1, "h2:1;2", "c" * 256),
    ],
    ids=str,
)
def test_a_broker_of_another_cluster_or_with_an_endless_name_is_refused(header: Any) -> None:
    _, submitted, bindings = controller(leading=True)
    with pytest.raises(MQError) as refused:
        bindings.handlers[type(header)](Asked(), header)
    assert refused.value.code == ResponseCode.CONTROLLER_INVALID_REQUEST
    assert submitted.events == []


def test_operators_name_a_broker_set_without_its_cluster() -> None:
    made, submitted, bindings = controller(leading=True)
    made.machine.broker_sets["s"].live[1] = without_heartbeat(1)
    bindings.handlers[wire.ElectMaster](Asked(), wire.ElectMaster("", "s", 1, True))
    assert len(submitted.events) == 1
