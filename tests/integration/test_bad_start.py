"""Programs that cannot start: one clear line on stderr that names file, key and value, exit code 1, and
nothing left behind: the port is free, the store directory is not locked, and others run on.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.group import Group, read

from batonmq.demo.cluster import Program
from batonmq.demo.ports import free_ports
from batonmq.raft.disk import OsDisk
from batonmq.raft.messages import Members, Snapshot, SnapshotMeta
from batonmq.raft.storage import Storage

PROGRAMS = ("namesrv", "controller", "broker")


def settings(verb: str, root: Path, port: int = 0) -> dict[str, object]:
    """A configuration that works."""
    port = port or free_ports(1)[0]
    if verb == "namesrv":
        return {"listenPort": port, "bindAddress": "127.0.0.1", "kvConfigPath": root / "kv.json"}
    if verb == "controller":
        return {
            "controllerDLegerGroup": "g",
            "controllerDLegerPeers": f"n0-127.0.0.1:{port}",
            "controllerDLegerSelfId": "n0",
            "controllerStorePath": root / "controller",
            "bindAddress": "127.0.0.1",
        }
    return {
        "brokerName": "b",
        "brokerIP1": "127.0.0.1",
        "bindAddress": "127.0.0.1",
        "listenPort": port,
        "storePathRootDir": root / "store",
    }


def write(path: Path, values: dict[str, object]) -> Path:
    path.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
    return path


def fails(verb: str, conf: Path) -> str:
    """Run a program that must not start. Returns its last line; only warnings may precede it."""
    done = subprocess.run(
        [sys.executable, "-m", "batonmq", verb, "-c", str(conf)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr and "boot success" not in done.stdout
    lines = [line for line in done.stderr.splitlines() if line.startswith(f"{verb}: ")]
    assert len(lines) == 1 and done.stderr.endswith(lines[0] + "\n"), done.stderr
    return lines[0]


BAD_VALUES = {
    "namesrv": [
        ("listenPort", "many"),
        ("listenPort", "70000"),
        ("enableControllerInNamesrv", "perhaps"),
        ("scanNotActiveBrokerInterval", "0"),
        ("serverChannelMaxIdleTimeSeconds", "-1"),
        ("tls.server.mode", "sometimes"),
    ],
    "controller": [
        ("controllerDLegerPeers", "n0"),
        ("controllerDLegerSelfId", "n7"),
        ("controllerType", "paxos"),
        ("scanNotActiveBrokerInterval", "5s"),
        ("scanInactiveMasterInterval", "0"),
        ("jRaftElectionTimeoutMs", "1"),
    ],
    "broker": [
        ("listenPort", "-1"),
        ("flushDiskType", "SOMETIMES_FLUSH"),
        ("brokerRole", "BOSS"),
        ("mappedFileSizeCommitLog", "1G"),
        ("mappedFileSizeCommitLog", "100"),
        ("deleteWhen", "25"),
        ("messageDelayLevel", "1s 2x"),
        ("slaveTimeout", "soon"),
        ("registerNameServerPeriod", "0"),
        ("cleanResourceInterval", "0"),
        ("flushIntervalCommitLog", "-5"),
        ("haConnectTimeout", "0"),
        ("enableControllerMode", "yes"),
        ("namesrvAddr", "localhost"),
        ("controllerAddr", "127.0.0.1:9877;127.0.0.1"),
        ("allAckInSyncStateSet", "ja"),
    ],
}


@pytest.mark.parametrize(
    ("verb", "key", "value"), [(verb, *case) for verb, cases in BAD_VALUES.items() for case in cases]
)
def test_a_bad_value_is_named_with_its_file_and_key(tmp_path: Path, verb: str, key: str, value: str) -> None:
    conf = write(tmp_path / f"{verb}.conf", {**settings(verb, tmp_path), key: value})
    line = fails(verb, conf)
    assert str(conf) in line and key in line and value in line, line


@pytest.mark.parametrize("verb", PROGRAMS)
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, verb: str) -> None:
    missing = tmp_path / "none.conf"
    assert fails(verb, missing) == f"{verb}: {missing}: cannot be read: No such file or directory"
    assert fails(verb, tmp_path) == f"{verb}: {tmp_path}: cannot be read: Is a directory"
    binary = tmp_path / "binary.conf"
    binary.write_bytes(b"listenPort=\xff\xfe\n")
    assert f"{binary}: cannot be read: 'utf-8' codec can't decode" in fails(verb, binary)
    broken = tmp_path / "broken.conf"
    broken.write_text("clusterName=a\nbrokerName=\\u00zz\n")
    assert fails(verb, broken) == f"{verb}: {broken}: line 2: malformed \\u escape: \\u00zz"


@pytest.mark.parametrize("verb", PROGRAMS)
def test_a_text_that_is_not_a_configuration_is_said_to_be_none(tmp_path: Path, verb: str) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("Remember to set the port.\nAnd the folder.\n")
    assert fails(verb, text) == (
        f"{verb}: {text}: is not a configuration file: line 1 ('Remember to set the port.') is not key=value"
        ", and no line sets a key that is known here"
    )


@pytest.mark.parametrize("verb", PROGRAMS)
def test_an_unknown_key_is_warned_about_and_the_nearest_one_named(tmp_path: Path, verb: str) -> None:
    near = {"namesrv": "listenProt", "controller": "controllerStorePaht", "broker": "flushDiskTyp"}[verb]
    meant = {"namesrv": "listenPort", "controller": "controllerStorePath", "broker": "flushDiskType"}[verb]
    program = Program("p", verb, tmp_path, {**settings(verb, tmp_path), near: "1", "qwertzuiop": "1"})
    try:
        program.start()
        text = read(program.log_path)
        assert f"{program.config_path}: unknown key {near} is ignored; did you mean {meant}?" in text
        assert f"{program.config_path}: unknown key qwertzuiop is ignored\n" in text
    finally:
        assert program.stop() == 0


@pytest.mark.parametrize("verb", PROGRAMS)
def test_a_taken_port_is_named(tmp_path: Path, verb: str) -> None:
    with socket.socket() as taken:
        # As the programs do: a connection that ended a moment ago may still hold the port's name.
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", free_ports(1)[0]))
        taken.listen()
        port = taken.getsockname()[1]
        line = fails(verb, write(tmp_path / "p.conf", settings(verb, tmp_path, port)))
        key = {"controller": "controllerDLegerPeers"}.get(verb, "listenPort")
        assert line == f"{verb}: cannot listen on port {port} ({key}): Address already in use"
        assert not (tmp_path / "store").exists(), "made for a broker that cannot run"
    program = Program("p", verb, tmp_path, settings(verb, tmp_path, port))
    program.start()
    assert program.stop() == 0


def test_a_taken_replication_port_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        # As the programs do: a connection that ended a moment ago may still hold the port's name.
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", free_ports(1)[0]))
        taken.listen()
        port = taken.getsockname()[1]
        values = settings("broker", tmp_path) | {
            "enableControllerMode": "true",
            "controllerAddr": "127.0.0.1:1",
            "haListenPort": port,
        }
        line = fails("broker", write(tmp_path / "b.conf", values))
        assert f"cannot listen on replication port {port} (haListenPort): " in line
        by_default = settings("broker", tmp_path, port - 1)
        line = fails("broker", write(tmp_path / "b.conf", by_default))
        assert f"port {port} (haListenPort, by default listenPort + 1): " in line
        by_distance = settings("broker", tmp_path, port + 2)
        line = fails("broker", write(tmp_path / "b.conf", by_distance))
        assert f"port {port} (listenPort - 2; vipChannelEnabled=false does without): " in line


@pytest.mark.parametrize("key", ["jRaftControllerRPCAddr", "jRaftServerId"])
def test_a_taken_port_of_a_jraft_controller_is_named(tmp_path: Path, key: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        used, free = taken.getsockname()[1], free_ports(1)[0]
        rpc, raft = (used, free) if key == "jRaftControllerRPCAddr" else (free, used)
        values: dict[str, object] = {
            "controllerType": "jRaft",
            "jRaftServerId": f"127.0.0.1:{raft}",
            "jRaftInitConf": f"127.0.0.1:{raft}",
            "jRaftControllerRPCAddr": f"127.0.0.1:{rpc}",
            "controllerStorePath": tmp_path / "controller",
            "bindAddress": "127.0.0.1",
        }
        line = fails("controller", write(tmp_path / "c.conf", values))
        assert line == f"controller: cannot listen on port {used} ({key}): Address already in use"


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    made = Group(tmp_path / "group")
    try:
        made.start()
        asyncio.run(made.serving())
        yield made
        asyncio.run(made.check())
    finally:
        made.cluster.stop()


def test_a_directory_in_use_is_left_alone(group: Group, tmp_path: Path) -> None:
    store = group.cluster.store_path(0)
    values = settings("broker", tmp_path) | {"storePathRootDir": store}
    assert fails("broker", write(tmp_path / "b.conf", values)) == (
        f"broker: {store} is in use by another process"
    )
    directory = group.cluster.controller_programs[0].settings["controllerStorePath"]
    values = settings("controller", tmp_path) | {
        "controllerStorePath": directory,
        "controllerDLegerGroup": "controllers",
    }
    line = fails("controller", write(tmp_path / "c.conf", values))
    assert str(directory) in line and "in use" in line, line


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """A directory of a read-only file system, which not even root can write to."""
    if os.geteuid() != 0:
        pytest.skip("mounting a read-only file system needs root")
    path = tmp_path / "read-only"
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "ro,size=1m", "tmpfs", str(path)], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"tmpfs cannot be mounted here: {mounted.stderr.strip()}")
    yield path
    subprocess.run(["umount", str(path)], check=True)


@pytest.mark.parametrize("verb", ["broker", "controller"])
def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path, read_only: Path, verb: str) -> None:
    key = {"broker": "storePathRootDir", "controller": "controllerStorePath"}[verb]
    for directory in (read_only, read_only / "new"):
        conf = write(tmp_path / "p.conf", settings(verb, tmp_path) | {key: directory})
        line = fails(verb, conf)
        assert str(read_only) in line and line.endswith("Read-only file system"), line


@pytest.mark.parametrize("verb", ["broker", "controller"])
def test_a_directory_that_is_a_file_is_named(tmp_path: Path, verb: str) -> None:
    key = {"broker": "storePathRootDir", "controller": "controllerStorePath"}[verb]
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file/below"):
        line = fails(verb, write(tmp_path / "p.conf", settings(verb, tmp_path) | {key: path}))
        assert str(tmp_path / "file") in line, line


def test_a_snapshot_that_cannot_be_restored_is_named(tmp_path: Path) -> None:
    values = settings("controller", tmp_path)
    disk = OsDisk(tmp_path / "controller/raft-n0")
    storage = Storage(disk, "g", "n0", segment_bytes=1 << 20)
    storage.open()
    meta = SnapshotMeta(7, 1, Members({"n0": str(values["controllerDLegerPeers"]).removeprefix("n0-")}))
    storage.write_snapshot(Snapshot(meta, b"no state"))
    storage.close()
    line = fails("controller", write(tmp_path / "p.conf", values))
    assert line.startswith(f"controller: {storage.snapshot_path(meta)}: it holds no controllers' state: "), (
        line
    )
    assert "restore this node from its peers" in line


# -- the end


def test_sigterm_ends_every_program_with_0(tmp_path: Path) -> None:
    for verb in PROGRAMS:
        for number in (signal.SIGTERM, signal.SIGINT):
            program = Program(verb, verb, tmp_path, settings(verb, tmp_path))
            program.start()
            began = time.monotonic()
            program.signal(number)
            assert program.process is not None
            assert program.process.wait(10) == 0, read(program.log_path)
            assert time.monotonic() - began < 3
            assert "Traceback" not in read(program.log_path)


async def test_sigterm_under_load_is_clean_and_loses_nothing(tmp_path: Path) -> None:
    group = Group(tmp_path / "group", replicas=2)
    try:
        group.start()
        await group.serving()
        load = asyncio.ensure_future(group.send(100_000, 500))
        await asyncio.sleep(1)
        for index in (0, 1):  # the master first, then its heir
            program = group.cluster.brokers[index]
            before = len(group.acked)
            assert before > 50
            began = time.monotonic()
            code = await asyncio.to_thread(program.stop)
            took = time.monotonic() - began
            assert (code, took < 8) == (0, True), f"{took:.1f} s\n{read(program.log_path)[-3000:]}"
            program.start()
            group.pids[program.name] = program.pid
            deadline = time.monotonic() + 20
            while len(group.acked) < before + 200 and time.monotonic() < deadline:
                await asyncio.sleep(0.1)
            assert len(group.acked) >= before + 200, "no service after a replica was stopped"
        (controller,) = group.cluster.controller_programs
        assert await asyncio.to_thread(controller.stop) == 0
        controller.start()
        group.pids[controller.name] = controller.pid
        load.cancel()
        await asyncio.gather(load, return_exceptions=True)
        await group.check(repeats=True)
        assert set(group.cluster.stop().values()) == {0}
        assert "Traceback" not in group.logs()
    finally:
        group.cluster.stop()
