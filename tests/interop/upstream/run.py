"""Runs classes of RocketMQ's tests in JVMs against a running cluster."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.interop.upstream.cluster import RunningCluster
from tests.interop.upstream.jars import java_command
from tests.interop.upstream.results import PREFIX, Outcome, Outcomes, parse

RUNNER = "batonmq.upstream.Runner"
HEAP = "512m"
ENDED = "ENDED the JVM ended with "
EXPECTED = (f"{ENDED}0", f"{ENDED}75")
"""All classes ran, or one took too long (Runner.java)."""


@dataclass
class Run:
    """The outcomes so far, and what programs refused to change (NOTE lines)."""

    outcomes: Outcomes = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def run_classes(
    classes: Sequence[str],
    cluster: RunningCluster,
    work: Path,
    *,
    method_limit_s: int,
    class_limit_s: int,
    show: Callable[[str], None],
    run: Run,
) -> None:
    """All classes, in order. A JVM ends early after a test that took too long; the next one goes on.

    `run` grows, and `show` gets each line, as they come. What the tests print goes to ``tests.log`` below
    `work`.
    """
    left = list(classes)
    while left:
        limits = [str(method_limit_s), str(class_limit_s)]
        command = [*java_command(work, HEAP, cluster.properties), RUNNER, *limits, *left]
        before = len(left)
        for line in _lines(command, work):
            show(line)
            if (outcome := parse(line)) is not None:
                run.outcomes[outcome.name] = outcome
            elif line.startswith("NOTE "):
                run.notes.append(line.removeprefix("NOTE "))
            elif line == f"DONE {left[0]}":
                del left[0]
                if not left:
                    break
            elif line.startswith(ENDED) and (line not in EXPECTED or len(left) == before):
                name = f"{left.pop(0).removeprefix(PREFIX)}#*"  # inside that class
                run.outcomes[name] = Outcome("FAIL", name, reason=f"{line}; see tests.log")


def _lines(command: Sequence[str], work: Path) -> Iterator[str]:
    """What the command prints; at its end `ENDED` with the exit code."""
    with (work / "tests.log").open("ab") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, cwd=work)
    assert process.stdout is not None
    try:
        for line in process.stdout:
            yield line.decode(errors="replace").rstrip()
        yield f"{ENDED}{process.wait()}"
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
