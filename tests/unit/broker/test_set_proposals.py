"""A master's proposals, for each kind of answer."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from batonmq.broker.config import BrokerConfig
from batonmq.broker.replica.set_proposals import DOWN_QUERY_S, SetProposals
from batonmq.common.clock import ManualClock
from batonmq.ha.autoswitch.sync_state import SyncStateSet, SyncStateTracker
from batonmq.ha.role import HARole
from batonmq.protocol.bodies.controller import ReplicaIdentity, ReplicasInfo, SyncStateSetBody
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers import controller as wire
from batonmq.protocol.json import decode, encode
from batonmq.protocol.registry import Header

INFO = wire.GetReplicaInfoReply(1, "h:1", 3)
IN_FORCE = encode(SyncStateSetBody((1, 2), 7))


@pytest.mark.parametrize(
    ("header", "body", "known"),
    [(INFO, IN_FORCE, True), (INFO, b"nonsense", False), (INFO, b"", False), (None, IN_FORCE, False)],
)
async def test_after_a_refusal_only_the_current_set_decides_the_outcome(
    header: Header | None, body: bytes, known: bool
) -> None:
    """After an invalid answer the same proposal is sent again."""

    async def call(request: Header, *_: object, **__: object) -> Any:
        if isinstance(request, wire.AlterSyncStateSet):
            raise MQError(ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH, "not that epoch")
        return SimpleNamespace(header=header, body=body)

    outcomes: list[tuple[object, bool]] = []
    agreed: list[SyncStateSet] = []
    roles: list[object] = []
    tracker: Any = SimpleNamespace(agreed=SyncStateSet(frozenset({1}), 6), agree=agreed.append)
    ha: Any = SimpleNamespace(
        epoch=3, answered=lambda _tracker, outcome, *, refused: outcomes.append((outcome, refused))
    )
    broker: Any = SimpleNamespace(
        settings=SimpleNamespace(broker=BrokerConfig(broker_name="b")), clock=ManualClock()
    )
    core: Any = SimpleNamespace(broker_id=1)
    controllers: Any = SimpleNamespace(call=call)
    proposals = SetProposals(broker, ha, core, controllers, on_role=roles.append)
    assert not await proposals._propose(tracker, frozenset({1, 2}))
    assert outcomes == [(None, known)]
    assert agreed == ([SyncStateSet(frozenset({1, 2}), 7)] if known else [])
    assert len(roles) == known


@pytest.mark.parametrize(
    ("alive", "down"),
    [
        ({1: True, 2: True, 3: False}, {3}),
        ({1: True, 2: True, 3: True}, set()),
        ({1: False, 2: True, 3: False}, set()),  # no set would be accepted
        ({1: False, 2: False, 3: False}, set()),  # perhaps controllers that do not say who lives
        (None, {9}),
    ],
)
@pytest.mark.parametrize(
    "refusal", [ResponseCode.CONTROLLER_BROKER_NOT_ALIVE, ResponseCode.CONTROLLER_INVALID_REPLICAS]
)
async def test_after_a_set_was_refused_because_of_a_replica_the_master_asks_which_there_are(
    alive: dict[int, bool] | None, down: set[int], refusal: ResponseCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def call(request: Header, *_: object, **__: object) -> Any:
        if isinstance(request, wire.AlterSyncStateSet):
            raise MQError(refusal, "not replica 3")
        return SimpleNamespace(header=INFO, body=IN_FORCE)

    async def broker_set() -> ReplicasInfo:
        if alive is None:
            raise MQError(ResponseCode.CONTROLLER_NOT_LEADER, "not leader")
        seen = [ReplicaIdentity("b", broker_id, "h:1", lives) for broker_id, lives in alive.items()]
        return ReplicasInfo(seen[:2], seen[2:])

    tracker: Any = SimpleNamespace(
        agreed=SyncStateSet(frozenset({1, 2, 3}), 6),
        agree=lambda _current: None,
        local_id=1,
        down=frozenset({9}),
    )
    registered: list[set[int]] = []
    ha: Any = SimpleNamespace(
        epoch=3,
        answered=lambda *_args, **_fields: None,
        registered=lambda broker_ids: registered.append(set(broker_ids)),
    )
    broker: Any = SimpleNamespace(
        settings=SimpleNamespace(broker=BrokerConfig(broker_name="b")), clock=ManualClock()
    )
    core: Any = SimpleNamespace(broker_id=1)
    controllers: Any = SimpleNamespace(call=call, broker_set=broker_set)
    proposals = SetProposals(broker, ha, core, controllers, on_role=lambda _role: None)
    looks_s: list[float] = []

    def call_later(delay_s: float, callback: object) -> None:
        assert callback == proposals.changed.set
        looks_s.append(delay_s)

    monkeypatch.setattr(asyncio.get_running_loop(), "call_later", call_later)
    assert not await proposals._propose(tracker, frozenset({1, 3}))
    assert tracker.down == down
    assert registered == ([{1, 2, 3}] if alive is not None else [])
    # A slave that comes back follows a moment before it is up for the controllers.
    assert looks_s == ([DOWN_QUERY_S[0] if alive is not None else DOWN_QUERY_S[1]] if down else [])


async def test_a_term_that_begins_while_the_ids_are_asked_for_gets_the_outcome_of_its_proposal() -> None:
    """Otherwise its proposal would be in flight for ever, and the SyncStateSet could not change any more."""

    def term(set_epoch: int) -> SyncStateTracker:
        tracker = SyncStateTracker(1, SyncStateSet(frozenset({1}), set_epoch), 0, 0, 1_000, 0)
        tracker.registered = frozenset({1, 2})
        tracker.connected(2, async_learner=False).ack_offset = 0
        return tracker

    former, current = term(6), term(7)
    asked: list[SyncStateSetBody] = []

    async def call(request: Header, body: bytes = b"") -> Any:
        assert isinstance(request, wire.AlterSyncStateSet)
        asked.append(decode(body, SyncStateSetBody))
        return SimpleNamespace(header=None, body=encode(SyncStateSetBody((1, 2), 8)))

    async def broker_set() -> ReplicasInfo:
        ha.tracker = current
        return ReplicasInfo([ReplicaIdentity("b", 1, "h:1", True)], [ReplicaIdentity("b", 2, "h:2", True)])

    def answered(tracker: SyncStateTracker, outcome: SyncStateSet | None, *, refused: bool) -> None:
        if tracker is ha.tracker:
            tracker.answered(outcome, refused=refused)

    ha: Any = SimpleNamespace(
        epoch=4,
        role=HARole.MASTER,
        tracker=former,
        unregistered=lambda: [2],
        registered=lambda _ids: None,
        propose=lambda: ha.tracker.propose(0),
        answered=answered,
    )
    broker: Any = SimpleNamespace(
        settings=SimpleNamespace(broker=BrokerConfig(broker_name="b")), clock=ManualClock()
    )
    controllers: Any = SimpleNamespace(call=call, broker_set=broker_set)
    proposals = SetProposals(
        broker, ha, SimpleNamespace(broker_id=1), controllers, on_role=lambda _role: None
    )  # type: ignore[arg-type]
    proposals.changed.set()
    task = asyncio.create_task(proposals.run())
    try:
        async with asyncio.timeout(5):
            while not asked or current.in_flight:
                await asyncio.sleep(0.01)
    finally:
        task.cancel()
    assert asked[0].sync_state_set_epoch == 7
    assert current.agreed == SyncStateSet(frozenset({1, 2}), 8)
