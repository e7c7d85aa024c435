"""A configuration file that requests change."""

from __future__ import annotations

import stat
import threading
import time
from pathlib import Path

import pytest

from batonmq.common import config_file
from batonmq.common.config_file import change_file


def test_a_file_that_is_made_is_its_owners_alone_and_another_keeps_its_permissions(tmp_path: Path) -> None:
    """It may come to hold secrets."""
    path = tmp_path / "folder" / "made.conf"
    change_file(path, {"a": "1"})
    assert path.read_text() == "a=1\n" and stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o640)
    change_file(path, {"b": "2"})
    assert path.read_text() == "a=1\nb=2\n" and stat.S_IMODE(path.stat().st_mode) == 0o640


def test_changes_at_the_same_time_do_not_undo_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a name server and of the controller that it carries."""
    path, replace_file = tmp_path / "one.conf", config_file.replace_file

    def slow(path: Path, data: bytes, *, private: bool) -> None:
        time.sleep(0.05)
        replace_file(path, data, private=private)

    monkeypatch.setattr(config_file, "replace_file", slow)
    threads = [threading.Thread(target=change_file, args=(path, {key: "1"})) for key in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(path.read_text().split()) == ["a=1", "b=1", "c=1", "d=1"]
