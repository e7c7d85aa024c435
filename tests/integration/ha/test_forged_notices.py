"""Any client can send a broker a notice of another master: no broker changes its role because of it."""

from __future__ import annotations

import asyncio
import time

from tests.integration.ha.replica_group import ReplicaGroup, ha_address

from batonmq.net import RemotingClient
from batonmq.protocol.bodies.controller import SyncStateSetBody
from batonmq.protocol.headers.broker.replication import ExchangeHAInfo
from batonmq.protocol.headers.controller import NotifyBrokerRoleChanged

ROLES = ("replicating as slave", "master epoch=")
"""Log lines about a change of the role."""


async def forge(group: ReplicaGroup) -> None:
    """Until cancelled: send all replicas, over and over, that each of them is master, or an unknown broker
    is."""
    client = RemotingClient()
    ids = await group.ids()
    claims = [*ids.items(), ("127.0.0.1:9", 77)]
    epoch = 1_000
    try:
        while True:
            for address, broker_id in claims:
                epoch += 1
                notice = NotifyBrokerRoleChanged(address, epoch, 1, broker_id)
                body = SyncStateSetBody((broker_id,), 1).encode()
                forged = ExchangeHAInfo(master_ha_address="127.0.0.1:9", master_address=address)
                for broker in group.cluster.brokers:
                    await client.call(broker.address, notice, body)
                    await client.call(broker.address, forged)
    finally:
        await client.close()


async def test_forged_notices_change_nothing_and_delay_no_true_one(group: ReplicaGroup) -> None:
    master = await group.master()
    (slave,) = (broker for broker in group.cluster.brokers if broker is not master)
    before = {
        broker.name: [len(group.lines(broker, word)) for word in ROLES] for broker in group.cluster.brokers
    }
    info = await group.info()
    forging = asyncio.create_task(forge(group))
    try:
        for _ in range(4):
            await group.send(20, 1000)
            await asyncio.sleep(0.2)
        after = {
            broker.name: [len(group.lines(broker, word)) for word in ROLES]
            for broker in group.cluster.brokers
        }
        assert after == before
        assert await group.info() == info
        status = await group.ha_status(slave)
        assert status.ha_client_runtime_info.master_addr == ha_address(master)
        began = time.monotonic()
        await group.elect(slave)
        assert time.monotonic() - began < 3, "a true notice gets through among them"
        await group.send(20, 1000)
    finally:
        forging.cancel()
        await asyncio.gather(forging, return_exceptions=True)
    await group.check()
