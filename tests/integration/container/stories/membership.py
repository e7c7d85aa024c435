"""Brokers are added, removed and lost; the slave acts.

RocketMQ's AddAndRemoveBrokerIT, SlaveBrokerIT, BrokerMemberGroupIT, BrokerFailoverIT.
"""

from __future__ import annotations

from functools import partial

from tests.integration.container.stories.story import (
    story,
)
from tests.integration.container.trio import SETS, SLAVES, Trio

from batonmq.protocol.bodies.routes import ClusterInfo
from batonmq.protocol.codes import RequestCode, ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker.replication import AddBroker
from batonmq.protocol.headers.namesrv import GetBrokerClusterInfo
from batonmq.protocol.json import decode


@story()
async def an_added_broker_needs_a_file(trio: Trio) -> None:
    try:
        await trio.client.call(trio.addresses[0], AddBroker(config_path=""))
    except MQError as error:
        assert error.code == ResponseCode.SYSTEM_ERROR and "empty" in error.remark
    else:
        raise AssertionError("a broker without a file was added")


@story()
async def a_slave_is_removed_and_added(trio: Trio) -> None:
    await trio.remove("c", 1)
    assert not await trio.running("c", 1)
    assert await trio.running("a", 0) and await trio.running("b", 2)
    await trio.add("c", 1)
    await trio.whole()


@story()
async def a_slave_of_each_set_is_removed_and_added(trio: Trio) -> None:
    async def listed(count: int) -> bool:
        answer = await trio.client.call(trio.namesrv_address, GetBrokerClusterInfo())
        sets = decode(bytes(answer.body), ClusterInfo).broker_addr_table
        return all(len(sets[name].broker_addrs) == count for name in SETS)

    await trio.until(partial(listed, 3), "all are listed", 60)
    for name in SETS:
        await trio.remove(name, 1)
    await trio.until(partial(listed, 2), "two of each set are listed", 60)
    for name in SETS:
        await trio.add(name, 1)
    await trio.until(partial(listed, 3), "all are listed again", 60)
    await trio.whole()


@story()
async def the_member_group_follows_what_is_removed(trio: Trio) -> None:
    async def without_slave_1(name: str) -> bool:
        return set(await trio.members(name)) == {0, 2}

    for name in "ac":
        assert len(await trio.members(name)) == 1 + SLAVES
        await trio.remove(name, 1)
    for name in "ac":
        await trio.until(partial(without_slave_1, name), f"{name} has two members", 5)
    for name in "ac":
        await trio.add(name, 1)
    await trio.whole()


async def _failover(trio: Trio, topic: str, code: RequestCode) -> None:
    """The name server takes no heartbeats of container 0: its brokers leave their sets, and the slave of its
    master acts. All come back with the heartbeats. Registrations are refused, too: a broker of ours registers
    as soon as the name server has dropped it, one of RocketMQ's half a minute later."""

    async def lost() -> bool:
        return [set(await trio.members(name)) for name in SETS] == [{1, 2}, {0, 1}, {0, 2}]

    async def back() -> bool:
        return [len(await trio.members(name)) for name in SETS] == [3, 3, 3]

    trio.mute(code, 0)
    try:
        await trio.until(lost, "the brokers of container 0 are gone", 60)
        await trio.acting("a", topic)
    finally:
        trio.unmute()
    await trio.until(back, "they are back", 60)
    await trio.whole()


@story()
async def without_heartbeats_the_slave_acts(trio: Trio) -> None:
    await _failover(trio, "without_heartbeats_the_slave_acts", RequestCode.BROKER_HEARTBEAT)


@story()
async def the_same_with_heartbeats_for_old_name_servers(trio: Trio) -> None:
    for place in trio.confs:
        await trio.set_key(*place, "compatibleWithOldNameSrv", "true")
    try:
        topic = "the_same_with_heartbeats_for_old_name_servers"
        await _failover(trio, topic, RequestCode.QUERY_DATA_VERSION)
    finally:
        for place in trio.confs:
            await trio.set_key(*place, "compatibleWithOldNameSrv", "false")
