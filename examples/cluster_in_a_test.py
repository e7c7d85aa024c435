"""A test with its own cluster: nothing acknowledged is lost when the master is killed.

Shows `LocalCluster`: a name server, a controller and two brokers as processes on free ports, with their
stores and logs below a directory of the test, and `Group`: what the controllers say of the two brokers.

    pytest examples/cluster_in_a_test.py
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from batonmq import Admin, Message, MessageQueue, Producer, QueueReader
from batonmq.demo.cluster import LocalCluster
from batonmq.demo.group import Group
from batonmq.protocol.message.record import decode_records


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path, replicas=2) as cluster:
        yield cluster


async def stored(namesrv: str, queue: MessageQueue) -> list[bytes]:
    bodies: list[bytes] = []
    async with QueueReader(namesrv) as reader:
        offset = await reader.min_offset(queue)
        while offset < await reader.max_offset(queue):
            pulled = await reader.pull(queue, offset)
            bodies += [message.body for message in decode_records(pulled.records)]
            offset = pulled.next_offset
    return bodies


async def send_through_a_kill(cluster: LocalCluster) -> None:
    namesrv, queue = cluster.namesrv_address, MessageQueue("orders", cluster.broker_name, 0)
    group = Group(cluster.controller_addresses, cluster.broker_name)
    before = await group.wait_for(lambda state: len(state.sync_state_set) == 2, 20, "two replicas in sync")
    master = next(each for each in cluster.brokers if each.address == before.master_address)
    async with Admin(namesrv) as admin:
        await admin.create_topic("orders", queues=1)
    acknowledged: list[bytes] = []
    async with Producer("test", namesrv, send_timeout_ms=20_000, retries=20) as producer:
        for number in range(100):
            if number == 50:
                master.kill()  # SIGKILL; the slave becomes master
            body = b"order %d" % number
            await producer.send(Message("orders", body), queue=queue)
            acknowledged.append(body)
    await group.wait_for(lambda state: state.master_epoch > before.master_epoch, 20, "new master")
    await group.close()
    assert list(dict.fromkeys(await stored(namesrv, queue))) == acknowledged  # a repeated send counts once


def test_nothing_acknowledged_is_lost(cluster: LocalCluster) -> None:
    asyncio.run(send_through_a_kill(cluster))
