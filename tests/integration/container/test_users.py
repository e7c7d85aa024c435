"""Brokers of one container, each with the access control of its own file."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.integration.container.files import BrokerConf
from tests.integration.container.test_container import container
from tests.integration.ha.test_users import AUTH, ROOT, make_user, names

from batonmq.demo.cluster import Program
from batonmq.demo.ports import free_ports
from batonmq.net import RemotingClient
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker.admin import GetBrokerRuntimeInfo
from batonmq.protocol.headers.broker.replication import AddBroker


async def test_each_broker_has_its_own_users(tmp_path: Path) -> None:
    closed, other, opened = (
        BrokerConf(tmp_path, "closed", settings=AUTH),
        BrokerConf(tmp_path, "other", settings=AUTH),
        BrokerConf(tmp_path, "open"),
    )
    client = RemotingClient(credentials=ROOT)
    async with container() as node:
        for conf in (closed, other, opened):
            await node.add(conf.path)
        try:
            await make_user(client, closed.address, "alice")
            assert await names(client, closed.address) == ["alice", "inner", "root"]
            assert await names(client, other.address) == ["inner", "root"]
        finally:
            await client.close()
        for conf in (closed, other):
            with pytest.raises(MQError, match="username cannot be null"):
                await node.client.call(conf.address, GetBrokerRuntimeInfo())
        await node.client.call(opened.address, GetBrokerRuntimeInfo())


async def test_a_wrong_file_is_refused_without_its_secrets(tmp_path: Path) -> None:
    wrong = BrokerConf(tmp_path, "wrong", settings={**AUTH, "initAuthenticationUser": "root:hidden9"})
    async with container() as node:
        with pytest.raises(MQError, match="initAuthenticationUser: expected") as caught:
            await node.add(wrong.path)
        assert "hidden9" not in caught.value.remark


async def test_brokers_in_worker_processes_have_users_too(tmp_path: Path) -> None:
    conf = BrokerConf(tmp_path, "closed", settings=AUTH)
    (port,) = free_ports(1)
    keys = {"listenPort": port, "bindAddress": "127.0.0.1", "containerProcesses": 2}
    program = Program("container", "container", tmp_path, keys)
    signing, plain = RemotingClient(credentials=ROOT), RemotingClient()
    await asyncio.to_thread(program.start)
    try:
        await plain.call(f"127.0.0.1:{port}", AddBroker(config_path=str(conf.path)), timeout_ms=20_000)
        assert await names(signing, conf.address) == ["inner", "root"]
        with pytest.raises(MQError, match="username cannot be null"):
            await plain.call(conf.address, GetBrokerRuntimeInfo())
    finally:
        await signing.close()
        await plain.close()
        await asyncio.to_thread(program.stop)
