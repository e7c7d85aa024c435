"""Leaders and followers: who answers, what a new leader knows, and when it judges brokers."""

from __future__ import annotations

import asyncio
import socket
import sys
import time
from pathlib import Path

import pytest
from tests.integration.controller.group import CLUSTER, FakeBroker, Group, brokers, until

from batonmq.net.client import RemotingClient
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers import controller as wire
from batonmq.protocol.headers.namesrv import BrokerHeartbeat
from batonmq.raft.state import Role


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
            # At once after the answer to a write, while the follower may not know of it.
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
    fault: disks were slow here, and the first received afterwards was no better than the master's."""
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
        proposer, node = service.proposer, service.node

        class SlowOnce:
            async def propose(self, data: bytes) -> object:
                monkeypatch.setattr(proposer, "_node", node)
                await asyncio.sleep(0.9)
                return await node.propose(data)

        monkeypatch.setattr(proposer, "_node", SlowOnce())
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
