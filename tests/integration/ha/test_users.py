"""Users and their rights in a broker set: slaves have their master's, and they outlive its loss."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.integration.classic.group import ClassicGroup, until
from tests.integration.ha.replica_group import PATIENCE_S, ReplicaGroup

from batonmq import Credentials, Message, Producer
from batonmq.client.errors import ClientError
from batonmq.net import RemotingClient
from batonmq.protocol.bodies.auth import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker import auth as wire
from batonmq.protocol.json import encode
from batonmq.protocol.registry import Header

ROOT = Credentials("root", "root-secret")
AUTH: dict[str, object] = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "initAuthenticationUser": '{"username":"root","password":"root-secret"}',
    "innerClientAuthenticationCredentials": '{"accessKey":"inner","secretKey":"inner-secret"}',
}


@pytest.fixture
async def group(tmp_path: Path) -> AsyncIterator[ReplicaGroup]:
    made = ReplicaGroup(tmp_path / "group", replicas=2, settings=AUTH, credentials=ROOT)
    await made.up()
    yield made
    await made.close()


async def make_user(client: RemotingClient, address: str, name: str) -> None:
    await client.call(address, wire.CreateUser(name), encode(UserInfo(password=f"{name}-secret")))


async def allow(client: RemotingClient, address: str, name: str, resource: str) -> None:
    entry = PolicyEntryInfo(resource=resource, actions=["Pub"], decision="Allow")
    info = AclInfo(subject=f"User:{name}", policies=[PolicyInfo(entries=[entry])])
    await client.call(address, wire.CreateAcl(f"User:{name}"), encode(info))


async def names(client: RemotingClient, address: str) -> list[str]:
    body = bytes((await client.call(address, wire.ListUsers())).body)
    return [user["username"] for user in json.loads(body)] if body else []


async def code_of(client: RemotingClient, address: str, header: Header, body: bytes = b"") -> int:
    try:
        return (await client.call(address, header, body)).code
    except MQError as error:
        return error.code


async def sends(group: ReplicaGroup, user: Credentials, topic: str) -> bool:
    """Whether a user may send; waits while the broker set has no master."""
    async with Producer(
        "p", group.cluster.namesrv_address, send_timeout_ms=15_000, credentials=user
    ) as producer:
        try:
            await producer.send(Message(topic, b"x"))
        except (MQError, ClientError):
            return False
        return True


async def test_users_and_rights_outlive_the_loss_of_the_master(group: ReplicaGroup) -> None:
    master = await group.master()
    (slave,) = [each for each in group.cluster.brokers if each is not master]
    client = group.client
    # As mqadmin does: each change is sent to every broker of the cluster, in any order.
    for address in (slave.address, master.address):
        await make_user(client, address, "alice")
    for address in (master.address, slave.address):
        await make_user(client, address, "bob")
        await allow(client, address, "alice", "Topic:Orders")
    for address in (master.address, slave.address):
        assert await names(client, address) == ["alice", "bob", "inner", "root"], "at once, on both"
    again = encode(UserInfo(password="other"))
    assert await code_of(client, master.address, wire.CreateUser("alice"), again) == 16
    assert await code_of(client, slave.address, wire.CreateUser("alice"), again) == 16
    for address in (slave.address, master.address):
        await client.call(address, wire.DeleteUser("bob"))
        await client.call(address, wire.DeleteAcl("User:alice", resource="Topic:None"))
    alice = Credentials("alice", "alice-secret")
    assert await sends(group, alice, "Orders")
    assert not await sends(group, alice, "Bills")

    await asyncio.to_thread(master.kill)
    await group.in_sync(1)
    assert await sends(group, alice, "Orders")
    assert not await sends(group, Credentials("alice", "wrong"), "Orders")
    assert not await sends(group, alice, "Bills")
    await allow(client, slave.address, "alice", "Topic:Bills")
    assert await sends(group, alice, "Bills")

    await asyncio.to_thread(master.start)
    await group.in_sync(2)
    await allow(client, master.address, "alice", "Topic:More")  # a slave now, which passes it on
    assert await sends(group, alice, "More")
    for program in (master, slave):
        acl = json.loads(bytes((await client.call(program.address, wire.GetAcl("User:alice"))).body))
        resources = [entry["resource"] for entry in acl["policies"][0]["entries"]]
        assert resources == ["Topic:Orders", "Topic:Bills", "Topic:More"]


async def test_a_slave_without_a_master_changes_no_users(tmp_path: Path) -> None:
    group = ClassicGroup(tmp_path, settings=AUTH, credentials=ROOT)
    try:
        await group.up()
        await group.serving()
        master, slave = group.brokers
        await make_user(group.client, master.address, "aaron")
        deadline = time.monotonic() + PATIENCE_S
        while "aaron" not in await names(group.client, slave.address):  # it copies tables from now on
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
        await make_user(group.client, slave.address, "alice")
        assert await names(group.client, master.address) == ["aaron", "alice", "inner", "root"]
        await asyncio.to_thread(master.kill)
        with pytest.raises(MQError, match="master") as caught:
            await make_user(group.client, slave.address, "bob")
        assert caught.value.code == 1
        assert await names(group.client, slave.address) == ["aaron", "alice", "inner", "root"]
        await asyncio.to_thread(master.start)
        await group.in_sync(1)
        await _made(group.client, slave.address, "bob")
        assert await names(group.client, master.address) == ["aaron", "alice", "bob", "inner", "root"]
    finally:
        await group.close()


async def _made(client: RemotingClient, address: str, name: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return await make_user(client, address, name)
        except MQError:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.1)


async def test_a_slave_that_signs_with_a_wrong_secret_says_so(tmp_path: Path) -> None:
    wrong = {**AUTH, "innerClientAuthenticationCredentials": '{"accessKey":"inner","secretKey":"wrong"}'}
    keys = {"innerClientAuthenticationCredentials": AUTH["innerClientAuthenticationCredentials"]}
    group = ClassicGroup(tmp_path, settings=wrong, master_settings=keys, credentials=ROOT)
    try:
        for program in (group.namesrv, *group.brokers):
            await asyncio.to_thread(program.start)
        await until(lambda: "check signature failed" in group.log(1), "the slave's log names the reason")
        assert "refused" in group.log(0)
        assert "wrong" not in group.log(0) + group.log(1) and "-secret" not in group.log(0) + group.log(1)
    finally:
        await group.close()
