"""How many stories were run: a line for each search in a file (option --tally), and the page made from them.

python -m tests.simulation tally FILE...     writes docs/reports/simulation.md
"""

from __future__ import annotations

import resource
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click
import msgspec

import batonmq

KINDS = {
    "clusters": "whole clusters: name server, controllers, brokers, clients",
    "guided": "whole clusters that branch off where others reached new states",
    "raft": "Raft groups alone",
    "replication": "replicas of a broker set alone, logs and controllers in memory",
    "controller": "controllers and their clients",
    "pop": "whole clusters with pop consumers",
    "acting": "slaves that act as master",
    "containers": "two containers crosswise",
    "returning": "strict locks, and masters that return",
    "static": "static topics whose queues move",
}
"""Each kind of story: its command (`clusters`: no command), and what it runs."""

REPORT = Path(__file__).parents[2] / "docs" / "reports" / "simulation.md"


class Line(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One search: the seeds from ``first`` on, ``seeds`` of them."""

    kind: str
    first: int
    seeds: int
    failed: list[int]
    seconds: float
    cpu_seconds: float
    """Processor time of the workers: other programs on the machine do not change it."""
    jobs: int
    commit: str
    """`-dirty` at its end: with changes that were not committed."""
    compiled: bool

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"no kind of story is called {self.kind!r}")


def commit() -> str:
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    return subprocess.run(
        command, cwd=Path(__file__).parent, check=True, text=True, capture_output=True
    ).stdout.strip()


@contextmanager
def counting(file: Path | None, kind: str, first: int, jobs: int) -> Iterator[Line]:
    """Count in the line's ``seeds`` and ``failed``; `file` gets the line, however the search ends."""
    line = Line(
        kind=kind,
        first=first,
        seeds=0,
        failed=[],
        seconds=0.0,
        cpu_seconds=0.0,
        jobs=jobs,
        commit=commit() if file is not None else "",
        compiled=batonmq.COMPILED,
    )
    began, spent = time.monotonic(), _workers_seconds()
    try:
        yield line
    finally:
        line.seconds = round(time.monotonic() - began, 3)
        line.cpu_seconds = round(_workers_seconds() - spent, 3)
        line.failed.sort()
        if file is not None and line.seeds:
            with file.open("ab") as end:
                end.write(msgspec.json.encode(line) + b"\n")


def _workers_seconds() -> float:
    """Of those that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def read(files: Iterable[Path]) -> list[Line]:
    return [msgspec.json.decode(text, type=Line) for file in files for text in file.read_bytes().splitlines()]


def ranges(lines: Sequence[Line]) -> str:
    """Which seeds: two searches of the same seeds show here, since they are counted twice elsewhere."""
    merged: list[tuple[int, int]] = []
    for begin, end in sorted((line.first, line.first + line.seeds) for line in lines):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((begin, end))
    return ", ".join(f"{begin}–{end - 1}" for begin, end in merged)


PAGE = """# Stories of the simulation

How many stories of the [simulation](../simulation.md) were run, by kind and source. A *story* is one run,
decided by its seed. It fails if an invariant breaks. `python -m tests.simulation tally FILE...` writes this
page from the files that searches append to (option `--tally FILE`). "A second" is the number of stories a
second of processor time. Compiled modules run the same stories faster
([how](../simulation.md#compiled-searches)). The seeds that failed are in parentheses;
the tests keep them, with what was wrong (`EVER_FAILED` in `tests/simulation`).

"""
HEAD = """| kind | stories | failed |
| --- | --- | --- |
"""
BY_SOURCE_HEAD = """| kind | source | compiled | stories | failed | a second | seeds |
| --- | --- | --- | --- | --- | --- | --- |
"""


def page(lines: Sequence[Line]) -> str:
    """The report in Markdown: sums by kind, then by kind and source."""
    by_kind, by_source = [], []
    for kind, what in KINDS.items():
        those = [line for line in lines if line.kind == kind]
        if not those:
            by_kind.append(f"| `{kind}`: {what} | 0 | – |")
            continue
        failed = sum(len(line.failed) for line in those)
        by_kind.append(f"| `{kind}`: {what} | {sum(line.seeds for line in those):,} | {failed} |")
        for source, compiled in dict.fromkeys((line.commit, line.compiled) for line in those):
            by_source.append(
                _row(kind, [each for each in those if (each.commit, each.compiled) == (source, compiled)])
            )
    rows = "\n".join(by_source)
    return f"{PAGE}{HEAD}" + "\n".join(by_kind) + f"\n\n## By source\n\n{BY_SOURCE_HEAD}{rows}\n"


def _row(kind: str, lines: Sequence[Line]) -> str:
    stories = sum(line.seeds for line in lines)
    failed = sorted(seed for line in lines for seed in line.failed)
    seeds = f" ({', '.join(map(str, failed))})" if failed else ""
    cpu_seconds = sum(line.cpu_seconds for line in lines)
    speed = f"{stories / cpu_seconds:.3g}" if cpu_seconds else "–"
    return (
        f"| {kind} | {lines[0].commit} | {'yes' if lines[0].compiled else 'no'} | {stories:,} "
        f"| {len(failed)}{seeds} | {speed} | {ranges(lines)} |"
    )


@click.command("tally")
@click.argument(
    "files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
def tally_command(files: tuple[Path, ...]) -> None:
    """Write docs/reports/simulation.md from the files that searches appended to."""
    lines = read(files)
    REPORT.write_text(page(lines))
    click.echo(f"{sum(line.seeds for line in lines):,} stories of {len(lines)} searches: {REPORT}")


tally_option = click.option(
    "--tally", type=click.Path(dir_okay=False, path_type=Path), help="Append to this file what was run."
)
