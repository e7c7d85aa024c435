"""A replica whose log lost data gives up its id if it counts as in sync."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from batonmq.broker.config import BrokerConfig
from batonmq.broker.replica.core import ReplicasCore
from batonmq.broker.replica.identity import Identity
from batonmq.broker.replica.registration import ReplicaRegistration
from batonmq.net.connection import Response
from batonmq.protocol.bodies.controller import ReplicaIdentity, ReplicasInfo, SyncStateSetBody
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.json import encode

OWN_ID = 2


class Controllers:
    """`members` is the SyncStateSet; a leader that was replaced still shows `shown`."""

    def __init__(self, members: tuple[int, ...] | None, shown: tuple[int, ...]) -> None:
        self.members, self.shown = members, shown

    async def broker_set(self) -> ReplicasInfo:
        both = [ReplicaIdentity("s", number, f"h{number}:1") for number in (1, OWN_ID)]
        return ReplicasInfo(
            [each for each in both if each.broker_id in self.shown],
            [each for each in both if each.broker_id not in self.shown],
        )

    async def call(self, *_: object) -> Response:
        if self.members is None:
            raise MQError(ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST, "unknown")
        return Response(None, encode(SyncStateSetBody(self.members, 3)), 0, None)


async def gave_up(controllers: Controllers) -> bool:
    """Whether it did, after its log lost five bytes."""
    broker: Any = SimpleNamespace(
        settings=SimpleNamespace(broker=BrokerConfig(broker_name="s")), store=SimpleNamespace(lost_bytes=5)
    )
    registration: Any = object.__new__(ReplicaRegistration)
    registration._broker = broker
    registration._core = ReplicasCore("c", "s", Identity("c", "s", OWN_ID), 1)
    registration._controllers = controllers
    registration._files = SimpleNamespace(give_up=lambda: "identity.lost")
    registration._epochs_doubtful = False
    return bool(await registration._gave_up_id())


@pytest.mark.parametrize("shown", [(1,), (1, OWN_ID)], ids=["shown by a former leader", "shown as it is"])
async def test_a_member_gives_up_its_id_whatever_a_former_leader_shows(shown: tuple[int, ...]) -> None:
    assert await gave_up(Controllers((1, OWN_ID), shown))


async def test_who_must_catch_up_anyway_keeps_its_id() -> None:
    assert not await gave_up(Controllers((1,), (1, OWN_ID)))


async def test_controllers_without_this_broker_set_leave_the_id_to_the_registration() -> None:
    assert not await gave_up(Controllers(None, ()))
