"""Apache RocketMQ's Go client on our name server and brokers.

The program is `go/`; each verb is one scenario. ``INTEROP_SERVERS=java`` runs the same against RocketMQ's
servers.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from batonmq.admin.main import admin
from tests.interop.upstream.cluster import NAME, RunningCluster, System, running
from tests.interop.upstream.jars import home

SOURCE = Path(__file__).parent / "go"
SYSTEM: System = "java" if os.environ.get("INTEROP_SERVERS") == "java" else "ours"
COUNT = 32
SECONDS = 1000

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]


@pytest.fixture(scope="session")
def program() -> Path:
    """The program, built once for each state of its source."""
    if shutil.which("go") is None:
        pytest.skip("go is not installed; this test runs Apache RocketMQ's Go client")
    sources = sorted(path for path in SOURCE.iterdir() if path.suffix in (".go", ".mod", ".sum"))
    state = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]
    built = home() / f"goclient-{state}"
    if not built.exists():
        home().mkdir(parents=True, exist_ok=True)
        for old in home().glob("goclient-*"):
            old.unlink()
        done = subprocess.run(
            ["go", "build", "-o", built, "."], cwd=SOURCE, capture_output=True, text=True, check=False
        )
        if "proxyconnect" in done.stderr or "dial tcp" in done.stderr:
            pytest.skip(f"the Go client could not be fetched: {done.stderr[-300:]}")
        assert done.returncode == 0, done.stderr
    return built


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    keys: dict[str, object] = {
        "enablePropertyFilter": "false",
        "transactionCheckInterval": 1 * SECONDS,
        # Not below RocketMQ's transactionOpBatchInterval (3 s): it would check what is committed already.
        "transactionTimeOut": 6 * SECONDS,
    }
    with running(SYSTEM, tmp_path_factory.mktemp("go"), keys) as started:
        yield started


class GoClient:
    def __init__(self, program: Path, cluster: RunningCluster, directory: Path) -> None:
        self._program = program
        self._cluster = cluster
        self._log = directory / "go.log"

    def topic(self, name: str, queues: int = 4) -> str:
        """Creates it on all brokers."""
        words = ["updateTopic", "-n", self._cluster.namesrv, "-c", NAME, "-t", name]
        done = CliRunner().invoke(admin, [*words, "-r", str(queues), "-w", str(queues)])
        assert done.exit_code == 0, done.output
        return name

    def run(self, verb: str, *words: str, count: int = COUNT) -> dict[str, Any]:
        """What the scenario printed; fails the test if the client reported an error."""
        given = [verb, "-n", self._cluster.namesrv, "-group", f"go_{verb}", "-count", str(count), *words]
        done = subprocess.run(
            [self._program, *given],
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
            env={**os.environ, "ROCKETMQ_GO_LOG_PATH": str(self._log)},
        )
        log = self._log.read_text()[-3000:] if self._log.exists() else ""
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{log}"
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found


@pytest.fixture
def go(program: Path, cluster: RunningCluster, tmp_path: Path) -> GoClient:
    return GoClient(program, cluster, tmp_path)


def test_its_admin_creates_lists_and_deletes_topics(go: GoClient, cluster: RunningCluster) -> None:
    broker = next(iter(cluster.brokers.values()))
    found = go.run("admin", "-topic", "GoManaged", "-broker", broker)
    assert found["created"] and found["deleted"] and found["queues"] == 8, found


def test_quick_every_kind_of_its_sends_is_consumed_once(go: GoClient) -> None:
    found = go.run("send", "-topic", go.topic("GoSend"))
    assert found["complete"] and found["bodies"] == 3 * COUNT + 3, found
    assert found["async_failures"] == 0 and found["batch_ids"] == 2, found


def test_it_gets_its_tags_only_and_a_message_it_gave_back(go: GoClient) -> None:
    # It looks for its retry topic every 30 s.
    found = go.run("push", "-topic", go.topic("GoPush"), "-wait", "90s")
    assert found["complete"] and found["retried"], found
    assert found["foreign"] == 0 and found["bodies"] == COUNT // 2 and found["reconsume_times"] == ["1"], (
        found
    )


def test_messages_of_one_key_arrive_in_order(go: GoClient) -> None:
    found = go.run("order", "-topic", go.topic("GoOrder"))
    assert found["complete"] and found["keys"] == 4 and found["disordered"] == 0, found


def test_delayed_messages_arrive_after_their_delay(go: GoClient) -> None:
    found = go.run("delay", "-topic", go.topic("GoDelay"))
    assert found["complete"] and found["least_ms"] >= 1000, found


def test_timed_messages_arrive_at_their_time(go: GoClient) -> None:
    found = go.run("timer", "-topic", go.topic("GoTimer"))
    # A timer is as precise as timerPrecisionMs, one second.
    assert found["complete"] and found["least_ms"] >= 2000 and found["most_ms"] < 15_000, found


def test_transactions_are_committed_rolled_back_and_checked(go: GoClient) -> None:
    count = 12
    found = go.run("transaction", "-topic", go.topic("GoTransaction"), "-wait", "60s", count=count)
    assert found["complete"] and found["consumed"] == count * 2 // 3, found
    assert found["rolled_back"] == 0 and found["checks"] >= count // 3, found


def test_its_pull_consumer_continues_where_the_group_stopped(go: GoClient) -> None:
    found = go.run("pull", "-topic", go.topic("GoPull"))
    assert found["complete"] and found["second"] == 0, found


def test_its_traces_are_stored(go: GoClient) -> None:
    traces = go.topic("GoTraces")
    found = go.run("trace", "-topic", go.topic("GoTraced"), "-trace-topic", traces)
    assert found["complete"] and sorted(found["kinds"]) == ["Pub", "SubAfter", "SubBefore"], found


def test_its_requests_are_answered(go: GoClient) -> None:
    go.topic("GoRequest_warm")
    found = go.run("request", "-topic", go.topic("GoRequest"), count=5)
    # RocketMQ 5.5 fails on the empty replies, which are this client's own (NullPointerException).
    assert found["complete"] and found["reply_failures"] == 0, found
