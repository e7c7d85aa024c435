"""What the programs make of their command line."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from batonmq.cli.programs import allow_files, keeping_changes
from batonmq.controller.config import ControllerConfig


@pytest.mark.parametrize(
    ("given", "set_to", "kept_in"),
    [("a.conf", "", "a.conf"), ("a.conf", "b.conf", "b.conf"), (None, "", "controller.properties")],
)
def test_a_controllers_changes_go_to_the_file_it_was_started_with(
    tmp_path: Path, given: str | None, set_to: str, kept_in: str
) -> None:
    config = ControllerConfig(
        controller_store_path=str(tmp_path), config_store_path=str(tmp_path / set_to) if set_to else ""
    )
    kept = keeping_changes(config, None if given is None else tmp_path / given)
    assert kept.config_file == tmp_path / kept_in


@pytest.mark.parametrize(
    ("program", "hard", "raised_to", "warns"),
    [
        ("broker", 1_048_576, 65_536, False),
        ("broker", 20_000, 20_000, False),
        ("broker", 4_096, 4_096, True),
        ("controller", 4_096, 4_096, False),
    ],
)
def test_a_program_may_open_as_many_files_as_its_connections_need(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    program: str,
    hard: int,
    raised_to: int,
    warns: bool,
) -> None:
    raised: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda which: (1_024, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda which, limits: raised.append(limits))
    allow_files(program)
    assert raised == [(raised_to, hard)]
    assert ("ulimit -n, LimitNOFILE) to 10512" in caplog.text) is warns
