"""A topic that an administrator or a send made is as it was after a kill -9 right after its first message."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from batonmq import Message, Producer, QueueReader
from batonmq.client.admin import Admin
from batonmq.demo.cluster import LocalCluster
from batonmq.demo.group import Group
from batonmq.protocol.message.record import decode_records

OF_A_SEND = 4
"""Queues that a producer asks for; a broker that knows no better makes 8."""


@pytest.mark.parametrize("queues", [pytest.param(3, id="updateTopic"), pytest.param(None, id="send")])
async def test_created_sent_and_killed(tmp_path: Path, queues: int | None) -> None:
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
            if queues is not None:
                await admin.create_topic("Fresh", queues)
            await producer.send(Message("Fresh", b"first"))
            cluster.broker_at(before.master_address).kill()
            began = time.monotonic()
            # A killed master leaves the routes only when the new one has registered.
            while True:
                found = await reader.queues("Fresh")
                masters = await admin.masters()
                if masters and before.master_address not in masters.values():
                    break
                assert time.monotonic() - began < 10, "the new master is in no route"
                await asyncio.sleep(0.02)
            assert len(found) == (queues or OF_A_SEND)
            bodies = [
                message.body
                for queue in found
                for message in decode_records((await reader.pull(queue, 0)).records)
            ]
            assert bodies == [b"first"]
            await producer.send(Message("Fresh", b"second"))
    finally:
        await group.close()
        await asyncio.to_thread(cluster.stop)


async def test_made_by_a_send_and_killed_alone(tmp_path: Path) -> None:
    """The one broker comes back from its disk."""
    cluster = LocalCluster(tmp_path, replicas=1, broker_settings={"mappedFileSizeCommitLog": 16 << 20})
    await asyncio.to_thread(cluster.start)
    try:
        async with (
            Admin(cluster.namesrv_address) as admin,
            Producer("p", cluster.namesrv_address) as producer,
            QueueReader(cluster.namesrv_address) as reader,
        ):
            while not await admin.masters():
                await asyncio.sleep(0.02)
            for number in range(5):
                await producer.send(Message(f"Fresh{number}", b"first"))
            cluster.brokers[0].kill()
            await asyncio.to_thread(cluster.brokers[0].start)
            while not await admin.masters():
                await asyncio.sleep(0.02)
            await producer.send(Message("Fresh0", b"second"))
            assert [len(await reader.queues(f"Fresh{number}")) for number in range(5)] == [OF_A_SEND] * 5
    finally:
        await asyncio.to_thread(cluster.stop)
