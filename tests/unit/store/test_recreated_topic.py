"""A topic that was deleted and created again: its queues count from 0 once more, in the same log.

A store that builds the queues from the log (a slave's, any after a crash) sees the messages of both topics.
It must end with what the master had that took them: the new ones alone, each at the offset that was
acknowledged.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from batonmq.store import consumequeue
from batonmq.store.store import MessageStore


@pytest.fixture
def master(opener) -> MessageStore:
    store = opener("master")
    opener.put(store, *(opener.message(b"old %d" % number) for number in range(40)))
    opener.put(store, opener.message(b"other", topic="Other"))
    store.dispatch()
    store.delete_topic("T")
    return store


def copy(opener, master: MessageStore, slave: MessageStore) -> None:
    while slave.max_offset < master.max_offset:
        slave.append_raw(slave.max_offset, bytes(master.read(slave.max_offset, 700)))
        slave.dispatch()


@pytest.mark.parametrize("count", [1, 3, 40, 60])
def test_a_slave_has_the_new_messages_where_the_master_has_them(opener, master, count) -> None:
    slave = opener("slave")
    copy(opener, master, slave)
    assert len(opener.messages(slave)) == 40 and not slave.recreated_topics
    opener.put(master, *(opener.message(b"new %d" % number) for number in range(count)))
    master.dispatch()
    copy(opener, master, slave)
    new = [b"new %d" % number for number in range(count)]
    assert [message.body for message in opener.messages(slave)] == new
    assert [message.queue_offset for message in opener.messages(slave)] == list(range(count))
    assert slave.queue_bounds("T", 0) == master.queue_bounds("T", 0)
    assert [message.body for message in opener.messages(slave, topic="Other")] == [b"other"]
    assert slave.recreated_topics == {"T"}
    # It takes over: the next one follows.
    (result,) = opener.put(slave, opener.message(b"next"))
    slave.dispatch()
    assert result.queue_offset == count
    assert [message.body for message in opener.messages(slave)] == [*new, b"next"]


def test_offsets_continue_from_the_new_messages_that_no_queue_shows_yet(opener, master) -> None:
    opener.put(master, *(opener.message(b"new %d" % number) for number in range(3)))
    slave = opener("slave", confirm=True)
    slave.confirm_offset = 0
    while slave.max_offset < master.max_offset:
        slave.append_raw(slave.max_offset, bytes(master.read(slave.max_offset, 700)))
    opened = opener.messages(master)[0].physical_offset
    slave.confirm_offset = opened
    slave.dispatch()
    assert len(opener.messages(slave)) == 40
    assert opener.put(slave, opener.message(b"next"))[0].queue_offset == 3
    given = 4
    for message in (*opener.messages(master)[1:], None):
        slave.confirm_offset = slave.max_offset if message is None else message.physical_offset
        slave.dispatch()
        # Also when the former queue has just been replaced, and the new one is behind.
        assert opener.put(slave, opener.message(b"last"))[0].queue_offset == given
        given += 1
    slave.confirm_offset = slave.max_offset
    slave.dispatch()
    bodies = [m.body for m in opener.messages(slave)]
    assert bodies == [b"new 0", b"new 1", b"new 2", b"next", b"last", b"last", b"last"]


@pytest.mark.parametrize("flushed", [False, True])
def test_after_a_crash_the_master_has_what_it_had(opener, master, flushed) -> None:
    opener.put(master, *(opener.message(b"new %d" % number) for number in range(3)))
    master.dispatch()
    if flushed:
        master.flush()
    master.abandon()
    again = opener("master")
    assert [m.body for m in opener.messages(again)] == [b"new 0", b"new 1", b"new 2"]
    assert opener.put(again, opener.message(b"next"))[0].queue_offset == 3


def test_what_was_dispatched_before_is_still_passed_over(opener) -> None:
    store = opener("one", confirm=True)
    opener.put(store, *(opener.message(b"%d" % number) for number in range(30)))
    store.confirm_offset = store.max_offset
    store.dispatch()
    store.abandon()
    # Nothing was flushed: the queues are read from the log again, over what is there of them.
    assert not (store.config.root / "checkpoint").exists()
    again = opener("one", confirm=True)
    again.confirm_offset = again.max_offset
    again.dispatch()
    assert [m.body for m in opener.messages(again)] == [b"%d" % number for number in range(30)]
    assert not again.recreated_topics


def test_what_a_failed_turn_has_written_is_passed_over(opener, monkeypatch) -> None:
    store, calls = opener("one"), []
    write_all = consumequeue.write_all

    def full_for_the_second(*arguments):
        calls.append(arguments)
        if len(calls) == 2:
            raise OSError(28, "No space left on device")
        write_all(*arguments)

    monkeypatch.setattr(consumequeue, "write_all", full_for_the_second)
    opener.put(store, *(opener.message(b"x", queue_id=queue_id) for queue_id in (0, 1)))
    assert store.dispatched_offset == 0 and store.queue_bounds("T", 0).max_offset == 1
    store.dispatch()
    assert [store.queue_bounds("T", queue_id).max_offset for queue_id in (0, 1)] == [1, 1]
    assert not store.recreated_topics


@pytest.mark.parametrize("failing", ["unlink", "write"])
def test_it_is_reported_also_if_the_disk_fails_halfway(opener, master, monkeypatch, failing) -> None:
    slave = opener("slave")
    copy(opener, master, slave)
    opener.put(master, opener.message(b"new"))
    master.dispatch()
    calls = []

    def fail_once(real):
        def call(*arguments, **keys):
            calls.append(arguments)
            if len(calls) == 2 or failing == "write":
                raise OSError(5, "Input/output error")
            return real(*arguments, **keys)

        return call

    with monkeypatch.context() as broken:
        if failing == "unlink":
            broken.setattr(Path, "unlink", fail_once(Path.unlink))
        else:
            broken.setattr(consumequeue, "write_all", fail_once(consumequeue.write_all))
        slave.append_raw(slave.max_offset, bytes(master.read(slave.max_offset, 700)))
        slave.dispatch()
    assert calls and slave.dispatched_offset < slave.max_offset
    slave.dispatch()
    assert [message.body for message in opener.messages(slave)] == [b"new"]
    assert slave.recreated_topics == {"T"}


def test_a_new_master_knows_of_it_before_the_queues_show_it(opener, master) -> None:
    slave = opener("slave", confirm=True)
    while slave.max_offset < master.max_offset:
        slave.append_raw(slave.max_offset, bytes(master.read(slave.max_offset, 700)))
    slave.confirm_offset = slave.max_offset
    slave.dispatch()
    opener.put(master, opener.message(b"new"))
    slave.append_raw(slave.max_offset, bytes(master.read(slave.max_offset, 700)))
    assert not slave.recreated_topics
    slave.cut_torn_tail()
    assert slave.recreated_topics == {"T"}


@pytest.mark.parametrize("shown", [0, 3, 5])
@pytest.mark.parametrize("takes_over", [False, True])
def test_messages_of_the_former_topic_that_are_confirmed_later_count_for_nothing(
    opener, shown, takes_over
) -> None:
    """Also if another replica goes on with the log, and after a restart."""
    store = opener("first", confirm=True)
    old = opener.put(store, *(opener.message(b"old") for _ in range(5)))
    if shown == 5:
        store.confirm_offset = store.max_offset
        store.dispatch()
        opener.put(store, opener.message(b"old"), opener.message(b"old"))
    elif shown:
        store.confirm_offset = old[shown - 1].end_offset
        store.dispatch()
    store.delete_topic("T")
    bodies = [b"new %d" % number for number in range(4)]
    for body in bodies[:2]:
        opener.put(store, opener.message(body))
    if takes_over:
        slave = opener("second", confirm=True)
        while slave.max_offset < store.max_offset:
            slave.append_raw(slave.max_offset, bytes(store.read(slave.max_offset, 700)))
        slave.confirm_offset = store.confirm_offset
        slave.dispatch()
        store = slave
    offsets = [result.queue_offset for result in opener.put(store, opener.message(bodies[2]))]
    store.confirm_offset = store.max_offset
    store.dispatch()
    offsets += [result.queue_offset for result in opener.put(store, opener.message(bodies[3]))]
    assert offsets == [2, 3]
    store.confirm_offset = store.max_offset
    store.dispatch()
    assert [m.body for m in opener.messages(store)] == bodies
    assert not any(store._queues.by_key["T", 0].read(4, 8)), "nothing of the former queue is behind"
    store.close()
    again = opener("second" if takes_over else "first")
    assert [m.body for m in opener.messages(again)] == bodies
    assert opener.put(again, opener.message(b"next"))[0].queue_offset == 4
