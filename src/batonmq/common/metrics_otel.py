"""Metrics to Prometheus, to an OpenTelemetry collector, or into the log, by the OpenTelemetry SDK.

Imported only when `metricsExporterType` asks for it; docs/observability.md gives its cost. The SDK and
the Prometheus client have their own threads, which ask the event loop only for numbers (see `metrics.py`).

Counters and gauges are the SDK's observable instruments. The SDK has no observable histogram, and recording
each value would cost some 20 µs of hot path: so the readers below add the program's own buckets to what the
SDK collected, at the place the SDK gives to its readers (`_receive_metrics`, documented for subclasses).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, cast

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import MeterProvider, ObservableCounter, ObservableGauge
from opentelemetry.sdk.metrics import export as sdk
from opentelemetry.sdk.resources import Resource
from prometheus_client import CollectorRegistry, make_wsgi_app

from batonmq.common.log import WHOLE
from batonmq.common.metrics import Buckets, Kind, LabelValues, Metric, Point, Source, read
from batonmq.common.metrics_config import MetricsConfig, MetricsExporterType
from batonmq.common.scrape_server import ScrapeServer

log = logging.getLogger(__name__)

READ_TIMEOUT_S = 5.0
"""How long the event loop may take to answer an exporter; a metric that comes later is left out."""

DELTA, CUMULATIVE = sdk.AggregationTemporality.DELTA, sdk.AggregationTemporality.CUMULATIVE


class OtelExporter:
    """Exports the metrics of one program."""

    def __init__(
        self,
        config: MetricsConfig,
        scope: str,
        labels: Mapping[str, str],
        sources: Mapping[Metric, Source],
        host: str,
    ) -> None:
        self._config = config
        self._scope = scope
        self._labels = dict(labels)
        self._sources = dict(sources)
        self._host = config.metrics_prom_exporter_host or host
        self._loop: asyncio.AbstractEventLoop
        self._provider: MeterProvider | None = None
        self._http: ScrapeServer | None = None

    @property
    def port(self) -> int:
        return 0 if self._http is None else self._http.server_port

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        config = self._config
        limit = config.metrics_otel_cardinality_limit
        limits: sdk.CardinalityLimits = {ObservableCounter: limit, ObservableGauge: limit}
        scrapes = config.metrics_exporter_type is MetricsExporterType.PROM
        # Prometheus only supports counting from the start.
        histograms = _Histograms(self, delta=config.metrics_in_delta and not scrapes)
        registry = CollectorRegistry()
        reader: _PrometheusReader | _PushReader
        if scrapes:
            reader = _PrometheusReader(registry=registry, cardinality_limits=limits)
        else:
            exporter, interval_ms = self._push()
            reader = _PushReader(
                exporter,
                export_interval_millis=interval_ms,
                export_timeout_millis=config.metric_grpc_exporter_time_out_in_mills,
                cardinality_limits=limits,
            )
        reader.completed = histograms.completed
        self._provider = MeterProvider([reader], resource=Resource.get_empty(), shutdown_on_exit=False)
        self._create_instruments(self._provider)
        if scrapes:
            self._http = self._listen(registry)
        where = f"{self._host}:{self.port}, path /metrics" if scrapes else config.metrics_grpc_exporter_target
        log.info("metrics: %s %s", config.metrics_exporter_type.value, where)

    async def stop(self) -> None:
        # In the executor: the last export asks the event loop for numbers, and waits for the collector.
        await asyncio.get_running_loop().run_in_executor(None, self._shut_down)

    def _shut_down(self) -> None:
        if self._http is not None:
            self._http.close()
        if self._provider is not None:
            self._provider.shutdown(timeout_millis=2 * self._config.metric_grpc_exporter_time_out_in_mills)

    # -- exporters ----------------------------------------------------------------------------------------

    def _listen(self, registry: CollectorRegistry) -> ScrapeServer:
        port = self._config.metrics_prom_exporter_port
        try:
            return ScrapeServer(self._host, port, make_wsgi_app(registry))
        except OSError as error:
            raise OSError(
                error.errno,
                f"cannot listen on {self._host}:{port} for Prometheus (metricsPromExporterPort): "
                f"{error.strerror or error}",
            ) from error

    def _push(self) -> tuple[sdk.MetricExporter, int]:
        """The exporter, and the time between its exports, ms."""
        config = self._config
        temporality: dict[type, sdk.AggregationTemporality] = {}
        if config.metrics_in_delta:
            temporality = {ObservableCounter: DELTA}
        if config.metrics_exporter_type is MetricsExporterType.LOG:
            return _LogExporter(temporality), config.metric_logging_exporter_interval_in_mills
        from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter

        target = config.metrics_grpc_exporter_target
        return (
            OTLPMetricExporter(
                endpoint=target if target.startswith("http") else f"https://{target}",
                headers=config.headers,
                timeout=config.metric_grpc_exporter_time_out_in_mills / 1000,
                preferred_temporality=temporality,
            ),
            config.metric_grpc_exporter_interval_in_mills,
        )

    # -- values -------------------------------------------------------------------------------------------

    def _create_instruments(self, provider: MeterProvider) -> None:
        meter = provider.get_meter(self._scope)
        create = {Kind.COUNTER: meter.create_observable_counter, Kind.GAUGE: meter.create_observable_gauge}
        for metric in self._sources:
            if metric.kind is not Kind.HISTOGRAM:
                observe = partial(self._observe, metric)
                create[metric.kind](metric.name, [observe], metric.unit, metric.help)

    def _observe(self, metric: Metric, options: CallbackOptions) -> Iterable[Observation]:
        return [
            Observation(cast("float", value), self.attributes(metric, labels))
            for labels, value in self.points(metric)
        ]

    def points(self, metric: Metric) -> list[Point]:
        """Called by exporters' threads; the event loop reads the values."""
        reading = asyncio.run_coroutine_threadsafe(read(self._sources[metric]), self._loop)
        try:
            return reading.result(READ_TIMEOUT_S)
        except TimeoutError:
            reading.cancel()
            raise TimeoutError(f"the event loop did not yield {metric.name} in {READ_TIMEOUT_S} s") from None

    def attributes(self, metric: Metric, labels: LabelValues) -> dict[str, str | bool]:
        own = dict(zip(metric.labels, labels, strict=True))
        if self._config.metrics_exporter_type is not MetricsExporterType.PROM:
            # In Prometheus an empty label is none. In OTLP it is one, which RocketMQ does not send.
            own = {name: value for name, value in own.items() if value != ""}
        return {**self._labels, **own}

    @property
    def histograms(self) -> list[Metric]:
        return [metric for metric in self._sources if metric.kind is Kind.HISTOGRAM]


class _Histograms:
    """Adds the program's histograms to what the SDK has collected."""

    def __init__(self, exporter: OtelExporter, *, delta: bool) -> None:
        self.delta = delta
        self._exporter = exporter
        self._since_ns = time.time_ns()
        self._last: dict[tuple[str, LabelValues], Buckets] = {}

    def completed(self, data: sdk.MetricsData) -> sdk.MetricsData:
        now_ns = time.time_ns()
        metrics = [self._metric(metric, now_ns) for metric in self._exporter.histograms]
        if self.delta:
            self._since_ns = now_ns
        (resource,) = data.resource_metrics
        (scope,) = resource.scope_metrics
        scope = replace(scope, metrics=[*scope.metrics, *(m for m in metrics if m.data.data_points)])
        return sdk.MetricsData([replace(resource, scope_metrics=[scope])])

    def _metric(self, metric: Metric, now_ns: int) -> sdk.Metric:
        points = [
            sdk.HistogramDataPoint(
                attributes=self._exporter.attributes(metric, labels),
                start_time_unix_nano=self._since_ns,
                time_unix_nano=now_ns,
                count=sum(buckets.counts),
                sum=buckets.sum,
                bucket_counts=buckets.counts,
                explicit_bounds=metric.bounds,
                # Optional in OTLP and not in Prometheus' model: not worth a comparison for each request.
                min=cast("float", None),
                max=cast("float", None),
            )
            for labels, buckets in self._series(metric)
        ]
        temporality = DELTA if self.delta else CUMULATIVE
        return sdk.Metric(metric.name, metric.help, metric.unit, sdk.Histogram(points, temporality))

    def _series(self, metric: Metric) -> Iterable[tuple[LabelValues, Buckets]]:
        try:
            points = self._exporter.points(metric)
        except Exception:
            # As the SDK does with an instrument that fails: the other metrics are still exported.
            log.exception("metric %s cannot be read", metric.name)
            return
        for labels, value in points:
            buckets = cast("Buckets", value)
            if self.delta:
                before = self._last.get((metric.name, labels))
                self._last[metric.name, labels] = buckets
                if before is not None:
                    counts = tuple(a - b for a, b in zip(buckets.counts, before.counts, strict=True))
                    buckets = Buckets(counts, buckets.sum - before.sum)
            yield labels, buckets


class _PrometheusReader(PrometheusMetricReader):
    completed: Callable[[sdk.MetricsData], sdk.MetricsData]

    def _receive_metrics(
        self, metrics_data: sdk.MetricsData, timeout_millis: float = 10_000, **kwargs: Any
    ) -> None:
        super()._receive_metrics(self.completed(metrics_data), timeout_millis, **kwargs)


class _PushReader(sdk.PeriodicExportingMetricReader):
    completed: Callable[[sdk.MetricsData], sdk.MetricsData]

    def _receive_metrics(
        self, metrics_data: sdk.MetricsData, timeout_millis: float = 10_000, **kwargs: Any
    ) -> None:
        super()._receive_metrics(self.completed(metrics_data), timeout_millis, **kwargs)


class _LogExporter(sdk.MetricExporter):
    """One log line per export: OTLP in JSON, as RocketMQ's LOG exporter writes it."""

    def __init__(self, temporality: dict[type, sdk.AggregationTemporality]) -> None:
        super().__init__(preferred_temporality=temporality)

    def export(
        self, metrics_data: sdk.MetricsData, timeout_millis: float = 10_000, **kwargs: Any
    ) -> sdk.MetricExportResult:
        from google.protobuf.json_format import MessageToJson
        from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics

        log.info("%s", MessageToJson(encode_metrics(metrics_data), indent=None), extra=WHOLE)
        return sdk.MetricExportResult.SUCCESS

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        return True

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:
        pass
