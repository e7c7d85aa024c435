"""Is the history of the controllers' decisions one history? Pure functions of what clients were answered.

Every change of a broker set's SyncStateSet takes the next epoch, so the epochs say in which order the changes
took effect, and a history is linearizable if that order agrees with time: what was answered before something
else was asked has no higher epoch. The same holds for masters and master epochs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, TypeAlias

from tests.chaos.check import Verdict

Members: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Decision:
    """One answered request, and the state of the broker set that it showed; times in us of one clock."""

    broker_set: str
    kind: Literal["alter", "elect", "read"]
    asked_us: int
    answered_us: int
    epoch: int
    """SyncStateSet epoch."""
    members: Members
    master_epoch: int = 0
    master: int | None = None
    """None: not shown."""

    @property
    def is_write(self) -> bool:
        return self.kind != "read"


class Wrong(StrEnum):
    """What must not be seen."""

    TWO_SETS = "one SyncStateSet epoch, two sets"
    TWO_MASTERS = "one master epoch, two masters"
    WON_TWICE = "two changes were both granted the same epoch"
    BACKWARDS = "a change was granted an epoch not above one granted before it was asked for"
    STALE = "an answer older than one given before it was asked for"
    FORGOTTEN = "a decision that was granted is not there at the end"


def check_decisions(
    history: Sequence[Decision], final: Iterable[Decision] | None, logged: Iterable[Decision] = ()
) -> Verdict:
    """Check what clients saw; `final` was read after everything healed, `logged` is from the event logs.

    `final` None: nobody could be asked, so what was forgotten is not known. Times of `logged` are not looked
    at.
    """
    verdict = Verdict(sent=len(history), acked=sum(decision.is_write for decision in history))
    by_set: dict[str, list[Decision]] = defaultdict(list)
    for decision in history:
        by_set[decision.broker_set].append(decision)
    ends = {decision.broker_set: decision for decision in final or ()}
    _check_names(verdict, [*history, *ends.values(), *logged])
    for name, decisions in by_set.items():
        _check_grants(verdict, name, decisions)
        _check_time(verdict, name, [*decisions, *([ends[name]] if name in ends else [])])
        newest = max((decision.epoch for decision in decisions), default=0)
        if final is not None and (name not in ends or ends[name].epoch < newest):
            last = ends[name].epoch if name in ends else "nothing"
            verdict.violated(Wrong.FORGOTTEN, f"{name}: epoch {newest} was answered, at the end {last}")
    return verdict


def _check_names(verdict: Verdict, decisions: Iterable[Decision]) -> None:
    """An epoch names one set; a master epoch names one master."""
    sets: dict[tuple[str, int], Members] = {}
    masters: dict[tuple[str, int], int] = {}
    for decision in decisions:
        known = sets.setdefault((decision.broker_set, decision.epoch), decision.members)
        if known != decision.members:
            verdict.violated(
                Wrong.TWO_SETS, f"{decision.broker_set} epoch {decision.epoch}: {known}, {decision.members}"
            )
        if decision.master is None:
            continue
        reigns = masters.setdefault((decision.broker_set, decision.master_epoch), decision.master)
        if reigns != decision.master:
            verdict.violated(
                Wrong.TWO_MASTERS,
                f"{decision.broker_set} master epoch {decision.master_epoch}: {reigns}, {decision.master}",
            )


def _check_grants(verdict: Verdict, name: str, decisions: Iterable[Decision]) -> None:
    granted: set[int] = set()
    for decision in decisions:
        if not decision.is_write:
            continue
        if decision.epoch in granted:
            verdict.violated(Wrong.WON_TWICE, f"{name} epoch {decision.epoch}")
        granted.add(decision.epoch)


def _check_time(verdict: Verdict, name: str, decisions: Iterable[Decision]) -> None:
    """No answer is older than one that was given before it was asked for."""
    decisions = list(decisions)
    answered = sorted(decisions, key=lambda decision: decision.answered_us)
    asked = sorted(decisions, key=lambda decision: decision.asked_us)
    newest: Decision | None = None
    position = 0
    for decision in asked:
        while position < len(answered) and answered[position].answered_us < decision.asked_us:
            before = answered[position]
            if newest is None or before.epoch > newest.epoch:
                newest = before
            position += 1
        if newest is None:
            continue
        what = f"{name}: {newest.kind} showed epoch {newest.epoch}, a later {decision.kind} {decision.epoch}"
        if decision.is_write and decision.epoch <= newest.epoch:
            verdict.violated(Wrong.BACKWARDS, what)
        elif decision.epoch < newest.epoch:
            verdict.violated(Wrong.STALE, what)
