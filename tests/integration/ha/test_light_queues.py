"""Light queues of a broker set: the same on every replica, through kills and switches of the master."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.integration.ha.replica_group import ReplicaGroup

from batonmq import Message, MessageQueue, Producer, QueueReader
from batonmq.admin.operations import groups, messages, topics
from batonmq.admin.session import Admin
from batonmq.common.clock import SystemClock
from batonmq.protocol.codes import PullSysFlag
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker.pull import PullMessage, QueryConsumerOffset, UpdateConsumerOffset
from batonmq.protocol.message.record import decode_records
from batonmq.store.config import StoreConfig
from batonmq.store.consumequeue import UNIT
from batonmq.store.store import MessageStore
from batonmq.store.verify import verify

TOPIC = "Parent"
QUEUES = ("%LMQ%even", "%LMQ%odd", "%LMQ%all")
LMQ = {"enableLmq": "true", "enableMultiDispatch": "true"}


async def produce(group: ReplicaGroup, begin: int, end: int) -> None:
    async with Producer("p", group.cluster.namesrv_address, send_timeout_ms=15_000, retries=20) as producer:
        for number in range(begin, end):
            names = f"{QUEUES[number % 2]},{QUEUES[2]}"
            message = Message(TOPIC, b"%d" % number, properties={"INNER_MULTI_DISPATCH": names})
            await producer.send(message, queue=MessageQueue(TOPIC, group.cluster.broker_name, number % 4))


async def pulled(group: ReplicaGroup, name: str) -> list[bytes]:
    """What the master's light queue holds, in order."""
    bodies: list[bytes] = []
    address = (await group.master()).address
    while True:
        header = PullMessage(
            consumer_group="g",
            topic=name,
            queue_id=0,
            queue_offset=len(bodies),
            max_msg_nums=32,
            sys_flag=PullSysFlag.SUBSCRIPTION,
            commit_offset=0,
            suspend_timeout_millis=0,
            sub_version=0,
            subscription="*",
        )
        try:
            answer = await group.client.call(address, header)
        except MQError:
            return bodies
        found = decode_records(answer.body)
        # Without a gap: the next offset is as far as there are messages.
        bodies += [message.body for message in found]
        assert answer.header.next_begin_offset == len(bodies)


def distinct(bodies: list[bytes]) -> list[int]:
    """Each message once: a producer whose answer got lost sends again."""
    return [int(body) for body in dict.fromkeys(bodies)]


def units(root: Path) -> dict[str, list[tuple[int, int, int]]]:
    """The light queues in the files of a stopped replica, once its whole log is dispatched: a slave does that
    only up to what it knows to be confirmed."""
    config = StoreConfig(
        store_path_root_dir=str(root),
        mapped_file_size_commit_log=16 << 20,
        max_hash_slot_num=10_000,
        max_index_num=40_000,
        enable_lmq=True,
        enable_multi_dispatch=True,
    )
    MessageStore.open(config, SystemClock(), wait_for_confirm=False).close()
    found: dict[str, list[tuple[int, int, int]]] = {}
    for name in QUEUES:
        files = sorted((root / "consumequeue" / name / "0").iterdir())
        found[name] = [unit for path in files for unit in UNIT.iter_unpack(path.read_bytes()) if unit[1]]
    return found


async def test_light_queues_are_the_same_on_all_replicas_through_switches(tmp_path: Path) -> None:
    group = ReplicaGroup(tmp_path / "group", settings=dict(LMQ), replicas=2)
    try:
        await group.up()
        await produce(group, 0, 30)
        first = await group.master()
        first.kill()  # -9, with what the slave may not have dispatched
        sending = asyncio.ensure_future(produce(group, 30, 60))
        await group.in_sync(1)
        await sending
        second = await group.master()
        assert second is not first
        first.start()
        group.pids[first.name] = first.pid
        await group.in_sync(2)
        await group.client.call(
            second.address,
            UpdateConsumerOffset(consumer_group="%LMQ%g", topic=QUEUES[2], queue_id=0, commit_offset=42),
        )
        await asyncio.sleep(4)  # offsets are copied every 3 s
        await group.elect(first)
        await produce(group, 60, 90)
        assert distinct(await pulled(group, QUEUES[0])) == list(range(0, 90, 2))
        assert distinct(await pulled(group, QUEUES[1])) == list(range(1, 90, 2))
        assert distinct(await pulled(group, QUEUES[2])) == list(range(90))
        # Clients and administrators of ours find them, although no name server knows them.
        async with QueueReader(group.cluster.namesrv_address) as reader:
            bodies = [message.body async for message in reader.messages(QUEUES[2])]
        assert distinct(bodies) == list(range(90))
        async with Admin(group.cluster.namesrv_address) as admin:
            (status,) = await topics.status(admin, QUEUES[2])
            assert (status.queue_id, status.min_offset, status.max_offset) == (0, 0, len(bodies))
            shown = await messages.read(admin, QUEUES[2], 1000)
            assert [message.body for message in shown] == bodies
            (progress,) = await groups.progress(admin, "%LMQ%g")
            assert (progress.topic, progress.consumer_offset) == (QUEUES[2], 42)
        asked = QueryConsumerOffset(consumer_group="%LMQ%g", topic=QUEUES[2], queue_id=0)
        assert (await group.client.call(first.address, asked)).header.offset == 42
    finally:
        await group.close()
    one, two = (units(group.cluster.store_path(index)) for index in range(2))
    assert one == two and len(one[QUEUES[2]]) >= 90
    for index in range(2):
        report = verify(group.cluster.store_path(index))
        assert report.ok and not report.waiting, report.errors
