"""A whole cluster on the simulator: the real services, unchanged, on simulated hosts and crashing disks.

`SimCluster` starts name server, controllers, brokers and clients; `crash`, `power_cut`, `pause` and
`partition` do what their names say. Disks are real directories (in memory where /dev/shm exists) because the
store maps files; a crash continues on a copy of the directory as it was at that instant, and a power cut
takes back what was not synced (`disks.py`).
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import Callable, Container, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from batonmq.broker.config import BrokerConfig
from batonmq.broker.replica.part import ReplicaPart
from batonmq.broker.service import BrokerService
from batonmq.client.admin import Admin
from batonmq.client.producer import Producer
from batonmq.client.reader import QueueReader
from batonmq.controller.config import ControllerConfig
from batonmq.controller.heartbeats import LOWEST_PRIORITY
from batonmq.controller.service import ControllerService
from batonmq.ha.config import HAConfig
from batonmq.namesrv.config import NamesrvConfig
from batonmq.namesrv.service import NamesrvService
from batonmq.raft.errors import NodeStopped
from batonmq.raft.state import Role
from batonmq.routing.session import Session
from batonmq.store.config import FlushDiskType, StoreConfig
from tests.simulation.disks import TrackedDisk, World, lose_tails
from tests.simulation.host import Host
from tests.simulation.loop import SimLoop
from tests.simulation.network import Endpoint
from tests.simulation.worker import LoopWorker

WALL_EPOCH_MS = 1_700_000_000_000
NAMESRV_PORT, CONTROLLER_PORT, BROKER_PORT, HA_PORT = 9876, 9877, 10911, 10912
BROKER_NAME = "group"
COMMIT_LOG_FILE = 32 * 1024
"""Bytes; small, so that stories cross the ends of files."""
TIMER_LOG_FILE = 4096
TIMER_WINDOW = 6
"""Steps of a second after which timed messages are rolled."""


class SimClock:
    """Wall and monotonic time of a simulated host: the loop's, plus an offset each."""

    def __init__(self, loop: SimLoop, skew_ms: int = 0, uptime_ms: int = 0) -> None:
        self._loop = loop
        self.skew_ms, self.uptime_ms = skew_ms, uptime_ms

    def now_ms(self) -> int:
        return WALL_EPOCH_MS + int(self._loop.now * 1000) + self.skew_ms

    def monotonic_ms(self) -> int:
        return self.monotonic_us() // 1_000

    def monotonic_us(self) -> int:
        return int(self._loop.now * 1_000_000) + self.uptime_ms * 1_000


@dataclass
class Node:
    """One program of the cluster over all its restarts."""

    name: str
    address: str
    kind: str
    index: int
    directory: Path
    host: Host | None = None
    service: Any = None
    starting: asyncio.Task[Any] | None = None
    """The start of its service; done when it runs."""
    disk: TrackedDisk | None = None
    lives: int = 0
    joins: bool = False
    """A controller that came later than the others."""
    disks: int = 1
    """How many disks it has had; a new one is empty."""
    stopping: bool = False
    again: bool = False
    """It is to be started when it has stopped."""

    @property
    def up(self) -> bool:
        return self.host is not None and self.host.alive

    @property
    def port(self) -> int:
        """Where a broker listens."""
        return BROKER_PORT

    @property
    def life(self) -> str:
        """After a restart the program is another one."""
        return f"{self.name}.{self.lives}"

    @property
    def broker(self) -> Any:
        """The `Broker` of a broker node, also of one that was killed; None while it is still starting."""
        return getattr(self.service, "broker", None)

    @property
    def broker_id(self) -> int | None:
        """The id that the controllers gave to what is on this node's disk; None if there is none yet."""
        if self.broker is None:
            return None
        manager = self.service.part(ReplicaPart).manager
        return None if manager is None else manager.core.broker_id


class SimCluster:
    """The nodes and what can happen to them. `sync_flush`: acknowledge only what is on the disks."""

    def __init__(
        self, loop: SimLoop, root: Path, *, replicas: int = 2, controllers: int = 3, sync_flush: bool = False
    ) -> None:
        self.loop, self.root, self.sync_flush = loop, root, sync_flush
        self.world = World()
        self.random = random.Random(loop.random.getrandbits(64))
        self.namesrv = Node("namesrv", "10.0.0.1", "namesrv", 0, root / "namesrv")
        self.controllers = [
            Node(f"controller{i}", f"10.0.1.{i + 1}", "controller", i, root / f"controller{i}")
            for i in range(controllers)
        ]
        self.brokers = [
            Node(f"broker{i}", f"10.0.2.{i + 1}", "broker", i, root / f"broker{i}") for i in range(replicas)
        ]
        self.client_host = loop.network.start("client", "10.0.3.1")
        self.stranger = loop.network.start("stranger", "10.0.4.1")
        self.events: list[str] = []
        self.broker_keys: dict[str, Any] = {}
        """More keys of brokers that are started from now on."""
        self.hand_back = False
        """Whether the first replica is the preferred master."""
        self.lease_read = False
        """enableLeaseRead of the controllers that are started from now on."""

    @property
    def nodes(self) -> list[Node]:
        return [self.namesrv, *self.controllers, *self.brokers]

    def log(self, text: str) -> None:
        self.events.append(f"{self.loop.now - 1000:9.3f} {text}")

    # -- starting -----------------------------------------------------------------------------------------

    def start(self, node: Node) -> None:
        """Start a node's program on its directory, as a new process."""
        assert not node.up, f"{node.name} runs already"
        node.lives += 1
        node.stopping = node.again = False
        node.host = self.loop.network.start(node.name, node.address)
        node.service = self._make(node)
        self.log(f"start {node.name} (life {node.lives})")
        node.starting = self._watch(node, self.on(node.host, node.service.start()))

    def stop(self, node: Node) -> None:
        """SIGTERM: the program ends in its own time, once it has started, and may be killed while it does."""
        assert node.host is not None
        service, starting = node.service, node.starting
        self.log(f"stop {node.name}")
        node.stopping = True
        host = node.host

        def ended(task: asyncio.Task[Any]) -> None:
            if host.alive:
                self.log(f"{node.name} has stopped")
                self.loop.network.crash(host)
                if node.again:
                    self.start(node)

        async def end() -> None:
            if starting is not None and not starting.done():
                await asyncio.wait([starting])
            await service.stop()

        self._watch(node, self.on(host, end())).add_done_callback(ended)

    def _watch(self, node: Node, task: asyncio.Task[Any]) -> asyncio.Task[Any]:
        """A program that fails is gone; unless its disk is full, it should not have failed."""
        host = node.host
        assert host is not None

        def ended(task: asyncio.Task[Any]) -> None:
            error = None if task.cancelled() else task.exception()
            if error is not None and host.alive:
                self.log(f"{node.name} failed: {error}")
                self.loop.network.crash(host)
                if not (isinstance(error, OSError) and node.name in self.world.full):
                    self.loop.failures.append({"exception": error})

        # As nobody's callback: it is not for the host to decide whether it runs.
        task.add_done_callback(ended, context=contextvars.Context())
        return task

    def on(self, host: Host, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a coroutine as code of `host`."""
        task: asyncio.Task[Any] = self.loop.network.run_on(host, lambda: self.loop.create_task(coroutine))
        return task

    def start_all(self) -> None:
        for node in self.nodes:
            self.start(node)

    def _rng(self) -> random.Random:
        return random.Random(self.random.getrandbits(64))

    def _clock(self) -> SimClock:
        """Some wall clocks are wrong by up to two minutes; each start of a program may change that.

        Monotonic clocks begin anywhere.
        """
        wrong = self.random.random() < 0.3
        skew_ms = self.random.randint(-120_000, 120_000) if wrong else 0
        return SimClock(self.loop, skew_ms, self.random.randrange(10**9))

    def _make(self, node: Node) -> Any:
        node.directory.mkdir(parents=True, exist_ok=True)
        make: dict[str, Callable[[Node], Any]] = {
            "namesrv": self._make_namesrv,
            "controller": self._make_controller,
            "broker": self._make_broker,
        }
        return make[node.kind](node)

    def _make_namesrv(self, node: Node) -> NamesrvService:
        config = NamesrvConfig(
            listen_port=NAMESRV_PORT,
            kv_config_path=str(node.directory / "kv.json"),
            config_store_path=str(node.directory / "namesrv.properties"),
        )
        return NamesrvService(config, clock=self._clock())

    def _make_controller(self, node: Node) -> ControllerService:
        peers = ";".join(f"n{c.index}-{c.address}:{CONTROLLER_PORT}" for c in self.controllers)
        config = ControllerConfig(
            controller_d_leger_group="controllers",
            controller_d_leger_peers=peers,
            controller_d_leger_self_id=f"n{node.index}",
            controller_store_path=str(node.directory),
            controller_join_running_group=node.joins,
            enable_lease_read=self.lease_read,
        )
        raft = node.directory / "raft"
        raft.mkdir(exist_ok=True)
        node.disk = TrackedDisk(raft)
        return ControllerService(
            config, clock=self._clock(), rng=self._rng(), disk=node.disk, worker=LoopWorker()
        )

    def _make_broker(self, node: Node) -> BrokerService:
        config = BrokerConfig(
            broker_name=BROKER_NAME,
            broker_ip1=node.address,
            listen_port=BROKER_PORT,
            namesrv_addr=f"{self.namesrv.address}:{NAMESRV_PORT}",
            enable_controller_mode=True,
            controller_addr=";".join(f"{c.address}:{CONTROLLER_PORT}" for c in self.controllers),
            all_ack_in_sync_state_set=True,
            vip_channel_enabled=False,
            timer_roll_window_slot=TIMER_WINDOW,
            mapped_file_size_timer_log=TIMER_LOG_FILE,
            broker_election_priority=self.brokers.index(node) if self.hand_back else LOWEST_PRIORITY,
            enable_hand_back=self.hand_back,
            hand_back_delay=2_000,
            **self.broker_keys,
        )
        store = StoreConfig(
            store_path_root_dir=str(node.directory),
            store_path_commit_log=str(node.directory / "commitlog"),
            mapped_file_size_commit_log=COMMIT_LOG_FILE,
            mapped_file_size_consume_queue=20 * 200,
            max_hash_slot_num=100,
            max_index_num=400,
            flush_disk_type=FlushDiskType.SYNC_FLUSH if self.sync_flush else FlushDiskType.ASYNC_FLUSH,
        )
        return BrokerService(config, store, HAConfig(), clock=self._clock(), rng=self._rng())

    # -- faults ---------------------------------------------------------------------------------------------

    def crash(self, node: Node) -> None:
        """kill -9: the process is gone, what it wrote stays."""
        assert node.host is not None
        self.log(f"kill {node.name}")
        self._continue_on_copy(node)
        self.loop.network.crash(node.host)

    def power_cut(self, node: Node, share: float = 0.5) -> None:
        """The machine is gone without a word, and with it `share` of what no fsync covers."""
        assert node.host is not None
        self.log(f"power cut {node.name}")
        self._continue_on_copy(node)
        self.loop.network.crash(node.host, silent=True)
        if node.kind == "broker":
            self.world.lose_pages(node.directory, self.random, share)
        elif node.disk is not None:
            lose_tails(node.disk, node.directory / "raft", self.random, share)

    def new_disk(self, node: Node) -> None:
        """A node that is down gets an empty disk."""
        assert not node.up
        self.log(f"new disk for {node.name}")
        node.disks += 1
        node.service = node.disk = None
        node.directory = self.root / f"{node.name}.{node.lives}.new"

    def new_controller(self) -> Node:
        """Another machine for a controller: it waits to be added to the group."""
        index = max(node.index for node in self.controllers) + 1
        name = f"controller{index}"
        node = Node(name, f"10.0.1.{index + 1}", "controller", index, self.root / name, joins=True)
        self.controllers.append(node)
        self.start(node)
        return node

    def _continue_on_copy(self, node: Node) -> None:
        # The dead process's objects may still hold the old files open; the next life must not see them.
        copy = self.root / f"{node.name}.{node.lives}"
        self.world.copy(node.directory, copy)
        node.directory = copy

    def pause(self, node: Node, seconds: float) -> None:
        """SIGSTOP, and SIGCONT later."""
        assert node.host is not None
        self.log(f"pause {node.name} for {seconds:.1f} s")
        node.host.paused_until = self.loop.now + seconds

    def partition(self, a: Node, b: Node, *, both: bool = True) -> None:
        self.log(f"cut {a.name} {'-' if both else '->'} {b.name}")
        self.loop.network.cut(a.name, b.name, both=both)

    def isolate(self, node: Node) -> None:
        """Cut a node off from every other one, but not from the client."""
        self.log(f"isolate {node.name}")
        for other in self.nodes:
            if other is not node:
                self.loop.network.cut(node.name, other.name)

    def connections(self) -> list[Endpoint]:
        """One end of each open connection between two hosts, loopback left out."""
        return [
            end
            for host in self.loop.network.all_hosts
            if host.alive
            for end in host.endpoints
            if end.remote_host is not host and end.remote_port < 40_000
        ]

    def reset(self, end: Endpoint) -> None:
        self.log(f"reset {end.host.name} - {end.remote_host.name}:{end.remote_port}")
        self.loop.network.reset(end)

    def stall(self, end: Endpoint, seconds: float, *, both: bool) -> None:
        """One connection passes nothing for a while (one way, or both); others between its hosts do."""
        way = f"{end.host.name} {'-' if both else '->'} {end.remote_host.name}:{end.remote_port}"
        self.log(f"stall {way} for {seconds:.1f} s")
        self.loop.network.stall(end, seconds, both=both)

    def slow_disk(self, node: Node, mean_s: float) -> None:
        assert node.host is not None
        self.log(f"slow disk at {node.name}: {mean_s:.2f} s")
        node.host.disk_s = mean_s

    def slow_link(self, node: Node, bytes_per_s: float) -> None:
        self.log(f"slow link at {node.name}: {bytes_per_s:.0f} B/s")
        self.loop.network.slow[node.name] = bytes_per_s

    def slow_packets(self, node: Node, mean_s: float) -> None:
        """All that a node sends or is sent takes longer, every packet another time."""
        self.log(f"packets of {node.name} are late: {mean_s:.3f} s")
        self.loop.network.late[node.name] = mean_s

    def full_disk(self, node: Node) -> None:
        self.log(f"full disk at {node.name}")
        self.world.full.add(node.name)

    def crash_at_work(self, node: Node, work: Container[str]) -> None:
        """Kill the program when it begins one of these pieces of executor work, or ends it (``after …``)."""
        assert node.host is not None

        def strike(host: Host, name: str) -> None:
            if host.alive and name in work:
                self.log(f"at work: {name}")
                self.crash(node)

        node.host.before_work = strike

    def reconnect(self) -> None:
        """All links work and all disks are fast and have room again; programs that are down stay down."""
        self.log("reconnect")
        self.loop.network.heal()
        self.world.full.clear()
        for node in self.nodes:
            if node.host is not None:
                node.host.disk_s = Host.disk_s
                node.host.before_work = None

    def heal(self) -> None:
        """Everything works and runs again; what is just stopping, as soon as it has stopped."""
        self.reconnect()
        for node in self.nodes:
            if not node.up:
                self.start(node)
            else:
                node.again = node.stopping

    # -- looking --------------------------------------------------------------------------------------------

    def producer(self) -> Producer:
        """A producer on the client's host; make and use it in code that runs there."""
        return Producer(
            "simulation",
            f"{self.namesrv.address}:{NAMESRV_PORT}",
            send_timeout_ms=10_000,
            attempt_timeout_ms=3_000,
            compress_over=0,
            client_ip=self.client_host.address,
            clock=SimClock(self.loop),
            rng=self._rng(),
        )

    def _session(self) -> Session:
        return Session(
            f"{self.namesrv.address}:{NAMESRV_PORT}",
            clock=SimClock(self.loop),
            rng=self._rng(),
        )

    def admin(self) -> Admin:
        return Admin((), session=self._session())

    def reader(self) -> QueueReader:
        return QueueReader((), session=self._session())

    def masters(self) -> list[Node]:
        """Brokers that hold the master role now, as they see it."""
        return [n for n in self.brokers if n.up and n.broker is not None and n.broker.role.is_master]

    def whole(self) -> bool:
        """There is one master, and all replicas are in its SyncStateSet."""
        masters = self.masters()
        ids = {node.broker_id for node in self.brokers if node.up}
        if len(masters) != 1 or len(ids) < len(self.brokers) or None in ids:
            return False
        tracker = masters[0].broker.replication.tracker
        return tracker is not None and tracker.agreed.members == ids

    def level(self) -> bool:
        """All logs are equally long, confirmed equally far, and written by the same masters."""
        logs = {
            (
                node.broker.store.max_offset,
                node.broker.store.confirm_offset,
                node.broker.replication.epochs.entries,
            )
            for node in self.brokers
        }
        return len(logs) == 1

    @staticmethod
    def leads(controller: Node) -> bool:
        """Whether this controller takes itself for the leading one."""
        raft = getattr(controller.service, "node", None)
        try:
            return raft is not None and raft.role is Role.LEADER
        except NodeStopped:  # it is reading its log, and knows nothing of itself yet
            return False
