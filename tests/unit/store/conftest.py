"""A small store: files of 8 KiB, so that every test crosses their borders."""

from __future__ import annotations

from dataclasses import replace

import pytest

from batonmq.common.clock import ManualClock
from batonmq.protocol.message import StoredMessage, encode_properties
from batonmq.store.config import StoreConfig
from batonmq.store.store import MessageStore

FILE_SIZE = 8192


def make_message(body: bytes = b"x", *, topic: str = "T", queue_id: int = 0, **properties: str) -> StoredMessage:
    return StoredMessage(
        topic=topic, queue_id=queue_id, body=body, properties=encode_properties(properties), born_timestamp=1
    )


class Opener:
    """Opens stores below one directory and lets go of all of them at the end."""

    def __init__(self, root) -> None:
        self.root = root
        self.clock = ManualClock()
        self.usage = 0.1
        self.stores: list[MessageStore] = []

    def config(self, name: str = "store", **keys) -> StoreConfig:
        base = StoreConfig(
            store_path_root_dir=str(self.root / name),
            mapped_file_size_commit_log=FILE_SIZE,
            mapped_file_size_consume_queue=20 * 16,
            max_hash_slot_num=64,
            max_index_num=64,
        )
        return replace(base, **keys)

    def __call__(self, name: str = "store", *, confirm: bool = False, **keys) -> MessageStore:
        store = MessageStore.open(
            self.config(name, **keys),
            self.clock,
            wait_for_confirm=confirm,
            disk_usage=lambda _: self.usage,
        )
        self.stores.append(store)
        return store


@pytest.fixture
def opener(tmp_path):
    opener = Opener(tmp_path)
    yield opener
    for store in opener.stores:
        if not store._closed:
            store.abandon()
