"""`batonmq admin` on a broker with access control: users and rights, and whose credentials count."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.integration.access import AUTH
from tests.integration.broker.rig import configs

from batonmq.admin.main import admin
from batonmq.broker.auth_config import AuthConfig
from batonmq.broker.service import BrokerService

ROOT = {"BATONMQ_ACCESS_KEY": "root", "BATONMQ_SECRET_KEY": "root-secret"}


class Cluster:
    def __init__(self, brokers: list[BrokerService]) -> None:
        self.addresses = [f"127.0.0.1:{broker.port}" for broker in brokers]

    async def run(
        self, command: str, *words: str, env: dict[str, str] = ROOT, typed: str | None = None
    ) -> Any:
        done = await self.tried(command, *words, "--json", env=env, typed=typed)
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    async def tried(
        self, command: str, *words: str, env: dict[str, str] = ROOT, typed: str | None = None
    ) -> Any:
        where = () if command.startswith("copy") else ("-b", self.addresses[0])
        arguments = [command, *where, *words]
        return await asyncio.to_thread(CliRunner().invoke, admin, arguments, env=env, input=typed)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    brokers = [
        BrokerService(*configs(tmp_path / name, broker_name=name), auth=AuthConfig(**AUTH))
        for name in ("a", "b")
    ]
    for broker in brokers:
        await broker.start()
    yield Cluster(brokers)
    for broker in brokers:
        await broker.stop()


async def test_users_from_beginning_to_end(cluster: Cluster) -> None:
    await cluster.run("createUser", "-u", "alice", "-p", "one")
    await cluster.run("createUser", "-u", "bob", "-t", "super", typed="two\ntwo\n")
    listed = await cluster.run("listUser", "-f", "b")
    address = cluster.addresses[0]
    assert listed == [{"brokerAddress": address, "user": "bob", "type": "Super", "status": "enable"}]
    await cluster.run("updateUser", "-u", "alice", "-s", "disable")
    assert (await cluster.run("getUser", "-u", "alice"))[0]["status"] == "disable"
    mine = {"BATONMQ_ACCESS_KEY": "bob", "BATONMQ_SECRET_KEY": "two"}
    done = await cluster.tried("getUser", "-u", "nobody", env=mine)
    assert done.exit_code == 1 and f"no user nobody at {address}" in done.output
    done = await cluster.tried("getAcl", "-s", "User:bob")
    assert done.exit_code == 1 and f"User:bob has no list at {address}" in done.output
    await cluster.run("updateUser", "-u", "bob", "-p", typed="three\nthree\n")
    mine["BATONMQ_SECRET_KEY"] = "three"
    assert len(await cluster.run("getUser", "-u", "bob", env=mine)) == 1
    copied = await cluster.run("copyUser", "-f", address, "-t", cluster.addresses[1], "-u", "alice, bob")
    assert copied == [{"user": "alice"}, {"user": "bob"}]
    await cluster.run("copyUser", "-f", address, "-t", cluster.addresses[1])
    await cluster.run("deleteUser", "-u", "alice")
    assert [row["user"] for row in await cluster.run("listUser")] == ["bob", "inner", "root"]
    other = await cluster.run("listUser", "-b", cluster.addresses[1])
    assert [row["user"] for row in other] == ["alice", "bob", "inner", "root"]


async def test_rights_from_beginning_to_end(cluster: Cluster) -> None:
    await cluster.run("createUser", "-u", "alice", "-p", "one")
    words = ["-s", "User:alice", "-r", "Topic:a*, Group:*", "-a", "Pub,Sub"]
    await cluster.run("createAcl", *words, "-i", "10.0.0.0/8,::1", "-d", "Allow")
    await cluster.run("updateAcl", "-s", "User:alice", "-r", "Topic:a*", "-a", "All", "-d", "Deny")
    rows = await cluster.run("getAcl", "-s", "User:alice")
    assert [(row["resource"], row["actions"], row["sourceIps"], row["decision"]) for row in rows] == [
        ("Topic:a*", "All", "", "Deny"),
        ("Group:*", "Pub, Sub", "10.0.0.0/8, ::1", "Allow"),
    ]
    assert [row["resource"] for row in await cluster.run("listAcl", "-r", "Group")] == ["Group:*"]
    source, target = cluster.addresses
    failed = await cluster.tried("copyAcl", "-f", source, "-t", target)
    assert failed.exit_code == 1 and "The subject of User:alice is not exist." in failed.output
    await cluster.run("copyUser", "-f", source, "-t", target)
    assert await cluster.run("copyAcl", "-f", source, "-t", target) == [{"subject": "User:alice"}]
    assert len(await cluster.run("listAcl", "-b", target)) == 2
    await cluster.run("deleteAcl", "-s", "User:alice", "-r", "Topic:a*")
    assert [row["resource"] for row in await cluster.run("listAcl")] == ["Group:*"]
    await cluster.run("deleteAcl", "-s", "User:alice")
    assert await cluster.run("listAcl") == []


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({}, "username cannot be null."),
        ({**ROOT, "BATONMQ_SECRET_KEY": "hidden9"}, "check signature failed."),
        ({"BATONMQ_ACCESS_KEY": "root"}, "BATONMQ_ACCESS_KEY and BATONMQ_SECRET_KEY must both be set"),
    ],
)
async def test_wrong_credentials_are_one_line(cluster: Cluster, env: dict[str, str], words: str) -> None:
    clean = {"BATONMQ_ACCESS_KEY": "", "BATONMQ_SECRET_KEY": "", "ROCKETMQ_HOME": ""}
    done = await cluster.tried("listUser", env={**clean, **env})
    assert done.exit_code == 1
    assert words in done.output and len(done.output.splitlines()) == 1 and "hidden9" not in done.output


async def test_what_mqadmin_s_file_says_is_used(cluster: Cluster, tmp_path: Path) -> None:
    tools = tmp_path / "conf" / "tools.yml"
    tools.parent.mkdir()
    tools.write_text("accessKey: root\nsecretKey: root-secret\n")
    home = {"BATONMQ_ACCESS_KEY": "", "BATONMQ_SECRET_KEY": "", "ROCKETMQ_HOME": str(tmp_path)}
    assert await cluster.run("listUser", "-f", "root", env=home)
    named = {**home, "ROCKETMQ_HOME": "", "BATONMQ_CREDENTIALS": str(tools)}
    assert await cluster.run("listUser", "-f", "root", env=named)


async def test_a_change_of_nothing_is_refused_before_anything_is_sent(cluster: Cluster) -> None:
    done = await cluster.tried("updateUser", "-u", "alice")
    assert done.exit_code == 1 and "give what is to change: -p, -t or -s" in done.output
