"""Brokers of one container, each with the access control of its file."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.integration.container.files import BrokerConf
from tests.integration.container.node import container
from tests.integration.ha.test_users import AUTH, ROOT, make_user, names

from batonmq.demo.cluster import Program
from batonmq.demo.ports import free_ports
from batonmq.net import RemotingClient
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker.admin import GetBrokerRuntimeInfo
from batonmq.protocol.headers.broker.replication import AddBroker
from batonmq.protocol.headers.broker.send import ConsumerSendMsgBack
from batonmq.protocol.message.record import StoredMessage


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


@pytest.mark.parametrize(("keys", "passes"), [({}, True), (AUTH, False)])
async def test_nobody_reaches_a_master_with_users_through_a_slave_without(
    tmp_path: Path, keys: dict[str, object], passes: bool
) -> None:
    slave, master = BrokerConf(tmp_path, "a", 1), BrokerConf(tmp_path, "b", settings=keys)
    async with container(broker_config_paths=f"{slave.path}:{master.path}") as node:
        store, beside = node.broker(slave).broker.store, node.broker(master).broker
        store.put([StoredMessage(topic="T", queue_id=0, body=b"x")])
        store.dispatch()
        back = ConsumerSendMsgBack(offset=0, group="g", delay_level=0)
        if passes:
            await node.client.call(slave.address, back)
        else:
            with pytest.raises(MQError, match="no master available along with"):
                await node.client.call(slave.address, back)
        assert ("g" in beside.tables.subscriptions) is (beside.store.max_offset > 0) is passes


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
