"""What a controller counts, without exporter or socket."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from batonmq.common.config import changeable_keys, keys_of
from batonmq.common.metrics import Metric
from batonmq.common.metrics_config import MetricsConfig, MetricsExporterType
from batonmq.controller import events
from batonmq.controller.config import ControllerConfig
from batonmq.controller.effects import Election
from batonmq.controller.handlers import Handlers
from batonmq.controller.heartbeat_handler import HeartbeatHandler
from batonmq.controller.heartbeats import LiveBroker
from batonmq.controller.metrics import (
    ACTIVE_BROKERS,
    ELECTIONS,
    LOG_LATENCY,
    METRICS,
    REQUEST_LATENCY,
    REQUEST_TYPES,
    ROLE,
    ROLE_VALUES,
    ControllerMetrics,
    MeasuredLog,
    RequestMeter,
    size_of_files,
)
from batonmq.controller.proposer import Proposer
from batonmq.controller.replicas import BrokerSet
from batonmq.net.dispatch import Dispatcher, Request
from batonmq.protocol.codes import RequestCode, ResponseCode
from batonmq.raft.errors import NotLeader
from batonmq.raft.state import Role


class Timer:
    def __init__(self) -> None:
        self.ns = 0

    def __call__(self) -> int:
        return self.ns


def request(code: int, arrived_ns: int) -> Request:
    return cast("Request", SimpleNamespace(command=SimpleNamespace(code=code), arrived_ns=arrived_ns))


def test_requests_are_counted_by_type_and_by_what_became_of_them() -> None:
    timer = Timer()
    meter = RequestMeter(timer)
    timer.ns = 1_000_000
    heartbeat, elect = RequestCode.BROKER_HEARTBEAT, RequestCode.CONTROLLER_ELECT_MASTER
    meter.answered(request(heartbeat, 1_000_000 - 2_999), 0)
    meter.answered(request(heartbeat, 0), 0)
    meter.answered(request(elect, 0), ResponseCode.CONTROLLER_NOT_LEADER)  # an answer like any other
    meter.answered(request(elect, 0), ResponseCode.SYSTEM_BUSY)
    meter.answered(request(elect, 0), ResponseCode.SYSTEM_ERROR)
    meter.answered(request(elect, 0), ResponseCode.CONTROLLER_JRAFT_INTERNAL_ERROR)
    meter.answered(request(RequestCode.RAFT_MESSAGE, 0), 0)
    meter.answered(request(4_711, 0), ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
    assert dict(meter.totals()) == {
        ("CONTROLLER_BROKER_HEARTBEAT", "success"): 2,
        ("CONTROLLER_ELECT_MASTER", "success"): 1,
        ("CONTROLLER_ELECT_MASTER", "failed"): 2,
        ("CONTROLLER_ELECT_MASTER", "timeout"): 1,
        ("", "success"): 1,
    }
    latencies = dict(meter.latencies())
    counts, total = cast("Any", latencies[("CONTROLLER_BROKER_HEARTBEAT",)])
    assert total == 2 + 1000  # whole microseconds, as in RocketMQ
    assert counts[REQUEST_LATENCY.bounds.index(3.0)] == 1
    assert counts[REQUEST_LATENCY.bounds.index(1000.0)] == 1
    assert sum(counts) == 2
    assert sum(cast("Any", latencies[("CONTROLLER_ELECT_MASTER",)]).counts) == 1


def test_every_request_that_a_controller_handles_has_a_type() -> None:
    dispatcher = Dispatcher()
    nothing: Any = None
    Handlers(nothing).register(dispatcher)
    HeartbeatHandler(*[nothing] * 7).register(dispatcher)
    assert set(dispatcher.handlers) <= {int(code) for code in REQUEST_TYPES}


class SlowLog:
    def __init__(self) -> None:
        self.answer: asyncio.Future[object] | BaseException | object = None

    async def propose(self, data: bytes) -> object:
        if isinstance(self.answer, asyncio.Future):
            return await self.answer
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


async def test_entries_are_counted_and_timed_and_one_that_nobody_waits_for_timed_out() -> None:
    timer, slow = Timer(), SlowLog()
    measured = MeasuredLog(slow, timer)
    slow.answer = ["done"]
    assert await measured.propose(b"") == ["done"]
    slow.answer = NotLeader(None)
    with pytest.raises(NotLeader):
        await measured.propose(b"")
    slow.answer = asyncio.get_running_loop().create_future()
    proposer = Proposer(
        measured, lambda: 1, decided=lambda outcome: None, coalesce_ms=0, timeout_ms=20, capacity=10
    )
    outcomes: list[Any] = []
    proposer.submit(events.Scan(True, False, False), outcomes.append)
    while not outcomes:
        await asyncio.sleep(0.005)
    assert outcomes[0].code == ResponseCode.CONTROLLER_JRAFT_INTERNAL_ERROR
    await proposer.close()
    assert dict(measured.totals()) == {
        ("append", "success"): 1,
        ("append", "failed"): 1,
        ("append", "timeout"): 1,
    }
    assert [labels for labels, _ in measured.latencies()] == [("append", "success")]


def election(broker_set: str, result: str) -> Election:
    return Election("c", broker_set, "scan", result, 1, 2, 2, 2, (1, 2), (2,), -1, False)


def service(kind: MetricsExporterType) -> Any:
    config = ControllerConfig(
        controller_d_leger_peers="n0-127.0.0.1:9877",
        controller_d_leger_self_id="n0",
        metrics_exporter_type=kind,
    )
    broker_set = BrokerSet("c", "a")
    live = [LiveBroker(0, 1_000, 1, 1, 0, 0, 0), LiveBroker(900, 1_000, 1, 1, 0, 0, 0)]
    broker_set.live = dict(enumerate(live))
    return SimpleNamespace(
        config=config,
        topology=config.topology(),
        machine=SimpleNamespace(broker_sets={"a": broker_set}, now_ms=950),
        node=SimpleNamespace(role=Role.FOLLOWER),
        leading=False,
        leader_now_ms=lambda: 1_500,
    )


def points(metrics: ControllerMetrics, metric: Metric) -> dict[Any, Any]:
    return dict(cast("Any", metrics.sources()[metric]()))


def test_elections_are_counted_by_result_until_their_broker_set_is_cleaned_away() -> None:
    controller = service(MetricsExporterType.PROM)
    metrics = ControllerMetrics(controller)
    for broker_set, result in (
        ("a", "new-master"),
        ("a", "kept-master"),
        ("a", "no-master"),
        ("a", "refused"),
        ("gone", "new-master"),
    ):
        metrics.elected(election(broker_set, result))
    for _ in range(2):
        assert points(metrics, ELECTIONS) == {
            ("c", "a", "new_master_elected"): 1,
            ("c", "a", "keep_current_master"): 1,
            ("c", "a", "no_master_elected"): 2,
        }
    controller.machine.broker_sets["gone"] = BrokerSet("c", "gone")
    assert points(metrics, ELECTIONS)["c", "gone", "new_master_elected"] == 0, "a cleaned set was kept"


def test_an_election_is_an_increase_also_when_it_is_the_first_that_this_leader_sees() -> None:
    metrics = ControllerMetrics(service(MetricsExporterType.PROM))
    assert points(metrics, ELECTIONS) == {("c", "a", "new_master_elected"): 0}
    metrics.elected(election("a", "new-master"))
    assert points(metrics, ELECTIONS) == {("c", "a", "new_master_elected"): 1}


def test_brokers_are_alive_by_the_leaders_time_and_elsewhere_by_that_of_the_last_entry() -> None:
    controller = service(MetricsExporterType.PROM)
    metrics = ControllerMetrics(controller)
    assert points(metrics, ACTIVE_BROKERS) == {("c", "a"): 2}
    controller.leading = True
    assert points(metrics, ACTIVE_BROKERS) == {("c", "a"): 1}


@pytest.mark.parametrize(
    ("role", "value"), [(Role.FOLLOWER, 2), (Role.PRE_CANDIDATE, 1), (Role.CANDIDATE, 1), (Role.LEADER, 3)]
)
def test_the_role_is_a_number(role: Role, value: int) -> None:
    controller = service(MetricsExporterType.PROM)
    controller.node.role = role
    assert points(ControllerMetrics(controller), ROLE) == {(): value}
    assert set(ROLE_VALUES) == set(Role)


async def test_disabled_metrics_leave_dispatcher_and_log_alone() -> None:
    metrics = ControllerMetrics(service(MetricsExporterType.DISABLE))
    dispatcher, log = Dispatcher(), SlowLog()
    metrics.watch(dispatcher)
    assert not dispatcher.interceptors
    assert metrics.watched(log) is log
    metrics.elected(election("a", "new-master"))
    assert set(points(metrics, ELECTIONS).values()) == {0} and points(metrics, LOG_LATENCY) == {}
    await metrics.start()
    await metrics.stop()


def test_the_size_of_a_directory_is_that_of_its_files(tmp_path: Path) -> None:
    (tmp_path / "raft" / "log").mkdir(parents=True)
    (tmp_path / "raft" / "log" / "1").write_bytes(b"12345")
    (tmp_path / "events.jsonl").write_bytes(b"123")
    (tmp_path / "vanished").symlink_to(tmp_path / "nowhere")
    assert size_of_files(tmp_path) == 8
    assert size_of_files(tmp_path / "nowhere") == 0


def test_the_keys_of_metrics_need_a_restart() -> None:
    assert changeable_keys(ControllerConfig).isdisjoint(keys_of([MetricsConfig]))
    assert {metric.name for metric in METRICS} == {
        "role",
        "dledger_disk_usage",
        "active_broker_num",
        "request_total",
        "dledger_op_total",
        "election_total",
        "request_latency",
        "dledger_op_latency",
    }
