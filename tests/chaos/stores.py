"""The replicas' files: are they equal, and do their parts agree? Reads live stores, ours or Java's."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from batonmq.protocol.message.record import decode_record
from batonmq.store.recovery import walk
from batonmq.store.verify import open_log, read_store, verify
from tests.chaos.check import Found
from tests.chaos.load import ONE_SET, Places, found

_PIECE = 1 << 20
LEVEL_TIMEOUT_S = 15.0


def log_end(root: Path) -> int:
    """Where the last whole record of the store's commit log ends."""
    files = open_log(root)
    try:
        return walk(files, files.base, crc=False).end
    finally:
        files.close()


def first_difference(roots: Sequence[Path], end: int) -> int | None:
    """The first commit log offset below `end` at which the stores differ; None if they are byte-equal."""
    opened = [open_log(root) for root in roots]
    try:
        base = max(files.base for files in opened)
        size = opened[0].files[0].size
        for start in range(base, end, _PIECE):
            number, stop = (start - base) // size, min(start + _PIECE, end)
            at = start - base - number * size
            pieces = [
                bytes(files.files[(base - files.base) // size + number].map[at : at + stop - start])
                for files in opened
            ]
            for piece in pieces[1:]:
                if piece != pieces[0]:
                    pairs = zip(pieces[0], piece, strict=False)
                    return start + next((i for i, (a, b) in enumerate(pairs) if a != b), 0)
        return None
    finally:
        for files in opened:
            files.close()


def compare_replicas(roots: Sequence[Path], timeout_s: float = LEVEL_TIMEOUT_S) -> str | None:
    """Wait until all logs end at the same offset and compare them; None if they are equal, else what is not.

    Nothing may be sent meanwhile.
    """
    deadline = time.monotonic() + timeout_s
    ends = [log_end(root) for root in roots]
    while len(set(ends)) > 1 and time.monotonic() < deadline:
        time.sleep(0.2)
        ends = [log_end(root) for root in roots]
    names = ", ".join(f"{root.name} to {end}" for root, end in zip(roots, ends, strict=True))
    differs = first_difference(roots, min(ends))
    if differs is not None:
        return f"commit logs differ at {differs} ({names})"
    if len(set(ends)) > 1:
        return f"commit logs are not level after {timeout_s:g} s ({names})"
    return None


def read_topics(root: Path, places: Places = ONE_SET) -> dict[str, list[Found]]:
    """All messages of a store by topic, straight from its commit log."""
    topics: dict[str, list[Found]] = {}
    for record, view in read_store(root):
        if record.has_unit:
            topics.setdefault(record.topic, []).append(found(decode_record(view, 0), places))
        view.release()
    return topics


def complaints(root: Path) -> list[str]:
    """What is wrong with a stopped store: CRCs, and consume queues against the log."""
    report = verify(root)
    damage = [f"{root.name}: log damaged: {report.damage}"] if report.damage is not None else []
    return damage + [f"{root.name}: {text}" for text in report.errors]
