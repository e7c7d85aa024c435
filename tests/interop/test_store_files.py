"""One store directory under RocketMQ's broker and under ours, in turns: files, offsets, index, recovery."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from batonmq import Message, MessageExt, Producer, QueueReader
from batonmq.common.clock import SystemClock
from batonmq.protocol.message.ids import pack_host
from batonmq.protocol.message.properties import encode_properties
from batonmq.protocol.message.record import StoredMessage, decode_record, decode_records
from batonmq.store.config import StoreConfig
from batonmq.store.store import MessageStore, PutStatus
from batonmq.store.verify import verify
from tests.interop.conftest import Peer

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]
JAVA = Path(__file__).parent / "java"
FILE_SIZE = 1 << 20
SIZES = {
    "mappedFileSizeCommitLog": FILE_SIZE,
    "mapedFileSizeCommitLog": FILE_SIZE,
    "mappedFileSizeConsumeQueue": 20 * 1000,
    "mapedFileSizeConsumeQueue": 20 * 1000,
}
TOPIC = "Shared"


def open_store(root: Path) -> MessageStore:
    config = StoreConfig(
        store_path_root_dir=str(root),
        mapped_file_size_commit_log=FILE_SIZE,
        mapped_file_size_consume_queue=20 * 1000,
        max_hash_slot_num=20_000,
        max_index_num=100_000,
    )
    return MessageStore.open(config, SystemClock(), wait_for_confirm=False)


def stored(store: MessageStore) -> dict[int, list[MessageExt]]:
    found: dict[int, list[MessageExt]] = {}
    for topic, queue_id in store.queues():
        if topic != TOPIC:
            continue
        bounds = store.queue_bounds(topic, queue_id)
        at = bounds.min_offset
        messages = found.setdefault(queue_id, [])
        while at < bounds.max_offset:
            result = store.get(topic, queue_id, at, 32)
            for view in result.buffers:
                messages += decode_records(view, check_crc=True)
            at = result.next_offset
        assert [m.queue_offset for m in messages] == list(range(bounds.min_offset, bounds.max_offset))
    return found


def ours(count: int, queues: int = 4) -> Iterator[StoredMessage]:
    for n in range(count):
        yield StoredMessage(
            topic=TOPIC,
            queue_id=n % queues,
            body=b"ours %d " % n + bytes(n % 700),
            properties=encode_properties(
                {"KEYS": f"ours{n}", "TAGS": "even" if n % 2 == 0 else "odd", "UNIQ_KEY": f"{n:032X}"}
            ),
            born_timestamp=SystemClock().now_ms(),
            store_host=pack_host("127.0.0.1", 10911),
        )


async def read_back(namesrv: str) -> dict[int, list[MessageExt]]:
    found: dict[int, list[MessageExt]] = {}
    async with QueueReader(namesrv) as reader:
        for queue in await reader.queues(TOPIC):
            messages = found.setdefault(queue.queue_id, [])
            offset, end = await reader.min_offset(queue), await reader.max_offset(queue)
            while offset < end:
                pulled = await reader.pull(queue, offset)
                messages += decode_records(pulled.records, check_crc=True)
                assert pulled.next_offset > offset
                offset = pulled.next_offset
    return found


def bodies(found: dict[int, list[MessageExt]]) -> dict[int, list[bytes]]:
    return {queue: [message.body for message in messages] for queue, messages in found.items() if messages}


@pytest.mark.parametrize("killed", [pytest.param(False, id="stopped"), pytest.param(True, id="killed-quick")])
async def test_a_store_changes_hands_and_goes_back(peer: Peer, tmp_path: Path, killed: bool) -> None:
    root = tmp_path / "store"
    keys = {
        **SIZES,
        "storePathRootDir": root,
        "storePathCommitLog": root / "commitlog",
        "brokerName": "shared",
    }
    namesrv = await peer.start("namesrv")
    broker = await peer.start("broker", {**keys, "namesrvAddr": namesrv.address})
    await peer.admin_until(broker.address, "clusterList", "-n", namesrv.address)
    async with Producer("p", namesrv.address) as producer:
        for n in range(0, 3000, 30):
            await producer.send(
                [
                    Message(TOPIC, b"java %d " % i + bytes(i % 500), tags="t", keys=[f"java{i}"])
                    for i in range(n, n + 30)
                ]
            )
        for n in range(3000, 3100):
            await producer.send(Message(TOPIC, b"java %d" % n, tags="t", keys=[f"java{n}"]))
    if killed:
        broker.kill()
    else:
        assert broker.terminate() in (0, 143)

    store = open_store(root)
    before = stored(store)
    assert sorted(b.split()[1] for q in bodies(before).values() for b in q) == sorted(
        b"%d" % n for n in range(3100)
    )
    for n in (0, 1234, 3099):
        found = store.query_by_key(TOPIC, f"java{n}", 4).records
        assert [decode_record(record).body.split()[1] for record in found] == [b"%d" % n]
    results = store.put(list(ours(1500)))
    assert {result.status for result in results} == {PutStatus.PUT_OK}
    both = bodies(stored(store))
    if killed:
        store.flush_queues()
        store.abandon()
    else:
        store.close()
    report = verify(root)
    assert (report.ok, report.waiting) == (True, 0), report

    broker = await peer.start("broker", {**keys, "namesrvAddr": namesrv.address})
    await peer.admin_until(broker.address, "clusterList", "-n", namesrv.address)
    await peer.admin_until(broker.address, "topicRoute", "-n", namesrv.address, "-t", TOPIC)
    assert bodies(await read_back(namesrv.address)) == both
    output = await peer.admin("queryMsgByKey", "-n", namesrv.address, "-t", TOPIC, "-k", "ours1499")
    assert f"{1499:032X}" in output
    async with Producer("p", namesrv.address) as producer:
        await producer.send(Message(TOPIC, b"java again"))
    broker.kill()
    store = open_store(root)
    assert b"java again" in [body for queue in bodies(stored(store)).values() for body in queue]
    store.close()
    assert verify(root).ok


async def test_rocketmq_opens_a_store_of_ours(peer: Peer, tmp_path: Path) -> None:
    root = tmp_path / "store"
    store = open_store(root)
    store.put(list(ours(2000)))
    expected = bodies(stored(store))
    end = store.max_offset
    store.close()
    assert end > FILE_SIZE / 2
    namesrv = await peer.start("namesrv")
    keys = {
        **SIZES,
        "storePathRootDir": root,
        "storePathCommitLog": root / "commitlog",
        "brokerName": "shared",
    }
    broker = await peer.start("broker", {**keys, "namesrvAddr": namesrv.address})
    await peer.admin_until(broker.address, "clusterList", "-n", namesrv.address)
    await peer.admin(
        "updateTopic", "-n", namesrv.address, "-b", broker.address, "-t", TOPIC, "-r", "4", "-w", "4"
    )
    await peer.admin_until(broker.address, "topicRoute", "-n", namesrv.address, "-t", TOPIC)
    assert bodies(await read_back(namesrv.address)) == expected
    output = await peer.admin("queryMsgByKey", "-n", namesrv.address, "-t", TOPIC, "-k", "ours7")
    assert f"{7:032X}" in output


async def test_the_golden_bytes_are_what_rocketmq_makes_today(peer: Peer, tmp_path: Path) -> None:
    await peer.java(JAVA / "MessageBytes.java", str(tmp_path))
    golden = Path(__file__).parents[1] / "data/message"
    names = sorted(path.name for path in golden.iterdir())
    made = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.name in names}
    assert made == {name: (golden / name).read_bytes() for name in names}
