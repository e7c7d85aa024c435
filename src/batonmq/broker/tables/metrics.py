"""Metrics of topics, groups, clients and consumer lag. Source: RocketMQ's `BrokerMetricsConstant`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from batonmq.broker.tables.lag import Lag, LagMeter, of_system
from batonmq.common.metrics import Kind, Metric, Point, Source, sliced
from batonmq.protocol.bodies.clients import ConsumeType
from batonmq.protocol.codes import LanguageCode
from batonmq.protocol.versions import version_name

if TYPE_CHECKING:
    from batonmq.broker.context import Broker
    from batonmq.broker.tables.consumers import Member

_LAG: Final = ("consumer_group", "topic", "is_retry", "is_system")
_CLIENT: Final = ("language", "version", "protocol_type")
_REMOTING: Final = "remoting"

PERMISSION: Final = Metric(
    "rocketmq_broker_permission", Kind.GAUGE, "brokerPermission: 2 write, 4 read, 6 both"
)
TOPICS: Final = Metric("rocketmq_topic_number", Kind.GAUGE, "Topics, those of the system included")
GROUPS: Final = Metric("rocketmq_consumer_group_number", Kind.GAUGE, "Consumer groups known")
PRODUCERS: Final = Metric("rocketmq_producer_connections", Kind.GAUGE, "Producers connected", _CLIENT)
CONSUMERS: Final = Metric(
    "rocketmq_consumer_connections",
    Kind.GAUGE,
    "Consumers connected",
    ("consumer_group", "consume_mode", *_CLIENT, "is_system"),
)
LAG: Final = Metric("rocketmq_consumer_lag_messages", Kind.GAUGE, "Messages not yet consumed", _LAG)
LAG_LATENCY: Final = Metric(
    "rocketmq_consumer_lag_latency",
    Kind.GAUGE,
    "Age of the oldest message not yet consumed",
    _LAG,
    unit="milliseconds",
)
INFLIGHT: Final = Metric(
    "rocketmq_consumer_inflight_messages", Kind.GAUGE, "Messages handed out and not yet consumed", _LAG
)
QUEUEING: Final = Metric(
    "rocketmq_consumer_queueing_latency",
    Kind.GAUGE,
    "Age of the oldest message not yet handed out",
    _LAG,
    unit="milliseconds",
)
READY: Final = Metric("rocketmq_consumer_ready_messages", Kind.GAUGE, "Messages not yet handed out", _LAG)
METRICS: Final = (
    PERMISSION,
    TOPICS,
    GROUPS,
    PRODUCERS,
    CONSUMERS,
    LAG,
    LAG_LATENCY,
    INFLIGHT,
    QUEUEING,
    READY,
)

_CONSUME_MODES: Final = {
    ConsumeType.ACTIVELY: "pull",
    ConsumeType.PASSIVELY: "push",
    ConsumeType.POP: "pop",
}
LAG_AGE_MS: Final = 1_000
"""Lifetime of the lag figures: one walk over all groups serves all metrics of a scrape."""


class TableMetrics:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._meter = LagMeter(broker)
        self._lags: list[Lag] = []
        self._lags_ms: int | None = None

    def sources(self) -> Mapping[Metric, Source]:
        broker, tables = self._broker, self._broker.tables
        return {
            PERMISSION: lambda: [((), broker.settings.broker.broker_permission)],
            TOPICS: lambda: [((), len(tables.topics))],
            GROUPS: lambda: [((), len(tables.subscriptions))],
            PRODUCERS: self._producers,
            CONSUMERS: self._consumers,
            LAG: lambda: self._lag(lambda lag: lag.behind),
            LAG_LATENCY: lambda: self._lag(lambda lag: lag.behind_ms),
            INFLIGHT: lambda: self._lag(lambda lag: lag.in_flight),
            QUEUEING: lambda: self._lag(lambda lag: lag.queueing_ms),
            READY: lambda: self._lag(lambda lag: lag.ready),
        }

    def _producers(self) -> Iterable[Point]:
        counts = Counter(
            _client(member)
            for members in self._broker.tables.producers.groups.values()
            for member in members.values()
        )
        return [((*client, _REMOTING), count) for client, count in counts.items()]

    def _consumers(self) -> Iterable[Point]:
        table = self._broker.tables.consumers
        for name in list(table):
            group = table.group(name)
            if group is None:
                continue
            mode = _CONSUME_MODES.get(group.consume_type, "") if group.consume_type else ""
            for client, count in Counter(map(_client, group.members.values())).items():
                yield (name, mode, *client, _REMOTING, of_system(name)), count

    # -- consumer lag ----------------------------------------------------------------------------------------

    async def _lag(self, value: Callable[[Lag], int]) -> Iterable[Point]:
        now_ms = self._broker.clock.monotonic_ms()
        if self._lags_ms is None or now_ms - self._lags_ms >= LAG_AGE_MS:
            self._lags = await sliced(self._meter.walk())
            self._lags_ms = now_ms
        return [(lag.labels, value(lag)) for lag in self._lags]


def _client(member: Member) -> tuple[str, str]:
    return LanguageCode(member.language).name.lower(), version_name(member.version).lower()
