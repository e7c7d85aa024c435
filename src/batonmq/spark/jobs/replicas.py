"""Compares the commit logs of a broker set's replicas. Reads store directories, running or not."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from batonmq.common.plural import counted
from batonmq.protocol.message.layout import MAGIC_BLANK
from batonmq.protocol.message.record import scan_frames
from batonmq.spark.options import ClearError

CHUNK = 8 * 1024 * 1024


class ReplicasError(ClearError):
    """The logs cannot be compared; the text has the reason."""


@dataclass(frozen=True, slots=True)
class Compared:
    """Result of a comparison of the logs from the highest start to the lowest end."""

    begin: int
    end: int
    lengths: dict[str, int]
    """Store -> physical offset after its last whole record."""
    first_difference: int | None

    @property
    def equal(self) -> bool:
        return self.first_difference is None

    @property
    def text(self) -> str:
        if self.first_difference is not None:
            return f"replicas DIFFER from physical offset {self.first_difference:,} on"
        behind = max(self.lengths.values()) - self.end
        tail = f" (one replica is {counted(behind, 'byte')} behind)" if behind else ""
        return f"replicas are byte-equal from {self.begin:,} to {self.end:,}{tail}"

    def as_dict(self) -> dict[str, object]:
        return {
            "begin": self.begin,
            "end": self.end,
            "lengths": self.lengths,
            "first_difference": self.first_difference,
        }


def compare(stores: Sequence[Path]) -> Compared:
    """Compare the commit logs below two or more store directories byte by byte. Raises `ReplicasError`."""
    logs = [_Log(store / "commitlog") for store in stores]
    try:
        begin = max(log.begin for log in logs)
        lengths = {str(store): log.end for store, log in zip(stores, logs, strict=True)}
        end = min(lengths.values())
        same = len({(log.begin, log.end) for log in logs}) == 1
        if begin >= end and not same:
            # Of two that end there, the one that begins earlier: the other one may be empty.
            behind, _ = min(zip(stores, logs, strict=True), key=lambda pair: (pair[1].end, pair[1].begin))
            raise ReplicasError(
                f"the logs have no offset in common: {behind} ends at {end:,}, and another one begins at "
                f"{begin:,}; are they replicas of one broker set?"
            )
        return Compared(begin, end, lengths, _first_difference(logs, begin, end))
    finally:
        for log in logs:
            log.close()


def _first_difference(logs: Sequence[_Log], begin: int, end: int) -> int | None:
    for at in range(begin, end, CHUNK):
        size = min(CHUNK, end - at)
        parts = [log.read(at, size) for log in logs]
        for other in parts[1:]:
            if other != parts[0]:
                place = next(i for i, (a, b) in enumerate(zip(parts[0], other, strict=True)) if a != b)
                return at + place
    return None


class _Log:
    """The commit log files of one store, read only."""

    def __init__(self, directory: Path) -> None:
        paths = sorted(p for p in directory.iterdir() if p.name.isdigit())
        if not paths:
            raise FileNotFoundError(f"no commit log files in {directory}")
        self._directory = directory
        self._maps: list[tuple[int, mmap.mmap]] = []
        for path in paths:
            with path.open("rb") as file:
                self._maps.append((int(path.name), mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)))
        self.begin = self._maps[0][0]
        self.end = self._whole_records_end()

    def _whole_records_end(self) -> int:
        """Offset after the last whole record: files before the last one are full."""
        for base, data in reversed(self._maps):
            frames_end = scan_frames(data)[-1]  # type: ignore[arg-type]
            filler = int.from_bytes(data[frames_end + 4 : frames_end + 8], "big", signed=True)
            if frames_end + 8 <= len(data) and filler == MAGIC_BLANK:
                return base + len(data)
            if frames_end or base == self.begin:
                return base + frames_end
        raise AssertionError("unreachable: the first file always answers")

    def read(self, offset: int, size: int) -> bytes:
        parts = []
        while size:
            base, data = next((b, d) for b, d in reversed(self._maps) if b <= offset)
            part = data[offset - base : offset - base + size]
            if not part:
                raise ReplicasError(f"{self._directory}: the file with offset {offset} is missing or short")
            parts.append(part)
            offset += len(part)
            size -= len(part)
        return b"".join(parts)

    def close(self) -> None:
        for _, data in self._maps:
            data.close()
