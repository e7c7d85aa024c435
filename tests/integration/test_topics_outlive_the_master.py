"""A topic made by an administrator outlives a kill -9 of the master right after its first message."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from batonmq import Message, Producer, QueueReader
from batonmq.client.admin import Admin
from batonmq.demo.cluster import LocalCluster
from batonmq.demo.group import Group
from batonmq.protocol.message import decode_records


async def test_created_sent_and_killed(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path, broker_settings={"mappedFileSizeCommitLog": 16 << 20})
    await asyncio.to_thread(cluster.start)
    group = Group(cluster.controller_addresses, cluster.broker_name)
    try:
        before = await group.wait_for(lambda s: len(s.sync_state_set) == 2, 15, "second replica in sync")
        assert before.master_address is not None
        async with (
            Admin(cluster.namesrv_address) as admin,
            Producer("p", cluster.namesrv_address) as producer,
            QueueReader(cluster.namesrv_address) as reader,
        ):
            await admin.create_topic("Fresh", 3)
            await producer.send(Message("Fresh", b"first"))
            cluster.broker_at(before.master_address).kill()
            began = time.monotonic()
            # A killed master leaves the routes only when the new one has registered.
            while True:
                queues = await reader.queues("Fresh")
                masters = await admin.masters()
                if masters and before.master_address not in masters.values():
                    break
                assert time.monotonic() - began < 10, "the new master is in no route"
                await asyncio.sleep(0.02)
            assert len(queues) == 3
            bodies = [
                message.body
                for queue in queues
                for message in decode_records((await reader.pull(queue, 0)).records)
            ]
            assert bodies == [b"first"]
            await producer.send(Message("Fresh", b"second"))
    finally:
        await group.close()
        await asyncio.to_thread(cluster.stop)
