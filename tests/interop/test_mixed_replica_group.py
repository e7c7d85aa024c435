"""One replica group of a Java broker and ours under our controller: each is master and slave of the other."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
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
from batonmq.protocol.headers.broker.send import SendMessageV2
from batonmq.store.config import StoreConfig
from tests.interop.conftest import JavaProcess

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


def files_of(root: Path) -> list[Path]:
    """The files of the commit log below `root`, the oldest first."""
    return sorted(path for path in (root / "commitlog").iterdir() if path.name.isdigit())


def log_of(root: Path, end: int) -> bytes:
    """The commit log below `root` from its files, from where they begin to `end`."""
    files = files_of(root)
    return b"".join(path.read_bytes() for path in files)[: end - int(files[0].name)]


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


class MixedGroup:
    """A Java broker and ours of one set, started and stopped by the test, under one of our controllers."""

    def __init__(
        self, peer: Any, root: Path, namesrv: str, controller: ControllerService, client: RemotingClient
    ) -> None:
        controllers = controller.config.controller_d_leger_peers.removeprefix("n0-")
        self._peer = peer
        self._client = client
        self._sets = controller.machine.broker_sets
        self.java_root, self.our_root = root / "java", root / "ours"
        our_port, java_port = peer.free_port(), peer.free_port()
        self.our_address, self.java_address = f"127.0.0.1:{our_port}", f"127.0.0.1:{java_port}"
        self._java_config = {
            "brokerName": NAME,
            "brokerId": -1,
            "listenPort": java_port,
            "haListenPort": peer.free_port(),
            "namesrvAddr": namesrv,
            "enableControllerMode": "true",
            "controllerAddr": controllers,
            "storePathRootDir": self.java_root,
            "storePathCommitLog": self.java_root / "commitlog",
            "storePathEpochFile": self.java_root / "epochFileCheckpoint",
            "storePathBrokerIdentity": self.java_root / "brokerIdentity",
            "mappedFileSizeCommitLog": FILE_SIZE,
            "allAckInSyncStateSet": "true",
            "syncBrokerMetadataPeriod": 1000,
            "checkSyncStateSetPeriod": 1000,
        }
        self._our_config = BrokerConfig(
            broker_name=NAME,
            broker_ip1="127.0.0.1",
            bind_address="127.0.0.1",
            listen_port=our_port,
            namesrv_addr=namesrv,
            enable_controller_mode=True,
            controller_addr=controllers,
            all_ack_in_sync_state_set=True,
        )
        self.ours: BrokerService | None = None
        self.sent = 0

    async def start_java(self) -> JavaProcess:
        return await self._peer.start("broker", self._java_config)

    async def start_ours(self, **store: Any) -> BrokerService:
        """`store` are further fields of its `StoreConfig`."""
        self.ours = BrokerService(
            self._our_config,
            StoreConfig(
                store_path_root_dir=str(self.our_root),
                mapped_file_size_commit_log=FILE_SIZE,
                max_hash_slot_num=1000,
                max_index_num=100_000,
                **store,
            ),
            HAConfig(),
        )
        await self.ours.start()
        return self.ours

    async def stop_ours(self) -> None:
        if self.ours is not None:
            await self.ours.stop()
            self.ours = None

    def led_by(self, master: int) -> bool:
        return NAME in self._sets and self._sets[NAME].master_id == master

    def whole(self, master: int) -> bool:
        return self.led_by(master) and self._sets[NAME].sync_state_set == (1, 2)

    async def send_some(self, address: str) -> None:
        """50 messages of 10 kB."""
        for _ in range(50):
            await send(self._client, address, b"message-%04d" % self.sent + bytes(10_000))
            self.sent += 1

    async def same(self, first: int = 0) -> None:
        """Both logs are equal to the byte and have the messages from `first` on, each once."""
        assert self.ours is not None
        end = self.ours.broker.store.max_offset
        await until(
            lambda: log_of(self.java_root, end) == log_of(self.our_root, end), f"equal logs of {end} bytes"
        )
        log = log_of(self.our_root, end)
        assert [log.count(b"message-%04d" % number) for number in range(first, self.sent)] == [1] * (
            self.sent - first
        )


@contextlib.asynccontextmanager
async def mixed_group(peer: Any, root: Path) -> AsyncIterator[MixedGroup]:
    """Its name server and controller run, no broker does yet."""
    async with contextlib.AsyncExitStack() as stack:
        namesrv = NamesrvService(
            NamesrvConfig(bind_address="127.0.0.1", listen_port=0, kv_config_path=str(root / "kv.json"))
        )
        await namesrv.start()
        stack.push_async_callback(namesrv.stop)
        controller = ControllerService(
            ControllerConfig(
                controller_d_leger_group="interop",
                controller_d_leger_peers=f"n0-127.0.0.1:{peer.free_port()}",
                controller_d_leger_self_id="n0",
                controller_store_path=str(root / "controller"),
                bind_address="127.0.0.1",
            )
        )
        await controller.start()
        stack.push_async_callback(controller.stop)
        await until(lambda: controller.leading, "a leading controller")
        client = RemotingClient()
        stack.push_async_callback(client.close)
        group = MixedGroup(peer, root, f"127.0.0.1:{namesrv.port}", controller, client)
        stack.push_async_callback(group.stop_ours)
        yield group


async def test_the_role_goes_to_and_fro_between_java_and_python(peer: Any, tmp_path: Path) -> None:
    async with mixed_group(peer, tmp_path) as group:
        java = await group.start_java()
        await until(lambda: group.led_by(1), "the Java broker is master")
        await group.send_some(group.java_address)
        ours = await group.start_ours()
        took = await until(lambda: group.whole(1), "our broker is in sync with the Java master")
        print(f"our slave in sync with a Java master after {took:.2f} s")
        await group.send_some(group.java_address)
        await group.same()

        for _ in range(2):
            java.kill()
            broker = ours.broker
            took = await until(lambda broker=broker: broker.role.is_master, "our broker has taken over")
            await group.send_some(group.our_address)
            print(f"our broker took over after {took:.3f} s")
            java = await group.start_java()
            took = await until(lambda: group.whole(2), "the Java broker is in sync with our master")
            print(f"Java slave in sync with our master after {took:.2f} s")
            await group.send_some(group.our_address)
            await group.same()

            await group.stop_ours()
            await until(lambda: group.led_by(1), "the Java broker has taken over")
            await group.send_some(group.java_address)
            ours = await group.start_ours()
            await until(lambda: group.whole(1), "our broker is in sync with the Java master again")
            await group.same()
            java_epochs = (group.java_root / "epochFileCheckpoint").read_text().split()[2:]
            our_epochs = (group.our_root / "epochFileCheckpoint").read_text().split()[2:]
            assert java_epochs == our_epochs


async def test_a_new_java_slave_begins_where_the_log_of_our_master_does(peer: Any, tmp_path: Path) -> None:
    """The master's oldest files expired before the slave came; both go on as a pair, either way round."""
    async with mixed_group(peer, tmp_path) as group:
        ours = await group.start_ours()
        await until(lambda: group.led_by(1), "our broker is master")
        for _ in range(12):
            await group.send_some(group.our_address)
        await group.stop_ours()
        ours = await group.start_ours(
            file_reserved_time=0,
            delete_when=";".join(map(str, range(24))),
            delete_file_batch_max=2,
            clean_resource_interval=100,
        )
        await until(lambda: int(files_of(group.our_root)[0].name) > 0, "the oldest files have expired")
        await group.stop_ours()
        ours = await group.start_ours()
        begins = ours.broker.store.min_offset
        assert 0 < begins < ours.broker.store.max_offset - 2 * FILE_SIZE
        await until(lambda: group.led_by(1), "our broker is master again")
        java = await group.start_java()
        took = await until(lambda: group.whole(1), "the Java broker is in sync with our master")
        print(f"Java slave in sync after {took:.2f} s, its log begins at {files_of(group.java_root)[0].name}")
        await group.send_some(group.our_address)
        assert int(files_of(group.java_root)[0].name) == begins
        first = group.sent - 150
        await group.same(first)

        await group.stop_ours()
        await until(lambda: group.led_by(2), "the Java broker has taken over")
        await group.send_some(group.java_address)
        ours = await group.start_ours()
        await until(lambda: group.whole(2), "our broker is in sync with the Java master")
        await group.same(first)
        java.kill()
        await until(lambda: ours.broker.role.is_master, "our broker has taken over")
        await group.send_some(group.our_address)
