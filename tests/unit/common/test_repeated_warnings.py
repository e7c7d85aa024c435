"""A peer that keeps failing does not fill the log."""

from __future__ import annotations

import logging

import pytest

from batonmq.common.repeated_warnings import MOST_KINDS, MOST_TEXT, PERIOD_MS, RepeatedWarnings


def test_a_flood_of_warnings_is_a_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    warnings = RepeatedWarnings(logging.getLogger("test"))
    for number in range(1000):
        warnings.warn(f"10.0.0.1:{number}", f"sent state {number}", number)
    assert caplog.messages == ["10.0.0.1:0 sent state 0"]
    warnings.warn("10.0.0.1:7", "sent state 7", PERIOD_MS)
    assert caplog.messages[1:] == ["10.0.0.1:7 sent state 7 (999 more of these since the last such line)"]
    warnings.warn("10.0.0.1:7", "is late", PERIOD_MS)
    warnings.warn("10.0.0.2:7", "is late", PERIOD_MS)
    assert len(caplog.messages) == 4
    caplog.clear()
    for number in range(10_000):
        warnings.warn(f"host-{'x' * (number % 5000)}:1", "is late", PERIOD_MS)
    assert len(caplog.messages) <= MOST_KINDS + 1 and len(warnings._logged) <= MOST_KINDS + 1


def test_long_text_from_a_peer_is_cut(caplog: pytest.LogCaptureFixture) -> None:
    warnings = RepeatedWarnings(logging.getLogger("test"))
    warnings.warn("10.0.0.1:1", f"is of another group, {'x' * 1_000_000!r}", 0)
    (line,) = caplog.messages
    assert len(line) < MOST_TEXT + 50 and all(len(text) < MOST_TEXT + 50 for _, text in warnings._logged)


def test_line_breaks_from_a_peer_begin_no_log_line(caplog: pytest.LogCaptureFixture) -> None:
    warnings = RepeatedWarnings(logging.getLogger("test"))
    warnings.warn("n1\n2026-01-01 CRITICAL all is lost\x1b[2J", "sent\r\na malformed message", 0)
    (line,) = caplog.messages
    assert line.isprintable() and "all is lost" in line
