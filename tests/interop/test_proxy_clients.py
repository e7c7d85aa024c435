"""RocketMQ's gRPC clients of other languages than Java, through its proxy, on our brokers.

The programs are `go5/` and `python5/`. Each runs the scenario that its arguments name and prints what it saw
as JSON.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from batonmq import Admin, QueueReader
from batonmq.protocol.errors import TopicNotExistError
from tests.integration.group import Group
from tests.interop.conftest import Peer
from tests.interop.test_proxy import behind_a_proxy
from tests.interop.upstream.jars import home

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]
HERE = Path(__file__).parent
CLIENTS = ("go", "python")
NUMBERS = [str(number) for number in range(20)]


@dataclass(frozen=True)
class Servers:
    """Two brokers of ours and the proxy in front of them."""

    group: Group
    proxy: str
    folder: Path


@pytest.fixture(scope="module")
def servers(rocketmq: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    folder = tmp_path_factory.mktemp("proxy")
    peer = Peer(folder)
    started = behind_a_proxy(peer, folder, prefixes=tuple(f"{client}_" for client in CLIENTS))
    with asyncio.Runner() as runner:
        try:
            group, proxy = runner.run(started.__aenter__())
            yield Servers(group, proxy.address, folder)
            runner.run(started.__aexit__(None, None, None))
        finally:
            peer.stop_all()


class Client:
    """A program with RocketMQ's client of one language."""

    def __init__(self, name: str, command: list[str | Path], servers: Servers) -> None:
        self.name = name
        self._command = command
        self._servers = servers

    async def run(self, scenario: str, *words: str | Path) -> dict[str, Any]:
        """What the scenario printed; fails the test if the client reported an error."""
        logs = self._servers.folder / f"{self.name}-logs"
        environment = {**os.environ, "HOME": str(logs), "rocketmq.client.logRoot": str(logs)}
        process = await asyncio.create_subprocess_exec(
            *self._command,
            *(self._servers.proxy, f"{self.name}_", scenario, *words),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
        )
        try:
            async with asyncio.timeout(150):
                output, errors = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
        assert process.returncode == 0, f"{scenario}: {output.decode()}\n{errors.decode()[-3000:]}"
        found: dict[str, Any] = json.loads(output.splitlines()[-1])
        print(self.name, scenario, found)
        return found


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest, servers: Servers) -> Client:
    """Skips the test if the program cannot be made."""
    if request.param == "go":
        return Client("go", [_go_program()], servers)
    return Client("python", [_python_with_its_client(), HERE / "python5" / "main.py"], servers)


def _go_program() -> Path:
    """The program, built once for each state of its source."""
    if shutil.which("go") is None:
        pytest.skip("go is not installed; this test runs Apache RocketMQ's Go client")
    source = HERE / "go5"
    built = _place("go5client", [source / name for name in ("main.go", "go.mod", "go.sum")])
    if not built.exists():
        _make("the Go client", ["go", "build", "-o", built, "."], source)
    return built


def _python_with_its_client() -> Path:
    """The interpreter of an environment with nothing but the client and what it needs."""
    locked = HERE / "python5" / "requirements.lock"
    place = _place("python5client", [locked])
    if not (place / "made").exists():
        shutil.rmtree(place, ignore_errors=True)
        _make("an environment", [sys.executable, "-m", "venv", place], HERE)
        pip: list[str | Path] = [
            place / "bin" / "python",
            "-m",
            "pip",
            "install",
            "--quiet",
            "--require-hashes",
            "--no-deps",
        ]
        _make("the Python client", [*pip, "-r", locked], HERE)
        (place / "made").touch()
    return place / "bin" / "python"


def _place(name: str, sources: list[Path]) -> Path:
    """Where what is made of these files is kept; what was made of other states of them is deleted."""
    state = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]
    place = home() / f"{name}-{state}"
    for old in home().glob(f"{name}-*"):
        if old != place:
            shutil.rmtree(old) if old.is_dir() else old.unlink()
    home().mkdir(parents=True, exist_ok=True)
    return place


def _make(what: str, command: list[str | Path], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    no_network = ("proxyconnect", "dial tcp", "NewConnectionError", "No matching distribution")
    if any(sign in done.stderr for sign in no_network):
        pytest.skip(f"{what} could not be fetched: {done.stderr[-300:]}")
    assert done.returncode == 0, done.stderr


async def _one_dead_letter(servers: Servers, group: str) -> None:
    """The broker makes it when the message was hidden for the last time."""
    async with asyncio.timeout(40), QueueReader(servers.group.cluster.namesrv_address) as reader:
        found = 0
        while not found:
            await asyncio.sleep(0.5)
            with contextlib.suppress(TopicNotExistError):
                queues = await reader.queues(f"%DLQ%{group}")
                found = sum([await reader.max_offset(queue) for queue in queues])
    assert found == 1


async def test_quick_all_kinds_of_messages_through_the_proxy(client: Client, servers: Servers) -> None:
    names = ("simple", "ordered", "timed", "transactions", "push")
    simple, ordered, timed, transactions, push = await asyncio.gather(*(client.run(name) for name in names))
    assert simple["even"] == ["m0", "m10", "m12", "m14", "m16", "m18", "m2", "m4", "m6", "m8"]
    assert simple["sql"] == ["m3", "m4", "m5", "m6"]
    assert simple["again"] == [], "what was acknowledged came again"
    assert (simple["hidden"], simple["back"], simple["attempt"]) == (10, 10, 2)
    assert simple["first_ms"] > 9_000
    assert ordered["g0"] == NUMBERS and ordered["tries"] == 2
    if (
        client.name == "go"
    ):  # 5.1.3 does not wait for a message that failed before it goes on with those it has
        assert [body for body in ordered["g1"] if body != "7"] == [body for body in NUMBERS if body != "7"]
        assert ordered["g1"].count("7") == 1
    else:
        assert ordered["g1"] == NUMBERS
    assert timed == {"early_ms": 0, "timed": ["later"]}
    assert set(transactions["transactions"]) == {"checked", "committed"}
    assert push == {"once": 1, "twice": 2, "never": 3}
    await _one_dead_letter(servers, f"{client.name}_pushed")
    assert "Traceback" not in servers.group.logs()


async def test_acknowledged_messages_survive_the_masters_death_behind_the_proxy(
    client: Client, servers: Servers, tmp_path: Path
) -> None:
    stop = tmp_path / "stop"
    running = asyncio.ensure_future(client.run("kill", stop))
    try:
        await asyncio.sleep(5)
        async with Admin(servers.group.cluster.namesrv_address) as admin:
            (master,) = (await admin.masters()).values()
        killed = servers.group.cluster.broker_at(master)
        killed.kill()
        await asyncio.sleep(8)
        killed.start()
        await asyncio.sleep(4)
    finally:
        stop.touch()
        found = await running
    assert found["lost"] == 0 and found["sent"] > 300 and found["gap_ms"] < 10_000
    assert "Traceback" not in servers.group.logs()
