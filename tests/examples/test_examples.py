"""Every program of examples/ runs against a real cluster of processes and prints what it promises."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from batonmq.demo.cluster import LocalCluster
from batonmq.demo.group import Group

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
SETTINGS = {"mappedFileSizeCommitLog": 16 << 20, "maxHashSlotNum": 1_000, "maxIndexNum": 5_000}
MAX_LINES = 60

needs_java = pytest.mark.skipif(
    shutil.which("java") is None, reason="Spark needs a JRE >= 17, and there is no java on PATH"
)
Run = Callable[..., list[str]]


def needs_part(name: str) -> pytest.MarkDecorator:
    """Skips an example of a feature that this build's brokers do not have."""
    missing = importlib.util.find_spec(f"batonmq.broker.{name}") is None
    return pytest.mark.skipif(missing, reason=f"this build has no broker/{name}")


def lines_of(*command: str) -> list[str]:
    """What a command prints; it must end well."""
    outside = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=outside, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, f"{command}: {done.stdout}\n{done.stderr}"
    return done.stdout.splitlines()


async def until_in_sync(cluster: LocalCluster) -> None:
    group = Group(cluster.controller_addresses, cluster.broker_name)
    await group.wait_for(lambda state: len(state.sync_state_set) == 2, 30, "two replicas in sync")
    await group.close()


@pytest.fixture
def run(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Run]:
    """Runs an example with the name server of a cluster of this test; a parameter adds broker settings."""
    settings = {**SETTINGS, **getattr(request, "param", {})}
    with LocalCluster(tmp_path / "cluster", broker_settings=settings) as cluster:
        asyncio.run(until_in_sync(cluster))

        def run_example(name: str, *words: str) -> list[str]:
            return lines_of(f"examples/{name}.py", cluster.namesrv_address, *words)

        yield run_example


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_an_example_is_short_explains_itself_and_has_a_test(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= MAX_LINES
    assert text.startswith('"""') and f"examples/{path.name}" in text.split('"""')[1], "how is it run?"
    assert f"test_{path.stem}" in globals(), f"write test_{path.stem} that runs {path.name}"


def test_producer(run: Run) -> None:
    *single, batch = run("producer")
    assert [re.sub(r"queue \d+", "queue N", line) for line in single[:4]] == [
        f"order {number} is in queue N at offset 0" for number in range(4)
    ]
    assert len(single) == 8
    assert re.fullmatch(r"orders 8 and 9 are in queue \d from offset 2 on", batch)


def test_push_consumer(run: Run) -> None:
    run("producer")
    *handled, end = run("push_consumer", "10")
    assert sorted(line.split(" from ")[0] for line in handled) == [
        *(f"order {number} (paid)" for number in range(8)),
        *(f"order {number} (sent)" for number in (8, 9)),
    ]
    assert end == "10 messages handled"
    run("producer")
    assert run("push_consumer", "10")[-1] == "10 messages handled", "the group goes on where it was"


def test_ordered_consumer(run: Run) -> None:
    lines = run("ordered_consumer")
    assert sorted(lines[:3]) == [f"account {n}: step 2 fails and is tried again" for n in range(3)]
    assert lines[3:] == [f"account {n}: steps [0, 1, 2, 3, 4]" for n in range(3)]


def test_dead_letters(run: Run) -> None:
    assert run("dead_letters") == ["dead: letter-1, Dear Sir or Madam", "printed: Dear Sir or Madam"]


def test_tracing(run: Run) -> None:
    took, *traces = run("tracing")
    assert re.fullmatch(r"a normal message took \d+\.\d ms", took)
    assert sorted(traces) == [f"trace of parcel-1: {kind}" for kind in ("Pub", "SubAfter", "SubBefore")]


@needs_part("timer")
@pytest.mark.parametrize("run", [{"recallMessageEnable": "true"}], indirect=True)
def test_delayed_messages(run: Run) -> None:
    for _ in range(2):
        lines = run("delayed_messages")
        assert [line.split(",")[0] for line in lines] == [
            "the dentist is cancelled",
            "tea is ready",
            "the train leaves",
        ]


@needs_part("timer")
def test_delayed_messages_where_messages_cannot_be_recalled(run: Run) -> None:
    for _ in range(2):
        refused, *lines = run("delayed_messages")
        assert refused.startswith("the dentist is not cancelled: NO_PERMISSION (16)")
        assert [line.split(",")[0] for line in lines] == [
            "tea is ready",
            "the dentist waits",
            "the train leaves",
        ]


@needs_part("transaction")
def test_transactions(run: Run) -> None:
    assert run("transactions") == ["order 18: not enough money", "delivered: 17 paid"]


@needs_part("pop")
def test_simple_consumer(run: Run) -> None:
    assert run("simple_consumer") == [
        "image 3 has to wait a second",
        "images [0, 1, 2, 3, 4, 5] are done, 3 last",
    ]


@needs_part("pop")
def test_pop_consumer(run: Run) -> None:
    assert run("pop_consumer") == ["20 messages of one queue, each handled 1 time"]


@needs_part("messages.replies")
def test_request_reply(run: Run) -> None:
    assert run("request_reply") == ["1 2 3: 6", "40 2: 42", "nothing to add: nobody replies"]


@needs_part("sql")
@pytest.mark.parametrize("run", [{"enablePropertyFilter": "true"}], indirect=True)
def test_sql_selector(run: Run) -> None:
    for _ in range(2):
        assert run("sql_selector") == ["large sales in the eu: ['150 in eu', '250 in eu']"]


def test_cluster_in_a_test() -> None:
    lines = lines_of("-m", "pytest", "-q", "-p", "no:cacheprovider", "examples/cluster_in_a_test.py")
    assert lines[-1].startswith("1 passed")


@pytest.mark.spark
@needs_java
def test_spark_batch(run: Run) -> None:
    run("producer")
    assert run("spark_batch") == ["paid: 8 orders", "sent: 2 orders"]


@pytest.mark.spark
@needs_java
def test_spark_stream(run: Run, tmp_path: Path) -> None:
    run("producer")
    words = ("spark_stream", str(tmp_path / "archive"))
    assert run(*words) == ["10 new orders, 10 in all"]
    run("producer")
    assert run(*words) == ["10 new orders, 20 in all"]
