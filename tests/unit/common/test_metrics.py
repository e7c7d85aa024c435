"""Metrics on their way out: scraped by HTTP, sent to a real OTLP receiver, written to the log."""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import errno
import json
import logging
import queue
import socket
import socketserver
import threading
import time
import urllib.error
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2_grpc import (
    MetricsServiceServicer,
    add_MetricsServiceServicer_to_server,
)
from opentelemetry.proto.metrics.v1 import metrics_pb2
from tests.scrape import scrape

from batonmq.common import scrape_server
from batonmq.common.config import ConfigError
from batonmq.common.config_loader import build
from batonmq.common.metrics import Buckets, Histogram, Kind, Metric, Point, read
from batonmq.common.metrics_config import MetricsConfig, MetricsExporterType
from batonmq.common.metrics_exporter import Exporter
from batonmq.demo.ports import free_ports

DONE = Metric("done_total", Kind.COUNTER, "Things done", ("what", "well"))
WAITING = Metric("waiting", Kind.GAUGE, "Things waiting", unit="bytes")
TOOK = Metric("took", Kind.HISTOGRAM, "How long it took", ("what",), unit="us", bounds=(10.0, 100.0))


class Program:
    """Something with numbers; `thread` is the one that reads must happen in."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.done = 0
        self.took = Histogram(TOOK.bounds)
        self.broken = False
        self.what = "a"

    def _read(self, point: Point) -> list[Point]:
        assert threading.get_ident() == self.thread, "a source was read by a thread of the exporter"
        if self.broken:
            raise RuntimeError("no numbers today")
        return [point]

    async def _waiting(self) -> list[Point]:
        await asyncio.sleep(0)
        return [((), 7)]

    def exporter(self, **keys: Any) -> Exporter:
        return Exporter(
            MetricsConfig(**keys),
            "program",
            {"node": "n0"},
            {
                DONE: lambda: self._read(((self.what, True), self.done)),
                WAITING: self._waiting,
                TOOK: lambda: self._read(((self.what,), self.took.buckets())),
            },
            host="127.0.0.1",
        )

    def work(self, *took_us: float) -> None:
        self.done += len(took_us)
        for each in took_us:
            self.took.record(each)


# -- what is counted ---------------------------------------------------------------------------------------


def test_a_value_on_a_bound_belongs_to_the_bucket_below() -> None:
    histogram = Histogram((10.0, 100.0))
    for value in (0, 10, 11, 100, 101, 5000):
        histogram.record(value)
    assert histogram.buckets() == Buckets((2, 2, 2), 5222.0)
    assert histogram.count == 6


@pytest.mark.parametrize(
    ("metric", "shown"),
    [
        (DONE, "done_total"),
        (Metric("done", Kind.COUNTER, ""), "done_total"),
        (WAITING, "waiting_bytes"),
        (Metric("waiting_bytes", Kind.GAUGE, "", unit="bytes"), "waiting_bytes"),
        (TOOK, "took_microseconds"),
    ],
)
def test_the_name_that_prometheus_shows(metric: Metric, shown: str) -> None:
    assert metric.prometheus_name == shown


async def test_a_long_source_lets_others_have_their_turn() -> None:
    turns = 0

    def count() -> None:
        nonlocal turns
        turns += 1
        asyncio.get_running_loop().call_soon(count)

    def slow() -> Iterator[Point]:
        for number in range(4):
            time.sleep(0.003)
            yield (), number

    count()
    assert await read(slow) == [((), 0), ((), 1), ((), 2), ((), 3)]
    assert turns >= 4


# -- Prometheus --------------------------------------------------------------------------------------------


async def test_prometheus_scrapes_counters_gauges_and_histograms() -> None:
    program = Program()
    exporter = program.exporter(
        metrics_exporter_type=MetricsExporterType.PROM,
        metrics_prom_exporter_port=0,
        metrics_label="zone:a, rack : 7",
    )
    await exporter.start()
    try:
        program.work(5, 50, 500)
        labels = "node=n0,otel_scope_name=program,rack=7"
        took = f"{{{labels},what=a,zone=a}}"
        for factor in (1, 2):  # counts since the start, also in the second scrape
            samples = await asyncio.to_thread(scrape, exporter.port)
            assert samples.pop("target_info{}") == 1
            assert samples == {
                f"done_total{{{labels},well=true,what=a,zone=a}}": 3 * factor,
                f"waiting_bytes{{{labels},zone=a}}": 7,
                f"took_microseconds_bucket{{le=10.0,{labels},what=a,zone=a}}": factor,
                f"took_microseconds_bucket{{le=100.0,{labels},what=a,zone=a}}": 2 * factor,
                f"took_microseconds_bucket{{le=+Inf,{labels},what=a,zone=a}}": 3 * factor,
                f"took_microseconds_count{took}": 3 * factor,
                f"took_microseconds_sum{took}": 555 * factor,
            }
            program.work(5, 50, 500)
    finally:
        await exporter.stop()
    with pytest.raises(urllib.error.URLError):
        await asyncio.to_thread(scrape, exporter.port)


async def test_a_metric_that_cannot_be_read_leaves_the_others(caplog: pytest.LogCaptureFixture) -> None:
    program = Program()
    program.broken = True
    exporter = program.exporter(metrics_exporter_type=MetricsExporterType.PROM, metrics_prom_exporter_port=0)
    await exporter.start()
    try:
        samples = await asyncio.to_thread(scrape, exporter.port)
    finally:
        await exporter.stop()
    assert [name.partition("{")[0] for name in samples] == ["target_info", "waiting_bytes"]
    failed = [record.getMessage() for record in caplog.records if record.exc_info]
    assert failed == ["Callback failed for instrument done_total.", "metric took cannot be read"]


async def test_connections_that_ask_nothing_are_bounded_and_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrape_server, "MAX_CONNECTIONS", 3)
    monkeypatch.setattr(scrape_server._Handler, "timeout", 2.0)
    exporter = Program().exporter(
        metrics_exporter_type=MetricsExporterType.PROM, metrics_prom_exporter_port=0
    )
    threads = threading.active_count()
    await exporter.start()
    with contextlib.ExitStack() as stack:

        def connect() -> socket.socket:
            return stack.enter_context(socket.create_connection(("127.0.0.1", exporter.port), 5))

        silent = [connect() for _ in range(3)]
        for _ in range(20):
            with contextlib.suppress(ConnectionResetError):
                assert await asyncio.to_thread(connect().recv, 1) == b"", "closed unanswered"
        assert threading.active_count() <= threads + 6, "the server, three connections, to_thread's"
        silent[-1].setblocking(False)
        with pytest.raises(BlockingIOError):  # so the others did not wait for their time
            silent[-1].recv(1)
        silent[-1].setblocking(True)
        for each in silent:
            assert await asyncio.to_thread(each.recv, 1) == b"", "after its time"
        while True:  # the last thread may still be at its end
            try:
                assert await asyncio.to_thread(scrape, exporter.port)
                break
            except OSError:
                await asyncio.sleep(0.05)
    await exporter.stop()


async def test_a_peer_that_sends_a_byte_now_and_then_keeps_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrape_server, "CONNECTION_S", 0.3)
    exporter = Program().exporter(
        metrics_exporter_type=MetricsExporterType.PROM, metrics_prom_exporter_port=0
    )
    await exporter.start()
    with socket.create_connection(("127.0.0.1", exporter.port), 5) as slow:
        slow.sendall(b"GET /metrics HTTP/1.0\r\nX: ")
        slow.setblocking(False)
        loop = asyncio.get_running_loop()
        began = loop.time()
        with contextlib.suppress(ConnectionError):
            while True:
                with contextlib.suppress(BlockingIOError):
                    assert slow.recv(100) == b""
                    break
                slow.send(b"x")
                assert loop.time() - began < 5, "it is still connected"
                await asyncio.sleep(0.05)
    await exporter.stop()


def test_a_peer_that_takes_no_answer_is_one_line_at_debug_level(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(scrape_server._Handler, "timeout", 0.2)
    caplog.set_level(logging.DEBUG, scrape_server.log.name)

    def large(environ: object, start_response: Any) -> list[bytes]:
        start_response("200 OK", [])
        return [bytes(64 << 20)]

    server = scrape_server.ScrapeServer("127.0.0.1", 0, large)
    with socket.create_connection(server.server_address[:2], 5) as peer:
        peer.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        deadline = time.monotonic() + 5
        while not caplog.records and time.monotonic() < deadline:
            time.sleep(0.02)
    server.close()
    (record,) = caplog.records
    assert (record.levelno, record.exc_info and record.exc_info[0]) == (logging.DEBUG, TimeoutError)
    assert capfd.readouterr().err == ""


def test_a_bug_in_the_answer_is_logged_and_answered(caplog: pytest.LogCaptureFixture) -> None:
    def broken(environ: object, start_response: object) -> list[bytes]:
        raise RuntimeError("a bug")

    server = scrape_server.ScrapeServer("127.0.0.1", 0, broken)
    with socket.create_connection(server.server_address[:2], 5) as peer:
        peer.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        assert peer.recv(100).startswith(b"HTTP/1.0 500 ")
    server.close()
    assert "RuntimeError: a bug" in caplog.text


async def test_a_connection_that_cannot_be_accepted_does_not_keep_a_core_busy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With too many open files it stays in the queue, and the port readable."""
    failed: list[float] = []

    def none_left(server: object) -> None:
        failed.append(time.monotonic())
        raise OSError(errno.EMFILE, "Too many open files")

    exporter = Program().exporter(
        metrics_exporter_type=MetricsExporterType.PROM, metrics_prom_exporter_port=0
    )
    await exporter.start()
    with monkeypatch.context() as patch:
        patch.setattr(socketserver.TCPServer, "get_request", none_left)
        with socket.create_connection(("127.0.0.1", exporter.port), 5):
            await asyncio.sleep(0.5)
    assert 1 <= len(failed) < 10
    assert await asyncio.to_thread(scrape, exporter.port)
    await exporter.stop()


async def test_a_taken_port_is_said_in_one_line() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        exporter = Program().exporter(
            metrics_exporter_type=MetricsExporterType.PROM, metrics_prom_exporter_port=port
        )
        with pytest.raises(OSError, match=rf"127.0.0.1:{port} .*metricsPromExporterPort.*in use"):
            await exporter.start()
        await exporter.stop()


# -- OTLP --------------------------------------------------------------------------------------------------


class Receiver(MetricsServiceServicer):
    """A collector: a real gRPC server on a real port."""

    def __init__(self) -> None:
        self.exports: queue.Queue[tuple[dict[str, Any], ExportMetricsServiceRequest]] = queue.Queue()
        self._server = grpc.server(ThreadPoolExecutor(2))
        add_MetricsServiceServicer_to_server(self, self._server)
        self.port = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()

    def Export(self, request: ExportMetricsServiceRequest, context: Any) -> ExportMetricsServiceResponse:
        self.exports.put((dict(context.invocation_metadata()), request))
        return ExportMetricsServiceResponse()

    async def next(self) -> tuple[dict[str, Any], dict[str, metrics_pb2.Metric]]:
        """Headers and metrics by name of the next export."""
        headers, request = await asyncio.to_thread(self.exports.get, timeout=10)
        (resource,) = request.resource_metrics
        (scope,) = resource.scope_metrics
        assert scope.scope.name == "program" and not resource.resource.attributes
        return headers, {metric.name: metric for metric in scope.metrics}

    def stop(self) -> None:
        self._server.stop(None).wait()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.stop()


def attributes(point: Any) -> dict[str, Any]:
    return {
        pair.key: pair.value.bool_value if pair.value.HasField("bool_value") else pair.value.string_value
        for pair in point.attributes
    }


def number(metrics: dict[str, metrics_pb2.Metric]) -> int:
    return int(metrics["done_total"].sum.data_points[0].as_int)


def buckets(metrics: dict[str, metrics_pb2.Metric]) -> list[int]:
    return list(metrics["took"].histogram.data_points[0].bucket_counts)


@pytest.mark.parametrize("delta", [False, True])
async def test_a_collector_receives_metrics_by_grpc(receiver: Receiver, delta: bool) -> None:
    program = Program()
    exporter = program.exporter(
        metrics_exporter_type=MetricsExporterType.OTLP_GRPC,
        metrics_grpc_exporter_target=f"http://127.0.0.1:{receiver.port}",
        metrics_grpc_exporter_header="Authorization:Bearer t0ken,tenant:blue",
        metric_grpc_exporter_interval_in_mills=200,
        metrics_in_delta=delta,
    )
    program.work(5, 50, 500)
    await exporter.start()
    headers, first = await receiver.next()
    program.work(5)
    done_seen, took_seen = number(first), buckets(first)
    while (done_seen, took_seen) != (4, [2, 1, 1]):  # one of the two may show it an export later
        _, seen = await receiver.next()
        since = seen["took"].histogram.data_points[0].start_time_unix_nano
        if delta:
            done_seen += number(seen)
            took_seen = [a + b for a, b in zip(took_seen, buckets(seen), strict=True)]
        else:
            done_seen, took_seen = number(seen), buckets(seen)
    await exporter.stop()

    assert headers["authorization"] == "Bearer t0ken" and headers["tenant"] == "blue"
    extra = {"aggregation": "delta"} if delta else {}
    temporality = (
        metrics_pb2.AGGREGATION_TEMPORALITY_DELTA if delta else metrics_pb2.AGGREGATION_TEMPORALITY_CUMULATIVE
    )

    (done,) = first["done_total"].sum.data_points
    assert done.as_int == 3 and attributes(done) == {"node": "n0", "what": "a", "well": True, **extra}
    assert first["done_total"].sum.is_monotonic
    assert first["done_total"].sum.aggregation_temporality == temporality

    (waiting,) = first["waiting"].gauge.data_points
    assert waiting.as_int == 7 and first["waiting"].unit == "bytes"
    assert attributes(waiting) == {"node": "n0", **extra}

    (took,) = first["took"].histogram.data_points
    assert (list(took.bucket_counts), took.sum, took.count) == ([1, 1, 1], 555, 3)
    assert list(took.explicit_bounds) == [10, 100] and first["took"].unit == "us"
    assert attributes(took) == {"node": "n0", "what": "a", **extra}
    assert first["took"].histogram.aggregation_temporality == temporality
    assert took.start_time_unix_nano < took.time_unix_nano

    assert since >= took.time_unix_nano if delta else since == took.start_time_unix_nano


async def test_a_stop_sends_what_was_counted_last(receiver: Receiver) -> None:
    program = Program()
    exporter = program.exporter(
        metrics_exporter_type=MetricsExporterType.OTLP_GRPC,
        metrics_grpc_exporter_target=f"http://127.0.0.1:{receiver.port}",
    )
    await exporter.start()
    program.work(5)
    await exporter.stop()
    _, metrics = await receiver.next()
    assert number(metrics) == 1
    assert receiver.exports.empty()


async def test_a_program_stops_though_its_collector_is_gone(caplog: pytest.LogCaptureFixture) -> None:
    (port,) = free_ports(1)
    exporter = Program().exporter(
        metrics_exporter_type=MetricsExporterType.OTLP_GRPC,
        metrics_grpc_exporter_target=f"http://127.0.0.1:{port}",
        metric_grpc_exporter_time_out_in_mills=300,
    )
    await exporter.start()
    began = time.monotonic()
    await exporter.stop()
    assert time.monotonic() - began < 5
    assert "Failed to export metrics" in caplog.text


# -- the log, and nothing ----------------------------------------------------------------------------------


async def test_metrics_in_the_log_are_otlp_in_json(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    program = Program()
    exporter = program.exporter(
        metrics_exporter_type=MetricsExporterType.LOG, metric_logging_exporter_interval_in_mills=60_000
    )
    await exporter.start()
    program.work(5, 50)
    await exporter.stop()
    (line,) = [record.message for record in caplog.records if record.message.startswith("{")]
    (scope,) = json.loads(line)["resourceMetrics"][0]["scopeMetrics"]
    metrics = {metric["name"]: metric for metric in scope["metrics"]}
    assert metrics["done_total"]["sum"]["dataPoints"][0]["asInt"] == "2"
    assert metrics["took"]["histogram"]["dataPoints"][0]["bucketCounts"] == ["1", "1", "0"]


async def test_a_disabled_exporter_imports_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    real_import = builtins.__import__

    def refuse(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("opentelemetry") or name == "batonmq.common.metrics_otel":
            raise ModuleNotFoundError(f"No module named {name!r}", name="opentelemetry")
        return real_import(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)
    exporter = Program().exporter()
    await exporter.start()
    assert exporter.port == 0
    await exporter.stop()
    with pytest.raises(ConfigError, match=r"=PROM needs .*'opentelemetry'.*batonmq\[metrics\]"):
        Program().exporter(metrics_exporter_type=MetricsExporterType.PROM)


async def test_a_label_without_a_value_is_absent_in_otlp_as_in_rocketmq(receiver: Receiver) -> None:
    program = Program()
    program.what = ""
    program.work(5)
    exporter = program.exporter(
        metrics_exporter_type=MetricsExporterType.OTLP_GRPC,
        metrics_grpc_exporter_target=f"http://127.0.0.1:{receiver.port}",
        metric_grpc_exporter_interval_in_mills=200,
    )
    await exporter.start()
    _, seen = await receiver.next()
    await exporter.stop()
    (done,) = seen["done_total"].sum.data_points
    (took,) = seen["took"].histogram.data_points
    assert (attributes(done), attributes(took)) == ({"node": "n0", "well": True}, {"node": "n0"})


# -- keys --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "complaint"),
    [
        ({"metricsExporterType": "STATSD"}, "expected one of DISABLE, OTLP_GRPC, PROM, LOG"),
        ({"metricsExporterType": "OTLP_GRPC"}, "needs metricsGrpcExporterTarget"),
        ({"metricsPromExporterPort": "70000"}, "metricsPromExporterPort=70000"),
        ({"metricsLabel": "zone"}, "metricsLabel=zone: .* has no colon"),
        ({"metricsLabel": "my-zone:a"}, "'my-zone' is not a label name"),
        ({"metricsGrpcExporterHeader": "bad name:a"}, "'bad name' is not a gRPC header name"),
        ({"metricsGrpcExporterHeader": "token-bin:YQ=="}, "token-bin: names that end with -bin"),
        (
            {"metricsGrpcExporterHeader": "authorization:s3cret-\xe4"},
            "of authorization .* printable ASCII",
        ),
        ({"metricsGrpcExporterHeader": "authorization=Bearer s3cret"}, "part 1 of 1 has no colon"),
        ({"metricsGrpcExporterHeader": "a:1,s3cret"}, "part 2 of 2 has no colon"),
        ({"metricsOtelCardinalityLimit": "0"}, "metricsOtelCardinalityLimit=0: must be at least 1"),
    ],
)
def test_values_that_do_not_fit_are_refused(keys: dict[str, str], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint) as raised:
        build({key: (value, "a.conf") for key, value in keys.items()}, MetricsConfig)
    assert "s3cret" not in str(raised.value)
