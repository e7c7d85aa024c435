"""Access control beside RocketMQ: our clients on its broker, its clients and mqadmin on ours, and the same
requests of the same users on both."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from batonmq import (
    Admin,
    ConsumeFromWhere,
    Consumer,
    Credentials,
    Message,
    MessageExt,
    MQError,
    PopConsumer,
    Producer,
    QueueReader,
    SimpleConsumer,
    TransactionProducer,
    TransactionState,
)
from batonmq.broker.auth_config import AuthConfig
from batonmq.broker.config import BrokerConfig
from batonmq.broker.service import BrokerService
from batonmq.ha.config import HAConfig
from batonmq.namesrv.config import NamesrvConfig
from batonmq.namesrv.service import NamesrvService
from batonmq.net import RemotingClient
from batonmq.protocol.bodies.auth import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo
from batonmq.protocol.bodies.clients import (
    ConsumerData,
    HeartbeatData,
    LockBatchRequestBody,
    SubscriptionData,
)
from batonmq.protocol.bodies.common import MessageQueue
from batonmq.protocol.codes import RequestCode as Code
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.frame import Command
from batonmq.protocol.headers.broker import auth as wire
from batonmq.protocol.headers.broker.topics import CreateTopic, GetAllTopicConfig
from batonmq.protocol.json import encode
from batonmq.store.config import StoreConfig
from tests.integration.classic.group import ClassicGroup
from tests.interop.conftest import Peer
from tests.interop.test_classic_replication import followed, java_settings

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]
JAVA = Path(__file__).parent / "java"

ROOT = Credentials("root", "root-secret")
CLUSTER = "DefaultCluster"
PACKAGE = "org.apache.rocketmq.auth"
KEYS = {
    "authenticationEnabled": "true",
    "authenticationProvider": f"{PACKAGE}.authentication.provider.DefaultAuthenticationProvider",
    "authenticationMetadataProvider": (
        f"{PACKAGE}.authentication.provider.LocalAuthenticationMetadataProvider"
    ),
    "initAuthenticationUser": '{"username":"root","password":"root-secret"}',
    "innerClientAuthenticationCredentials": '{"accessKey":"inner","secretKey":"inner-secret"}',
    "authorizationEnabled": "true",
    "authorizationProvider": f"{PACKAGE}.authorization.provider.DefaultAuthorizationProvider",
    "authorizationMetadataProvider": f"{PACKAGE}.authorization.provider.LocalAuthorizationMetadataProvider",
}
NO = int(ResponseCode.NO_PERMISSION)


@dataclass(frozen=True)
class System:
    """One of the two, with one broker."""

    namesrv: str
    broker: str


async def start_java(peer: Peer) -> System:
    namesrv = await peer.start("namesrv")
    broker = await peer.start(
        "broker", {"namesrvAddr": namesrv.address, "brokerName": "b", "timerWheelEnable": "true", **KEYS}
    )
    peer.sign_as(ROOT.access_key, ROOT.secret_key)
    await peer.admin_until(broker.address, "clusterList", "-n", namesrv.address)
    return System(namesrv.address, broker.address)


@contextlib.asynccontextmanager
async def our_system(peer: Peer, folder: Path) -> AsyncIterator[System]:
    namesrv = NamesrvService(
        NamesrvConfig(listen_port=0, bind_address="127.0.0.1", kv_config_path=str(folder / "kv.json"))
    )
    await namesrv.start()
    port = peer.free_port()
    service = BrokerService(
        BrokerConfig(
            broker_name="b",
            broker_ip1="127.0.0.1",
            bind_address="127.0.0.1",
            listen_port=port,
            namesrv_addr=f"127.0.0.1:{namesrv.port}",
        ),
        StoreConfig(
            store_path_root_dir=str(folder / "store"), max_index_num=100_000, max_hash_slot_num=20_000
        ),
        HAConfig(),
        auth=AuthConfig(
            authentication_enabled=True,
            authorization_enabled=True,
            init_authentication_user=KEYS["initAuthenticationUser"],
            inner_client_authentication_credentials=KEYS["innerClientAuthenticationCredentials"],
        ),
    )
    await service.start()
    peer.sign_as(ROOT.access_key, ROOT.secret_key)
    try:
        yield System(f"127.0.0.1:{namesrv.port}", f"127.0.0.1:{port}")
    finally:
        await service.stop()
        await namesrv.stop()


# -- our clients on RocketMQ's broker


async def test_quick_our_clients_on_rocketmq_s_broker(peer: Peer) -> None:
    system = await start_java(peer)
    alice = Credentials("alice", "alice-secret")
    client = RemotingClient(credentials=ROOT)
    try:
        await client.call(system.broker, wire.CreateUser("alice"), encode(UserInfo(password="alice-secret")))
        acl = acl_of("alice", ("Topic:*", ["Pub", "Sub", "Get"], "Allow"), ("Group:*", ["All"], "Allow"))
        await client.call(system.broker, wire.CreateAcl("User:alice"), encode(acl))
    finally:
        await client.close()
    async with Admin(system.namesrv, credentials=ROOT) as admin:
        await admin.create_topic("orders", 2)
    await every_client(system, alice)
    for user in (None, Credentials("alice", "wrong"), Credentials("nobody", "x")):
        async with Producer("p", system.namesrv, credentials=user) as producer:
            with pytest.raises(MQError) as caught:
                await producer.send(Message("orders", b"x"))
            assert caught.value.code == NO


async def every_client(system: System, user: Credentials) -> None:
    """Each of our clients does its work, with signed requests."""
    namesrv = system.namesrv
    async with Producer("p", namesrv, credentials=user) as producer:
        await producer.send(Message("orders", b"one"))
        await producer.send([Message("orders", b"two"), Message("orders", b"three")])

    async def commit(message: MessageExt) -> TransactionState:
        return TransactionState.COMMIT

    async with (
        TransactionProducer("tp", namesrv, check=commit, credentials=user) as committing,
        committing.transaction(Message("orders", b"four")),
    ):
        pass
    wanted = {b"one", b"two", b"three", b"four"}
    async with QueueReader(namesrv, credentials=user) as reader:
        queues = await reader.queues("orders")
        assert sum([await reader.max_offset(queue) for queue in queues]) == 4
    for make in (Consumer, PopConsumer):
        seen: set[bytes] = set()

        async def handle(message: MessageExt, seen: set[bytes] = seen) -> None:
            seen.add(message.body)

        consumer = make(
            f"{make.__name__}Group", namesrv, from_where=ConsumeFromWhere.FIRST_OFFSET, credentials=user
        )
        consumer.subscribe("orders", "*", handle)
        await consumer.start()
        try:
            await until(lambda seen=seen: seen == wanted, f"{make.__name__} has seen all messages")
        finally:
            await consumer.stop()
    async with SimpleConsumer(
        "SimpleGroup", namesrv, from_where=ConsumeFromWhere.FIRST_OFFSET, credentials=user
    ) as simple:
        simple.subscribe("orders")
        found: set[bytes] = set()
        for _ in range(20):
            for message in await simple.receive(wait=3):
                found.add(message.body)
                await simple.ack(message)
            if found == wanted:
                break
        assert found == wanted


async def until(condition: Any, what: str, timeout_s: float = 40) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.05)
    assert condition(), what


# -- RocketMQ's clients and tools on our broker


async def test_quick_java_s_client_on_our_broker(peer: Peer, tmp_path: Path) -> None:
    async with our_system(peer, tmp_path) as system:
        client = RemotingClient(credentials=ROOT)
        try:
            await client.call(system.broker, wire.CreateUser("jane"), encode(UserInfo(password="pw")))
            acl = acl_of("jane", ("Topic:Sign*", ["Pub", "Sub"], "Allow"), ("Group:signed", ["Sub"], "Allow"))
            await client.call(system.broker, wire.CreateAcl("User:jane"), encode(acl))
        finally:
            await client.close()
        words = [system.namesrv, "Signed", "signed"]
        output = await peer.java(JAVA / "SignedClient.java", *words, "jane", "pw", "40")
        assert "SENT 40" in output and "CONSUMED 40" in output, output[-3000:]
        output = await peer.java(JAVA / "SignedClient.java", *words, "jane", "wrong", "1")
        assert "REFUSED 16 check signature failed." in output, output[-3000:]
        output = await peer.java(
            JAVA / "SignedClient.java", system.namesrv, "Other", "signed", "jane", "pw", "1"
        )
        assert "REFUSED 16 User:jane has no permission to access Topic:Other from 127.0.0.1" in output


async def test_mqadmin_s_commands_about_users_on_our_broker(peer: Peer, tmp_path: Path) -> None:
    async with our_system(peer, tmp_path) as system:

        async def admin(*words: str) -> str:
            output = await peer.admin(*words, "-n", system.namesrv)
            assert "Exception" not in output, f"{words}: {output[-3000:]}"
            return output

        where = ("-c", CLUSTER)
        assert "success" in await admin("createUser", *where, "-u", "alice", "-p", "pw", "-t", "Normal")
        assert "Normal" in await admin("getUser", *where, "-u", "alice")
        assert "success" in await admin("updateUser", "-b", system.broker, "-u", "alice", "-s", "disable")
        listed = await admin("listUser", *where)
        assert "disable" in listed and "root" in listed
        assert "success" in await admin(
            "createAcl",
            *where,
            "-s",
            "User:alice",
            "-r",
            "Topic:a*,Group:*",
            "-a",
            "Pub,Sub",
            "-i",
            "10.0.0.0/8",
            "-d",
            "Allow",
        )
        shown = await admin("getAcl", "-b", system.broker, "-s", "User:alice")
        assert "Topic:a*" in shown and "[Pub, Sub]" in shown and "10.0.0.0/8" in shown
        assert "success" in await admin(
            "updateAcl", *where, "-s", "User:alice", "-r", "Topic:a*", "-a", "All", "-d", "Deny"
        )
        shown = await admin("listAcl", "-b", system.broker, "-r", "Topic")
        assert "Deny" in shown and "Group" not in shown
        assert "success" in await admin("deleteAcl", *where, "-s", "User:alice", "-r", "Topic:a*")
        assert "Topic" not in await admin("listAcl", *where)
        assert "success" in await admin("deleteUser", *where, "-u", "alice")
        assert "alice" not in await admin("listUser", *where)
        assert "success" in await admin("updateTopic", *where, "-t", "T")
        peer.sign_as("root", "wrong")
        output = await peer.admin("listUser", *where, "-n", system.namesrv)
        assert "check signature failed" in output


# -- the same requests of the same users on both


def acl_of(name: str, *entries: tuple[str, list[str], str], policy: str | None = None) -> AclInfo:
    infos = [
        PolicyEntryInfo(resource=resource, actions=actions, decision=decision)
        for resource, actions, decision in entries
    ]
    return AclInfo(subject=f"User:{name}", policies=[PolicyInfo(policy_type=policy, entries=infos)])


USERS: Mapping[str, Sequence[AclInfo]] = {
    "nothing": [],
    "pub": [acl_of("pub", ("Topic:Ord*", ["Pub"], "Allow"))],
    "sub": [acl_of("sub", ("Topic:Orders", ["Sub"], "Allow"), ("Group:g*", ["Sub"], "Allow"))],
    "get": [acl_of("get", ("Topic:*", ["Get"], "Allow"), ("Group:*", ["Get"], "Allow"))],
    "operator": [acl_of("operator", (f"Cluster:{CLUSTER}", ["All"], "Allow"))],
    "all": [acl_of("all", ("*", ["All"], "Allow"))],
    "exact": [acl_of("exact", ("*", ["All"], "Allow"), ("Topic:Orders", ["Pub"], "Deny"))],
    "prefix": [acl_of("prefix", ("Topic:O*", ["All"], "Deny"), ("Topic:Ord*", ["All"], "Allow"))],
    "shorter": [acl_of("shorter", ("Topic:O*", ["All"], "Allow"), ("Topic:Ord*", ["All"], "Deny"))],
    "default": [
        acl_of("default", ("Topic:Orders", ["Pub"], "Deny")),
        acl_of("default", ("*", ["All"], "Allow"), policy="Default"),
    ],
    "far": [
        AclInfo(
            subject="User:far",
            policies=[PolicyInfo(entries=[PolicyEntryInfo("*", ["All"], ["10.99.0.0/16"], "Allow")])],
        )
    ],
    "near": [
        AclInfo(
            subject="User:near",
            policies=[PolicyInfo(entries=[PolicyEntryInfo("*", ["All"], ["127.0.0.0/8"], "Allow")])],
        )
    ],
    "writer": [
        acl_of(
            "writer", ("Topic:*", ["Create", "Update", "Delete"], "Allow"), ("Group:*", ["Delete"], "Allow")
        )
    ],
}


def send(topic: str, code: Code = Code.SEND_MESSAGE_V2) -> Command:
    short = code is not Code.SEND_MESSAGE
    names = (
        "abcdefghijk"
        if short
        else [
            "producerGroup",
            "topic",
            "defaultTopic",
            "defaultTopicQueueNums",
            "queueId",
            "sysFlag",
            "bornTimestamp",
            "flag",
            "properties",
            "reconsumeTimes",
            "unitMode",
        ]
    )
    values = ["p", topic, "TBW102", "4", "0", "0", "1700000000000", "0", "", "0", "false"]
    return Command(int(code), dict(zip(names, values, strict=True)), b"x")


def ask(code: Code, body: Any = None, **ext: str) -> Command:
    return Command(int(code), ext, b"" if body is None else encode(body))


def pull(topic: str, group: str) -> Command:
    return ask(
        Code.PULL_MESSAGE,
        consumerGroup=group,
        topic=topic,
        queueId="0",
        queueOffset="0",
        maxMsgNums="1",
        sysFlag="4",
        commitOffset="0",
        suspendTimeoutMillis="0",
        subVersion="0",
        subscription="*",
    )


def heartbeat(group: str, topic: str) -> Command:
    consumer = ConsumerData(
        group_name=group,
        subscription_data_set=[SubscriptionData(topic=topic), SubscriptionData(topic=f"%RETRY%{group}")],
    )
    return ask(Code.HEART_BEAT, HeartbeatData(client_id="c", consumer_data_set=[consumer]))


LOCK = LockBatchRequestBody(consumer_group="g1", client_id="c", mq_set=[MessageQueue("Orders", "b", 0)])

REQUESTS: Mapping[str, Command] = {
    "send": send("Orders"),
    "send other": send("Bills"),
    "send v1": send("Orders", Code.SEND_MESSAGE),
    "send to retry": send("%RETRY%g1"),
    "send to dead letters": send("%DLQ%g1"),
    "pull": pull("Orders", "g1"),
    "pull other group": pull("Orders", "h1"),
    "pull retry": pull("%RETRY%g1", "g1"),
    "heartbeat": heartbeat("g1", "Orders"),
    "heartbeat other": heartbeat("g1", "Bills"),
    "heartbeat of a producer": ask(Code.HEART_BEAT, HeartbeatData(client_id="c")),
    "unregister": ask(Code.UNREGISTER_CLIENT, clientID="c", consumerGroup="g1"),
    "unregister producer": ask(Code.UNREGISTER_CLIENT, clientID="c", producerGroup="p"),
    "members": ask(Code.GET_CONSUMER_LIST_BY_GROUP, consumerGroup="g1"),
    "query offset": ask(Code.QUERY_CONSUMER_OFFSET, consumerGroup="g1", topic="Orders", queueId="0"),
    "commit offset": ask(
        Code.UPDATE_CONSUMER_OFFSET, consumerGroup="g1", topic="Orders", queueId="0", commitOffset="0"
    ),
    "lock": ask(Code.LOCK_BATCH_MQ, LOCK),
    "unlock": ask(Code.UNLOCK_BATCH_MQ, LOCK),
    "max offset": ask(Code.GET_MAX_OFFSET, topic="Orders", queueId="0", committed="true"),
    "min offset": ask(Code.GET_MIN_OFFSET, topic="Orders", queueId="0"),
    "search offset": ask(Code.SEARCH_OFFSET_BY_TIMESTAMP, topic="Orders", queueId="0", timestamp="0"),
    "earliest": ask(Code.GET_EARLIEST_MSG_STORETIME, topic="Orders", queueId="0"),
    "query message": ask(
        Code.QUERY_MESSAGE, topic="Orders", key="k", maxNum="1", beginTimestamp="0", endTimestamp="1"
    ),
    "topic stats": ask(Code.GET_TOPIC_STATS_INFO, topic="Orders"),
    "consume stats": ask(Code.GET_CONSUME_STATS, consumerGroup="g1", topic="Orders"),
    "topic's groups": ask(Code.QUERY_TOPIC_CONSUME_BY_WHO, topic="Orders"),
    "group's topics": ask(Code.QUERY_TOPICS_BY_CONSUMER, group="g1"),
    "connections": ask(Code.GET_CONSUMER_CONNECTION_LIST, consumerGroup="g1"),
    "producer connections": ask(Code.GET_PRODUCER_CONNECTION_LIST, producerGroup="p"),
    "producers": ask(Code.GET_ALL_PRODUCER_INFO),
    "all topics": ask(Code.GET_ALL_TOPIC_CONFIG),
    "all groups": ask(Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG),
    "all offsets": ask(Code.GET_ALL_CONSUMER_OFFSET),
    "topic config": ask(Code.GET_TOPIC_CONFIG, topic="Orders"),
    "group config": ask(Code.GET_SUBSCRIPTIONGROUP_CONFIG, group="g1"),
    "stats": ask(Code.VIEW_BROKER_STATS_DATA, statsName="TOPIC_PUT_NUMS", statsKey="Orders"),
    "broker's consume stats": ask(Code.GET_BROKER_CONSUME_STATS, isOrder="false"),
    "runtime info": ask(Code.GET_BROKER_RUNTIME_INFO),
    "config": ask(Code.GET_BROKER_CONFIG),
    "pop": ask(
        Code.POP_MESSAGE,
        consumerGroup="g1",
        topic="Orders",
        queueId="0",
        maxMsgNums="1",
        invisibleTime="1000",
        pollTime="0",
        bornTime="1700000000000",
        initMode="0",
        expType="TAG",
        exp="*",
    ),
    "end transaction": ask(
        Code.END_TRANSACTION,
        topic="Bills",
        producerGroup="p",
        tranStateTableOffset="0",
        commitLogOffset="0",
        commitOrRollback="12",
        fromTransactionCheck="false",
        msgId="x",
    ),
    "create topic": ask(
        Code.UPDATE_AND_CREATE_TOPIC,
        topic="New",
        defaultTopic="TBW102",
        readQueueNums="1",
        writeQueueNums="1",
        perm="6",
        topicFilterType="SINGLE_TAG",
        topicSysFlag="0",
        order="false",
    ),
    "delete topic": ask(Code.DELETE_TOPIC_IN_BROKER, topic="New"),
    "delete group": ask(Code.DELETE_SUBSCRIPTIONGROUP, groupName="h9"),
    "clone offset": ask(
        Code.CLONE_GROUP_OFFSET, srcGroup="g1", destGroup="g2", topic="Orders", offline="false"
    ),
    "users": ask(Code.AUTH_LIST_USER),
    "user": ask(Code.AUTH_GET_USER, username="root"),
    "create user": ask(Code.AUTH_CREATE_USER, UserInfo(password="x"), username="root"),
    "create super user": ask(Code.AUTH_CREATE_USER, UserInfo(password="x", user_type="Super"), username="u"),
    "update super user": ask(Code.AUTH_UPDATE_USER, UserInfo(user_status="enable"), username="root"),
    "delete no user": ask(Code.AUTH_DELETE_USER, username="none"),
    "list of nobody": ask(Code.AUTH_GET_ACL, subject="User:none"),
    "create list of nobody": ask(Code.AUTH_CREATE_ACL, acl_of("none", ("*", ["All"], "Allow"))),
    "delete no list": ask(Code.AUTH_DELETE_ACL, subject="User:root"),
    "lists": ask(Code.AUTH_LIST_ACL),
}
AS_IT_IS = frozenset(
    {
        "create user",
        "create super user",
        "update super user",
        "list of nobody",
        "create list of nobody",
        "delete no list",
    }
)
"""Requests whose errors are compared in full, also when they are not about rights."""


async def answers(system: System) -> dict[tuple[str, str], tuple[int, str]]:
    """(user, request) -> code and remark; a request that is not refused has the code -1 and no remark."""
    clients: dict[str, RemotingClient] = {
        "root": RemotingClient(credentials=ROOT),
        "nobody": RemotingClient(credentials=Credentials("nobody", "x")),
        "wrong secret": RemotingClient(credentials=Credentials("all", "wrong")),
        "disabled": RemotingClient(credentials=Credentials("disabled", "pw")),
        "unsigned": RemotingClient(),
        **{name: RemotingClient(credentials=Credentials(name, "pw")) for name in USERS},
    }
    found: dict[tuple[str, str], tuple[int, str]] = {}
    root = clients["root"]
    try:
        for name in (*USERS, "disabled"):
            await root.call(system.broker, wire.CreateUser(name), encode(UserInfo(password="pw")))
            for acl in USERS.get(name, ()):
                await root.call(system.broker, wire.CreateAcl(f"User:{name}"), encode(acl))
        disable = encode(UserInfo(user_status="disable"))
        await root.call(system.broker, wire.UpdateUser("disabled"), disable)
        assert (await root.invoke(system.broker, send("Orders"))).code == 0
        for name, client in clients.items():
            for title, request in REQUESTS.items():
                command = Command(request.code, dict(request.ext), request.body)
                answer = await client.invoke(system.broker, command, timeout_ms=10_000)
                if answer.code == NO or (answer.code and title in AS_IT_IS):
                    found[name, title] = answer.code, answer.remark or ""
                else:
                    found[name, title] = -1, ""
    finally:
        for client in clients.values():
            await client.close()
    return found


async def test_the_same_requests_of_the_same_users_get_the_same_codes(peer: Peer, tmp_path: Path) -> None:
    theirs = await answers(await start_java(peer))
    async with our_system(peer, tmp_path) as system:
        ours = await answers(system)
    different = {key: (theirs[key], ours[key]) for key in theirs if theirs[key] != ours[key]}
    assert not different, json.dumps({str(key): value for key, value in different.items()}, indent=1)
    refused = sum(code == NO for code, _ in theirs.values())
    assert 0 < refused < len(theirs)


# -- broker sets with a replica of each


@pytest.mark.parametrize("java_master", [True, False])
async def test_replicas_of_both_systems_talk_with_signed_requests(
    peer: Peer, tmp_path: Path, java_master: bool
) -> None:
    """The slave copies topics from its master with requests that the master refuses unsigned."""
    keys = {**KEYS, "mappedFileSizeCommitLog": 1 << 20}
    group = ClassicGroup(tmp_path, 1, keys, credentials=ROOT)
    try:
        await asyncio.to_thread(group.namesrv.start)
        role = (0, "SYNC_MASTER") if java_master else (1, "SLAVE")
        java = {**java_settings(group, *role), **KEYS}
        if java_master:
            theirs = await peer.start("broker", java)
            await asyncio.to_thread(group.brokers[1].start)
            master, slave = theirs.address, group.brokers[1].address
        else:
            await asyncio.to_thread(group.master.start)
            theirs = await peer.start("broker", java)
            master, slave = group.master.address, theirs.address
        await followed(group, master)
        await group.client.call(
            master, CreateTopic("Signed", "TBW102", 1, 1, 6, "SINGLE_TAG", 0, False), timeout_ms=10_000
        )
        await group.serving()
        async with asyncio.timeout(100):  # RocketMQ's slave copies every 60 s
            while True:
                body = bytes((await group.client.call(slave, GetAllTopicConfig(), timeout_ms=10_000)).body)
                if b'"Signed"' in body:
                    break
                await asyncio.sleep(0.5)
        assert "refused" not in (group.log(0) if not java_master else group.log(1))
    finally:
        await group.close()
