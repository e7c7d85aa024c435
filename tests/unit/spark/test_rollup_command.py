"""What `batonmq spark rollup` prints, without Spark."""

from __future__ import annotations

import pytest

from batonmq.spark.main import _show_rollup

UA = {"carrier": "UA", "flights": 3, "mean_dep_delay": 2.0, "mean_arr_delay": None}


def test_a_topic_without_flights_and_without_gaps_says_so_instead_of_empty_tables(
    capsys: pytest.CaptureFixture[str],
) -> None:
    _show_rollup("topic 'orders'", [], [])
    assert capsys.readouterr().out.splitlines() == [
        "no gaps to show: topic 'orders' was never without a message for 100 ms or more",
        "no delays to show: no message of topic 'orders' is a flight as 'batonmq demo' writes them",
    ]


def test_gaps_and_delays_that_are_there_are_tables(capsys: pytest.CaptureFixture[str]) -> None:
    _show_rollup("topic 'flights'", [(1_000, 2_500)], [UA])
    shown = capsys.readouterr().out
    assert "1,500" in shown and "UA" in shown and "2.0" in shown
    assert "to show" not in shown
