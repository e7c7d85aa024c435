"""One Raft node as an asyncio object: the core, its disk, its timer, its state machine.

All that happens in one turn of the loop is one step outwards: proposals of the turn are appended together,
the messages to one peer leave in one envelope, the disk gets one write and one fsync. While an fsync runs in
the worker's thread the next batch gathers, and replication runs beside the leader's own fsync.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Protocol

import msgspec

from batonmq.common.files import reason
from batonmq.common.repeated_warnings import RepeatedWarnings
from batonmq.raft.barriers import Barriers
from batonmq.raft.config import RaftConfig
from batonmq.raft.core import RaftCore
from batonmq.raft.errors import (
    MembershipRefused,
    NodeStopped,
    NotLeader,
    ProposalLost,
    ProposalTooLarge,
    ProposalUncertain,
    RaftError,
    ReadUnavailable,
    ReplicaLagging,
    StorageCorrupt,
    UnreadableState,
)
from batonmq.raft.messages import (
    Entry,
    Envelope,
    Kind,
    Members,
    Message,
    Snapshot,
    SnapshotMeta,
    decode_envelope,
    encode,
)
from batonmq.raft.quorum import majority
from batonmq.raft.state import Offer, Role, Save
from batonmq.raft.storage import REMEDY, Storage
from batonmq.raft.worker import Worker

log = logging.getLogger(__name__)

_APPLY_PER_TURN = 1_000
"""Entries applied before other callbacks of the loop get a chance."""

DISK_PATIENCE_S = 30.0
"""How long a stopping node waits for its disk: longer than any flush of a disk that still works."""


class StateMachine(Protocol):
    """What the log is for. Calls come in log order, on the event loop; none may block, nor raise anything but
    what it says here."""

    def apply(self, index: int, data: bytes) -> object: ...
    def snapshot(self) -> bytes:
        """The whole state, as ``restore`` takes it."""
        ...

    def restore(self, data: bytes) -> None:
        """Replaces the whole state. Raises UnreadableState for what is none, and then changes nothing: the
        bytes may be a stranger's."""
        ...


class RaftTransport(Protocol):
    """Carries payloads between nodes: at most once, in any order, without a word about failure."""

    def send(self, peer_id: str, payload: bytes) -> None: ...
    def set_peers(self, addresses: dict[str, str]) -> None:
        """The group's members (id -> address, this node included) as of now."""
        ...


class RaftNode:
    """A member of the group ``group``. ``start`` recovers and joins; ``stop`` leaves the disk clean.

    ``members`` is the membership the group is born with; afterwards the log says who belongs to it. A node
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
        self.on_role_change: Callable[[Role, int, str | None], None] | None = None
        """Called with (role, term, leader id) after each change of any of the three."""
        self.on_removed: Callable[[int], None] | None = None
        """Called with the index when the node learns that it was removed from the group."""
        self.on_failure: Callable[[BaseException], None] | None = None
        """Called once when the node stops itself: a disk or state machine that failed."""
        self._bootstrap = members
        self._machine = machine
        self._storage = storage
        self._transport = transport
        self._config = config
        self._rng = rng
        self._maybe_core: RaftCore | None = None
        self._loop: asyncio.AbstractEventLoop
        self._stopped: BaseException | None = None
        self._running = False

        self._turn_scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_ms = 0
        self._queued: list[tuple[bytes, asyncio.Future[object]]] = []
        self._pending: dict[int, tuple[int, asyncio.Future[object]]] = {}
        self._to_apply: deque[tuple[int, list[Entry]]] = deque()
        self.applied_index = 0
        self._applied_term = 0

        self._worker = worker
        self._disk_busy = False
        self._disk_idle = asyncio.Event()
        """Set when the node has stopped and the job that was under way then is done."""
        self._closing: asyncio.Task[None] | None = None
        self._drop_before = 0
        self._loaded: Snapshot | None = None
        self._load_wanted = False
        self._snapshot_task: asyncio.Task[None] | None = None
        self._snapshot_at_ms = 0
        self._snapshot_index = 0
        self._bytes_since_snapshot = 0

        self._barriers = Barriers(0)
        self._warnings = RepeatedWarnings(log)
        self._shown: tuple[Role, int, str | None] = (Role.FOLLOWER, 0, None)
        self._shown_members: Members | None = None
        self._shown_removal: int | None = None

    # ------------------------------------------------------------------ life

    async def start(self) -> None:
        """Recover and take part. Raises StorageCorrupt or OSError."""
        self._loop = asyncio.get_running_loop()
        self._barriers = Barriers(int(self._loop.time() * 1e6))
        recovered = await self._loop.run_in_executor(None, self._storage.open)
        if recovered.cut_bytes:
            log.warning(
                "raft %s/%s cut %d bytes of an unfinished write", self.group, self.id, recovered.cut_bytes
            )
        snapshot = recovered.snapshot
        if snapshot is not None:
            try:
                self._machine.restore(snapshot.data)
            except UnreadableState as e:
                await self._loop.run_in_executor(None, self._storage.close)
                raise StorageCorrupt(f"{self._storage.snapshot_path(snapshot.meta)}: {e}; {REMEDY}") from e
            self._restored(snapshot.meta)
        self._snapshot_at_ms = self._now_ms()
        self._maybe_core = RaftCore(
            self.id,
            self._config,
            members=self._bootstrap,
            rng=self._rng,
            now_ms=self._now_ms(),
            hard_state=recovered.hard_state,
            log=recovered.log,
            snapshot=snapshot.meta if snapshot else None,
        )
        self._running = True
        log.info(
            "raft %s/%s starts term=%d last_index=%d snapshot_index=%d",
            self.group,
            self.id,
            self.term,
            recovered.log.last_index,
            self._snapshot_index,
        )
        self._turn()

    async def stop(self) -> None:
        """Stop taking part; everything unanswered fails with ProposalUncertain or NodeStopped.

        May be called again, also while another call waits. A disk that answers nothing for
        ``DISK_PATIENCE_S`` is left alone, and the log says so: a write may still reach it."""
        self._halt(NodeStopped("the node was stopped"))
        if self._maybe_core is None:
            return
        if self._closing is None:
            self._closing = self._loop.create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        self._worker.stop()
        if self._disk_busy:
            try:
                async with asyncio.timeout(DISK_PATIENCE_S):
                    await self._disk_idle.wait()
            except TimeoutError:
                log.error(
                    "raft %s/%s: its disk did not answer for %g s; it is left as it is",
                    self.group,
                    self.id,
                    DISK_PATIENCE_S,
                )
                return
        if self._snapshot_task is not None:
            await asyncio.gather(self._snapshot_task, return_exceptions=True)
        try:
            await self._loop.run_in_executor(None, self._storage.close)
        except OSError as e:
            # What it acknowledged was durable before: whoever stops it has more to close than this.
            self._disk_failed_at_last(e)

    def _disk_failed_at_last(self, error: BaseException) -> None:
        log.error("raft %s/%s: its disk failed as it stopped: %s", self.group, self.id, _told(error))

    def _halt(self, cause: BaseException) -> None:
        if self._stopped is not None:
            return
        self._stopped = cause
        self._running = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._fail(self._queued_futures(), NodeStopped("the node has stopped"), cause)
        self._fail(
            [future for _, future in self._pending.values()],
            ProposalUncertain("the node stopped before the outcome was known"),
            cause,
        )
        self._pending.clear()
        self._fail(self._barriers.give_up(), NodeStopped("the node has stopped"), cause)

    def _crash(self, cause: BaseException) -> None:
        """A failure after which nothing this node says can be trusted: it falls silent."""
        if self._stopped is not None:
            return
        if isinstance(cause, OSError | StorageCorrupt):
            log.critical("raft %s/%s stops itself: %s", self.group, self.id, _told(cause))
        else:
            log.critical("raft %s/%s stops itself: %r", self.group, self.id, cause, exc_info=cause)
        self._halt(cause)
        if self.on_failure is not None:
            self.on_failure(cause)

    def _queued_futures(self) -> list[asyncio.Future[object]]:
        queued, self._queued = self._queued, []
        return [future for _, future in queued]

    @staticmethod
    def _fail(
        futures: list[asyncio.Future[object]] | list[asyncio.Future[None]],
        error: RaftError,
        cause: BaseException | None = None,
    ) -> None:
        error.__cause__ = cause
        for future in futures:
            if not future.done():
                future.set_exception(error)

    # ------------------------------------------------------------------ what users see

    @property
    def core(self) -> RaftCore:
        """The protocol's state, to look at. Raises NodeStopped before ``start``."""
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

    async def propose(self, data: bytes) -> object:
        """Replicate ``data``; returns what ``StateMachine.apply`` returned for it on this node.

        Raises NotLeader, TransferInProgress, Overloaded, ProposalTooLarge (nothing happened), ProposalLost
        (it never will be applied), ProposalUncertain (it may yet be), NodeStopped.
        """
        self._require_running()
        if self.core.role is not Role.LEADER:
            raise NotLeader(self.core.leader_id)
        if len(data) > self._config.max_proposal_bytes:
            raise ProposalTooLarge(
                f"{len(data)} bytes, at most {self._config.max_proposal_bytes} are possible"
            )
        future: asyncio.Future[object] = self._loop.create_future()
        self._queued.append((data, future))
        self._schedule()
        return await future

    async def read_index(self) -> None:
        """Return once this node's state machine shows everything that was committed before the call (6.4).

        On a follower the leader is asked for its read index. Raises NotLeader when no leader is known or it
        changed meanwhile, ReplicaLagging, ReadUnavailable, NodeStopped.
        """
        self._require_running()
        core = self.core
        if core.leader_id is None:
            raise NotLeader(None)
        if self._lags_behind(core.commit_index):
            raise ReplicaLagging(f"{core.commit_index - self.applied_index} entries behind")
        future: asyncio.Future[None] = self._loop.create_future()
        self._barriers.add(future)
        self._schedule()
        try:
            async with asyncio.timeout(self._config.read_timeout_ms / 1000):
                await future
        except TimeoutError:
            raise ReadUnavailable("no quorum confirmed the read in time") from None

    async def transfer_leadership(self, target: str) -> None:
        """Hand over to ``target``; returns when this node no longer leads.

        Raises NotLeader, MembershipRefused (not a voter), or TimeoutError if it leads on.
        """
        self._require_running()
        core = self.core
        core.transfer_leadership(target, self._now_ms())
        self._schedule()
        deadline = self._loop.time() + 2 * self._config.election_timeout_ms / 1000
        while core.role is Role.LEADER:
            if core.transfer_target is None or self._loop.time() > deadline:
                raise TimeoutError(f"{target} did not take over within the election timeout")
            await asyncio.sleep(self._config.heartbeat_interval_ms / 4000)

    async def add_learner(self, node_id: str, address: str, service: str = "") -> None:
        """Let ``node_id`` receive the log without a vote: the first step of adding a voter (4.2.1).

        ``service`` is where it serves others than its peers, if that is another address.
        """
        members = self.core.members
        if node_id in members.voters:
            raise MembershipRefused(f"{node_id} is a voter already")
        await self._change(members.with_learner(node_id, address, service))

    async def promote(self, node_id: str, *, max_lag: int = 100, timeout_ms: int = 30_000) -> None:
        """Make a learner a voter once it is within ``max_lag`` entries of the end of the log."""
        if node_id not in self.core.members.learners:
            raise MembershipRefused(f"{node_id} is not a learner")
        async with asyncio.timeout(timeout_ms / 1000):
            while True:
                core = self.core
                if core.role is not Role.LEADER:
                    raise NotLeader(core.leader_id)
                lag = core.lag(node_id)
                if lag is not None and lag <= max_lag:
                    break
                await asyncio.sleep(self._config.heartbeat_interval_ms / 1000)
        await self._change(self.core.members.promoted(node_id))

    async def remove(self, node_id: str) -> None:
        """Take ``node_id`` out of the group. A leader that removes itself steps down once committed."""
        members = self.core.members
        if node_id not in members.all():
            raise MembershipRefused(f"{node_id} is not a member")
        await self._change(members.without(node_id))

    async def replace(self, old: str, new: str, address: str) -> None:
        """Put ``new`` in the place of ``old``: learner, voter, then remove ``old``."""
        await self.add_learner(new, address)
        await self.promote(new)
        await self.remove(old)

    async def _change(self, members: Members) -> None:
        self._require_running()
        core = self.core
        living = core.heard(members.voters)
        if core.role is Role.LEADER and len(living) < majority(len(members.voters)):
            # It could never be committed, nor could anything else, for it is in force from now on.
            raise MembershipRefused(
                f"of the voters {', '.join(members.voters)} only {', '.join(living) or 'none'} would answer: "
                f"no majority"
            )
        index = core.change_members(members)
        future: asyncio.Future[object] = self._loop.create_future()
        self._pending[index] = (self.core.term, future)
        self._schedule()
        await future

    def _require_running(self) -> None:
        if not self._running:
            raise NodeStopped("the node does not run") from self._stopped

    # ------------------------------------------------------------------ the transport's side

    def receive(self, from_peer: str, payload: bytes | memoryview) -> None:
        """One payload that the transport brought from ``from_peer``. What is not for this node is dropped."""
        if not self._running:
            return
        try:
            envelope = decode_envelope(payload)
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
        try:
            for message in envelope.messages:
                core.step(from_peer, message, now)
        except Exception as e:
            self._crash(e)
            return
        self._schedule()

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
            self._ask_reads()
            ready = self.core.ready(self._now_ms())
            self._send(ready.messages)
            if ready.entries:
                self._to_apply.append((ready.first_index, ready.entries))
            for sender, why in ready.refused:
                self._complain_of_snapshot(sender, why)
            if ready.offer is not None:
                self._judge(ready.offer)
            for number, index in ready.reads:
                self._read_answered(number, index)
            self._apply()
            if ready.needs_snapshot:
                self._load_wanted = True
            self._wake_disk()
            self._show_role()
            self._arm_timer()
        except Exception as e:
            self._crash(e)

    def _propose_queued(self) -> None:
        if not self._queued:
            return
        queued, self._queued = self._queued, []
        core = self.core
        try:
            first = core.propose([data for data, _ in queued])
        except RaftError as error:
            self._fail([future for _, future in queued], error)
            return
        term, pending = core.term, self._pending
        for place, (_, future) in enumerate(queued):
            pending[first + place] = (term, future)

    def _send(self, messages: list[tuple[str, Message]]) -> None:
        if not messages:
            return
        by_peer: dict[str, list[Message]] = {}
        for peer, message in messages:
            by_peer.setdefault(peer, []).append(message)
        for peer, batch in by_peer.items():
            self._transport.send(peer, encode(Envelope(self.group, self.id, peer, batch)))

    def _show_role(self) -> None:
        core = self.core
        if core.members is not self._shown_members:
            if self._shown_members is not None:
                learners = f", learners {', '.join(core.members.learners)}" if core.members.learners else ""
                voters = ", ".join(core.members.voters)
                log.info("raft %s/%s: the members are %s%s", self.group, self.id, voters, learners)
            self._shown_members = core.members
            self._transport.set_peers(core.members.all())
        if core.removed_at != self._shown_removal:
            self._shown_removal = core.removed_at
            if core.removed_at is not None and self.on_removed is not None:
                self.on_removed(core.removed_at)
        now = (core.role, core.term, core.leader_id)
        if now == self._shown:
            return
        led, led_term = self._shown[0] is Role.LEADER, self._shown[1]
        self._shown = now
        log.info("raft %s/%s is %s term=%d leader=%s", self.group, self.id, now[0].value, now[1], now[2])
        if led and core.role is not Role.LEADER and self._pending:
            # They may be committed by the next leader, and then are answered; but not for ever.
            self._loop.call_later(self._config.election_timeout_ms / 1000, self._give_up, led_term)
        if self.on_role_change is not None:
            self.on_role_change(*now)

    def _give_up(self, term: int) -> None:
        stale = [index for index, (proposed_in, _) in self._pending.items() if proposed_in <= term]
        self._fail(
            [self._pending.pop(index)[1] for index in stale],
            ProposalUncertain("leadership was lost before the outcome was known"),
        )

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
            self._maybe_snapshot()
        except Exception as e:
            self._crash(e)
            return
        self._turn()

    # ------------------------------------------------------------------ applying

    def _judge(self, offer: Offer) -> None:
        """Only what the state machine could take goes into the log and to the disk: a snapshot there that it
        cannot restore would end the node at each start."""
        try:
            self._machine.restore(offer.snapshot.data)
        except UnreadableState as e:
            self.core.refuse(offer, str(e))
            self._schedule()
            return
        self.core.install(offer, self._now_ms())
        self._to_apply.clear()
        self._restored(offer.snapshot.meta)
        self._bytes_since_snapshot = 0
        self._snapshot_at_ms = self._now_ms()
        covered = [index for index in self._pending if index <= self.applied_index]
        self._fail(
            [self._pending.pop(index)[1] for index in covered],
            ProposalUncertain("a snapshot of the leader hides the outcome"),
        )
        self._barriers.applied(self.applied_index)

    def _restored(self, meta: SnapshotMeta) -> None:
        self._snapshot_index = self.applied_index = meta.index
        self._applied_term = meta.term

    def _complain_of_snapshot(self, sender: str, why: str) -> None:
        text = f"sent raft {self.group}/{self.id} a snapshot, which is refused: {why}"
        self._warnings.warn(sender, text, self._now_ms())

    def _apply(self) -> None:
        budget = _APPLY_PER_TURN
        apply, pending = self._machine.apply, self._pending
        while self._to_apply and budget > 0:
            index, entries = self._to_apply.popleft()
            if len(entries) > budget:
                self._to_apply.appendleft((index + budget, entries[budget:]))
                entries = entries[:budget]
            budget -= len(entries)
            for entry in entries:
                result = None
                if entry.kind == Kind.DATA:
                    self._bytes_since_snapshot += len(entry.data)
                    result = apply(index, entry.data)
                if pending:
                    waiting = pending.pop(index, None)
                    if waiting is not None:
                        term, future = waiting
                        if future.done():
                            pass  # its caller was cancelled
                        elif term == entry.term:
                            future.set_result(result)
                        else:
                            future.set_exception(ProposalLost("another leader's entry took its place"))
                index += 1
            self.applied_index = index - 1
            self._applied_term = entries[-1].term
        if self._to_apply:
            self._schedule()
        self._barriers.applied(self.applied_index)
        self._maybe_snapshot()

    # ------------------------------------------------------------------ reads

    def _ask_reads(self) -> None:
        number = self._barriers.ask()
        if number is not None:
            self.core.read(number, self._now_ms())
            self._loop.call_later(self._config.read_timeout_ms / 1000, self._forget_read, number)

    def _forget_read(self, number: int) -> None:
        if self._barriers.forget(number):
            self.core.forget_read(number)

    def _read_answered(self, number: int, index: int | None) -> None:
        waiting = self._barriers.answered(number)
        if index is None:
            self._fail(waiting, NotLeader(self.core.leader_id))
        elif self._lags_behind(index):
            # Only the leader's answer shows how far a follower is behind that was cut off.
            self._fail(waiting, ReplicaLagging(f"{index - self.applied_index} entries behind"))
        else:
            self._barriers.hold(index, waiting)

    def _lags_behind(self, index: int) -> bool:
        """Whether a read that must see ``index`` had better go to the leader (``max_read_lag``)."""
        return (
            self.core.role is not Role.LEADER and 0 < self._config.max_read_lag < index - self.applied_index
        )

    # ------------------------------------------------------------------ the disk

    def _wake_disk(self) -> None:
        """Give the disk its next job, if it has none: saves first."""
        if self._disk_busy or not self._running:
            return
        save = self.core.take_save()
        if save is not None:
            job, then = partial(self._storage.save, save), partial(self._saved, save)
            self._work(job, then, brief=save.snapshot is None)
        elif self._drop_before:
            index, self._drop_before = self._drop_before, 0
            self._work(partial(self._storage.drop_before, index), self._wake_disk)
        elif self._load_wanted:
            self._load_wanted = False
            self._work(self._load_snapshot, self._snapshot_loaded)

    def _work(self, job: Callable[[], object], then: Callable[[], None], *, brief: bool = False) -> None:
        def done(error: BaseException | None) -> None:
            self._disk_busy = False
            if self._stopped is not None:
                if error is not None:
                    self._disk_failed_at_last(error)
                self._disk_idle.set()
            elif error is not None:
                self._crash(error)
            else:
                try:
                    then()
                except Exception as e:
                    self._crash(e)

        self._worker.submit(job, done, brief=brief)
        self._disk_busy = True  # only now: who stops would wait for ever for a job that nobody took

    def _load_snapshot(self) -> None:
        self._loaded = self._storage.load_snapshot()

    def _snapshot_loaded(self) -> None:
        snapshot, self._loaded = self._loaded, None
        if snapshot is not None:
            self.core.snapshot_loaded(snapshot)
            self._schedule()
        self._wake_disk()

    def _saved(self, save: Save) -> None:
        self._send(self.core.saved(save, self._now_ms()))
        if save.snapshot is not None:
            self._drop_before = max(self._drop_before, save.snapshot.meta.index)
        # At once, not in the next turn: followers' answers are mostly in, so this often commits the batch.
        self._turn()

    def _maybe_snapshot(self) -> None:
        config = self._config
        applied = self.applied_index - self._snapshot_index
        if self._snapshot_task is not None or applied == 0 or not self._running:
            return
        if (
            0 < config.snapshot_entries <= applied
            or 0 < config.snapshot_bytes <= self._bytes_since_snapshot
            or 0 < config.snapshot_interval_ms <= self._now_ms() - self._snapshot_at_ms
        ):
            self.take_snapshot()

    def take_snapshot(self) -> asyncio.Task[None]:
        """Write the state machine's state now; the log before it is dropped once that is durable."""
        if self._snapshot_task is None:
            meta = SnapshotMeta(
                self.applied_index, self._applied_term, self.core.members_at(self.applied_index)
            )
            snapshot = Snapshot(meta, self._machine.snapshot())
            self._snapshot_index = meta.index
            self._snapshot_at_ms = self._now_ms()
            self._bytes_since_snapshot = 0
            self._snapshot_task = self._loop.create_task(self._write_snapshot(snapshot))
        return self._snapshot_task

    async def _write_snapshot(self, snapshot: Snapshot) -> None:
        meta = snapshot.meta
        try:
            await self._loop.run_in_executor(None, self._storage.write_snapshot, snapshot)
            if self._running:
                log.info(
                    "raft %s/%s took a snapshot index=%d bytes=%d",
                    self.group,
                    self.id,
                    meta.index,
                    len(snapshot.data),
                )
                self.core.compacted(meta)
                self._drop_before = max(self._drop_before, meta.index)
                self._wake_disk()
        except Exception as e:
            self._crash(e)
        finally:
            self._snapshot_task = None


def _told(error: BaseException) -> str:
    """In a line, with the path if it is the disk's."""
    if isinstance(error, OSError):
        return reason(error)
    return str(error) if isinstance(error, RaftError) else repr(error)
