"""A whole cluster on the simulator: the real services, unchanged, on simulated hosts and crashing disks.

`SimCluster` starts name server, controllers, brokers and clients; `crash`, `power_cut`, `pause` and
`partition` do what their names say. Disks are real directories (in memory where /dev/shm exists) because the
store maps files; a crash continues on a copy of the directory as it was at that instant, and a power cut
takes back a random part of what was not synced. What was synced is known from the calls of fsync themselves
(`World`), not from what the programs believe.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import random
import shutil
import stat
from collections.abc import Callable, Container, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from batonmq.broker.config import BrokerConfig
from batonmq.broker.service import BrokerService
from batonmq.client import session
from batonmq.client.admin import Admin
from batonmq.client.producer import Producer
from batonmq.client.reader import QueueReader
from batonmq.client.session import Session
from batonmq.controller.config import ControllerConfig
from batonmq.controller.service import ControllerService
from batonmq.ha.config import HAConfig
from batonmq.ha.epoch_file import EpochFile
from batonmq.namesrv.config import NamesrvConfig
from batonmq.namesrv.service import NamesrvService
from batonmq.raft.core import Role
from batonmq.raft.disk import AppendFile, OsDisk
from batonmq.store import mapped
from batonmq.store.config import FlushDiskType, StoreConfig
from tests.simulation.loop import Endpoint, Host, SimLoop, current_host

WALL_EPOCH_MS = 1_700_000_000_000
SECTOR, PAGE = 512, 4096
NAMESRV_PORT, CONTROLLER_PORT, BROKER_PORT = 9876, 9877, 10911
BROKER_NAME = "group"


class SimClock:
    """Wall and monotonic time of a simulated host: the loop's, plus an offset each."""

    def __init__(self, loop: SimLoop, skew_ms: int = 0, uptime_ms: int = 0) -> None:
        self._loop = loop
        self.skew_ms, self.uptime_ms = skew_ms, uptime_ms

    def now_ms(self) -> int:
        return WALL_EPOCH_MS + int(self._loop.now * 1000) + self.skew_ms

    def monotonic_ms(self) -> int:
        return int(self._loop.now * 1000) + self.uptime_ms


class TrackedFile:
    """An append-only file that knows how much of it a power cut would leave."""

    def __init__(self, file: AppendFile, path: Path, synced: dict[str, int]) -> None:
        self._file, self._path, self._synced = file, path, synced

    def write(self, data: bytes) -> None:
        self._file.write(data)

    def sync(self) -> None:
        self._file.sync()
        self._synced[self._path.name] = self._path.stat().st_size

    def close(self) -> None:
        self._file.close()


class TrackedDisk(OsDisk):
    """A controller's directory; `synced` holds the durable size of each file that was appended to."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.directory = directory
        self.synced = {p.name: p.stat().st_size for p in directory.iterdir()}

    def open_append(self, name: str) -> AppendFile:
        self.synced.setdefault(name, 0)
        return TrackedFile(super().open_append(name), self.directory / name, self.synced)

    def rename(self, old: str, new: str) -> None:
        super().rename(old, new)
        if old in self.synced:
            self.synced[new] = self.synced.pop(old)


class World:
    """What programs get from the operating system and not from arguments: fsync, disk space, their pid."""

    def __init__(self) -> None:
        self.synced: dict[int, bytes] = {}
        """Inode -> the file's bytes at its last fsync."""
        self.full: set[str] = set()
        """Names of hosts whose commit log and epoch file take no more bytes."""

    def fsync(self, descriptor: int) -> None:
        status = os.fstat(descriptor)
        if stat.S_ISREG(status.st_mode):
            self.synced[status.st_ino] = Path(f"/proc/self/fd/{descriptor}").read_bytes()

    def check_space(self) -> None:
        host = current_host.get()
        if host is not None and host.name in self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """Replaces the calls."""
        write_all, write_epochs = mapped.write_all, EpochFile._write

        def write_some(fd: int, data: Any, position: int) -> None:
            self.check_space()
            write_all(fd, data, position)

        def write_epochs_some(file: EpochFile, entries: Any) -> None:
            self.check_space()
            write_epochs(file, entries)

        with ExitStack() as stack:
            for target, name, value in (
                (os, "fsync", self.fsync),
                (os, "fdatasync", self.fsync),
                (os, "getpid", lambda: 4242),
                (session, "_instances", itertools.count()),
                (mapped, "write_all", write_some),
                (EpochFile, "_write", write_epochs_some),
            ):
                stack.enter_context(mock.patch.object(target, name, value))
            yield


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
    disk: TrackedDisk | None = None
    lives: int = 0

    @property
    def up(self) -> bool:
        return self.host is not None and self.host.alive


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
        self.events: list[str] = []

    @property
    def nodes(self) -> list[Node]:
        return [self.namesrv, *self.controllers, *self.brokers]

    def log(self, text: str) -> None:
        self.events.append(f"{self.loop.now - 1000:9.3f} {text}")

    # -- starting -----------------------------------------------------------------------------------------

    def start(self, node: Node) -> None:
        """Start a node's program on its directory, as a new process."""
        node.lives += 1
        node.directory.mkdir(parents=True, exist_ok=True)
        node.host = self.loop.network.start(node.name, node.address)
        make: dict[str, Callable[[Node], Any]] = {
            "namesrv": self._make_namesrv,
            "controller": self._make_controller,
            "broker": self._make_broker,
        }
        node.service = make[node.kind](node)
        self.log(f"start {node.name} (life {node.lives})")
        self.on(node.host, node.service.start())

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
        )
        raft = node.directory / "raft"
        raft.mkdir(exist_ok=True)
        node.disk = TrackedDisk(raft)
        return ControllerService(config, clock=self._clock(), rng=self._rng(), disk=node.disk)

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
        )
        store = StoreConfig(
            store_path_root_dir=str(node.directory),
            store_path_commit_log=str(node.directory / "commitlog"),
            mapped_file_size_commit_log=32 * 1024,
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

    def power_cut(self, node: Node) -> None:
        """The machine is gone without a word, and with it a random part of what no fsync covers."""
        assert node.host is not None
        self.log(f"power cut {node.name}")
        self._continue_on_copy(node)
        self.loop.network.crash(node.host, silent=True)
        if node.kind == "broker":
            self._lose_pages(node)
        elif node.kind == "controller":
            self._lose_tails(node)

    def _continue_on_copy(self, node: Node) -> None:
        # The dead process's objects may still hold the old files open; the next life must not see them.
        copy = self.root / f"{node.name}.{node.lives}"
        shutil.copytree(node.directory, copy)
        for path in _files(node.directory):
            synced = self.world.synced.get(path.stat().st_ino)
            if synced is not None:
                self.world.synced[(copy / path.relative_to(node.directory)).stat().st_ino] = synced
        node.directory = copy

    def _lose_pages(self, node: Node) -> None:
        """Each page (or sector: torn writes) is as it was synced last, or as it was written last."""
        size = self.random.choice((SECTOR, PAGE))
        synced = self.world.synced
        for path in _files(node.directory):
            key, written = path.stat().st_ino, path.read_bytes()
            if path.relative_to(node.directory).parts[0] in ("commitlog", "consumequeue", "index"):
                durable = synced.get(key, b"").ljust(len(written), b"\0")
                disk = bytearray(written)
                for at in range(0, len(written), size):
                    end = at + size
                    if written[at:end] != durable[at:end] and self.random.random() < 0.5:
                        disk[at:end] = durable[at:end]
                path.write_bytes(disk)
            synced[key] = path.read_bytes()

    def _lose_tails(self, node: Node) -> None:
        assert node.disk is not None
        for name, synced in node.disk.synced.items():
            path = node.directory / "raft" / name
            if path.exists():
                size = path.stat().st_size
                if size > synced:
                    with path.open("r+b") as file:
                        file.truncate(self.random.randint(synced, size))

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
        """All links work again and all disks are fast and have room; programs that are down stay down."""
        self.log("reconnect")
        self.loop.network.heal()
        self.world.full.clear()
        for node in self.nodes:
            if node.host is not None:
                node.host.disk_s = Host.disk_s
                node.host.before_work = None

    def heal(self) -> None:
        self.reconnect()
        for node in self.nodes:
            if not node.up:
                self.start(node)

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
            ip=self.client_host.address,
            clock=SimClock(self.loop),
            rng=self._rng(),
        )

    def admin(self) -> Admin:
        return Admin((), session=self._session())

    def reader(self) -> QueueReader:
        return QueueReader((), session=self._session())

    def masters(self) -> list[Node]:
        """Brokers that hold the master role now, as they see it."""
        return [
            n
            for n in self.brokers
            if n.up and self.broker_of(n) is not None and self.broker_of(n).role.is_master
        ]

    @staticmethod
    def leads(controller: Node) -> bool:
        """Whether this controller takes itself for the leading one."""
        raft = getattr(controller.service, "node", None)
        return raft is not None and raft.role is Role.LEADER

    @staticmethod
    def broker_of(node: Node) -> Any:
        """The `Broker` of a node, None while it is still starting."""
        return getattr(node.service, "broker", None)


def _files(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file())
