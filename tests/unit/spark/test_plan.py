"""Offsets to ranges: pure planning."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batonmq.protocol.signing import Credentials
from batonmq.spark.options import EARLIEST, LATEST, OptionError, parse_read_options
from batonmq.spark.plan import (
    MANY_TASKS,
    SHARED_ROWS,
    DataLoss,
    QueueBounds,
    backlog,
    check_end,
    check_start,
    check_times,
    covers,
    expired_before,
    keep_hidden,
    limit,
    not_before,
    not_that_late,
    ranges,
    resolve,
    rows_for,
    tasks,
    with_new_queues,
)

BOUNDS = {"t": {"b:0": QueueBounds(10, 30), "b:1": QueueBounds(0, 5)}}


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (EARLIEST, {"b:0": 10, "b:1": 0}),
        (LATEST, {"b:0": 30, "b:1": 5}),
        ({"t": {"b:0": 12, "b:1": LATEST}}, {"b:0": 12, "b:1": 5}),
        ({"t": {"b:0": EARLIEST, "b:1": 3}}, {"b:0": 10, "b:1": 3}),
    ],
)
def test_resolve(spec, expected):
    assert resolve(spec, BOUNDS, name="startingOffsets") == {"t": expected}


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ({"t": {"b:0": 1}}, "no offset for queue 'b:1'"),
        ({"t": {"b:0": 1, "b:1": 1, "c:9": 1}}, "no queue 'c:9'"),
        ({"t": {"b:0": 1, "b:1": 1}, "u": {"b:0": 1}}, "topic 'u' is not one that is read"),
    ],
)
def test_resolve_refuses(spec, text):
    with pytest.raises(OptionError, match=text):
        resolve(spec, BOUNDS, name="startingOffsets")


@pytest.mark.parametrize(("offset", "text"), [(9, "begins at 10"), (31, "ends at 30")])
def test_offsets_that_are_gone_are_data_loss(offset, text):
    start = {"t": {"b:0": offset, "b:1": 0}}
    with pytest.raises(DataLoss, match=text):
        check_start(start, BOUNDS, fail_on_data_loss=True)
    assert check_start(start, BOUNDS, fail_on_data_loss=False)["t"]["b:0"] in (10, 30)


def test_a_vanished_queue_is_data_loss():
    with pytest.raises(DataLoss, match="is gone"):
        check_start({"t": {"x:0": 1}}, BOUNDS, fail_on_data_loss=True)


@pytest.mark.parametrize(("restart_at_begin", "expected"), [(False, 30), (True, 10)])
def test_behind_the_end_a_stream_restarts_at_the_begin(restart_at_begin, expected):
    checked = check_start(
        {"t": {"b:0": 31}}, BOUNDS, fail_on_data_loss=False, restart_at_begin=restart_at_begin
    )
    assert checked == {"t": {"b:0": expected}}


def test_an_end_behind_the_queue_is_data_loss():
    with pytest.raises(DataLoss, match="ends at 30, reading was to end at 31"):
        check_end({"t": {"b:0": 31, "b:1": 5}}, BOUNDS, fail_on_data_loss=True)
    assert check_end({"t": {"b:0": 31, "b:1": 4}}, BOUNDS, fail_on_data_loss=False) == {
        "t": {"b:0": 30, "b:1": 4}
    }
    gone = {"t": {"b:0": 20}, "u": {"b:0": 1}}
    with pytest.raises(DataLoss, match=r"queue b:0 of topic 'u' is gone \(deleted, or no longer selected\)"):
        check_end(gone, BOUNDS, fail_on_data_loss=True)
    assert check_end(gone, BOUNDS, fail_on_data_loss=False) == {"t": {"b:0": 20}}


@pytest.mark.parametrize(
    ("offsets", "expected"),
    [
        ({}, True),
        ({"t": {"b:0": 30, "b:1": 0}}, True),
        ({"t": {"b:0": 31}}, False),
        ({"t": {"b:2": 0}}, False),
        ({"u": {"b:0": 0}}, False),
    ],
)
def test_covers(offsets, expected):
    assert covers(BOUNDS, offsets) is expected


def test_hidden_queues_keep_their_place():
    assert keep_hidden({"t": {"b:0": 3, "b:1": 4}, "u": {"c:0": 5}}, {"t": {"b:0": 9}}) == {
        "t": {"b:0": 9, "b:1": 4},
        "u": {"c:0": 5},
    }


@pytest.mark.parametrize(
    ("start", "available", "expected"),
    [
        pytest.param(20, 30, 30, id="onwards"),
        pytest.param(28, 25, 28, id="a switch hid the end for a moment"),
        pytest.param(40, 25, 30, id="created again: it really ends there"),
    ],
)
def test_not_before(start, available, expected):
    assert not_before({"t": {"b:0": start}}, {"t": {"b:0": available}}, BOUNDS) == {"t": {"b:0": expected}}


def test_a_limit_does_not_hide_that_a_queue_went_back():
    assert limit({"t": {"b:0": 40, "b:1": 0}}, {"t": {"b:0": 5, "b:1": 100}}, 10) == {
        "t": {"b:0": 5, "b:1": 10}
    }


offsets = st.dictionaries(st.sampled_from([f"b:{i}" for i in range(8)]), st.integers(0, 500), min_size=1)


@given(offsets, st.integers(1, 600))
def test_limit_never_exceeds_and_always_moves_on(ends, most):
    start = {"t": dict.fromkeys(ends, 0)}
    limited = limit(start, {"t": ends}, most)["t"]
    assert sum(limited.values()) == min(most, sum(ends.values()))
    assert all(0 <= limited[q] <= ends[q] for q in ends)
    waiting = [q for q in ends if ends[q]]
    if most >= len(waiting):
        assert all(limited[q] for q in waiting)


@pytest.mark.parametrize("most", range(1, 8))
def test_no_queue_starves_if_a_batch_has_fewer_messages_than_there_are_queues(most):
    """Producers go on, so no queue's backlog ever ends."""
    at = {f"b:{i}": 100 + i for i in range(7)}
    for _ in range(14):
        at = limit({"t": at}, {"t": {q: offset + 50 for q, offset in at.items()}}, most)["t"]
    read = [offset - 100 - i for i, offset in enumerate(at.values())]
    assert sum(read) == 14 * most
    assert max(read) - min(read) <= 1


@given(offsets, st.none() | st.integers(1, 40), st.none() | st.integers(1, 100))
def test_ranges_cover_each_message_once(ends, minimum, most):
    pieces = ranges({"t": dict.fromkeys(ends, 0)}, {"t": ends}, min_partitions=minimum, max_records=most)
    covered = sorted((p.queue, o) for p in pieces for o in range(p.begin, p.end))
    assert covered == sorted((q, o) for q, end in ends.items() for o in range(end))
    if most is not None:
        assert all(len(p) <= most for p in pieces)
    if minimum is not None and sum(ends.values()) >= minimum:
        assert len(pieces) >= minimum


@given(
    st.dictionaries(st.sampled_from([f"b:{i}" for i in range(200)]), st.integers(0, 30_000), min_size=60),
    st.none() | st.integers(1, 150),
    st.none() | st.integers(1_000, 20_000),
)
@settings(max_examples=50)
def test_tasks_share_what_is_small(ends, minimum, most):
    limits = {"min_partitions": minimum, "max_records": most}
    pieces = ranges({}, {"t": ends}, **limits)
    work = tasks({}, {"t": ends}, **limits)
    assert [piece for task in work for piece in task] == pieces
    for task in work:
        assert len(task) == 1 or sum(map(len, task)) <= min(SHARED_ROWS, most or SHARED_ROWS)
    assert len(work) >= min(len(pieces), minimum or 0)


@pytest.mark.parametrize(("queues", "rows", "most"), [(64, 1, 64), (1000, 1, 67), (1000, 9_000, 1_000)])
def test_there_are_enough_tasks_for_a_cluster(queues, rows, most):
    work = tasks({}, {"t": {f"b:{i}": rows for i in range(queues)}})
    assert MANY_TASKS <= len(work) <= most


def test_options_of_a_batch_and_a_stream():
    batch = parse_read_options({"namesrvAddr": "h:1", "subscribe": "a, b"}, streaming=False)
    assert (batch.topics, batch.starting_offsets, batch.ending_offsets) == (("a", "b"), EARLIEST, LATEST)
    stream = parse_read_options(
        {"namesrvAddr": "h:1", "subscribe": "a", "maxOffsetsPerTrigger": "10"}, streaming=True
    )
    assert (stream.starting_offsets, stream.max_offsets_per_trigger) == (LATEST, 10)
    assigned = parse_read_options({"namesrvAddr": "h:1", "assign": '{"t": ["b:0"]}'}, streaming=False)
    assert assigned.assign == {"t": ("b:0",)}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"subscribe": "a"}, "namesrvAddr"),
        ({"namesrvAddr": "h:1"}, "one of 'subscribe'"),
        ({"namesrvAddr": "h:1", "subscribe": "a", "assign": "{}"}, "one of 'subscribe'"),
        ({"namesrvAddr": "h:1", "subscribe": " , "}, "names no topic"),
        ({"namesrvAddr": "h:1", "assign": "[1]"}, "must be like"),
        ({"namesrvAddr": "h:1", "assign": '{"t":' + "[" * 100_000}, "nested too deep"),
        ({"namesrvAddr": "h:1", "subscribe": "a", "startingOffsets": "latest"}, "'latest' for a batch read"),
        ({"namesrvAddr": "h:1", "subscribe": "a", "endingOffsets": "earliest"}, "'earliest' for an end"),
        ({"namesrvAddr": "h:1", "subscribe": "a", "startingOffsets": '{"a": 1}'}, "must be like"),
        ({"namesrvAddr": "h:1", "subscribe": "a", "minPartitions": "x"}, "whole number"),
        ({"namesrvAddr": "h:1", "subscribe": "a", "minPartitions": "0"}, "at least 1"),
        ({"namesrvAddr": "h:1", "subscribe": "a", "failOnDataLoss": "maybe"}, "true or false"),
        (
            {"namesrvAddr": "h:1", "subscribe": "a", "startingOfsets": "earliest"},
            "unknown option 'startingofsets'; did you mean 'startingOffsets'\\? Known are: namesrvAddr, ",
        ),
        ({"namesrvAddr": "h:1", "subscribe": "a", "zzzz": "1"}, "unknown option 'zzzz'; known are: "),
        ({"namesrvAddr": "h:1", "subscribe": "a", "startingTimestamp": "2026-11-24"}, "ms since 1970"),
    ],
)
def test_options_that_are_refused(options, text):
    with pytest.raises(OptionError, match=text):
        parse_read_options(options, streaming=False)


def test_options_for_streams_are_named_in_a_batch_read(caplog):
    options = {"namesrvAddr": "h:1", "subscribe": "a", "maxOffsetsPerTrigger": "10", "maxTriggerDelay": "1m"}
    parse_read_options(options, streaming=True)
    assert not caplog.records
    parse_read_options(options, streaming=False)
    assert [record.getMessage() for record in caplog.records] == [
        f"option {name!r} is for streams: it has no effect in a batch read"
        for name in ("maxOffsetsPerTrigger", "maxTriggerDelay")
    ]


def test_new_queues_that_have_lost_messages_are_found():
    start = {"t": {"b:0": 5, "b:1": 3, "b:2": 0}, "u": {"b:0": 7}}
    assert expired_before({"t": {"b:0": 5}}, start) == [("t", "b:1", 3), ("u", "b:0", 7)]


def test_queues_that_only_the_topic_has_begin_at_their_first_message():
    bounds = {"t": {"b:0": QueueBounds(5, 9), "b:1": QueueBounds(3, 4)}, "u": {"b:0": QueueBounds(7, 7)}}
    assert with_new_queues({"t": {"b:0": 6}, "gone": {"b:0": 1}}, bounds) == {
        "t": {"b:0": 6, "b:1": 3},
        "u": {"b:0": 7},
        "gone": {"b:0": 1},
    }


def test_a_new_queue_with_expired_messages_never_gets_an_end_before_its_begin():
    bounds = {"t": {"b:0": QueueBounds(0, 10), "b:1": QueueBounds(1000, 1010)}}
    start = with_new_queues({"t": {"b:0": 0}}, bounds)
    assert limit(start, {"t": {"b:0": 10, "b:1": 1010}}, 4) == {"t": {"b:0": 2, "b:1": 1002}}


def test_bytes_become_rows_by_the_size_of_the_next_messages():
    assert rows_for(1_000, [(10, 50), (5, 100)]) == 15
    assert rows_for(500, [(10, 50), (10, 150)]) == 5
    assert rows_for(1, [(10, 50)]) == 1
    assert backlog({"t": {"b:0": 3}}, {"t": {"b:0": 5, "b:1": 2}}) == 4


def test_a_queue_without_a_message_that_late_is_named():
    bounds = {"t": {"b:0": QueueBounds(0, 9), "b:1": QueueBounds(0, 4)}}
    not_that_late({"t": {"b:0": 8, "b:1": 3}}, bounds)
    with pytest.raises(OptionError, match="b:1 of topic 't' has no message"):
        not_that_late({"t": {"b:0": 8, "b:1": 4}}, bounds)


def test_times_must_name_every_queue_and_no_other():
    bounds = {"t": {"b:0": QueueBounds(0, 9), "b:1": QueueBounds(0, 4)}}
    with pytest.raises(OptionError, match="no offset for queue 'b:1'"):
        check_times({"t": {"b:0": 1}}, bounds, name="startingOffsetsByTimestamp")
    with pytest.raises(OptionError, match="no queue 'b:9'"):
        check_times({"t": {"b:0": 1, "b:1": 1, "b:9": 1}}, bounds, name="startingOffsetsByTimestamp")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"subscribe": "a", "subscribePattern": "b"}, "give one of"),
        ({"subscribePattern": "("}, "not a regular expression"),
        ({"subscribe": "a", "startingOffsetsByTimestamp": '{"a": {"b:0": -1}}'}, "must be like"),
        ({"subscribe": "a", "startingOffsetsByTimestamp": "[]"}, "must be like"),
        (
            {"subscribe": "a", "startingOffsetsByTimestamp": '{"a": {"b:0": 9223372036854775808}}'},
            "must be like",
        ),
        (
            {"subscribe": "a", "startingTimestamp": "9223372036854775808"},
            "must be at most 9223372036854775807",
        ),
        ({"subscribe": "a", "startingOffsets": '{"a": {"b:0": 1, "b:0": 9}}'}, "'b:0' occurs twice"),
        ({"subscribe": "a", "startingOffsetsByTimestampStrategy": "x"}, "must be error or latest"),
        ({"subscribe": "a", "maxTriggerDelay": "15 parsecs"}, "must be like 500ms"),
        ({"subscribe": "a", "minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"}, "more than"),
        ({"subscribe": "a", "groupId": "a b"}, "'groupId'"),
        ({"subscribe": "a", "maxBytesPerTrigger": "0"}, "at least 1"),
        ({"subscribe": "a", "tls.client.authServer": "true"}, "no effect without tls.enable"),
        ({"subscribe": "a", "accessKey": "alice"}, "needs both accessKey and secretKey"),
        ({"subscribe": "a", "securityToken": "t"}, "needs both accessKey and secretKey"),
        ({"subscribe": "a", "endingOffsetsByTimestamp": "{}"}, "a stream has no end"),
    ],
)
def test_wrong_source_options_are_named(options, problem):
    with pytest.raises(OptionError, match=problem):
        parse_read_options({"namesrvAddr": "a:1", **options}, streaming=True)


@pytest.mark.parametrize(
    ("text", "ms"), [("500ms", 500), ("30s", 30_000), ("15m", 900_000), ("1h", 3_600_000), ("2 min", 120_000)]
)
def test_durations_have_units(text, ms):
    options = parse_read_options(
        {"namesrvAddr": "a:1", "subscribe": "a", "maxTriggerDelay": text}, streaming=True
    )
    assert options.max_trigger_delay_ms == ms


def test_the_user_of_a_source_is_parsed_and_its_secret_is_not_shown():
    user = {"accessKey": "alice", "secretKey": "hidden99", "securityToken": "hidden11"}
    options = parse_read_options({"namesrvAddr": "a:1", "subscribe": "a", **user}, streaming=True)
    assert options.credentials == Credentials("alice", "hidden99", "hidden11")
    assert "hidden" not in repr(options)


def test_one_time_for_all_queues_goes_before_times_of_queues_as_in_kafkas_connector() -> None:
    of_queues = '{"a": {"b:0": 5}}'
    given = {"namesrvAddr": "h:1", "subscribe": "a"}
    times = {"startingOffsetsByTimestamp": of_queues, "endingOffsetsByTimestamp": of_queues}
    queues = parse_read_options(given | times, streaming=False)
    assert queues.starting_timestamps == queues.ending_timestamps == {"a": {"b:0": 5}}
    both = parse_read_options(
        given | times | {"startingTimestamp": "0", "endingTimestamp": "9"}, streaming=False
    )
    assert (both.starting_timestamp_ms, both.ending_timestamp_ms) == (0, 9)
    assert both.starting_timestamps is None and both.ending_timestamps is None
