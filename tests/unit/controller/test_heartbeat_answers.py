"""A heartbeat that changes nothing is answered before it is in the log; any other waits for its commit."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from batonmq.controller import events
from batonmq.controller.handlers import HEARTBEAT_DONE, Handlers
from batonmq.controller.machine import ControllerMachine
from batonmq.controller.sessions import Sessions
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
        self.proposer = SimpleNamespace(submit_beat=self._submit, keeps_up=True)
        self.leading = True
        self.now_ms = NOW_MS
        beat = events.Beat("c", "s", 1, "h1:1", self.sessions.of(self.known).id, TIMEOUT_MS, 0, 0, 0, 0)
        self.apply(events.ApplyBrokerId("c", "s", 1, "h1:1;1"))
        self.apply(events.Heartbeats((beat,)))
        self.apply(events.ElectMaster("s", 1, False, False, "broker"))

    def apply(self, event: events.AnyEvent) -> None:
        self.machine.apply(1, events.encode(self.now_ms, (event,)))

    def _submit(self, beat: events.Beat, answer: object) -> None:
        self.submitted.append((beat, answer is not None))

    def leader_now_ms(self) -> int:
        return self.now_ms

    def monotonic_ms(self) -> int:
        return 1

    def heartbeat_came(self, broker_name: str, broker_id: int, *, forwarded: bool) -> None: ...

    def beat(self, cluster: str = "c", connection: object = None) -> object:
        ext = {
            "clusterName": cluster,
            "brokerName": "s",
            "brokerId": "1",
            "brokerAddr": "h1:1",
            "heartbeatTimeoutMills": str(TIMEOUT_MS),
        }
        request = SimpleNamespace(
            command=SimpleNamespace(raw_ext=b""), connection=connection if connection else self.known
        )
        handlers = Handlers(cast("Any", self))
        return handlers.on_heartbeat(cast("Any", request), BrokerHeartbeat.from_ext(ext))


def test_a_living_broker_gets_its_answer_at_once_and_its_heartbeat_goes_into_the_log() -> None:
    world = World()
    assert world.beat() is HEARTBEAT_DONE
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
    assert [waits for _, waits in world.submitted] == [True]


def test_the_answer_waits_over_a_new_connection_and_for_another_cluster() -> None:
    world = World()
    assert world.beat(connection=object()) is None
    assert world.beat(cluster="other") is None
    assert [waits for _, waits in world.submitted] == [True, True]
