"""What can happen to a cluster, as data: whom it hits is picked by role when it strikes.

Decides only; `run.py` has the hands.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from tests.chaos.network import CLIENTS, Link, links, links_among

Role: TypeAlias = Literal["master", "slave", "replica", "controller", "leader", "namesrv", "client"]


@dataclass(frozen=True, slots=True)
class Pick:
    """Hosts of a role."""

    role: Role
    count: int | None = None
    """So many of them, drawn; None: all."""

    def __str__(self) -> str:
        if self.role in ("master", "leader"):
            return {"master": "the master", "leader": "the leading controller"}[self.role]
        return f"all {self.role}s" if self.count is None else f"{self.count} {self.role}(s)"


@dataclass(frozen=True, slots=True)
class View:
    """Who is what at the moment a fault strikes, by host name."""

    master: str | None
    replicas: tuple[str, ...]
    leader: str | None
    controllers: tuple[str, ...]
    namesrvs: tuple[str, ...]

    def of(self, pick: Pick, rng: random.Random) -> tuple[str, ...]:
        """The hosts that `pick` means now. Raises `LookupError` if there are not as many."""
        found: tuple[str, ...]
        match pick.role:
            case "master":
                found = (self.master,) if self.master else ()
            case "slave":
                found = tuple(name for name in self.replicas if name != self.master)
            case "replica":
                found = self.replicas
            case "controller":
                found = self.controllers
            case "leader":
                found = (self.leader,) if self.leader else ()
            case "namesrv":
                found = self.namesrvs
            case "client":
                found = (CLIENTS,)
        if len(found) < (pick.count if pick.count is not None else 1):
            raise LookupError(f"{pick} wanted, there are {len(found)}: {self}")
        return found if pick.count is None else tuple(sorted(rng.sample(found, pick.count)))

    @property
    def everybody(self) -> tuple[str, ...]:
        return (*self.replicas, *self.controllers, *self.namesrvs, CLIENTS)


@dataclass(frozen=True, slots=True)
class Strike:
    """A fault with its victims named."""

    kill: tuple[str, ...] = ()
    hang: tuple[str, ...] = ()
    cut: frozenset[Link] = frozenset()
    loss: Mapping[Link, int] = field(default_factory=dict)
    """Percent of packets dropped, each way."""
    busy: int = 0
    """Programs that compute beside the cluster."""
    text: str = ""

    @property
    def harms_nobody(self) -> bool:
        """Whether all programs run and reach each other, only later."""
        return not (self.kill or self.hang or self.cut or self.loss)


@dataclass(frozen=True, slots=True)
class Kill:
    """``kill -9``; healed by a start."""

    who: Pick


@dataclass(frozen=True, slots=True)
class Hang:
    """SIGSTOP: connections stay open, nobody answers. Healed by SIGCONT."""

    who: Pick


@dataclass(frozen=True, slots=True)
class Cut:
    """No packet passes between two sets of hosts; a set with itself means all its links."""

    one: Pick
    other: Pick


@dataclass(frozen=True, slots=True)
class Lose:
    """So many percent of the packets between two sets of hosts get lost, each way."""

    one: Pick
    other: Pick
    percent: int


@dataclass(frozen=True, slots=True)
class Isolate:
    """Cut off from everybody, except `but`."""

    who: Pick
    but: tuple[Pick, ...] = ()


@dataclass(frozen=True, slots=True)
class Split:
    """Replicas and controllers fall apart into two sides, drawn; clients and name servers reach both. Without
    controllers, replicas and name servers do."""


@dataclass(frozen=True, slots=True)
class Busy:
    """So many other programs compute, and the cluster gets what processor time they leave."""

    count: int


Fault: TypeAlias = Kill | Hang | Cut | Lose | Isolate | Split | Busy


def strike(fault: Fault, view: View, rng: random.Random) -> Strike:
    """Name the victims. Raises `LookupError` if nobody has the role now."""
    match fault:
        case Kill(who):
            victims = view.of(who, rng)
            return Strike(kill=victims, text=f"kill -9 {', '.join(victims)}")
        case Hang(who):
            victims = view.of(who, rng)
            return Strike(hang=victims, text=f"hang {', '.join(victims)}")
        case Cut(one, other):
            between = _between(view.of(one, rng), view.of(other, rng))
            return Strike(cut=between, text=f"cut {one} | {other}")
        case Lose(one, other, percent):
            between = _between(view.of(one, rng), view.of(other, rng))
            return Strike(loss=dict.fromkeys(between, percent), text=f"{percent} % loss {one} | {other}")
        case Isolate(who, but):
            victims = view.of(who, rng)
            spared = {name for pick in but for name in view.of(pick, rng)}
            others = [name for name in view.everybody if name not in spared and name not in victims]
            text = f"isolate {', '.join(victims)}" + (" except from clients" if but else "")
            return Strike(cut=links(victims, others), text=text)
        case Split():
            nodes = [*view.replicas, *(view.controllers or view.namesrvs)]
            side = sorted(rng.sample(nodes, rng.randrange(1, len(nodes))))
            rest = [name for name in nodes if name not in side]
            return Strike(cut=links(side, rest), text=f"split {','.join(side)} | {','.join(rest)}")
        case Busy(count):
            return Strike(busy=count, text=f"{count} other programs compute")


def both(one: Strike, other: Strike) -> Strike:
    """Two faults at the same time."""
    return Strike(
        (*one.kill, *(name for name in other.kill if name not in one.kill)),
        (*one.hang, *(name for name in other.hang if name not in one.hang)),
        one.cut | other.cut,
        {**one.loss, **other.loss},
        one.busy + other.busy,
        " + ".join(text for text in (one.text, other.text) if text),
    )


def _between(one: tuple[str, ...], other: tuple[str, ...]) -> frozenset[Link]:
    return links_among(one) if set(one) == set(other) else links(one, other)
