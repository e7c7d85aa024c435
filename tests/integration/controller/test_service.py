"""Real controllers on real sockets and disks: one alone, and three that survive the loss of their leader."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from batonmq.controller.config import ControllerConfig
from batonmq.controller.service import ControllerService
from batonmq.demo.ports import free_ports
from batonmq.net.client import RemotingClient
from batonmq.net.dispatch import Dispatcher, Reply, Request
from batonmq.net.errors import NetError
from batonmq.net.server import RemotingServer
from batonmq.protocol.bodies.controller import SyncStateSetBody, decode_sync_state_set
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers import controller as wire
from batonmq.protocol.headers.namesrv import BrokerHeartbeat
from batonmq.protocol.json import encode
from batonmq.raft.state import Role

CLUSTER = "c"


async def until(condition: Callable[[], Any], what: str, timeout_s: float = 10) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"not within {timeout_s} s: {what}")
        await asyncio.sleep(0.002)


class Group:
    """Controllers in this process; each can be killed and started again."""

    def __init__(
        self, tmp_path: Path, count: int, *, election_timeout_ms: int = 300, **overrides: Any
    ) -> None:
        self.ports = free_ports(count)
        peers = ";".join(f"n{i}-127.0.0.1:{port}" for i, port in enumerate(self.ports))
        self.configs = [
            ControllerConfig(
                controller_d_leger_group="g",
                controller_d_leger_peers=peers,
                controller_d_leger_self_id=f"n{i}",
                controller_store_path=str(tmp_path / f"n{i}"),
                bind_address="127.0.0.1",
                j_raft_election_timeout_ms=election_timeout_ms,
                **overrides,
            )
            for i in range(count)
        ]
        self.services: dict[int, ControllerService] = {}

    async def start(self, *numbers: int) -> None:
        for number in numbers or range(len(self.configs)):
            service = self.services[number] = ControllerService(self.configs[number])
            await service.start()

    async def stop(self, number: int) -> None:
        await self.services.pop(number).stop()

    async def stop_all(self) -> None:
        for number in list(self.services):
            await self.stop(number)

    async def leader(self) -> ControllerService:
        await until(lambda: any(service.leading for service in self.services.values()), "a leader")
        return next(service for service in self.services.values() if service.leading)

    def address(self, service: ControllerService) -> str:
        return service.topology.rpc_addresses[service.topology.self_id]


class FakeBroker:
    """A replica as the controller sees it: a listening port for notices and a connection for heartbeats."""

    def __init__(self, name: str, broker_id: int) -> None:
        self.name, self.broker_id = name, broker_id
        self.client = RemotingClient()
        self.notices: list[tuple[wire.NotifyBrokerRoleChanged, SyncStateSetBody]] = []
        self.epoch = 0
        self.offset = 0
        dispatcher = Dispatcher()
        dispatcher.on(wire.NotifyBrokerRoleChanged, self._notified)
        self.server = RemotingServer(dispatcher, "127.0.0.1", 0)

    def _notified(self, request: Request, header: wire.NotifyBrokerRoleChanged) -> Reply:
        self.notices.append((header, decode_sync_state_set(request.command.body)))
        return Reply()

    async def start(self, controller: str) -> None:
        await self.server.start()
        next_id = await self.client.call(controller, wire.GetNextBrokerId(self.name, CLUSTER))
        assert isinstance(next_id.header, wire.GetNextBrokerIdReply)
        assert next_id.header.next_broker_id == self.broker_id
        code = f"{self.address};1"
        await self.client.call(controller, wire.ApplyBrokerId(self.name, self.broker_id, code, CLUSTER))
        await self.client.call(
            controller, wire.RegisterBrokerToController(CLUSTER, self.name, self.broker_id, self.address)
        )
        await self.beat(controller)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.port}"

    async def beat(self, controller: str) -> None:
        header = BrokerHeartbeat(
            CLUSTER, self.address, self.name, self.broker_id, self.epoch, self.offset, 0, 2_000, 100
        )
        await self.client.call(controller, header)

    async def elect(self, controller: str) -> wire.ElectMasterReply:
        header = wire.ElectMaster(CLUSTER, self.name, self.broker_id)
        accept = {0, int(ResponseCode.CONTROLLER_MASTER_STILL_EXIST)}
        reply = await self.client.call(controller, header, accept=accept)
        assert isinstance(reply.header, wire.ElectMasterReply)
        return reply.header

    async def alter(
        self, controller: str, epoch: int, members: tuple[int, ...], set_epoch: int
    ) -> SyncStateSetBody:
        reply = await self.client.call(
            controller,
            wire.AlterSyncStateSet(self.name, self.broker_id, epoch),
            encode(SyncStateSetBody(members, set_epoch)),
        )
        return decode_sync_state_set(bytes(reply.body))

    async def drop_connections(self) -> None:
        """What a controller sees of kill -9."""
        await self.client.close()
        self.client = RemotingClient()

    async def stop(self) -> None:
        await self.client.close()
        await self.server.stop()


async def brokers(controller: str, count: int = 2, name: str = "s") -> list[FakeBroker]:
    made = [FakeBroker(name, number + 1) for number in range(count)]
    for each in made:
        await each.start(controller)
    return made


@pytest.fixture
async def one(tmp_path: Path) -> AsyncIterator[Group]:
    group = Group(tmp_path, 1, scan_not_active_broker_interval=100, scan_inactive_master_interval=100)
    await group.start()
    await group.leader()
    yield group
    await group.stop_all()


@pytest.fixture
async def three(tmp_path: Path) -> AsyncIterator[Group]:
    group = Group(tmp_path, 3)
    await group.start()
    await group.leader()
    yield group
    await group.stop_all()


async def test_a_closed_connection_elects_within_milliseconds_and_all_replicas_hear_of_it(one: Group) -> None:
    service = await one.leader()
    address = one.address(service)
    first, second = await brokers(address)
    try:
        elected = await first.elect(address)
        assert (elected.master_broker_id, elected.master_epoch) == (1, 1)
        await first.alter(address, 1, (1, 2), 1)
        started = time.monotonic()
        await first.drop_connections()
        await until(lambda: service.machine.broker_sets["s"].master_id == 2, "the second is master", 1)
        assert time.monotonic() - started < 0.5
        await until(lambda: any(h.master_epoch == 2 for h, _ in second.notices), "the second is told")
        header, body = second.notices[-1]
        assert (header.master_broker_id, header.master_address) == (2, second.address)
        assert body.sync_state_set == (2,) and body.sync_state_set_epoch == 3
    finally:
        await first.stop()
        await second.stop()


async def test_notices_are_repeated_until_a_heartbeat_shows_the_epoch(one: Group) -> None:
    service = await one.leader()
    address = one.address(service)
    first, second = await brokers(address)
    try:
        await first.elect(address)
        await until(lambda: len(second.notices) >= 2, "the second is told again", 5)
        for broker in (first, second):
            broker.epoch = 1
            await broker.beat(address)
        await until(lambda: service.notices.pending == 0, "nobody is left to be told", 5)
    finally:
        await first.stop()
        await second.stop()


async def test_a_replica_that_does_not_answer_delays_nobody(one: Group) -> None:
    service = await one.leader()
    address = one.address(service)
    first, second = await brokers(address)
    try:
        await first.server.stop()  # its address refuses connections from now on
        deaf = socket.socket()
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(1)  # accepts, and never answers
        await first.drop_connections()
        await until(lambda: 1 not in service.machine.broker_sets["s"].live, "the first is seen to be gone")
        await first.client.call(
            address,
            wire.RegisterBrokerToController(CLUSTER, "s", 1, f"127.0.0.1:{deaf.getsockname()[1]}"),
        )
        await first.beat(address)
        started = time.monotonic()
        await first.elect(address)
        await until(lambda: second.notices, "the second is told")
        assert time.monotonic() - started < 1.0
        deaf.close()
    finally:
        await first.stop()
        await second.stop()


async def test_a_silent_master_is_replaced_by_the_scan(one: Group) -> None:
    service = await one.leader()
    address = one.address(service)
    first, second = await brokers(address)
    try:
        await first.elect(address)
        await first.alter(address, 1, (1, 2), 1)
        deadline = time.monotonic() + 6
        while service.machine.broker_sets["s"].master_id != 2:
            assert time.monotonic() < deadline
            await second.beat(address)
            await asyncio.sleep(0.1)
    finally:
        await first.stop()
        await second.stop()


async def test_concurrent_alterations_of_rip_67_end_at_the_second(one: Group) -> None:
    address = one.address(await one.leader())
    first, second, third = await brokers(address, 3)
    try:
        await first.elect(address)
        await first.alter(address, 1, (1, 2), 1)
        expanded, shrunk = await asyncio.gather(
            first.alter(address, 1, (1, 2, 3), 2), first.alter(address, 1, (1, 2), 3)
        )
        assert expanded.sync_state_set == (1, 2, 3)
        assert shrunk.sync_state_set == (1, 2)
        reply = await first.client.call(address, wire.GetReplicaInfo("s"))
        assert decode_sync_state_set(bytes(reply.body)) == shrunk
    finally:
        for each in (first, second, third):
            await each.stop()


async def test_errors_are_rocketmqs(one: Group) -> None:
    address = one.address(await one.leader())
    client = RemotingClient()
    try:
        for header, body, code in [
            (wire.GetReplicaInfo("x"), b"", ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST),
            (wire.ElectMaster(CLUSTER, "x", 1), b"", ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED),
            (wire.AlterSyncStateSet("x", 1, 1), b"{", ResponseCode.CONTROLLER_INVALID_REQUEST),
            (wire.AlterSyncStateSet("x", 1, 1), b"{}", ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED),
            (wire.ApplyBrokerId("x", 2, "h:1;1", CLUSTER), b"", ResponseCode.CONTROLLER_BROKER_ID_INVALID),
            (wire.CleanBrokerData("x"), b"", ResponseCode.CONTROLLER_INVALID_CLEAN_BROKER_METADATA),
            (BrokerHeartbeat(CLUSTER, "h:1", "x"), b"", ResponseCode.CONTROLLER_INVALID_REQUEST),
            (
                BrokerHeartbeat(CLUSTER, "h:1", "x", 1),
                b"",
                ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED,
            ),
            (wire.GetSyncStateData(), b"[1]", ResponseCode.CONTROLLER_INVALID_REQUEST),
            (
                wire.AlterSyncStateSet("x", 1, 1),
                b'{"syncStateSet":[%d],"syncStateSetEpoch":1}' % 2**64,
                ResponseCode.CONTROLLER_INVALID_REQUEST,
            ),
            (
                wire.AlterSyncStateSet("x", 1, 1),
                b'{"syncStateSet":[1%s],"syncStateSetEpoch":1}' % (b",2" * (1 << 20)),
                ResponseCode.CONTROLLER_INVALID_REQUEST,
            ),
            (
                BrokerHeartbeat(CLUSTER, "h" * 5_000, "x", 1),
                b"",
                ResponseCode.CONTROLLER_INVALID_REQUEST,
            ),
        ]:
            with pytest.raises(MQError) as caught:
                await client.call(address, header, body)
            assert caught.value.code == code, header
    finally:
        await client.close()


async def test_ids_that_only_a_mistake_can_name_are_refused(one: Group) -> None:
    address = one.address(await one.leader())
    client = RemotingClient()
    try:
        await client.call(address, wire.ApplyBrokerId("s", 1, "h:1;1", CLUSTER))
        await client.call(address, wire.RegisterBrokerToController(CLUSTER, "s", 1, "127.0.0.1:1"))
        await client.call(address, BrokerHeartbeat(CLUSTER, "127.0.0.1:1", "s", 1, 0, 0, 0, 60_000, 100))
        elected = await client.call(address, wire.ElectMaster(CLUSTER, "s", 1))
        with pytest.raises(MQError) as caught:
            await client.call(address, wire.ApplyBrokerId("s", 2**63 - 1, "h:2;1", CLUSTER))
        assert caught.value.code == ResponseCode.CONTROLLER_BROKER_ID_INVALID
        follows = await client.call(address, wire.GetNextBrokerId("s", CLUSTER))
        assert isinstance(follows.header, wire.GetNextBrokerIdReply) and follows.header.next_broker_id == 2
        with pytest.raises(MQError, match="has no replica -1") as caught:
            await client.call(address, wire.ElectMaster(CLUSTER, "s", -1, designate_elect=True))
        info = await client.call(address, wire.GetReplicaInfo("s"))
        assert isinstance(elected.header, wire.ElectMasterReply)
        assert isinstance(info.header, wire.GetReplicaInfoReply)
        assert (info.header.master_broker_id, info.header.master_epoch) == (1, elected.header.master_epoch)
    finally:
        await client.close()


async def test_an_id_has_one_living_holder(one: Group) -> None:
    controller = one.address(await one.leader())
    first, second = await brokers(controller)
    copied = wire.RegisterBrokerToController(CLUSTER, "s", 1, "127.0.0.1:1")
    try:
        with pytest.raises(
            MQError, match=f"at {first.address}, which is alive: was its brokerIdentity copied"
        ):
            await second.client.call(controller, copied)
        await first.client.call(controller, wire.RegisterBrokerToController(CLUSTER, "s", 1, first.address))
        await first.drop_connections()
        service = await one.leader()
        await until(lambda: 1 not in service.machine.broker_sets["s"].live, "the first is seen to be gone")
        await second.client.call(controller, copied)  # it has moved
    finally:
        await first.stop()
        await second.stop()


async def test_configuration_is_shown_and_changed(one: Group) -> None:
    service = await one.leader()
    address = one.address(service)
    client = RemotingClient()
    try:
        reply = await client.call(address, wire.GetControllerConfig())
        assert b"scanNotActiveBrokerInterval=100\n" in bytes(reply.body)
        await client.call(address, wire.UpdateControllerConfig(), b"enableElectUncleanMaster=true\n")
        assert service.config.enable_elect_unclean_master
        assert "enableElectUncleanMaster=true" in service.config.config_file.read_text()
        for body, code in [
            (b"configStorePath=/etc/passwd", ResponseCode.NO_PERMISSION),
            (b"controllerDLegerPeers=n0-h:1", ResponseCode.NO_PERMISSION),
            (b"scanNotActiveBrokerInterval=soon", ResponseCode.SYSTEM_ERROR),
            (b"scanNotActiveBrokerInterval=-1", ResponseCode.SYSTEM_ERROR),
            (b"\xff\xfe", ResponseCode.SYSTEM_ERROR),
        ]:
            with pytest.raises(MQError) as caught:
                await client.call(address, wire.UpdateControllerConfig(), body)
            assert caught.value.code == code, body
    finally:
        await client.close()


async def test_a_change_leaves_the_rest_of_the_file_alone(tmp_path: Path) -> None:
    """It is the file given with -c: TLS, and with a controller inside the name server that one's keys."""
    file = tmp_path / "all.conf"
    before = "# ours\ntls.server.mode=enforcing\nlistenPort=9876\nelectMasterMaxRetryCount = 3\n"
    file.write_text(before)
    group = Group(tmp_path, 1, config_store_path=str(file))
    await group.start()
    client = RemotingClient()
    try:
        service = await group.leader()
        address = group.address(service)
        shown = bytes((await client.call(address, wire.GetControllerConfig())).body).decode()
        assert f"configStorePath={file}\n" in shown
        body = b"electMasterMaxRetryCount=7\nprocessReadEvent=true\nlistenPort=1\n"
        await client.call(address, wire.UpdateControllerConfig(), body)
        assert service.config.elect_master_max_retry_count == 7 and service.config.is_process_read_event
        assert file.read_text() == before.replace(" = 3", "=7") + "isProcessReadEvent=true\n"
        file.write_text("isProcessReadEvent=true\nprocessReadEvent=true\n")
        await client.call(address, wire.UpdateControllerConfig(), b"processReadEvent=false\n")
        assert file.read_text() == "isProcessReadEvent=false\n", "the other spelling would win at a restart"
        file.unlink()
        file.mkdir()
        with pytest.raises(MQError, match=r"in force until a restart: .*all\.conf"):
            await client.call(address, wire.UpdateControllerConfig(), b"electMasterMaxRetryCount=8")
        assert service.config.elect_master_max_retry_count == 8
    finally:
        await client.close()
        await group.stop_all()


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's own patience can be set on Linux only")
async def test_a_dead_line_between_controllers_is_given_up_after_two_election_timeouts(
    tmp_path: Path,
) -> None:
    group = Group(tmp_path, 3, election_timeout_ms=400)
    await group.start()
    try:
        leader = await group.leader()
        for service in group.services.values():
            if service is not leader:
                connection = leader._raft_client.connected(group.address(service))
                assert connection is not None
                sock = connection._transport.get_extra_info("socket")  # type: ignore[union-attr]
                assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 800
    finally:
        await group.stop_all()


async def test_an_id_without_an_address_is_not_given(one: Group) -> None:
    service = await one.leader()
    client = RemotingClient()
    try:
        for code in ("", ";", ";1700"):
            with pytest.raises(MQError, match="has no address"):
                await client.call(one.address(service), wire.ApplyBrokerId("s", 1, code, CLUSTER))
        assert not service.machine.broker_sets
    finally:
        await client.close()


async def test_a_restarted_controller_knows_everything_and_gives_brokers_time(tmp_path: Path) -> None:
    group = Group(tmp_path, 1, scan_not_active_broker_interval=100)
    await group.start()
    address = group.address(await group.leader())
    first, second = await brokers(address)
    try:
        await first.elect(address)
        await first.alter(address, 1, (1, 2), 1)
        await group.services[0].node.take_snapshot()
        await first.alter(address, 1, (1,), 2)
        await group.stop(0)
        await group.start(0)
        service = await group.leader()
        broker_set = service.machine.broker_sets["s"]
        assert (broker_set.master_id, broker_set.master_epoch) == (1, 1)
        assert (broker_set.sync_state_set, broker_set.sync_state_set_epoch) == ((1,), 3)
        await asyncio.sleep(0.5)
        assert broker_set.master_id == 1, "elected without giving the brokers time to come back"
    finally:
        await group.stop_all()
        await first.stop()
        await second.stop()


async def test_a_new_leader_listens_as_long_as_it_was_deaf_before_it_judges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Heartbeats that come before its first entry is committed count for nothing, which is not the brokers'
    fault: disks were slow here, and the first that is heard afterwards was no better than the master."""
    group = Group(tmp_path, 1, scan_not_active_broker_interval=20)
    await group.start()
    service = await group.leader()
    address = group.address(service)
    first, second = await brokers(address)

    async def beat(broker: FakeBroker) -> None:
        header = BrokerHeartbeat(CLUSTER, broker.address, broker.name, broker.broker_id, 1, 0, 0, 1_000, 100)
        await broker.client.call(address, header, accept={0, int(ResponseCode.CONTROLLER_NOT_LEADER)})

    try:
        await first.elect(address)
        await first.alter(address, 1, (1, 2), 1)
        await beat(first)
        await asyncio.sleep(0.2)
        await beat(second)
        propose = service.node.propose

        async def slow(data: bytes) -> object:
            monkeypatch.setattr(service.node, "propose", propose)
            await asyncio.sleep(0.9)
            return await propose(data)

        monkeypatch.setattr(service.node, "propose", slow)
        service._on_role_change(Role.FOLLOWER, service.node.term, None)
        service._on_role_change(Role.LEADER, service.node.term, "n0")
        began = time.monotonic()
        while not service.leading:
            await beat(first)
            await beat(second)
            await asyncio.sleep(0.01)
        assert time.monotonic() - began > 0.8
        for _ in range(8):
            await beat(second)
            await asyncio.sleep(0.15)
            await beat(first)
        broker_set = service.machine.broker_sets["s"]
        assert (broker_set.master_id, broker_set.master_epoch) == (1, 1)
    finally:
        await group.stop_all()
        await first.stop()
        await second.stop()


async def test_followers_refuse_and_point_to_the_leader(three: Group) -> None:
    leader = await three.leader()
    client = RemotingClient()
    try:
        for service in three.services.values():
            await until(lambda s=service: s.leader_id == leader.topology.self_id, "followers know the leader")
            reply = await client.call(three.address(service), wire.GetMetadata())
            assert isinstance(reply.header, wire.GetMetadataReply)
            assert reply.header.controller_leader_id == leader.topology.self_id
            assert reply.header.controller_leader_address == three.address(leader)
            assert reply.header.is_leader == (service is leader)
            assert reply.header.peers == "".join(f"n{i}:127.0.0.1:{p};" for i, p in enumerate(three.ports))
            if service is not leader:
                for header in (wire.GetReplicaInfo("s"), wire.ElectMaster(CLUSTER, "s", 1)):
                    with pytest.raises(MQError) as caught:
                        await client.call(three.address(service), header)
                    assert caught.value.code == ResponseCode.CONTROLLER_NOT_LEADER
    finally:
        await client.close()


async def test_followers_answer_consistent_reads_where_they_may(tmp_path: Path) -> None:
    group = Group(tmp_path, 3, enable_follower_read=True)
    await group.start()
    leader = await group.leader()
    address = group.address(leader)
    (first,) = await brokers(address, 1)
    followers = [service for service in group.services.values() if service is not leader]
    try:
        await first.elect(address)
        for follower in followers:
            await until(lambda s=follower: s.leader_id is not None, "followers know the leader")
            # At once after the answer to a write, while the follower may not have heard of it.
            for header in (wire.GetReplicaInfo("s"), wire.GetNextBrokerId("s", CLUSTER)):
                reply = await first.client.call(group.address(follower), header)
                seen = reply.header
                assert getattr(seen, "master_broker_id", 1) == 1 and getattr(seen, "next_broker_id", 2) == 2
            with pytest.raises(MQError) as caught:
                await first.client.call(group.address(follower), wire.GetSyncStateData(), b'["s"]')
            assert caught.value.code == ResponseCode.CONTROLLER_NOT_LEADER
            assert caught.value.remark is not None and address in caught.value.remark
    finally:
        await first.stop()
        await group.stop_all()


async def test_the_loss_of_the_leading_controller_changes_no_master_and_the_next_one_elects(
    three: Group,
) -> None:
    leader = await three.leader()
    address = three.address(leader)
    first, second = await brokers(address)
    try:
        await first.elect(address)
        await first.alter(address, 1, (1, 2), 1)
        number = next(n for n, service in three.services.items() if service is leader)
        others = [service for service in three.services.values() if service is not leader]
        for service in others:  # brokers send heartbeats to every controller; a follower refuses the answer
            await until(lambda s=service: "s" in s.machine.broker_sets, "followers follow")
            for broker in (first, second):
                with pytest.raises(MQError):
                    await broker.beat(three.address(service))
        await three.stop(number)
        heir = await three.leader()
        broker_set = heir.machine.broker_sets["s"]
        assert (broker_set.master_id, broker_set.master_epoch) == (1, 1)
        # The heir knows the connection from the time it followed: no heartbeat has to come first.
        await first.drop_connections()
        await until(lambda: broker_set.master_id == 2, "the next leader elects at once", 1)
        await three.start(number)
        back = three.services[number]
        await until(
            lambda: "s" in back.machine.broker_sets and back.machine.broker_sets["s"].master_id == 2,
            "the returning controller catches up",
        )
    finally:
        await first.stop()
        await second.stop()


async def test_without_a_quorum_nothing_is_decided_and_the_sender_gets_an_error(tmp_path: Path) -> None:
    group = Group(tmp_path, 3, request_timeout_ms=300)
    await group.start()
    leader = await group.leader()
    address = group.address(leader)
    (first,) = await brokers(address, 1)
    try:
        for number in [n for n, service in group.services.items() if service is not leader]:
            await group.stop(number)
        with pytest.raises(MQError) as caught:
            await first.elect(address)
        assert caught.value.code in (
            ResponseCode.CONTROLLER_JRAFT_INTERNAL_ERROR,
            ResponseCode.CONTROLLER_NOT_LEADER,
        )
        await until(lambda: not leader.leading, "a leader without followers steps down")
        with pytest.raises(MQError) as caught:
            await first.client.call(address, wire.GetReplicaInfo("s"))
        assert caught.value.code == ResponseCode.CONTROLLER_NOT_LEADER
    finally:
        await group.stop_all()
        await first.stop()


async def test_jraft_family_has_a_port_of_its_own_for_raft(tmp_path: Path) -> None:
    raft_1, raft_2, rpc_1, rpc_2 = free_ports(4)
    configs = [
        ControllerConfig(
            controller_type="jRaft",
            j_raft_group_id="jr",
            j_raft_server_id=f"localhost:{port}",
            j_raft_init_conf=f"localhost:{raft_1},localhost:{raft_2}",
            j_raft_controller_rpc_addr=f"localhost:{rpc_1},localhost:{rpc_2}",
            j_raft_election_timeout_ms=300,
            controller_store_path=str(tmp_path / str(port)),
            controller_raft_secret="sesame",
            bind_address="127.0.0.1",
        )
        for port in (raft_1, raft_2)
    ]
    services = [ControllerService(config) for config in configs]
    client = RemotingClient()
    try:
        for service in services:
            await service.start()
        await until(lambda: any(service.leading for service in services), "a leader")
        leader = next(service for service in services if service.leading)
        reply = await client.call(f"localhost:{rpc_1}", wire.GetMetadata())
        assert isinstance(reply.header, wire.GetMetadataReply)
        assert reply.header.controller_leader_id == leader.topology.self_id
        assert (
            reply.header.controller_leader_address == leader.topology.rpc_addresses[leader.topology.self_id]
        )
        assert reply.header.peers == f"localhost:{rpc_1};localhost:{rpc_2};"
        reply = await client.call(f"localhost:{rpc_1}", wire.GetControllerConfig())
        assert b"sesame" not in bytes(reply.body)
    finally:
        await client.close()
        for service in services:
            await service.stop()


async def test_elections_are_written_down(one: Group) -> None:
    service = await one.leader()
    address = one.address(service)
    first, second = await brokers(address)
    try:
        await first.elect(address)
        await first.alter(address, 1, (1, 2), 1)
        await first.drop_connections()
        await until(lambda: service.leadership.elections == 2, "two elections")
    finally:
        await first.stop()
        await second.stop()
    await one.stop_all()
    path = Path(one.configs[0].controller_store_path) / "events.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    elections = [line for line in lines if line["event"] == "election" and line["result"] == "new-master"]
    assert [(e["cause"], e["old_master"], e["new_master"], e["candidates"]) for e in elections] == [
        ("broker", None, 1, []),
        ("channel-closed", 1, 2, [1, 2]),
    ]
    assert all(line["time_ms"] > 1_600_000_000_000 and line["node"] == "n0" for line in lines)


async def test_connections_are_bounded_by_the_key_and_by_the_open_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("batonmq.controller.service.raise_file_limit", lambda wanted: wanted - 14)
    group = Group(tmp_path, 1, controller_max_connections=16)
    with caplog.at_level(logging.WARNING):
        await group.start()
    said = [r.getMessage() for r in caplog.records if "controllerMaxConnections=16" in r.getMessage()]
    assert len(said) == 1 and "beyond 2 are refused" in said[0] and "to 528" in said[0]
    address = group.address(group.services[0])
    clients = [RemotingClient() for _ in range(3)]
    try:
        for client in clients[:2]:
            await client.call(address, wire.GetMetadata())
        with pytest.raises(NetError):
            await clients[2].call(address, wire.GetMetadata())
    finally:
        for client in clients:
            await client.close()
        await group.stop_all()


async def test_what_cannot_start_says_why_in_one_line(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", port))
        taken.listen()
        for self_id, expected in (("n0", str(port)), ("n7", "controllerDLegerSelfId=n7")):
            conf = tmp_path / "controller.conf"
            conf.write_text(
                f"controllerDLegerPeers=n0-127.0.0.1:{port}\ncontrollerDLegerSelfId={self_id}\n"
                f"controllerStorePath={tmp_path / 'store'}\nbindAddress=127.0.0.1\n"
            )
            program = [sys.executable, "-m", "batonmq", "controller", "-c", str(conf)]
            done = await asyncio.to_thread(
                subprocess.run, program, capture_output=True, text=True, timeout=20, check=False
            )
            assert done.returncode == 1
            lines = [line for line in done.stderr.splitlines() if line.startswith("controller: ")]
            assert len(lines) == 1 and expected in lines[0], done.stderr
            assert "Traceback" not in done.stderr
