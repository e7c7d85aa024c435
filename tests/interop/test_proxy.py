"""RocketMQ's proxy in front of our brokers: its gRPC client, and our client through its remoting port."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest

from batonmq import (
    Admin,
    ConsumeFromWhere,
    Consumer,
    Credentials,
    Message,
    MessageExt,
    MessageModel,
    Producer,
    QueueReader,
    TransactionProducer,
    TransactionState,
)
from batonmq.protocol.bodies.groups import SubscriptionGroupConfig
from tests.integration.group import Group
from tests.interop.conftest import JavaProcess, Peer

pytestmark = [pytest.mark.interop, pytest.mark.timeout(400)]
PROGRAM = Path(__file__).parent / "java5" / "ThroughProxy.java"
TOPICS = {
    "Normal": "NORMAL",
    "Ordered": "FIFO",
    "Timed": "DELAY",
    "Transactions": "TRANSACTION",
    "Pushed": "NORMAL",
}
SETTINGS: dict[str, object] = {
    "enablePropertyFilter": "true",
    "recallMessageEnable": "true",
    "transactionTimeOut": 3_000,
    "transactionCheckInterval": 1_000,
}
NUMBERS = ", ".join(str(number) for number in range(20))


@contextlib.asynccontextmanager
async def behind_a_proxy(
    peer: Peer,
    folder: Path,
    *,
    settings: Mapping[str, object] | None = None,
    proxy_keys: Mapping[str, object] | None = None,
    credentials: Credentials | None = None,
    prefixes: tuple[str, ...] = ("",),
) -> AsyncIterator[tuple[Group, JavaProcess]]:
    """A replica group of two, with the topics and groups for each of `prefixes`, and a proxy. `credentials`
    are an administrator's."""
    group = Group(
        folder / "group", replicas=2, settings={**SETTINGS, **(settings or {})}, credentials=credentials
    )
    try:
        group.start()
        await group.serving()
        cluster = group.cluster
        async with Admin(cluster.namesrv_address, credentials=credentials) as admin:
            for prefix in prefixes:
                await _create(admin, cluster.cluster_name, prefix)
        # By default it asks for routes, and says which producers it has, every 20 s.
        quick = {"topicRouteServiceCacheRefreshSeconds": 1, "transactionHeartbeatPeriodSecond": 1}
        yield group, await peer.start_proxy(cluster.namesrv_address, {**quick, **(proxy_keys or {})})
    finally:
        group.cluster.stop()


async def _create(admin: Admin, cluster: str, prefix: str) -> None:
    for topic, kind in TOPICS.items():
        await admin.create_topic(prefix + topic, 4, cluster=cluster, attributes=f"+message.type={kind}")
    await admin.create_group(SubscriptionGroupConfig(f"{prefix}ordered_push", consume_message_orderly=True))
    await admin.create_group(SubscriptionGroupConfig(f"{prefix}pushed", retry_max_times=2))


async def test_quick_all_kinds_of_messages_through_the_proxy(peer: Peer, tmp_path: Path) -> None:
    async with behind_a_proxy(peer, tmp_path) as (group, proxy):

        async def run(scenario: str) -> str:
            output = await peer.java5(PROGRAM, proxy.address, scenario)
            print(output)
            return output

        simple = await run("simple")
        assert "even=[m0, m10, m12, m14, m16, m18, m2, m4, m6, m8]" in simple
        assert "sql=[m3, m4, m5, m6]" in simple
        assert "again=[]" in simple, "what was acknowledged came again"
        found = re.search(r"hidden=10 back=true first_ms=(\d+) attempt=2", simple)
        assert found is not None and int(found[1]) > 9_000
        assert f"g0=[{NUMBERS}] g1=[{NUMBERS}] tries=2" in await run("ordered")
        timed = await run("timed")
        assert "early_ms=0" in timed and "timed=[later]" in timed
        assert "transactions=[checked, committed]" in await run("transactions")
        assert "once=1 twice=2 never=3" in await run("push")
        namesrv = group.cluster.namesrv_address
        stats = await peer.admin("topicStatus", "-n", namesrv, "-t", "%DLQ%pushed")
        assert re.search(r"broker-a +0 +0 +1 ", stats), stats
        assert "Traceback" not in group.logs()


async def test_acknowledged_messages_survive_the_masters_death_behind_the_proxy(
    peer: Peer, tmp_path: Path
) -> None:
    stop = tmp_path / "stop"
    async with behind_a_proxy(peer, tmp_path) as (group, proxy):
        running = asyncio.ensure_future(peer.java5(PROGRAM, proxy.address, "kill", str(stop), timeout_s=250))
        try:
            for _ in range(2):
                await asyncio.sleep(8)
                async with Admin(group.cluster.namesrv_address) as admin:
                    (master,) = (await admin.masters()).values()
                killed = group.cluster.broker_at(master)
                killed.kill()
                await asyncio.sleep(8)
                killed.start()
            await asyncio.sleep(5)
        finally:
            stop.touch()
            output = await running
        print(output)
        numbers = {key: int(value) for key, value in re.findall(r"(\w+)=(\d+)", output)}
        assert numbers["lost"] == 0
        assert numbers["sent"] > 1_000
        assert numbers["gap_ms"] < 10_000
        assert "Traceback" not in group.logs()


async def test_our_clients_work_through_the_proxys_remoting_port(peer: Peer, tmp_path: Path) -> None:
    async with behind_a_proxy(peer, tmp_path) as (group, proxy):
        address = f"127.0.0.1:{proxy.config['remotingListenPort']}"
        sent = [b"%d" % number for number in range(50)]
        async with Producer("ours", address) as producer:
            queue = (await producer.queues("Normal"))[0]
            for body in sent:
                await producer.send(Message("Normal", body, tags="t"), queue=queue)
            receipt = await producer.send(Message("Timed", b"recalled", deliver_at=time.time() + 60))
            assert receipt.recall_handle is not None
            assert await producer.recall("Timed", receipt.recall_handle) == receipt.message_id

        await _consumes_in_order(address, sent)
        await _checks_end_transactions(address)
        await _broadcasts(address, set(sent), tmp_path)
        assert "Traceback" not in group.logs()


async def _consumes_in_order(address: str, sent: list[bytes]) -> None:
    got: list[bytes] = []
    failed: set[bytes] = set()

    def handle(message: MessageExt) -> None:
        if message.body == sent[7] and not failed:
            failed.add(message.body)
            raise ValueError("again, please")
        got.append(message.body)

    consumer = Consumer(
        "reading", address, from_where=ConsumeFromWhere.FIRST_OFFSET, orderly=True, suspend_ms=100
    )
    consumer.subscribe("Normal", "t", handle)
    async with consumer, asyncio.timeout(60):
        while len(got) < len(sent):
            await asyncio.sleep(0.1)
    assert got == sent
    async with QueueReader(address) as reader:
        queue = (await reader.queues("Normal"))[0]
        assert await reader.max_offset(queue) == len(sent)


async def _checks_end_transactions(address: str) -> None:
    """RocketMQ's proxy takes the end of a transaction at this port and does nothing, with its own brokers as
    well: brokers ask what became of it, and that answer counts."""
    asked: set[bytes] = set()

    async def check(message: MessageExt) -> TransactionState:
        asked.add(message.body)
        return TransactionState.COMMIT if message.body == b"committed" else TransactionState.ROLLBACK

    got: set[bytes] = set()
    consumer = Consumer("paying", address, from_where=ConsumeFromWhere.FIRST_OFFSET)
    consumer.subscribe("Transactions", "*", lambda message: got.add(message.body))
    async with TransactionProducer("ours_in_transactions", address, check=check) as producer:
        async with producer.transaction(Message("Transactions", b"committed")):
            pass
        async with producer.transaction(Message("Transactions", b"rolled back")) as transaction:
            await transaction.rollback()
        async with consumer, asyncio.timeout(60):
            while not got or len(asked) < 2:
                await asyncio.sleep(0.1)
            await asyncio.sleep(2)
    assert got == {b"committed"}


async def _broadcasts(address: str, sent: set[bytes], folder: Path) -> None:
    """Every client of the group gets every message once, also after a restart of the client."""
    for more in (b"first", b"second"):
        got: list[list[bytes]] = [[], []]
        async with contextlib.AsyncExitStack() as stack:
            for number, bodies in enumerate(got):
                consumer = Consumer(
                    "broadcasting",
                    address,
                    model=MessageModel.BROADCASTING,
                    from_where=ConsumeFromWhere.FIRST_OFFSET,
                    offsets_dir=str(folder / f"offsets-{number}"),
                )
                consumer.subscribe("Normal", "*", lambda message, bodies=bodies: bodies.append(message.body))
                await stack.enter_async_context(consumer)
            async with Producer("ours", address) as producer:
                await producer.send(Message("Normal", more))
            wanted = sorted({more} if more == b"second" else sent | {more})
            async with asyncio.timeout(30):
                while any(len(bodies) < len(wanted) for bodies in got):
                    await asyncio.sleep(0.1)
            await asyncio.sleep(1)
        assert [sorted(bodies) for bodies in got] == [wanted, wanted]


async def test_users_of_our_brokers_sign_what_they_send_to_the_proxy(peer: Peer, tmp_path: Path) -> None:
    root, inner = ("root", "root-secret"), ("inner", "inner-secret")
    keys: dict[str, object] = {
        "authenticationEnabled": "true",
        "authorizationEnabled": "true",
        "initAuthenticationUser": json.dumps({"username": root[0], "password": root[1]}),
        "innerClientAuthenticationCredentials": json.dumps({"accessKey": inner[0], "secretKey": inner[1]}),
    }
    package, provider = "org.apache.rocketmq.proxy.auth", "org.apache.rocketmq.auth"
    proxy_keys: dict[str, object] = {
        "enableAclRpcHookForClusterMode": True,
        "authenticationEnabled": True,
        "authenticationProvider": f"{provider}.authentication.provider.DefaultAuthenticationProvider",
        "authenticationMetadataProvider": f"{package}.ProxyAuthenticationMetadataProvider",
        "authorizationEnabled": True,
        "authorizationProvider": f"{provider}.authorization.provider.DefaultAuthorizationProvider",
        "authorizationMetadataProvider": f"{package}.ProxyAuthorizationMetadataProvider",
        "innerClientAuthenticationCredentials": keys["innerClientAuthenticationCredentials"],
    }
    async with behind_a_proxy(
        peer, tmp_path, settings=keys, proxy_keys=proxy_keys, credentials=Credentials(*root)
    ) as (group, proxy):
        peer.sign_as(*root)
        at = ("-n", group.cluster.namesrv_address, "-c", group.cluster.cluster_name)
        await peer.admin("createUser", *at, "-u", "alice", "-p", "alices-secret")
        allowed = ("-r", "Topic:*,Group:*", "-a", "Pub,Sub", "-d", "Allow")
        await peer.admin("createAcl", *at, "-s", "User:alice", *allowed)
        simple = await peer.java5(PROGRAM, proxy.address, "simple", signed_by=("alice", "alices-secret"))
        assert "even=[m0, m10, m12, m14, m16, m18, m2, m4, m6, m8]" in simple, simple
        for stranger in (("alice", "guessed"), ("bob", "unknown"), None):
            refused = await peer.java5(PROGRAM, proxy.address, "simple", signed_by=stranger)
            assert "even=" not in refused and "Exception" in refused, refused
