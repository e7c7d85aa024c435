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
    "confirm-alone": (8, 12),
    "confirm-agreed": (852, 1002),
    "confirm-lost": (12, 37),
    "confirm-unflushed": (15, 18),
    "silence-agrees": (37, 39),
    "expand-early": (76, 111),
    "no-truncation": (8, 11),
    "ack-before-append": (4, 12),
    "ack-before-flush": (358, 496),
    "epochs-late": (128, 231),
    "empty-epoch": (353, 598),
    "torn-tail": (21, 79),
    "elect-anyone": (10, 11),
    "epoch-reuse": (0, 1),
    "resume-term": (98, 117),
    "old-role": (8, 37),
}
"""Each guard, and seeds that notice that it is gone. They change when replication's timing does. Then others
of the first `WITHIN_SEEDS` notice, and the tests only take longer (25 stories a second). No seed below 400
notices that `unfenced`, `stale-epoch` or `refusal-believed` is gone. They need several faults in a certain
order, as the plots of whole clusters have."""

WITHIN_SEEDS = 1500

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
