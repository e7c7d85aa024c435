"""The controller as a program: sockets, the Raft node, the configuration. It decides nothing itself.

`ControllerService` keeps no globals, so a name server can hold one, and tests any number.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Mapping

from batonmq.common.clock import Clock, SystemClock
from batonmq.common.config import require
from batonmq.common.config_file import change_file
from batonmq.common.running_time import TICK_S, RunningTime
from batonmq.controller.config import ControllerConfig
from batonmq.controller.effects import Outcome
from batonmq.controller.eventlog import EventLog, EventSink
from batonmq.controller.forwarding import Forwarding
from batonmq.controller.handlers import FORWARDABLE, Handlers
from batonmq.controller.heartbeat_handler import HeartbeatHandler
from batonmq.controller.leadership import Leadership
from batonmq.controller.machine import ControllerMachine
from batonmq.controller.membership import JOINING, REMOVED, Membership, founders
from batonmq.controller.metrics import ControllerMetrics
from batonmq.controller.notices import KEPT, OPEN_FILES, RoleChangeNotices
from batonmq.controller.proposer import Proposer
from batonmq.controller.reads import Reads
from batonmq.controller.sessions import Sessions
from batonmq.controller.suspicion import Suspicion
from batonmq.net.client import RemotingClient
from batonmq.net.connection import Connection
from batonmq.net.dispatch import Dispatcher
from batonmq.net.interceptors import Interceptor
from batonmq.net.limits import Limits
from batonmq.net.open_files import RESERVE, raise_file_limit
from batonmq.net.server import RemotingServer
from batonmq.net.tls import ServerTls, TlsConfig, client_tls, mutual_contexts, server_tls
from batonmq.raft.config import RaftConfig
from batonmq.raft.disk import ALLOCATE_BYTES, Disk, OsDisk
from batonmq.raft.node import RaftNode
from batonmq.raft.state import Role
from batonmq.raft.storage import Storage
from batonmq.raft.transport import Authenticator, NoAuthentication, RemotingTransport, SharedSecret
from batonmq.raft.worker import QuickDiskWorker, ThreadWorker, Worker

log = logging.getLogger(__name__)

READY = "The Controller Server boot success. serializeType=JSON"
SPARE_CONNECTIONS = 2
"""To each other controller; used while packets get lost (`raft/spare_connections.py`)."""
MAX_SNAPSHOT_BYTES = 64 << 20
"""The state of some 300,000 broker sets. A forged snapshot may take eighty times its size in memory, and
0.6 s of the loop for each MiB, before it is recognised."""


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
        self.suspicion: Suspicion
        self.forwarding: Forwarding
        self.events: EventSink
        self.failed: asyncio.Future[BaseException]
        self.metrics = ControllerMetrics(self)
        self._clock: Clock = clock if clock is not None else SystemClock()
        self._running = RunningTime(self._clock)
        self._tick_timer: asyncio.TimerHandle | None = None
        self.leadership = Leadership(
            config,
            self.topology.self_id,
            self._clock,
            self._running,
            self.machine,
            self.sessions,
            self.metrics.elected,
        )
        self._rng = rng if rng is not None else random.Random()  # election jitter, no secret
        tls = tls if tls is not None else TlsConfig()
        self._server_tls = server_tls(tls)
        self._client_tls = client_tls(tls)
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
        self._servers: list[RemotingServer] = []
        self._raft_client: RemotingClient
        self._client: RemotingClient
        """For requests to the leader, and to masters that seem silent."""
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
            lease_read=config.enable_lease_read,
            max_clock_drift=config.lease_read_clock_drift_percent / 100,
            max_read_lag=config.follower_read_max_lag,
        )
        self._client = RemotingClient(tls=self._client_tls)
        self._notice_client = RemotingClient(tls=self._client_tls, limits=Limits(max_connections=KEPT))
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
            topology.group,
            topology.self_id,
            self._raft_client,
            raft_dispatcher,
            authenticator,
            spares=[
                RemotingClient(
                    tls=self._raft_client_tls,
                    dispatcher=raft_dispatcher,
                    # A new attempt has a better chance than the kernel's next one after a second.
                    connect_timeout_ms=config.j_raft_election_timeout_ms // 2,
                    tcp_timeout_ms=2 * config.j_raft_election_timeout_ms,
                )
                for _ in range(SPARE_CONNECTIONS)
            ],
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
        self.node.status.on_role_change = self._on_role_change
        self.node.status.on_removed = self._on_removed
        self.node.on_failure = self._on_failure
        self.node.on_unclaimed = self.leadership.decided_late
        self.node.confirm_reads(config.is_process_read_event)
        self.membership = Membership(topology, self.node, config.request_timeout_ms)
        self.proposer = Proposer(
            self.metrics.watched(self.node),
            self.leadership.now_ms,
            self.entry_version,
            decided=self.decided,
            coalesce_ms=config.heartbeat_coalesce_ms,
            timeout_ms=config.request_timeout_ms,
            capacity=config.controller_request_thread_pool_queue_capacity,
        )
        self.reads = Reads(self.node)
        self.notices = RoleChangeNotices(self.machine, self._notice_client)
        self.forwarding = Forwarding(
            self._client,
            lambda: self.membership.rpc_address(self.leader_id),
            lambda: self.node.leader_entry_version,
            FORWARDABLE,
            config.request_timeout_ms,
        )
        self.suspicion = Suspicion(
            self.machine,
            self._client,
            self.leadership.now_ms,
            self.leadership.led_ms,
            self.leadership.found_silent,
        )
        self.leadership.start(self.proposer, self.notices, self.suspicion, self._client, self.events)
        self._tick()
        Handlers(self).register(dispatcher)
        heartbeats = HeartbeatHandler(
            self.machine,
            self.leadership,
            self._running,
            self.sessions,
            self.proposer,
            self.suspicion,
            self.entry_version,
        )
        heartbeats.register(dispatcher)
        limits = Limits(max_connections=self._affordable_connections())
        dispatcher.intercept(Interceptor(closed=self.leadership.connection_closed))
        key = "controllerDLegerPeers" if topology.shared_port else "jRaftControllerRPCAddr"
        self._listen(dispatcher, topology.rpc_addresses[topology.self_id], limits, self._server_tls, key)
        if not topology.shared_port:
            address = topology.raft_addresses[topology.self_id]
            self._listen(raft_dispatcher, address, limits, self._raft_server_tls, "jRaftServerId")
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
            await self._client.close()
            await self._notice_client.close()
            self._unlock()
            raise
        self._log_membership()

    def _tick(self) -> None:
        """Keep the running time running."""
        self._running.now_ms()
        self._tick_timer = asyncio.get_running_loop().call_later(TICK_S, self._tick)

    def _log_membership(self) -> None:
        """Log what an operator should know about the membership, once, at the start."""
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
            "controller %s was removed from the group %s (log index %d): it no longer takes part; stop it. "
            "To come back it needs an empty directory, a new id, controllerJoinRunningGroup=true and "
            "addController",
            self.topology.self_id,
            self.topology.group,
            index,
        )

    def _affordable_connections(self) -> int:
        wanted = self.config.controller_max_connections
        # Where files are few, notices may take half of them at most.
        allowed = raise_file_limit(wanted + OPEN_FILES)
        allowed = min(wanted, max(allowed // 2, allowed - OPEN_FILES))
        if allowed < wanted:
            log.warning(
                "controllerMaxConnections=%d, but connections beyond %d are refused: this process may not "
                "open more files; raise its limit (ulimit -n, LimitNOFILE) to %d",
                wanted,
                allowed,
                wanted + OPEN_FILES + RESERVE,
            )
        return allowed

    def _listen(
        self, dispatcher: Dispatcher, address: str, limits: Limits, tls: ServerTls | None, key: str
    ) -> None:
        port = int(address.rpartition(":")[2])
        server = RemotingServer(dispatcher, self.config.bind_address, port, tls=tls, limits=limits, key=key)
        self._servers.append(server)

    async def stop(self) -> None:
        """Hands leadership over if it can, answers what is under way, closes everything."""
        if self._stopping:
            return
        self._stopping = True
        self.leadership.retire()
        if self.node.role is Role.LEADER and len(self.node.members.voters) > 1 and not self.failed.done():
            await self._hand_over()
        self.leadership.end()
        await self.notices.stop()
        await self.suspicion.stop()
        for server in self._servers:
            await server.stop(drain_ms=200)
        await self.node.stop()
        await self.proposer.close()
        await self.reads.close()
        await self._transport.close()
        await self._raft_client.close()
        await self._client.close()
        await self._notice_client.close()
        await self.leadership.close()
        await self.metrics.stop()
        await self.events.close()
        self._unlock()

    def _unlock(self) -> None:
        if self._tick_timer is not None:
            self._tick_timer.cancel()
        if self._own_disk is not None:
            self._own_disk.unlock()

    async def _hand_over(self) -> None:
        try:
            await asyncio.wait_for(self.membership.hand_over(), 1.0)
        except Exception as error:
            log.info("leadership was not handed over: %s", error or "not within a second")

    # -- leadership -----------------------------------------------------------------------------------------

    @property
    def leading(self) -> bool:
        return self.leadership.leading

    @property
    def leader_id(self) -> str | None:
        return self.membership.leader_id

    def leader_now_ms(self) -> int:
        return self.leadership.now_ms()

    def entry_version(self) -> int:
        """Of the entries that this controller writes as leader."""
        return max(self.machine.written_version, self.node.common_entry_version)

    def decided(self, outcome: Outcome) -> None:
        self.leadership.decided(outcome)

    def _on_role_change(self, role: Role, term: int, leader_id: str | None) -> None:
        self.leadership.role_changed(role, term)
        self.forwarding.leader_changed()

    def _on_failure(self, cause: BaseException) -> None:
        self.leadership.end()
        if not self.failed.done():
            self.failed.set_result(cause)

    # -- configuration -------------------------------------------------------------------------------------

    async def update_config(self, config: ControllerConfig, changes: Mapping[str, str]) -> None:
        """`changes`: keys of ours that made it so. Raises `OSError` or `UnicodeDecodeError`
        when the file cannot be written; the configuration is in force all the same."""
        self.config = config
        self.proposer.coalesce_ms = config.heartbeat_coalesce_ms
        self.proposer.timeout_ms = config.request_timeout_ms
        self.proposer.capacity = config.controller_request_thread_pool_queue_capacity
        self.forwarding.timeout_ms = config.request_timeout_ms
        self.membership.timeout_ms = config.request_timeout_ms
        self.node.confirm_reads(config.is_process_read_event)
        self.leadership.configure(config)
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, change_file, config.config_file, changes, ControllerConfig.ALIASES)


def _addresses(members: Mapping[str, str]) -> str:
    return ", ".join(f"{peer}-{address}" for peer, address in members.items())
