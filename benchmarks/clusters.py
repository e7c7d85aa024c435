"""The two clusters that are compared: Apache RocketMQ's programs and ours, from the same configuration files.

Both have one name server, one controller and two or three brokers in controller mode, where an
acknowledgement waits for the whole SyncStateSet (allAckInSyncStateSet) and fsync is asynchronous. All
processes of a run share one session: Linux's autogroup scheduling halves Java's figures otherwise.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from batonmq import Admin
from batonmq.demo.cluster import LocalCluster
from batonmq.demo.group import Group, GroupState
from batonmq.net.errors import NetError
from batonmq.protocol.errors import MQError

PEER = Path(os.environ.get("PEER_SH", Path(__file__).parents[1] / "tests" / "interop" / "peer.sh"))
JAVA, OURS = "Apache RocketMQ 5.5.0", "BatonMQ"
SYSTEMS = (JAVA, OURS)
SETTINGS = {"flushDiskType": "ASYNC_FLUSH", "enablePropertyFilter": "true", "traceTopicEnable": "true"}
READY_TIMEOUT_S = 60.0
JAVA_START_TIMEOUT_S = 120.0
"""Three JVMs that start at once on two busy processors take more than half a minute."""


@dataclass(frozen=True)
class Sample:
    """A process at one moment; memory in MB (2^20 bytes)."""

    anonymous_mb: float
    cpu_s: float


def sample(pid: int) -> Sample:
    status = Path(f"/proc/{pid}/status").read_text()
    anonymous_kb = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon"))
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return Sample(anonymous_kb / 1024, (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"))


def make_cluster(system: str, directory: Path, *, replicas: int = 2) -> LocalCluster:
    """A cluster of `system`, not started."""
    cluster = LocalCluster(directory, replicas=replicas, broker_settings=SETTINGS)
    if system == JAVA:
        for program in cluster.programs:
            # Each program gets its own home directory, for files that no key moves.
            home = f"PEER_USER_HOME={directory / program.name}"
            program.command = ("env", home, str(PEER))
            program.start_timeout_s = JAVA_START_TIMEOUT_S
        for broker in cluster.brokers:
            ha_port = int(str(broker.settings["listenPort"])) + 1
            broker.settings = {**broker.settings, "haListenPort": ha_port}
    return cluster


@contextmanager
def running(system: str, *, replicas: int = 2) -> Iterator[LocalCluster]:
    """A running cluster of `system` whose replicas are in sync; at the end it is stopped and deleted."""
    with (
        TemporaryDirectory(prefix="batonmq-bench-") as directory,
        make_cluster(system, Path(directory), replicas=replicas) as cluster,
    ):
        asyncio.run(wait_for_group(cluster, in_sync(cluster.replicas)))
        yield cluster


def in_sync(replicas: int) -> Callable[[GroupState], bool]:
    """The group has a master and a SyncStateSet of `replicas` members."""
    return lambda state: state.master_address is not None and len(state.sync_state_set) == replicas


async def wait_for_group(cluster: LocalCluster, condition: Callable[[GroupState], bool]) -> GroupState:
    """The first state of the group for which `condition` holds."""
    group = Group(cluster.controller_addresses, cluster.broker_name)
    try:
        return await group.wait_for(condition, READY_TIMEOUT_S, "group of replicas in sync")
    finally:
        await group.close()


async def create_topic(cluster: LocalCluster, topic: str, queues: int = 8) -> None:
    """Create `topic`, and again until a broker is there to do so."""
    deadline = time.monotonic() + READY_TIMEOUT_S
    async with Admin(cluster.namesrv_address) as admin:
        while True:
            try:
                await admin.create_topic(topic, queues)
                return
            except (NetError, MQError, LookupError):
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.2)
