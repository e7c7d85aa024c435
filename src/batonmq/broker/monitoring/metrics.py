"""The exporter of a broker's metrics, and the latency of its requests.

Each part declares its metrics in the ``metrics.py`` of its folder. Names, units and labels are those of
RocketMQ 5.5 (`BrokerMetricsConstant`, `DefaultStoreMetricsConstant`, `RemotingMetricsConstant`); an interop
test compares them with its exporter. Only the latency of requests is measured solely for the metrics: it
costs about 0.8 µs per request, and nothing with metricsExporterType=DISABLE.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from batonmq.common.metrics import Histogram, Kind, Metric, Point, Source
from batonmq.common.metrics_config import MetricsExporterType
from batonmq.common.metrics_exporter import Exporter
from batonmq.net.dispatch import Dispatcher, Request
from batonmq.net.interceptors import Interceptor
from batonmq.protocol.codes import RequestCode, ResponseCode

if TYPE_CHECKING:
    from batonmq.broker.config import BrokerConfig

SCOPE: Final = "broker-meter"
COMMON_LABELS: Final = ("node_type", "cluster", "node_id")
"""`broker`, the cluster's name, the broker set's name (brokerName)."""
_REMOTING: Final = "remoting"

RPC_LATENCY: Final = Metric(
    "rocketmq_rpc_latency",
    Kind.HISTOGRAM,
    "From reading a request to its answer",
    ("protocol_type", "request_code", "response_code", "is_long_polling", "result"),
    unit="milliseconds",
    bounds=(1.0, 3.0, 5.0, 7.0, 10.0, 100.0, 1000.0, 2000.0, 3000.0),
)
METRICS: Final = (RPC_LATENCY,)

_PULLS: Final = frozenset({int(RequestCode.PULL_MESSAGE), int(RequestCode.LITE_PULL_MESSAGE)})
_REQUEST_NAMES: Final = {int(code): code.name.lower() for code in RequestCode}
_RESPONSE_NAMES: Final = {int(code): code.name.lower() for code in ResponseCode}


class RpcMeter:
    """Times the answers of a dispatcher (`answered` is an interceptor). Hot path."""

    def __init__(self, timer_ns: Callable[[], int]) -> None:
        self._timer_ns = timer_ns
        self._series: dict[tuple[int, int, bool, bool], Histogram] = {}

    def answered(self, request: Request, code: int) -> None:
        asked = request.command.code
        # A pull that is still in flight was held: its answer did not follow at once.
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


class BrokerMetrics:
    """One broker's exporter: `watch` its dispatcher, then `start`."""

    def __init__(
        self,
        config: BrokerConfig,
        sources: Mapping[Metric, Source],
        *,
        timer_ns: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        """`sources`: those of all parts. Raises `ConfigError` if the exporter's package is missing."""
        self._rpc = RpcMeter(timer_ns)
        self._enabled = config.metrics_exporter_type is not MetricsExporterType.DISABLE
        own = ("broker", config.broker_cluster_name, config.broker_name)
        self._sources = {**sources, RPC_LATENCY: self._rpc.latencies}
        self._exporter = Exporter(
            config,
            SCOPE,
            dict(zip(COMMON_LABELS, own, strict=True)),
            self._sources,
            host=config.broker_ip1,
        )

    @property
    def port(self) -> int:
        """Where Prometheus scrapes; 0 with other exporters."""
        return self._exporter.port

    def sources(self) -> Mapping[Metric, Source]:
        """All sources that the exporter reads."""
        return self._sources

    def watch(self, dispatcher: Dispatcher) -> None:
        """Measure the requests of this dispatcher; call it before the ports listen."""
        if self._enabled:
            dispatcher.intercept(Interceptor(answered=self._rpc.answered))

    async def start(self) -> None:
        """Start exporting; the broker's ports listen. Raises `OSError` if Prometheus' port is in use."""
        await self._exporter.start()

    async def stop(self) -> None:
        await self._exporter.stop()
