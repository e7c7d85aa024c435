"""Registration with name servers: at once, again after a restart, and not in a loop."""

import asyncio
import time
from pathlib import Path

from tests.integration.broker.rig import Starter

from batonmq.demo.ports import free_ports
from batonmq.namesrv.config import NamesrvConfig
from batonmq.namesrv.service import NamesrvService
from batonmq.net import Dispatcher, RemotingClient, RemotingServer, Reply, Request
from batonmq.protocol.bodies.routes import TopicRouteData
from batonmq.protocol.codes import RequestCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.namesrv import GetRouteInfo
from batonmq.protocol.json import decode


async def test_topics_reach_the_name_server_at_once_and_leave_again(start: Starter, tmp_path: Path) -> None:
    namesrv = NamesrvService(
        NamesrvConfig(listen_port=0, bind_address="127.0.0.1", kv_config_path=str(tmp_path / "kv.json"))
    )
    await namesrv.start()
    address = f"127.0.0.1:{namesrv.port}"
    try:
        # The first name server does not exist; it must not delay the other.
        rig = await start(namesrv_addr=f"127.0.0.1:1;{address}")
        await rig.send(topic="Fresh")

        async def route() -> TopicRouteData | None:
            try:
                answer = await rig.client.call(address, GetRouteInfo(topic="Fresh"))
            except MQError:
                return None
            return decode(answer.body, TopicRouteData)

        found = None
        for _ in range(100):
            if (found := await route()) is not None:
                break
            await asyncio.sleep(0.02)
        assert found is not None
        assert found.broker_datas[0].broker_addrs == {0: f"127.0.0.1:{rig.broker.port}"}
        assert found.queue_datas[0].write_queue_nums == 4
        await rig.broker.stop()
        assert await route() is None
    finally:
        await namesrv.stop()


async def test_a_name_server_that_was_restarted_has_the_routes_back_at_once(
    start: Starter, tmp_path: Path
) -> None:
    """Not only at the next period, which is half a minute away."""
    (port,) = free_ports(1)
    found_after = []
    for life in range(3):
        namesrv = NamesrvService(
            NamesrvConfig(
                listen_port=port, bind_address="127.0.0.1", kv_config_path=str(tmp_path / "kv.json")
            )
        )
        await namesrv.start()
        began = time.monotonic()
        if life == 0:
            rig = await start(namesrv_addr=f"127.0.0.1:{port}")
            await rig.send(topic="Kept")
        client = RemotingClient()
        async with asyncio.timeout(10):
            while True:
                try:
                    await client.call(f"127.0.0.1:{port}", GetRouteInfo(topic="Kept"))
                    break
                except MQError:
                    await asyncio.sleep(0.02)
        found_after.append(time.monotonic() - began)
        await client.close()
        await namesrv.stop()
    assert max(found_after[1:]) < 2.5, found_after


async def test_a_name_server_that_closes_every_connection_is_not_registered_with_in_a_loop(
    start: Starter,
) -> None:
    answered: list[float] = []

    def register(request: Request) -> Reply:
        answered.append(time.monotonic())
        asyncio.get_running_loop().call_later(0.01, request.connection.close)
        return Reply(ext={})

    dispatcher = Dispatcher()
    dispatcher.on_code(RequestCode.REGISTER_BROKER, register)
    server = RemotingServer(dispatcher, "127.0.0.1", 0)
    await server.start()
    try:
        await start(namesrv_addr=f"127.0.0.1:{server.port}")
        await asyncio.sleep(2.5)
    finally:
        await server.stop()
    assert 2 <= len(answered) <= 4, answered
