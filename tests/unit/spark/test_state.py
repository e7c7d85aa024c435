"""The directory of a job: who has it, and what a job that fails early leaves there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from batonmq.spark.jobs.state import RESTORE, WINDOW, InUse, held


def fail(state: Path, kept: str = WINDOW) -> None:
    with pytest.raises(ValueError, match="early"), held(state, kept):
        assert (state / "lock").exists()
        raise ValueError("early")


def test_a_job_that_fails_early_leaves_nothing(tmp_path: Path) -> None:
    fail(tmp_path / "state")
    assert not any(tmp_path.iterdir())


def test_a_directory_that_was_there_stays_and_so_does_what_is_in_it(tmp_path: Path) -> None:
    fail(tmp_path)
    assert tmp_path.exists() and not any(tmp_path.iterdir())
    (tmp_path / "file").touch()
    fail(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_job_that_has_begun_keeps_its_directory(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with held(state, WINDOW):
        (state / WINDOW).touch()
    assert (state / WINDOW).exists()
    fail(state)
    assert (state / WINDOW).exists()


def test_a_run_that_is_refused_takes_nothing_away(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with held(state, WINDOW):
        for _ in range(2):
            with pytest.raises(InUse, match="in use by another run"), held(state, WINDOW):
                pass
        (state / WINDOW).touch()
        with pytest.raises(InUse, match="belongs to another job"), held(state, RESTORE):
            pass
        assert (state / "lock").exists()


def test_a_lock_file_that_a_run_has_just_removed_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever locks it would have another lock than the run that comes after."""
    opened, real = [], os.open

    def slow(path: Path, flags: int, mode: int) -> int:
        fd = real(path, flags, mode)
        if not opened:  # the other run ends here
            path.unlink()
            path.parent.rmdir()
        opened.append(fd)
        return fd

    monkeypatch.setattr(os, "open", slow)
    with held(tmp_path / "state", WINDOW):
        monkeypatch.undo()
        assert len(opened) == 2
        with pytest.raises(InUse), held(tmp_path / "state", WINDOW):
            pass
