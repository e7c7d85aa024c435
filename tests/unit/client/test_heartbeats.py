"""Heartbeats of consumers: a broker that refuses them is named once."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from batonmq.client.consumer import ConsumeFromWhere
from batonmq.client.push.heartbeats import Heartbeats
from batonmq.protocol.bodies.clients import MessageModel
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.tags import tag_subscription

REFUSAL = MQError(ResponseCode.NO_PERMISSION, "User:shop has no permission to access Topic:secret")


class Net:
    def __init__(self) -> None:
        self.answers: list[MQError | None] = []

    async def call(self, address: str, header: Any, body: bytes) -> None:
        if (answer := self.answers.pop(0)) is not None:
            raise answer


async def test_a_refusal_is_one_warning_until_the_broker_takes_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, logger="batonmq")
    net = Net()
    route = SimpleNamespace(addresses=lambda: {"10.0.0.1:10911"})
    session: Any = SimpleNamespace(net=net, client_id="c", known_route=lambda topic: route)
    subscriptions: Any = {"secret": SimpleNamespace(data=tag_subscription("secret", "*", 0))}
    heartbeats = Heartbeats(
        session, "billing", subscriptions, MessageModel.CLUSTERING, ConsumeFromWhere.LAST_OFFSET
    )
    net.answers = [REFUSAL, REFUSAL, None, REFUSAL]
    for _ in range(4):
        await heartbeats.send()
    warnings = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    assert len(warnings) == 2
    assert all(
        "group billing is refused by 10.0.0.1:10911" in each and "Topic:secret" in each for each in warnings
    )
