"""What the programs make of their command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from batonmq.cli.programs import keeping_changes
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
