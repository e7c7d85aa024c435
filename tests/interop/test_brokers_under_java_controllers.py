"""Two of our brokers under three controllers of RocketMQ, of either kind.

Sends go on through a `kill -9`, a switch by the operator, a slave that hangs (shrink, expand) and the loss of
the leading controller; what was acknowledged is there at the end, in order."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from batonmq.demo.cluster import LocalCluster, Program
from batonmq.net.client import RemotingClient
from tests.interop.conftest import Peer
from tests.interop.live_group import Group, Load, start_controllers

pytestmark = [pytest.mark.interop, pytest.mark.timeout(420)]


@pytest.mark.parametrize("kind", ["DLedger", "jRaft"])
async def test_our_brokers_live_under_their_controllers(peer: Peer, tmp_path: Path, kind: str) -> None:
    controllers = await start_controllers(peer, kind)
    addresses = list(controllers)
    client = RemotingClient()
    settings = {
        "controllerAddr": ";".join(addresses),
        "mappedFileSizeCommitLog": 16 << 20,
        "haMaxTimeSlaveNotCatchup": 3_000,
    }
    cluster = LocalCluster(tmp_path / "ours", replicas=2, controllers=0, broker_settings=settings)
    group = Group(cluster.broker_name, addresses, client)
    load = Load(cluster.namesrv_address)
    try:
        await group.leader()
        await asyncio.to_thread(cluster.start)
        programs: dict[int, Program] = dict(enumerate(cluster.brokers, 1))
        await group.until(lambda master, _, members: master == 1 and members == (1, 2), "both in sync")
        async with load.running():
            await load.grows("at the beginning")

            programs[1].kill()
            await group.until(lambda master, epoch, _: master == 2 and epoch > 1, "the slave is elected")
            await load.grows("after kill -9")
            await asyncio.to_thread(programs[1].start)
            await group.until(lambda _, __, members: members == (1, 2), "the killed one is back in sync")

            programs[1].signal(signal.SIGSTOP)
            await group.until(lambda master, _, members: (master, members) == (2, (2,)), "the set shrinks")
            await load.grows("without the slave that hangs")
            programs[1].signal(signal.SIGCONT)
            await group.until(lambda _, __, members: members == (1, 2), "the set expands")

            leader, name = await group.leader(), cluster.broker_name
            words = f"-a {leader} -c {cluster.cluster_name} -bn {name} -b 1".split()
            done = await peer.admin("electMaster", *words)
            await group.until(
                lambda master, _, members: master == 1 and members == (1, 2), f"a switch: {done}"
            )
            await load.grows("after the switch")

            controllers[await group.leader()].kill()
            await group.until(
                lambda master, _, members: (master, members) == (1, (1, 2)), "the next leader knows"
            )
            await load.grows("under the next leader")
            programs[1].kill()
            await group.until(lambda master, _, __: master == 2, "the next leader elects, too")
            await load.grows("after the second kill -9")

        await load.check()
    finally:
        await client.close()
        await asyncio.to_thread(cluster.stop)
