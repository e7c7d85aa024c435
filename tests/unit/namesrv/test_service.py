"""A name server on a real socket: its requests, its files, brokers that vanish, start and stop."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from batonmq.common.clock import ManualClock
from batonmq.common.config import ConfigError
from batonmq.common.running_time import STEP_MS
from batonmq.namesrv import service as service_module
from batonmq.namesrv.config import NamesrvConfig
from batonmq.namesrv.service import SCAN_REST_MS, NamesrvService
from batonmq.net import Dispatcher, RemotingClient, RemotingServer, Reply, Response
from batonmq.protocol.bodies.common import DataVersion, KVTable, TopicList
from batonmq.protocol.bodies.routes import (
    ClusterInfo,
    GetBrokerMemberGroupResponseBody,
    QueueData,
    TopicRouteData,
)
from batonmq.protocol.bodies.topics import (
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigAndMappingSerializeWrapper,
)
from batonmq.protocol.codes import RequestCode, ResponseCode
from batonmq.protocol.errors import MQError, TopicNotExistError
from batonmq.protocol.frame import Command
from batonmq.protocol.headers import namesrv as wire
from batonmq.protocol.headers.broker.replication import NotifyMinBrokerIdChange
from batonmq.protocol.json import decode, encode
from batonmq.protocol.register_body import encode_register_body
from batonmq.protocol.registry import Header

Ask = Callable[..., Awaitable[Response]]


def config(folder: Path, **keys: Any) -> NamesrvConfig:
    return NamesrvConfig(
        **{
            "listen_port": 0,
            "bind_address": "127.0.0.1",
            "kv_config_path": str(folder / "sub" / "kvConfig.json"),
            "config_store_path": str(folder / "namesrv.conf"),
            **keys,
        }
    )


class Running:
    """A name server and a client of it."""

    def __init__(self, folder: Path, **keys: Any) -> None:
        self.clock = ManualClock()
        self.service = NamesrvService(config(folder, **keys), clock=self.clock)
        self.client = RemotingClient()

    async def __aenter__(self) -> Running:
        await self.service.start()
        self.address = f"127.0.0.1:{self.service.port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.close()
        await self.service.stop()

    async def ask(self, header: Header, body: bytes = b"", client: RemotingClient | None = None) -> Response:
        return await (client or self.client).call(self.address, header, body)

    def pass_time(self, ms: int) -> None:
        """Time in which the name server runs."""
        for begin in range(0, ms, STEP_MS):
            self.clock.advance(min(STEP_MS, ms - begin))
            self.service.name_server.running.now_ms()

    async def body(self, header: Header, kind: Any) -> Any:
        return decode((await self.ask(header)).body, kind)


@pytest.fixture
async def ns(tmp_path: Path) -> AsyncIterator[Running]:
    async with Running(tmp_path) as running:
        yield running


def broker(name: str = "a", broker_id: int = 0, **keys: Any) -> wire.RegisterBroker:
    return wire.RegisterBroker(
        **{
            "broker_name": name,
            "broker_addr": f"{name}{broker_id}:1",
            "cluster_name": "c",
            "ha_server_addr": "ha:1",
            "broker_id": broker_id,
            **keys,
        }
    )


def registration(*topics: str) -> RegisterBrokerBody:
    return RegisterBrokerBody(
        TopicConfigAndMappingSerializeWrapper(
            {topic: TopicConfig(topic) for topic in topics or ("t1", "t2")}, DataVersion(1, 1)
        )
    )


@pytest.mark.parametrize("compressed", [False, True])
async def test_a_broker_registers_and_a_client_finds_its_topics(ns: Running, compressed: bool) -> None:
    data = encode_register_body(registration(), compressed=compressed)
    header = broker(compressed=compressed, body_crc32=zlib.crc32(data) & 0x7FFFFFFF)
    assert (await ns.ask(header, data)).header == wire.RegisterBrokerResponse()
    answer = await ns.ask(broker(broker_id=1), encode(registration()))
    assert answer.header == wire.RegisterBrokerResponse("ha:1", "a0:1")

    route = await ns.body(wire.GetRouteInfo("t1"), TopicRouteData)
    assert route.broker_datas[0].broker_addrs == {0: "a0:1", 1: "a1:1"}
    assert route.queue_datas[0].read_queue_nums == 16
    cluster = await ns.body(wire.GetBrokerClusterInfo(), ClusterInfo)
    assert cluster.cluster_addr_table == {"c": ["a"]}
    members = await ns.body(wire.GetBrokerMemberGroup("c", "a"), GetBrokerMemberGroupResponseBody)
    assert members.broker_member_group.broker_addrs == {0: "a0:1", 1: "a1:1"}
    for request, expected in (
        (wire.GetAllTopicList(), ["t1", "t2"]),
        (wire.GetTopicsByCluster("c"), ["t1", "t2"]),
        (wire.GetSystemTopicListFromNs(), ["c", "a"]),
        (wire.GetUnitTopicList(), []),
        (wire.GetHasUnitSubTopicList(), []),
        (wire.GetHasUnitSubUnunitTopicList(), []),
    ):
        assert (await ns.body(request, TopicList)).topic_list == expected

    await ns.ask(wire.UnregisterBroker("a", "a0:1", "c", 0))
    await ns.ask(wire.UnregisterBroker("a", "a1:1", "c", 1))
    with pytest.raises(TopicNotExistError, match="No topic route info in name server for the topic: t1"):
        await ns.ask(wire.GetRouteInfo("t1"))


async def test_the_route_is_standard_json_with_string_keys(ns: Running) -> None:
    await ns.ask(broker(), encode(registration()))
    body = bytes((await ns.ask(wire.GetRouteInfo("t1", True))).body)
    assert b'"brokerAddrs":{"0":"a0:1"}' in body
    msgspec.json.decode(body)


async def test_a_wrong_checksum_or_body_is_refused(ns: Running) -> None:
    with pytest.raises(MQError, match="crc32 not match"):
        await ns.ask(broker(body_crc32=1), encode(registration()))
    with pytest.raises(MQError):
        await ns.ask(broker(compressed=True), b"garbage")
    with pytest.raises(MQError, match="register broker failed"):
        await ns.ask(broker(), encode(registration("only")))
    assert (await ns.body(wire.GetBrokerClusterInfo(), ClusterInfo)).broker_addr_table == {}


async def test_data_version_tells_whether_to_register_again(ns: Running) -> None:
    query = wire.QueryDataVersion("a", "a0:1", "c", 0)
    version = DataVersion(1, 1)
    answer = await ns.ask(query, encode(version))
    assert answer.header == wire.QueryDataVersionResponse(True) and not answer.body
    await ns.ask(broker(), encode(registration()))
    answer = await ns.ask(query, encode(version))
    assert answer.header == wire.QueryDataVersionResponse(False)
    assert decode(answer.body, DataVersion) == version
    assert (await ns.ask(query, encode(DataVersion(1, 2)))).header == wire.QueryDataVersionResponse(True)


async def test_write_permission_and_topics_by_hand(ns: Running) -> None:
    await ns.ask(broker(), encode(registration()))
    assert (await ns.ask(wire.WipeWritePermOfBroker("a"))).header == wire.WipeWritePermOfBrokerResponse(2)
    assert (await ns.body(wire.GetRouteInfo("t1"), TopicRouteData)).queue_datas[0].perm == 4
    assert (await ns.ask(wire.AddWritePermOfBroker("a"))).header == wire.AddWritePermOfBrokerResponse(2)
    new = TopicRouteData([QueueData("a", 1, 1, 6)])
    await ns.ask(wire.RegisterTopicInNamesrv("new"), encode(new))
    await ns.ask(wire.RegisterTopicInNamesrv("none"))
    assert (await ns.body(wire.GetRouteInfo("new"), TopicRouteData)).queue_datas == new.queue_datas
    await ns.ask(wire.DeleteTopicInNamesrv("t1", "c"))
    await ns.ask(wire.DeleteTopicInNamesrv("t2"))
    assert (await ns.body(wire.GetAllTopicList(), TopicList)).topic_list == ["new"]


async def test_routes_of_ones_own_zone(ns: Running) -> None:
    for name, zone in (("a", "z1"), ("b", "z2")):
        header = broker(name)
        command = Command(header.code, {**header.to_ext(), "__ZONE_NAME": zone}, encode(registration()))
        assert (await ns.client.invoke(ns.address, command)).code == 0
    for mode, expected in (("true", {"b"}), ("false", {"a", "b"})):
        ext = {"topic": "t1", "__ZONE_NAME": "Z2", "__ZONE_MODE": mode}
        answer = await ns.client.invoke(ns.address, Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext))
        route = decode(answer.body, TopicRouteData)
        assert {each.broker_name for each in route.broker_datas} == expected


async def test_a_closed_connection_unregisters_its_brokers_at_once(ns: Running) -> None:
    other = RemotingClient()
    await ns.ask(broker("a"), encode(registration()))
    for name in ("b", "d"):
        await ns.ask(broker(name), encode(registration()), client=other)
    await other.close()
    while len((await ns.body(wire.GetBrokerClusterInfo(), ClusterInfo)).broker_addr_table) > 1:
        await asyncio.sleep(0.001)
    assert (await ns.body(wire.GetSystemTopicListFromNs(), TopicList)).topic_list == ["c", "a"]


async def test_a_silent_broker_is_dropped_and_its_connection_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_module, "FIRST_SCAN_MS", 20)
    async with Running(tmp_path, scan_not_active_broker_interval=20) as ns:
        other = RemotingClient()
        await ns.ask(broker("a"), encode(registration()), client=other)
        await ns.ask(broker("b", heartbeat_timeout_millis=200_000), encode(registration()))
        ns.pass_time(100_000)
        await asyncio.sleep(0.06)
        assert other.connected(ns.address) is not None
        await ns.ask(wire.BrokerHeartbeat("c", "b0:1", "b"))
        ns.pass_time(100_000)
        while other.connected(ns.address) is not None:
            await asyncio.sleep(0.005)
        assert list((await ns.body(wire.GetBrokerClusterInfo(), ClusterInfo)).broker_addr_table) == ["b"]
        await other.close()


async def test_a_pause_of_the_name_server_is_no_silence_of_the_brokers(ns: Running) -> None:
    """It was stopped, or a request kept it busy: what the brokers sent meanwhile is read only afterwards."""
    its = RemotingClient()
    await ns.ask(broker("a", heartbeat_timeout_millis=2 * STEP_MS), encode(registration()), its)
    ns.clock.advance(60_000)
    await asyncio.sleep(5 * SCAN_REST_MS / 1000)
    assert its.connected(ns.address) is not None
    assert (await ns.body(wire.GetBrokerClusterInfo(), ClusterInfo)).broker_addr_table
    await its.close()


async def test_a_short_timeout_counts_right_after_the_name_server_s_start(ns: Running) -> None:
    """Its timeout ends before the first check for silent brokers: a slave may wait to act as master."""
    its = RemotingClient()  # the name server closes the connection of a silent broker
    await ns.ask(broker("a", heartbeat_timeout_millis=150), encode(registration()), its)
    ns.pass_time(200)
    async with asyncio.timeout(2):
        while (await ns.body(wire.GetBrokerClusterInfo(), ClusterInfo)).broker_addr_table:
            await asyncio.sleep(0.01)
    await its.close()


async def test_members_are_notified_of_a_new_least_id(tmp_path: Path) -> None:
    notices: list[NotifyMinBrokerIdChange] = []
    table = Dispatcher()
    table.on(NotifyMinBrokerIdChange, lambda request, header: notices.append(header) or Reply())
    member = RemotingServer(table, "127.0.0.1", 0)
    await member.start()
    slave = broker(broker_id=2, broker_addr=f"127.0.0.1:{member.port}", enable_acting_master=True)
    async with Running(tmp_path, notify_min_broker_id_changed=True) as ns:
        await ns.ask(slave, encode(registration()))
        master = broker(enable_acting_master=True)
        await ns.ask(master, encode(registration()))
        await ns.ask(wire.UnregisterBroker("a", master.broker_addr, "c", 0))
        while len(notices) < 2:
            await asyncio.sleep(0.005)
    await member.stop()
    assert [(each.min_broker_id, each.offline_broker_addr) for each in notices] == [(0, None), (2, "a0:1")]


# Configuration


async def test_kv_configuration_is_kept_on_disk(tmp_path: Path) -> None:
    async with Running(tmp_path) as ns:
        with pytest.raises(MQError, match="No config item, Namespace: n Key: k") as missing:
            await ns.ask(wire.GetKVConfig("n", "k"))
        assert missing.value.code == ResponseCode.QUERY_NOT_FOUND
        with pytest.raises(MQError, match="No config item, Namespace: n"):
            await ns.ask(wire.GetKVListByNamespace("n"))
        await asyncio.gather(*(ns.ask(wire.PutKVConfig("n", f"k{i}", "ü=1")) for i in range(5)))
        await ns.ask(wire.DeleteKVConfig("n", "k0"))
        await ns.ask(wire.DeleteKVConfig("n", "never"))
    stored = msgspec.json.decode((tmp_path / "sub" / "kvConfig.json").read_bytes())
    assert stored == {"configTable": {"n": {f"k{i}": "ü=1" for i in range(1, 5)}}}
    async with Running(tmp_path) as ns:
        assert (await ns.ask(wire.GetKVConfig("n", "k1"))).header == wire.GetKVConfigResponse("ü=1")
        assert len((await ns.body(wire.GetKVListByNamespace("n"), KVTable)).table) == 4


async def test_order_configuration_goes_to_brokers_and_into_routes(tmp_path: Path) -> None:
    async with Running(tmp_path, order_message_enable=True) as ns:
        await ns.ask(wire.PutKVConfig("ORDER_TOPIC_CONFIG", "t1", "a:4"))
        answer = await ns.ask(broker(), encode(registration()))
        assert decode(answer.body, KVTable).table == {"t1": "a:4"}
        route = await ns.body(wire.GetRouteInfo("t1"), TopicRouteData)
        assert route.order_topic_conf == "a:4"


async def test_a_change_that_cannot_be_stored_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "sub").write_text("a file where the folder should be")
    async with Running(tmp_path, kv_config_path=str(tmp_path / "new" / "kv.json")) as ns:
        (tmp_path / "new").write_text("in the way")
        with pytest.raises(MQError, match="cannot be written") as caught:
            await ns.ask(wire.PutKVConfig("n", "k", "v"))
        assert caught.value.code == ResponseCode.SYSTEM_ERROR
        with pytest.raises(MQError, match="No config item"):
            await ns.ask(wire.GetKVConfig("n", "k"))


async def test_a_broken_kv_file_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "kv.json").write_text("{broken")
    service = NamesrvService(config(tmp_path, kv_config_path=str(tmp_path / "kv.json")))
    with pytest.raises(ConfigError, match=r"kvConfigPath=.*kv\.json"):
        await service.start()


async def test_the_configuration_is_read_and_changed_over_the_wire(tmp_path: Path) -> None:
    file = tmp_path / "namesrv.conf"
    file.write_text("# mine\nlistenPort = 0\nenableTopicList=true\nforeign=1\n")
    async with Running(tmp_path) as ns:
        lines = bytes((await ns.ask(wire.GetNamesrvConfig())).body).decode().splitlines()
        assert "scanNotActiveBrokerInterval=5000" in lines and "enableTopicList=true" in lines
        await ns.ask(
            wire.UpdateNamesrvConfig(),
            b"enableTopicList=false\nsupportActingMaster=true\n",
        )
        with pytest.raises(MQError, match="disable"):
            await ns.ask(wire.GetTopicsByCluster("c"))
        assert ns.service.name_server.routes.support_acting_master
        for body, code, words in (
            (b"kvConfigPath=/etc/passwd\n", ResponseCode.NO_PERMISSION, "black list"),
            (b"rocketmqHome=/\n", ResponseCode.NO_PERMISSION, "black list"),
            (b"listenPort=1\n", ResponseCode.NO_PERMISSION, "listenPort takes effect at start only"),
            (b"enableTopicList=true\nbindAddress=::1\n", ResponseCode.NO_PERMISSION, "bindAddress takes"),
            (b"controllerStorePath=/x\n", ResponseCode.SYSTEM_ERROR, "unknown key controllerStorePath"),
            (b"enableTopicLst=true\n", ResponseCode.SYSTEM_ERROR, r"did you mean enableTopicList\?"),
            (b"waitSecondsForService=soon\n", ResponseCode.SYSTEM_ERROR, "waitSecondsForService=soon"),
            (b"scanNotActiveBrokerInterval=0\n", ResponseCode.SYSTEM_ERROR, "must be at least 10"),
            (b"aclEnable=true\n", ResponseCode.SYSTEM_ERROR, "ACL 1.0"),
            (b"\xff\xfe", ResponseCode.SYSTEM_ERROR, "utf-8"),
        ):
            with pytest.raises(MQError, match=words) as caught:
                await ns.ask(wire.UpdateNamesrvConfig(), body)
            assert caught.value.code == code
        lines = bytes((await ns.ask(wire.GetNamesrvConfig())).body).decode().splitlines()
        assert "listenPort=0" in lines and "enableTopicList=false" in lines
    assert file.read_text() == (
        "# mine\nlistenPort = 0\nenableTopicList=false\nforeign=1\nsupportActingMaster=true\n"
    )


async def test_topic_lists_can_be_disabled(tmp_path: Path) -> None:
    async with Running(tmp_path, enable_all_topic_list=False, enable_topic_list=False) as ns:
        for header in (
            wire.GetAllTopicList(),
            wire.GetTopicsByCluster("c"),
            wire.GetUnitTopicList(),
            wire.GetHasUnitSubTopicList(),
            wire.GetHasUnitSubUnunitTopicList(),
        ):
            with pytest.raises(MQError, match="disable"):
                await ns.ask(header)


async def test_no_routes_before_brokers_had_time_to_register(tmp_path: Path) -> None:
    async with Running(tmp_path, need_wait_for_service=True, wait_seconds_for_service=45) as ns:
        await ns.ask(broker(), encode(registration()))
        ns.pass_time(44_999)
        with pytest.raises(MQError, match="name server not ready"):
            await ns.ask(wire.GetRouteInfo("t1"))
        ns.pass_time(1)
        await ns.ask(wire.GetRouteInfo("t1"))


# The program


def program(file: Path) -> subprocess.Popen[str]:
    code = "from batonmq.cli.main import main; main()"
    command = [sys.executable, "-c", code, "namesrv", "-c", str(file)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_it_runs_until_sigterm_and_says_when_it_is_ready(tmp_path: Path) -> None:
    file = tmp_path / "ns.conf"
    file.write_text(f"listenPort=0\nbindAddress=127.0.0.1\nkvConfigPath={tmp_path}/kv.json\n")
    with program(file) as process:
        assert process.stdout is not None
        line = process.stdout.readline().strip()
        assert line.startswith("The Name Server boot success. serializeType=JSON, address 127.0.0.1:"), line
        with socket.create_connection(("127.0.0.1", int(line.rpartition(":")[2]))):
            process.send_signal(signal.SIGTERM)
            out, _ = process.communicate(timeout=10)
        assert (process.returncode, out) == (0, "")


def test_a_taken_port_is_one_line_and_exit_code_1(tmp_path: Path) -> None:
    file = tmp_path / "ns.conf"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        file.write_text(f"listenPort={port}\nbindAddress=127.0.0.1\nkvConfigPath={tmp_path}/kv.json\n")
        with program(file) as process:
            out, error = process.communicate(timeout=10)
    assert (process.returncode, out) == (1, "")
    (line,) = [each for each in error.splitlines() if each.startswith("namesrv: ")]
    assert str(port) in line and "in use" in line and "Traceback" not in error
