"""Logging set-up: one line per event, in a file or on stderr."""

from __future__ import annotations

import contextvars
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from batonmq.common import log


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers.clear()
    yield
    for handler in root.handlers:
        handler.close()
    root.handlers[:] = handlers
    root.setLevel(level)


def test_file(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "broker.log"
    log.set_up("info", path)
    log.set_up("info", path)
    logging.getLogger("batonmq.x").info("became master epoch=%d", 3)
    logging.getLogger("batonmq.x").debug("not shown")
    (line,) = path.read_text().splitlines()
    assert line.endswith("INFO batonmq.x became master epoch=3")


def test_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    log.set_up("WARNING")
    logging.getLogger("batonmq.x").warning("careful")
    assert "careful" in capsys.readouterr().err


def test_unknown_level() -> None:
    with pytest.raises(ValueError, match="LOUD"):
        log.set_up("loud")


def test_what_a_peer_sends_stays_on_its_line(tmp_path: Path) -> None:
    path = tmp_path / "broker.log"
    log.set_up("info", path)
    logging.getLogger("batonmq.x").warning("group=%s", "g\n2026-01-01 INFO forged\r\0\x1b[31m")
    try:
        raise ValueError("shown\nwith its lines")
    except ValueError:
        logging.getLogger("batonmq.x").exception("a bug")
    first, second, *rest = path.read_text().splitlines()
    assert first.endswith(r"group=g\x0a2026-01-01 INFO forged\x0d\x00\x1b[31m")
    assert second.endswith("a bug") and rest[0].startswith("Traceback") and rest[-1] == "with its lines"


def test_long_text_of_a_peer_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "broker.log"
    log.set_up("info", path)
    logging.getLogger("batonmq.x").info("deleting group=%s", "g" * 1_000_000)
    logging.getLogger("batonmq.x").info("%s", "m" * 1_000_000, extra=log.WHOLE)
    line, metrics = path.read_text().splitlines()
    assert metrics.endswith("m" * 1_000_000)
    assert len(line) < 17_000 and "deleting group=ggg" in line and line.endswith(" characters more)")


def test_some_names() -> None:
    assert log.some(["a", "b"]) == "a, b"
    assert log.some({f"n{i}": None for i in range(20)}, 2) == "n0, n1 and 18 more"


def test_lines_name_the_server_in_whose_context_they_are_written(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log.set_up("info", path)
    context = contextvars.copy_context()
    context.run(log.log_identity.set, "broker-a 100%")
    context.run(logging.getLogger("batonmq.x").info, "%d%% full", 5)
    logging.getLogger("batonmq.x").info("alone")
    first, second = path.read_text().splitlines()
    assert first.endswith("INFO batonmq.x [broker-a 100%] 5% full")
    assert second.endswith("INFO batonmq.x alone")
