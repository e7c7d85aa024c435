"""Searches that are cut, and the count of what was run."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from tests.simulation import tally
from tests.simulation.__main__ import main
from tests.simulation.many import run_each
from tests.simulation.tally import KINDS, Line, counting, page, ranges, read, tally_command


def line(kind: str = "raft", first: int = 0, seeds: int = 10, failed: tuple[int, ...] = (), **kw) -> Line:
    others = {"seconds": 9.0, "cpu_seconds": 10.0, "jobs": 2, "commit": "abc", "compiled": False, **kw}
    return Line(kind=kind, first=first, seeds=seeds, failed=[*failed], **others)


def test_a_search_appends_a_line(tmp_path: Path) -> None:
    file = tmp_path / "tally"
    for first in (3, 5):
        arguments = ["raft", "--first", str(first), "--seeds", "2", "--jobs", "1", "--tally", str(file)]
        assert CliRunner().invoke(main, arguments).exit_code == 0
    lines = read([file])
    assert [(each.kind, each.first, each.seeds, each.failed, each.jobs) for each in lines] == [
        ("raft", 3, 2, [], 1),
        ("raft", 5, 2, [], 1),
    ]
    assert all(each.seconds > 0 and each.cpu_seconds > 0 and each.commit for each in lines)


def test_every_search_has_a_kind_and_counts() -> None:
    others = {"shrink", "availability", "tally"}
    assert {"clusters", *main.commands} - others == KINDS.keys()
    for name, command in main.commands.items():
        assert ("tally" in {each.name for each in command.params}) == (name not in others), name


def wait_or_stop(seed: int, stopped_at: int) -> int:
    if seed == stopped_at:
        os.kill(os.getppid(), signal.SIGTERM)
        time.sleep(0.2)
    return -seed


@pytest.mark.parametrize("chunk", [1, 3])
def test_a_search_that_is_stopped_ends_what_it_began(tmp_path: Path, chunk: int) -> None:
    file, one = tmp_path / "tally", functools.partial(wait_or_stop, stopped_at=107)
    with counting(file, "raft", 100, 2) as counted:
        for seed, result in run_each(one, range(100, 100_000), 2, chunk=chunk):
            assert result == -seed
            counted.seeds += 1
    (found,) = read([file])
    assert 8 <= found.seeds <= 30
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.fixture
def search(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A long search in a separate process group, whose worker has begun."""
    command = ["raft", "--seeds", "100000", "--jobs", "1", "--tally", str(tmp_path / "tally")]
    process = subprocess.Popen([sys.executable, "-m", "tests.simulation", *command], process_group=0)
    try:
        wait_until(lambda: has_worker(process.pid))
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def has_worker(search: int) -> bool:
    """Whether the search has a child that ignores SIGINT: not git, which it asks for the commit before."""
    for child in Path(f"/proc/{search}/task/{search}/children").read_text().split():
        with suppress(FileNotFoundError, ProcessLookupError):
            status = Path(f"/proc/{child}/status").read_text()
            ignored = status.partition("SigIgn:")[2].split()[0]
            if int(ignored, 16) >> (signal.SIGINT - 1) & 1:
                return True
    return False


def wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def is_gone(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False


def test_a_signal_that_comes_twice_at_once_stops_in_order(
    search: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    """As `timeout` sends it. The second one killed the search, which lost its count, and left its worker."""
    search.send_signal(signal.SIGINT)
    time.sleep(0.05)
    os.killpg(search.pid, signal.SIGINT)
    assert search.wait(60) == 0
    (found,) = read([tmp_path / "tally"])
    assert found.seeds > 0
    assert is_gone(search.pid)


def test_a_search_that_is_killed_leaves_no_worker(search: subprocess.Popen[bytes]) -> None:
    search.kill()
    search.wait()
    wait_until(lambda: is_gone(search.pid))


def test_what_ended_before_a_seed_that_broke_the_search_counts(tmp_path: Path) -> None:
    file = tmp_path / "tally"
    with pytest.raises(RuntimeError), counting(file, "raft", 0, 1) as counted:
        counted.seeds += 7
        raise RuntimeError
    assert [each.seeds for each in read([file])] == [7]


def test_the_page_sums_by_kind_and_source() -> None:
    text = page(
        [
            line(seeds=1000, cpu_seconds=20),
            line(first=1000, seeds=500, cpu_seconds=10, failed=(1203, 1001)),
            line(seeds=100, compiled=True, cpu_seconds=2),
            line("controller", first=7, seeds=3, commit="abc-dirty"),
        ]
    )
    assert "| `raft`: Raft groups alone | 1,600 | 2 |" in text
    assert "| raft | abc | no | 1,500 | 2 (1001, 1203) | 50 | 0–1499 |" in text
    assert "| raft | abc | yes | 100 | 0 | 50 | 0–99 |" in text
    assert "| controller | abc-dirty | no | 3 | 0 | 0.3 | 7–9 |" in text
    assert "| `pop`: whole clusters with pop consumers | 0 | – |" in text


def test_seeds_that_were_run_twice_show() -> None:
    assert (
        ranges([line(first=0, seeds=20), line(first=10, seeds=20), line(first=40, seeds=1)]) == "0–29, 40–40"
    )


def test_the_command_writes_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, report = tmp_path / "tally", tmp_path / "page.md"
    file.write_bytes(msgspec.json.encode(line()) + b"\n")
    monkeypatch.setattr(tally, "REPORT", report)
    result = CliRunner().invoke(tally_command, [str(file), str(file)])
    assert result.exit_code == 0 and "20 stories of 2 searches" in result.output
    assert report.read_text() == page(read([file, file]))


def test_a_line_of_an_unknown_kind_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(msgspec.json.encode(line()).replace(b"raft", b"rafts"), type=Line)
