"""What features give the store: codes of consume queue units, and observers of dispatch."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from batonmq.protocol.codes import MessageSysFlag
from batonmq.protocol.java_hash import java_hash
from batonmq.protocol.message.batch import BatchItem, encode_batch
from batonmq.protocol.message.properties import encode_properties
from batonmq.protocol.message.record import StoredMessage
from batonmq.store import dispatch
from batonmq.store.consumequeue import UNIT
from batonmq.store.policy import StorePolicy
from batonmq.store.scan import Record
from batonmq.store.store import MessageStore
from batonmq.store.verify import verify

OWN = StorePolicy({"Own": lambda properties, stored_ms: stored_ms + len(properties)})


def codes(store: MessageStore, topic: str) -> list[int]:
    store.flush_queues()
    path = store.config.consume_queue_path / topic / "0" / f"{0:020}"
    return [code for _, size, code in UNIT.iter_unpack(path.read_bytes()) if size]


def test_units_of_a_topic_hold_what_its_policy_says(opener) -> None:
    """Put alone or in a batch, copied by a slave, or built again after a crash."""
    store, copy = opener(policy=OWN), opener("copy", policy=OWN)
    stored_ms, tagged = opener.clock.now_ms(), encode_properties({"TAGS": "a"})
    batch = encode_batch([BatchItem(body=b"x", properties=tagged)] * 2)
    opener.put(store, opener.message(topic="Own", TAGS="a"), opener.message(TAGS="a"))
    opener.put(store, StoredMessage(topic="Own", queue_id=0, body=batch, batch=True))
    expected = [stored_ms + len(tagged)] * 3
    assert (codes(store, "Own"), codes(store, "T")) == (expected, [java_hash("a")])
    opener.clock.advance(5_000)
    copy.append_raw(0, store.read(0, 1 << 20))
    copy.dispatch()
    assert (codes(copy, "Own"), codes(copy, "T")) == (expected, [java_hash("a")])
    assert verify(opener.root / "copy", unit_codes=OWN.unit_codes).ok
    wrong = verify(opener.root / "copy").errors
    assert len(wrong) == 3 and all(error.startswith("Own/0 unit ") for error in wrong)
    copy.abandon()
    path = copy.config.consume_queue_path / "Own" / "0" / f"{0:020}"
    path.unlink()
    (copy.config.root / "checkpoint").unlink()
    assert codes(opener("copy", policy=OWN), "Own") == expected


class Seen:
    """An observer that keeps what it sees."""

    def __init__(self) -> None:
        self.calls: list[Sequence[Record]] = []

    def dispatched(self, records: Sequence[Record]) -> None:
        self.calls.append(records)

    def bodies(self, store: MessageStore) -> list[tuple[str, int, bytes]]:
        found = []
        for record in (record for call in self.calls for record in call):
            view = store.read(record.physical_offset, record.size)
            size = int.from_bytes(view[84:88], "big")
            found.append((record.topic, record.queue_offset, bytes(view[88 : 88 + size])))
        self.calls.clear()
        return found


def test_observers_see_what_dispatch_makes_visible_once_and_in_order(opener) -> None:
    seen = Seen()
    store = opener(confirm=True, policy=StorePolicy(observers=[seen]))
    prepared = StoredMessage(
        topic="T", queue_id=0, body=b"half", sys_flag=MessageSysFlag.TRANSACTION_PREPARED
    )
    results = opener.put(store, opener.message(b"0"), prepared, opener.message(b"1", topic="U", N="7"))
    store.dispatch()
    assert not seen.calls, "nothing is confirmed"
    store.confirm_offset = results[1].end_offset
    store.dispatch()
    assert len(seen.calls) == 1
    assert seen.bodies(store) == [("T", 0, b"0"), ("T", 0, b"half")]
    store.confirm_offset = store.max_offset
    store.dispatch()
    (record,) = seen.calls[0]
    assert (record.physical_offset, record.properties) == (results[2].physical_offset, b"N\x017\x02")
    assert seen.bodies(store) == [("U", 0, b"1")]
    store.dispatch()
    assert not seen.calls


@pytest.mark.parametrize("at_once", [4096, 7])
def test_observers_see_all_files_of_a_log_that_is_copied(opener, monkeypatch, at_once) -> None:
    monkeypatch.setattr(dispatch, "_SHOWN_AT_ONCE", at_once)
    master, seen = opener("master"), Seen()
    opener.put(master, *(opener.message(b"%d" % n * 100) for n in range(100)))
    assert master.max_offset > 2 * opener.file_size
    slave = opener("slave", policy=StorePolicy(observers=[seen]))
    while slave.max_offset < master.max_offset:
        slave.append_raw(slave.max_offset, bytes(master.read(slave.max_offset, 700)))
        slave.dispatch()
    assert max(map(len, seen.calls)) <= at_once
    assert seen.bodies(slave) == [("T", n, b"%d" % n * 100) for n in range(100)]
    slave.close()
    again = opener("slave", policy=StorePolicy(observers=[seen]))
    assert not seen.calls, "a clean stop leaves nothing to be dispatched"
    again.truncate(again.min_offset)
    again.append_raw(again.max_offset, bytes(master.read(0, 700)))
    again.dispatch()
    assert seen.bodies(again)[0] == ("T", 0, b"0" * 100), "what was cut is seen again"
