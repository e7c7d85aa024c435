"""The whole name server on virtual time: brokers that crash, fall silent or are cut off."""

from __future__ import annotations

import asyncio

import pytest
from tests.simulation.loop import SimLoop

from batonmq.namesrv.config import NamesrvConfig
from batonmq.namesrv.service import NamesrvService
from batonmq.net import CallTimeout, ConnectFailed, RemotingClient
from batonmq.protocol.bodies.common import DataVersion
from batonmq.protocol.bodies.routes import ClusterInfo
from batonmq.protocol.bodies.topics import (
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigAndMappingSerializeWrapper,
)
from batonmq.protocol.headers import namesrv as wire
from batonmq.protocol.json import decode, encode

pytestmark = pytest.mark.simulation

ADDRESS = "10.0.0.1:9876"
BODY = encode(
    RegisterBrokerBody(
        TopicConfigAndMappingSerializeWrapper(
            {"t1": TopicConfig("t1"), "t2": TopicConfig("t2")}, DataVersion(1, 1)
        )
    )
)


class LoopClock:
    """The loop's time, as everything else in the simulation sees it."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop

    def now_ms(self) -> int:
        return int(self._loop.time() * 1000)

    monotonic_ms = now_ms


def header(name: str) -> wire.RegisterBroker:
    return wire.RegisterBroker(
        broker_name=name, broker_addr=f"{name}:1", cluster_name="c", ha_server_addr="h:1", broker_id=0
    )


@pytest.mark.parametrize("seed", range(5))
def test_brokers_come_and_go(seed: int) -> None:
    loop = SimLoop(seed)
    network = loop.network
    hosts = {name: network.start(name, f"10.0.0.{n}") for n, name in enumerate("nabc", 1)}
    config = NamesrvConfig(bind_address="10.0.0.1", kv_config_path="/nowhere/kvConfig.json")
    service = NamesrvService(config, clock=LoopClock(loop))

    async def live() -> list[str]:
        client = RemotingClient()
        answer = await client.call(ADDRESS, wire.GetBrokerClusterInfo())
        await client.close()
        return sorted(decode(answer.body, ClusterInfo).broker_addr_table)

    async def main() -> None:
        await network.run_on(hosts["n"], lambda: loop.create_task(service.start()))
        brokers = {name: RemotingClient() for name in "ab"}
        for name, broker in brokers.items():
            coming = broker.call(ADDRESS, header(name), BODY)
            await network.run_on(hosts[name], lambda coming=coming: loop.create_task(coming))
        assert await network.run_on(hosts["c"], lambda: loop.create_task(live())) == ["a", "b"]

        network.crash(hosts["a"])  # the kernel closes the connection: gone at once
        await asyncio.sleep(1)
        assert await network.run_on(hosts["c"], lambda: loop.create_task(live())) == ["b"]

        network.cut("n", "b")  # nothing arrives any more: gone after its timeout
        await asyncio.sleep(110)
        assert await network.run_on(hosts["c"], lambda: loop.create_task(live())) == ["b"]
        await asyncio.sleep(20)
        assert await network.run_on(hosts["c"], lambda: loop.create_task(live())) == []

        with pytest.raises((ConnectFailed, CallTimeout)):
            await network.run_on(hosts["b"], lambda: loop.create_task(live()))
        beat = wire.BrokerHeartbeat("c", "b:1", "b")
        with pytest.raises(CallTimeout):  # the old connection: nothing received, so it is given up
            await network.run_on(hosts["b"], lambda: loop.create_task(brokers["b"].call(ADDRESS, beat)))
        assert brokers["b"].connected(ADDRESS) is None
        network.heal()
        await network.run_on(hosts["b"], lambda: loop.create_task(brokers["b"].call(ADDRESS, beat)))
        assert await network.run_on(hosts["b"], lambda: loop.create_task(live())) == []
        await network.run_on(hosts["b"], lambda: loop.create_task(brokers["b"].close()))
        await network.run_on(hosts["n"], lambda: loop.create_task(service.stop()))

    try:
        loop.run_until_complete(main())
    finally:
        loop.close()


@pytest.mark.parametrize("timeout_ms", [800, 3_000, 7_000])
def test_a_silent_broker_is_removed_when_its_timeout_ends(timeout_ms: int) -> None:
    loop = SimLoop(1)
    network = loop.network
    hosts = {name: network.start(name, f"10.0.0.{n}") for n, name in enumerate("nac", 1)}
    config = NamesrvConfig(bind_address="10.0.0.1", kv_config_path="/nowhere/kvConfig.json")
    service = NamesrvService(config, clock=LoopClock(loop))

    async def main() -> None:
        await network.run_on(hosts["n"], lambda: loop.create_task(service.start()))
        await asyncio.sleep(6.3)  # between two checks
        broker = RemotingClient()
        first = header("a")
        first.heartbeat_timeout_millis = timeout_ms
        coming = broker.call(ADDRESS, first, BODY)
        await network.run_on(hosts["a"], lambda: loop.create_task(coming))
        beat = broker.call(ADDRESS, wire.BrokerHeartbeat("c", "a:1", "a"))
        await asyncio.sleep(0.5)
        await network.run_on(hosts["a"], lambda: loop.create_task(beat))
        began = loop.time()
        network.cut("n", "a")
        while service.name_server.routes.member_group("c", "a").broker_addrs:
            await asyncio.sleep(0.01)
        # The check under way may come first, at most an interval later; here it knew no broker.
        late_ms = (loop.time() - began) * 1000 - timeout_ms
        assert -50 < late_ms < (300 if timeout_ms > 4_000 else 5_000 - timeout_ms)
        await network.run_on(hosts["n"], lambda: loop.create_task(service.stop()))

    try:
        loop.run_until_complete(main())
    finally:
        loop.close()
