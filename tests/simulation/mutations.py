"""Does the simulation notice? ``python -m tests.simulation.mutations`` takes guards out of the programs, one
at a time, and counts the seeds that then fail (`mutation.py`).

Numbers like #5663 are issues of apache/rocketmq: that guard was missing there, and messages were lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import msgspec

from batonmq.broker.messages import appender
from batonmq.broker.replica.core import ReplicasCore
from batonmq.broker.replica.set_proposals import SetProposals
from batonmq.broker.tables.watch import TableWatch
from batonmq.controller import elections, machine
from batonmq.controller.effects import Outcome
from batonmq.controller.elect import elect
from batonmq.controller.machine import ControllerMachine
from batonmq.controller.replicas import BrokerSet
from batonmq.ha.autoswitch import core as ha_core
from batonmq.ha.autoswitch.epoch_file import EpochFile
from batonmq.ha.autoswitch.epochs import EpochCache
from batonmq.ha.autoswitch.local import LocalReplica
from batonmq.ha.autoswitch.service import HAService
from batonmq.ha.autoswitch.slave_link import SlaveLink
from batonmq.ha.autoswitch.sync_state import SyncStateSet, SyncStateTracker
from batonmq.ha.role import HARole
from batonmq.raft import core as raft_core
from batonmq.raft.core import RaftCore
from batonmq.store import commitlog, mapped, queues, recovery, store
from tests.simulation.mutation import Mutation, Patch, counting
from tests.simulation.scenario import run
from tests.simulation.story import Shape, shape_of


def _power(seed: int) -> Shape:
    """Stories with power cuts only."""
    return Shape(replicas=(2, 2, 3)[seed % 3], sync_flush=True)


def _only(plot: str, *, power: bool = False, replicas: Sequence[int] = (2, 2, 3)) -> Callable[[int], Shape]:
    """Stories with this plot only."""

    def shape(seed: int) -> Shape:
        return Shape(replicas=replicas[seed % len(replicas)], sync_flush=power or seed % 2 == 1, plot=plot)

    return shape


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


def _believe_silence() -> list[Patch]:
    original = SyncStateTracker.answered

    def answered(self: SyncStateTracker, outcome: Any, *, refused: bool = False) -> None:
        if outcome is None and not refused and self.proposal is not None:
            outcome = SyncStateSet(self.proposal, self.agreed.epoch + 1)
        original(self, outcome, refused=refused)

    return [(SyncStateTracker, "answered", answered)]


def _believe_refusals() -> list[Patch]:
    async def fetch_set(self: SetProposals, tracker: Any) -> bool:
        return True

    return [(SetProposals, "_fetch_set", fetch_set)]


def _expand_early() -> list[Patch]:
    original = SyncStateTracker.wanted

    def wanted(self: SyncStateTracker, now_ms: int) -> frozenset[int]:
        return original(self, now_ms) | {b for b, r in self.replicas.items() if r.connected}

    return [(SyncStateTracker, "wanted", wanted)]


def _confirm_unflushed() -> list[Patch]:
    return [(LocalReplica, "confirmable_end", property(lambda self: self.store.max_offset))]


def _read_unconfirmed() -> list[Patch]:
    confirm_offset = store.MessageStore.confirm_offset
    return [
        (
            store.MessageStore,
            "confirm_offset",
            confirm_offset.getter(lambda self: self.max_offset),  # type: ignore[attr-defined]
        )
    ]


def _believe_any_ack() -> list[Patch]:
    original = ha_core.MasterSession._on_ack

    def on_ack(self: ha_core.MasterSession, offset: int, log: Any, now_ms: int) -> None:
        if self.transferring and offset > self.next_offset:
            self.ack_offset = offset
        else:
            original(self, offset, log, now_ms)

    return [(ha_core.MasterSession, "_on_ack", on_ack)]


def _stale_epoch() -> list[Patch]:
    original, session = HAService.become_master, ha_core.MasterSession.__init__

    async def become_master(self: HAService, epoch: int, sync_state_set: Any) -> None:
        former, links = self.term, dict(self.listener.links)
        if former is None or epoch <= self.epoch:
            await original(self, epoch, sync_state_set)
            return
        by_id = dict(former._by_id)
        self.listener.links.clear()  # so that they are not closed
        await original(self, epoch, sync_state_set)
        assert self.term is not None
        self.listener.links.update(links)
        self.term._by_id.update(by_id)
        self.term.tracker.replicas.update(former.tracker.replicas)
        for link in links:
            link._master = self.term

    def begin(self: Any, epochs: EpochCache, **kw: Any) -> None:
        session(self, EpochCache(epochs.entries), **kw)

    return [(HAService, "become_master", become_master), (ha_core.MasterSession, "__init__", begin)]


def _topics_late() -> list[Patch]:
    async def wait_until_copied(self: TableWatch[Any]) -> bool:
        return True

    return [(TableWatch, "wait_until_copied", wait_until_copied)]


def _queue_offsets_confirmed() -> list[Patch]:
    original, become = store.MessageStore._learn_queue_offsets, HAService.become_master

    def learn(self: store.MessageStore) -> None:
        original(self)
        for queue in self._queues:
            queue.next_offset = queue.max_offset

    async def become_master(self: HAService, epoch: int, sync_state_set: Any) -> None:
        """What it had not confirmed as a slave is dispatched a little later, in a thread, say."""
        own: Any = self.local.store
        with mock.patch.object(own, "dispatch", lambda: own.dispatched_offset):
            await become(self, epoch, sync_state_set)
        asyncio.get_running_loop().call_later(0.1, self.on_progress)

    return [(store.MessageStore, "_learn_queue_offsets", learn), (HAService, "become_master", become_master)]


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
    original = SlaveLink._apply

    def apply(self: Any, effect: Any) -> None:
        if not isinstance(effect, ha_core.Append):
            original(self, effect)
            return
        log, data = self._local.store, bytes(effect.data)

        def late() -> None:
            if self._slave.following and log.max_offset == effect.offset:
                log.append_raw(effect.offset, data)
                self._slave.applied()

        asyncio.get_running_loop().call_later(0.02, late)

    return [(SlaveLink, "_apply", apply)]


def _ack_before_flush() -> list[Patch]:
    def acknowledge(self: Any) -> None:
        if self.session.transferring and self._slow is None:
            self._write(self.session.ack(self.session.position, self._local.running.now_ms()))

    return [(SlaveLink, "acknowledge", acknowledge)]


def _no_fsync() -> list[Patch]:
    return [(module, "sync_path", lambda path: None) for module in (commitlog, queues, recovery, mapped)]


def _epochs_late() -> list[Patch]:
    def change(self: EpochFile, what: Any) -> None:
        before = self.cache.entries
        if what(self.cache):
            self._write(before)

    return [(EpochFile, "_change", change)]


def _empty_epochs_stay() -> list[Patch]:
    original = EpochCache.append

    def append(self: EpochCache, epoch: int, start_offset: int) -> bool:
        if self._entries and self._entries[-1].start_offset >= start_offset:
            return False
        return original(self, epoch, start_offset)

    return [(EpochCache, "append", append)]


def _torn_tail_kept() -> list[Patch]:
    return [(store.MessageStore, "cut_torn_tail", lambda self: 0)]


# -- what the controllers decide ---------------------------------------------------------------------------


def _elect_anyone() -> list[Patch]:
    def unclean(*args: Any, **kw: Any) -> int | None:
        return elect(*args, **(kw | {"allow_unclean": True}))

    return [(elections, "elect", unclean)]


def _answer_before_commit() -> list[Patch]:
    original = RaftCore.advance_commit

    def advance(self: Any) -> None:
        with mock.patch.object(raft_core, "reached_by_majority", max):
            original(self)

    return [(RaftCore, "advance_commit", advance)]


def _epoch_reuse() -> list[Patch]:
    def set_master(self: BrokerSet, broker_id: int) -> None:
        self.master_id = broker_id
        self.master_epoch = max(1, self.master_epoch)
        self.set_sync_state_set((broker_id,))

    def lose_master(self: BrokerSet) -> None:
        self.master_id = None

    return [(BrokerSet, "set_master", set_master), (BrokerSet, "lose_master", lose_master)]


def _unfenced() -> list[Patch]:
    original = ControllerMachine._alter_sync_state_set

    def alter(self: ControllerMachine, event: Any) -> Any:
        broker_set = self.broker_sets[event.broker_name]
        return original(
            self,
            msgspec.structs.replace(
                event,
                master_epoch=broker_set.master_epoch,
                sync_state_set_epoch=broker_set.sync_state_set_epoch,
            ),
        )

    return [(machine, "_HANDLERS", _replaced(original, alter))]


def _id_given_again() -> list[Patch]:
    original = BrokerSet.remove_replicas

    def remove(self: BrokerSet, broker_ids: Any) -> None:
        original(self, broker_ids)
        self.next_broker_id = max(self.replicas, default=0) + 1

    return [(BrokerSet, "remove_replicas", remove)]


def _replaced(original: Any, handler: Any) -> dict[Any, Any]:
    return {kind: handler if known is original else known for kind, known in machine._HANDLERS.items()}


def _resume_term() -> list[Patch]:
    def register(self: Any, event: Any) -> Any:
        nothing = Outcome()
        with (
            mock.patch.object(machine, "count_as_down", lambda *a, **kw: []),
            mock.patch.object(machine, "hold_election", lambda *a, **kw: nothing),
        ):
            return register_original(self, event)

    register_original = ControllerMachine._register_broker
    return [
        (machine, "_HANDLERS", _replaced(register_original, register)),
        (ReplicasCore, "_resumes_former_epoch", lambda self, role: False),
    ]


def _old_role_stays() -> list[Patch]:
    async def leave(self: Any) -> None:
        self.role = HARole.NONE
        self.term = None
        dialling, self._follower._task = self._follower._task, None
        if dialling is not None:
            dialling.cancel()

    return [(HAService, "_leave_role", leave)]


MUTATIONS: dict[str, Mutation[Callable[[int], Shape]]] = {
    "confirm-alone": Mutation("the confirm offset ignores the slaves", _confirm_alone),
    "confirm-agreed": Mutation(
        "only the agreed set counts while a change is under way", _confirm_agreed, upstream="#5663"
    ),
    "confirm-lost": Mutation(
        "members without a link do not hold the confirm offset",
        _confirm_without_lost_members,
        upstream="#6662",
    ),
    "confirm-unflushed": Mutation(
        "with SYNC_FLUSH the master's own disk does not hold the confirm offset", _confirm_unflushed, _power
    ),
    "silence-agrees": Mutation(
        "a master takes an unanswered change of the set for agreed", _believe_silence, upstream="#7017"
    ),
    "refusal-believed": Mutation(
        "a refused change is forgotten without a look at the set in force",
        _believe_refusals,
        shape=_only("refused"),
    ),
    "expand-early": Mutation("replicas join the SyncStateSet before they have caught up", _expand_early),
    "read-unconfirmed": Mutation("readers get what is not confirmed", _read_unconfirmed),
    "queue-offsets": Mutation(
        "a new master counts its queues up to the confirm offset only",
        _queue_offsets_confirmed,
        upstream="#7689",
    ),
    "ack-at-once": Mutation("the master acknowledges without waiting", _ack_at_once),
    "forged-ack": Mutation(
        "acks of what was never sent count", _believe_any_ack, upstream="#3015", shape=_only("stranger")
    ),
    "topics-late": Mutation(
        "a topic is answered before the slaves have it", _topics_late, upstream="topics lost after a switch"
    ),
    "no-truncation": Mutation("a slave keeps what its master does not have", _no_truncation),
    "ack-before-append": Mutation("a slave acknowledges before it appends", _ack_before_append),
    "ack-before-flush": Mutation("a SYNC_FLUSH slave acknowledges before fsync", _ack_before_flush, _power),
    "no-fsync": Mutation("SYNC_FLUSH without fsync", _no_fsync, _power),
    "epochs-late": Mutation(
        "an epoch is on disk only when the next one begins", _epochs_late, shape=_only("relapse")
    ),
    "empty-epoch": Mutation(
        "a term follows one without data, and its epoch is not noted down",
        _empty_epochs_stay,
        shape=_only("young", power=True),
    ),
    "stale-epoch": Mutation(
        "a new term of the same master goes on with the links and epochs of the old",
        _stale_epoch,
        upstream="#9689",
        shape=_only("again"),
    ),
    "torn-tail": Mutation(
        "a new master keeps a torn record at its end", _torn_tail_kept, shape=_only("torn")
    ),
    "elect-anyone": Mutation("elections outside the SyncStateSet", _elect_anyone),
    "before-commit": Mutation("controllers answer before a majority has the entry", _answer_before_commit),
    "epoch-reuse": Mutation("a new master in an old epoch", _epoch_reuse),
    "unfenced": Mutation(
        "controllers take changes of the set from former terms", _unfenced, shape=_only("late")
    ),
    "id-again": Mutation(
        "controllers give a cleaned id to the next replica", _id_given_again, shape=_only("new disk")
    ),
    "resume-term": Mutation(
        "a master that restarted goes on in its old epoch", _resume_term, shape=_only("blink", power=True)
    ),
    "old-role": Mutation(
        "a change of the role leaves the old links open", _old_role_stays, shape=_only("depose")
    ),
}


def violation(name: str, seed: int) -> str | None:
    """What the story of `seed` says with this guard taken out; None if it does not notice."""
    mutation = MUTATIONS[name]
    return mutation.violation(lambda: run(seed, (mutation.shape or shape_of)(seed)))


main = counting(MUTATIONS, violation, seeds=16)

if __name__ == "__main__":
    main()
