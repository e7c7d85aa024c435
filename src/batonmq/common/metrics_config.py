"""Keys for the export of metrics; controller and broker inherit them.

Spelling, defaults and units are RocketMQ's (`ControllerConfig`, `BrokerConfig`).
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass, field
from enum import Enum

from batonmq.common.config import check_limits, number, require

log = logging.getLogger(__name__)

_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*\Z")
_HEADER = re.compile(r"[a-z0-9_.-]+\Z")


class MetricsExporterType(Enum):
    """Where metrics go."""

    DISABLE = "DISABLE"
    OTLP_GRPC = "OTLP_GRPC"
    PROM = "PROM"
    LOG = "LOG"


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsConfig:
    """Which exporter, and how it is reached."""

    metrics_exporter_type: MetricsExporterType = MetricsExporterType.DISABLE
    """DISABLE; PROM: Prometheus scrapes metricsPromExporterPort; OTLP_GRPC: send to
    metricsGrpcExporterTarget; LOG: write to the log."""
    metrics_prom_exporter_port: int = number(5557, 0, 65_535)
    """Port that Prometheus scrapes, path /metrics (PROM). Programs on one host need different ports."""
    metrics_prom_exporter_host: str = ""
    """Local address of that port; empty: bindAddress for a controller, brokerIP1 for a broker."""
    metrics_grpc_exporter_target: str = ""
    """OpenTelemetry collector, `http://host:port`; without a scheme: TLS (OTLP_GRPC)."""
    metrics_grpc_exporter_header: str = field(default="", metadata={"secret": True})
    """Headers of each export, `name:value,name:value` (OTLP_GRPC)."""
    metric_grpc_exporter_time_out_in_mills: int = number(3_000, 10)
    """How long an export may take, ms (OTLP_GRPC)."""
    metric_grpc_exporter_interval_in_mills: int = number(60_000, 10)
    """Time between exports, ms (OTLP_GRPC)."""
    metric_logging_exporter_interval_in_mills: int = number(10_000, 10)
    """Time between log lines, ms (LOG)."""
    metrics_label: str = ""
    """Labels added to every metric, `name:value,name:value`."""
    metrics_in_delta: bool = False
    """Counters and histograms count from export to export (OTLP_GRPC, LOG), not from the start."""
    metrics_otel_cardinality_limit: int = number(50_000, 1)
    """Label combinations of one metric; further ones are summed under `otel_metric_overflow`."""

    def __post_init__(self) -> None:
        check_limits(self)
        kind = self.metrics_exporter_type
        require(
            kind is not MetricsExporterType.OTLP_GRPC or bool(self.metrics_grpc_exporter_target),
            "metricsExporterType=OTLP_GRPC needs metricsGrpcExporterTarget, e.g. http://127.0.0.1:4317",
        )
        for name in self.labels:
            require(
                _LABEL.match(name) is not None,
                f"metricsLabel: {name!r} is not a label name: letters, digits and _, no digit first",
            )
        for name, value in self.headers.items():
            require(
                _HEADER.match(name) is not None,
                f"metricsGrpcExporterHeader: {name!r} is not a gRPC header name: letters, digits, - _ and .",
            )
            require(
                not name.endswith("-bin"),
                f"metricsGrpcExporterHeader: {name}: names that end with -bin have binary values in gRPC",
            )
            require(
                value.isascii() and value.isprintable(),
                f"metricsGrpcExporterHeader: the value of {name} is not of printable ASCII characters",
            )

    @property
    def labels(self) -> dict[str, str]:
        """The labels of metricsLabel, and `aggregation` when counting in deltas."""
        labels = _pairs("metricsLabel", self.metrics_label)
        if self.metrics_in_delta:
            labels["aggregation"] = "delta"
        return labels

    @property
    def headers(self) -> dict[str, str]:
        """The headers of metricsGrpcExporterHeader; gRPC requires lower-case names."""
        pairs = _pairs("metricsGrpcExporterHeader", self.metrics_grpc_exporter_header, secret=True)
        return {name.lower(): value for name, value in pairs.items()}


def _pairs(key: str, text: str, *, secret: bool = False) -> dict[str, str]:
    """Name -> value. Complaints do not show a secret `text`."""
    pairs: dict[str, str] = {}
    parts = text.split(",")
    for place, part in enumerate(parts, 1):
        if part.strip():
            name, colon, value = part.partition(":")
            found = f"part {place} of {len(parts)}" if secret else repr(part)
            shown = key if secret else f"{key}={text}"
            require(bool(colon), f"{shown}: expected name:value,name:value, {found} has no colon")
            pairs[name.strip()] = value.strip()
    return pairs
