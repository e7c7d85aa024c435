"""The controller's replicated state machine: log entries in, answers and effects out.

It owns the broker sets and decides everything when an entry is applied, from nothing but the state and the
entry (RIP-67). It never reads a clock, sleeps, or opens anything; the order of the log is the only
order there is, so two requests can never be judged by the same old state.

Answers carry RocketMQ's response codes and its 5.5 bodies. Effects are for the node that leads: the service
turns elections into role change notices and writes all of them to the event log. A follower drops both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set
from typing import Any

import msgspec

from batonmq.controller import events
from batonmq.controller.effects import (
    NOTHING,
    Cleaned,
    Effect,
    LeadershipStarted,
    Outcome,
    ReplicaAdded,
    ReplicaMoved,
    ReplicaUp,
    SyncStateSetAltered,
    refusal,
)
from batonmq.controller.elections import count_as_down, hold_election
from batonmq.controller.events import NO_BROKER
from batonmq.controller.heartbeats import FORWARDED, UNKNOWN_SESSION, LiveBroker, without_heartbeat
from batonmq.controller.liveness import sets_to_elect, silent_brokers
from batonmq.controller.replicas import FIRST_BROKER_ID, BrokerSet
from batonmq.protocol.bodies.controller import (
    SyncStateSetBody,
)
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.headers import controller as wire
from batonmq.raft.errors import ForeignEntry, NewerEntry, UnreadableState

SNAPSHOT_VERSION = 1
GRACE_PART = 3
"""When a new leader begins, a silent broker has at least one such part of its timeout left."""


class _Snapshot(msgspec.Struct, array_like=True):
    version: int
    now_ms: events.Positive
    broker_sets: list[BrokerSet]
    entry_version: int = 1


class _SnapshotHead(msgspec.Struct, array_like=True):
    """Its beginning in every version."""

    version: int


class ControllerMachine:
    """Implements `raft.StateMachine`. `apply` returns one `Outcome` for each event of the entry."""

    def __init__(self) -> None:
        self.broker_sets: dict[str, BrokerSet] = {}
        self.now_ms = 0
        """Time of the entry applied last."""
        self.written_version = 1
        """The newest version of an entry that was applied: all members could read it then."""

    entry_version = events.ENTRY_VERSION

    def apply(self, index: int, data: bytes) -> list[Outcome]:
        """Applies one entry. Raises as `events.decode`, and then has changed nothing."""
        entry = events.decode(data)
        self.now_ms = entry.now_ms
        self.written_version = max(self.written_version, entry.version)
        return [_HANDLERS[type(event)](self, event) for event in entry.events]

    def refusal(self, data: bytes) -> str | None:
        """See `raft.StateMachine`."""
        try:
            events.decode(data)
        except (ForeignEntry, NewerEntry) as error:
            return str(error)
        return None

    def snapshot(self) -> bytes:
        # In the order of the dicts, which the log determines: a restored machine continues just like this.
        return msgspec.msgpack.encode(
            _Snapshot(SNAPSHOT_VERSION, self.now_ms, list(self.broker_sets.values()), self.written_version)
        )

    def restore(self, data: bytes) -> None:
        """Replaces the whole state; raises `UnreadableState` for what is none, and then changes nothing."""
        try:
            version = msgspec.msgpack.decode(data, type=_SnapshotHead).version
            if version != SNAPSHOT_VERSION:
                raise UnreadableState(
                    f"it holds controllers' state of version {version}, known is {SNAPSHOT_VERSION}"
                )
            snapshot = msgspec.msgpack.decode(data, type=_Snapshot)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise UnreadableState(f"it holds no controllers' state: {error}") from error
        broker_sets = {broker_set.broker_name: broker_set for broker_set in snapshot.broker_sets}
        if len(broker_sets) != len(snapshot.broker_sets):
            raise UnreadableState("it holds no controllers' state: a broker set is there twice")
        if snapshot.entry_version > events.ENTRY_VERSION:
            raise UnreadableState(
                f"it follows entries of version {snapshot.entry_version}, this controller reads up to "
                f"version {events.ENTRY_VERSION} and must be upgraded"
            )
        self.now_ms, self.broker_sets = snapshot.now_ms, broker_sets
        self.written_version = max(1, snapshot.entry_version)

    # -- events, each decided here and now -----------------------------------------------------------------

    def _alter_sync_state_set(self, event: events.AlterSyncStateSet) -> Outcome:
        broker_set = self.broker_sets.get(event.broker_name)
        if broker_set is None:
            return refusal(
                ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED,
                f"broker set {event.broker_name} is not registered",
            )
        wanted = set(event.sync_state_set)
        if wanted == set(broker_set.sync_state_set):
            return refusal(
                ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED,
                f"the SyncStateSet is {sorted(wanted)} already",
            )
        if broker_set.master_id is None or broker_set.master_id != event.master_id:
            return refusal(
                ResponseCode.CONTROLLER_INVALID_MASTER,
                f"the master of {event.broker_name} is {broker_set.master_id}, not {event.master_id}",
            )
        if broker_set.master_epoch != event.master_epoch:
            return refusal(
                ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH,
                f"the master epoch of {event.broker_name} is {broker_set.master_epoch}, "
                f"not {event.master_epoch}",
            )
        if broker_set.sync_state_set_epoch != event.sync_state_set_epoch:
            return refusal(
                ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH,
                f"the SyncStateSet epoch of {event.broker_name} is {broker_set.sync_state_set_epoch}, "
                f"not {event.sync_state_set_epoch}",
            )
        code, remark = self._unfit(broker_set, wanted)
        if code is None:
            altered = self._set_members(broker_set, wanted)
            epoch = broker_set.sync_state_set_epoch
            return Outcome(
                header=wire.AlterSyncStateSetReply(new_sync_state_set_epoch=epoch),
                body=SyncStateSetBody(broker_set.sync_state_set, epoch),
                effects=(altered,),
            )
        if not event.fence_refused:
            return refusal(code, remark)
        # An earlier copy of the request may arrive when the members fit.
        return refusal(code, remark, self._set_members(broker_set, broker_set.sync_state_set))

    def _set_members(self, broker_set: BrokerSet, members: Iterable[int]) -> SyncStateSetAltered:
        before = broker_set.sync_state_set
        broker_set.set_sync_state_set(members)
        return SyncStateSetAltered(
            broker_set.broker_name,
            before,
            broker_set.sync_state_set,
            broker_set.sync_state_set_epoch,
            broker_set.master_epoch,
        )

    def _unfit(self, broker_set: BrokerSet, wanted: Set[int]) -> tuple[ResponseCode | None, str]:
        """Why a SyncStateSet is refused: it has members that it cannot have, or lacks the master."""
        name = broker_set.broker_name
        for broker_id in sorted(wanted):
            if broker_id not in broker_set.replicas:
                why = f"broker set {name} has no replica {broker_id}"
                return ResponseCode.CONTROLLER_INVALID_REPLICAS, why
            if not broker_set.is_alive(broker_id, self.now_ms):
                return ResponseCode.CONTROLLER_BROKER_NOT_ALIVE, f"replica {broker_id} of {name} is not alive"
        if broker_set.master_id not in wanted:
            why = f"the new SyncStateSet {sorted(wanted)} lacks the master {broker_set.master_id}"
            return ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED, why
        return None, ""

    def _elect_master(self, event: events.ElectMaster) -> Outcome:
        broker_set = self.broker_sets.get(event.broker_name)
        if broker_set is None:
            return refusal(
                ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED,
                f"broker set {event.broker_name} is not registered",
            )
        asked = event.broker_id
        if asked != NO_BROKER and asked not in broker_set.replicas:
            return refusal(
                ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED,
                f"broker set {event.broker_name} has no replica {asked}, only {_ids(broker_set.replicas)}",
            )
        if asked != NO_BROKER and not event.designated and asked not in broker_set.live:
            # Who asks for itself lives, though its first heartbeat may still be on the way (Java brokers send
            # it from another thread). Without this a scan could depose a master just elected.
            broker_set.live[asked] = without_heartbeat(self.now_ms)
        return hold_election(
            broker_set,
            self.now_ms,
            event.cause,
            asked=asked,
            designated=event.designated,
            allow_unclean=event.allow_unclean,
        )

    def _apply_broker_id(self, event: events.ApplyBrokerId) -> Outcome:
        name, broker_id, check_code = event.broker_name, event.broker_id, event.register_check_code
        broker_set = self.broker_sets.get(name)
        if broker_id < FIRST_BROKER_ID or not name:
            return refusal(
                ResponseCode.CONTROLLER_BROKER_ID_INVALID, f"{broker_id} of {name!r} is not a broker id"
            )
        if broker_set is None and broker_id != FIRST_BROKER_ID:
            return refusal(
                ResponseCode.CONTROLLER_BROKER_ID_INVALID,
                f"broker set {name} is not registered; its first id is {FIRST_BROKER_ID}, not {broker_id}",
            )
        done = Outcome(header=wire.ApplyBrokerIdReply(cluster_name=event.cluster_name, broker_name=name))
        if broker_set is None:
            broker_set = self.broker_sets[name] = BrokerSet(event.cluster_name, name)
        elif broker_id in broker_set.replicas:
            if broker_set.replicas[broker_id].register_check_code == check_code:
                return done  # the same broker again: its first answer got lost
            return refusal(
                ResponseCode.CONTROLLER_BROKER_ID_INVALID, f"broker id {broker_id} of {name} is taken"
            )
        address = check_code.split(";", 1)[0]
        broker_set.add_replica(broker_id, address, check_code)
        return msgspec.structs.replace(
            done, effects=(ReplicaAdded(broker_set.cluster_name, name, broker_id, address),)
        )

    def _register_broker(self, event: events.RegisterBroker) -> Outcome:
        broker_set = self.broker_sets.get(event.broker_name)
        if broker_set is None:
            return refusal(
                ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED,
                f"broker set {event.broker_name} is not registered",
            )
        replica = broker_set.replicas.get(event.broker_id)
        if replica is None:
            return refusal(
                ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED,
                f"broker set {event.broker_name} has no replica {event.broker_id}",
            )
        effects: list[Effect] = []
        if replica.address != event.broker_address:
            effects.append(
                ReplicaMoved(event.broker_name, event.broker_id, replica.address, event.broker_address)
            )
            replica.address = event.broker_address
        if event.broker_id == broker_set.master_id:
            # A broker registers when it starts. A master that restarted may have lost what was not on its
            # disk yet; as master of its old epoch it would make the others truncate acknowledged messages, or
            # give one epoch two histories. (In Java it stays master until its connection is seen to be
            # closed.)
            if event.broker_id in broker_set.live:
                effects += count_as_down([(broker_set, event.broker_id)], self.now_ms, "restarted")
            else:
                effects += hold_election(broker_set, self.now_ms, "restarted").effects
        reply = wire.RegisterBrokerToControllerReply(event.cluster_name, event.broker_name)
        if broker_set.is_alive(broker_set.master_id, self.now_ms):
            reply.master_broker_id = broker_set.master_id
            reply.master_address = broker_set.master_address
            reply.master_epoch = broker_set.master_epoch
            reply.sync_state_set_epoch = broker_set.sync_state_set_epoch
        return Outcome(
            header=reply,
            body=SyncStateSetBody(broker_set.sync_state_set, broker_set.sync_state_set_epoch),
            effects=tuple(effects),
        )

    def _clean_broker_data(self, event: events.CleanBrokerData) -> Outcome:
        name = event.broker_name
        broker_set = self.broker_sets.get(name)
        invalid = ResponseCode.CONTROLLER_INVALID_CLEAN_BROKER_METADATA
        try:
            broker_ids = tuple(sorted({int(part) for part in event.broker_ids.split(";") if part.strip()}))
        except ValueError:
            return refusal(
                invalid, f"brokerControllerIdsToClean is {event.broker_ids!r}, expected ids separated by ';'"
            )
        if broker_set is None:
            return refusal(invalid, f"broker set {name} is not registered")
        if not event.clean_living:
            if not broker_ids and broker_set.master_id is not None:
                return refusal(
                    invalid, f"broker set {name} has a master, {broker_set.master_id}; nothing was cleaned"
                )
            for broker_id in broker_ids:
                if broker_set.is_alive(broker_id, self.now_ms):
                    return refusal(
                        invalid, f"replica {broker_id} of {name} is still alive; nothing was cleaned"
                    )
        if broker_ids:
            broker_set.remove_replicas(broker_ids)
        if not broker_ids or not broker_set.replicas:
            del self.broker_sets[name]
        return Outcome(effects=(Cleaned(name, broker_ids),))

    def _heartbeats(self, event: events.Heartbeats) -> Outcome:
        effects: list[Effect] = []
        now_ms = self.now_ms
        for beat in event.beats:
            broker_set = self.broker_sets.get(beat.broker_name)
            if (
                broker_set is None
                or beat.broker_id not in broker_set.replicas
                or beat.cluster_name != broker_set.cluster_name
            ):
                continue  # not registered: anybody could fill the memory with such names
            before = broker_set.live.get(beat.broker_id)
            if before is None:
                effects.append(ReplicaUp(beat.broker_name, beat.broker_id, beat.epoch, beat.max_offset))
                if not broker_set.live and broker_set.master_id is not None:
                    # All were silent, so perhaps none was down: the master gets time for a heartbeat, too.
                    broker_set.live[broker_set.master_id] = without_heartbeat(now_ms, beat.timeout_ms)
            elif beat.session == FORWARDED:
                if before.session > 0 and now_ms - before.updated_ms < before.timeout_ms // 2:
                    continue  # it also comes directly
            elif beat.session < abs(before.session):
                # After a partition TCP still delivers what was sent over a connection that the broker has
                # given up, and then its close. Counting that connection would depose a healthy master.
                continue
            session = beat.session
            if session == FORWARDED:
                session = UNKNOWN_SESSION if before is None else -abs(before.session)
            broker_set.live[beat.broker_id] = LiveBroker(
                now_ms,
                beat.timeout_ms,
                session,
                beat.epoch,
                beat.max_offset,
                beat.confirm_offset,
                beat.election_priority,
            )
            if broker_set.master_id is None and beat.broker_id in broker_set.sync_state_set:
                # No replica could be elected when the master was lost, perhaps only because this one's
                # connection broke just then. Waiting for the next scan would cost seconds without service.
                effects += hold_election(broker_set, now_ms, "replica-up").effects
        return Outcome(effects=tuple(effects)) if effects else NOTHING

    def _channel_closed(self, event: events.ChannelClosed) -> Outcome:
        gone: list[tuple[BrokerSet, int]] = []
        for name, broker_id in dict.fromkeys(event.brokers):
            broker_set = self.broker_sets.get(name)
            live = None if broker_set is None else broker_set.live.get(broker_id)
            # With another session it has a newer connection; without, it was counted as down before.
            if broker_set is not None and live is not None and live.session == event.session:
                gone.append((broker_set, broker_id))
        effects = count_as_down(gone, self.now_ms, event.cause, allow_unclean=event.allow_unclean)
        return Outcome(effects=tuple(effects))

    def _leader_started(self, event: events.LeaderStarted) -> Outcome:
        sessions = {(name, broker_id): session for name, broker_id, session in event.sessions}
        silent = {(name, broker_id): silent_ms for name, broker_id, silent_ms in event.silent}
        for broker_set in self.broker_sets.values():
            name = broker_set.broker_name
            for broker_id, live in broker_set.live.items():
                live.session = sessions.get((name, broker_id), UNKNOWN_SESSION)
            # Brokers send heartbeats to all controllers, so this one knows how long each has been silent.
            # Counting from the start of its leadership would make the election of a master wait for that of a
            # controller. A silent broker has some time left; all of it if this node got no heartbeats.
            before = {broker_id: silent.get((name, broker_id)) for broker_id in broker_set.live}
            any_here = any(
                silent_ms is not None and silent_ms <= broker_set.live[broker_id].timeout_ms // 2
                for broker_id, silent_ms in before.items()
            )
            for broker_id, live in broker_set.live.items():
                longest_ms = live.timeout_ms - live.timeout_ms // GRACE_PART
                silent_ms = (before[broker_id] or 0) if any_here else 0
                live.updated_ms = self.now_ms - min(silent_ms, longest_ms)
        return Outcome(effects=(LeadershipStarted(event.node_id),))

    def _scan(self, event: events.Scan) -> Outcome:
        effects: list[Effect] = []
        now_ms, unclean = self.now_ms, event.allow_unclean
        if event.brokers:
            silent = silent_brokers(self.broker_sets, now_ms)
            effects += count_as_down(silent, now_ms, "heartbeat-timeout", allow_unclean=unclean)
        if event.masters:
            for broker_set in sets_to_elect(self.broker_sets, now_ms, allow_unclean=unclean):
                effects += hold_election(broker_set, now_ms, "scan", allow_unclean=unclean).effects
        return Outcome(effects=tuple(effects))


_HANDLERS: dict[type[events.Event], Callable[[ControllerMachine, Any], Outcome]] = {
    events.AlterSyncStateSet: ControllerMachine._alter_sync_state_set,
    events.ElectMaster: ControllerMachine._elect_master,
    events.ApplyBrokerId: ControllerMachine._apply_broker_id,
    events.RegisterBroker: ControllerMachine._register_broker,
    events.CleanBrokerData: ControllerMachine._clean_broker_data,
    events.Heartbeats: ControllerMachine._heartbeats,
    events.ChannelClosed: ControllerMachine._channel_closed,
    events.LeaderStarted: ControllerMachine._leader_started,
    events.Scan: ControllerMachine._scan,
}


def _ids(replicas: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(replicas))) or "none"
