"""A broker without sockets: its tables, and connections that record what they are sent."""

from __future__ import annotations

import inspect
import json
import random
import re
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
from batonmq.ha.config import HAConfig
from batonmq.net.dispatch import Dispatcher, Reply, Request
from batonmq.net.errors import ConnectionLost
from batonmq.protocol.codes import LanguageCode
from batonmq.protocol.frame import Command
from batonmq.protocol.json import encode
from batonmq.protocol.registry import Header
from batonmq.store.config import StoreConfig


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

    async def call(self, header: Header, body: bytes = b"", timeout_ms: float = 3000) -> Command:
        return await self.invoke(Command(header.code, header.to_ext(), body), timeout_ms)

    def close(self) -> None:
        self.closed = True


JAVA = int(LanguageCode.JAVA)


def make_config(**keys: Any) -> BrokerConfig:
    return BrokerConfig(**{"broker_name": "broker-a", **keys})


def make_broker(store: Any = None, *, clock: ManualClock | None = None, **keys: Any) -> Broker:
    config, clock = make_config(**keys), clock or ManualClock()
    return Broker(
        config=config,
        store_config=StoreConfig() if store is None else store.config,
        ha_config=HAConfig(),
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


async def ask(
    dispatcher: Dispatcher,
    header: Header,
    body: Any = b"",
    *,
    connection: FakeConnection | None = None,
    **ext: str,
) -> Reply:
    """Send a request through the dispatcher as the wire would; raises the `MQError` it is refused with."""
    data = body if isinstance(body, bytes) else encode(body)
    command = Command(header.code, {**header.to_ext(), **ext}, data, language=JAVA, version=453)
    request = Request(connection or FakeConnection(), command)  # type: ignore[arg-type]
    outcome = dispatcher.handlers[int(header.code)](request)
    if inspect.isawaitable(outcome):
        outcome = await outcome
    assert isinstance(outcome, Reply)
    return outcome


def json_of(reply: Reply) -> Any:
    """The JSON body of an answer, with maps keyed by objects as maps keyed by the object's JSON."""
    assert isinstance(reply.body, bytes)
    return json.loads(plain_keys(reply.body))


def plain_keys(data: bytes) -> bytes:
    """Quote the object keys and bare numeric keys of fastjson, so that a standard parser reads them."""
    data = re.sub(rb"(?<=[{,])(\{[^{}]*\})(?=:)", lambda m: json.dumps(_sorted(m[1])).encode(), data)
    return re.sub(rb"(?<=[{,])(\d+)(?=:)", rb'"\1"', data)


def _sorted(key: bytes) -> str:
    return json.dumps(json.loads(key), sort_keys=True)
