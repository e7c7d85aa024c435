"""More connections to each peer, for when packets get lost.

TCP waits at least 200 ms before it repeats a lost segment, and longer when that is lost, too. All that is
sent meanwhile waits behind it. A leader that is not answered for an election timeout gives up, so over one
connection 30 % loss is enough to stop a Raft group. Raft takes messages in any order and more than once, so
they may go any way, and several ways at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from batonmq.net.client import RemotingClient
from batonmq.net.connection import Connection
from batonmq.net.errors import NetError
from batonmq.protocol.registry import Header

log = logging.getLogger(__name__)

LOSSY_S: Final = 5.0
"""How long a path counts as one that loses packets, after TCP had to repeat one."""
_RETRY_S: Final = 0.2
"""Pause after a failed attempt to connect."""


class SpareConnections:
    """One to each peer from each of `clients`; without clients there are none."""

    def __init__(self, clients: Sequence[RemotingClient]) -> None:
        self._clients = clients
        self._kept: dict[str, list[asyncio.Task[None]]] = {}
        self._lossy_until_s: dict[str, float] = {}
        """Address → loop time."""

    def keeps(self, address: str) -> bool:
        """Whether `keep` was called since the last `drop`."""
        return address in self._kept

    def keep(self, address: str, header: Header, greeting: bytes) -> None:
        """Keep connections to `address` open from now on. `greeting`: a body that says nothing."""
        loop = asyncio.get_running_loop()
        self._kept[address] = [
            loop.create_task(_keep(client, address, header, greeting)) for client in self._clients
        ]

    def drop(self, address: str) -> None:
        """Close the connections to a peer that is no longer there."""
        for task in self._kept.pop(address, []):
            task.cancel()
        for client in self._clients:
            client.drop(address)
        self._lossy_until_s.pop(address, None)

    def loses(self, address: str) -> None:
        """TCP repeats a segment on the way to `address`."""
        if address not in self._lossy_until_s:
            log.info("packets to %s get lost: more connections are used", address)
        self._lossy_until_s[address] = asyncio.get_running_loop().time() + LOSSY_S

    def lossy(self, address: str) -> bool:
        """Whether TCP had to repeat a segment in the last `LOSSY_S`."""
        until_s = self._lossy_until_s.get(address)
        if until_s is None:
            return False
        if asyncio.get_running_loop().time() <= until_s:
            return True
        del self._lossy_until_s[address]
        return False

    def ways(self, address: str) -> list[Connection]:
        """The open connections to `address` on which nothing waits."""
        if address not in self._kept:
            return []
        ways = []
        for client in self._clients:
            connection = client.connected(address)
            if connection is None:
                continue
            if connection.retransmitting():
                self.loses(address)
            elif not connection.congested:
                ways.append(connection)
        return ways

    async def close(self) -> None:
        """Close all."""
        tasks = [task for each in self._kept.values() for task in each]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(client.close() for client in self._clients))


async def _keep(client: RemotingClient, address: str, header: Header, greeting: bytes) -> None:
    while True:
        try:
            await client.oneway(address, header, greeting)
            await client.lost(address)
        except NetError as error:
            log.debug("spare connection to %s: %s", address, error)
        await asyncio.sleep(_RETRY_S)
