"""Do stories of replication notice? ``python -m tests.simulation.replication_mutations`` takes guards of
`mutations.py` out of replication, one at a time, and counts the seeds that fail."""

from __future__ import annotations

from typing import Any

from tests.simulation import mutations
from tests.simulation.memory_log import MemoryLog
from tests.simulation.mutation import Mutation, Patch, counting
from tests.simulation.replication import run


def _torn_tail_kept() -> list[Patch]:
    return [(MemoryLog, "cut_torn_tail", lambda self: self.max_offset)]


NOTICED = {
    "confirm-alone": (12, 25),
    "confirm-agreed": (199,),
    "confirm-lost": (12, 37),
    "confirm-unflushed": (26, 36),
    "silence-agrees": (13, 37),
    "expand-early": (20, 21),
    "no-truncation": (12, 13),
    "ack-before-append": (3, 12),
    "ack-before-flush": (229,),
    "epochs-late": (201,),
    "empty-epoch": (329,),
    "torn-tail": (79, 116),
    "elect-anyone": (7, 13),
    "epoch-reuse": (0, 1),
    "resume-term": (117, 123),
    "old-role": (14, 26),
}
"""Each guard, and seeds that notice that it is gone. No seed below 400 notices that `unfenced`, `stale-epoch`
or `refusal-believed` is: they need several faults in a certain order, as the plots of whole clusters have."""

MUTATIONS: dict[str, Mutation[Any]] = {
    **{name: mutations.MUTATIONS[name] for name in NOTICED if name != "torn-tail"},
    "torn-tail": Mutation("a new master keeps a torn record at its end", _torn_tail_kept),
}


def violation(name: str, seed: int) -> str | None:
    """What the story of `seed` says with this guard taken out; None if it does not notice."""
    return MUTATIONS[name].violation(lambda: run(seed))


main = counting(MUTATIONS, violation, seeds=100)

if __name__ == "__main__":
    main()
