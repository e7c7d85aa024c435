"""One replica group of a Java broker and ours under our controller: each is master and slave of the other."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from batonmq.broker.config import BrokerConfig
from batonmq.broker.service import BrokerService
from batonmq.controller.config import ControllerConfig
from batonmq.controller.service import ControllerService
from batonmq.ha.config import HAConfig
from batonmq.namesrv.config import NamesrvConfig
from batonmq.namesrv.service import NamesrvService
from batonmq.net.client import RemotingClient
from batonmq.net.errors import NetError
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker import SendMessageV2
from batonmq.store.config import StoreConfig

pytestmark = [pytest.mark.interop, pytest.mark.timeout(420)]

NAME = "mixed"
FILE_SIZE = 1 << 20


async def until(condition: Any, what: str, timeout_s: float = 60) -> float:
    """Waits for a condition; returns how long it took, s."""
    started = time.monotonic()
    while not condition():
        if time.monotonic() - started > timeout_s:
            pytest.fail(f"not within {timeout_s} s: {what}")
        await asyncio.sleep(0.005)
    return time.monotonic() - started


def log_of(root: Path, end: int) -> bytes:
    """The first `end` bytes of the commit log below `root`, from its files."""
    files = sorted(path for path in (root / "commitlog").iterdir() if path.name.isdigit())
    assert int(files[0].name) == 0
    return b"".join(path.read_bytes() for path in files)[:end]


async def send(client: RemotingClient, address: str, body: bytes) -> None:
    """Send until it is acknowledged: the master may just be changing."""
    deadline = time.monotonic() + 30
    while True:
        header = SendMessageV2(
            producer_group="p",
            topic="T",
            default_topic="TBW102",
            default_topic_queue_nums=1,
            queue_id=0,
            sys_flag=0,
            born_timestamp=int(time.time() * 1000),
            flag=0,
            properties=f"UNIQ_KEY\x01K{time.monotonic_ns()}\x02",
        )
        try:
            await client.call(address, header, body, timeout_ms=5000)
            return
        except (NetError, MQError) as error:
            if time.monotonic() > deadline:
                pytest.fail(f"cannot send to {address}: {error}")
            await asyncio.sleep(0.05)


async def test_the_role_goes_to_and_fro_between_java_and_python(peer: Any, tmp_path: Path) -> None:
    namesrv = NamesrvService(
        NamesrvConfig(bind_address="127.0.0.1", listen_port=0, kv_config_path=str(tmp_path / "kv.json"))
    )
    await namesrv.start()
    controller_port = peer.free_port()
    controllers = f"127.0.0.1:{controller_port}"
    controller = ControllerService(
        ControllerConfig(
            controller_d_leger_group="interop",
            controller_d_leger_peers=f"n0-{controllers}",
            controller_d_leger_self_id="n0",
            controller_store_path=str(tmp_path / "controller"),
            bind_address="127.0.0.1",
        )
    )
    await controller.start()
    client = RemotingClient()
    sets = controller.machine.broker_sets
    java_root, our_root = tmp_path / "java", tmp_path / "ours"
    our_port, java_port = peer.free_port(), peer.free_port()
    our_address, java_address = f"127.0.0.1:{our_port}", f"127.0.0.1:{java_port}"
    java_config = {
        "brokerName": NAME,
        "brokerId": -1,
        "listenPort": java_port,
        "haListenPort": peer.free_port(),
        "namesrvAddr": f"127.0.0.1:{namesrv.port}",
        "enableControllerMode": "true",
        "controllerAddr": controllers,
        "storePathRootDir": java_root,
        "storePathCommitLog": java_root / "commitlog",
        "storePathEpochFile": java_root / "epochFileCheckpoint",
        "storePathBrokerIdentity": java_root / "brokerIdentity",
        "mappedFileSizeCommitLog": FILE_SIZE,
        "allAckInSyncStateSet": "true",
        "syncBrokerMetadataPeriod": 1000,
        "checkSyncStateSetPeriod": 1000,
    }
    ours: BrokerService | None = None

    async def start_ours() -> BrokerService:
        service = BrokerService(
            BrokerConfig(
                broker_name=NAME,
                broker_ip1="127.0.0.1",
                bind_address="127.0.0.1",
                listen_port=our_port,
                namesrv_addr=f"127.0.0.1:{namesrv.port}",
                enable_controller_mode=True,
                controller_addr=controllers,
                all_ack_in_sync_state_set=True,
            ),
            StoreConfig(
                store_path_root_dir=str(our_root),
                mapped_file_size_commit_log=FILE_SIZE,
                max_hash_slot_num=1000,
                max_index_num=100_000,
            ),
            HAConfig(),
        )
        await service.start()
        return service

    def whole(master: int) -> bool:
        return NAME in sets and sets[NAME].master_id == master and sets[NAME].sync_state_set == (1, 2)

    async def same(count: int) -> None:
        assert ours is not None
        end = ours.broker.store.max_offset
        await until(lambda: log_of(java_root, end) == log_of(our_root, end), f"equal logs of {end} bytes")
        log = log_of(our_root, end)
        assert [log.count(b"message-%04d" % number) for number in range(count)] == [1] * count

    sent = 0

    async def send_some(address: str) -> None:
        nonlocal sent
        for _ in range(50):
            await send(client, address, b"message-%04d" % sent + bytes(10_000))
            sent += 1

    try:
        await until(lambda: controller.leading, "a leading controller")
        java = await peer.start("broker", java_config)
        await until(lambda: NAME in sets and sets[NAME].master_id == 1, "the Java broker is master")
        await send_some(java_address)
        ours = await start_ours()
        took = await until(lambda: whole(1), "our broker is in sync with the Java master")
        print(f"our slave in sync with a Java master after {took:.2f} s")
        await send_some(java_address)
        await same(sent)

        for _ in range(2):
            java.kill()
            broker = ours.broker
            took = await until(lambda broker=broker: broker.role.is_master, "our broker has taken over")
            await send_some(our_address)
            print(f"our broker took over after {took:.3f} s")
            java = await peer.start("broker", java_config)
            took = await until(lambda: whole(2), "the Java broker is in sync with our master")
            print(f"Java slave in sync with our master after {took:.2f} s")
            await send_some(our_address)
            await same(sent)

            await ours.stop()
            ours = None
            await until(lambda: sets[NAME].master_id == 1, "the Java broker has taken over")
            await send_some(java_address)
            ours = await start_ours()
            await until(lambda: whole(1), "our broker is in sync with the Java master again")
            await same(sent)
            assert ours.broker.ha is not None
            java_epochs = (java_root / "epochFileCheckpoint").read_text().split()[2:]
            our_epochs = (our_root / "epochFileCheckpoint").read_text().split()[2:]
            assert java_epochs == our_epochs
    finally:
        await client.close()
        if ours is not None:
            await ours.stop()
        await controller.stop()
        await namesrv.stop()
