"""Was anything lost, overwritten, reordered, duplicated or taken back? Pure functions of what was recorded.

The sender's record is the truth: nothing that a broker says of itself counts. A message is known by its key.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

EXAMPLES = 5
"""Of each kind of violation so many are described."""


@dataclass(frozen=True, slots=True)
class Send:
    """One message as its sender saw it; times in us of one monotonic clock."""

    key: str
    sent_us: int
    attempts: int
    """Requests that were made; each may have stored one copy."""
    acked_us: int | None = None
    """None: the sender does not know what became of it."""
    queue: int = -1
    offset: int = -1
    """Where the acknowledgement says that it is."""
    broker: str = ""
    """Who acknowledged it."""
    error: str = ""


@dataclass(frozen=True, slots=True)
class Found:
    """One message as it was read or delivered."""

    queue: int
    offset: int
    key: str
    intact: bool
    """The body is the one that was sent with this key."""


class Kind(StrEnum):
    """What must not happen."""

    LOST = "lost: acknowledged, and nowhere in the log"
    OVERWRITTEN = "overwritten: another message is where it was acknowledged"
    MOVED = "moved: acknowledged at one place, stored at another"
    CORRUPT = "corrupt: not the bytes that were sent"
    REORDERED = "reordered: sent after another was acknowledged, stored before it"
    MULTIPLIED = "multiplied: more copies than attempts"
    INVENTED = "invented: nobody sent it"
    HOLE = "hole: a queue offset without a message"
    TAKEN_BACK = "taken back: a consumer got what the log does not have"
    UNDELIVERED = "undelivered: acknowledged, and no consumer got it"
    RESURRECTED = "resurrected: rolled back, or never acknowledged, and there"
    AGAIN = "again: received again after its ack"
    EARLY = "early: delivered before its time, or received again while it was invisible"
    REPLICAS_DIFFER = "replicas differ"
    DEPOSED = "deposed: a master lost its role although every program ran and reached the others"
    UNHEALED = "the group did not become whole again"


@dataclass(slots=True)
class Verdict:
    """What the check found."""

    sent: int = 0
    acked: int = 0
    stored: int = 0
    duplicated: int = 0
    """Keys stored more than once by attempts of their sender whose outcome it did not know: allowed."""
    redelivered: int = 0
    """Deliveries beyond the first of a place: allowed, delivery is at least once."""
    counts: Counter[StrEnum] = field(default_factory=Counter)
    examples: dict[StrEnum, list[str]] = field(default_factory=lambda: defaultdict(list))

    @property
    def ok(self) -> bool:
        return not self.counts

    def violated(self, kind: StrEnum, what: str) -> None:
        self.counts[kind] += 1
        if len(self.examples[kind]) < EXAMPLES:
            self.examples[kind].append(what)

    def merge(self, other: Verdict) -> None:
        """Add the violations of another look at the same messages."""
        self.counts.update(other.counts)
        for kind, texts in other.examples.items():
            self.examples[kind] = (self.examples[kind] + texts)[:EXAMPLES]


def check(sends: Sequence[Send], log: Iterable[Found], deliveries: Iterable[Found] | None = None) -> Verdict:
    """Compare what the senders know with the log as it is read afterwards, and with what consumers got.

    `deliveries` None: nobody consumed.
    """
    verdict = Verdict(sent=len(sends))
    places: dict[tuple[int, int], Found] = {}
    copies: dict[str, list[Found]] = defaultdict(list)
    for found in log:
        places[found.queue, found.offset] = found
        copies[found.key].append(found)
    verdict.stored = len(places)
    _check_log(verdict, sends, places, copies)
    _check_order(verdict, sends)
    if deliveries is not None:
        _check_deliveries(verdict, sends, places, deliveries)
    return verdict


def _check_log(
    verdict: Verdict,
    sends: Sequence[Send],
    places: dict[tuple[int, int], Found],
    copies: dict[str, list[Found]],
) -> None:
    known = {send.key for send in sends}
    for send in sends:
        stored = copies.get(send.key, [])
        if len(stored) > 1:
            verdict.duplicated += 1
        if len(stored) > send.attempts:
            verdict.violated(
                Kind.MULTIPLIED, f"{send.key}: {len(stored)} copies of {send.attempts} attempt(s)"
            )
        if send.acked_us is None:
            continue
        verdict.acked += 1
        at = f"{send.key}, queue {send.queue} offset {send.offset}, acknowledged by {send.broker}"
        there = places.get((send.queue, send.offset))
        if there is not None and there.key == send.key:
            continue
        if there is not None:
            verdict.violated(Kind.OVERWRITTEN, f"{at}: there is {there.key}")
        elif stored:
            verdict.violated(Kind.MOVED, f"{at}: is at {stored[0].queue}/{stored[0].offset}")
        else:
            verdict.violated(Kind.LOST, at)
    ends: dict[int, int] = {}
    for (queue, offset), found in places.items():
        ends[queue] = max(ends.get(queue, 0), offset + 1)
        if found.key not in known:
            verdict.violated(Kind.INVENTED, f"{found.key} at {queue}/{offset}")
        elif not found.intact:
            verdict.violated(Kind.CORRUPT, f"{found.key} at {queue}/{offset}")
    for queue, end in ends.items():
        for offset in range(end):
            if (queue, offset) not in places:
                verdict.violated(Kind.HOLE, f"{queue}/{offset}, the queue ends at {end}")


def _check_order(verdict: Verdict, sends: Sequence[Send]) -> None:
    """Within a queue: what was acknowledged before another was sent lies before it."""
    queues: dict[int, list[tuple[int, Send, int]]] = defaultdict(list)
    for send in sends:
        if send.acked_us is not None:
            queues[send.queue].append((send.offset, send, send.acked_us))
    for queue, entries in queues.items():
        entries.sort(key=lambda entry: entry[0])
        latest = entries[0][1]
        for _, send, acked_us in entries:
            if acked_us < latest.sent_us:
                verdict.violated(
                    Kind.REORDERED,
                    f"queue {queue}: {send.key} was acknowledged before {latest.key} was sent, "
                    f"but lies behind it ({send.offset} > {latest.offset})",
                )
            if send.sent_us > latest.sent_us:
                latest = send


def _check_deliveries(
    verdict: Verdict,
    sends: Sequence[Send],
    places: dict[tuple[int, int], Found],
    deliveries: Iterable[Found],
) -> None:
    delivered: set[tuple[int, int, str]] = set()
    for got in deliveries:
        if (got.queue, got.offset, got.key) in delivered:
            verdict.redelivered += 1
            continue
        delivered.add((got.queue, got.offset, got.key))
        there = places.get((got.queue, got.offset))
        if there is None or there.key != got.key:
            instead = there.key if there is not None else "nothing"
            verdict.violated(Kind.TAKEN_BACK, f"{got.key} at {got.queue}/{got.offset}, now {instead}")
        elif not got.intact:
            verdict.violated(Kind.CORRUPT, f"{got.key} as delivered from {got.queue}/{got.offset}")
    for send in sends:
        if send.acked_us is not None and (send.queue, send.offset, send.key) not in delivered:
            verdict.violated(Kind.UNDELIVERED, f"{send.key} at {send.queue}/{send.offset}")


def longest_gap_s(acks_us: Sequence[int], start_us: int, end_us: int) -> float:
    """Longest time without an acknowledgement that touches `start_us` to `end_us`, in seconds.

    `acks_us` must be sorted. A gap counts from the last acknowledgement before `start_us`, and to `end_us` if
    none follows.
    """
    last, longest = start_us, 0
    for moment in acks_us:
        if moment < start_us:
            last = moment
            continue
        longest = max(longest, min(moment, end_us) - last)
        if moment >= end_us:
            break
        last = moment
    else:
        longest = max(longest, end_us - last)
    return longest / 1e6
