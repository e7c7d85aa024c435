"""The exporter that a configuration asks for; the OpenTelemetry SDK is imported only then."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from batonmq.common.config import ConfigError
from batonmq.common.metrics import Metric, Source
from batonmq.common.metrics_config import MetricsConfig, MetricsExporterType

if TYPE_CHECKING:
    from batonmq.common.metrics_otel import OtelExporter


class Exporter:
    """Shows metrics as the configuration says; with DISABLE it does nothing and imports nothing."""

    def __init__(
        self,
        config: MetricsConfig,
        scope: str,
        labels: Mapping[str, str],
        sources: Mapping[Metric, Source],
        *,
        host: str,
    ) -> None:
        """`scope` is the OpenTelemetry meter's name, `labels` go to every metric, `host` is where Prometheus
        is listened for unless metricsPromExporterHost says so. Raises `ConfigError`: package missing."""
        self._exporter: OtelExporter | None = None
        if config.metrics_exporter_type is MetricsExporterType.DISABLE:
            return
        try:
            from batonmq.common.metrics_otel import OtelExporter
        except ModuleNotFoundError as missing:
            raise ConfigError(
                f"metricsExporterType={config.metrics_exporter_type.value} needs the package "
                f"{missing.name!r}: pip install 'batonmq[metrics]', or in a checkout 'make all'"
            ) from missing
        self._exporter = OtelExporter(config, scope, {**labels, **config.labels}, sources, host)

    @property
    def port(self) -> int:
        """The port that Prometheus is listened for on; 0 for other exporters."""
        return 0 if self._exporter is None else self._exporter.port

    async def start(self) -> None:
        """Raises `OSError`, naming the port, when it cannot be listened on."""
        if self._exporter is not None:
            await self._exporter.start()

    async def stop(self) -> None:
        """Exports what was counted since the last time (OTLP_GRPC, LOG)."""
        if self._exporter is not None:
            await self._exporter.stop()
