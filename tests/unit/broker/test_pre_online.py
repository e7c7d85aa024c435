"""A master that prepares before it serves, with a scripted slave: what it asks, and when it serves."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.broker.fakes import make_broker

from batonmq.broker.context import Broker
from batonmq.broker.preonline import part as part_module
from batonmq.broker.preonline.part import PreOnlinePart
from batonmq.broker.tables.persistence import Persistence, Table
from batonmq.ha.classic.service import ClassicHAService
from batonmq.ha.port import ReplicaStatus
from batonmq.net.errors import CallTimeout, ConnectFailed
from batonmq.protocol.bodies.routes import BrokerMemberGroup, GetBrokerMemberGroupResponseBody
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker.replication import ExchangeHAInfo, ExchangeHAInfoResponse
from batonmq.protocol.headers.namesrv import GetBrokerMemberGroup
from batonmq.protocol.json import encode
from batonmq.protocol.registry import Header

NAMESRV, SLAVE = "10.0.0.100:9876", "10.0.0.2:10911"


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RETRY_S": 0.01, "LOOK_S": 0.005, "LINK_S": 0.03}.items():
        monkeypatch.setattr(part_module, name, value)


class Links(ClassicHAService):
    """The master's replication without sockets."""

    def __init__(self) -> None:
        self.served = 0
        self.links: list[str] = []

    def serve(self) -> None:
        self.served += 1

    def replicas(self) -> list[ReplicaStatus]:
        return [ReplicaStatus(-1, link, 0, 0, True, False, 0) for link in self.links]


class Others:
    """A name server and slaves."""

    def __init__(self) -> None:
        self.members: dict[int, str] | Exception = {1: SLAVE}
        self.answer: ExchangeHAInfoResponse | Exception = ExchangeHAInfoResponse()
        self.announced: list[ExchangeHAInfo] = []

    async def call(self, address: str, header: Header, body: bytes = b"", *, timeout_ms: float) -> Any:
        await asyncio.sleep(0)
        if isinstance(header, GetBrokerMemberGroup):
            if isinstance(self.members, Exception):
                raise self.members
            group = BrokerMemberGroup(broker_addrs=self.members)
            return SimpleNamespace(body=encode(GetBrokerMemberGroupResponseBody(group)))
        assert isinstance(header, ExchangeHAInfo) and address == SLAVE
        self.announced.append(header)
        if isinstance(self.answer, Exception):
            raise self.answer
        return SimpleNamespace(header=self.answer)


class Rig:
    def __init__(self, root: Path, **keys: Any) -> None:
        values = {"total_replicas": 2, "enable_slave_acting_master": True, "namesrv_addr": NAMESRV, **keys}
        self.broker: Broker = make_broker(**values)
        self.others, self.links = Others(), Links()
        self.online = 0
        self.failures: list[Exception] = []
        self.taken: list[str] = []
        self.problem: Exception | None = None
        broker = self.broker
        broker.client, broker.replication = self.others, self.links  # type: ignore[assignment]
        broker.store = SimpleNamespace(flushed_offset=7)  # type: ignore[assignment]
        broker.assume_role = self._online
        broker.fail = self.failures.append
        broker.tables.persistence = Persistence(root)
        table = Table(name="t", encode=lambda: b"{}", restore=bytes, take_back=self._take)
        broker.tables.persistence.restore([table])
        self.part = PreOnlinePart(broker)

    def _online(self) -> None:
        self.online += 1

    async def _take(self, member: Any) -> bool:
        assert not self.online, "it serves already"
        if self.problem is not None:
            raise self.problem
        self.taken.append(member.address)
        return True

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(5):
            while not condition():
                await asyncio.sleep(0.005)


@pytest.fixture
async def rig(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Any:
    caplog.set_level(logging.INFO, "batonmq.broker.preonline")
    rig = Rig(tmp_path)
    yield rig
    await rig.part.withdraw()


def waits(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if "serves nobody" in each.getMessage()]


async def test_without_others_it_serves_at_once(rig: Rig) -> None:
    rig.others.members = {}
    await rig.part.start()
    await rig.until(lambda: rig.online)
    assert rig.others.announced == [] and rig.taken == []


async def test_its_own_former_registration_is_nobody(rig: Rig) -> None:
    rig.others.members = {0: rig.broker.address}
    await rig.part.start()
    await rig.until(lambda: rig.online)


async def test_it_announces_itself_waits_for_the_link_and_takes_back(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    rig.others.answer = ExchangeHAInfoResponse(follows="", linked_from="")
    await rig.part.start()
    await rig.until(lambda: waits(caplog))
    assert not rig.online and rig.links.served and rig.taken == []
    assert rig.others.announced[0].master_ha_address == rig.broker.ha_address
    assert rig.others.announced[0].master_address == rig.broker.address
    assert rig.others.announced[0].master_flush_offset == 7
    rig.links.links = ["10.0.0.2:4000"]
    rig.others.answer = ExchangeHAInfoResponse(follows=rig.broker.ha_address, linked_from="10.0.0.2:4000")
    await rig.until(lambda: rig.online)
    assert rig.taken == [SLAVE]
    assert waits(caplog) == [
        "the broker is not registered and serves nobody, and tries again: slave 1 at 10.0.0.2:10911 does not "
        f"replicate from {rig.broker.ha_address}: its log, or a line above, says why"
    ]
    assert rig.broker.members.addresses == {0: rig.broker.address, 1: SLAVE}


async def test_a_rocketmq_slave_counts_by_its_link_also_from_another_host(rig: Rig) -> None:
    await rig.part.start()
    await asyncio.sleep(0.05)
    assert not rig.online
    rig.links.links = ["192.168.9.9:555"]
    await rig.until(lambda: rig.online)
    assert rig.taken == [SLAVE]


@pytest.mark.parametrize(
    "problem",
    [
        ConnectFailed(SLAVE, "refused"),
        CallTimeout(SLAVE, 3_000),
        MQError(ResponseCode.SYSTEM_ERROR, "no"),
        ValueError("JSON"),
    ],
)
async def test_a_table_that_cannot_be_read_is_tried_again(
    rig: Rig, caplog: pytest.LogCaptureFixture, problem: Exception
) -> None:
    rig.links.links, rig.problem = ["10.0.0.2:1"], problem
    await rig.part.start()
    await rig.until(lambda: waits(caplog))
    await asyncio.sleep(0.1)
    assert not rig.online and len(waits(caplog)) == 1
    assert f"t of slave 1 at {SLAVE} cannot be read: " in waits(caplog)[0]
    rig.problem = None
    await rig.until(lambda: rig.online)


async def test_a_slave_that_does_not_answer_is_named_until_it_is_not_a_member(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    rig.others.answer = ConnectFailed(SLAVE, "refused")
    await rig.part.start()
    await rig.until(lambda: waits(caplog))
    assert SLAVE in waits(caplog)[0] and not rig.online
    rig.others.members = {}
    await rig.until(lambda: rig.online)


async def test_name_servers_that_do_not_answer_are_waited_for(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    rig.others.members = ConnectFailed(NAMESRV, "refused")
    await rig.part.start()
    await rig.until(lambda: waits(caplog))
    assert f"no name server of {NAMESRV} answers" in waits(caplog)[0] and rig.others.announced == []
    rig.others.members = {}
    await rig.until(lambda: rig.online)


async def test_another_master_of_the_set_is_named(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    rig.others.members = {0: "10.0.0.9:10911", 1: SLAVE}
    await rig.part.start()
    await rig.until(lambda: waits(caplog))
    assert "another broker broker-a with brokerId=0 is registered at 10.0.0.9:10911" in waits(caplog)[0]
    assert not rig.online and rig.others.announced == []


async def test_an_unforeseen_error_stops_the_broker(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    rig.links.links, rig.problem = ["10.0.0.2:1"], ZeroDivisionError("a bug")
    await rig.part.start()
    await rig.until(lambda: rig.failures)
    assert not rig.online and isinstance(rig.failures[0], ZeroDivisionError)
    assert "the broker cannot get ready" in caplog.text


async def test_without_name_servers_nobody_is_waited_for(tmp_path: Path) -> None:
    rig = Rig(tmp_path, namesrv_addr="")
    await rig.part.start()
    await rig.until(lambda: rig.online)
    await rig.part.withdraw()


async def test_where_nobody_prepares_the_role_is_not_touched(tmp_path: Path) -> None:
    rig = Rig(tmp_path, skip_pre_online=True)
    await rig.part.start()
    await asyncio.sleep(0.02)
    assert not rig.online
    await rig.part.withdraw()
