"""Do the stories with pop consumers notice? ``python -m tests.simulation.pop_mutations`` (`mutation.py`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from batonmq.broker.messages.appender import PutStatus
from batonmq.broker.pop import journal as journal_module
from batonmq.broker.pop.acknowledger import Acknowledger
from batonmq.broker.pop.core import Outstanding
from batonmq.broker.pop.journal import Journal
from batonmq.broker.pop.orders import Orders
from batonmq.broker.pop.reviver import Reviver
from batonmq.broker.pop.taker import Pop, Taker
from tests.simulation.mutation import Mutation, Patch, counting
from tests.simulation.pop_story import run
from tests.simulation.story import Shape, shape_of


def _answered_at_once() -> list[Patch]:
    waiter = journal_module._Waiter
    made = waiter.__init__

    def init(self: Any, *args: Any) -> None:
        made(self, *args)
        self.wait = False

    return [(waiter, "__init__", init)]


def _not_read() -> list[Patch]:
    async def read(self: Reviver, queue: int, begin: int, end: int, term: int) -> None:
        return

    return [(Reviver, "_read", read)]


def _positions_from_the_table() -> list[Patch]:
    return [(Reviver, "_apply_positions", lambda self: None)]


def _floor_at_the_end() -> list[Patch]:
    return [(journal_module.Floors, "settled", lambda self, queue: self.known(queue))]


def _acks_ignored() -> list[Patch]:
    return [(Reviver, "_learn_ack", lambda self, read: None)]


def _late_acks_accepted() -> list[Patch]:
    ack = Acknowledger.ack

    def accept(self: Acknowledger, key: Any, offsets: Any, receipt: Any, done: Any) -> None:
        entry = self._check_points.get(key)
        if entry is None or entry.reviving:
            done(PutStatus.PUT_OK)
        else:
            ack(self, key, offsets, receipt, done)

    return [(Acknowledger, "ack", accept)]


def _revived_with_acked() -> list[Patch]:
    return [(Outstanding, "unacknowledged", property(lambda self: list(self.offsets)))]


def _batches_in_memory() -> list[Patch]:
    return [(Orders, "learn", lambda self, record, queue, offset: None)]


def _refused_pops_stay_hidden() -> list[Patch]:
    from batonmq.broker.pop.positions import Positions

    def keep(self: Positions, key: Any, position: Any, start: int) -> None:
        self._settled(key, position)

    stored = Taker._stored

    def hidden(
        self: Taker, pop: Pop, entry: Any, position: Any, next_offset: int, status: Any, result: Any
    ) -> None:
        stored(self, pop, entry, position, next_offset, status, result)
        if result is None:
            topic, group, queue = entry.key[:3]
            self._broker.tables.offsets.commit(group, topic, queue, next_offset)

    return [(Positions, "take_back", keep), (Taker, "_stored", hidden)]


def _offsets_before_the_log() -> list[Patch]:
    def at_once(self: Journal, end_offset: int, effect: Callable[[], None]) -> None:
        effect()

    return [(Journal, "after", at_once)]


def plot(name: str, seed: int) -> Shape:
    """Stories of one plot again and again; they are short."""
    return replace(shape_of(seed), plot=name, faults_s=12.0)


SWITCH, OFFSETS, ALONE = (partial(plot, name) for name in ("switch", "offsets", "alone"))

MUTATIONS: dict[str, Mutation[Callable[[int], Shape]]] = {
    "answered-at-once": Mutation(
        "pops and acks are answered before replicas have the record", _answered_at_once, OFFSETS
    ),
    "not-read": Mutation("a new master does not read the revive queues", _not_read, SWITCH),
    "table-positions": Mutation(
        "a new master takes positions from the copied table", _positions_from_the_table, SWITCH
    ),
    "floor-at-end": Mutation(
        "revive queues count as settled while batches are outstanding", _floor_at_the_end, SWITCH
    ),
    "acks-ignored": Mutation("a new master does not read acks", _acks_ignored, SWITCH),
    "late-acks": Mutation("acks that are too late are answered with SUCCESS", _late_acks_accepted, ALONE),
    "revive-all": Mutation(
        "acknowledged messages of a batch come back with the others", _revived_with_acked, ALONE
    ),
    "order-in-memory": Mutation("a new master does not know ordered batches", _batches_in_memory, SWITCH),
    "refused-hidden": Mutation(
        "the offset moves although the check point was refused", _refused_pops_stay_hidden, ALONE
    ),
    "offsets-first": Mutation(
        "offsets move before the check point is safe", _offsets_before_the_log, OFFSETS
    ),
}


def violation(name: str, seed: int) -> str | None:
    """What the story of `seed` says with this guard taken out; None if it does not notice."""
    mutation = MUTATIONS[name]
    return mutation.violation(lambda: run(seed, (mutation.shape or shape_of)(seed)))


main = counting(MUTATIONS, violation, seeds=8)

if __name__ == "__main__":
    main()
