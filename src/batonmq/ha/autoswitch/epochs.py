"""Which master wrote which part of the log: `EpochCache`, and the search for the point two logs share.

Owns the list of ``<epoch, start offset>`` in memory and every rule about it; does no I/O (the file is in
`epoch_file.py`). Source: `docs/en/controller/design.md` of Apache RocketMQ, "Log replication".

One rule differs from RocketMQ on purpose. A term in which nothing was written leaves an entry without data.
RocketMQ refuses the next term's entry then, because both start at the same offset, and the next master's data
goes under the *old* epoch; should the old master have written something after all, the two logs differ under
one epoch and the handshake cannot see it. Here the new entry replaces the empty one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from batonmq.protocol.ha_frames import EpochStart

UNBOUNDED: Final = 2**63 - 1
"""End offset of the last epoch while it is being written."""


class EpochEntry(NamedTuple):
    """One epoch's stretch of the log: ``[start_offset, end_offset)``, bytes."""

    epoch: int
    start_offset: int
    end_offset: int


class EpochCache:
    """Epochs of one log, oldest first; both epochs and start offsets strictly increase."""

    __slots__ = ("_entries",)

    def __init__(self, entries: Iterable[EpochStart] = ()) -> None:
        """Raises ValueError if the entries are not strictly increasing."""
        self._entries: list[EpochStart] = list(entries)
        for before, after in zip(self._entries, self._entries[1:], strict=False):
            if after.epoch <= before.epoch or after.start_offset <= before.start_offset:
                raise ValueError(f"epoch {after} does not follow {before}")

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return "[" + " ".join(f"{epoch}-{start}" for epoch, start in self._entries) + "]"

    @property
    def entries(self) -> tuple[EpochStart, ...]:
        return tuple(self._entries)

    @property
    def last_epoch(self) -> int:
        """Newest epoch, -1 if there is none."""
        return self._entries[-1].epoch if self._entries else -1

    @property
    def last_start(self) -> int:
        """Start offset of the newest epoch, 0 if there is none."""
        return self._entries[-1].start_offset if self._entries else 0

    def append(self, epoch: int, start_offset: int) -> bool:
        """A new term begins at `start_offset`, the current end of the log; entries without data give way.

        Returns whether the list changed: appending the newest entry again does nothing.
        Raises ValueError if the epoch is not newer than one that has data.
        """
        entry = EpochStart(epoch, start_offset)
        if self._entries and self._entries[-1] == entry:
            return False
        kept = len(self._entries)
        while kept and self._entries[kept - 1].start_offset >= start_offset:
            kept -= 1
        if self._entries and epoch <= self._entries[-1].epoch:
            raise ValueError(f"epoch {epoch}-{start_offset} does not follow {self}")
        del self._entries[kept:]
        self._entries.append(entry)
        return True

    def truncate_suffix(self, offset: int) -> bool:
        """The log was cut at `offset`: forget epochs that begin there or beyond. Returns whether any did."""
        kept = len(self._entries)
        while kept and self._entries[kept - 1].start_offset >= offset:
            kept -= 1
        changed = kept < len(self._entries)
        del self._entries[kept:]
        return changed

    def truncate_prefix(self, min_offset: int) -> bool:
        """The log begins at `min_offset` now: forget epochs that end at or before it, but never the last."""
        dropped = 0
        while dropped + 1 < len(self._entries) and self._entries[dropped + 1].start_offset <= min_offset:
            dropped += 1
        del self._entries[:dropped]
        return dropped > 0

    def clear(self) -> bool:
        """The log was discarded. Returns whether there was anything to forget."""
        changed = bool(self._entries)
        self._entries.clear()
        return changed

    def assign(self, other: EpochCache) -> None:
        """Take over another cache's entries; all holders of this object see them."""
        self._entries = list(other._entries)

    def segment(self, offset: int) -> EpochEntry | None:
        """The epoch that `offset` belongs to and where its stretch ends; None if no epoch is known at all.

        Bytes before the first entry (a store from before controller mode) are labelled with that entry and
        end where it starts, so that its start is never crossed.
        """
        index = bisect_right(self._entries, offset, key=lambda entry: entry.start_offset)
        if index == 0:
            if not self._entries:
                return None
            first = self._entries[0]
            return EpochEntry(first.epoch, first.start_offset, first.start_offset)
        entry = self._entries[index - 1]
        end = self._entries[index].start_offset if index < len(self._entries) else UNBOUNDED
        return EpochEntry(entry.epoch, entry.start_offset, end)

    def between(self, offset: int, end_offset: int) -> list[EpochStart]:
        """Entries that a log of ``[offset, end_offset)`` must know: that of `offset`, and later ones."""
        first = max(bisect_right(self._entries, offset, key=lambda entry: entry.start_offset) - 1, 0)
        return [entry for entry in self._entries[first:] if entry.start_offset < end_offset]


def consistent_point(
    local: Sequence[EpochStart], local_end: int, remote: Sequence[EpochStart], remote_end: int
) -> int | None:
    """Offset up to which two logs are equal for certain, or None if they share no epoch.

    From the back, the first epoch that both know with the same start is common to both logs; they agree up to
    the smaller of its ends. One master an epoch makes this sound: what two logs hold of one epoch, both got
    from that one master, in order.
    """
    starts = {epoch: index for index, (epoch, _) in enumerate(remote)}
    for index in range(len(local) - 1, -1, -1):
        epoch, start = local[index]
        other = starts.get(epoch)
        if other is None or remote[other].start_offset != start:
            continue
        our_end = local[index + 1].start_offset if index + 1 < len(local) else local_end
        their_end = remote[other + 1].start_offset if other + 1 < len(remote) else remote_end
        return min(our_end, local_end, their_end)
    return None
