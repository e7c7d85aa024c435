"""A broker without sockets: its tables, and connections that record what they are sent."""

from __future__ import annotations

import random
from typing import Any

from batonmq.broker.config import BrokerConfig
from batonmq.broker.consumers import ConsumerTable
from batonmq.broker.context import Broker
from batonmq.broker.offsets import OffsetTable
from batonmq.broker.producers import ProducerTable
from batonmq.broker.stats import BrokerStats
from batonmq.broker.subscriptions import SubscriptionTable
from batonmq.broker.topics import TopicTable
from batonmq.common.clock import ManualClock
from batonmq.net.errors import ConnectionLost
from batonmq.protocol.codes import LanguageCode
from batonmq.protocol.frame import Command
from batonmq.protocol.registry import Header


class FakeConnection:
    """Stands for `batonmq.net.connection.Connection`; answers calls with what the test put into `answers`."""

    def __init__(self, peer: str = "10.0.0.9:5000") -> None:
        self.peer = peer
        self.closed = False
        self.sent: list[tuple[Header, bytes]] = []
        self.invoked: list[Command] = []
        self.answers: list[Command | Exception] = []

    def oneway(self, header: Header, body: bytes = b"") -> None:
        self.sent.append((header, bytes(body)))

    async def invoke(self, command: Command, timeout_ms: float, *, body: Any = None) -> Command:
        self.invoked.append(command)
        if not self.answers:
            raise ConnectionLost(self.peer, "nobody answers")
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> None:
        self.closed = True


JAVA = int(LanguageCode.JAVA)


def make_config(**keys: Any) -> BrokerConfig:
    return BrokerConfig(**{"broker_name": "broker-a", **keys})


def make_broker(store: Any = None, *, clock: ManualClock | None = None, **keys: Any) -> Broker:
    config, clock = make_config(**keys), clock or ManualClock()
    return Broker(
        config=config,
        store_config=None,  # type: ignore[arg-type]
        ha_config=None,  # type: ignore[arg-type]
        clock=clock,
        rng=random.Random(1),
        store=store,
        topics=TopicTable(config, clock),
        subscriptions=SubscriptionTable(config, clock),
        offsets=OffsetTable(clock),
        consumers=ConsumerTable(),
        producers=ProducerTable(),
        stats=BrokerStats(clock.now_ms()),
        outer=None,  # type: ignore[arg-type]
        address="10.0.0.1:10911",
        ha_address="10.0.0.1:10912",
    )
