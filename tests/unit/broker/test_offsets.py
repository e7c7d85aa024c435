"""Consumer offsets: commits, queries, and resets, which take precedence until a pull has used them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batonmq.broker.tables.offsets import NOT_FOUND, OffsetTable
from batonmq.common.clock import ManualClock
from batonmq.protocol.bodies.common import DataVersion
from batonmq.protocol.names import REVIVE_GROUP, revive_topic

JAVA_FILE = Path(__file__).parents[2] / "data" / "broker" / "java" / "consumerOffset.json"


@pytest.fixture
def offsets() -> OffsetTable:
    return OffsetTable(ManualClock(), version_step=3)


def test_commit_and_query(offsets: OffsetTable) -> None:
    assert offsets.query("g", "t", 0) == NOT_FOUND
    offsets.commit("g", "t", 0, 10)
    offsets.commit("g", "t", 1, 20)
    assert (offsets.query("g", "t", 0), offsets.query("g", "t", 1), offsets.query("g", "t", 2)) == (
        10,
        20,
        NOT_FOUND,
    )
    assert offsets.of("g", "t") == {0: 10, 1: 20}
    assert offsets.take_changed() and not offsets.take_changed()


def test_going_back_is_allowed_and_logged(offsets: OffsetTable, caplog: pytest.LogCaptureFixture) -> None:
    offsets.commit("g", "t", 0, 10)
    offsets.commit("g", "t", 0, 4, client="10.0.0.9:1")
    assert offsets.query("g", "t", 0) == 4
    assert "from=10 to=4 client=10.0.0.9:1" in caplog.text


def test_the_data_version_increases_every_n_commits(offsets: OffsetTable) -> None:
    for offset in range(7):
        offsets.commit("g", "t", 0, offset)
    assert offsets.version.counter == 2


def test_pulled_offsets_fall_back_to_committed_ones(offsets: OffsetTable) -> None:
    assert offsets.query_pulled("g", "t", 0) == NOT_FOUND
    offsets.commit("g", "t", 0, 10)
    assert offsets.query_pulled("g", "t", 0) == 10
    offsets.commit_pulled("g", "t", 0, 15)
    assert offsets.query_pulled("g", "t", 0) == 15
    assert offsets.query("g", "t", 0) == 10


def test_a_reset_is_returned_until_a_pull_uses_it(offsets: OffsetTable) -> None:
    offsets.commit("g", "t", 0, 10)
    offsets.reset("g", "t", 0, 2)
    offsets.commit("g", "t", 0, 11)
    assert offsets.has_reset("g", "t", 0) and offsets.query("g", "t", 0) == 2
    assert offsets.take_reset("g", "t", 0) == 2
    assert not offsets.has_reset("g", "t", 0) and offsets.take_reset("g", "t", 0) is None
    assert offsets.query("g", "t", 0) == 11
    with pytest.raises(ValueError):
        offsets.reset("g", "t", 0, -1)


def test_a_reset_is_dropped_by_its_number_only(offsets: OffsetTable) -> None:
    assert offsets.pending_reset("g", "t", 0) is None
    offsets.drop_reset("g", "t", 0, 0)
    offsets.reset("g", "t", 0, 2)
    first = offsets.pending_reset("g", "t", 0)
    offsets.reset("g", "t", 0, 2)
    second = offsets.pending_reset("g", "t", 0)
    assert first is not None and second is not None
    assert first[0] == second[0] == 2 and first[1] < second[1]
    offsets.drop_reset("g", "t", 0, first[1])
    copied = OffsetTable(ManualClock())
    copied.replace_resets(offsets.encode_resets())
    for table in (offsets, copied):
        assert table.pending_reset("g", "t", 0) == second
        table.drop_reset("g", "t", 0, second[1])
        assert table.pending_reset("g", "t", 0) is None
    assert b"numbers" not in offsets.encode_resets() or b'"numbers":{}' in offsets.encode_resets()


def test_resets_of_a_file_without_numbers_can_be_used(offsets: OffsetTable) -> None:
    offsets.restore_resets(b'{"resetTable":{"t@g":{"0":5}}}')
    assert offsets.pending_reset("g", "t", 0) == (5, 0)
    offsets.drop_reset("g", "t", 0, 0)
    assert offsets.pending_reset("g", "t", 0) is None


def test_topics_and_groups(offsets: OffsetTable) -> None:
    for group, topic in (("g", "t"), ("g", "u"), ("h", "t"), ("g", "%RETRY%g")):
        offsets.commit(group, topic, 0, 1)
    assert offsets.topics_of("g") == {"t", "u", "%RETRY%g"}
    assert offsets.groups_of("t") == {"g", "h"}
    offsets.reset("g", "t", 0, 0)
    offsets.remove_topic("t")
    assert offsets.groups_of("t") == set() and not offsets.has_reset("g", "t", 0)
    offsets.remove_group("g")
    assert offsets.topics_of("g") == set()


def test_clone(offsets: OffsetTable) -> None:
    offsets.commit("g", "t", 0, 7)
    offsets.clone("g", "h", "t")
    offsets.commit("g", "t", 0, 8)
    offsets.clone("nobody", "i", "t")
    assert (offsets.query("h", "t", 0), offsets.query("i", "t", 0)) == (7, NOT_FOUND)


def test_a_file_of_rocketmq_with_bare_numeric_keys_is_read(offsets: OffsetTable) -> None:
    offsets.restore(JAVA_FILE.read_bytes())
    assert offsets.of("GroupJ", "TopicJ") == {0: 0, 1: 0, 2: 0, 3: 0}
    assert offsets.groups_of("TopicJ") == {"GroupJ", "GroupK"}
    assert offsets.version.timestamp == 1795260512478


def test_a_broken_file_changes_nothing(offsets: OffsetTable) -> None:
    offsets.commit("g", "t", 0, 7)
    with pytest.raises(ValueError):
        offsets.restore(b'{"offsetTable":{"t@g":{0:')
    assert offsets.query("g", "t", 0) == 7


def test_a_slave_loads_the_masters_offsets(offsets: OffsetTable) -> None:
    offsets.commit("only-here", "t", 0, 3)
    offsets.commit("g", "t", 0, 3)
    offsets.replace({"t@g": {0: 9, 1: 4}}, DataVersion(counter=12))
    assert offsets.of("g", "t") == {0: 9, 1: 4}
    assert offsets.query("only-here", "t", 0) == 3
    assert offsets.version.counter == 12


@given(
    st.dictionaries(
        st.from_regex(r"\A[%a-zA-Z0-9_-]{1,20}@[a-zA-Z0-9_-]{1,20}\Z"),
        st.dictionaries(st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1), max_size=5),
        max_size=5,
    )
)
def test_what_is_written_is_read_again(table: dict[str, dict[int, int]]) -> None:
    written, read = OffsetTable(ManualClock()), OffsetTable(ManualClock())
    written.replace(table, DataVersion(counter=3, timestamp=9, state_version=1))
    read.restore(written.encode())
    assert read.encode() == written.encode()


def test_groups_of_light_queues_have_their_table_in_the_file_as_in_rocketmq() -> None:
    offsets = OffsetTable(ManualClock(), light_queues=True)
    offsets.commit("%LMQ%g", "%LMQ%a", 0, 7)
    offsets.commit("g", "%LMQ%a", 0, 8)
    offsets.commit("%LMQ%g", "t", 1, 9)  # RocketMQ would keep it as the offset of queue 0
    written = json.loads(offsets.encode())
    assert written["lmqOffsetTable"] == {"%LMQ%a@%LMQ%g": 7}
    assert written["offsetTable"] == {"%LMQ%a@g": {"0": 8}, "t@%LMQ%g": {"1": 9}}
    for copy in (OffsetTable(ManualClock(), light_queues=True), OffsetTable(ManualClock())):
        copy.restore(offsets.encode())
        assert copy.query("%LMQ%g", "%LMQ%a", 0) == 7
        assert copy.query("g", "%LMQ%a", 0) == 8 and copy.query("%LMQ%g", "t", 1) == 9
    assert b"lmq" not in OffsetTable(ManualClock()).encode()


@pytest.mark.parametrize("theirs", [{}, {2: 7}], ids=["no-queue", "another-queue"])
@pytest.mark.parametrize("returns", [False, True], ids=["slave", "master-that-returns"])
def test_a_revive_offset_is_never_ahead_of_the_offsets_that_come_with_it(
    theirs: dict[int, int], returns: bool
) -> None:
    """A new master reads what came after it. The next one had not got that far."""
    topic = revive_topic("c")
    offsets = OffsetTable(ManualClock())
    offsets.commit("g", "T", 0, 1)
    offsets.commit("g", "U", 0, 1)
    offsets.commit(REVIVE_GROUP, topic, 1, 5)
    table = {"T@g": {0: 0}, **({f"{topic}@{REVIVE_GROUP}": theirs} if theirs else {})}
    version = DataVersion(counter=1 << 20)
    if returns:
        assert offsets.take_back(table, version)
    else:
        offsets.replace(table, version)
    assert offsets.query("g", "T", 0) == 0
    assert offsets.query("g", "U", 0) == 1, "a group that the other one does not know stays"
    assert offsets.query(REVIVE_GROUP, topic, 1) == NOT_FOUND
    assert offsets.query(REVIVE_GROUP, topic, 2) == theirs.get(2, NOT_FOUND)
