"""Does the simulation notice? ``python -m tests.simulation.mutations`` takes guards out of the programs, one
at a time, and counts the seeds that then fail.

A guard whose loss no seed notices is a guard that nothing tests. Each mutation replaces one function, in this
process only, by one that lacks the guard; nothing else of the programs changes.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import click

from batonmq.broker import appender
from batonmq.broker.replicas_core import ReplicasCore
from batonmq.controller import machine
from batonmq.controller.elect import elect
from batonmq.controller.machine import ControllerMachine
from batonmq.controller.replicas import BrokerSet
from batonmq.ha import core as ha_core
from batonmq.ha.epoch_file import EpochFile
from batonmq.ha.service import HARole, HAService, _SlaveLink
from batonmq.ha.sync_state import SyncStateTracker
from batonmq.raft import core as raft_core
from batonmq.raft.core import RaftCore
from batonmq.store import mapped, store
from tests.simulation.__main__ import shape_of
from tests.simulation.scenario import Shape, run

Patch = tuple[Any, str, Any]


@dataclass(frozen=True)
class Mutation:
    """One guard taken out."""

    what: str
    patches: Callable[[], list[Patch]] = field(repr=False)
    shape: Callable[[int], Shape] = shape_of
    """The stories in which the guard matters."""

    @contextmanager
    def in_force(self) -> Iterator[None]:
        with ExitStack() as stack:
            for target, name, value in self.patches():
                stack.enter_context(mock.patch.object(target, name, value))
            yield


def _power(seed: int) -> Shape:
    """Stories with power cuts only."""
    return Shape(replicas=(2, 2, 3)[seed % 3], sync_flush=True)


def _three(seed: int) -> Shape:
    return Shape(replicas=3, sync_flush=seed % 2 == 1)


# -- what the master believes ------------------------------------------------------------------------------


def _confirm_alone() -> list[Patch]:
    def confirm(self: SyncStateTracker, own_max_offset: int) -> int:
        self.confirm_offset = max(self.confirm_offset, own_max_offset)
        return self.confirm_offset

    return [(SyncStateTracker, "confirm", confirm)]


def _confirm_agreed() -> list[Patch]:
    return [(SyncStateTracker, "counted", property(lambda self: self.agreed.members))]


def _confirm_without_lost_members() -> list[Patch]:
    def confirm(self: SyncStateTracker, own_max_offset: int) -> int:
        acks = [
            replica.ack_offset
            for broker_id, replica in self.replicas.items()
            if broker_id in self.counted and replica.connected and replica.ack_offset >= 0
        ]
        self.confirm_offset = max(self.confirm_offset, min([own_max_offset, *acks]))
        return self.confirm_offset

    return [(SyncStateTracker, "confirm", confirm)]


def _expand_early() -> list[Patch]:
    original = SyncStateTracker.wanted

    def wanted(self: SyncStateTracker, now_ms: int) -> frozenset[int]:
        return original(self, now_ms) | {b for b, r in self.replicas.items() if r.connected}

    return [(SyncStateTracker, "wanted", wanted)]


def _confirm_unflushed() -> list[Patch]:
    return [(HAService, "_own_end", lambda self: self.store.max_offset)]


def _ack_at_once() -> list[Patch]:
    return [(appender, "acks_needed", lambda **_: 1)]


# -- what the slave does -----------------------------------------------------------------------------------


def _no_truncation() -> list[Patch]:
    original = ha_core.SlaveSession._on_handshake

    def on_handshake(self: Any, frame: Any, log: Any) -> Any:
        effects = original(self, frame, log)
        if log.max_offset and effects and log.max_offset <= frame.max_offset:
            self.position = log.max_offset
            return []
        return effects

    return [(ha_core.SlaveSession, "_on_handshake", on_handshake)]


def _ack_before_append() -> list[Patch]:
    original = _SlaveLink._apply

    def apply(self: Any, effect: Any) -> None:
        if not isinstance(effect, ha_core.Append):
            original(self, effect)
            return
        ha, data = self._ha, bytes(effect.data)

        def late() -> None:
            if ha.role is HARole.SLAVE and ha.store.max_offset == effect.offset:
                ha.store.append_raw(effect.offset, data)
                ha.on_progress()
                ha._flush_soon()

        asyncio.get_running_loop().call_later(0.02, late)

    return [(_SlaveLink, "_apply", apply)]


def _ack_before_flush() -> list[Patch]:
    def acknowledge(self: Any) -> None:
        if self.session.transferring and self._slow is None:
            self._write(self.session.ack(self.session.position, self._ha.clock.monotonic_ms()))

    return [(_SlaveLink, "acknowledge", acknowledge)]


def _no_fsync() -> list[Patch]:
    return [(store, "sync_path", lambda path: None), (mapped, "sync_path", lambda path: None)]


def _epochs_not_written() -> list[Patch]:
    def change(self: Any, what: Any) -> None:
        what(self.cache)

    return [(EpochFile, "_change", change)]


def _torn_tail_kept() -> list[Patch]:
    return [(store.MessageStore, "cut_torn_tail", lambda self: 0)]


# -- what the controllers decide ---------------------------------------------------------------------------


def _elect_anyone() -> list[Patch]:
    def unclean(*args: Any, **kw: Any) -> int | None:
        return elect(*args, **(kw | {"allow_unclean": True}))

    return [(machine, "elect", unclean)]


def _answer_before_commit() -> list[Patch]:
    original = RaftCore._advance_commit

    def advance(self: Any) -> None:
        with mock.patch.object(raft_core, "reached_by_majority", max):
            original(self)

    return [(RaftCore, "_advance_commit", advance)]


def _epoch_reuse() -> list[Patch]:
    def set_master(self: BrokerSet, broker_id: int) -> None:
        self.master_id = broker_id
        self.master_epoch = max(1, self.master_epoch)
        self.set_sync_state_set((broker_id,))

    def lose_master(self: BrokerSet) -> None:
        self.master_id = None

    return [(BrokerSet, "set_master", set_master), (BrokerSet, "lose_master", lose_master)]


def _resume_term() -> list[Patch]:
    def register(self: Any, event: Any) -> Any:
        with mock.patch.object(ControllerMachine, "_drop", lambda *a, **kw: []):
            return register_original(self, event)

    def registered(self: ReplicasCore, role: Any) -> bool:
        self._registered = True
        self.heard(role)
        return True

    register_original = ControllerMachine._register_broker
    handlers = {
        kind: register if handler is register_original else handler
        for kind, handler in machine._HANDLERS.items()
    }
    return [(machine, "_HANDLERS", handlers), (ReplicasCore, "registered", registered)]


def _old_role_stays() -> list[Patch]:
    async def leave(self: Any) -> None:
        self.role = HARole.NONE
        self.tracker = None
        follower, self._follower = self._follower, None
        if follower is not None:
            follower.cancel()

    return [(HAService, "_leave_role", leave)]


MUTATIONS = {
    "confirm-alone": Mutation("the confirm offset ignores the slaves", _confirm_alone),
    "confirm-agreed": Mutation("only the agreed set counts while a change is under way", _confirm_agreed),
    "confirm-lost": Mutation(
        "members without a link do not hold the confirm offset", _confirm_without_lost_members
    ),
    "confirm-unflushed": Mutation(
        "with SYNC_FLUSH the master's own disk does not hold the confirm offset", _confirm_unflushed, _power
    ),
    "expand-early": Mutation("replicas join the SyncStateSet before they have caught up", _expand_early),
    "ack-at-once": Mutation("the master acknowledges without waiting", _ack_at_once),
    "no-truncation": Mutation("a slave keeps what its master does not have", _no_truncation),
    "ack-before-append": Mutation("a slave acknowledges before it appends", _ack_before_append),
    "ack-before-flush": Mutation("a SYNC_FLUSH slave acknowledges before fsync", _ack_before_flush, _power),
    "no-fsync": Mutation("SYNC_FLUSH without fsync", _no_fsync, _power),
    "epochs-lost": Mutation("epochs are kept in memory only", _epochs_not_written),
    "torn-tail": Mutation("a new master keeps a torn record at its end", _torn_tail_kept, _power),
    "elect-anyone": Mutation("elections outside the SyncStateSet", _elect_anyone),
    "before-commit": Mutation("controllers answer before a majority has the entry", _answer_before_commit),
    "epoch-reuse": Mutation("a new master in an old epoch", _epoch_reuse),
    "resume-term": Mutation("a master that restarted goes on in its old epoch", _resume_term, _power),
    "old-role": Mutation("a change of the role leaves the old links open", _old_role_stays),
}


def violation(name: str, seed: int) -> str | None:
    """What the story of `seed` says with this guard taken out; None if it does not notice."""
    mutation = MUTATIONS[name]
    logging.disable(logging.CRITICAL)
    try:
        with mutation.in_force():
            run(seed, mutation.shape(seed))
    except Exception as error:
        return str(error).partition("\n")[0] or type(error).__name__
    finally:
        logging.disable(logging.NOTSET)
    return None


@click.command()
@click.option("--seeds", default=16, show_default=True, help="How many for each mutation.")
@click.option("--first", default=0, show_default=True, help="First seed.")
@click.option("--only", multiple=True, type=click.Choice(list(MUTATIONS)), help="Just these.")
@click.option("--jobs", default=os.cpu_count(), help="Processes.")
def main(seeds: int, first: int, only: tuple[str, ...], jobs: int) -> None:
    """Take guards out of the programs and count the seeds that notice."""
    with ProcessPoolExecutor(jobs, max_tasks_per_child=None) as pool:
        for name in only or MUTATIONS:
            work = {seed: pool.submit(violation, name, seed) for seed in range(first, first + seeds)}
            found = {seed: result for seed, future in work.items() if (result := future.result())}
            kinds = Counter(_kind(text) for text in found.values())
            click.echo(f"{name:18} {len(found):3} of {seeds}  {dict(kinds)}  seeds {list(found)[:8]}")


def _kind(text: str) -> str:
    """The invariant a violation is about."""
    for word, kind in (
        ("is lost", "lost"),
        ("was not read", "unread"),
        ("two masters", "two masters"),
        ("differ", "logs differ"),
        ("now ends", "reader set back"),
        ("within", "not healed"),
        ("unhandled", "exception"),
    ):
        if word in text:
            return kind
    return text[:60]


if __name__ == "__main__":
    main()
