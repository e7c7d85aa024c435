"""The controller as a program: sockets, the Raft node, timers; what is decided is decided elsewhere.

`ControllerService` keeps no globals, so a name server can hold one, and tests any number.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from batonmq.common.clock import Clock, SystemClock
from batonmq.common.config import require
from batonmq.common.config_file import change_file
from batonmq.controller import events
from batonmq.controller.config import ControllerConfig
from batonmq.controller.eventlog import EventLog, EventSink
from batonmq.controller.handlers import Handlers
from batonmq.controller.machine import ControllerMachine, Election, Outcome, ReplicaUp
from batonmq.controller.membership import JOINING, REMOVED, Membership, founders
from batonmq.controller.metrics import ControllerMetrics
from batonmq.controller.notices import RoleChangeNotices
from batonmq.controller.proposer import Proposer
from batonmq.controller.reads import Reads
from batonmq.controller.sessions import Sessions
from batonmq.net.client import RemotingClient
from batonmq.net.connection import Connection
from batonmq.net.dispatch import Dispatcher
from batonmq.net.interceptors import Interceptor
from batonmq.net.limits import Limits
from batonmq.net.open_files import RESERVE, raise_file_limit
from batonmq.net.server import RemotingServer
from batonmq.net.tls import ServerTls, TlsConfig, client_context, mutual_contexts, server_tls
from batonmq.protocol.codes import ResponseCode
from batonmq.raft.config import RaftConfig
from batonmq.raft.disk import ALLOCATE_BYTES, Disk, OsDisk
from batonmq.raft.node import RaftNode
from batonmq.raft.state import Role
from batonmq.raft.storage import Storage
from batonmq.raft.transport import Authenticator, NoAuthentication, RemotingTransport, SharedSecret
from batonmq.raft.worker import QuickDiskWorker, ThreadWorker, Worker

log = logging.getLogger(__name__)

READY = "The Controller Server boot success. serializeType=JSON"
MAX_SNAPSHOT_BYTES = 64 << 20
"""The state of some 300,000 broker sets. A stranger's snapshot may take eighty times its size in memory, and
0.6 s of the loop for each MiB, before it turns out to be none."""
FIRST_SCAN_MS = 2_000
"""A new leader's first look for silent brokers (Java waits as long)."""


class ControllerService:
    """One member of a group of controllers.

    `disk` replaces the directory below controllerStorePath, `worker` the thread that writes there and
    `event_sink` its events.jsonl (for simulation); `clock` and `rng` are the sources of time and chance;
    `tls` holds for all connections, with controllerRaftTlsEnable for those of Raft in its own way. `failed`
    is done when the node had to stop itself: a broken disk, an unreadable log.
    """

    ready_line = READY
    """What RocketMQ's controller prints when it is up; scripts wait for it."""

    def __init__(
        self,
        config: ControllerConfig,
        *,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        disk: Disk | None = None,
        worker: Worker | None = None,
        event_sink: EventSink | None = None,
        tls: TlsConfig | None = None,
        alone: bool = False,
    ) -> None:
        """``alone``: the process is nothing but this controller, whose loop may write to a quick disk."""
        self.config = config
        self.topology = config.topology()
        self.machine = ControllerMachine()
        self.sessions: Sessions[Connection] = Sessions()
        self.node: RaftNode
        self.proposer: Proposer
        self.reads: Reads
        self.membership: Membership
        self.notices: RoleChangeNotices
        self.events: EventSink
        self.failed: asyncio.Future[BaseException]
        self.metrics = ControllerMetrics(self)
        self.elections = 0
        """New masters that this node, leading, saw elected."""
        self._clock: Clock = clock if clock is not None else SystemClock()
        self._rng = rng if rng is not None else random.Random()  # election jitter, no secret
        tls = tls if tls is not None else TlsConfig()
        self._server_tls = server_tls(tls)
        self._client_tls = client_context(tls)
        self._raft_server_tls, self._raft_client_tls = self._server_tls, self._client_tls
        if config.controller_raft_tls_enable:
            wanted = "controllerRaftTlsEnable=true"
            require(
                not self.topology.shared_port,
                f"{wanted} needs a port for Raft alone (controllerType=jRaft); here brokers use it, too: "
                "tls.server.mode=enforcing, tls.server.need.client.auth=require ask all for certificates",
            )
            accepting, self._raft_client_tls = mutual_contexts(tls, wanted)
            self._raft_server_tls = ServerTls(accepting, enforcing=True)
        self._disk = disk
        self._worker = worker
        self._alone = alone
        self._event_sink = event_sink
        self._leading = False
        self._term = 0
        self._reign_wall_ms = 0
        self._reign_monotonic_ms = 0
        self._servers: list[RemotingServer] = []
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._raft_client: RemotingClient
        self._notice_client: RemotingClient
        self._transport: RemotingTransport
        self._own_disk: OsDisk | None = None
        self._stopping = False

    # -- life ----------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Recovers the state, listens, joins the group; does not wait for a leader.

        Raises `OSError` (port taken, directory in use or not writable) or `StorageCorrupt`.
        """
        config, topology = self.config, self.topology
        loop = asyncio.get_running_loop()
        self.failed = loop.create_future()
        store = config.store_path
        self.events = self._event_sink or EventLog(
            store / "events.jsonl", max_bytes=config.event_log_max_bytes, backups=config.event_log_backups
        )
        name = topology.self_id.replace(":", "_")
        disk = self._disk
        if disk is None:
            disk = self._own_disk = await loop.run_in_executor(
                None, lambda: OsDisk(store / f"raft-{name}", allocate_bytes=ALLOCATE_BYTES)
            )
            self._own_disk.lock()
        raft_config = RaftConfig(
            election_timeout_ms=config.j_raft_election_timeout_ms,
            snapshot_interval_ms=config.j_raft_snapshot_interval_secs * 1000,
            max_snapshot_bytes=MAX_SNAPSHOT_BYTES,
            lease_read=config.enable_lease_read and not config.is_process_read_event,
            max_clock_drift=config.lease_read_clock_drift_percent / 100,
            max_read_lag=config.follower_read_max_lag,
        )
        self._notice_client = RemotingClient(tls=self._client_tls)
        dispatcher = Dispatcher()
        self.metrics.watch(dispatcher)
        raft_dispatcher = dispatcher if topology.shared_port else Dispatcher()
        # Peers that do not know this one's address answer on the connection of the question.
        self._raft_client = RemotingClient(
            tls=self._raft_client_tls,
            dispatcher=raft_dispatcher,
            tcp_timeout_ms=2 * config.j_raft_election_timeout_ms,
        )
        authenticator: Authenticator = (
            SharedSecret(config.controller_raft_secret)
            if config.controller_raft_secret
            else NoAuthentication()
        )
        self._transport = RemotingTransport(
            topology.group, topology.self_id, self._raft_client, raft_dispatcher, authenticator
        )
        self.node = RaftNode(
            topology.group,
            topology.self_id,
            founders(topology),
            self.machine,
            Storage(disk, topology.group, topology.self_id, segment_bytes=raft_config.segment_bytes),
            self._transport,
            self._worker or (QuickDiskWorker if self._alone else ThreadWorker)(f"raft-{name}"),
            config=raft_config,
            rng=self._rng,
        )
        self._transport.bind(self.node.receive, self.node.peer_lost)
        self.node.on_role_change = self._on_role_change
        self.node.on_removed = self._on_removed
        self.node.on_failure = self._on_failure
        self.membership = Membership(topology, self.node, config.request_timeout_ms)
        self.proposer = Proposer(
            self.metrics.watched(self.node),
            self.leader_now_ms,
            coalesce_ms=config.heartbeat_coalesce_ms,
            timeout_ms=config.request_timeout_ms,
            capacity=config.controller_request_thread_pool_queue_capacity,
        )
        self.reads = Reads(self.node)
        self.notices = RoleChangeNotices(self.machine, self._notice_client)
        Handlers(self).register(dispatcher)
        limits = Limits(max_connections=self._affordable_connections())
        dispatcher.intercept(Interceptor(closed=self._on_connection_closed))
        self._listen(dispatcher, topology.rpc_addresses[topology.self_id], limits, self._server_tls)
        if not topology.shared_port:
            address = topology.raft_addresses[topology.self_id]
            self._listen(raft_dispatcher, address, limits, self._raft_server_tls)
        started: list[RemotingServer] = []
        try:
            for server in self._servers:
                await server.start()
                started.append(server)
            await self.node.start()
            await self.metrics.start()
        except BaseException:
            await self.metrics.stop()
            await self.node.stop()
            for server in started:
                await server.stop()
            await self._transport.close()
            await self._raft_client.close()
            await self._notice_client.close()
            self._unlock()
            raise
        self._tell_standing()

    def _tell_standing(self) -> None:
        """What an operator should know about who belongs to the group, once, at the start."""
        topology, members = self.topology, self.node.members
        own, address = topology.self_id, topology.raft_addresses[topology.self_id]
        if self.membership.standing == JOINING:
            log.info(
                "controller %s waits to be added to the group %s: batonmq admin addController -a <its "
                "controllers> -i %s -r %s",
                own,
                topology.group,
                own,
                address,
            )
        elif self.membership.standing == REMOVED:
            self._on_removed(self.node.core.membership_index)
        elif self.node.core.membership_index and members.voters != topology.raft_addresses:
            log.warning(
                "the group consists of %s, as its log says; the configuration, which only founds a group, "
                "says %s: bring it up to date",
                _addresses(members.all()),
                _addresses(topology.raft_addresses),
            )

    def _on_removed(self, index: int) -> None:
        if self.node.core.log.last_index == 0:
            log.warning(
                "controller %s is no member of the group %s, which runs, and was not started to join it: it "
                "takes no part; stop it. To be added it needs an empty directory, an id that no member ever "
                "had, controllerJoinRunningGroup=true and addController",
                self.topology.self_id,
                self.topology.group,
            )
            return
        log.warning(
            "controller %s was removed from the group %s (log index %d): it takes no part any more; stop it. "
            "To come back it needs an empty directory, a new id, controllerJoinRunningGroup=true and "
            "addController",
            self.topology.self_id,
            self.topology.group,
            index,
        )

    def _affordable_connections(self) -> int:
        wanted = self.config.controller_max_connections
        allowed = raise_file_limit(wanted)
        if allowed < wanted:
            log.warning(
                "controllerMaxConnections=%d, but connections beyond %d are refused: this process may not "
                "open more files; raise its limit (ulimit -n, LimitNOFILE) to %d",
                wanted,
                allowed,
                wanted + RESERVE,
            )
        return allowed

    def _listen(self, dispatcher: Dispatcher, address: str, limits: Limits, tls: ServerTls | None) -> None:
        port = int(address.rpartition(":")[2])
        server = RemotingServer(dispatcher, self.config.bind_address, port, tls=tls, limits=limits)
        self._servers.append(server)

    async def stop(self) -> None:
        """Hands leadership over if it can, answers what is under way, closes everything."""
        if self._stopping:
            return
        self._stopping = True
        if self.node.role is Role.LEADER and len(self.node.members.voters) > 1 and not self.failed.done():
            await self._hand_over()
        self._end_reign()
        await self.notices.stop()
        for server in self._servers:
            await server.stop(drain_ms=200)
        await self.node.stop()
        await self.proposer.close()
        await self.reads.close()
        await self._transport.close()
        await self._raft_client.close()
        await self._notice_client.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.metrics.stop()
        await self.events.close()
        self._unlock()

    def _unlock(self) -> None:
        if self._own_disk is not None:
            self._own_disk.unlock()

    async def _hand_over(self) -> None:
        try:
            await asyncio.wait_for(self.membership.hand_over(), 1.0)
        except Exception as error:
            log.info("leadership was not handed over: %s", error or "not within a second")

    # -- who leads -----------------------------------------------------------------------------------------

    @property
    def leading(self) -> bool:
        return self._leading

    @property
    def leader_id(self) -> str | None:
        return self.membership.leader_id

    def leader_now_ms(self) -> int:
        """The time of this reign: the wall clock when it began, and steady from there on."""
        return self._reign_wall_ms + self._clock.monotonic_ms() - self._reign_monotonic_ms

    def monotonic_ms(self) -> int:
        """This node's own clock, whoever leads."""
        return self._clock.monotonic_ms()

    def _on_role_change(self, role: Role, term: int, leader_id: str | None) -> None:
        leads = role is Role.LEADER and not self._stopping
        if leads and term != self._term:
            self._end_reign()
            self._term = term
            self._reign_wall_ms = self._clock.now_ms()
            self._reign_monotonic_ms = self._clock.monotonic_ms()
            self._begin_reign(term)
        elif not leads and self._term:
            self._end_reign()

    def _begin_reign(self, term: int) -> None:
        """First of all the state machine must know of the new leader, its clock and its connections."""

        def begun(outcome: Outcome) -> None:
            if self._term != term or self._stopping:
                return
            if outcome.code:
                log.warning("the reign in term %d did not begin yet: %s", term, outcome.remark)
                self._at("begin", 100, lambda: self._begin_reign(term))
                return
            self._leading = True
            log.info("controller %s leads in term %d", self.topology.self_id, term)
            self.decided(outcome)
            if self.config.notify_broker_role_changed:
                self.notices.remind_all()
            # Heartbeats that came meanwhile count for nothing: it listens for as long before it judges.
            deaf_ms = self.monotonic_ms() - asked_ms
            first_ms = min(FIRST_SCAN_MS, self.config.scan_not_active_broker_interval)
            self._at("brokers", deaf_ms + first_ms, self._scan_brokers)
            self._at("masters", deaf_ms + self.config.scan_inactive_master_interval, self._scan_masters)

        asked_ms = self.monotonic_ms()
        started = events.LeaderStarted(
            self.topology.self_id, self.sessions.known(), self.sessions.silent(asked_ms)
        )
        self.proposer.submit(started, begun, urgent=True)

    def _end_reign(self) -> None:
        self._term = 0
        self._leading = False
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        if not self._stopping:
            self._spawn(self.notices.stop())

    def _on_failure(self, cause: BaseException) -> None:
        self._end_reign()
        if not self.failed.done():
            self.failed.set_result(cause)

    # -- timers and connections ----------------------------------------------------------------------------

    def _at(self, name: str, delay_ms: int, call: Callable[[], None]) -> None:
        self._timers[name] = asyncio.get_running_loop().call_later(delay_ms / 1000, call)

    def _scan_brokers(self) -> None:
        self._at("brokers", self.config.scan_not_active_broker_interval, self._scan_brokers)
        silent = self.machine.silent_brokers(self.leader_now_ms())
        if silent:  # looked up first only to spare the log; the event decides anew when it is applied
            for broker_set, broker_id in silent:
                log.warning("replica %d of %s is silent", broker_id, broker_set.broker_name)
            self._decide(events.Scan(True, False, self.config.enable_elect_unclean_master))

    def _scan_masters(self) -> None:
        self._at("masters", self.config.scan_inactive_master_interval, self._scan_masters)
        unclean = self.config.enable_elect_unclean_master
        if self.machine.sets_to_elect(self.leader_now_ms(), unclean):
            self._decide(events.Scan(False, True, unclean))

    def _on_connection_closed(self, connection: Connection) -> None:
        session = self.sessions.closed(connection)
        if session is None or not session.brokers or not self._term or self._stopping:
            return
        brokers = tuple(sorted(session.brokers))
        log.info("connection %s of brokers %s closed", connection.peer, brokers)
        self._decide(events.ChannelClosed(session.id, brokers, self.config.enable_elect_unclean_master))

    def _decide(self, event: events.AnyEvent, attempt: int = 0) -> None:
        """Puts an event of the controller's own into the log; tries again while this reign lasts."""
        term = self._term

        def answer(outcome: Outcome) -> None:
            if outcome.code == 0:
                self.decided(outcome)
            elif outcome.code == ResponseCode.CONTROLLER_NOT_LEADER or term != self._term:
                log.info("%s was not decided here: %s", type(event).__name__, outcome.remark)
            elif attempt < self.config.elect_master_max_retry_count:
                log.warning("%s was not decided, trying again: %s", type(event).__name__, outcome.remark)
                self._decide(event, attempt + 1)
            else:
                log.error("%s was not decided: %s", type(event).__name__, outcome.remark)

        self.proposer.submit(event, answer, urgent=True)

    def decided(self, outcome: Outcome) -> None:
        """Acts on what the state machine decided under this node's lead."""
        self.events.write(self.leader_now_ms(), self.topology.self_id, outcome.effects)
        for effect in outcome.effects:
            if isinstance(effect, Election):
                self._elected(effect)
            elif isinstance(effect, ReplicaUp) and self.config.notify_broker_role_changed and self._leading:
                self.notices.remind(self.machine.broker_sets[effect.broker_name], effect.broker_id)

    def _elected(self, election: Election) -> None:
        level = logging.INFO if election.result == "new-master" else logging.WARNING
        log.log(
            level,
            "election in %s by %s: %s, master %s -> %s epoch=%d from %s alive %s",
            election.broker_name,
            election.cause,
            election.result,
            election.old_master,
            election.new_master,
            election.master_epoch,
            election.candidates,
            election.alive,
        )
        self.metrics.elected(election)
        if election.result != "new-master":
            return
        self.elections += 1
        broker_set = self.machine.broker_sets.get(election.broker_name)
        if broker_set is not None and self.config.notify_broker_role_changed and self._term:
            self.notices.announce(broker_set)

    # -- configuration -------------------------------------------------------------------------------------

    async def update_config(self, config: ControllerConfig, changes: Mapping[str, str]) -> None:
        """`changes`: keys of ours that made it so. Raises `OSError` or `UnicodeDecodeError`
        when the file cannot be written; the configuration is in force all the same."""
        self.config = config
        self.proposer.coalesce_ms = config.heartbeat_coalesce_ms
        self.proposer.timeout_ms = config.request_timeout_ms
        self.proposer.capacity = config.controller_request_thread_pool_queue_capacity
        if self._leading:
            for timer in self._timers.values():
                timer.cancel()
            self._at("brokers", config.scan_not_active_broker_interval, self._scan_brokers)
            self._at("masters", config.scan_inactive_master_interval, self._scan_masters)
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, change_file, config.config_file, changes, ControllerConfig.ALIASES)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _addresses(members: Mapping[str, str]) -> str:
    return ", ".join(f"{peer}-{address}" for peer, address in members.items())
