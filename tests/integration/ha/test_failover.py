"""A controller and two brokers in this process, on real sockets and disks: the master role is handed over."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from batonmq.broker.config import BrokerConfig
from batonmq.broker.messages.part import MessagesPart
from batonmq.broker.replica.part import ReplicaPart
from batonmq.broker.replica.replicas_manager import ReplicasManager
from batonmq.broker.replica.slave_sync import RemoteMaster
from batonmq.broker.service import BrokerService
from batonmq.controller.config import ControllerConfig
from batonmq.controller.service import ControllerService
from batonmq.demo.ports import free_ports
from batonmq.ha.config import HAConfig
from batonmq.net.client import RemotingClient
from batonmq.net.errors import ConnectionLost, NetError
from batonmq.protocol.bodies.groups import SubscriptionGroupConfig
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker.pull import GetAllConsumerOffset, UpdateConsumerOffset
from batonmq.protocol.headers.broker.send import SendMessageV2
from batonmq.protocol.headers.broker.topics import CreateTopic, DeleteTopic, UpdateSubscriptionGroup
from batonmq.protocol.headers.controller import CleanBrokerData
from batonmq.protocol.json import encode
from batonmq.protocol.registry import Header
from batonmq.store.config import StoreConfig


async def until(condition: Callable[[], object], timeout: float = 10.0) -> None:
    async with asyncio.timeout(timeout):
        while not condition():
            await asyncio.sleep(0.002)


def manager(service: BrokerService) -> ReplicasManager:
    found = service.part(ReplicaPart).manager
    assert found is not None
    return found


class Cluster:
    """One controller, brokers 0 and 1 of one group, and a client."""

    def __init__(self, root: Path, brokers: int = 2) -> None:
        self.root = root
        self.ports = free_ports(1 + 2 * brokers)
        self.controller_address = f"127.0.0.1:{self.ports[0]}"
        self.controller: ControllerService | None = None
        self.brokers: dict[int, BrokerService] = {}
        self.client = RemotingClient()

    async def start_controller(self) -> None:
        self.controller = ControllerService(
            ControllerConfig(
                controller_d_leger_group="g",
                controller_d_leger_peers=f"n0-{self.controller_address}",
                controller_d_leger_self_id="n0",
                controller_store_path=str(self.root / "controller"),
                bind_address="127.0.0.1",
                j_raft_election_timeout_ms=200,
            )
        )
        await self.controller.start()

    async def start(self, number: int, *, learner: bool = False, **keys: object) -> BrokerService:
        config = BrokerConfig(
            broker_name="b",
            broker_ip1="127.0.0.1",
            bind_address="127.0.0.1",
            listen_port=self.ports[1 + 2 * number],
            vip_channel_enabled=False,
            enable_controller_mode=True,
            controller_addr=self.controller_address,
            **{"all_ack_in_sync_state_set": True, **keys},
        )
        store = StoreConfig(
            store_path_root_dir=str(self.root / f"store{number}"),
            mapped_file_size_commit_log=1 << 20,
            max_hash_slot_num=1000,
            max_index_num=5000,
        )
        ha = HAConfig(ha_listen_port=self.ports[2 + 2 * number], async_learner=learner)
        service = self.brokers[number] = BrokerService(config, store, ha)
        await service.start()
        return service

    async def kill(self, number: int) -> None:
        """As kill -9: connections break, nothing is flushed, the lock goes with the process."""
        service = self.brokers.pop(number)
        broker = service.broker
        broker.role.stopping = True
        broker.tables.persistence.abandon()
        for part in reversed(service._parts):
            await part.withdraw()
            part.role_ending()
        await service._close_ports()
        await broker.client.close()
        for part in reversed(service._parts):
            if not isinstance(part, MessagesPart):  # which would flush
                await part.stop()
        messages = service.part(MessagesPart)
        await messages.new_topics.stop()
        if broker.appender._flush_timer is not None:
            broker.appender._flush_timer.cancel()
        broker.store.abandon()

    @property
    def master(self) -> int | None:
        for number, service in self.brokers.items():
            if service.broker.role.is_master:
                return number
        return None

    def members(self) -> frozenset[int]:
        assert self.master is not None
        ha = self.brokers[self.master].broker.replication
        assert ha is not None
        return frozenset() if ha.tracker is None else ha.tracker.agreed.members

    async def whole(self) -> None:
        await until(lambda: self.master is not None and len(self.members()) == len(self.brokers))

    async def send(self, body: bytes, number: int | None = None, topic: str = "T") -> None:
        number = self.master if number is None else number
        assert number is not None
        header = SendMessageV2(
            producer_group="p",
            topic=topic,
            default_topic="TBW102",
            default_topic_queue_nums=1,
            queue_id=0,
            sys_flag=0,
            born_timestamp=1,
            flag=0,
        )
        await self.client.call(f"127.0.0.1:{self.ports[1 + 2 * number]}", header, body, timeout_ms=5000)

    def log(self, number: int) -> bytes:
        store, offset, parts = self.brokers[number].broker.store, 0, []
        while offset < store.max_offset:
            view = bytes(store.read(offset, 1 << 20))
            parts.append(view)
            offset += len(view)
        return b"".join(parts)

    async def equal(self) -> None:
        master = self.master
        assert master is not None
        end = self.brokers[master].broker.store.max_offset
        await until(lambda: all(s.broker.store.max_offset == end for s in self.brokers.values()))
        assert len({self.log(number) for number in self.brokers}) == 1


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    made = Cluster(tmp_path)
    await made.start_controller()
    yield made
    await made.client.close()
    for number in list(made.brokers):
        await made.kill(number)
    if made.controller is not None:
        await made.controller.stop()


async def test_two_brokers_find_their_roles_and_replicate(cluster: Cluster) -> None:
    await cluster.start(0)
    await cluster.start(1)
    await cluster.whole()
    await cluster.send(b"hello")
    assert cluster.master is not None
    store = cluster.brokers[cluster.master].broker.store
    assert store.confirm_offset == store.max_offset > 0
    await cluster.equal()
    identity = (cluster.root / "store0" / "brokerIdentity").read_text()
    assert identity.startswith("DefaultCluster#b#")


async def test_a_learner_that_is_there_first_leaves_the_group_to_others(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    learner = await cluster.start(0, learner=True)
    await until(lambda: "has no master: this replica is a learner" in caplog.text)
    assert cluster.master is None
    await cluster.start(1)
    await until(lambda: cluster.master == 1)
    await cluster.send(b"hello")
    await cluster.equal()
    assert cluster.members() == {2}
    await cluster.kill(1)
    await asyncio.sleep(0.3)
    assert not learner.broker.role.is_master


async def test_the_slave_takes_over_and_the_killed_master_returns(cluster: Cluster) -> None:
    await cluster.start(0)
    await cluster.start(1)
    await cluster.whole()
    sent = 0
    for _ in range(3):
        for _ in range(20):
            await cluster.send(b"m%d" % sent)
            sent += 1
        killed = cluster.master
        assert killed is not None
        began = time.monotonic()
        await cluster.kill(killed)
        await until(lambda: cluster.master is not None)
        await cluster.send(b"m%d" % sent)
        took = time.monotonic() - began
        sent += 1
        assert took < 2.0, f"failover took {took:.3f} s"
        await cluster.start(killed)
        await cluster.whole()
    await cluster.equal()
    log = cluster.log(0)
    assert all(log.count(b"m%d\x01T" % number) == 1 for number in range(sent))


async def test_tables_follow_a_switch_right_after_they_changed(cluster: Cluster) -> None:
    await cluster.start(0)
    await cluster.start(1)
    await cluster.whole()
    master = cluster.master
    assert master is not None
    await cluster.send(b"x", topic="added")
    slave = cluster.brokers[1 - master]
    await until(lambda: "added" in slave.broker.tables.topics, 2)
    address = f"127.0.0.1:{cluster.ports[1 + 2 * master]}"
    assert cluster.brokers[master].broker.tables.subscriptions.get_or_create("g") is not None
    commit = UpdateConsumerOffset(consumer_group="g", topic="added", queue_id=0, commit_offset=1)
    await cluster.client.call(address, commit)
    await until(lambda: slave.broker.tables.offsets.query("g", "added", 0) == 1, 5)
    await cluster.kill(master)
    await until(lambda: cluster.master is not None)
    assert slave.broker.tables.topics.get("added") is not None
    assert slave.broker.tables.offsets.query("g", "added", 0) == 1


async def test_what_was_created_is_on_the_slave_when_that_is_answered(cluster: Cluster) -> None:
    await cluster.start(0)
    await cluster.start(1)
    await cluster.whole()
    master = cluster.master
    assert master is not None
    slave = cluster.brokers[1 - master].broker
    await until(lambda: cluster.brokers[master].broker.tables.watch.followers == 1)
    address = f"127.0.0.1:{cluster.ports[1 + 2 * master]}"
    for number in range(20):
        topic = CreateTopic(f"made{number}", "TBW102", 3, 3, 6, "SINGLE_TAG", 0, False, None)
        await cluster.client.call(address, topic)
        assert f"made{number}" in slave.tables.topics
    group = SubscriptionGroupConfig(group_name="made", retry_max_times=3)
    await cluster.client.call(address, UpdateSubscriptionGroup(), encode(group))
    found = slave.tables.subscriptions.get("made")
    assert found is not None and found.retry_max_times == 3
    commit = UpdateConsumerOffset(consumer_group="made", topic="made0", queue_id=0, commit_offset=7)
    await cluster.client.call(address, commit)
    await until(lambda: slave.tables.offsets.query("made", "made0", 0) == 7, 1)
    await cluster.client.call(address, DeleteTopic("made19"))
    assert "made19" not in slave.tables.topics
    await cluster.kill(master)
    await until(lambda: cluster.master is not None)
    assert (
        slave.tables.topics.version.state_version
        == slave.tables.subscriptions.version.state_version
        == slave.role.epoch
    )
    await cluster.send(b"x", topic="made18")
    made = slave.tables.topics.get("made18")
    assert made is not None and made.write_queue_nums == 3


async def test_topics_that_only_the_log_knows_are_recreated(cluster: Cluster) -> None:
    await cluster.start(0)
    await cluster.start(1)
    await cluster.whole()
    master = cluster.master
    assert master is not None
    service = cluster.brokers[1 - master]
    await cluster.send(b"x", topic="deleted")
    await until(lambda: "deleted" in service.broker.tables.topics)
    await cluster.client.call(f"127.0.0.1:{cluster.ports[1 + 2 * master]}", DeleteTopic("deleted"))
    await until(lambda: "deleted" in service.broker.tables.topics.deleted)
    await manager(service).slave_sync.stop()  # as if the master died before the slave could ask
    await cluster.send(b"x", topic="added")
    assert "added" not in service.broker.tables.topics
    await cluster.kill(master)
    await until(lambda: cluster.master is not None)
    made = service.broker.tables.topics.get("added")
    assert made is not None and made.read_queue_nums == 8 and made.perm == 6
    assert "deleted" not in service.broker.tables.topics
    file = cluster.root / f"store{1 - master}" / "config" / "topics.json"

    def written() -> bool:
        try:
            return "added" in file.read_text()
        except FileNotFoundError:  # not yet, or just between the renaming of the old one and of the new one
            return False

    await until(written)  # in the background


@pytest.mark.parametrize("copied", ["nothing", "that it was deleted", "half"])
async def test_offsets_of_a_recreated_topic_are_forgotten_if_the_master_dies_before_its_own_are_copied(
    cluster: Cluster, copied: str
) -> None:
    """Who went on from where it was in the former topic would pass over as many of the new one's messages."""
    await cluster.start(0)
    await cluster.start(1)
    await cluster.whole()
    master = cluster.master
    assert master is not None
    address, service = f"127.0.0.1:{cluster.ports[1 + 2 * master]}", cluster.brokers[1 - master]
    slave = service.broker
    await cluster.send(b"old", topic="again")
    made = encode(SubscriptionGroupConfig(group_name="g"))
    await cluster.client.call(address, UpdateSubscriptionGroup(), made)
    await cluster.client.call(address, UpdateConsumerOffset("g", "again", 0, 1))
    await until(lambda: slave.tables.offsets.query("g", "again", 0) == 1)
    sync = manager(service).slave_sync
    if copied != "that it was deleted":
        await sync.stop()
    await cluster.client.call(address, DeleteTopic("again"))
    if copied == "that it was deleted":
        await until(lambda: "again" in slave.tables.topics.deleted)
        await sync.stop()
    await cluster.send(b"new", topic="again")
    await until(lambda: "again" in slave.store.recreated_topics)
    if copied == "half":

        class Dying(RemoteMaster):
            async def fetch(self, header: Header) -> bytes:
                if isinstance(header, GetAllConsumerOffset):
                    raise ConnectionLost(self.address, "killed")
                return await super().fetch(header)

        with pytest.raises(ConnectionLost):
            await sync.copy(Dying(slave.client, address))
    await cluster.kill(master)
    await until(lambda: cluster.master is not None)
    assert slave.tables.offsets.query("g", "again", 0) == -1
    assert "again" in slave.tables.topics and slave.store.queue_bounds("again", 0).max_offset == 1
    assert not slave.store.recreated_topics


async def test_a_table_that_the_disk_did_not_take_is_written_when_it_does(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What comes later is not refused for it, either."""
    service = await cluster.start(0)
    await until(lambda: cluster.master == 0)
    address, file = (
        f"127.0.0.1:{cluster.ports[1]}",
        service.broker.tables.persistence._files["subscriptionGroup"],
    )

    def full(_: bytes) -> None:
        raise OSError(28, "No space left on device", "subscriptionGroup.json")

    made = encode(SubscriptionGroupConfig(group_name="kept"))
    topic = CreateTopic("later", "TBW102", 1, 1, 6, "SINGLE_TAG", 0, False, None)
    with monkeypatch.context() as patched:
        patched.setattr(file, "write", full)
        with pytest.raises(MQError, match=r"in force until a restart: subscriptionGroup.json: No space left"):
            await cluster.client.call(address, UpdateSubscriptionGroup(), made)
    await cluster.client.call(address, topic)
    assert b"kept" in file.path.read_bytes()


async def test_a_slave_refuses_sends(cluster: Cluster) -> None:
    await cluster.start(0)
    await cluster.start(1)
    await cluster.whole()
    assert cluster.master is not None
    with pytest.raises(MQError) as refused:
        await cluster.send(b"x", 1 - cluster.master)
    assert refused.value.code == ResponseCode.SYSTEM_BUSY, "as RocketMQ's slave answers"


async def test_a_lost_slave_does_not_stop_the_master_for_long(cluster: Cluster) -> None:
    await cluster.start(0)
    await cluster.start(1)
    await cluster.whole()
    assert cluster.master is not None
    await cluster.kill(1 - cluster.master)
    began = time.monotonic()
    await cluster.send(b"alone")
    assert time.monotonic() - began < 2.0
    assert len(cluster.members()) == 1


async def test_without_controllers_replication_continues(cluster: Cluster) -> None:
    await cluster.start(0)
    await cluster.start(1)
    await cluster.whole()
    assert cluster.controller is not None
    await cluster.controller.stop()
    cluster.controller = None
    await cluster.send(b"x")
    assert cluster.master is not None
    await cluster.kill(1 - cluster.master)
    with pytest.raises((MQError, NetError)) as unsafe:
        await cluster.send(b"nobody else has it")
    assert not isinstance(unsafe.value, MQError) or (unsafe.value.code == ResponseCode.FLUSH_SLAVE_TIMEOUT), (
        "the set cannot shrink without the controller, so nothing is acknowledged"
    )
    await cluster.start_controller()
    await until(lambda: len(cluster.members()) == 1)
    await cluster.send(b"again")


async def test_a_replica_that_was_cleaned_says_how_it_can_come_back(
    cluster: Cluster, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("batonmq.broker.replica.replicas_manager.GRACE_S", 0.0)
    await cluster.start(0)
    await cluster.start(1)
    await cluster.whole()
    slave = 1 - cluster.master
    broker_id = manager(cluster.brokers[slave]).core.broker_id
    await cluster.brokers.pop(slave).stop()
    await until(lambda: len(cluster.members()) == 1, 30)
    clean = CleanBrokerData("b", "DefaultCluster", str(broker_id), True)
    await cluster.client.call(cluster.controller_address, clean)
    await cluster.start(slave)
    advice = "If it was removed (cleanBrokerMetadata), stop this broker and start it with an empty store"
    await until(lambda: advice in caplog.text)
    await cluster.brokers.pop(slave).stop()
    shutil.rmtree(cluster.root / f"store{slave}")
    await cluster.start(slave)
    await cluster.whole()
