"""A small store: files of 8 KiB and 16 units, so that every test crosses their borders."""

from __future__ import annotations

from dataclasses import replace

import pytest

from batonmq.common.clock import ManualClock
from batonmq.protocol.message.properties import encode_properties
from batonmq.protocol.message.record import MessageExt, StoredMessage, decode_records
from batonmq.store.config import StoreConfig
from batonmq.store.policy import StorePolicy
from batonmq.store.store import MessageStore, PutStatus


class Opener:
    """Opens stores below one directory and lets go of all of them at the end."""

    file_size = 8192

    def __init__(self, root) -> None:
        self.root = root
        self.clock = ManualClock()
        self.usage = 0.1
        self.stores: list[MessageStore] = []

    def config(self, name: str = "store", **keys) -> StoreConfig:
        base = StoreConfig(
            store_path_root_dir=str(self.root / name),
            mapped_file_size_commit_log=self.file_size,
            mapped_file_size_consume_queue=20 * 16,
            max_hash_slot_num=64,
            max_index_num=64,
        )
        return replace(base, **keys)

    def __call__(
        self,
        name: str = "store",
        *,
        confirm: bool = False,
        policy: StorePolicy = StorePolicy(),  # noqa: B008 - frozen
        **keys,
    ) -> MessageStore:
        store = MessageStore.open(
            self.config(name, **keys),
            self.clock,
            wait_for_confirm=confirm,
            policy=policy,
            disk_usage=lambda _: self.usage,
        )
        self.stores.append(store)
        return store

    def close(self) -> None:
        for store in self.stores:
            store.abandon()

    @staticmethod
    def message(
        body: bytes = b"x", *, topic: str = "T", queue_id: int = 0, **properties: str
    ) -> StoredMessage:
        return StoredMessage(
            topic=topic,
            queue_id=queue_id,
            body=body,
            properties=encode_properties(properties),
            born_timestamp=1,
        )

    @staticmethod
    def put(store: MessageStore, *messages: StoredMessage):
        results = store.put(messages)
        assert [result.status for result in results] == [PutStatus.PUT_OK] * len(messages)
        return results

    @staticmethod
    def messages(
        store: MessageStore, queue_id: int = 0, topic: str = "T", begin: int | None = None
    ) -> list[MessageExt]:
        at = store.queue_bounds(topic, queue_id).min_offset if begin is None else begin
        found = []
        while (result := store.get(topic, queue_id, at, 7)).next_offset != at:
            for view in result.buffers:
                found += decode_records(view, check_crc=True)
            at = result.next_offset
        return found

    def bodies(self, store: MessageStore, queue_id: int = 0) -> list[bytes]:
        found = self.messages(store, queue_id)
        bounds = store.queue_bounds("T", queue_id)
        assert [m.queue_offset for m in found] == list(range(bounds.min_offset, bounds.max_offset))
        return [message.body for message in found]


@pytest.fixture
def opener(tmp_path):
    opener = Opener(tmp_path)
    yield opener
    opener.close()


@pytest.fixture
def new_opener(tmp_path_factory):
    """Makes openers of new directories: for property tests, which run a test many times."""
    made = []

    def make() -> Opener:
        made.append(Opener(tmp_path_factory.mktemp("store")))
        return made[-1]

    yield make
    for opener in made:
        opener.close()
