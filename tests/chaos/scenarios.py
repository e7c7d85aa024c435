"""The scenarios: what strikes, how long it lasts, and what is aimed at.

Those of `GROUP` strike a replica group while messages are sent and consumed; those of `CONTROLLERS_ALONE`
strike controllers without brokers, while clients have them decide. Those of `CLASSIC` and `CONTAINERS` strike
groups without controllers: the ten of `GROUP` with name servers in the place of controllers.

Each round of a scenario is a set of faults that strike together, hold for `hold_s`, and are healed; the next
round begins when the group is whole again. What is drawn (victims, order, sides) comes from the run's seed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tests.chaos.faults import Busy, Cut, Fault, Hang, Isolate, Kill, Lose, Pick, Split

MASTER = Pick("master")
SLAVE = Pick("slave", 1)
REPLICAS = Pick("replica")
CONTROLLERS = Pick("controller")
NAMESRVS = Pick("namesrv")
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
    read_aim_s: float | None = None
    """Longest time without a read of each broker set; None: no aim, or nobody looks."""
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
    Scenario(
        "controllers-loss-30",
        "30 % packet loss between controllers",
        ((Lose(CONTROLLERS, CONTROLLERS, 30),),),
        *(12, 6),
    ),
)

_WITHOUT_CONTROLLERS = {
    "controllers-killed": Scenario(
        "namesrvs-killed",
        "1, 2 name servers killed",
        tuple((Kill(Pick("namesrv", count)),) for count in (1, 2)),
        *(8, 3, 0.0),
        quick_rounds=2,
    ),
    "controllers-cut": Scenario(
        "namesrvs-cut", "name servers cut off from brokers", ((Cut(NAMESRVS, REPLICAS),),), 24, 8, 0.3
    ),
    "random": Scenario("random", "random splits of brokers and name servers", ((Split(),),) * 4, 12, 6, 6.0),
}
"""What takes the place of scenarios with controllers."""


_AIMS_WITHOUT_CONTROLLERS: Mapping[str, float] = {
    "kill": 0.5,
    "hang": 4.0,
    "replicas-cut": 4.0,
    "loss-80": 8.0,
    "master-isolated": 4.0,
    "master-clients-only": 4.0,
    "slave-isolated": 4.0,
}
"""A name server counts a silent broker as gone after brokerNotActiveTimeoutMillis, 3 s."""


def _without_controllers(takes_none: Sequence[str], victim: str) -> tuple[Scenario, ...]:
    """`takes_none`: scenarios in which nobody takes messages, but reads go on. `victim`: what a program with
    replicas is called."""
    found = []
    for each in GROUP:
        if each.name == "busy":
            continue
        scenario = _WITHOUT_CONTROLLERS.get(each.name, each)
        aim_s = _AIMS_WITHOUT_CONTROLLERS.get(scenario.name, scenario.aim_s)
        found.append(
            replace(
                scenario,
                title=scenario.title.replace("a replica", victim),
                aim_s=None if scenario.name in takes_none else aim_s,
                read_aim_s=aim_s,
            )
        )
    return tuple(found)


CLASSIC = _without_controllers(("kill", "hang", "master-isolated"), "a replica")
"""A pair has nobody who takes messages while its master is gone."""
CONTAINERS = _without_controllers((), "a node")
"""Two containers crosswise. Master and slave in the titles are the nodes with those of the first set."""

GROUPS: Mapping[str, tuple[Scenario, ...]] = {
    "controllers": (*GROUP, *CONTROLLERS_ALONE),
    "classic": CLASSIC,
    "containers": CONTAINERS,
}
"""Kind of cluster -> its scenarios."""
SCENARIOS = GROUPS["controllers"]
NAMES = tuple(dict.fromkeys(scenario.name for scenarios in GROUPS.values() for scenario in scenarios))
WHOLE_AIM_S = 5.0
"""After healing everything is whole again within this time."""
NO_PAUSE_S = 0.1
"""An aim of 0 s means: no pause beyond this, which the load itself has without faults."""


def find(groups: str, name: str) -> Scenario:
    """Raises `LookupError` if that kind of cluster has no such scenario."""
    for scenario in GROUPS[groups]:
        if scenario.name == name:
            return scenario
    raise LookupError(f"{groups} have no scenario {name}")
