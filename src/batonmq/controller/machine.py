"""The controller's replicated state machine: log entries in, answers and effects out.

It owns the broker sets and decides everything when an entry is applied, from nothing but the state and the
entry (RIP-67). It never reads a clock, sleeps, or opens anything; the order of the log is the only
order there is, so two requests can never be judged by the same old state.

Answers carry RocketMQ's response codes and its 5.5 bodies. Effects are for the node that leads: the service
turns elections into role change notices and writes all of them to the event log. A follower drops both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import msgspec

from batonmq.controller import events
from batonmq.controller.elect import elect
from batonmq.controller.events import NO_BROKER
from batonmq.controller.heartbeats import (
    DEFAULT_TIMEOUT_MS,
    LOWEST_PRIORITY,
    NO_EPOCH,
    NO_OFFSET,
    UNKNOWN_SESSION,
    LiveBroker,
)
from batonmq.controller.replicas import FIRST_BROKER_ID, BrokerSet
from batonmq.protocol.bodies.controller import (
    BrokerReplicasInfo,
    ElectMasterBody,
    ReplicaIdentity,
    ReplicasInfo,
    SyncStateSetBody,
)
from batonmq.protocol.bodies.routes import BrokerMemberGroup
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.headers import controller as wire
from batonmq.protocol.json import Body
from batonmq.protocol.registry import Header
from batonmq.raft.errors import UnreadableState

SNAPSHOT_VERSION = 1
GRACE_PART = 3
"""A broker that a new leader has not heard of for long gets this part of its timeout to be heard."""

# -- what comes out ----------------------------------------------------------------------------------------


class Election(msgspec.Struct, frozen=True, tag="election", tag_field="event"):
    """An election was decided. `result` is new-master, kept-master, no-master or refused."""

    cluster_name: str
    broker_name: str
    cause: str
    result: str
    old_master: int | None
    new_master: int | None
    master_epoch: int
    sync_state_set_epoch: int
    candidates: tuple[int, ...]
    """The SyncStateSet that was elected from."""
    alive: tuple[int, ...]
    asked_for: int
    unclean: bool


class SyncStateSetAltered(msgspec.Struct, frozen=True, tag="sync-state-set", tag_field="event"):
    broker_name: str
    before: tuple[int, ...]
    after: tuple[int, ...]
    sync_state_set_epoch: int
    master_epoch: int


class ReplicaAdded(msgspec.Struct, frozen=True, tag="replica-added", tag_field="event"):
    cluster_name: str
    broker_name: str
    broker_id: int
    address: str


class ReplicaMoved(msgspec.Struct, frozen=True, tag="replica-moved", tag_field="event"):
    broker_name: str
    broker_id: int
    old_address: str
    address: str


class ReplicaUp(msgspec.Struct, frozen=True, tag="replica-up", tag_field="event"):
    """First heartbeat of a replica that was not counted as alive."""

    broker_name: str
    broker_id: int
    epoch: int
    max_offset: int


class ReplicaDown(msgspec.Struct, frozen=True, tag="replica-down", tag_field="event"):
    """A replica stopped counting as alive: `cause` is channel-closed, heartbeat-timeout or restarted."""

    broker_name: str
    broker_id: int
    cause: str


class Cleaned(msgspec.Struct, frozen=True, tag="cleaned", tag_field="event"):
    """An operator removed replicas; no ids mean the whole broker set."""

    broker_name: str
    broker_ids: tuple[int, ...]


class ReignStarted(msgspec.Struct, frozen=True, tag="leader", tag_field="event"):
    node_id: str


Effect: TypeAlias = (
    Election
    | SyncStateSetAltered
    | ReplicaAdded
    | ReplicaMoved
    | ReplicaUp
    | ReplicaDown
    | Cleaned
    | ReignStarted
)


class Outcome(msgspec.Struct, frozen=True):
    """The answer to one event, and what the leader has to do about it."""

    code: int = 0
    remark: str | None = None
    header: Header | None = None
    body: Body | None = None
    effects: tuple[Effect, ...] = ()


class _Snapshot(msgspec.Struct, array_like=True):
    version: int
    now_ms: int
    broker_sets: list[BrokerSet]


class _SnapshotHead(msgspec.Struct, array_like=True):
    """Its beginning in every version."""

    version: int


_DONE = Outcome()


def _refuse(code: ResponseCode, remark: str, *effects: Effect) -> Outcome:
    return Outcome(code=int(code), remark=remark, effects=effects)


# -- the machine -------------------------------------------------------------------------------------------


class ControllerMachine:
    """Implements `raft.StateMachine`. `apply` returns one `Outcome` for each event of the entry."""

    def __init__(self) -> None:
        self.broker_sets: dict[str, BrokerSet] = {}
        self.now_ms = 0
        """Time of the entry applied last."""

    def apply(self, index: int, data: bytes) -> list[Outcome]:
        """Applies one entry. Raises `UnknownEvent`, upon which the replica must stop."""
        entry = events.decode(data)
        self.now_ms = entry.now_ms
        return [_HANDLERS[type(event)](self, event) for event in entry.events]

    def snapshot(self) -> bytes:
        # In the order of the dicts, which the log determines: a restored machine goes on just like this.
        return msgspec.msgpack.encode(
            _Snapshot(SNAPSHOT_VERSION, self.now_ms, list(self.broker_sets.values()))
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
        self.now_ms, self.broker_sets = snapshot.now_ms, broker_sets

    # -- events, each decided here and now -----------------------------------------------------------------

    def _alter_sync_state_set(self, event: events.AlterSyncStateSet) -> Outcome:
        broker_set = self.broker_sets.get(event.broker_name)
        if broker_set is None:
            return _refuse(
                ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED,
                f"broker set {event.broker_name} is not registered",
            )
        wanted = set(event.sync_state_set)
        if wanted == set(broker_set.sync_state_set):
            return _refuse(
                ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED,
                f"the SyncStateSet is {sorted(wanted)} already",
            )
        if broker_set.master_id is None or broker_set.master_id != event.master_id:
            return _refuse(
                ResponseCode.CONTROLLER_INVALID_MASTER,
                f"the master of {event.broker_name} is {broker_set.master_id}, not {event.master_id}",
            )
        if broker_set.master_epoch != event.master_epoch:
            return _refuse(
                ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH,
                f"the master epoch of {event.broker_name} is {broker_set.master_epoch}, "
                f"not {event.master_epoch}",
            )
        if broker_set.sync_state_set_epoch != event.sync_state_set_epoch:
            return _refuse(
                ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH,
                f"the SyncStateSet epoch of {event.broker_name} is {broker_set.sync_state_set_epoch}, "
                f"not {event.sync_state_set_epoch}",
            )
        for broker_id in sorted(wanted):
            if broker_id not in broker_set.replicas:
                return _refuse(
                    ResponseCode.CONTROLLER_INVALID_REPLICAS,
                    f"broker set {event.broker_name} has no replica {broker_id}",
                )
            if not broker_set.is_alive(broker_id, self.now_ms):
                return _refuse(
                    ResponseCode.CONTROLLER_BROKER_NOT_ALIVE,
                    f"replica {broker_id} of {event.broker_name} is not alive",
                )
        if broker_set.master_id not in wanted:
            return _refuse(
                ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED,
                f"the new SyncStateSet {sorted(wanted)} lacks the master {broker_set.master_id}",
            )
        before = broker_set.sync_state_set
        broker_set.set_sync_state_set(wanted)
        epoch = broker_set.sync_state_set_epoch
        return Outcome(
            header=wire.AlterSyncStateSetReply(new_sync_state_set_epoch=epoch),
            body=SyncStateSetBody(broker_set.sync_state_set, epoch),
            effects=(
                SyncStateSetAltered(
                    event.broker_name, before, broker_set.sync_state_set, epoch, broker_set.master_epoch
                ),
            ),
        )

    def _elect_master(self, event: events.ElectMaster) -> Outcome:
        broker_set = self.broker_sets.get(event.broker_name)
        if broker_set is None:
            return _refuse(
                ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED,
                f"broker set {event.broker_name} is not registered",
            )
        asked = event.broker_id
        if asked != NO_BROKER and asked not in broker_set.replicas:
            return _refuse(
                ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED,
                f"broker set {event.broker_name} has no replica {asked}, only {_ids(broker_set.replicas)}",
            )
        if asked != NO_BROKER and not event.designated and asked not in broker_set.live:
            # Who asks for itself lives, though its first heartbeat may still be on the way (Java brokers send
            # it from another thread). Without this a scan could depose a master just elected.
            broker_set.live[asked] = _not_heard_yet(self.now_ms)
        return self._elect(broker_set, event.cause, asked, event.designated, event.allow_unclean)

    def _elect(
        self, broker_set: BrokerSet, cause: str, asked: int, designated: bool, allow_unclean: bool
    ) -> Outcome:
        alive = broker_set.alive(self.now_ms)
        old_master = broker_set.master_id
        candidates = broker_set.sync_state_set
        master = elect(
            broker_set,
            alive,
            asking=None if asked == NO_BROKER else asked,
            designated=asked if designated else None,
            allow_unclean=allow_unclean,
        )

        def election(result: str, *, unclean: bool = False) -> Election:
            return Election(
                cluster_name=broker_set.cluster_name,
                broker_name=broker_set.broker_name,
                cause=cause,
                result=result,
                old_master=old_master,
                new_master=broker_set.master_id,
                master_epoch=broker_set.master_epoch,
                sync_state_set_epoch=broker_set.sync_state_set_epoch,
                candidates=candidates,
                alive=tuple(sorted(alive)),
                asked_for=asked,
                unclean=unclean,
            )

        if master is not None and master == old_master:
            return Outcome(
                code=int(ResponseCode.CONTROLLER_MASTER_STILL_EXIST),
                remark=f"the master {master} of {broker_set.broker_name} is alive, nothing to elect",
                header=_elect_reply(broker_set),
                body=ElectMasterBody(sync_state_set=broker_set.sync_state_set),
                effects=(election("kept-master"),),
            )
        if master is not None:
            unclean = not broker_set.never_had_master and master not in candidates
            broker_set.set_master(master)
            return Outcome(
                header=_elect_reply(broker_set),
                body=_elect_body(broker_set),
                effects=(election("new-master", unclean=unclean),),
            )
        if asked != NO_BROKER:
            return _refuse(
                ResponseCode.CONTROLLER_ELECT_MASTER_FAILED,
                f"no replica of {broker_set.broker_name} may become master: SyncStateSet {list(candidates)}, "
                f"alive {sorted(alive)}",
                election("refused"),
            )
        if old_master is not None:
            broker_set.lose_master()
        return _refuse(
            ResponseCode.CONTROLLER_MASTER_NOT_AVAILABLE,
            f"the master of {broker_set.broker_name} is down and no member of the SyncStateSet "
            f"{list(candidates)} is alive",
            election("no-master"),
        )

    def _apply_broker_id(self, event: events.ApplyBrokerId) -> Outcome:
        name, broker_id, check_code = event.broker_name, event.broker_id, event.register_check_code
        broker_set = self.broker_sets.get(name)
        if broker_id < FIRST_BROKER_ID or not name:
            return _refuse(
                ResponseCode.CONTROLLER_BROKER_ID_INVALID, f"{broker_id} of {name!r} is no broker id"
            )
        if broker_set is None and broker_id != FIRST_BROKER_ID:
            return _refuse(
                ResponseCode.CONTROLLER_BROKER_ID_INVALID,
                f"broker set {name} is not registered; its first id is {FIRST_BROKER_ID}, not {broker_id}",
            )
        done = Outcome(header=wire.ApplyBrokerIdReply(cluster_name=event.cluster_name, broker_name=name))
        if broker_set is None:
            broker_set = self.broker_sets[name] = BrokerSet(event.cluster_name, name)
        elif broker_id in broker_set.replicas:
            if broker_set.replicas[broker_id].register_check_code == check_code:
                return done  # the same broker again: its first answer got lost
            return _refuse(
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
            return _refuse(
                ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED,
                f"broker set {event.broker_name} is not registered",
            )
        replica = broker_set.replicas.get(event.broker_id)
        if replica is None:
            return _refuse(
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
            # A broker registers when it starts. A master that restarted may have lost what its disk had not
            # yet taken; ruling on in its old epoch it would make the others truncate acknowledged messages,
            # or give one epoch two histories. (Java lets it rule on until its connection is seen to be
            # closed.)
            if event.broker_id in broker_set.live:
                effects += self._drop([(broker_set, event.broker_id)], "restarted", allow_unclean=False)
            else:
                effects += self._elect(broker_set, "restarted", NO_BROKER, False, False).effects
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
            return _refuse(
                invalid, f"brokerControllerIdsToClean is {event.broker_ids!r}, expected ids separated by ';'"
            )
        if broker_set is None:
            return _refuse(invalid, f"broker set {name} is not registered")
        if not event.clean_living:
            if not broker_ids and broker_set.master_id is not None:
                return _refuse(
                    invalid, f"broker set {name} has a master, {broker_set.master_id}; nothing was cleaned"
                )
            for broker_id in broker_ids:
                if broker_set.is_alive(broker_id, self.now_ms):
                    return _refuse(
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
                continue  # nobody that registered: remembering it would let strangers fill our memory
            before = broker_set.live.get(beat.broker_id)
            if before is None:
                effects.append(ReplicaUp(beat.broker_name, beat.broker_id, beat.epoch, beat.max_offset))
                if not broker_set.live and broker_set.master_id is not None:
                    # Everybody was silent, so perhaps nobody was down: the master gets time to be heard, too.
                    broker_set.live[broker_set.master_id] = _not_heard_yet(now_ms, beat.timeout_ms)
            elif beat.session < before.session:
                # After a partition TCP still delivers what was written to a connection that the broker has
                # given up, and then its end: were that the connection that counts, a master that is well
                # would lose its role.
                continue
            broker_set.live[beat.broker_id] = LiveBroker(
                now_ms,
                beat.timeout_ms,
                beat.session,
                beat.epoch,
                beat.max_offset,
                beat.confirm_offset,
                beat.election_priority,
            )
            if broker_set.master_id is None and beat.broker_id in broker_set.sync_state_set:
                # Nobody could be elected when the master was lost, perhaps only because this one's own
                # connection broke just then. Waiting for the next scan would cost seconds without service.
                effects.extend(self._elect(broker_set, "replica-up", NO_BROKER, False, False).effects)
        return Outcome(effects=tuple(effects)) if effects else _DONE

    def _channel_closed(self, event: events.ChannelClosed) -> Outcome:
        gone: list[tuple[BrokerSet, int]] = []
        for name, broker_id in event.brokers:
            broker_set = self.broker_sets.get(name)
            live = None if broker_set is None else broker_set.live.get(broker_id)
            # With another session it has a newer connection; without, it was counted as down before.
            if broker_set is not None and live is not None and live.session == event.session:
                gone.append((broker_set, broker_id))
        return Outcome(effects=tuple(self._drop(gone, "channel-closed", event.allow_unclean)))

    def _leader_started(self, event: events.LeaderStarted) -> Outcome:
        sessions = {(name, broker_id): session for name, broker_id, session in event.sessions}
        silent = {(name, broker_id): silent_ms for name, broker_id, silent_ms in event.silent}
        for broker_set in self.broker_sets.values():
            name = broker_set.broker_name
            for broker_id, live in broker_set.live.items():
                live.session = sessions.get((name, broker_id), UNKNOWN_SESSION)
            # Brokers tell all controllers that they live, so this one knows who has been silent for how long:
            # to count that from its own beginning would add an election of controllers to each of brokers.
            # Who is silent has a moment left to be heard, and all of it where nobody was heard here.
            before = {broker_id: silent.get((name, broker_id)) for broker_id in broker_set.live}
            heard_here = any(
                silent_ms is not None and silent_ms <= broker_set.live[broker_id].timeout_ms // 2
                for broker_id, silent_ms in before.items()
            )
            for broker_id, live in broker_set.live.items():
                longest_ms = live.timeout_ms - live.timeout_ms // GRACE_PART
                silent_ms = (before[broker_id] or 0) if heard_here else 0
                live.updated_ms = self.now_ms - min(silent_ms, longest_ms)
        return Outcome(effects=(ReignStarted(event.node_id),))

    def _scan(self, event: events.Scan) -> Outcome:
        effects: list[Effect] = []
        if event.brokers:
            silent = self.silent_brokers(self.now_ms)
            effects += self._drop(silent, "heartbeat-timeout", event.allow_unclean)
        if event.masters:
            for broker_set in self.sets_to_elect(self.now_ms, event.allow_unclean):
                outcome = self._elect(broker_set, "scan", NO_BROKER, False, event.allow_unclean)
                effects.extend(outcome.effects)
        return Outcome(effects=tuple(effects))

    def _drop(self, gone: list[tuple[BrokerSet, int]], cause: str, allow_unclean: bool) -> list[Effect]:
        """Counts replicas as down, and then elects at once where the master was among them."""
        effects: list[Effect] = []
        for broker_set, broker_id in gone:
            del broker_set.live[broker_id]
            effects.append(ReplicaDown(broker_set.broker_name, broker_id, cause))
        for broker_set, broker_id in gone:
            if broker_set.master_id == broker_id and (broker_set.live or cause != "heartbeat-timeout"):
                effects.extend(self._elect(broker_set, cause, NO_BROKER, False, allow_unclean).effects)
        return effects

    # -- what the leader's timers ask ----------------------------------------------------------------------

    def silent_brokers(self, now_ms: int) -> list[tuple[BrokerSet, int]]:
        """Replicas counted as alive whose heartbeats stopped.

        Of a set that is silent as a whole they are told together, so that none is elected on the ground of
        having been heard a moment later than the master.
        """
        found = []
        for broker_set in self.broker_sets.values():
            # All sets are looked at four times a second, and as good as all are well: without calls.
            for live in broker_set.live.values():
                if now_ms - live.updated_ms > live.timeout_ms:
                    break
            else:
                continue
            silent = [number for number, live in broker_set.live.items() if not live.is_alive(now_ms)]
            if len(silent) == len(broker_set.live) or not broker_set.is_unheard(now_ms):
                found += [(broker_set, broker_id) for broker_id in silent]
        return found

    def sets_to_elect(self, now_ms: int, allow_unclean: bool) -> list[BrokerSet]:
        """Sets whose master is gone although some replica lives, where an election would change something."""
        found = []
        for broker_set in self.broker_sets.values():
            master = broker_set.master_id
            if broker_set.never_had_master or broker_set.is_alive(master, now_ms):
                continue
            if master in broker_set.live and broker_set.is_unheard(now_ms):
                continue
            eligible: Iterable[int] = broker_set.replicas if allow_unclean else broker_set.sync_state_set
            if any(broker_set.is_alive(broker_id, now_ms) for broker_id in eligible) or (
                master is not None and broker_set.alive(now_ms)
            ):
                found.append(broker_set)
        return found

    # -- reads ---------------------------------------------------------------------------------------------

    def replica_info(self, broker_name: str) -> Outcome:
        """Answer to getReplicaInfo."""
        broker_set = self.broker_sets.get(broker_name)
        if broker_set is None:
            return _refuse(
                ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST,
                f"broker set {broker_name} is not registered",
            )
        return Outcome(
            header=wire.GetReplicaInfoReply(
                broker_set.master_id, broker_set.master_address, broker_set.master_epoch
            ),
            body=SyncStateSetBody(broker_set.sync_state_set, broker_set.sync_state_set_epoch),
        )

    def next_broker_id(self, cluster_name: str | None, broker_name: str) -> Outcome:
        """Answer to getNextBrokerId."""
        broker_set = self.broker_sets.get(broker_name)
        next_id = FIRST_BROKER_ID if broker_set is None else broker_set.next_broker_id
        return Outcome(
            header=wire.GetNextBrokerIdReply(
                cluster_name=cluster_name, broker_name=broker_name, next_broker_id=next_id
            )
        )

    def sync_state_data(self, broker_names: Iterable[str], now_ms: int) -> Outcome:
        """Answer to getSyncStateSet; names that are not registered are left out."""
        table: dict[str, ReplicasInfo] = {}
        for name in broker_names:
            broker_set = self.broker_sets.get(name)
            if broker_set is None:
                continue
            in_sync: list[ReplicaIdentity] = []
            behind: list[ReplicaIdentity] = []
            for broker_id, replica in sorted(broker_set.replicas.items()):
                identity = ReplicaIdentity(
                    name, broker_id, replica.address, broker_set.is_alive(broker_id, now_ms)
                )
                (in_sync if broker_id in broker_set.sync_state_set else behind).append(identity)
            table[name] = ReplicasInfo(
                in_sync,
                behind,
                broker_set.master_id,
                broker_set.master_address,
                broker_set.master_epoch,
                broker_set.sync_state_set_epoch,
            )
        return Outcome(body=BrokerReplicasInfo(table))


def _not_heard_yet(now_ms: int, timeout_ms: int = DEFAULT_TIMEOUT_MS) -> LiveBroker:
    """Counts as alive for so long without a heartbeat."""
    return LiveBroker(now_ms, timeout_ms, UNKNOWN_SESSION, NO_EPOCH, NO_OFFSET, NO_OFFSET, LOWEST_PRIORITY)


def _elect_reply(broker_set: BrokerSet) -> wire.ElectMasterReply:
    return wire.ElectMasterReply(
        broker_set.master_id,
        broker_set.master_address,
        broker_set.master_epoch,
        broker_set.sync_state_set_epoch,
    )


def _elect_body(broker_set: BrokerSet) -> ElectMasterBody:
    addresses = {broker_id: replica.address for broker_id, replica in broker_set.replicas.items()}
    return ElectMasterBody(
        sync_state_set=broker_set.sync_state_set,
        broker_member_group=BrokerMemberGroup(broker_set.cluster_name, broker_set.broker_name, addresses),
        cluster=broker_set.cluster_name,
        broker_name=broker_set.broker_name,
        broker_addrs=addresses,
    )


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
