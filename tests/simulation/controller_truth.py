"""What the controllers' log decided, seen from inside: every entry as each controller applied it.

It checks that all controllers apply the same entries with the same outcomes, and that nobody leads in a term
in which another leads; and it knows of decisions that no client asked for or was notified of.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from batonmq.controller.effects import Election, Outcome
from batonmq.controller.machine import ControllerMachine
from batonmq.controller.service import ControllerService
from batonmq.protocol.json import encode
from batonmq.raft.state import Role
from tests.simulation.controller_model import Decided, SetState
from tests.simulation.linearizability import Operation


class Violation(AssertionError):
    """A promise of the controllers was broken."""


@dataclass(slots=True)
class _Applied:
    data: bytes
    outcomes: bytes
    proposed: float
    """The earliest time at which it may have been proposed."""
    applied: float
    """When the first controller applied it."""


@dataclass
class Truth:
    """One group's; `now` is the observer's clock."""

    now: Callable[[], float]
    entries: dict[int, _Applied] = field(default_factory=dict)
    elections: dict[tuple[str, int], tuple[_Applied, SetState]] = field(default_factory=dict)
    """(Broker set, master epoch) -> the entry that began it, and the state after."""
    states: dict[str, dict[SetState, float]] = field(default_factory=dict)
    """Broker set -> each state it ever had, and since when some controller showed it."""
    leaders: dict[int, str] = field(default_factory=dict)
    restores: int = 0
    _proposed: dict[bytes, float] = field(default_factory=dict)

    def watch(self, service: ControllerService) -> None:
        """Before the service is started: see all it applies."""
        machine = service.machine
        apply, restore = machine.apply, machine.restore

        def applying(index: int, data: bytes) -> list[Outcome]:
            outcomes = apply(index, data)
            self._applied(service.topology.self_id, index, data, outcomes, machine)
            return outcomes

        def restoring(data: bytes) -> None:
            self.restores += 1
            restore(data)

        machine.apply = applying  # type: ignore[method-assign]
        machine.restore = restoring  # type: ignore[method-assign]

    def proposed(self, data: bytes) -> None:
        """An entry is proposed now."""
        self._proposed.setdefault(data, self.now())

    def look(self, service: ControllerService) -> None:
        """At any time: who leads."""
        node = getattr(service, "node", None)
        if node is None or node._maybe_core is None or node.role is not Role.LEADER:
            return
        known = self.leaders.setdefault(node.term, node.id)
        if known != node.id:
            raise Violation(f"{known} and {node.id} lead in term {node.term}")

    def _applied(
        self, node_id: str, index: int, data: bytes, outcomes: list[Outcome], machine: ControllerMachine
    ) -> None:
        shown = msgspec.msgpack.encode([_plain(outcome) for outcome in outcomes])
        known = self.entries.get(index)
        if known is not None:
            if known.data != data:
                raise Violation(f"{node_id} applies another entry at {index} than others did")
            if known.outcomes != shown:
                raise Violation(f"{node_id} decides entry {index} differently than others did")
            return
        entry = _Applied(data, shown, self._proposed.get(data, 0.0), self.now())
        self.entries[index] = entry
        for outcome in outcomes:
            for effect in outcome.effects:
                name = getattr(effect, "broker_name", None)
                if name is None or name not in machine.broker_sets:
                    continue
                if isinstance(effect, Election) and effect.result in ("new-master", "no-master"):
                    members = effect.candidates if effect.new_master is None else (effect.new_master,)
                    state = SetState(
                        effect.new_master, effect.master_epoch, members, effect.sync_state_set_epoch
                    )
                    self.elections.setdefault((name, effect.master_epoch), (entry, state))
                    self.states.setdefault(name, {}).setdefault(state, entry.applied)
                self.states.setdefault(name, {}).setdefault(state_of(machine, name), entry.applied)

    def unasked(self, announced: set[tuple[str, int]], since: dict[str, int]) -> list[Operation]:
        """Elections that were announced to no client. `announced`: (broker set, master epoch) of the others.
        Those up to the master epoch `since` came before the history."""
        return [
            Operation(name, "controller", entry.proposed, entry.applied, Decided(), state)
            for (name, epoch), (entry, state) in self.elections.items()
            if (name, epoch) not in announced and name in since and epoch > since[name]
        ]


def state_of(machine: ControllerMachine, broker_name: str) -> SetState:
    broker_set = machine.broker_sets[broker_name]
    return SetState(
        broker_set.master_id,
        broker_set.master_epoch,
        broker_set.sync_state_set,
        broker_set.sync_state_set_epoch,
    )


def _plain(outcome: Outcome) -> list[Any]:
    header, body = outcome.header, outcome.body
    return [
        outcome.code,
        None if header is None else header.to_ext(),
        None if body is None else encode(body),
        [msgspec.to_builtins(effect) for effect in outcome.effects],
    ]
