"""Requests of brokers: ids, SyncStateSets, and the codes of refusals."""

from __future__ import annotations

import asyncio

import pytest
from tests.integration.controller.group import CLUSTER, Group, brokers, until

from batonmq.net.client import RemotingClient
from batonmq.protocol.bodies.controller import decode_sync_state_set
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers import controller as wire
from batonmq.protocol.headers.namesrv import BrokerHeartbeat


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


async def test_an_operator_gets_no_unclean_master_while_a_member_of_the_set_lives(one: Group) -> None:
    """RocketMQ replaces the healthy master, and loses what only it has."""
    service = await one.leader()
    controller = one.address(service)
    first, second = await brokers(controller)
    demand = wire.ElectMaster(CLUSTER, "s", 2, designate_elect=True)
    try:
        await first.client.call(controller, wire.UpdateControllerConfig(), b"enableElectUncleanMaster=true\n")
        epoch = (await first.elect(controller)).master_epoch
        with pytest.raises(MQError) as caught:
            await first.client.call(controller, demand)
        assert caught.value.code == ResponseCode.CONTROLLER_ELECT_MASTER_FAILED
        broker_set = service.machine.broker_sets["s"]
        assert (broker_set.master_id, broker_set.master_epoch) == (1, epoch)
        await first.drop_connections()
        await until(lambda: service.machine.broker_sets["s"].master_id == 2, "nobody else is there")
    finally:
        await first.stop()
        await second.stop()


async def test_a_dead_replica_is_not_made_the_first_master(one: Group) -> None:
    """It would be in sync alone, and nobody else could be elected."""
    service = await one.leader()
    controller = one.address(service)
    first, second = await brokers(controller)
    try:
        await first.drop_connections()
        await until(lambda: 1 not in service.machine.broker_sets["s"].live, "the first is seen to be gone")
        with pytest.raises(MQError, match="is not alive") as caught:
            await second.client.call(controller, wire.ElectMaster(CLUSTER, "s", 1, designate_elect=True))
        assert caught.value.code == ResponseCode.CONTROLLER_ELECT_MASTER_FAILED
        await second.client.call(controller, wire.ElectMaster(CLUSTER, "s", 2, designate_elect=True))
        assert service.machine.broker_sets["s"].master_id == 2
    finally:
        await first.stop()
        await second.stop()


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
