"""How a broker learns the live members of its set, and what a notice of a name server does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.unit.broker.fakes import ask, make_broker

from batonmq.broker.acting.part import ActingPart
from batonmq.broker.acting.polling import MemberPolling
from batonmq.broker.context import Broker
from batonmq.net.connection import Response
from batonmq.net.dispatch import Dispatcher
from batonmq.net.errors import CallTimeout
from batonmq.protocol.bodies.routes import (
    BrokerData,
    BrokerMemberGroup,
    GetBrokerMemberGroupResponseBody,
    TopicRouteData,
)
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError, TopicNotExistError
from batonmq.protocol.headers.broker.replication import NotifyMinBrokerIdChange
from batonmq.protocol.headers.namesrv import GetBrokerMemberGroup, GetRouteInfo
from batonmq.protocol.json import encode

MASTER, SLAVE = "10.0.0.2:10911", "10.0.0.1:10911"
BOTH = {0: MASTER, 1: SLAVE}
CLUSTER = "DefaultCluster"


class Servers:
    """Stands for `RemotingClient`: name servers that answer as the test says."""

    def __init__(self, **members: Any) -> None:
        self.members: dict[str, Any] = members
        """Name server -> members, an exception, or a string: the members come by the old request only."""
        self.asked: list[tuple[str, str]] = []

    async def call(self, address: str, header: Any, body: bytes = b"", **options: Any) -> Response:
        await asyncio.sleep(0)
        server = address.partition(":")[0]
        self.asked.append((server, type(header).__name__))
        members = self.members[server]
        if isinstance(members, Exception):
            raise members
        old = isinstance(members, list)
        if isinstance(header, GetBrokerMemberGroup):
            if old:
                raise MQError(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "901")
            group = BrokerMemberGroup(CLUSTER, header.broker_name, members)
            return Response(None, encode(GetBrokerMemberGroupResponseBody(group)), 0, None)
        assert isinstance(header, GetRouteInfo)
        assert header.topic == "rmq_sys_SYNC_BROKER_MEMBER_broker-a"
        if not members[0]:
            raise TopicNotExistError(ResponseCode.TOPIC_NOT_EXIST, "no route")
        data = [BrokerData(CLUSTER, "broker-a", members[0]), BrokerData(CLUSTER, "other", {0: "x:1"})]
        return Response(None, encode(TopicRouteData([], data)), 0, None)


def made(servers: Servers, **keys: Any) -> Broker:
    addresses = ";".join(f"{name}:1" for name in servers.members)
    keys = {"enable_slave_acting_master": True, "sync_broker_member_group_period": 10, **keys}
    broker = make_broker(namesrv_addr=addresses, broker_id=1, broker_role="SLAVE", **keys)
    broker.role.set_slave(broker_id=1, epoch=0, master_address=MASTER, master_ha_address=None)
    broker.client = servers  # type: ignore[assignment]
    return broker


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.002)


async def polled(broker: Broker, check: Callable[[], Awaitable[None]]) -> None:
    polling = MemberPolling(broker)
    polling.start()
    try:
        await check()
    finally:
        await polling.stop()


async def test_members_follow_the_name_servers():
    servers = Servers(a={1: SLAVE}, b=BOTH)
    broker = made(servers)

    async def check() -> None:
        await until(lambda: broker.members.addresses == BOTH)
        servers.members["b"] = {1: SLAVE}
        await until(lambda: broker.members.addresses == {1: SLAVE})
        servers.members["a"] = BOTH
        await until(lambda: broker.members.addresses == BOTH)
        servers.members["a"] = CallTimeout("a:1", "silent")
        await until(lambda: broker.members.addresses == {1: SLAVE})
        servers.members["b"] = CallTimeout("b:1", "silent")
        count = len(servers.asked)
        await until(lambda: len(servers.asked) > count + 6)
        assert broker.members.addresses == {1: SLAVE}, "without an answer nothing changes"

    await polled(broker, check)


async def test_a_broker_that_cannot_follow_its_members_stops(caplog: pytest.LogCaptureFixture):
    broker, failures = made(Servers(a=BOTH)), list[Exception]()
    broker.fail = failures.append
    broker.members.listeners.append(lambda members: 1 // 0)

    async def check() -> None:
        await until(lambda: failures)
        assert isinstance(failures[0], ZeroDivisionError) and "no longer asked" in caplog.text

    await polled(broker, check)


async def test_name_servers_before_5_answer_by_a_route():
    servers = Servers(a=[BOTH])
    broker = made(servers)

    async def check() -> None:
        await until(lambda: broker.members.addresses == BOTH)
        servers.members["a"] = [{1: SLAVE}]
        await until(lambda: broker.members.addresses == {1: SLAVE})
        servers.members["a"] = [{}]
        count = len(servers.asked)
        await until(lambda: len(servers.asked) > count + 4)
        assert broker.members.addresses == {1: SLAVE}
        assert [kind for _, kind in servers.asked].count("GetBrokerMemberGroup") == 1

    await polled(broker, check)


async def test_without_the_key_or_with_controllers_nobody_is_asked():
    for keys in ({"enable_slave_acting_master": False}, _controllers()):
        servers = Servers(a=BOTH)
        broker = made(servers, **keys)

        async def check(servers: Servers = servers) -> None:
            await asyncio.sleep(0.05)
            assert not servers.asked

        await polled(broker, check)
        assert not broker.members.known


def _controllers() -> dict[str, Any]:
    return {"enable_controller_mode": True, "controller_addr": "c:1"}


async def test_the_key_can_be_switched_while_running():
    servers = Servers(a=BOTH)
    broker = made(servers)

    async def check() -> None:
        await until(lambda: broker.members.known)
        await broker.settings.change({"enableSlaveActingMaster": "false"}, 0, 0)
        assert not broker.members.known
        await broker.settings.change({"enableSlaveActingMaster": "true"}, 0, 0)
        await until(lambda: broker.members.known)

    await polled(broker, check)


@pytest.fixture
def slow() -> Broker:
    """A broker that asks once an hour."""
    return made(Servers(a=BOTH), sync_broker_member_group_period=3_600_000)


async def test_a_notice_hastens_the_question_and_the_answer_decides(slow: Broker):
    part, dispatcher = ActingPart(slow), Dispatcher()
    part.handlers(dispatcher)
    await part.start()
    try:
        await until(lambda: slow.members.addresses == BOTH)
        servers = slow.client
        assert isinstance(servers, Servers)
        # A lie: the name server still lists the master.
        lie = NotifyMinBrokerIdChange(1, "broker-a", SLAVE, MASTER, None)
        await ask(dispatcher, lie)
        await until(lambda: len(servers.asked) == 2)
        await asyncio.sleep(0.02)
        assert not slow.role.is_acting
        await ask(dispatcher, NotifyMinBrokerIdChange(1, "another", SLAVE, MASTER, None))
        await ask(dispatcher, NotifyMinBrokerIdChange())
        await until(lambda: len(servers.asked) == 3)
        servers.members["a"] = {1: SLAVE}
        await ask(dispatcher, lie)
        await until(lambda: slow.role.is_acting)
        servers.members["a"] = BOTH
        await ask(dispatcher, NotifyMinBrokerIdChange(0, "broker-a", MASTER, None, "10.0.0.2:10912"))
        await until(lambda: not slow.role.is_acting)
    finally:
        await part.withdraw()


async def test_the_listeners_of_the_role_are_called_in_order(slow: Broker):
    calls: list[str] = []

    class Listener:
        def role_ending(self) -> None:
            calls.append(f"ending as {slow.role.kind.value}")

        def term_begins(self, epoch: int) -> None:
            calls.append("term")

        def role_changed(self, role: Any) -> None:
            calls.append(f"is {role.kind.value}")

    slow.role.listeners.append(Listener())
    servers = slow.client
    assert isinstance(servers, Servers)
    servers.members["a"] = {1: SLAVE, 2: "10.0.0.3:1"}
    part = ActingPart(slow)
    await part.start()
    try:
        await until(lambda: slow.role.is_acting)
        assert slow.role.serves and not slow.role.is_master
        await slow.settings.change({"enableSlaveActingMaster": "false"}, 0, 0)
    finally:
        await part.withdraw()
    assert calls == ["ending as SLAVE", "is ACTING_MASTER", "ending as ACTING_MASTER", "is SLAVE"]
