"""Did transactions, pop consumption and timers keep their promises? Pure functions of what was recorded.

As in `check.py` the client's record is the truth. All times are of one machine: us of its monotonic clock,
or, for times of delivery, ms since the epoch.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import NamedTuple

from tests.chaos.check import Found, Kind, Send, Verdict

SLACK_US = 50_000
"""Clocks are read some time after what they are read for."""
ACK_TIMEOUT_US = 3_000_000


class Span(NamedTuple):
    """A time in which a slave may have acted as master; us. docs/acting-master.md says what may come twice
    then."""

    from_us: int
    to_us: int


def _during(spans: Iterable[Span], from_us: int, to_us: float) -> bool:
    return any(span.from_us <= to_us and from_us <= span.to_us for span in spans)


@dataclass(slots=True)
class Prepared:
    """One transaction as its producer knows it."""

    key: str
    began_us: int
    attempts: int = 0
    """Requests that may have stored a half message."""
    acked_us: int | None = None
    """When the half message was acknowledged; None: the local transaction did not run."""
    commits: bool = False
    """The decision: sent to the broker, or kept for its check."""
    ended_us: int | None = None
    """When the broker confirmed the end."""
    error: str = ""
    given_up: bool = False
    """The half message was not acknowledged: a check is answered with a rollback."""


class Handle(NamedTuple):
    """What an ack names: one message of one pop."""

    topic: str
    """Where the message is stored: the topic, or a retry topic."""
    queue_id: int
    offset: int
    pop_time: int
    """ms"""


@dataclass(slots=True)
class Receipt:
    """One message as a pop consumer received it."""

    key: str
    asked_us: int
    """When the request was sent that brought it."""
    got_us: int
    acked_us: int | None = None
    """When its ack was answered with success."""
    failed: bool = False
    """Its ack was not answered with success. The log says whether it counts."""
    handle: Handle | None = None


def check_transactions(
    transactions: Sequence[Prepared],
    log: Iterable[Found],
    deliveries: Iterable[str] | None = None,
    *,
    acting: Sequence[Span] = (),
) -> Verdict:
    """What was committed is there, once for each half message; nothing else is. `deliveries`: keys.

    `acting`: the acting slave and the master that returns may both commit what was undecided then.
    """
    verdict = Verdict(sent=len(transactions))
    copies = _copies(verdict, {each.key for each in transactions}, log)
    delivered = None if deliveries is None else Counter(deliveries)
    for each in transactions:
        committed = each.commits and each.acked_us is not None
        verdict.acked += committed
        count = copies[each.key]
        if not committed:
            what = "rolled back" if each.acked_us is not None else "never acknowledged"
            if count or (delivered is not None and delivered[each.key]):
                verdict.violated(Kind.RESURRECTED, f"{each.key} was {what}, there are {count}")
            continue
        ended_us = math.inf if each.ended_us is None else each.ended_us
        brokers = 2 if _during(acting, each.began_us, ended_us) else 1
        if count > each.attempts * brokers:
            verdict.violated(
                Kind.MULTIPLIED, f"{each.key}: {count} copies of {each.attempts} half message(s)"
            )
        elif not count:
            verdict.violated(Kind.LOST, f"{each.key} was committed")
        elif delivered is not None and not delivered[each.key]:
            verdict.violated(Kind.UNDELIVERED, each.key)
        verdict.duplicated += count > 1
        if delivered is not None:
            verdict.redelivered += max(0, delivered[each.key] - max(1, count))
    return verdict


def check_pops(
    sends: Sequence[Send],
    log: Iterable[Found],
    receipts: Sequence[Receipt] | None = None,
    *,
    invisible_us: int = 0,
    stored_acks: Set[Handle] = frozenset(),
    acting: Sequence[Span] = (),
) -> Verdict:
    """Every message that was sent came until it was acknowledged; it came again neither after the answer to
    its ack nor while it was invisible.

    `stored_acks`: acks of consumers in the log. One of them settles a message if the answer to it was lost.
    `acting`: an acting slave has its check points and acks in memory only. What it handed out may come again
    when the master returns, and nobody can tell whether an ack whose answer was lost counted.
    """
    verdict = Verdict(sent=len(sends))
    copies = _copies(verdict, {each.key for each in sends}, log)
    by_key: dict[str, list[Receipt]] = defaultdict(list)
    for receipt in receipts or ():
        by_key[receipt.key].append(receipt)
    for each in sends:
        count, received = copies[each.key], by_key[each.key]
        verdict.duplicated += count > 1
        if count > each.attempts:
            verdict.violated(Kind.MULTIPLIED, f"{each.key}: {count} copies of {each.attempts} attempt(s)")
        if count == 1:
            _check_receipts(verdict, sorted(received, key=lambda one: one.asked_us), invisible_us, acting)
        if each.acked_us is None:
            continue
        verdict.acked += 1
        if not count:
            verdict.violated(Kind.LOST, f"{each.key}, acknowledged by {each.broker}")
        elif receipts is not None and not any(
            one.acked_us is not None
            or (
                one.failed
                and (one.handle in stored_acks or _during(acting, one.asked_us, one.got_us + ACK_TIMEOUT_US))
            )
            for one in received
        ):
            failed = sum(one.failed for one in received)
            verdict.violated(
                Kind.UNDELIVERED,
                f"{each.key}: received {len(received)} times, {failed} acks failed, none is in the log",
            )
        verdict.redelivered += max(0, len(received) - max(1, count))
    return verdict


def _check_receipts(
    verdict: Verdict, receipts: Sequence[Receipt], invisible_us: int, acting: Sequence[Span]
) -> None:
    """Of one message that is stored once, in the order of the requests."""
    for at, earlier in enumerate(receipts):
        if _during(acting, earlier.asked_us, earlier.acked_us or earlier.got_us):
            continue
        for later in receipts[at + 1 :]:
            if earlier.acked_us is not None and later.asked_us > earlier.acked_us:
                ago_ms = (later.asked_us - earlier.acked_us) // 1000
                verdict.violated(Kind.AGAIN, f"{later.key} was asked for {ago_ms} ms after its ack")
            elif later.got_us < earlier.asked_us + invisible_us - SLACK_US:
                after_ms = (later.got_us - earlier.asked_us) // 1000
                verdict.violated(Kind.EARLY, f"{later.key} was received again after {after_ms} ms")


def check_timers(
    sends: Sequence[Send],
    due_ms: Mapping[str, int],
    log: Iterable[Found],
    deliveries: Iterable[tuple[str, int]] | None = None,
) -> Verdict:
    """None came early, none is lost.

    `due_ms`: key -> time of delivery; `deliveries`: (key, wall time in ms)."""
    verdict = Verdict(sent=len(sends))
    copies = _copies(verdict, {each.key for each in sends}, log)
    delivered: Counter[str] = Counter()
    for key, got_ms in deliveries or ():
        delivered[key] += 1
        early_ms = due_ms.get(key, 0) - got_ms
        if early_ms > 0:
            verdict.violated(Kind.EARLY, f"{key} came {early_ms} ms early")
    for each in sends:
        count = copies[each.key]
        verdict.duplicated += count > 1
        if each.acked_us is None:
            continue
        verdict.acked += 1
        if not count:
            verdict.violated(Kind.LOST, f"{each.key}, acknowledged by {each.broker}")
        elif deliveries is not None and not delivered[each.key]:
            verdict.violated(Kind.UNDELIVERED, each.key)
        verdict.redelivered += max(0, delivered[each.key] - max(1, count))
    return verdict


def _copies(verdict: Verdict, known: set[str], log: Iterable[Found]) -> Counter[str]:
    """Copies by key; complains about what nobody sent and about damaged bodies."""
    copies: Counter[str] = Counter()
    for found in log:
        verdict.stored += 1
        copies[found.key] += 1
        if found.key not in known:
            verdict.violated(Kind.INVENTED, f"{found.key} at {found.queue}/{found.offset}")
        elif not found.intact:
            verdict.violated(Kind.CORRUPT, f"{found.key} at {found.queue}/{found.offset}")
    return copies
