"""What configuration does: changes at run time, the jRaft keys, limits, errors at the start."""

from __future__ import annotations

import asyncio
import logging
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tests.integration.controller.group import Group, until

from batonmq.controller.config import ControllerConfig
from batonmq.controller.service import ControllerService
from batonmq.demo.ports import free_ports
from batonmq.net.client import RemotingClient
from batonmq.net.errors import NetError
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers import controller as wire


async def test_configuration_is_shown_and_changed(one: Group) -> None:
    service = await one.leader()
    address = one.address(service)
    client = RemotingClient()
    try:
        reply = await client.call(address, wire.GetControllerConfig())
        assert b"scanNotActiveBrokerInterval=100\n" in bytes(reply.body)
        await client.call(address, wire.UpdateControllerConfig(), b"enableElectUncleanMaster=true\n")
        assert service.config.enable_elect_unclean_master
        assert "enableElectUncleanMaster=true" in service.config.config_file.read_text()
        await client.call(address, wire.UpdateControllerConfig(), b"requestTimeoutMs=777\n")
        parts = (service.proposer, service.forwarding, service.membership)
        assert [part.timeout_ms for part in parts] == [777] * 3
        for body, code in [
            (b"configStorePath=/etc/passwd", ResponseCode.NO_PERMISSION),
            (b"controllerDLegerPeers=n0-h:1", ResponseCode.NO_PERMISSION),
            (b"scanNotActiveBrokerInterval=soon", ResponseCode.SYSTEM_ERROR),
            (b"scanNotActiveBrokerInterval=-1", ResponseCode.SYSTEM_ERROR),
            (b"\xff\xfe", ResponseCode.SYSTEM_ERROR),
        ]:
            with pytest.raises(MQError) as caught:
                await client.call(address, wire.UpdateControllerConfig(), body)
            assert caught.value.code == code, body
    finally:
        await client.close()


async def test_a_change_leaves_the_rest_of_the_file_alone(tmp_path: Path) -> None:
    """It is the file given with -c: TLS, and with a controller inside the name server that one's keys."""
    file = tmp_path / "all.conf"
    before = "# ours\ntls.server.mode=enforcing\nlistenPort=9876\nelectMasterMaxRetryCount = 3\n"
    file.write_text(before)
    group = Group(tmp_path, 1, config_store_path=str(file))
    await group.start()
    client = RemotingClient()
    try:
        service = await group.leader()
        address = group.address(service)
        shown = bytes((await client.call(address, wire.GetControllerConfig())).body).decode()
        assert f"configStorePath={file}\n" in shown
        body = b"electMasterMaxRetryCount=7\nprocessReadEvent=true\nlistenPort=1\n"
        await client.call(address, wire.UpdateControllerConfig(), body)
        assert service.config.elect_master_max_retry_count == 7 and service.config.is_process_read_event
        assert service.node.core.reads.always_confirm
        assert file.read_text() == before.replace(" = 3", "=7") + "isProcessReadEvent=true\n"
        file.write_text("isProcessReadEvent=true\nprocessReadEvent=true\n")
        await client.call(address, wire.UpdateControllerConfig(), b"processReadEvent=false\n")
        assert file.read_text() == "isProcessReadEvent=false\n", "the other spelling would win at a restart"
        file.unlink()
        file.mkdir()
        with pytest.raises(MQError, match=r"in force until a restart: .*all\.conf"):
            await client.call(address, wire.UpdateControllerConfig(), b"electMasterMaxRetryCount=8")
        assert service.config.elect_master_max_retry_count == 8
    finally:
        await client.close()
        await group.stop_all()


async def test_jraft_family_has_a_separate_port_for_raft(tmp_path: Path) -> None:
    raft_1, raft_2, rpc_1, rpc_2 = free_ports(4)
    configs = [
        ControllerConfig(
            controller_type="jRaft",
            j_raft_group_id="jr",
            j_raft_server_id=f"localhost:{port}",
            j_raft_init_conf=f"localhost:{raft_1},localhost:{raft_2}",
            j_raft_controller_rpc_addr=f"localhost:{rpc_1},localhost:{rpc_2}",
            j_raft_election_timeout_ms=300,
            controller_store_path=str(tmp_path / str(port)),
            controller_raft_secret="sesame",
            bind_address="127.0.0.1",
        )
        for port in (raft_1, raft_2)
    ]
    services = [ControllerService(config) for config in configs]
    client = RemotingClient()
    try:
        for service in services:
            await service.start()
        await until(lambda: any(service.leading for service in services), "a leader")
        leader = next(service for service in services if service.leading)
        reply = await client.call(f"localhost:{rpc_1}", wire.GetMetadata())
        assert isinstance(reply.header, wire.GetMetadataReply)
        assert reply.header.controller_leader_id == leader.topology.self_id
        assert (
            reply.header.controller_leader_address == leader.topology.rpc_addresses[leader.topology.self_id]
        )
        assert reply.header.peers == f"localhost:{rpc_1};localhost:{rpc_2};"
        reply = await client.call(f"localhost:{rpc_1}", wire.GetControllerConfig())
        assert b"sesame" not in bytes(reply.body)
    finally:
        await client.close()
        for service in services:
            await service.stop()


async def test_connections_are_bounded_by_the_key_and_by_the_open_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("batonmq.controller.service.raise_file_limit", lambda wanted: 4)
    group = Group(tmp_path, 1, controller_max_connections=16)
    with caplog.at_level(logging.WARNING):
        await group.start()
    said = [r.getMessage() for r in caplog.records if "controllerMaxConnections=16" in r.getMessage()]
    assert len(said) == 1 and "beyond 2 are refused" in said[0] and "to 1552" in said[0]
    address = group.address(group.services[0])
    clients = [RemotingClient() for _ in range(3)]
    try:
        for client in clients[:2]:
            await client.call(address, wire.GetMetadata())
        with pytest.raises(NetError):
            await clients[2].call(address, wire.GetMetadata())
    finally:
        for client in clients:
            await client.close()
        await group.stop_all()


async def test_what_cannot_start_says_why_in_one_line(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", port))
        taken.listen()
        for self_id, expected in (("n0", str(port)), ("n7", "controllerDLegerSelfId=n7")):
            conf = tmp_path / "controller.conf"
            conf.write_text(
                f"controllerDLegerPeers=n0-127.0.0.1:{port}\ncontrollerDLegerSelfId={self_id}\n"
                f"controllerStorePath={tmp_path / 'store'}\nbindAddress=127.0.0.1\n"
            )
            program = [sys.executable, "-m", "batonmq", "controller", "-c", str(conf)]
            done = await asyncio.to_thread(
                subprocess.run, program, capture_output=True, text=True, timeout=20, check=False
            )
            assert done.returncode == 1
            lines = [line for line in done.stderr.splitlines() if line.startswith("controller: ")]
            assert len(lines) == 1 and expected in lines[0], done.stderr
            assert "Traceback" not in done.stderr
