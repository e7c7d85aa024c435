"""A stranger who tries again for ever fills no log."""

from __future__ import annotations

import logging

import pytest

from batonmq.common.complaints import MOST_KINDS, MOST_TEXT, PERIOD_MS, Complaints


def test_a_flood_of_complaints_is_a_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    complaints = Complaints(logging.getLogger("test"))
    for number in range(1000):
        complaints.warn(f"10.0.0.1:{number}", f"sent state {number}", number)
    assert caplog.messages == ["10.0.0.1:0 sent state 0"]
    complaints.warn("10.0.0.1:7", "sent state 7", PERIOD_MS)
    assert caplog.messages[1:] == ["10.0.0.1:7 sent state 7 (999 more of these since the last such line)"]
    complaints.warn("10.0.0.1:7", "is late", PERIOD_MS)
    complaints.warn("10.0.0.2:7", "is late", PERIOD_MS)
    assert len(caplog.messages) == 4
    caplog.clear()
    for number in range(10_000):
        complaints.warn(f"host-{'x' * (number % 5000)}:1", "is late", PERIOD_MS)
    assert len(caplog.messages) <= MOST_KINDS + 1 and len(complaints._told) <= MOST_KINDS + 1


def test_what_a_stranger_sent_is_quoted_in_part_only(caplog: pytest.LogCaptureFixture) -> None:
    complaints = Complaints(logging.getLogger("test"))
    complaints.warn("10.0.0.1:1", f"is of another group, {'x' * 1_000_000!r}", 0)
    (line,) = caplog.messages
    assert len(line) < MOST_TEXT + 50 and all(len(text) < MOST_TEXT + 50 for _, text in complaints._told)


def test_what_a_stranger_calls_himself_begins_no_line(caplog: pytest.LogCaptureFixture) -> None:
    complaints = Complaints(logging.getLogger("test"))
    complaints.warn("n1\n2026-01-01 CRITICAL all is lost\x1b[2J", "sent\r\na malformed message", 0)
    (line,) = caplog.messages
    assert line.isprintable() and "all is lost" in line
