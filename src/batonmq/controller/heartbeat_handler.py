"""What a controller does with a broker's heartbeat, the request that comes most often by far.

A heartbeat is a write like the others, but it shares an event with other brokers' heartbeats, and a follower
remembers over which connection it came. One that changes nothing but its time is answered before it is in the
log, as long as the log keeps up.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from batonmq.common.running_time import RunningTime
from batonmq.controller import events
from batonmq.controller.answers import NOT_LEADER_REPLY, to_reply, too_large
from batonmq.controller.effects import Outcome
from batonmq.controller.heartbeats import (
    DEFAULT_TIMEOUT_MS,
    FORWARDED,
    FORWARDED_SINCE,
    LOWEST_PRIORITY,
    NO_EPOCH,
    NO_OFFSET,
    UNKNOWN_SESSION,
    LiveBroker,
)
from batonmq.controller.leadership import Leadership
from batonmq.controller.machine import ControllerMachine
from batonmq.controller.proposer import Proposer
from batonmq.controller.replicas import BrokerSet
from batonmq.controller.sessions import Session, Sessions
from batonmq.controller.suspicion import Suspicion
from batonmq.net.connection import Connection
from batonmq.net.dispatch import Dispatcher, Reply, Request
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.constant_reply import ConstantReply
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.namesrv import BrokerHeartbeat, BrokerHeartbeatReply

MAX_HEARTBEAT_BYTES: Final = 4_096
"""Header fields of a heartbeat; names have 255 characters at most, each perhaps an escape of six."""
HEARTBEAT_DONE: Final = "Heart beat success"
_DONE: Final = ConstantReply(0, HEARTBEAT_DONE)


class HeartbeatHandler:
    """Its parts are named one by one, not as one controller: attributes of types that are known when this is
    compiled take a fraction of the time of others."""

    def __init__(
        self,
        machine: ControllerMachine,
        leadership: Leadership,
        running: RunningTime,
        sessions: Sessions[Connection],
        proposer: Proposer,
        suspicion: Suspicion,
        entry_version: Callable[[], int],
    ) -> None:
        """`entry_version`: of the entries that this controller writes as leader."""
        self._machine = machine
        self._leadership = leadership
        self._running = running
        self._sessions = sessions
        self._proposer = proposer
        self._suspicion = suspicion
        self._entry_version = entry_version

    def register(self, dispatcher: Dispatcher) -> None:
        dispatcher.on(BrokerHeartbeat, self.handle)

    def handle(self, request: Request, header: BrokerHeartbeat) -> Reply | None:
        leadership = self._leadership
        broker_name, broker_id = header.broker_name, header.broker_id
        if broker_id is None:
            return Reply(
                code=int(ResponseCode.CONTROLLER_INVALID_REQUEST), remark="Heart beat with empty brokerId"
            )
        size = len(request.command.raw_ext)
        if size > MAX_HEARTBEAT_BYTES:
            raise too_large(size, MAX_HEARTBEAT_BYTES)
        broker_set = self._machine.broker_sets.get(broker_name)
        if broker_set is None or broker_id not in broker_set.replicas:
            if not leadership.leading:
                return NOT_LEADER_REPLY
            return Reply(
                code=int(ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED),
                remark=f"replica {broker_id} of broker set {broker_name} is not registered",
            )
        cluster_name = header.cluster_name
        if cluster_name != broker_set.cluster_name:
            # It must not count for the broker of that name, nor its connection: a new leader would take the
            # connection for the broker's.
            return Reply(
                code=int(ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED),
                remark=f"broker set {broker_name} belongs to cluster {broker_set.cluster_name}, not "
                f"{cluster_name}",
            )
        now_ms = self._running.now_ms()
        session: Session | None = None
        previous_ms: int | None = None
        forwarded = bool(header.forwarded)
        if forwarded:
            if leadership.leading and self._entry_version() < FORWARDED_SINCE:
                raise MQError(
                    ResponseCode.SYSTEM_BUSY,
                    "controllers of version 0.1.0 in the group read no such heartbeat",
                )
            session_id = FORWARDED
        else:
            session = self._sessions.of(request.connection)
            previous_ms = session.brokers.get((broker_name, broker_id))
            session.brokers[broker_name, broker_id] = now_ms
            session_id = session.id
        if not leadership.leading:
            return NOT_LEADER_REPLY
        live, leader_now_ms = broker_set.live.get(broker_id), leadership.leader_ms(now_ms)
        if session is not None and live is not None and session_id < abs(live.session):
            gap_ms = -1 if previous_ms is None else now_ms - previous_ms
            if _took_over(live, gap_ms, leader_now_ms):
                session_id = self._sessions.renew(session)
        timeout_ms = header.heartbeat_timeout_mills
        epoch, max_offset = header.epoch, header.max_offset
        confirm_offset, priority = header.confirm_offset, header.election_priority
        beat = events.Beat(
            cluster_name,
            broker_name,
            broker_id,
            header.broker_addr,
            session_id,
            timeout_ms if timeout_ms is not None and timeout_ms > 0 else DEFAULT_TIMEOUT_MS,
            NO_EPOCH if epoch is None else epoch,
            NO_OFFSET if max_offset is None else max_offset,
            NO_OFFSET if confirm_offset is None else confirm_offset,
            LOWEST_PRIORITY if priority is None else priority,
        )
        changes_nothing = _changes_nothing(broker_set, live, session_id, leader_now_ms)
        at_once = changes_nothing and self._proposer.keeps_up
        answer = None if at_once else partial(_answer, request, forwarded, broker_set)
        self._proposer.submit_beat(beat, answer)
        self._suspicion.heartbeat_came(broker_name, broker_id, forwarded=forwarded)
        if header.silent_master_epoch is not None:
            leadership.reported_silent(broker_name, broker_id, header.silent_master_epoch)
        if at_once:
            command = request.command
            request.reply_frame(_DONE.frame(command.opaque, binary=command.binary), 0)
        return None


def _took_over(live: LiveBroker, gap_ms: int, leader_now_ms: int) -> bool:
    """Whether a broker goes on over an older connection than the one that counts, `gap_ms` after its last
    heartbeat there.

    It has two if it knows this controller by two addresses, and drops one when controllerAddr changes. Bytes
    of a connection that it gave up in a partition also arrive after silence, but all at once, or after more
    than its timeout.
    """
    silent_ms, timeout_ms = leader_now_ms - live.updated_ms, live.timeout_ms
    return silent_ms >= timeout_ms // 2 and timeout_ms // 6 <= gap_ms <= timeout_ms * 2 // 3


def _changes_nothing(
    broker_set: BrokerSet, live: LiveBroker | None, session_id: int, leader_now_ms: int
) -> bool:
    """Whether the broker that sends a heartbeat is alive anyway, and over this connection."""
    return (
        live is not None
        and session_id > UNKNOWN_SESSION  # not forwarded: such an answer has the master epoch
        and live.session == session_id
        and broker_set.master_id is not None  # or it may become master by this
        and live.is_alive(leader_now_ms)
    )


def _answer(request: Request, forwarded: bool, broker_set: BrokerSet, outcome: Outcome) -> None:
    if outcome.code:
        request.reply(to_reply(outcome))
    elif forwarded:
        request.reply(Reply(BrokerHeartbeatReply(broker_set.master_epoch), remark=HEARTBEAT_DONE))
    else:
        request.reply(Reply(remark=HEARTBEAT_DONE))
