"""A heartbeat that changes nothing is answered before it is in the log; any other waits for its commit."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from batonmq.controller import events
from batonmq.controller.heartbeat_handler import HEARTBEAT_DONE, HeartbeatHandler
from batonmq.controller.heartbeats import FORWARDED
from batonmq.controller.machine import ControllerMachine
from batonmq.controller.sessions import Sessions
from batonmq.net.dispatch import Reply
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.frame import FrameReader
from batonmq.protocol.headers.namesrv import BrokerHeartbeat

NOW_MS = 10_000
TIMEOUT_MS = 3_000


class World:
    """A leading controller that knows broker 1 of set s, in connection `known`; broker 1 is master."""

    def __init__(self) -> None:
        self.machine = ControllerMachine()
        self.sessions: Sessions[Any] = Sessions()
        self.known = object()
        self.submitted: list[tuple[events.Beat, bool]] = []
        self.answers: list[bytes] = []
        """Frames that were sent before `handle` returned."""
        self.proposer = SimpleNamespace(submit_beat=self._submit, keeps_up=True)
        self.leading = True
        self.now_ms = NOW_MS
        self.running_ms = 1
        self.apply(events.ApplyBrokerId("c", "s", 1, "h1:1;1"))
        self.heartbeat(self.sessions.of(self.known).id)
        self.apply(events.ElectMaster("s", 1, False, False, "broker"))

    def apply(self, event: events.AnyEvent) -> None:
        self.machine.apply(1, events.encode(self.now_ms, (event,)))

    def heartbeat(self, session: int) -> None:
        beat = events.Beat("c", "s", 1, "h1:1", session, TIMEOUT_MS, 0, 0, 0, 0)
        self.apply(events.Heartbeats((beat,)))

    def entry_version(self) -> int:
        return events.ENTRY_VERSION

    def _submit(self, beat: events.Beat, answer: object) -> None:
        self.submitted.append((beat, answer is not None))

    def leader_ms(self, running_ms: int) -> int:
        return self.now_ms

    def heartbeat_came(self, broker_name: str, broker_id: int, *, forwarded: bool) -> None: ...

    def beat(self, cluster: str = "c", connection: object = None, **more: str) -> object:
        ext = {
            "clusterName": cluster,
            "brokerName": "s",
            "brokerId": "1",
            "brokerAddr": "h1:1",
            "heartbeatTimeoutMills": str(TIMEOUT_MS),
            **more,
        }
        request = SimpleNamespace(
            command=SimpleNamespace(raw_ext=b"", opaque=7, binary=False),
            connection=connection if connection else self.known,
            reply_frame=lambda frame, code: self.answers.append(frame),
        )
        stub: Any = self
        handler = HeartbeatHandler(
            self.machine,
            stub,
            cast("Any", SimpleNamespace(now_ms=lambda: self.running_ms)),
            self.sessions,
            cast("Any", self.proposer),
            stub,
            self.entry_version,
        )
        return handler.handle(cast("Any", request), BrokerHeartbeat.from_ext(ext))


def test_a_living_broker_gets_its_answer_at_once_and_its_heartbeat_goes_into_the_log() -> None:
    world = World()
    assert world.beat() is None
    (command,) = FrameReader(1 << 20).feed(world.answers[0])
    assert (command.code, command.opaque, command.remark) == (0, 7, HEARTBEAT_DONE)
    assert [(beat.broker_id, waits) for beat, waits in world.submitted] == [(1, False)]


def the_log_is_slow(world: World) -> None:
    world.proposer.keeps_up = False


def the_broker_timed_out(world: World) -> None:
    world.now_ms += TIMEOUT_MS + 1


def its_connection_was_closed(world: World) -> None:
    world.apply(events.ChannelClosed(world.sessions.of(world.known).id, (("s", 1),), False))


def there_is_no_master(world: World) -> None:
    world.machine.broker_sets["s"].lose_master()


@pytest.mark.parametrize(
    "reason", [the_log_is_slow, the_broker_timed_out, its_connection_was_closed, there_is_no_master]
)
def test_the_answer_waits_if_the_heartbeat_matters(reason: Any) -> None:
    world = World()
    reason(world)
    assert world.beat() is None
    assert not world.answers
    assert [waits for _, waits in world.submitted] == [True]


def test_the_answer_waits_over_a_new_connection() -> None:
    world = World()
    assert world.beat(connection=object()) is None
    assert [waits for _, waits in world.submitted] == [True]


def test_the_answer_to_a_forwarded_heartbeat_waits_since_it_has_the_master_epoch() -> None:
    """Also for the broker of the first connection: 1 is the session that FORWARDED, -1, is mistaken for."""
    world = World()
    assert world.sessions.of(world.known).id == 1
    world.now_ms += TIMEOUT_MS // 2
    world.heartbeat(FORWARDED)
    assert world.machine.broker_sets["s"].live[1].session == FORWARDED
    assert world.beat(forwarded="true") is None
    assert [waits for _, waits in world.submitted] == [True]


def test_a_broker_of_another_cluster_is_refused_and_its_connection_is_not_the_broker_s() -> None:
    """As a newer connection it would keep the broker's own heartbeats from counting under the next leader."""
    world = World()
    stranger = object()
    reply = world.beat(cluster="other", connection=stranger)
    assert isinstance(reply, Reply)
    assert reply.code == ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED
    assert "belongs to cluster c, not other" in (reply.remark or "")
    assert world.submitted == []
    assert world.sessions.known() == ()
    world.beat()
    assert world.sessions.known() == (("s", 1, world.sessions.of(world.known).id),)


@pytest.mark.parametrize(
    ("gaps_ms", "counts"),
    [
        ([1_000, 1_000], True),  # it goes on here, and nothing comes over the newer one
        ([300, 300], False),  # the newer one may only be late
        ([4_000, 5], False),  # what was under way over a connection that it gave up
        ([4_000, 1_000], True),
    ],
)
def test_a_broker_may_continue_over_the_older_of_two_connections(gaps_ms: list[int], counts: bool) -> None:
    """It knew this controller by two addresses, and one left controllerAddr: it counted as down."""
    world = World()
    newer = object()
    world.beat()
    world.beat(connection=newer)
    world.apply(events.Heartbeats((world.submitted[-1][0],)))
    assert world.machine.broker_sets["s"].live[1].session == 2
    for gap_ms in gaps_ms:
        world.running_ms += gap_ms
        world.now_ms += gap_ms
        world.beat()
    assert world.submitted[-1][0].session == (3 if counts else 1)
    assert world.sessions.of(world.known).id == (3 if counts else 1)
    world.apply(events.Heartbeats((world.submitted[-1][0],)))
    assert (world.machine.broker_sets["s"].live[1].updated_ms == world.now_ms) is counts
    world.beat(connection=newer)
    assert world.submitted[-1][0].session == 2, "what comes over the other one no longer counts"
