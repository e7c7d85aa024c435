"""Tables of jobs on the terminal: what is in a message stays text."""

from __future__ import annotations

import pytest

from batonmq.spark import report
from batonmq.spark.skew_command import short


def test_cells_are_printed_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    report.show([report.Table(":tada: of [b]x", ("a",), [(":smile: [bold]k \x1b[2J",)])])
    printed = capsys.readouterr().out
    assert ":tada: of [b]x" in printed and ":smile: [bold]k \\x1b[2J" in printed


def test_a_key_in_a_verdict_does_not_command_the_terminal() -> None:
    assert short("k\x1b[2J") == "k\\x1b[2J"
