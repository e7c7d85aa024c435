"""A broker without sockets: its tables, and connections that record what they receive."""

from __future__ import annotations

import inspect
import json
import random
import re
from pathlib import Path
from typing import Any

from batonmq.broker.config import BrokerConfig
from batonmq.broker.context import Broker
from batonmq.broker.messages.appender import Appender
from batonmq.broker.messages.redirects import Redirects
from batonmq.broker.role import RoleState
from batonmq.broker.settings import Settings
from batonmq.broker.stats import BrokerStats
from batonmq.broker.tables.filters import FilterTable
from batonmq.broker.tables.mappings import MappingTable
from batonmq.broker.tables.offsets import OffsetTable
from batonmq.broker.tables.persistence import Persistence
from batonmq.broker.tables.subscriptions import SubscriptionTable
from batonmq.broker.tables.tables import Tables
from batonmq.broker.tables.topics import TopicTable
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
        self.congested = False
        """It does not read what it is sent."""
        self.sent: list[tuple[Header, bytes]] = []
        self.invoked: list[Command] = []
        self.answers: list[Command | Exception] = []

    def oneway(self, header: Header, body: bytes = b"") -> None:
        self.sent.append((header, bytes(body)))

    async def invoke(self, command: Command, timeout_ms: float, *, body: Any = None) -> Command:
        self.invoked.append(command)
        if not self.answers:
            raise ConnectionLost(self.peer, "no answer")
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


def make_broker(
    store: Any = None, *, clock: ManualClock | None = None, config_path: Path | None = None, **keys: Any
) -> Broker:
    config, clock = make_config(**keys), clock or ManualClock()
    settings = Settings(config, StoreConfig() if store is None else store.config, HAConfig(), config_path)
    role, stats = RoleState(), BrokerStats(clock.now_ms())
    broker = Broker(
        settings=settings,
        clock=clock,
        rng=random.Random(1),
        store=store,
        role=role,
        tables=Tables(
            topics=TopicTable(config, clock),
            subscriptions=SubscriptionTable(config, clock),
            offsets=OffsetTable(clock),
            mappings=MappingTable(clock),
            filters=FilterTable(clock.now_ms),
            persistence=Persistence((Path("/nowhere") if store is None else store.config.root) / "config"),
        ),
        appender=None if store is None else Appender(store, settings, role, stats, clock, None),  # type: ignore[arg-type]
        redirects=Redirects(),
        replication=None,
        stats=stats,
        client=None,  # type: ignore[arg-type]
        readers=None,  # type: ignore[arg-type]
        fail=_fail,
        address="10.0.0.1:10911",
        ha_address="10.0.0.1:10912",
    )
    role.set_master(
        address=broker.address,
        ha_address=broker.ha_address,
        epoch=0,
        replicates=False,
        log_start=0,
        broker_id=0,
    )
    return broker


def become_slave(broker: Broker, master_address: str | None = None) -> None:
    """Set the role without the other steps of a switch."""
    broker.role.set_slave(broker_id=2, epoch=1, master_address=master_address, master_ha_address=None)


def _fail(cause: Exception) -> None:
    raise cause


async def ask(
    dispatcher: Dispatcher,
    header: Header,
    body: Any = b"",
    *,
    connection: FakeConnection | None = None,
    language: int = JAVA,
    **ext: str,
) -> Reply:
    """Send a request through the dispatcher as the network does; raises the `MQError` of a refusal."""
    data = body if isinstance(body, bytes) else encode(body)
    command = Command(header.code, {**header.to_ext(), **ext}, data, language=language, version=453)
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
