"""Is a history of concurrent operations linearizable?

It is when each operation can be given one moment between its call and its return such that, carried out one
after the other in that order, a sequential model gives the same answers (Herlihy and Wing, 1990). Operations
on different keys are independent and are checked apart (their locality theorem).

The check goes through calls and returns in the order of time and keeps every state that the key can be in,
with the running operations that have had their moment in it (Lowe, 2017: "just-in-time linearization"). An
operation gets its moment only when one has to have had it because it returns; if that is possible in no state
the history is refused. This is exponential only in the running operations that change the state.

An operation whose outcome nobody knows may have its moment at any time after its call, or never.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

MAX_STEPS = 2_000_000
"""Steps of the model on one key after which the search gives up."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One call of one client. Times are on one clock, the observer's."""

    key: Hashable
    client: str
    called: float
    returned: float | None
    """None: the outcome is unknown, it may take effect at any time or never."""
    asked: Any
    answer: Any = None

    def __str__(self) -> str:
        end = "?" if self.returned is None else f"{self.returned:.4f}"
        answer = "?" if self.returned is None else self.answer
        return f"{self.called:10.4f} .. {end:>10} {self.client:10} {self.key} {self.asked} -> {answer}"


class Model(Protocol):
    """The sequential specification of one key."""

    def initial(self, key: Any) -> Hashable: ...
    def step(self, state: Any, asked: Any, answer: Any) -> Hashable | None:
        """The state after ``asked`` was answered with ``answer``; None if it cannot be answered so.

        An ``answer`` of None is unknown: the state after, or None if the operation would change nothing.
        """
        ...

    def only_reads(self, asked: Any, answer: Any) -> bool:
        """Whether ``asked`` changes no state whatever when it is answered so; sparing the search a branch."""
        ...


class NotLinearizable(AssertionError):
    """No order of the operations on one key explains their answers."""


class Undecided(Exception):
    """The search was given up; the history is neither proved right nor wrong."""


def check(model: Model, history: Iterable[Operation]) -> int:
    """Check each key's operations; returns how many steps of the model the search took.

    Raises `NotLinearizable`, with the operations around the place where every order fails, or `Undecided`.
    """
    by_key: dict[Hashable, list[Operation]] = {}
    for operation in history:
        by_key.setdefault(operation.key, []).append(operation)
    return sum(_Search(model, key, operations).run() for key, operations in by_key.items())


_World: TypeAlias = tuple[Any, int]
"""A state, and a bit for each running operation (or one of unknown outcome) that has had its moment."""


class _Search:
    def __init__(self, model: Model, key: Hashable, operations: list[Operation]) -> None:
        self._model, self._key, self._operations = model, key, operations
        self._running: dict[int, Operation] = {}
        self._reads = [
            operation.returned is not None and model.only_reads(operation.asked, operation.answer)
            for operation in operations
        ]
        self._worlds: set[_World] = {(model.initial(key), 0)}
        self._steps = 0

    def run(self) -> int:
        calls = ((operation.called, 0, bit) for bit, operation in enumerate(self._operations))
        returns = (
            (operation.returned, 1, bit)
            for bit, operation in enumerate(self._operations)
            if operation.returned is not None
        )
        # At the same time: calls first, so that the two operations are concurrent.
        for _, is_return, bit in sorted([*calls, *returns]):
            if not is_return:
                self._running[bit] = self._operations[bit]
                continue
            worlds = self._worlds_in_which(bit)
            if not worlds:
                raise NotLinearizable(self._explain(self._operations[bit]))
            self._worlds = worlds
            del self._running[bit]
        return self._steps

    def _worlds_in_which(self, returning: int) -> set[_World]:
        """All that can come of the present worlds in which this operation has had its moment."""
        found: set[_World] = set()
        seen = set(self._worlds)
        left = list(self._worlds)
        while left:
            state, done = left.pop()
            changes: list[_World] = []
            for bit, operation in self._running.items():
                after = None if done >> bit & 1 else self._step(state, operation)
                if after is None:
                    continue
                if self._reads[bit]:
                    # Answered rightly now, and of no consequence: this may as well be its moment.
                    done |= 1 << bit
                else:
                    changes.append((after, 1 << bit))
            if done >> returning & 1:
                found.add((state, done & ~(1 << returning)))
                continue
            for after, mark in changes:
                world = (after, done | mark)
                if world not in seen:
                    seen.add(world)
                    left.append(world)
        return found

    def _step(self, state: Any, operation: Operation) -> Any:
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise Undecided(f"{self._key}: given up after {MAX_STEPS} steps at {operation}")
        answer = None if operation.returned is None else operation.answer
        return self._model.step(state, operation.asked, answer)

    def _explain(self, failed: Operation) -> str:
        assert failed.returned is not None
        before = [
            operation
            for operation in self._operations
            if operation.returned is not None and operation.returned < failed.returned
        ]
        before.sort(key=lambda operation: operation.returned or 0.0)
        return "\n".join(
            [
                f"{self._key} is not linearizable: nothing explains",
                f"  {failed}",
                "Before it returned, these states were possible:",
                *(f"  {state}" for state in {state for state, _ in self._worlds}),
                "Operations that ran:",
                *(f"  {operation}" for operation in self._running.values() if operation is not failed),
                "The last that had returned:",
                *(f"  {operation}" for operation in before[-8:]),
            ]
        )
