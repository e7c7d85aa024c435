"""Elections from events, logs and epoch files; without Spark."""

from __future__ import annotations

from datetime import UTC
from pathlib import Path
from zoneinfo import ZoneInfo

import click
import pytest

from batonmq.spark.failover_command import Findings, _acks, find
from batonmq.spark.jobs.failover import (
    EVENT_SCHEMA,
    NOT_RECORDED,
    Epoch,
    Event,
    Served,
    State,
    disagreements,
    elections_of,
    event_of,
    served_of,
    states_of,
)
from batonmq.spark.jobs.outages import Window, windows_of

FIELDS = [field.split(" ")[0] for field in EVENT_SCHEMA.split(", ")]


def row(**fields: object) -> dict[str, object]:
    return dict.fromkeys(FIELDS) | {"broker_name": "b", **fields}


def election(
    time_ms: int, epoch: int, old: int | None, new: int | None, before: list[int], **more: object
) -> Event:
    result = "no-master" if new is None else "new-master"
    fields = {"cause": "channel-closed", "master_epoch": epoch, "sync_state_set_epoch": 2 * epoch}
    fields |= {"old_master": old, "new_master": new, "candidates": before, "result": result}
    event = event_of(row(time_ms=time_ms, event="election", alive=[], unclean=False, **{**fields, **more}))
    assert event is not None
    return event


def grown(time_ms: int, epoch: int, before: list[int], after: list[int]) -> Event:
    event = event_of(
        row(
            time_ms=time_ms,
            event="sync-state-set",
            before=before,
            after=after,
            master_epoch=epoch,
            sync_state_set_epoch=2 * epoch + 1,
        )
    )
    assert event is not None
    return event


KILLED = election(1_000, 2, 1, 2, [1, 2])


def test_the_set_shrinks_to_the_new_master_and_grows_again() -> None:
    (found,) = elections_of([grown(4_000, 2, [2], [1, 2]), KILLED, grown(9_000, 2, [2], [1, 2])])
    assert (found.before, found.after, found.old_master, found.new_master) == ((1, 2), (2,), 1, 2)
    assert (found.time_ms, found.whole_ms, found.cause) == (1_000, 4_000, "channel-closed")


def test_a_set_without_master_remains() -> None:
    (found,) = elections_of([election(1_000, 2, 1, None, [1])])
    assert (found.new_master, found.after, found.whole_ms) == (None, (1,), None)


def test_a_decision_that_two_controllers_wrote_counts_once() -> None:
    again = election(1_300, 2, 1, 2, [1, 2])
    (found,) = elections_of([again, KILLED])
    assert found.time_ms == 1_000


@pytest.mark.parametrize(
    "fields",
    [
        {"event": "election", "time_ms": 1, "result": "kept-master", "master_epoch": 1},
        {"event": "election", "time_ms": 1, "result": "refused", "master_epoch": 1},
        {"event": "election", "time_ms": 1, "result": "new-master"},
        {"event": "election", "time_ms": None, "result": "new-master", "master_epoch": 1},
        {"event": "election", "time_ms": 1, "result": "new-master", "master_epoch": 1, "broker_name": None},
        {"event": "leader", "time_ms": 1},
        {"event": None, "time_ms": 1},
    ],
)
def test_lines_that_change_no_master_are_left_out(fields: dict[str, object]) -> None:
    assert event_of(row(**fields)) is None


LOG = """\
2026-11-24 10:50:23.694 INFO batonmq.broker.replica.registration broker id 1 of broker-a is granted
2026-11-24 10:50:23.806 INFO batonmq.broker.replica.role_switch master epoch=1
2026-11-24 10:50:32.076 INFO batonmq.broker.replica.role_switch slave of 10.67.0.7:14830 epoch=2
2026-11-24 10:50:39.574 INFO batonmq.broker.replica.role_switch master epoch=3
half of a line and \ufffd
2026-99-24 10:50:39.574 INFO batonmq.broker.replica.role_switch master epoch=4
2026-11-24 10:50:40 INFO p - Begin to change to master, brokerName:java-a, replicas:10.0.0.1:1, new Epoch:7
"""


def test_logs_of_both_programs_are_understood() -> None:
    assert served_of(LOG.splitlines(), UTC) == [
        Served(1_795_517_423_806, "broker-a", 1),
        Served(1_795_517_439_574, "broker-a", 3),
        Served(1_795_488_640_000, "java-a", 7),  # RocketMQ logs in GMT+8
    ]
    berlin = served_of(LOG.splitlines(), ZoneInfo("Europe/Berlin"))
    assert berlin[0].time_ms == 1_795_517_423_806 - 3_600_000


def test_an_election_without_event_is_known_from_logs_and_epoch_files() -> None:
    epochs = [Epoch("b", 1, 0, "s"), Epoch("b", 2, 500, "s"), Epoch("b", 3, 900, "s")]
    found = elections_of([KILLED], [Served(1_040, "", 2), Served(2_000, "", 3)], epochs)
    assert [(e.master_epoch, e.time_ms, e.served_ms, e.start_offset, e.cause) for e in found] == [
        (2, 1_000, 1_040, 500, "channel-closed"),
        (3, 2_000, 2_000, 900, NOT_RECORDED),
        (1, None, None, 0, NOT_RECORDED),
    ]


def test_a_log_without_name_belongs_to_nobody_where_there_are_two_sets() -> None:
    other = election(1_000, 2, 1, 2, [1, 2], broker_name="c")
    assert all(e.served_ms is None for e in elections_of([KILLED, other], [Served(1_040, "", 2)]))


def test_replicas_that_disagree_are_named() -> None:
    epochs = [Epoch("b", 1, 0, "s0"), Epoch("b", 2, 5_000, "s0"), Epoch("b", 2, 4_000, "s1")]
    assert disagreements(epochs) == ["epoch 2 of b begins at 4,000 in s1 and at 5,000 in s0"]
    assert disagreements([*epochs[:2], Epoch("b", 2, 5_000, "s1"), Epoch("c", 2, 1, "s2")]) == []


def test_a_window_ends_at_the_next_election_of_the_set() -> None:
    other = election(1_500, 9, 1, 2, [1, 2], broker_name="c")
    found = elections_of([KILLED, election(3_000, 3, 2, 1, [1, 2]), other], [], [Epoch("b", 1, 0, "s")])
    assert windows_of(found, 10.0) == [
        Window("b", 2, 1_000_000, 3_000_000, 3_000_000),
        Window("b", 3, 3_000_000, 13_000_000),
        Window("c", 9, 1_500_000, 11_500_000),
    ]


def test_states_follow_the_epoch_of_the_set() -> None:
    late_copy = election(4_500, 2, 1, 2, [1, 2])
    assert states_of("b", [KILLED, grown(4_000, 2, [2], [1, 2]), late_copy]) == [
        State(1_000, 2, (2,)),
        State(4_000, 2, (1, 2)),
    ]


def test_files_are_found_below_a_directory(tmp_path: Path) -> None:
    for name in (
        "c0/events.jsonl",
        "c0/events.jsonl.1",
        "broker-0.log",
        "s/epochFileCheckpoint",
        "history-a.parquet",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    found = find([tmp_path], [], [], [], [])
    assert [path.name for path in found.events] == ["events.jsonl", "events.jsonl.1"]
    assert ([p.name for p in found.logs], [p.name for p in found.stores]) == (["broker-0.log"], ["s"])
    assert [path.name for path in found.histories] == ["history-a.parquet"]
    with pytest.raises(click.UsageError, match=r"has no events\.jsonl"):
        find([], [tmp_path / "s"], [], [], [])
    with pytest.raises(click.UsageError, match="no source of elections"):
        find([tmp_path / "c0" / "none"], [], [], [], [tmp_path / "history-a.parquet"])


def test_a_history_without_acknowledgements_near_the_elections_is_drawn() -> None:
    pytest.importorskip("matplotlib")
    findings = Findings([], [], [], [], [])
    (axes,) = _acks(findings, [], 1.0, 0, 10_000_000).axes
    assert axes.get_xlim() == (0, 10)
