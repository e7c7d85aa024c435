"""One Raft node as an asyncio object: the driver of the core.

All that happens in one turn of the loop is one step outwards: proposals of the turn are appended together,
the messages to one peer leave in one envelope, the disk gets one write and one fsync. While an fsync runs in
the worker's thread the next batch gathers, and replication runs beside the leader's own fsync.

The parts: `proposals` (callers that wait), `applier` (the state machine), `barriers` (reads), `persistence`
(the disk's jobs), `snapshots`, `status` (what changed), and `membership_changes` for operators.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from typing import Protocol

import msgspec

from batonmq.common.repeated_warnings import RepeatedWarnings
from batonmq.raft.applier import Applier, StateMachine
from batonmq.raft.barriers import ReadBarriers
from batonmq.raft.config import RaftConfig
from batonmq.raft.core import RaftCore
from batonmq.raft.errors import (
    ForeignEntry,
    NewerEntry,
    NodeStopped,
    NotLeader,
    ProposalTooLarge,
    RaftError,
    StorageCorrupt,
    UnreadableState,
)
from batonmq.raft.membership_changes import MembershipChanges
from batonmq.raft.messages import (
    WIRE_VERSION,
    Append,
    Envelope,
    Kind,
    Members,
    Message,
    NewerWireVersion,
    Snapshot,
    decode_envelope,
    encode,
)
from batonmq.raft.persistence import Persistence, failure_text
from batonmq.raft.proposals import Proposals, fail
from batonmq.raft.snapshots import Snapshots
from batonmq.raft.state import Offer, Role, Save
from batonmq.raft.status import Status
from batonmq.raft.storage import REMEDY, Storage
from batonmq.raft.worker import Worker

log = logging.getLogger(__name__)


class RaftTransport(Protocol):
    """Carries payloads between nodes: at most once, in any order. It does not report failures."""

    def send(self, peer_id: str, payload: bytes) -> None: ...
    def set_peers(self, addresses: dict[str, str]) -> None:
        """The group's members (id -> address, this node included) as of now."""
        ...


class RaftNode:
    """A member of the group ``group``. ``start`` recovers and joins; ``stop`` leaves the disk clean.

    ``members`` is the membership the group is founded with; afterwards the log holds the membership. A node
    that is to join later is given the group's voters and itself as a learner, so that it can answer them.
    """

    def __init__(
        self,
        group: str,
        node_id: str,
        members: Members,
        machine: StateMachine,
        storage: Storage,
        transport: RaftTransport,
        worker: Worker,
        *,
        config: RaftConfig,
        rng: random.Random,
    ) -> None:
        self.group = group
        self.id = node_id
        self.config = config
        self.on_failure: Callable[[BaseException], None] | None = None
        """Called once when the node stops itself: a disk or state machine that failed."""
        self.on_unclaimed: Callable[[object], None] | None = None
        """Called with what ``StateMachine.apply`` returned for a proposal of this node whose caller was
        cancelled meanwhile."""
        self.status = Status(f"raft {group}/{node_id}", transport.set_peers)
        self.changes = MembershipChanges(self)
        self._bootstrap = members
        self._storage = storage
        self._transport = transport
        self._rng = rng
        self._maybe_core: RaftCore | None = None
        self._confirm_reads = False
        self._loop: asyncio.AbstractEventLoop
        self._stopped: BaseException | None = None
        self._running = False
        self._closing: asyncio.Task[None] | None = None

        self._turn_scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_ms = 0

        self._proposals = Proposals()
        self._applier = Applier(machine, self._proposals, self._log_ignored, self._pass_on_unclaimed)
        self._machine = machine
        self._entry_versions: dict[str, int] = {}
        """Node -> `StateMachine.entry_version` of its last message."""
        self._reads: ReadBarriers
        self._persistence = Persistence(
            f"raft {group}/{node_id}",
            storage,
            worker,
            saved=self._saved,
            snapshot_loaded=self._snapshot_loaded,
            failed=self._crash,
        )
        self._snapshots = Snapshots(
            config,
            self._applier,
            write=storage.write_snapshot,
            written=self._snapshot_written,
            failed=self._crash,
        )

        self._warnings = RepeatedWarnings(log)

    # ------------------------------------------------------------------ start and stop

    async def start(self) -> None:
        """Recover and take part. Raises StorageCorrupt or OSError."""
        self._loop = asyncio.get_running_loop()
        started_us = int(self._loop.time() * 1e6)
        recovered = await self._loop.run_in_executor(None, self._storage.open)
        if recovered.cut_bytes:
            log.warning(
                "raft %s/%s cut %d bytes of an unfinished write", self.group, self.id, recovered.cut_bytes
            )
        snapshot = recovered.snapshot
        if snapshot is not None:
            try:
                self._applier.restore(snapshot)
            except UnreadableState as e:
                await self._loop.run_in_executor(None, self._storage.close)
                raise StorageCorrupt(f"{self._storage.snapshot_path(snapshot.meta)}: {e}; {REMEDY}") from e
        self._snapshots.restored(self._applier.index, self._now_ms())
        core = self._maybe_core = RaftCore(
            self.id,
            self.config,
            members=self._bootstrap,
            rng=self._rng,
            now_ms=self._now_ms(),
            hard_state=recovered.hard_state,
            log=recovered.log,
            snapshot=snapshot.meta if snapshot else None,
        )
        core.reads.always_confirm = self._confirm_reads
        self._persistence.begin(core.take_save)
        self._reads = ReadBarriers(core, self.config, self._applier, first_number=started_us)
        self._running = True
        log.info(
            "raft %s/%s starts term=%d last_index=%d snapshot_index=%d",
            self.group,
            self.id,
            self.term,
            recovered.log.last_index,
            self._snapshots.index,
        )
        self._turn()

    async def stop(self) -> None:
        """Stop taking part; everything unanswered fails with ProposalUncertain or NodeStopped.

        May be called again, also while another call waits. A disk that answers nothing for
        ``DISK_PATIENCE_S`` is left alone, and a log line says so: a write may still reach it."""
        self._halt(NodeStopped("the node was stopped"))
        if self._maybe_core is None:
            return
        if self._closing is None:
            self._closing = self._loop.create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        if await self._persistence.finish():
            await self._snapshots.finish()
            await self._persistence.close()

    def _halt(self, cause: BaseException) -> None:
        if self._stopped is not None:
            return
        self._stopped = cause
        self._running = False
        self._persistence.stop()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._proposals.stop(cause)
        if self._maybe_core is not None:
            self._reads.stop(cause)

    def _crash(self, cause: BaseException) -> None:
        """After this failure nothing that this node sends can be trusted: it sends no more."""
        if self._stopped is not None:
            return
        if isinstance(cause, OSError | StorageCorrupt | NewerEntry):
            log.critical("raft %s/%s stops itself: %s", self.group, self.id, failure_text(cause))
        else:
            log.critical("raft %s/%s stops itself: %r", self.group, self.id, cause, exc_info=cause)
        self._halt(cause)
        if self.on_failure is not None:
            self.on_failure(cause)

    def require_running(self) -> None:
        """Raises NodeStopped."""
        if not self._running:
            raise NodeStopped("the node does not run") from self._stopped

    # ------------------------------------------------------------------ state

    @property
    def core(self) -> RaftCore:
        """The protocol's state, to read only. Raises NodeStopped before ``start``."""
        if self._maybe_core is None:
            raise NodeStopped("the node has not been started")
        return self._maybe_core

    @property
    def role(self) -> Role:
        return self.core.role

    @property
    def term(self) -> int:
        return self.core.term

    @property
    def leader_id(self) -> str | None:
        return self.core.leader_id

    @property
    def members(self) -> Members:
        return self.core.members

    @property
    def commit_index(self) -> int:
        return self.core.commit_index

    @property
    def applied_index(self) -> int:
        return self._applier.index

    @property
    def common_entry_version(self) -> int:
        """The newest version of entries that every member can read, by the messages since this node started;
        1 while any member has sent none."""
        known, own = self._entry_versions, self._machine.entry_version
        others = (known.get(member, 1) for member in self.members.all() if member != self.id)
        return min(own, min(others, default=own))

    @property
    def leader_entry_version(self) -> int:
        """The newest version of entries that the leader can read; 1 while there is none."""
        leader = self.leader_id
        if leader == self.id:
            return self._machine.entry_version
        return 1 if leader is None else self._entry_versions.get(leader, 1)

    # ------------------------------------------------------------------ requests

    async def propose(self, data: bytes) -> object:
        """Replicate ``data``; returns what ``StateMachine.apply`` returned for it on this node.

        Raises NotLeader, TransferInProgress, Overloaded, ProposalTooLarge (nothing happened), ProposalLost
        (it never will be applied), ProposalUncertain (it may yet be), NodeStopped.
        """
        self.require_running()
        if self.core.role is not Role.LEADER:
            raise NotLeader(self.core.leader_id)
        if len(data) > self.config.max_proposal_bytes:
            raise ProposalTooLarge(
                f"{len(data)} bytes, at most {self.config.max_proposal_bytes} are possible"
            )
        future: asyncio.Future[object] = self._loop.create_future()
        self._proposals.queued.append((data, future))
        self._schedule()
        return await future

    def confirm_reads(self, always: bool) -> None:
        """Whether a leader asks a majority for each read, even with a lease. What followers promise for a
        lease stays in force."""
        self._confirm_reads = always
        if self._maybe_core is not None:
            self._maybe_core.reads.always_confirm = always

    async def read_index(self) -> None:
        """Return once this node's state machine shows everything that was committed before the call (6.4).

        On a follower the leader is asked for its read index. Raises NotLeader when no leader is known or it
        changed meanwhile, ReplicaLagging, ReadUnavailable, NodeStopped.
        """
        self.require_running()
        future = self._reads.add()
        self._schedule()
        await future

    async def commit_members(self, members: Members) -> None:
        """Put another membership into force; returns once it is applied. `changes` has the safe steps."""
        index = self.core.change_members(members)
        future: asyncio.Future[object] = self._loop.create_future()
        self._proposals.appended[index] = (self.core.term, future)
        self._schedule()
        await future

    def begin_transfer(self, target: str) -> None:
        """Begin to hand the leadership over. Raises NodeStopped, NotLeader, MembershipRefused."""
        self.require_running()
        self.core.transfer_leadership(target, self._now_ms())
        self._schedule()

    def take_snapshot(self) -> asyncio.Task[None]:
        """Write the state machine's state now; the log before it is dropped once that is durable."""
        members = self.core.memberships.members_at(self._applier.index)
        return self._snapshots.take(members, self._now_ms())

    # ------------------------------------------------------------------ the transport's side

    def receive(self, from_peer: str, payload: bytes | memoryview) -> None:
        """One payload that the transport brought from ``from_peer``. What is not for this node is dropped."""
        if not self._running:
            return
        try:
            envelope = decode_envelope(payload)
        except NewerWireVersion as e:
            text = f"is not understood by raft {self.group}/{self.id}: {e}; upgrade this controller"
            self._warnings.warn(from_peer, text, self._now_ms())
            return
        except msgspec.MsgspecError as e:
            text = f"sent raft {self.group}/{self.id} a malformed message, which is dropped: {e}"
            self._warnings.warn(from_peer, text, self._now_ms())
            return
        if (envelope.group, envelope.sender, envelope.target) != (self.group, from_peer, self.id):
            text = (
                f"is refused by raft {self.group}/{self.id}: its message is from node "
                f"{envelope.sender[:64]!r} of group {envelope.group[:64]!r}, "
                f"for node {envelope.target[:64]!r}"
            )
            self._warnings.warn(from_peer, text, self._now_ms())
            return
        core, now = self.core, self._now_ms()
        if envelope.messages and from_peer in core.members.all():
            self._entry_versions[from_peer] = envelope.entry_version
        try:
            for message in envelope.messages:
                if type(message) is Append and self._refuses(from_peer, message, now):
                    continue
                core.step(from_peer, message, now)
        except Exception as e:
            self._crash(e)
            return
        self._schedule()

    def _refuses(self, sender: str, message: Append, now_ms: int) -> bool:
        """Whether the state machine cannot apply one of these entries. In the log such an entry would concern
        every node at each start."""
        for entry in message.entries:
            if entry.kind == Kind.DATA:
                why = self._machine.refusal(entry.data)
                if why is not None:
                    text = f"sent raft {self.group}/{self.id} an entry, which is refused: {why}"
                    self._warnings.warn(sender, text, now_ms)
                    return True
        return False

    def peer_lost(self, peer: str) -> None:
        """The process of ``peer`` is gone: its connection closed, and its address refuses another."""
        if not self._running:
            return
        try:
            self.core.peer_lost(peer, self._now_ms())
        except Exception as e:
            self._crash(e)
            return
        self._schedule()

    # ------------------------------------------------------------------ a turn

    def _now_ms(self) -> int:
        return int(self._loop.time() * 1000)

    def _schedule(self) -> None:
        if not self._turn_scheduled:
            self._turn_scheduled = True
            self._loop.call_soon(self._run_turn)

    def _run_turn(self) -> None:
        self._turn_scheduled = False
        if self._running:
            self._turn()

    def _turn(self) -> None:
        try:
            self._propose_queued()
            reads, applier = self._reads.barriers, self._applier
            if reads.unasked:
                self._reads.ask(self._now_ms())
            ready = self.core.ready(self._now_ms())
            self._send(ready.messages)
            if ready.entries:
                applier.committed.append((ready.first_index, ready.entries))
            for sender, why in ready.refused:
                self._log_refused_snapshot(sender, why)
            for peer, refused_index in ready.forgetful:
                self._log_forgetful(peer, refused_index)
            if ready.offer is not None:
                self._install(ready.offer)
            for number, index in ready.reads:
                self._reads.answered(number, index)
            if applier.committed and applier.apply():
                self._schedule()
            if reads.held:
                reads.applied(applier.index)
            self._snapshot_if_due()
            if ready.needs_snapshot:
                self._persistence.load_snapshot()
            self._persistence.wake()
            lost_term = self.status.report(self.core)
            if lost_term is not None and self._proposals.appended:
                # The next leader may commit its proposals, and then their callers get results; but they do
                # not wait forever.
                delay_s = self.config.election_timeout_ms / 1000
                self._loop.call_later(delay_s, self._proposals.give_up, lost_term)
            self._arm_timer()
        except Exception as e:
            self._crash(e)

    def _propose_queued(self) -> None:
        if not self._proposals.queued:
            return
        queued = self._proposals.take_queued()
        core = self.core
        try:
            first = core.propose([data for data, _ in queued])
        except RaftError as error:
            fail([future for _, future in queued], error)
            return
        term, appended = core.term, self._proposals.appended
        for place, (_, future) in enumerate(queued):
            appended[first + place] = (term, future)

    def _send(self, messages: list[tuple[str, Message]]) -> None:
        if not messages:
            return
        by_peer: dict[str, list[Message]] = {}
        for peer, message in messages:
            by_peer.setdefault(peer, []).append(message)
        for peer, batch in by_peer.items():
            self._transport.send(peer, encode(self._envelope(peer, batch)))

    def _envelope(self, peer: str, batch: list[Message]) -> Envelope:
        return Envelope(self.group, self.id, peer, batch, WIRE_VERSION, self._machine.entry_version)

    def _arm_timer(self) -> None:
        if not self._running:
            return
        deadline = self.core.next_deadline_ms()
        # A later deadline is found when the timer fires: resetting it on each heartbeat would cost more.
        if self._timer is not None and self._timer_at_ms <= deadline:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at_ms = deadline
        self._timer = self._loop.call_later(max(0, deadline - self._now_ms()) / 1000, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        try:
            now = self._now_ms()
            if now >= self.core.next_deadline_ms():
                self.core.tick(now)
            self._snapshot_if_due()
        except Exception as e:
            self._crash(e)
            return
        self._turn()

    # ------------------------------------------------------------------ the state machine

    def _snapshot_if_due(self) -> None:
        if self._running and self._snapshots.is_due(self._now_ms()):
            self.take_snapshot()

    def _install(self, offer: Offer) -> None:
        """Only what the state machine could restore goes into the log and to the disk: a snapshot on the disk
        that it cannot restore would end the node at each start."""
        try:
            self._applier.restore(offer.snapshot)
        except UnreadableState as e:
            self.core.refuse(offer, str(e))
            self._schedule()
            return
        self.core.install(offer, self._now_ms())
        self._snapshots.restored(self._applier.index, self._now_ms())
        self._proposals.covered(self._applier.index)
        self._reads.barriers.applied(self._applier.index)

    def _pass_on_unclaimed(self, result: object) -> None:
        if self.on_unclaimed is not None:
            self.on_unclaimed(result)

    def _log_ignored(self, index: int, error: ForeignEntry) -> None:
        text = f"ignores entry {index} of its log, as every node does: {error}"
        self._warnings.warn(f"raft {self.group}/{self.id}", text, self._now_ms())

    def _log_refused_snapshot(self, sender: str, why: str) -> None:
        text = f"sent raft {self.group}/{self.id} a snapshot, which is refused: {why}"
        self._warnings.warn(sender, text, self._now_ms())

    def _log_forgetful(self, peer: str, index: int) -> None:
        text = (
            f"seems to have lost its log of raft {self.group}/{self.id}: it refuses entry {index}, which "
            "it had acknowledged. It gets the log again, but it may have voted twice. A controller whose "
            "directory was emptied must come back as a new member under a new id"
        )
        self._warnings.warn(peer, text, self._now_ms())

    # ------------------------------------------------------------------ the disk

    def _saved(self, save: Save) -> None:
        self._send(self.core.saved(save, self._now_ms()))
        if save.snapshot is not None:
            self._persistence.drop_before(save.snapshot.meta.index)
        # At once, not in the next turn: followers' answers are mostly in, so this often commits the batch.
        self._turn()

    def _snapshot_loaded(self, snapshot: Snapshot) -> None:
        self.core.snapshot_loaded(snapshot)
        self._schedule()

    def _snapshot_written(self, snapshot: Snapshot) -> None:
        if not self._running:
            return
        meta = snapshot.meta
        log.info(
            "raft %s/%s took a snapshot index=%d bytes=%d",
            self.group,
            self.id,
            meta.index,
            len(snapshot.data),
        )
        self.core.compacted(meta)
        self._persistence.drop_before(meta.index)
        self._persistence.wake()
