"""Metrics of a controller, RocketMQ's (`ControllerMetricsConstant`).

Names, units, labels and buckets are those of RocketMQ 5.5, as an interop test checks against its exporter.
With metricsExporterType=DISABLE nothing below runs for a request.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final, Protocol

from batonmq.common.metrics import Histogram, Kind, Metric, Point, Source
from batonmq.common.metrics_config import MetricsExporterType
from batonmq.common.metrics_exporter import Exporter
from batonmq.controller.config import ControllerConfig, Topology
from batonmq.controller.effects import Election
from batonmq.controller.machine import ControllerMachine
from batonmq.controller.proposer import Log
from batonmq.net.dispatch import Dispatcher, Request
from batonmq.net.interceptors import Interceptor
from batonmq.protocol.codes import RequestCode, ResponseCode
from batonmq.raft.node import RaftNode
from batonmq.raft.state import Role

SCOPE: Final = "controller"
COMMON_LABELS: Final = ("address", "group", "peer_id")
"""Raft address of this controller, its group, its id."""

_LATENCY_US: Final = (
    *(float(value * 10**exponent) for exponent in range(7) for value in (1, 3, 5)),
    float(10**7),
)

ROLE: Final = Metric("role", Kind.GAUGE, "0 unknown, 1 candidate, 2 follower, 3 leader")
DISK_USAGE: Final = Metric(
    "dledger_disk_usage", Kind.GAUGE, "Size of the files below controllerStorePath", unit="bytes"
)
ACTIVE_BROKERS: Final = Metric(
    "active_broker_num", Kind.GAUGE, "Living replicas of a broker set", ("cluster", "broker_set")
)
REQUESTS: Final = Metric(
    "request_total", Kind.COUNTER, "Requests answered", ("request_type", "request_handle_status")
)
LOG_OPERATIONS: Final = Metric(
    "dledger_op_total",
    Kind.COUNTER,
    "Entries given to the Raft log; one carries all events of a moment",
    ("dledger_operation", "dLedger_operation_status"),
)
ELECTIONS: Final = Metric(
    "election_total",
    Kind.COUNTER,
    "Elections of a master, by result",
    ("cluster", "broker_set", "election_result"),
)
REQUEST_LATENCY: Final = Metric(
    "request_latency",
    Kind.HISTOGRAM,
    "From reading a request to its answer, requests that succeeded",
    ("request_type",),
    unit="us",
    bounds=_LATENCY_US,
)
LOG_LATENCY: Final = Metric(
    "dledger_op_latency",
    Kind.HISTOGRAM,
    "From giving an entry to the Raft log until it is applied, entries that were",
    ("dledger_operation", "dLedger_operation_status"),
    unit="us",
    bounds=_LATENCY_US,
)
METRICS: Final = (
    ROLE,
    DISK_USAGE,
    ACTIVE_BROKERS,
    REQUESTS,
    LOG_OPERATIONS,
    ELECTIONS,
    REQUEST_LATENCY,
    LOG_LATENCY,
)

ROLE_VALUES: Final = {Role.PRE_CANDIDATE: 1, Role.CANDIDATE: 1, Role.FOLLOWER: 2, Role.LEADER: 3}

REQUEST_TYPES: Final = {
    code: code.name if code.name.startswith("CONTROLLER_") else f"CONTROLLER_{code.name}"
    for code in (
        RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET,
        RequestCode.CONTROLLER_ELECT_MASTER,
        RequestCode.CONTROLLER_REGISTER_BROKER,
        RequestCode.CONTROLLER_GET_REPLICA_INFO,
        RequestCode.CONTROLLER_GET_METADATA_INFO,
        RequestCode.CONTROLLER_GET_SYNC_STATE_DATA,
        RequestCode.BROKER_HEARTBEAT,
        RequestCode.UPDATE_CONTROLLER_CONFIG,
        RequestCode.GET_CONTROLLER_CONFIG,
        RequestCode.CLEAN_BROKER_DATA,
        RequestCode.CONTROLLER_GET_NEXT_BROKER_ID,
        RequestCode.CONTROLLER_APPLY_BROKER_ID,
        RequestCode.GET_CONTROLLER_MEMBERS,
        RequestCode.ADD_CONTROLLER,
        RequestCode.REMOVE_CONTROLLER,
        RequestCode.TRANSFER_CONTROLLER_LEADERSHIP,
        RequestCode.FORWARD_TO_LEADER,
    )
}
"""Values of `request_type`."""
SUCCESS, FAILED, TIMEOUT = "success", "failed", "timeout"
_HANDLE_STATUS: Final = {
    int(ResponseCode.SYSTEM_ERROR): FAILED,
    int(ResponseCode.SYSTEM_BUSY): FAILED,
    int(ResponseCode.CONTROLLER_JRAFT_INTERNAL_ERROR): TIMEOUT,
}
"""A refusal by the rules is a success, as in RocketMQ; a failure is a request that was not handled, a timeout
one whose outcome was not known in time."""
NEW_MASTER: Final = "new_master_elected"
_ELECTION_RESULTS: Final = {
    "new-master": NEW_MASTER,
    "kept-master": "keep_current_master",
    "no-master": "no_master_elected",
    "refused": "no_master_elected",
}
_APPEND: Final = "append"


class _Requests:
    """The requests of one type."""

    __slots__ = ("failed", "latency", "success", "timeout", "type")

    def __init__(self, request_type: str) -> None:
        self.type = request_type
        self.success = self.failed = self.timeout = 0
        self.latency = Histogram(_LATENCY_US)


class RequestMeter:
    """Counts the answers of a dispatcher (`answered` is an interceptor). Hot path: some 0.7 µs a request."""

    def __init__(self, timer_ns: Callable[[], int]) -> None:
        self._timer_ns = timer_ns
        self._types = {int(code): _Requests(name) for code, name in REQUEST_TYPES.items()}
        self._others = _Requests("")

    def answered(self, request: Request, code: int) -> None:
        requests = self._types.get(request.command.code)
        if requests is None:
            if request.command.code == RequestCode.RAFT_MESSAGE:
                return  # on the same port, but nobody's request
            requests = self._others
        status = _HANDLE_STATUS.get(code)
        if status is None:
            requests.success += 1
            requests.latency.record((self._timer_ns() - request.arrived_ns) // 1000)
        elif status is FAILED:
            requests.failed += 1
        else:
            requests.timeout += 1

    def totals(self) -> Iterable[Point]:
        for each in (*self._types.values(), self._others):
            for status, count in ((SUCCESS, each.success), (FAILED, each.failed), (TIMEOUT, each.timeout)):
                if count:
                    yield (each.type, status), count

    def latencies(self) -> Iterable[Point]:
        for each in (*self._types.values(), self._others):
            if each.success:
                yield (each.type,), each.latency.buckets()


class MeasuredLog:
    """A `Log` that counts the entries given to another one, and times them."""

    def __init__(self, log: Log, timer_ns: Callable[[], int]) -> None:
        self._log = log
        self._timer_ns = timer_ns
        self._counts = {SUCCESS: 0, FAILED: 0, TIMEOUT: 0}
        self._latency = Histogram(_LATENCY_US)

    async def propose(self, data: bytes) -> object:
        began = self._timer_ns()
        try:
            result = await self._log.propose(data)
        except asyncio.CancelledError:  # the proposer waits no longer
            self._counts[TIMEOUT] += 1
            raise
        except Exception:
            self._counts[FAILED] += 1
            raise
        self._counts[SUCCESS] += 1
        self._latency.record((self._timer_ns() - began) // 1000)
        return result

    def totals(self) -> Iterable[Point]:
        for status, count in self._counts.items():
            if count:
                yield (_APPEND, status), count

    def latencies(self) -> Iterable[Point]:
        if self._counts[SUCCESS]:
            yield (_APPEND, SUCCESS), self._latency.buckets()


class Measured(Protocol):
    """The part of the service that the metrics read."""

    config: ControllerConfig
    topology: Topology
    machine: ControllerMachine
    node: RaftNode

    @property
    def leading(self) -> bool: ...
    def leader_now_ms(self) -> int: ...


class ControllerMetrics:
    """One controller's metrics: `watch` its dispatcher and its log, then `start`."""

    def __init__(self, controller: Measured, *, timer_ns: Callable[[], int] = time.perf_counter_ns) -> None:
        """Raises `ConfigError` when the exporter's package is missing."""
        self._controller = controller
        self._timer_ns = timer_ns
        self._requests = RequestMeter(timer_ns)
        self._log: MeasuredLog | None = None
        self._elections: dict[tuple[str, str, str], int] = {}
        config, topology = controller.config, controller.topology
        self._enabled = config.metrics_exporter_type is not MetricsExporterType.DISABLE
        own = (topology.raft_addresses[topology.self_id], topology.group, topology.self_id)
        self._exporter = Exporter(
            config,
            SCOPE,
            dict(zip(COMMON_LABELS, own, strict=True)),
            self.sources(),
            host=config.bind_address,
        )

    @property
    def port(self) -> int:
        """Where Prometheus is listened for; 0 with other exporters."""
        return self._exporter.port

    def watch(self, dispatcher: Dispatcher) -> None:
        """Count the requests of a port that does not listen yet."""
        if self._enabled:
            dispatcher.intercept(Interceptor(answered=self._requests.answered))

    def watched(self, log: Log) -> Log:
        """The log to propose to, so that its entries are counted."""
        if not self._enabled:
            return log
        self._log = MeasuredLog(log, self._timer_ns)
        return self._log

    def elected(self, election: Election) -> None:
        """This node, leading, saw an election decided."""
        if self._enabled:
            key = (election.cluster_name, election.broker_name, _ELECTION_RESULTS[election.result])
            self._elections[key] = self._elections.get(key, 0) + 1

    async def start(self) -> None:
        """Call when the node runs. Raises `OSError` when Prometheus' port is taken."""
        await self._exporter.start()

    async def stop(self) -> None:
        await self._exporter.stop()

    # -- what an exporter reads ----------------------------------------------------------------------------

    def sources(self) -> Mapping[Metric, Source]:
        return {
            ROLE: lambda: [((), ROLE_VALUES[self._controller.node.role])],
            DISK_USAGE: self._disk_usage,
            ACTIVE_BROKERS: self._active_brokers,
            REQUESTS: self._requests.totals,
            LOG_OPERATIONS: lambda: self._log.totals() if self._log else (),
            ELECTIONS: self._election_totals,
            REQUEST_LATENCY: self._requests.latencies,
            LOG_LATENCY: lambda: self._log.latencies() if self._log else (),
        }

    async def _disk_usage(self) -> Iterable[Point]:
        path = self._controller.config.store_path
        return [((), await asyncio.get_running_loop().run_in_executor(None, size_of_files, path))]

    def _active_brokers(self) -> Iterable[Point]:
        controller = self._controller
        machine = controller.machine
        now_ms = controller.leader_now_ms() if controller.leading else machine.now_ms
        for broker_set in list(machine.broker_sets.values()):
            alive = sum(live.is_alive(now_ms) for live in broker_set.live.values())
            yield (broker_set.cluster_name, broker_set.broker_name), alive

    def _election_totals(self) -> Iterable[Point]:
        known = self._controller.machine.broker_sets
        for key in list(self._elections):
            if key[1] not in known:  # cleaned away by an operator; names must not pile up here
                del self._elections[key]
        # From 0 on, on every controller: to Prometheus a series that begins with 1 has no increase, and the
        # first failover under a new leader would not show.
        zeros = {(each.cluster_name, each.broker_name, NEW_MASTER): 0 for each in list(known.values())}
        yield from {**zeros, **self._elections}.items()


def size_of_files(root: Path) -> int:
    """Bytes of all files below a directory; those that vanish meanwhile do not count."""
    total = 0
    for folder, _, names in os.walk(root):
        for name in names:
            try:
                total += (Path(folder) / name).stat().st_size
            except FileNotFoundError:
                continue  # a segment or snapshot that was dropped just now
    return total
