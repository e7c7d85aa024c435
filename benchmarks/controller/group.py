"""One group of controllers as processes: ours, or either of Apache RocketMQ's, from the same keys."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from batonmq.demo.cluster import Program
from batonmq.demo.ports import free_ports
from batonmq.net.client import RemotingClient
from batonmq.net.errors import NetError
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers import controller as wire
from benchmarks.clusters import JAVA_START_TIMEOUT_S, PEER

OURS, DLEDGER, JRAFT = "BatonMQ", "Java DLedger", "Java jRaft"
BARE = "no controller"
"""One process that answers at once and does nothing (`bare.py`): what a load comes to at the most."""
OURS_LEASE = "BatonMQ, leases"
"""Ours with `enableLeaseRead`: reads need no round of heartbeats while the leader's lease lasts."""
KINDS = (DLEDGER, JRAFT, OURS, OURS_LEASE, BARE)
LEADER_TIMEOUT_S = 60.0


def processor_s(pid: int) -> float:
    """Seconds of processor time of a process, exact: the ticks of /proc/PID/stat miss short runs."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9


def resident_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


class Group:
    """Three controllers (or `nodes`; one if bare) in `directory`; `settings` are further keys."""

    def __init__(
        self, kind: str, directory: Path, *, nodes: int = 3, settings: Mapping[str, object] | None = None
    ) -> None:
        self.kind = kind
        nodes = 1 if kind == BARE else nodes
        self.addresses: list[str] = []
        self.programs: list[Program] = []
        ports = free_ports(2 * nodes)
        rpc = [f"127.0.0.1:{port}" for port in ports[:nodes]]
        raft = [f"127.0.0.1:{port}" for port in ports[nodes:]]
        for i in range(nodes):
            name = f"controller-{i}"
            keys: dict[str, object] = {"controllerStorePath": directory / name, **(settings or {})}
            if kind == OURS_LEASE:
                keys["enableLeaseRead"] = "true"
            if kind == JRAFT:
                keys |= {
                    "controllerType": "jRaft",
                    "jRaftGroupId": "bench",
                    "jRaftServerId": raft[i],
                    "jRaftInitConf": ",".join(raft),
                    "jRaftControllerRPCAddr": ",".join(rpc),
                }
            else:
                keys |= {
                    "controllerDLegerGroup": "bench",
                    "controllerDLegerPeers": ";".join(f"n{n}-{address}" for n, address in enumerate(rpc)),
                    "controllerDLegerSelfId": f"n{i}",
                }
            program = Program(name, "controller", directory, keys, port=ports[i])
            if kind == BARE:
                program.command = (sys.executable, "-m", "benchmarks.controller.bare", rpc[i])
            elif kind not in (OURS, OURS_LEASE):
                # Each gets its own home directory, for files that no key moves.
                program.command = ("env", f"PEER_USER_HOME={directory / f'home-{i}'}", str(PEER))
                program.start_timeout_s = JAVA_START_TIMEOUT_S
            self.programs.append(program)
            self.addresses.append(rpc[i])

    def start(self) -> None:
        for program in self.programs:
            program.start(wait=False)
        for program in self.programs:
            program.wait_ready()

    def stop(self) -> None:
        for program in self.programs:
            program.kill()

    def at(self, address: str) -> Program:
        return self.programs[self.addresses.index(address)]

    def processor_s(self) -> dict[str, float]:
        """Seconds of processor time so far, by address; a process that is down is left out."""
        pairs = zip(self.addresses, self.programs, strict=True)
        return {address: processor_s(program.pid) for address, program in pairs if program.running}

    async def leader(self) -> str:
        """Address of the leader, once a majority follows it. Raises `TimeoutError`."""
        if self.kind == BARE:
            return self.addresses[0]
        client = RemotingClient()
        deadline = time.monotonic() + LEADER_TIMEOUT_S
        try:
            while time.monotonic() < deadline:
                for address in self.addresses:
                    try:
                        answer = await client.call(address, wire.GetMetadata(), timeout_ms=1000)
                    except (NetError, MQError):
                        continue
                    assert isinstance(answer.header, wire.GetMetadataReply)
                    if answer.header.is_leader:
                        return address
                await asyncio.sleep(0.1)
        finally:
            await client.close()
        raise TimeoutError(f"none of {', '.join(self.addresses)} leads after {LEADER_TIMEOUT_S:.0f} s")


@contextmanager
def running(kind: str, *, nodes: int = 3, settings: Mapping[str, object] | None = None) -> Iterator[Group]:
    """A group that serves; at the end it is killed and deleted."""
    with TemporaryDirectory(prefix="batonmq-bench-") as directory:
        group = Group(kind, Path(directory), nodes=nodes, settings=settings)
        try:
            group.start()
            yield group
        finally:
            group.stop()
