"""The scenarios: what strikes, how long it lasts, and what is aimed at.

Those of `GROUP` strike a replica group while messages are sent and consumed; those of `CONTROLLERS_ALONE`
strike controllers without brokers, while clients have them decide.

Each round of a scenario is a set of faults that strike together, hold for `hold_s`, and are healed; the next
round begins when the group is whole again. What is drawn (victims, order, sides) comes from the run's seed.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.chaos.faults import Busy, Cut, Fault, Hang, Isolate, Kill, Lose, Pick, Split

MASTER = Pick("master")
SLAVE = Pick("slave", 1)
REPLICAS = Pick("replica")
CONTROLLERS = Pick("controller")
LEADER = Pick("leader")
CLIENTS = Pick("client")

Round = tuple[Fault, ...]


@dataclass(frozen=True, slots=True)
class Scenario:
    """A row of the report."""

    name: str
    title: str
    rounds: tuple[Round, ...]
    hold_s: float
    """How long each round's faults last."""
    quick_hold_s: float
    """The same with ``--quick``: enough for what is built to be quick."""
    aim_s: float | None = None
    """Longest time without an acknowledgement, of a group with two replicas; None: no aim."""
    shuffled: bool = False
    """The seed draws the order of the rounds."""
    quick_rounds: int = 1
    """With ``--quick`` so many of the rounds."""


GROUP = (
    Scenario("kill", "a replica is killed", ((Kill(MASTER),), (Kill(SLAVE),)), 8, 4, 0.1, shuffled=True),
    Scenario("hang", "a replica hangs", ((Hang(MASTER),), (Hang(SLAVE),)), 24, 8, 2.5, shuffled=True),
    Scenario("replicas-cut", "replicas cut off from each other", ((Cut(REPLICAS, REPLICAS),),), 24, 8, 2.5),
    Scenario("loss-80", "80 % packet loss between replicas", ((Lose(REPLICAS, REPLICAS, 80),),), 40, 12, 2.5),
    Scenario(
        "controllers-killed",
        "1, 2, 3 controllers killed",
        tuple((Kill(Pick("controller", count)),) for count in (1, 2, 3)),
        *(8, 3, 0.0),
        quick_rounds=3,
    ),
    Scenario("master-isolated", "master isolated from all", ((Isolate(MASTER),),), 24, 8, 2.5),
    Scenario(
        "master-clients-only",
        "master isolated from all but clients",
        ((Isolate(MASTER, but=(CLIENTS,)),),),
        *(24, 8, 2.5),
    ),
    Scenario("slave-isolated", "slave isolated from all", ((Isolate(SLAVE),),), 24, 8, 2.5),
    Scenario(
        "controllers-cut", "controllers cut off from brokers", ((Cut(CONTROLLERS, REPLICAS),),), 24, 8, 0.3
    ),
    Scenario("random", "random splits of brokers and controllers", ((Split(),),) * 4, 12, 6, 4.0),
    Scenario("busy", "other programs compute, nothing fails", ((Busy(3),), (Busy(8),)), 20, 12, 1.0),
)

CONTROLLERS_ALONE = (
    Scenario("leader-killed", "the leading controller is killed", ((Kill(LEADER),),) * 3, 4, 3, 1.5),
    Scenario(
        "controllers-down",
        "1, 2, 3 controllers killed, no brokers",
        tuple((Kill(Pick("controller", count)),) for count in (1, 2, 3)),
        *(4, 2),
        quick_rounds=3,
    ),
    Scenario("leader-hangs", "the leading controller hangs", ((Hang(LEADER),),) * 2, 8, 4),
    Scenario(
        "leader-cut",
        "the leading controller cut off from the others, clients reach all",
        ((Isolate(LEADER, but=(CLIENTS,)),), (Isolate(LEADER),)),
        *(8, 4),
    ),
    Scenario(
        "controllers-loss-80",
        "80 % packet loss between controllers",
        ((Lose(CONTROLLERS, CONTROLLERS, 80),),),
        *(12, 6),
    ),
)

SCENARIOS = (*GROUP, *CONTROLLERS_ALONE)
BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}
WHOLE_AIM_S = 5.0
"""After healing the SyncStateSet has all replicas again within this time."""
NO_PAUSE_S = 0.1
"""An aim of 0 s means: no pause beyond this, which the load itself has without faults."""
