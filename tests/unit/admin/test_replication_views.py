"""What administrators see and get of broker sets in unusual states: no master, no slave, no answer."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner

from batonmq.admin.main import admin
from batonmq.admin.operations.messages import _producer
from batonmq.admin.session import TIMEOUT_MS, Admin, AdminError
from batonmq.broker.config import BrokerConfig
from batonmq.client.errors import SendFailed
from batonmq.net.dispatch import Body
from batonmq.net.errors import CallTimeout
from batonmq.protocol.bodies.common import KVTable
from batonmq.protocol.bodies.replication import (
    EpochEntry,
    EpochEntryCache,
    HAClientRuntimeInfo,
    HAConnectionRuntimeInfo,
    HARuntimeInfo,
)
from batonmq.protocol.bodies.routes import BrokerData
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker.admin import GetBrokerConfig, GetBrokerRuntimeInfo
from batonmq.protocol.headers.broker.replication import GetBrokerEpochCache, GetBrokerHAStatus
from batonmq.protocol.json import encode
from batonmq.protocol.registry import Header

BROKER = "127.0.0.1:10911"
Answers = Callable[[str, Header], bytes]


class Answer:
    def __init__(self, body: bytes) -> None:
        self.body = body


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Callable[[Answers], None]:
    """Have brokers answer as a function says."""

    def use(given: Answers) -> None:
        async def ask(_: Admin, address: str, header: Header, body: Body = b"", **__: object) -> Answer:
            return Answer(given(address, header))

        monkeypatch.setattr(Admin, "ask", ask)

    return use


def ha_status(answers: Callable[[Answers], None], info: HARuntimeInfo, **more: str) -> list[dict[str, Any]]:
    def given(address: str, header: Header) -> bytes:
        if isinstance(header, GetBrokerHAStatus):
            return encode(info)
        if isinstance(header, GetBrokerConfig):
            return "".join(f"{key}={value}\n" for key, value in more.items()).encode()
        assert isinstance(header, GetBrokerRuntimeInfo)
        return encode(KVTable(more))

    answers(given)
    done = CliRunner().invoke(admin, ["haStatus", "-b", BROKER, "--json"])
    assert done.exit_code == 0, done.output
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    return rows


def test_ha_status_says_which_slave_acts(answers: Callable[[Answers], None]) -> None:
    link = HAClientRuntimeInfo(master_addr="10.0.0.1:10912", max_offset=7)
    (row,) = ha_status(answers, HARuntimeInfo(ha_client_runtime_info=link), brokerActive="true")
    assert (row["role"], row["peer"], row["offset"]) == ("acts as master", "no master", 7)


def test_ha_status_says_which_slave_does_not_replicate(answers: Callable[[Answers], None]) -> None:
    link = HAClientRuntimeInfo(master_addr="10.0.0.1:10912", max_offset=7)
    (row,) = ha_status(answers, HARuntimeInfo(ha_client_runtime_info=link), brokerActive="false")
    assert (row["role"], row["peer"]) == ("slave", "not replicating from 10.0.0.1:10912")
    (row,) = ha_status(answers, HARuntimeInfo())
    assert (row["role"], row["peer"]) == ("slave", "not replicating")
    link = HAClientRuntimeInfo(master_addr="10.0.0.1:10912", max_offset=7, last_read_timestamp=9)
    (row,) = ha_status(answers, HARuntimeInfo(ha_client_runtime_info=link), brokerActive="false")
    assert (row["role"], row["peer"]) == ("slave of", "10.0.0.1:10912")


def test_ha_status_of_a_master_knows_how_many_slaves_there_should_be(
    answers: Callable[[Answers], None],
) -> None:
    alone = HARuntimeInfo(master=True)
    assert ha_status(answers, alone, totalReplicas="2")[0]["peer"] == "0 of 1 slaves in sync"
    assert ha_status(answers, alone, totalReplicas="1")[0]["peer"] == "0 of 0 slaves in sync"
    assert ha_status(answers, alone)[0]["peer"] == "0 of 0 slaves in sync"


def test_a_slave_that_has_reported_nothing_is_not_up_to_date(answers: Callable[[Answers], None]) -> None:
    slave = HAConnectionRuntimeInfo(addr="10.0.0.2:4000", slave_ack_offset=-1, diff=0)
    info = HARuntimeInfo(master=True, ha_connection_info=[slave])
    assert ha_status(answers, info)[1]["offset"] is None and ha_status(answers, info)[1]["behind"] is None
    printed = CliRunner().invoke(admin, ["haStatus", "-b", BROKER], env={"COLUMNS": "120"}).output
    (shown,) = [line.split() for line in printed.splitlines() if "replicates to" in line]
    assert shown[3:7] == ["10.0.0.2:4000", "-", "-", "false"]


def test_the_epochs_of_one_broker_are_found_by_its_address(answers: Callable[[Answers], None]) -> None:
    def given(address: str, header: Header) -> bytes:
        assert address == BROKER and isinstance(header, GetBrokerEpochCache)
        return encode(EpochEntryCache("c", "broker-a", 2, [EpochEntry(3, 0)], 99))

    answers(given)
    done = CliRunner().invoke(admin, ["getBrokerEpoch", "-b", BROKER, "--json"])
    (row,) = json.loads(done.stdout)
    assert (row["broker"], row["id"], row["epoch"], row["endOffset"]) == ("broker-a", 2, 3, 99)


def test_brokers_without_controllers_are_named_and_hide_no_others(
    answers: Callable[[Answers], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def replicas(_: Admin, cluster: str | None = None) -> list[tuple[str, int, str]]:
        return [("with", 0, "10.0.0.1:1"), ("without", 0, "10.0.0.2:1"), ("without", 1, "10.0.0.3:1")]

    def given(address: str, header: Header) -> bytes:
        if address == "10.0.0.1:1":
            return encode(EpochEntryCache("c", "with", 1, [EpochEntry(3, 0)], 99))
        raise MQError(ResponseCode.SYSTEM_ERROR, "this request only for controllerMode ")

    monkeypatch.setattr(Admin, "replicas", replicas)
    answers(given)
    done = CliRunner().invoke(admin, ["getBrokerEpoch", "-c", "c", "--json"])
    assert [row["broker"] for row in json.loads(done.stdout)] == ["with"]
    done = CliRunner().invoke(admin, ["getBrokerEpoch", "-b", "without"])
    assert done.exit_code != 0 and "without 10.0.0.2:1, without 10.0.0.3:1 answered" in done.output


async def test_a_cluster_that_has_only_slaves_is_not_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    async def groups(_: Admin, cluster: str | None = None) -> list[BrokerData]:
        return [BrokerData("c", "broker-a", {1: "10.0.0.2:10911"})]

    monkeypatch.setattr(Admin, "groups", groups)
    session = Admin("127.0.0.1:1")
    with pytest.raises(
        AdminError, match=r"in cluster c has a master now: broker-a has only 10\.0\.0\.2:10911"
    ):
        await session.addresses("c")
    assert await session.addresses("c", slaves=True) == ["10.0.0.2:10911"]


def test_a_change_of_a_cluster_names_the_broker_sets_without_a_master(
    answers: Callable[[Answers], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def groups(_: Admin, cluster: str | None = None) -> list[BrokerData]:
        alone = BrokerData("c", "broker-b", {1: "10.0.0.2:10911"})
        return [BrokerData("c", "broker-a", {0: "10.0.0.1:10911"}), alone]

    monkeypatch.setattr(Admin, "groups", groups)
    asked: list[str] = []
    answers(lambda address, header: asked.append(address) or b"")
    done = CliRunner().invoke(admin, ["updateTopic", "-c", "c", "-t", "T"])
    assert done.exit_code == 0, done.output
    assert asked == ["10.0.0.1:10911"]
    assert "no master of them lives: broker-b" in done.stderr


async def test_sends_of_the_commands_wait_as_long_as_timeout_says() -> None:
    assert BrokerConfig().slave_timeout < TIMEOUT_MS, "else FLUSH_SLAVE_TIMEOUT is never seen"
    for timeout_ms in (TIMEOUT_MS, 9_000):
        assert _producer(Admin("127.0.0.1:1", timeout_ms))._timeout_ms == timeout_ms


def test_a_send_without_an_answer_may_have_stored_its_message() -> None:
    lost = CallTimeout("127.0.0.1:21911", "no answer in time")
    text = str(SendFailed("orders", 1, lost, True))
    assert text.startswith("send to orders failed after 1 attempt: 127.0.0.1:21911: no answer in time; ")
    assert text.endswith("the message may have been stored")
    assert "stored" not in str(SendFailed("orders", 2, lost, False))
