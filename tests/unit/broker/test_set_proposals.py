"""A master's proposals, for each kind of answer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from batonmq.broker.config import BrokerConfig
from batonmq.broker.replica.set_proposals import SetProposals
from batonmq.common.clock import ManualClock
from batonmq.ha.autoswitch.sync_state import SyncStateSet
from batonmq.protocol.bodies.controller import SyncStateSetBody
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers import controller as wire
from batonmq.protocol.json import encode
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
