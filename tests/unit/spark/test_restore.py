"""Where the messages of an archive go, and what a second restore may do; without Spark."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from batonmq.protocol.bodies.common import MessageQueue
from batonmq.spark.jobs.queue_map import NoQueue, queue_map, with_more
from batonmq.spark.jobs.restore import Restore, RestoreError, _places, check_state, chunk_name
from batonmq.spark.sink.options import parse_sink_options

ONE = [MessageQueue("T", "a", i) for i in range(2)]


def test_a_queue_goes_to_the_one_of_its_name_if_all_can() -> None:
    assert queue_map([("a", 1), ("a", 0)], ONE) == {("a", 0): ONE[0], ("a", 1): ONE[1]}


def test_other_queues_are_filled_in_turn_and_a_queue_is_never_split() -> None:
    sources = [("b", 0), ("a", 0), ("a", 5)]
    found = queue_map(sources, ONE)
    assert found == {("a", 0): ONE[0], ("a", 5): ONE[1], ("b", 0): ONE[0]}
    assert queue_map(sources[::-1], ONE[::-1]) == found  # a second run does the same


def test_a_topic_without_queues_is_an_error() -> None:
    with pytest.raises(NoQueue, match="no queue"):
        queue_map([("a", 0)], [])


@pytest.mark.parametrize("topic", ["T", "%RETRY%g", "x" * 200, "ä"])
def test_the_name_of_a_chunk_is_a_transaction_id(topic: str) -> None:
    raw = {
        "namesrvAddr": "a:1",
        "deliveryGuarantee": "exactlyOnce",
        "transactionLocation": "/t",
        "transactionId": chunk_name(topic, "2026-11-24"),
    }
    assert parse_sink_options(raw).ledger
    assert chunk_name(topic, "2026-11-24") != chunk_name(topic + "2", "2026-11-24")


@pytest.mark.parametrize(
    "change", [{"namesrv": "b:1"}, {"archive": "/other"}, {"topic": "T"}, {"target": "U"}]
)
def test_another_restore_does_not_continue_with_the_state_of_this_one(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    one = Restore("a:1", "/archive", tmp_path / "state")
    check_state(one)
    check_state(replace(one, last_date="2026-11-24"))  # more dates may follow
    with pytest.raises(RestoreError, match="belongs to another restore"):
        check_state(replace(one, **change))


def test_queues_that_come_later_change_nothing_for_the_others() -> None:
    known = {("b", 0): ONE[0]}
    assert with_more(known, [("b", 0), ("b", 1), ("a", 1)], ONE) == {
        ("b", 0): ONE[0],
        ("a", 1): ONE[1],
        ("b", 1): ONE[0],
    }
    assert with_more(known, [("a", 0)], ONE) == {("b", 0): ONE[0], ("a", 0): ONE[1]}
    assert with_more(known, [("b", 0)], []) == known
    with pytest.raises(NoQueue):
        with_more(known, [("b", 1)], [])


class Archived:
    """An archive with messages of these queues, as far as a restore asks."""

    def __init__(self, *rows: tuple[str, str, int]) -> None:
        self.rows = rows

    def select(self, *_: str) -> Archived:
        return self

    def distinct(self) -> Archived:
        return self

    def collect(self) -> list[dict[str, Any]]:
        return [dict(zip(("topic", "broker", "queueId"), row, strict=True)) for row in self.rows]


def test_a_queue_goes_to_the_same_queue_in_all_runs(tmp_path: Path) -> None:
    restore = Restore("a:1", "/archive", tmp_path)
    first = Archived(("T", "b", 0), ("T", "b", 3), ("U", "b", 0))
    places = _places(restore, first, lambda topic: ONE)  # type: ignore[arg-type]
    assert places["T"] == {("b", 0): ONE[0], ("b", 3): ONE[1]}
    more = Archived(("T", "b", 3), ("T", "b", 1))
    fewer_queues = ONE[1:]  # a broker is away
    again = _places(restore, more, lambda topic: fewer_queues)  # type: ignore[arg-type]
    assert again["T"] == {("b", 0): ONE[0], ("b", 3): ONE[1], ("b", 1): ONE[1]}
    assert again["U"] == places["U"]


def test_a_damaged_map_of_queues_is_named(tmp_path: Path) -> None:
    for data in ("{", "[]", '{"T": [[1]]}'):
        (tmp_path / "queues.json").write_text(data)
        with pytest.raises(RestoreError, match=r"queues\.json is damaged"):
            _places(Restore("a:1", "/archive", tmp_path), Archived(), lambda topic: ONE)  # type: ignore[arg-type]
