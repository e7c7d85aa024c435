"""Settings of a container and of all its brokers change while it runs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from tests.integration.container.files import BrokerConf
from tests.integration.container.node import container, name_server, refused, registered, until

from batonmq.common.config import parse_properties
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.headers.broker.admin import (
    GetBrokerConfig,
    GetBrokerConfigResponse,
    UpdateBrokerConfig,
)


async def test_name_servers_change_while_brokers_come(tmp_path: Path) -> None:
    a, b = BrokerConf(tmp_path, "a"), BrokerConf(tmp_path, "b")
    async with container(broker_config_paths=str(a.path)) as node:
        first = node.broker(a).broker.settings
        async with first._changing:  # another change is written
            change = asyncio.ensure_future(node.service.container.set_name_servers("127.0.0.1:1"))
            await asyncio.sleep(0)
            await node.add(b.path)
        await change
        for conf in (a, b):
            assert node.broker(conf).broker.settings.broker.namesrv_addr == "127.0.0.1:1"


async def test_a_broker_that_writes_its_keys_keeps_no_other_from_new_name_servers(tmp_path: Path) -> None:
    confs = [BrokerConf(tmp_path, name) for name in "abc"]
    async with container(broker_config_paths=":".join(str(each.path) for each in confs)) as node:
        first, *others = (service.broker.settings for service in node.running.values())
        async with first._changing:
            change = asyncio.ensure_future(node.service.container.set_name_servers("127.0.0.1:1"))
            await until(lambda: all(each.broker.namesrv_addr for each in others), 2.0)
            assert not first.broker.namesrv_addr
        await change
        assert {each.broker.namesrv_addr for each in (first, *others)} == {"127.0.0.1:1"}


async def test_name_servers_of_all_brokers_change_at_once(tmp_path: Path) -> None:
    a, b, c = (BrokerConf(tmp_path, name) for name in "abc")
    a.write(namesrvAddr="127.0.0.1:1")  # the container's are used
    file = tmp_path / "container.conf"
    async with name_server(tmp_path) as (first, one), name_server(tmp_path) as (second, two):
        file.write_text(f"# mine\nnamesrvAddr={one}\n")
        keys = {"namesrv_addr": one, "broker_config_paths": f"{a.path}:{b.path}"}
        async with container(file, **keys) as node:
            assert node.service.ready_line.endswith(f" and name server is {one}")
            await until(lambda: registered(first) == {"a", "b"})
            await node.client.call(node.address, UpdateBrokerConfig(), f"namesrvAddr={two}\n".encode())
            await until(lambda: registered(second) == {"a", "b"} and not registered(first))
            await node.add(c.path)
            await until(lambda: registered(second) == {"a", "b", "c"})
            assert file.read_text() == f"# mine\nnamesrvAddr={two}\n"
            assert "namesrvAddr=127.0.0.1:1\n" in a.path.read_text()
            await refused(
                node.client.call(node.address, UpdateBrokerConfig(), b"namesrvAddr=\n"),
                ResponseCode.SYSTEM_ERROR,
                "namesrvAddr cannot become empty",
            )
            both = f"namesrvAddr={one};{two}".encode()
            await node.client.call(node.address, UpdateBrokerConfig(), both)
            await until(lambda: registered(first) == registered(second) == {"a", "b", "c"})
        assert not registered(first) and not registered(second)


async def test_the_containers_configuration_can_be_read_and_some_keys_changed(tmp_path: Path) -> None:
    file = tmp_path / "container.conf"
    file.write_text("listenPort=0\n")
    async with container(file, config_black_list="namesrvAddr") as node:
        answer = await node.client.call(node.address, GetBrokerConfig())
        assert isinstance(answer.header, GetBrokerConfigResponse)
        assert parse_properties(bytes(answer.body).decode())["configBlackList"] == "namesrvAddr"

        def change(text: bytes) -> Any:
            return node.client.call(node.address, UpdateBrokerConfig(), text)

        for key in (
            "namesrvAddr",
            "brokerConfigPaths",
            "configBlackList",
            "addBrokerDirectories",
            "rocketmqHome",
        ):
            await refused(
                change(f"{key}=x".encode()),
                ResponseCode.NO_PERMISSION,
                "Can not update config in black list.",
            )
        await refused(change(b"listenPort=1"), ResponseCode.SYSTEM_ERROR, "cannot change while")
        await refused(
            change(b"fileReservedTime=1"), ResponseCode.SYSTEM_ERROR, "unknown key fileReservedTime"
        )
        await refused(change(b"\xff\xfe"), ResponseCode.SYSTEM_ERROR, "not properties text")
        assert file.read_text() == "listenPort=0\n"
