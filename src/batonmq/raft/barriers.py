"""Reads that wait until a node's state machine shows all that was committed before they were asked (6.4).

All that come in one turn are one question to the core. Its answer is an index, and they wait on until that
much is applied.
"""

from __future__ import annotations

import asyncio

Waiting = list[asyncio.Future[None]]


class Barriers:
    """``first_number`` must be larger than any of the node's earlier lives: a leader's answer to a question
    of one of those could pass for that to a new one."""

    def __init__(self, first_number: int) -> None:
        self.number = first_number
        """Of the last question."""
        self._unasked: Waiting = []
        self._asked: dict[int, Waiting] = {}
        self._to_apply: list[tuple[int, Waiting]] = []

    def add(self, future: asyncio.Future[None]) -> None:
        self._unasked.append(future)

    def ask(self) -> int | None:
        """Number of the question for all that came since the last, None if none did."""
        if not self._unasked:
            return None
        self.number += 1
        self._asked[self.number], self._unasked = self._unasked, []
        return self.number

    def answered(self, number: int) -> Waiting:
        """Who asked; nobody if they have given up. Those that may be served go on to ``hold``."""
        return self._asked.pop(number, [])

    def hold(self, index: int, waiting: Waiting) -> None:
        """They are served once ``index`` is applied."""
        self._to_apply.append((index, waiting))

    def applied(self, index: int) -> None:
        """All up to ``index`` is applied."""
        if not self._to_apply:
            return
        later: list[tuple[int, Waiting]] = []
        for wanted, waiting in self._to_apply:
            if wanted > index:
                later.append((wanted, waiting))
                continue
            for future in waiting:
                if not future.done():
                    future.set_result(None)
        self._to_apply = later

    def forget(self, number: int) -> bool:
        """Nobody waits for the answer any more; whether somebody still did."""
        return self._asked.pop(number, None) is not None

    def give_up(self) -> Waiting:
        """All that wait for anything, who have to be told."""
        everyone = [*self._unasked]
        for waiting in self._asked.values():
            everyone += waiting
        for _, waiting in self._to_apply:
            everyone += waiting
        self._unasked, self._asked, self._to_apply = [], {}, []
        return everyone
