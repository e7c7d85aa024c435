"""A slave that hangs while the master is under full load: what it costs the master, and how it comes back."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.integration.group import anonymous_mib
from tests.integration.ha.replica_group import ReplicaGroup, commit_log, eventually

from batonmq import Message, MessageQueue, NotSafelyStored, Producer, QueueReader
from batonmq.demo.cluster import Program
from batonmq.protocol.message.record import decode_records
from batonmq.store.verify import verify

MIB = 1 << 20
BODY = 64 * 1024
SENDERS = 4
TOPIC = "Load"

# What a link may hold back: haSendBufferSize (1 MiB) and one frame (haTransferBatchSize, 256 KiB).
LINK_MIB = 1.25
ALLOWED_MIB = 8
"""For that and for the load itself: requests that came in one turn of the loop, the allocator's slack."""


@pytest.fixture
async def group(tmp_path: Path) -> AsyncIterator[ReplicaGroup]:
    # On a slow machine the load takes longer than a silent link is kept.
    made = ReplicaGroup(tmp_path / "group", replicas=2, settings={"haHousekeepingInterval": 120_000})
    await made.up()
    yield made
    await made.close()


class Load:
    """`SENDERS` senders, each with its queue and one message under way; keeps what was acknowledged."""

    def __init__(self, group: ReplicaGroup) -> None:
        self._group = group
        self._filling = os.urandom(BODY - 16)
        self._sent = [0] * SENDERS
        self.acked: list[list[int]] = [[] for _ in range(SENDERS)]

    def _queue(self, number: int) -> MessageQueue:
        return MessageQueue(TOPIC, self._group.cluster.broker_name, number)

    async def send(self, mib: int) -> None:
        """So many MiB, as fast as they are answered."""
        namesrv = self._group.cluster.namesrv_address

        async def sender(number: int, producer: Producer) -> None:
            for _ in range(mib * MIB // BODY // SENDERS):
                self._sent[number] += 1
                body = self._sent[number].to_bytes(16, "big") + self._filling
                try:
                    await producer.send(Message(TOPIC, body), queue=self._queue(number))
                except NotSafelyStored:
                    continue  # those under way when the slave stopped, slaveTimeout later
                self.acked[number].append(self._sent[number])

        async with Producer("load", namesrv, send_timeout_ms=20_000, compress_over=0) as producer:
            await asyncio.gather(*(sender(number, producer) for number in range(SENDERS)))

    async def stored(self, number: int) -> list[int]:
        """What the queue holds, in order."""
        found: list[int] = []
        async with QueueReader(self._group.cluster.namesrv_address) as reader:
            queue = self._queue(number)
            offset, end = 0, await reader.max_offset(queue)
            while offset < end:
                pulled = await reader.pull(queue, offset)
                found += [
                    int.from_bytes(record.body[:16], "big") for record in decode_records(pulled.records)
                ]
                offset = pulled.next_offset
        return found


@dataclass
class Highest:
    """What was seen at most."""

    anonymous_mib: float
    unsent: int = 0
    """Bytes."""


def kernel_bytes(name: str) -> int:
    """The most that the kernel lets a socket's buffer grow to."""
    return int(Path(f"/proc/sys/net/ipv4/{name}").read_text().split()[2])


def unsent(program: Program) -> int:
    """Bytes in the kernel's send buffers of a broker's replication port."""
    port = int(str(program.settings["listenPort"])) + 1
    queued = 0
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, _, _, queues, *_ = line.split()
        if int(local.rpartition(":")[2], 16) == port:
            queued += int(queues.partition(":")[0], 16)
    return queued


@contextlib.asynccontextmanager
async def watched(program: Program) -> AsyncIterator[Highest]:
    """Looks at the master's memory and at what its kernel holds for the slave, many times a second."""
    highest = Highest(anonymous_mib(program.pid))

    async def watch() -> None:
        while True:
            highest.anonymous_mib = max(highest.anonymous_mib, anonymous_mib(program.pid))
            highest.unsent = max(highest.unsent, unsent(program))
            await asyncio.sleep(0.02)

    watching = asyncio.create_task(watch())
    try:
        yield highest
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def test_a_slave_that_hangs_under_load_costs_bounded_memory_and_catches_up(group: ReplicaGroup) -> None:
    load = Load(group)
    master = await group.master()
    (slave,) = (broker for broker in group.cluster.brokers if broker is not master)
    await load.send(32)  # the buffers of the load itself are there
    before = anonymous_mib(master.pid)
    async with watched(master) as highest:
        loading = asyncio.create_task(load.send(16))
        await asyncio.sleep(0.05)
        slave.signal(signal.SIGSTOP)
        try:
            began = time.monotonic()
            await loading
            alone_s = time.monotonic() - began
            await group.in_sync(1)
            await load.send(160)
            (link,) = (await group.ha_status(master)).ha_connection_info
        finally:
            slave.signal(signal.SIGCONT)
        grown_mib = highest.anonymous_mib - before
        assert grown_mib < ALLOWED_MIB
        assert alone_s < 8, "until the master went on alone"
        assert highest.unsent <= kernel_bytes("tcp_wmem") + MIB
        # The log is sent from its mapped file, so what is queued for a slave is hardly anonymous memory.
        handed = link.transfer_from_where - link.slave_ack_offset
        assert handed > 0, "the link stood"
        assert link.diff > 150 * MIB
        assert handed <= LINK_MIB * MIB + kernel_bytes("tcp_wmem") + kernel_bytes("tcp_rmem")
        began = time.monotonic()
        await group.in_sync(2)
        in_sync_s = time.monotonic() - began
        assert highest.anonymous_mib - before < ALLOWED_MIB, "while the slave caught up"
    print(
        f"memory +{grown_mib:.1f} MiB, handed over {handed / MIB:.1f} MiB, kernel {highest.unsent / MIB:.1f} "
        f"MiB, alone after {alone_s:.1f} s, in sync {in_sync_s:.1f} s after SIGCONT"
    )
    for number in range(SENDERS):
        stored, acked = await load.stored(number), load.acked[number]
        assert stored == sorted(set(stored)) and set(acked) <= set(stored)
        assert len(stored) - len(acked) <= 1, "one of each sender was under way"
    await group.check()
    stores = [group.cluster.store_path(number) for number in range(2)]
    await eventually(lambda: len({verify(store).end_offset for store in stores}) == 1, "logs of one length")
    assert verify(stores[0]).end_offset > 200 * MIB
    assert commit_log(stores[0]) == commit_log(stores[1])
