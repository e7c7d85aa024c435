"""An attacker at the replication port: it claims to be a slave and to have what was never sent to it."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from batonmq.protocol.ha_frames import Ack, SlaveHandshake
from tests.simulation.cluster import HA_PORT, Node, SimCluster

FAR = 1 << 40
"""No log of a story is so long."""


class _Forger(asyncio.Protocol):
    def __init__(self, cluster: SimCluster, broker_id: int) -> None:
        self._cluster, self._broker_id = cluster, broker_id
        self._answered = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(SlaveHandshake(self._broker_id).encode())

    def data_received(self, data: bytes) -> None:
        if not self._answered:
            self._answered = True
            self._transport.write(Ack(0).encode())
            self._cluster.loop.call_later(0.005, self._transport.write, Ack(FAR).encode())

    def connection_lost(self, exc: Exception | None) -> None:
        self._cluster.log("the attacker was refused")


def forge(cluster: SimCluster, master: Node, broker_id: int) -> None:
    """Pose as `broker_id` at the replication port of `master`, and acknowledge everything there will be."""
    cluster.log(f"an attacker at {master.name} claims to be broker id {broker_id}")

    async def connect() -> Any:
        try:
            async with asyncio.timeout(2):
                await cluster.loop.create_connection(
                    lambda: _Forger(cluster, broker_id), master.address, HA_PORT
                )
        except OSError as error:  # TimeoutError is one
            cluster.log(f"the attacker cannot connect: {error!r}")

    cluster.on(cluster.stranger, connect())
