"""Guards of strict queue locks and of masters that return, which the simulation has to miss.

Not among them: that an unlock which arrives late releases nothing newer. None of 20 stories noticed its
absence; `tests/unit/broker/test_lock_quorum.py` tests it.
"""

from __future__ import annotations

from typing import Any

from batonmq.broker.locks.quorum import LockQuorum
from batonmq.broker.preonline.part import PreOnlinePart
from batonmq.broker.tables.locks import LockTable
from batonmq.broker.tables.offsets import OffsetTable
from tests.simulation.mutation import Mutation, Patch


def _one_is_enough() -> list[Patch]:
    async def lock(self: Any, asked: Any) -> Any:
        return self._own(asked)

    return [(LockQuorum, "lock", lock)]


def _forgets_at_a_restart() -> list[Patch]:
    return [(LockTable, "__iter__", lambda self: iter(()))]


def _takes_nothing_back() -> list[Patch]:
    async def nothing(self: Any, broker_id: int, member: Any) -> None:
        return None

    return [(PreOnlinePart, "_take_back", nothing), *_hands_nothing_over()]


def _hands_nothing_over() -> list[Patch]:
    return [(OffsetTable, "not_before", lambda self, table, version: [])]


def _acting_offsets_look_old() -> list[Patch]:
    return [(OffsetTable, "act", lambda self, acting: None)]


MUTATIONS: dict[str, tuple[Mutation[None], tuple[int, ...]]] = {
    "one-is-enough": (Mutation("one replica grants a lock", _one_is_enough), (0, 1)),
    "forgetful": (Mutation("a restarted replica forgets its locks", _forgets_at_a_restart), tuple(range(32))),
    "takes-nothing": (Mutation("a master that returns takes nothing back", _takes_nothing_back), (0, 1)),
    "hands-nothing": (Mutation("a slave hands no late offset over", _hands_nothing_over), tuple(range(16))),
    "old-offsets": (
        Mutation("offsets of an acting slave look old", _acting_offsets_look_old),
        tuple(range(16)),
    ),
}
"""Name -> the guard taken out, and seeds of which one at least must notice: about every fifth of `forgetful`,
every third of the last two. Which ones changes with every change of the programs."""
