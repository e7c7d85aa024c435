"""What a mistake on the command line of a job leaves behind, and what jobs show of times."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator

import pytest

from batonmq import Admin, Message
from batonmq.client.message import PROPERTY_DLQ_ORIGIN_TOPIC
from batonmq.protocol.names import dead_letter_topic
from batonmq.routing.session import Session
from batonmq.spark.jobs import mirror, rollup
from batonmq.spark.jobs.groups import consumed_topics
from batonmq.spark.jobs.state import held

from .conftest import Topics, bodies, values, whole_group
from .test_cli import in_this_process, one_error
from .test_cli_jobs import commit

pytestmark = pytest.mark.timeout(240)


def topics_with_offsets(namesrv: str, group: str) -> set[str]:
    async def ask() -> set[str]:
        async with Admin(namesrv, session=(session := Session(namesrv))) as admin:
            return await consumed_topics(session, (await admin.masters()).values(), group)

    return asyncio.run(ask())


def topics_of(namesrv: str) -> list[str]:
    async def ask() -> list[str]:
        async with Admin(namesrv) as admin:
            return await admin.topics()

    return asyncio.run(ask())


def test_a_mirror_refuses_a_group_that_has_consumed_nothing(session, topics, cluster_of, tmp_path):
    """A mistyped one would be made at the target, at the beginning of every queue, and the group that was
    meant would stay behind."""
    topic, other_topic = topics.make(queues=2), topics.make(queues=2)
    topics.fill(topic, {0: bodies("a", 5), 1: bodies("b", 5)})
    topics.fill(other_topic, {0: bodies("c", 5)})
    commit(topics.namesrv, "movers-1", topic, {0: 3, 1: 0})
    commit(topics.namesrv, "of-another-topic", other_topic, {0: 3})
    other = cluster_of()
    asyncio.run(whole_group(other))
    there = Topics(other.namesrv_address)
    common = ("mirror", "-n", topics.namesrv, "--to-namesrv", there.namesrv, "-t", topic, "--once")
    for wrong in ("movers-2", "of-another-topic"):
        done = in_this_process(*common, "-g", "movers-1", "-g", wrong, "--state", tmp_path / "state")
        assert one_error(done) == (
            f"Error: group {wrong} has consumed nothing of {topic} at the source: is its name right? A group "
            "that has not begun yet needs no mirror; leave it out until it has"
        )
    assert topic not in topics_of(there.namesrv) and not (tmp_path / "state").exists()
    done = in_this_process(*common, "-g", "movers-1", "--state", tmp_path / "state")
    assert done.exit_code == 0, done.stderr
    assert topics_with_offsets(there.namesrv, "movers-1") == {topic}


def test_a_mirror_moves_a_group_in_its_own_topics_only(session, topics, cluster_of, tmp_path):
    """Brokers answer 0 for any group in any queue that has its first message: at the target the group would
    look behind in topics that it does not consume."""
    one, two = topics.make(queues=1), topics.make(queues=1)
    for topic in (one, two):
        topics.fill(topic, {0: bodies("a", 5)})
    commit(topics.namesrv, "of-one-topic", one, {0: 3})
    other = cluster_of()
    asyncio.run(whole_group(other))
    there = Topics(other.namesrv_address)
    for topic in (one, two):
        there.fill(there.make(topic, queues=1), {0: bodies("x", 2)})
    wanted = mirror.Mirror(topics.namesrv, there.namesrv, (one, two), tmp_path, groups=("of-one-topic", "no"))
    lanes = asyncio.run(mirror.prepare(wanted))
    mirror.start(session, wanted, lanes, every=None).awaitTermination()
    assert asyncio.run(mirror.translate(wanted, lanes)) == 1
    assert topics_with_offsets(there.namesrv, "of-one-topic") == {one}
    assert topics_with_offsets(there.namesrv, "no") == set()


def test_a_topic_that_does_not_exist_has_no_lag(topics):
    for name, says in (
        ("nobody-knows-it", "does not exist"),
        (topics.make(), "no group consumes this topic"),
    ):
        assert says in one_error(in_this_process("lag", "-n", topics.namesrv, "-t", name))


def test_a_mistake_in_where_fixes_no_window(session, topics, tmp_path):
    topic, target = topics.make(queues=1), topics.make(queues=1)
    topics.fill(topic, {0: bodies("a", 5)})
    group = f"billing-{topic}"
    letters = topics.make(dead_letter_topic(group), queues=1)
    dead = [Message(letters, b"m", properties={PROPERTY_DLQ_ORIGIN_TOPIC: target})]
    topics.fill(letters, {0: dead})
    replay = ("replay", "-n", topics.namesrv, "-t", topic, "--to", target)
    redrive = ("dlq", "-n", topics.namesrv, "-g", group, "--redrive")
    for number, job in enumerate((replay, redrive)):
        state = tmp_path / f"state-{number}"
        for wrong, says in (("tagz = 'x'", "tagz"), ("tags = = 'x'", "syntax error"), ("queueId", "filter")):
            said = one_error(in_this_process(*job, "--state", state, "--where", wrong)).lower()
            assert says in said
        assert not (state / "window.json").exists()
        done = in_this_process(*job, "--state", state, "--where", "tags is null")
        assert done.exit_code == 0, done.stderr
    assert sorted(values(topics.read(session, target))) == [*bodies("a", 5), b"m"]


def test_a_state_directory_has_one_run_at_a_time_and_one_job(session, topics, tmp_path):
    """Of two replays that began together, each could fix another window: one took the other's first chunk for
    its own, and left out what that did not have."""
    topic, target, state = topics.make(queues=1), topics.make(queues=1), tmp_path / "state"
    topics.fill(topic, {0: bodies("a", 5)})
    replay = ("replay", "-n", topics.namesrv, "-t", topic, "--to", target, "--state", state)
    with held(state, "window.json"):
        assert "is in use by another run" in one_error(in_this_process(*replay))
    assert topics.read(session, target).count() == 0
    assert in_this_process(*replay).exit_code == 0
    archived = tmp_path / "archive"
    assert in_this_process("archive", "-n", topics.namesrv, "-t", topic, "--to", archived).exit_code == 0
    restore = ("restore", "-n", topics.namesrv, "--archive", archived, "--to", target, "--state", state)
    assert "belongs to another job" in one_error(in_this_process(*restore))
    assert in_this_process(*replay).exit_code == 0
    assert topics.read(session, target).count() == 5


def test_a_mistake_in_the_archive_of_a_restore_leaves_its_directory_free(session, topics, tmp_path):
    topic = topics.make(queues=1)
    topics.fill(topic, {0: bodies("a", 3)})
    archived = tmp_path / "archive"
    assert in_this_process("archive", "-n", topics.namesrv, "-t", topic, "--to", archived).exit_code == 0
    restore = ("restore", "-n", topics.namesrv, "--to", topic, "--state", tmp_path / "state")
    assert "PATH_NOT_FOUND" in one_error(in_this_process(*restore, "--archive", tmp_path / "archiv"))
    assert "no topic" in one_error(in_this_process(*restore, "--archive", archived, "-t", "nobody"))
    assert not (tmp_path / "state").exists()
    done = in_this_process(*restore, "--archive", archived)
    assert done.exit_code == 0, done.stderr
    assert topics.read(session, topic).count() == 6


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This machine is far from Greenwich."""
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def test_times_are_shown_in_utc_wherever_the_machine_is(session, topics, tmp_path, elsewhere):
    topic = topics.make(queues=1)
    group = f"billing-{topic}"
    letters = topics.make(dead_letter_topic(group), queues=1)
    before_ms = time.time_ns() // 1_000_000
    topics.fill(letters, {0: [Message(letters, b"m", properties={PROPERTY_DLQ_ORIGIN_TOPIC: topic})]})
    topics.fill(topic, {0: bodies("a", 3)})
    after_ms = time.time_ns() // 1_000_000
    dlq = ("dlq", "-n", topics.namesrv, "-g", group)
    (found,) = json.loads(in_this_process(*dlq, "--json").stdout)
    assert before_ms <= found["first_ms"] <= found["last_ms"] <= after_ms
    utc = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(found["first_ms"] / 1000))
    table = in_this_process(*dlq).stdout
    assert f"{utc} UTC" in table

    commit(topics.namesrv, group, topic, {0: 1})
    lag = ("lag", "-n", topics.namesrv, "-g", group, "-t", topic, "--contents")
    (unread,) = json.loads(in_this_process(*lag, "--json").stdout)["contents"]
    assert before_ms <= unread["oldest_ms"] <= unread["newest_ms"] <= after_ms
    utc = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(unread["oldest_ms"] / 1000))
    assert f"{utc} UTC" in in_this_process(*lag).stdout


def test_the_gaps_of_a_rollup_are_shown_in_utc(session, topics, elsewhere):
    topic = topics.make(queues=1)
    topics.fill(topic, {0: bodies("a", 1)})
    time.sleep(0.3)
    topics.fill(topic, {0: bodies("b", 1)})
    (gap,) = rollup.gaps(topics.read(session, topic, "timestamp timestamp")).collect()
    shown = in_this_process("rollup", "-n", topics.namesrv, "-t", topic).stdout
    utc = gap["began"].astimezone().timestamp()
    assert f"{time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime(utc))}." in shown and "UTC" in shown
