"""kill -9 of the leading controller, real processes: how soon the next one serves a write."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from batonmq.demo.cluster import LocalCluster
from batonmq.net.client import RemotingClient
from batonmq.net.errors import NetError
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.controller import ApplyBrokerId

ELECTION_S = 1.0
"""jRaftElectionTimeoutMs, as shipped."""


class Writer:
    """Claims one id after the other, at whichever controller takes it."""

    def __init__(self, addresses: list[str]) -> None:
        self.addresses = addresses
        self.claimed = 0
        self.client = RemotingClient(connect_timeout_ms=500)

    async def served(self, within_s: float = 15) -> str:
        """Who served the next write."""
        deadline = time.monotonic() + within_s
        claim = ApplyBrokerId(f"set{self.claimed}", 1, "h:1;1", "c")
        while True:
            for address in self.addresses:
                try:
                    await self.client.call(address, claim, timeout_ms=500)
                except (NetError, MQError):
                    continue
                self.claimed += 1
                return address
            assert time.monotonic() < deadline, "no write was served"
            await asyncio.sleep(0.005)


async def test_a_write_is_served_soon_after_the_leader_was_killed(tmp_path: Path) -> None:
    waits = []
    with LocalCluster(tmp_path, replicas=0, controllers=3) as cluster:
        writer = Writer(cluster.controller_addresses)
        try:
            for _ in range(4):
                address = await writer.served()
                leader = next(p for p in cluster.controller_programs if p.address == address)
                await asyncio.sleep(0.5)
                killed = time.monotonic()
                leader.kill()
                assert await writer.served() != address
                waits.append(time.monotonic() - killed)
                leader.start()
                await asyncio.sleep(0.5)
        finally:
            await writer.client.close()
    # Without the news of a closed connection each takes one to two election timeouts. On a busy machine one
    # may be late; on virtual time none is (tests/simulation/test_controllers.py).
    fastest = sorted(waits)
    assert fastest[1] < 0.9 * ELECTION_S and fastest[2] < 1.5 * ELECTION_S, waits
