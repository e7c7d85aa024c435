"""A store with small files, and what the offline reader reads of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from batonmq.common.clock import ManualClock
from batonmq.protocol.message.properties import encode_properties
from batonmq.protocol.message.record import StoredMessage, decode_record, scan_frames
from batonmq.spark.store.columns import STORE_COLUMNS
from batonmq.spark.store.directory import beginnings, inspect
from batonmq.spark.store.options import StoreOptions
from batonmq.spark.store.pieces import Selection, cut, cut_points
from batonmq.spark.store.read import read_piece
from batonmq.store.config import StoreConfig
from batonmq.store.store import MessageStore

FILE = 8192


ALL = tuple(STORE_COLUMNS)


class SmallStore:
    """A store whose files hold 8 KiB of log and 16 units."""

    def __init__(self, root: Path, *, confirm: bool = False) -> None:
        self.root = root
        self.clock = ManualClock()
        self.store = MessageStore.open(
            StoreConfig(
                store_path_root_dir=str(root),
                mapped_file_size_commit_log=FILE,
                mapped_file_size_consume_queue=20 * 16,
                max_hash_slot_num=64,
                max_index_num=256,
            ),
            self.clock,
            wait_for_confirm=confirm,
            disk_usage=lambda _: 0.1,
        )

    def put(
        self, *bodies: bytes, topic: str = "T", queue_id: int = 0, sys_flag: int = 0, **properties: str
    ) -> None:
        for body in bodies:
            self.store.put(
                [
                    StoredMessage(
                        topic=topic,
                        queue_id=queue_id,
                        body=body,
                        sys_flag=sys_flag,
                        properties=encode_properties(properties),
                        born_timestamp=1,
                    )
                ]
            )

    def all_records(self) -> list[Any]:
        """What the store itself reads, in log order."""
        found = []
        for topic, queue_id in self.store.queues():
            bounds = self.store.queue_bounds(topic, queue_id)
            at = bounds.min_offset
            while at < bounds.max_offset:
                result = self.store.get(topic, queue_id, at, 32)
                for view in result.buffers:
                    starts = scan_frames(view)
                    found += [decode_record(view, s) for s in starts[:-1]]
                at = result.next_offset
        return sorted(found, key=lambda m: m.physical_offset)


def rows(
    root: Path,
    columns: tuple[str, ...] = ALL,
    *,
    piece: int = 2000,
    unconfirmed: bool = False,
    keep_going: bool = False,
    selection: Selection = Selection(),  # noqa: B008 - frozen
) -> list[dict[str, Any]]:
    found = inspect(root)
    end = found.end if unconfirmed else found.confirm
    pieces = cut(found, end, beginnings(root, cut_points(found, end, piece)))
    return [
        row
        for one in pieces
        for batch in read_piece(one, selection, columns, fail_on_data_loss=not keep_going)
        for row in batch.to_pylist()
    ]


def check_against(expected: list[Any], got: list[dict[str, Any]]) -> None:
    assert [r["physicalOffset"] for r in got] == [m.physical_offset for m in expected]
    for row, message in zip(got, expected, strict=True):
        assert row["value"] == message.body
        assert (row["topic"], row["queueId"], row["queueOffset"]) == (
            message.topic,
            message.queue_id,
            message.queue_offset,
        )
        assert row["tags"] == message.properties.get("TAGS")
        assert dict(row["properties"]) == message.properties
        assert row["timestamp"].timestamp() * 1000 == message.store_timestamp


def options(**given: Any) -> StoreOptions:
    return StoreOptions(paths=("x",), **given)


def end_of(made: SmallStore, count: int) -> int:
    data = (made.root / "commitlog" / f"{0:020d}").read_bytes()
    return scan_frames(data)[count]
