"""Timed messages beside RocketMQ: Java's producer on our broker, and one store under both in turns."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from batonmq.broker.config import BrokerConfig
from batonmq.broker.service import BrokerService
from batonmq.broker.timer.layout import UNIT, decode_checkpoint, decode_unit
from batonmq.broker.timer.part import TimerPart
from batonmq.ha.config import HAConfig
from batonmq.net import RemotingClient
from batonmq.protocol.codes import PullSysFlag, ResponseCode
from batonmq.protocol.headers.broker.admin import GetTimerCheckPoint, GetTimerMetrics
from batonmq.protocol.headers.broker.pull import PullMessage
from batonmq.protocol.headers.broker.send import RecallMessage, SendMessageResponse
from batonmq.protocol.message.record import MessageExt, decode_records
from batonmq.store.config import StoreConfig
from tests.integration.broker.rig import v2
from tests.interop.conftest import Peer, free_port

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]
JAVA = Path(__file__).parent / "java"
TOPIC = "Timed"
LOG_FILE = 1 << 26


class Client:
    """Sends and reads timed messages on one broker, whichever program it is."""

    def __init__(self, address: str, client: RemotingClient) -> None:
        self.address = address
        self._client = client

    async def send(self, key: str, **timer: object) -> SendMessageResponse:
        values = {"UNIQ_KEY": key, **timer}
        properties = "".join(f"{name}\1{value}\2" for name, value in values.items())
        header = v2(TOPIC, 0, properties=properties)
        answer = await self._client.call(self.address, header, key.encode(), timeout_ms=15_000)
        assert isinstance(answer.header, SendMessageResponse)
        return answer.header

    async def recall(self, handle: str) -> None:
        await self._client.call(
            self.address, RecallMessage(topic=TOPIC, recall_handle=handle), timeout_ms=15_000
        )

    async def timing(self) -> bytes:
        return bytes((await self._client.call(self.address, GetTimerMetrics(), timeout_ms=15_000)).body)

    async def checkpoint(self) -> bytes:
        return bytes((await self._client.call(self.address, GetTimerCheckPoint(), timeout_ms=15_000)).body)

    async def delivered(self) -> dict[str, MessageExt]:
        """Unique key -> message; fails for one that came twice."""
        found: dict[str, MessageExt] = {}
        offset = 0
        while True:
            header = PullMessage(
                consumer_group="g",
                topic=TOPIC,
                queue_id=0,
                queue_offset=offset,
                max_msg_nums=32,
                sys_flag=PullSysFlag.SUBSCRIPTION,
                commit_offset=0,
                suspend_timeout_millis=0,
                sub_version=0,
                subscription="*",
            )
            answer = await self._client.call(
                self.address,
                header,
                accept=(0, ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_OFFSET_MOVED),
                timeout_ms=15_000,
            )
            if answer.code != 0:
                return found
            for record in decode_records(answer.body):
                assert record.message_id not in found
                found[record.message_id] = record
                offset = record.queue_offset + 1

    async def until_delivered(self, *keys: str, timeout_s: float = 60) -> dict[str, MessageExt]:
        end = time.monotonic() + timeout_s
        while not set(keys) <= (found := await self.delivered()).keys():
            assert time.monotonic() < end, f"of {keys} came {sorted(found)}"
            await asyncio.sleep(0.3)
        return found


def keys_of(root: Path) -> dict[str, object]:
    return {
        "storePathRootDir": root,
        "storePathCommitLog": root / "commitlog",
        "brokerName": "shared",
        "timerWheelEnable": "true",
        "recallMessageEnable": "true",
        "mappedFileSizeTimerLog": LOG_FILE,
        "mappedFileSizeCommitLog": 64 << 20,
        "mappedFileSizeConsumeQueue": 20 * 50_000,
    }


@contextlib.asynccontextmanager
async def our_broker(root: Path, namesrv_addr: str = "") -> AsyncIterator[BrokerService]:
    broker = BrokerService(
        BrokerConfig(
            broker_name="shared",
            namesrv_addr=namesrv_addr,
            listen_port=free_port(),
            bind_address="127.0.0.1",
            broker_ip1="127.0.0.1",
            vip_channel_enabled=False,
            recall_message_enable=True,
            mapped_file_size_timer_log=LOG_FILE,
        ),
        StoreConfig(
            store_path_root_dir=str(root),
            mapped_file_size_commit_log=64 << 20,
            mapped_file_size_consume_queue=20 * 50_000,
            max_hash_slot_num=20_000,
            max_index_num=100_000,
        ),
        HAConfig(),
    )
    await broker.start()
    try:
        yield broker
    finally:
        await broker.stop()


async def warm(client: Client) -> None:
    """A Java broker needs its time for the first message."""
    for _ in range(10):
        with contextlib.suppress(Exception):
            await client.send("warm")
            return
        await asyncio.sleep(1)


def not_early(messages: dict[str, MessageExt], due: dict[str, int]) -> None:
    for key, due_ms in due.items():
        assert int(messages[key].properties["TIMER_DEQUEUE_MS"]) >= due_ms, key


@pytest.mark.parametrize("killed", [pytest.param(False, id="stopped"), pytest.param(True, id="killed")])
async def test_a_store_with_waiting_messages_changes_hands_and_goes_back(
    peer: Peer, tmp_path: Path, killed: bool
) -> None:
    root = tmp_path / "store"
    remoting = RemotingClient()
    java = await peer.start("broker", keys_of(root))
    client = Client(java.address, remoting)
    await warm(client)
    now = int(time.time() * 1000)
    due = {"early": now + 1_500, "java": now + 45_000, "late": now + 200_000, "rolled": now + 250_000_000}
    for key, due_ms in due.items():
        await client.send(key, TIMER_DELIVER_MS=due_ms)
    recalled = await client.send("recalled", TIMER_DELIVER_MS=now + 45_000)
    assert recalled.recall_handle
    await client.recall(recalled.recall_handle)
    await client.until_delivered("early")
    await asyncio.sleep(2.5)  # RocketMQ flushes its wheel every second
    timing = await client.timing()
    if killed:
        java.kill()
    else:
        assert java.terminate() in (0, 143)
    data = (root / "timerlog" / f"{0:020d}").read_bytes()
    units = [decode_unit(data[at : at + UNIT.size]) for at in range(0, 6 * UNIT.size, UNIT.size)]
    assert [unit.encode() if unit else None for unit in units] == [
        data[at : at + UNIT.size] for at in range(0, 6 * UNIT.size, UNIT.size)
    ]
    assert [(unit.roll, unit.recalls) for unit in units if unit] == [
        (False, False),
        (False, False),
        (False, False),
        (True, False),
        (False, False),
        (False, True),
    ]

    async with our_broker(root) as ours:
        client = Client(f"127.0.0.1:{ours.port}", remoting)
        state = ours.part(TimerPart).state
        assert state.queue_offset == 6
        assert state.timers.waiting == 2 + 1 - 0  # java, late, rolled; recalled and its recall cancel out
        assert b'"count":3' in timing and b'"count":3' in await client.timing()
        found = await client.until_delivered("early", "java")
        not_early(found, {"early": due["early"], "java": due["java"]})
        assert "recalled" not in found
        now = int(time.time() * 1000)
        due |= {"ours": now + 40_000, "ours rolled": now + 250_000_000}
        await client.send("ours", TIMER_DELIVER_MS=due["ours"])
        await client.send("ours rolled", TIMER_DELAY_SEC=250_000)
        recalled = await client.send("recalled-by-us", TIMER_DELIVER_MS=now + 40_000)
        assert recalled.recall_handle
        await client.recall(recalled.recall_handle)
        await asyncio.sleep(1)
        ours_checkpoint = decode_checkpoint(await client.checkpoint())

    java = await peer.start("broker", keys_of(root))
    client = Client(java.address, remoting)
    javas_checkpoint = decode_checkpoint(await client.checkpoint())
    assert javas_checkpoint.queue_offset == ours_checkpoint.queue_offset == 10
    found = await client.until_delivered("early", "java", "ours", "late", timeout_s=300)
    not_early(found, {key: due[key] for key in ("early", "java", "ours", "late")})
    assert not {"recalled", "recalled-by-us", "rolled", "ours rolled"} & found.keys()
    assert b'"count":2' in await client.timing()
    await remoting.close()


async def test_javas_producer_on_our_broker(peer: Peer, tmp_path: Path) -> None:
    namesrv = await peer.start("namesrv")
    async with our_broker(tmp_path / "store", namesrv.address):
        output = await peer.java(JAVA / "TimedMessages.java", namesrv.address, TOPIC, "40", timeout_s=180)
    lines = dict(line.split("=", 1) for line in output.splitlines() if "=" in line)
    assert lines.get("complete") == "true", output
    assert int(lines["early"]) == 0
    assert int(lines["recalled_came"]) == 0 and int(lines["recalled"]) > 0
    assert int(lines["worst_ms"]) < 5_000
    assert lines["too_late"] == "13"
