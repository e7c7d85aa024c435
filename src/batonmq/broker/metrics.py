"""What a broker shows: RocketMQ's metrics as far as they are free or cheap, and a few of replication.

Names, units and labels are those of RocketMQ 5.5 (`BrokerMetricsConstant`, `DefaultStoreMetricsConstant`,
`RemotingMetricsConstant`), as an interop test checks against its exporter. Counters are those of `stats.py`,
which count anyway; only the latency of requests is measured on top, some 0.8 µs each, and not with
metricsExporterType=DISABLE.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from batonmq.broker.consumers import Member
from batonmq.broker.context import Broker
from batonmq.broker.stats import GROUP_GET_NUMS, GROUP_GET_SIZE, TOPIC_PUT_NUMS, TOPIC_PUT_SIZE
from batonmq.common.metrics import Exporter, Histogram, Kind, Metric, Point, Source, sliced
from batonmq.common.metrics_config import MetricsExporterType
from batonmq.net.dispatch import Dispatcher, Request
from batonmq.net.interceptors import Interceptor
from batonmq.protocol.bodies import ConsumeType
from batonmq.protocol.codes import PROTOCOL_VERSION, LanguageCode, Perm, RequestCode, ResponseCode
from batonmq.protocol.names import (
    SCHEDULE_TOPIC,
    SYSTEM_GROUP_PREFIX,
    TRANS_HALF_TOPIC,
    is_dead_letter_topic,
    is_retry_topic,
    is_system_group,
    is_system_topic,
)

SCOPE: Final = "broker-meter"
COMMON_LABELS: Final = ("node_type", "cluster", "node_id")
"""`broker`, the cluster's name, the broker set's name (brokerName)."""
STORAGE: Final = ("storage_type", "storage_medium")
_STORAGE_VALUES: Final = ("local", "disk")
_IN: Final = ("topic", "message_type", "is_system")
_OUT: Final = ("topic", "consumer_group", "is_system")
_LAG: Final = ("consumer_group", "topic", "is_retry", "is_system")
_CLIENT: Final = ("language", "version", "protocol_type")
_REMOTING: Final = "remoting"

MESSAGES_IN: Final = Metric("rocketmq_messages_in_total", Kind.COUNTER, "Messages stored", _IN)
BYTES_IN: Final = Metric("rocketmq_throughput_in_total", Kind.COUNTER, "Bytes stored", _IN)
MESSAGES_OUT: Final = Metric(
    "rocketmq_messages_out_total", Kind.COUNTER, "Messages handed to consumers", _OUT
)
BYTES_OUT: Final = Metric("rocketmq_throughput_out_total", Kind.COUNTER, "Bytes handed to consumers", _OUT)
RPC_LATENCY: Final = Metric(
    "rocketmq_rpc_latency",
    Kind.HISTOGRAM,
    "From reading a request to its answer",
    ("protocol_type", "request_code", "response_code", "is_long_polling", "result"),
    unit="milliseconds",
    bounds=(1.0, 3.0, 5.0, 7.0, 10.0, 100.0, 1000.0, 2000.0, 3000.0),
)
PERMISSION: Final = Metric(
    "rocketmq_broker_permission", Kind.GAUGE, "brokerPermission: 2 write, 4 read, 6 both"
)
TOPICS: Final = Metric("rocketmq_topic_number", Kind.GAUGE, "Topics, those of the system included")
GROUPS: Final = Metric("rocketmq_consumer_group_number", Kind.GAUGE, "Consumer groups known")
WATERMARK: Final = Metric(
    "rocketmq_processor_watermark",
    Kind.GAUGE,
    "Sends that wait for replicas or disk (processor=send)",
    ("processor",),
)
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
STORAGE_SIZE: Final = Metric(
    "rocketmq_storage_size", Kind.GAUGE, "Used space of the store's file system", STORAGE, unit="bytes"
)
FLUSH_BEHIND: Final = Metric(
    "rocketmq_storage_flush_behind_bytes",
    Kind.GAUGE,
    "Stored and not yet on this disk",
    STORAGE,
    unit="bytes",
)
DISPATCH_BEHIND: Final = Metric(
    "rocketmq_storage_dispatch_behind_bytes",
    Kind.GAUGE,
    "Stored and not yet shown to consumers",
    STORAGE,
    unit="bytes",
)
RESERVE_TIME: Final = Metric(
    "rocketmq_storage_message_reserve_time",
    Kind.GAUGE,
    "Age of the oldest message stored",
    STORAGE,
    unit="milliseconds",
)
IS_MASTER: Final = Metric("batonmq_broker_is_master", Kind.GAUGE, "1 on the master, 0 on slaves")
EPOCH: Final = Metric("batonmq_broker_epoch", Kind.GAUGE, "Master epoch (controller mode)")
IN_SYNC: Final = Metric("batonmq_in_sync_replicas", Kind.GAUGE, "Replicas in sync, as the master sees it")
CONFIRM_BEHIND: Final = Metric(
    "batonmq_confirm_behind_bytes", Kind.GAUGE, "Stored and not yet confirmed by all in sync", unit="bytes"
)
METRICS: Final = (
    MESSAGES_IN,
    BYTES_IN,
    MESSAGES_OUT,
    BYTES_OUT,
    RPC_LATENCY,
    PERMISSION,
    TOPICS,
    GROUPS,
    WATERMARK,
    PRODUCERS,
    CONSUMERS,
    LAG,
    LAG_LATENCY,
    INFLIGHT,
    QUEUEING,
    READY,
    STORAGE_SIZE,
    FLUSH_BEHIND,
    DISPATCH_BEHIND,
    RESERVE_TIME,
    IS_MASTER,
    EPOCH,
    IN_SYNC,
    CONFIRM_BEHIND,
)

_CONSUME_MODES: Final = {
    ConsumeType.ACTIVELY: "pull",
    ConsumeType.PASSIVELY: "push",
    ConsumeType.POP: "pop",
}
_PULLS: Final = frozenset({int(RequestCode.PULL_MESSAGE), int(RequestCode.LITE_PULL_MESSAGE)})
_REQUEST_NAMES: Final = {int(code): code.name.lower() for code in RequestCode}
_RESPONSE_NAMES: Final = {int(code): code.name.lower() for code in ResponseCode}
LAG_AGE_MS: Final = 1_000
"""One walk over all groups serves the metrics of a scrape."""


class RpcMeter:
    """Times the answers of a dispatcher (`answered` is an interceptor). Hot path."""

    def __init__(self, timer_ns: Callable[[], int]) -> None:
        self._timer_ns = timer_ns
        self._series: dict[tuple[int, int, bool, bool], Histogram] = {}

    def answered(self, request: Request, code: int) -> None:
        asked = request.command.code
        # A pull that was not answered at once was held until messages came.
        held = asked in _PULLS and request in request.connection.in_flight
        key = (asked if asked in _REQUEST_NAMES else -1, code, held, request.oneway)
        histogram = self._series.get(key)
        if histogram is None:
            histogram = self._series[key] = Histogram(RPC_LATENCY.bounds)
        histogram.record((self._timer_ns() - request.arrived_ns) // 1_000_000)

    def latencies(self) -> Iterable[Point]:
        for (asked, code, held, oneway), histogram in list(self._series.items()):
            names = (_REQUEST_NAMES.get(asked, "unknown"), _RESPONSE_NAMES.get(code, str(code)))
            yield (_REMOTING, *names, held, "oneway" if oneway else "success"), histogram.buckets()


@dataclass(slots=True)
class Lag:
    """How far a group is in a topic; times in ms, messages summed over the queues."""

    group: str
    topic: str
    behind: int = 0
    behind_ms: int = 0
    in_flight: int = 0
    queueing_ms: int = 0
    ready: int = 0

    @property
    def labels(self) -> tuple[str, str, bool, bool]:
        return self.group, self.topic, False, is_system_topic(self.topic) or _of_system(self.group)


class BrokerMetrics:
    """One broker's metrics: `watch` its dispatcher, then `start`."""

    def __init__(self, broker: Broker, *, timer_ns: Callable[[], int] = time.perf_counter_ns) -> None:
        """Raises `ConfigError` when the exporter's package is missing."""
        self._broker = broker
        self._rpc = RpcMeter(timer_ns)
        self._lags: list[Lag] = []
        self._lags_ms: int | None = None
        config = broker.config
        self._enabled = config.metrics_exporter_type is not MetricsExporterType.DISABLE
        own = ("broker", config.broker_cluster_name, config.broker_name)
        self._exporter = Exporter(
            config,
            SCOPE,
            dict(zip(COMMON_LABELS, own, strict=True)),
            self.sources(),
            host=config.broker_ip1,
        )

    @property
    def port(self) -> int:
        """Where Prometheus is listened for; 0 with other exporters."""
        return self._exporter.port

    def watch(self, dispatcher: Dispatcher) -> None:
        """Time the requests of ports that do not listen yet."""
        if self._enabled:
            dispatcher.intercept(Interceptor(answered=self._rpc.answered))

    async def start(self) -> None:
        """Call when the broker's ports listen. Raises `OSError` when Prometheus' port is taken."""
        await self._exporter.start()

    async def stop(self) -> None:
        await self._exporter.stop()

    # -- what an exporter reads ----------------------------------------------------------------------------

    def sources(self) -> Mapping[Metric, Source]:
        broker, store = self._broker, self._broker.store
        return {
            MESSAGES_IN: lambda: self._received(TOPIC_PUT_NUMS),
            BYTES_IN: lambda: self._received(TOPIC_PUT_SIZE),
            MESSAGES_OUT: lambda: self._delivered(GROUP_GET_NUMS),
            BYTES_OUT: lambda: self._delivered(GROUP_GET_SIZE),
            RPC_LATENCY: self._rpc.latencies,
            PERMISSION: lambda: [((), broker.config.broker_permission)],
            TOPICS: lambda: [((), len(broker.topics))],
            GROUPS: lambda: [((), len(broker.subscriptions))],
            WATERMARK: lambda: [(("send",), broker.appender.backlog)],
            PRODUCERS: self._producers,
            CONSUMERS: self._consumers,
            LAG: lambda: self._lag(lambda lag: lag.behind),
            LAG_LATENCY: lambda: self._lag(lambda lag: lag.behind_ms),
            INFLIGHT: lambda: self._lag(lambda lag: lag.in_flight),
            QUEUEING: lambda: self._lag(lambda lag: lag.queueing_ms),
            READY: lambda: self._lag(lambda lag: lag.ready),
            STORAGE_SIZE: self._storage_size,
            FLUSH_BEHIND: lambda: [(_STORAGE_VALUES, max(0, store.max_offset - store.flushed_offset))],
            DISPATCH_BEHIND: lambda: [(_STORAGE_VALUES, max(0, store.max_offset - store.dispatched_offset))],
            RESERVE_TIME: self._reserve_time,
            IS_MASTER: lambda: [((), int(broker.role.is_master))],
            EPOCH: lambda: [((), broker.epoch)],
            IN_SYNC: lambda: [((), 1 if broker.ha is None else broker.ha.in_sync_replicas)],
            CONFIRM_BEHIND: lambda: [((), max(0, store.max_offset - store.confirm_offset))],
        }

    def _received(self, name: str) -> Iterable[Point]:
        for topic, total in self._broker.stats.totals(name):
            if not (is_retry_topic(topic) or is_dead_letter_topic(topic)):
                yield (topic, self._message_type(topic), is_system_topic(topic)), total

    def _message_type(self, topic: str) -> str:
        """By the topic, where RocketMQ looks at each message: what a FIFO topic gets is taken for fifo."""
        if topic == SCHEDULE_TOPIC:
            return "delay"
        if topic == TRANS_HALF_TOPIC:
            return "transaction"
        config = self._broker.topics.get(topic)
        declared = "" if config is None else config.attributes.get("message.type", "")
        return declared.lower() if declared and declared != "UNSPECIFIED" else "normal"

    def _delivered(self, name: str) -> Iterable[Point]:
        for key, total in self._broker.stats.totals(name):
            topic, _, group = key.rpartition("@")
            if not (is_retry_topic(topic) or is_dead_letter_topic(topic)):
                yield (topic, group, is_system_topic(topic) or is_system_group(group)), total

    def _producers(self) -> Iterable[Point]:
        counts = Counter(
            _client(member)
            for members in self._broker.producers.groups.values()
            for member in members.values()
        )
        return [((*client, _REMOTING), count) for client, count in counts.items()]

    def _consumers(self) -> Iterable[Point]:
        table = self._broker.consumers
        for name in list(table):
            group = table.group(name)
            if group is None:
                continue
            mode = _CONSUME_MODES.get(group.consume_type, "") if group.consume_type else ""
            for client, count in Counter(map(_client, group.members.values())).items():
                yield (name, mode, *client, _REMOTING, _of_system(name)), count

    async def _storage_size(self) -> Iterable[Point]:
        root = self._broker.store_config.root
        usage = await asyncio.get_running_loop().run_in_executor(None, shutil.disk_usage, root)
        return [(_STORAGE_VALUES, usage.used)]

    def _reserve_time(self) -> Iterable[Point]:
        earliest_ms = self._broker.store.earliest_message_time()
        if earliest_ms > 0:
            yield _STORAGE_VALUES, self._broker.clock.now_ms() - earliest_ms

    # -- how far consumers are -----------------------------------------------------------------------------

    async def _lag(self, value: Callable[[Lag], int]) -> Iterable[Point]:
        now_ms = self._broker.clock.monotonic_ms()
        if self._lags_ms is None or now_ms - self._lags_ms >= LAG_AGE_MS:
            self._lags = await sliced(self._walk())
            self._lags_ms = now_ms
        return [(lag.labels, value(lag)) for lag in self._lags]

    def _walk(self) -> Iterable[Lag]:
        """Connected groups and the topics they subscribe to, retry topics left out, as in RocketMQ."""
        broker = self._broker
        for group in list(broker.consumers):
            for topic in list(broker.consumers.subscriptions(group)):
                config = broker.topics.get(topic)
                if config is None or is_retry_topic(topic):
                    continue
                if config.perm & broker.config.broker_permission & (Perm.READ | Perm.WRITE):
                    yield self._measure(group, topic, config.write_queue_nums)

    def _measure(self, group: str, topic: str, queues: int) -> Lag:
        store, offsets = self._broker.store, self._broker.offsets
        lag = Lag(group, topic)
        unconsumed: list[int] = []
        unpulled: list[int] = []
        for queue_id in range(queues):
            end = store.queue_bounds(topic, queue_id).max_offset
            if not end:
                continue
            consumed = offsets.query(group, topic, queue_id)
            pulled = offsets.query_pulled(group, topic, queue_id)
            lag.behind += max(0, end - consumed) if consumed >= 0 else 0
            lag.ready += max(0, end - pulled) if pulled >= 0 else 0
            lag.in_flight += max(0, pulled - consumed) if consumed >= 0 else 0
            unconsumed.append(store.queue_store_time(topic, queue_id, consumed if consumed >= 0 else end))
            unpulled.append(store.queue_store_time(topic, queue_id, max(0, pulled)))
        now_ms = self._broker.clock.now_ms()
        lag.behind_ms = _age(now_ms, unconsumed)
        lag.queueing_ms = _age(now_ms, unpulled)
        return lag


def _of_system(group: str) -> bool:
    """As `is_system_group`, but in any case: RocketMQ's metrics are not of one mind."""
    return group.lower().startswith(SYSTEM_GROUP_PREFIX.lower())


def _age(now_ms: int, stored_ms: Iterable[int]) -> int:
    """Age of the oldest; 0 if there is none (-1: no such message)."""
    oldest = min((each for each in stored_ms if each > 0), default=0)
    return now_ms - oldest if oldest else 0


def _client(member: Member) -> tuple[str, str]:
    return LanguageCode(member.language).name.lower(), version_name(member.version)


_FIRST_REGULAR: Final = PROTOCOL_VERSION - 2 * (550 - 400)
"""Ordinal of V4_0_0: from there on each release has two versions, X_Y_Z_SNAPSHOT and X_Y_Z."""


def version_name(ordinal: int) -> str:
    """`v5_5_0` for 513: the name of an `MQVersion`, as RocketMQ's labels have it."""
    if ordinal < _FIRST_REGULAR - 1:
        return "v3"
    release, snapshot = divmod(ordinal - _FIRST_REGULAR + 1, 2)
    digits = f"{400 + release:d}"
    name = f"v{digits[:-2]}_{digits[-2]}_{digits[-1]}"
    return name if snapshot else f"{name}_snapshot"
