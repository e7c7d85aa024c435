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
    "confirm-alone": (3, 12),
    "confirm-agreed": (128,),
    "confirm-lost": (49, 65),
    "confirm-unflushed": (25, 26),
    "silence-agrees": (9, 14),
    "refusal-believed": (8, 24),
    "expand-early": (17, 27),
    "no-truncation": (18, 36),
    "ack-before-append": (2, 3),
    "ack-before-flush": (66, 67),
    "epochs-late": (200,),
    "empty-epoch": (18,),
    "stale-epoch": (69,),
    "torn-tail": (231,),
    "elect-anyone": (7, 13),
    "epoch-reuse": (0, 1),
    "resume-term": (6, 18),
    "old-role": (3, 49),
}
"""Each guard, and seeds that notice that it is gone. No seed below 300 notices that `unfenced` is: a request
would have to come after its master has restarted and been elected again."""

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
