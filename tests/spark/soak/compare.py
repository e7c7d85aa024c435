"""Is the table what the topic is? Pure functions of what was read.

Chaos's own check compares the producers' histories with the table. Here the table is also compared with what
another client read from the topic: the same messages, each once, in the order of their offsets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from tests.chaos.check import Found, Send, Verdict, check
from tests.chaos.load import body_of


class Kind(StrEnum):
    """What must not happen to the table."""

    LOST = "lost: in the topic, and not in the table"
    DOUBLED = "doubled: more than one row for a place in a queue"
    FOREIGN = "foreign: a row of which the topic has nothing"
    CHANGED = "changed: not the message that the topic has at this place"
    DISORDERED = "disordered: a row after one with a higher offset"


@dataclass(frozen=True, slots=True)
class Row:
    """A message, as the table or the topic has it."""

    queue: int
    offset: int
    key: str
    value: bytes
    msg_id: str
    stored_ms: int
    batch: int = field(default=-1, compare=False)
    """The micro-batch that wrote it; the rows of a batch may be in several files."""
    file: str = field(default="", compare=False)

    @property
    def place(self) -> tuple[int, int]:
        return self.queue, self.offset

    @property
    def found(self) -> Found:
        return Found(self.queue, self.offset, self.key, self.value == body_of(self.key))

    def __str__(self) -> str:
        where = f", batch {self.batch}" if self.batch >= 0 else ""
        return f"{self.key} at {self.queue}/{self.offset}{where}"


def compare(table: Sequence[Row], topic: Iterable[Row], sends: Sequence[Send]) -> Verdict:
    """Compare the rows of one topic, in the order of batches and files, with its messages and its sends."""
    verdict = check(sends, (row.found for row in table))
    there = {row.place: row for row in topic}
    times = Counter(row.place for row in table)
    for place, message in there.items():
        if place not in times:
            verdict.violated(Kind.LOST, str(message))
    for row in table:
        message_there = there.get(row.place)
        if message_there is None:
            verdict.violated(Kind.FOREIGN, str(row))
        elif row != message_there:
            verdict.violated(
                Kind.CHANGED, f"{row}: there is {message_there} {_difference(row, message_there)}"
            )
    for (queue, offset), count in times.items():
        if count > 1:
            verdict.violated(Kind.DOUBLED, f"{queue}/{offset}: {count} rows")
    _check_order(verdict, table)
    return verdict


def _difference(row: Row, message: Row) -> str:
    fields = ("key", "value", "msg_id", "stored_ms")
    return f"({', '.join(name for name in fields if getattr(row, name) != getattr(message, name))})"


def _check_order(verdict: Verdict, table: Sequence[Row]) -> None:
    """Within a file a queue's offsets grow; a batch has none below those of the batches before it."""
    in_file: dict[tuple[str, int], int] = {}
    before: dict[int, int] = {}
    """Queue -> highest offset of the batches before this one."""
    highest: dict[int, int] = {}
    batch = None
    for row in table:
        if row.batch != batch:
            batch, before = row.batch, dict(highest)
        last = max(in_file.get((row.file, row.queue), -1), before.get(row.queue, -1))
        if row.offset < last:
            verdict.violated(Kind.DISORDERED, f"{row} comes after {row.queue}/{last}")
        in_file[row.file, row.queue] = row.offset
        highest[row.queue] = max(highest.get(row.queue, -1), row.offset)
