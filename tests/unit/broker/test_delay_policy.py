"""Consume queue units of delayed messages in a real store."""

from __future__ import annotations

from pathlib import Path

from batonmq.broker.delay.unit_codes import delay_unit_codes
from batonmq.common.clock import ManualClock
from batonmq.protocol.java_hash import java_hash
from batonmq.protocol.message.properties import encode_properties
from batonmq.protocol.message.record import StoredMessage
from batonmq.store.config import StoreConfig
from batonmq.store.consumequeue import UNIT
from batonmq.store.policy import StorePolicy
from batonmq.store.store import MessageStore
from batonmq.store.verify import verify

POLICY = StorePolicy(delay_unit_codes((1_000, 60_000)))


def unit_codes(store: MessageStore) -> list[int]:
    store.flush_queues()
    path = store.config.consume_queue_path / "SCHEDULE_TOPIC_XXXX" / "0" / f"{0:020}"
    return [code for _, size, code in UNIT.iter_unpack(path.read_bytes()) if size]


def test_units_of_delayed_messages_hold_the_time_of_delivery(tmp_path: Path) -> None:
    clock = ManualClock()

    def open_store(name: str) -> MessageStore:
        config = StoreConfig(store_path_root_dir=str(tmp_path / name), mapped_file_size_commit_log=8192)
        return MessageStore.open(config, clock, wait_for_confirm=False, policy=POLICY)

    store, copy = open_store("store"), open_store("copy")
    stored_ms = clock.now_ms()
    store.put(
        [
            StoredMessage(
                topic="SCHEDULE_TOPIC_XXXX",
                queue_id=0,
                body=b"x",
                properties=encode_properties({"DELAY": level, "TAGS": "a"}),
            )
            for level in ("1", "2", "7", "0", "soon")
        ]
    )
    # A level above the last counts as the last; without a level the code is the hash of the tags.
    a = java_hash("a")
    expected = [stored_ms + 1_000, stored_ms + 60_000, stored_ms + 60_000, a, a]
    assert unit_codes(store) == expected
    clock.advance(5_000)
    copy.append_raw(0, store.read(0, 1 << 20))
    copy.dispatch()
    assert unit_codes(copy) == expected
    for each in (store, copy):
        each.close()
        assert verify(each.config.root, unit_codes=POLICY.unit_codes).ok
