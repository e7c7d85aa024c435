"""Mistakes on the command line of a job: one line before anything is asked, made or started."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from batonmq.spark.main import spark

N = ("-n", "127.0.0.1:1")
LATER, EARLIER = "2026-11-24T10:00", "2026-11-24T09:00"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("replay", *N, "-t", "a", "--to", "b", "--from", LATER, "--until", EARLIER), "--from is not before"),
        (("replay", *N, "-t", "a", "--to", "b", "--from", LATER, "--until", LATER), "--from is not before"),
        (("dlq", *N, "-g", "g", "--from", LATER, "--until", EARLIER), "--from is not before"),
        (("skew", *N, "-t", "a", "--from", LATER, "--until", EARLIER), "--from is not before"),
        (
            ("restore", *N, "--archive", "x", "--from-date", "2026-11-24", "--to-date", "2026-11-23"),
            "--from-date is after --to-date",
        ),
        (("dlq", *N, "-g", ""), "The specified group is blank"),
        (("dlq", *N, "-g", "a b"), "contains illegal characters"),
        (("dlq", *N, "-g", "g", "--rate", "5"), "--state and --rate are for --redrive"),
        (("audit", *N, "-t", "a", "--history", ".", "--store", "."), "--store is needed twice or more"),
        (("skew", *N, "-t", "a", "--max-share", "nan"), "is not a number"),
        (("lag", *N, "-t", "a", "--every", "nan"), "is not a number"),
    ],
)
def test_a_mistake_is_named_before_anybody_is_asked(
    tmp_path: Path, arguments: tuple[str, ...], says: str
) -> None:
    state = ("--state", str(tmp_path / "state")) if arguments[0] in ("replay", "restore") else ()
    done = CliRunner().invoke(spark, [*arguments, *state])
    assert done.exit_code == 2, done.stderr
    assert says in done.stderr.splitlines()[-1], done.stderr
    assert not (tmp_path / "state").exists()
