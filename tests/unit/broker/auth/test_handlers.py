"""One change through several brokers of a set, and what a slave does with a change."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.broker.fakes import ask, become_slave, make_broker

from batonmq.broker.auth.core import AccessTable
from batonmq.broker.auth.handlers import ONE_CHANGE_MS, AccessHandlers
from batonmq.broker.context import Broker
from batonmq.common.clock import ManualClock
from batonmq.net.connection import Response
from batonmq.net.dispatch import Dispatcher
from batonmq.net.errors import ConnectFailed
from batonmq.protocol.bodies.auth import UserInfo
from batonmq.protocol.codes import RequestCode, ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker import auth as wire
from batonmq.protocol.json import encode
from batonmq.protocol.registry import Header

ALICE = encode(UserInfo(password="one"))
CREATE, DELETE = int(RequestCode.AUTH_CREATE_USER), int(RequestCode.AUTH_DELETE_USER)


class Client:
    """The slave's client: answers with what the test put there."""

    def __init__(self, answer: Exception | None) -> None:
        self.answer = answer
        self.asked: list[tuple[str, Header, bytes]] = []

    async def call(self, address: str, header: Header, body: bytes = b"", **options: Any) -> Response:
        self.asked.append((address, header, body))
        if self.answer is not None:
            raise self.answer
        return Response(None, b"", 0, None)


class Rig:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.broker: Broker = make_broker(clock=self.clock)
        self.table = AccessTable()
        self.changes = 0
        self.dispatcher = Dispatcher()
        AccessHandlers(self.broker, self.table, self._changed).register(self.dispatcher)

    def _changed(self) -> None:
        self.changes += 1

    async def create(self, body: bytes = ALICE) -> None:
        await ask(self.dispatcher, wire.CreateUser("alice"), body)

    async def delete(self) -> None:
        await ask(self.dispatcher, wire.DeleteUser("alice"))

    async def through(self, broker_id: int, code: int, body: bytes = ALICE) -> None:
        await ask(self.dispatcher, wire.PassAccessChange(code, broker_id, "alice"), body)


async def test_the_same_change_through_each_broker_of_the_set_is_one() -> None:
    rig = Rig()
    await rig.through(1, CREATE)
    await rig.create()
    await rig.through(2, CREATE)
    assert rig.changes == 1


async def test_the_same_change_through_the_same_broker_is_another_one() -> None:
    rig = Rig()
    await rig.create()
    with pytest.raises(MQError, match="The user is existed"):
        await rig.create()
    await rig.through(1, CREATE)
    with pytest.raises(MQError, match="The user is existed"):
        await rig.through(1, CREATE)


async def test_a_change_with_another_body_is_another_one() -> None:
    rig = Rig()
    await rig.create()
    with pytest.raises(MQError, match="The user is existed"):
        await rig.through(1, CREATE, encode(UserInfo(password="two")))


async def test_a_change_after_another_one_about_the_user_is_carried_out_again() -> None:
    rig = Rig()
    await rig.create()
    await rig.through(1, CREATE)
    await rig.delete()
    await rig.through(1, DELETE, b"")
    await rig.through(1, CREATE)
    await rig.create()
    assert rig.changes == 3 and rig.table.user("alice") is not None


async def test_a_change_is_remembered_for_a_minute() -> None:
    rig = Rig()
    await rig.create()
    rig.clock.advance(ONE_CHANGE_MS)
    with pytest.raises(MQError, match="The user is existed"):
        await rig.through(1, CREATE)


async def test_a_slave_passes_a_change_on_with_its_id() -> None:
    rig = Rig()
    become_slave(rig.broker, "10.0.0.9:10911")
    client = rig.broker.client = Client(None)  # type: ignore[assignment]
    await rig.create()
    ((address, header, body),) = client.asked
    assert address == "10.0.0.9:10911" and body == ALICE
    assert header == wire.PassAccessChange(CREATE, 2, "alice")
    assert rig.table.user("alice") is None, "it comes with the master's table"


async def test_a_slave_answers_what_its_master_answers() -> None:
    rig = Rig()
    become_slave(rig.broker, "10.0.0.9:10911")
    rig.broker.client = Client(MQError(ResponseCode.NO_PERMISSION, "The user is existed"))  # type: ignore[assignment]
    with pytest.raises(MQError, match="The user is existed") as caught:
        await rig.create()
    assert caught.value.code == ResponseCode.NO_PERMISSION
    rig.broker.client = Client(ConnectFailed("10.0.0.9:10911", "refused"))  # type: ignore[assignment]
    with pytest.raises(MQError, match="the master does not answer") as caught:
        await rig.create()
    assert caught.value.code == ResponseCode.SYSTEM_ERROR
    assert rig.changes == 0


async def test_a_slave_of_a_rocketmq_master_has_its_own_users() -> None:
    rig = Rig()
    become_slave(rig.broker, "10.0.0.9:10911")
    rig.broker.client = Client(MQError(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "60051"))  # type: ignore[assignment]
    await rig.create()
    assert rig.table.user("alice") is not None and rig.changes == 1


async def test_without_a_master_nothing_is_changed() -> None:
    rig = Rig()
    become_slave(rig.broker)
    for work in (rig.create(), rig.through(1, CREATE)):
        with pytest.raises(MQError, match="master"):
            await work
    assert rig.changes == 0


async def test_a_slave_checks_who_changes_super_users_before_it_passes_the_change_on() -> None:
    """The master trusts it with that: the slave signs with its own credentials."""
    rig = Rig()
    rig.table.create_user("clerk", UserInfo(password="x"))
    become_slave(rig.broker, "10.0.0.9:10911")
    client = rig.broker.client = Client(None)  # type: ignore[assignment]
    body = encode(UserInfo(password="x", user_type="Super"))
    with pytest.raises(MQError, match="can only be create by super user"):
        await ask(rig.dispatcher, wire.CreateUser("eve"), body, AccessKey="clerk")
    assert not client.asked
