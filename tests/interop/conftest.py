"""Fixtures for tests beside the real Apache RocketMQ.

    async def test_…(peer):
        namesrv = await peer.start("namesrv")                     # waits for "boot success"
        broker = await peer.start("broker", {"namesrvAddr": namesrv.address, "brokerName": "a"})
        await peer.admin_until(broker.address, "clusterList", "-n", namesrv.address)
        broker.kill()                                             # kill -9;  .terminate() is SIGTERM

Keys left out of a configuration get values fit for a test: free ports, a store below the test's own folder,
small files. Everything still running at the end of the test is killed. All calls that wait do so in a thread,
so that programs under test can run on the test's own event loop.

The script that runs RocketMQ is `peer.sh` beside this file, or the one that PEER_SH names.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

import pytest

from batonmq.demo.ports import free_ports

SCRIPT = Path(os.environ.get("PEER_SH", Path(__file__).parent / "peer.sh"))
START_TIMEOUT_S = 90.0
ADMIN_TIMEOUT_S = 60.0
HEAPS = {
    "namesrv": "128m",
    "controller": "192m",
    "broker": "400m",
    "container": "600m",
    "admin": "128m",
    "proxy": "300m",
    "java5": "256m",
}


def free_port() -> int:
    """A port nobody uses now, nor its neighbours: the VIP port is listenPort - 2, ours replicates on + 1."""
    return free_ports(1)[0]


class JavaProcess:
    """One running program of RocketMQ. `log` is its combined output."""

    def __init__(
        self, kind: str, config: dict[str, str], process: subprocess.Popen[bytes], log: Path
    ) -> None:
        self.kind = kind
        self.config = config
        self.process = process
        self.log = log

    @property
    def address(self) -> str:
        """``ip:port`` its clients use."""
        return f"127.0.0.1:{self.config['listenPort']}"

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def kill(self) -> None:
        """As `kill -9`; returns when the process is gone."""
        self.process.kill()
        self.process.wait()

    def terminate(self, timeout_s: float = 30) -> int:
        """Orderly stop; returns the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout_s)

    async def wait_for(self, text: str, timeout_s: float = START_TIMEOUT_S) -> None:
        """Until its output holds `text`; fails the test when it ends or takes too long."""
        deadline = time.monotonic() + timeout_s
        while text not in self.output:
            if self.process.poll() is not None:
                pytest.fail(f"Java {self.kind} ended with {self.process.returncode}:\n{self.output[-3000:]}")
            if time.monotonic() > deadline:
                pytest.fail(f"Java {self.kind} did not say {text!r} in {timeout_s} s:\n{self.output[-3000:]}")
            await asyncio.sleep(0.1)


def chosen(release: str | None) -> dict[str, str]:
    """The environment that makes the script take this release; None: its default."""
    return {} if release is None else {"RMQ_VERSION": release}


class Peer:
    """Starts RocketMQ's programs and tools; knows what it started."""

    def __init__(self, folder: Path, release: str | None = None) -> None:
        """`release`: another one than the default, fetched beforehand."""
        self._folder = folder
        self.release = release
        self._running: list[JavaProcess] = []
        self._files: list[IO[bytes]] = []
        self._tools: Path | None = None

    def free_port(self) -> int:
        return free_port()

    def sign_as(self, access_key: str, secret_key: str) -> None:
        """mqadmin signs its requests from now on: its file tools.yml has this user."""
        self._tools = self._folder / "tools"
        conf = self._tools / "conf"
        conf.mkdir(parents=True, exist_ok=True)
        (conf / "tools.yml").write_text(f"accessKey: {access_key}\nsecretKey: {secret_key}\n")

    def config(self, kind: str, given: Mapping[str, object]) -> dict[str, str]:
        """`given`, completed with what a test wants of a Java program of this kind."""
        home = self._folder / f"java-{kind}-{len(self._running)}"
        port = str(free_port())
        defaults: dict[str, dict[str, str]] = {
            "namesrv": {
                "listenPort": port,
                "kvConfigPath": str(home / "kvConfig.json"),
            },
            "broker": {
                "listenPort": port,
                "haListenPort": str(free_port()),
                "brokerIP1": "127.0.0.1",
                "brokerIP2": "127.0.0.1",
                "brokerName": "java-broker",
                "storePathRootDir": str(home / "store"),
                "storePathCommitLog": str(home / "store" / "commitlog"),
                "mapedFileSizeCommitLog": str(64 * 1024 * 1024),
                "mapedFileSizeConsumeQueue": str(20 * 50_000),
                "maxIndexNum": "100000",
                "maxHashSlotNum": "20000",
                "timerWheelEnable": "false",
            },
            "container": {
                "listenPort": port,
                "brokerContainerIP": "127.0.0.1",
            },
            "controller": {
                "controllerDLegerGroup": "interop",
                "controllerDLegerPeers": f"n0-127.0.0.1:{port}",
                "controllerDLegerSelfId": "n0",
                "controllerStorePath": str(home / "controller"),
            },
        }
        merged = {**defaults.get(kind, {}), **{key: str(value) for key, value in given.items()}}
        if kind == "controller":
            peers = dict(entry.split("-", 1) for entry in merged["controllerDLegerPeers"].split(";"))
            merged["listenPort"] = peers[merged["controllerDLegerSelfId"]].rpartition(":")[2]
        return merged

    async def start(
        self, kind: str, config: Mapping[str, object] | None = None, *, ready: str = "boot success"
    ) -> JavaProcess:
        """Run namesrv, controller, broker or container and wait until it says it is ready."""
        values = self.config(kind, config or {})
        file = self._folder / f"{kind}-{len(self._running)}.conf"
        file.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
        return await self._start(kind, values, ("-c", str(file)), ready)

    async def start_proxy(self, namesrv: str, config: Mapping[str, object] | None = None) -> JavaProcess:
        """Run the proxy in front of the brokers of a name server. `address` is its gRPC port; the port for
        clients of brokers is ``config["remotingListenPort"]``."""
        values: dict[str, object] = {
            "proxyMode": "CLUSTER",
            "rocketMQClusterName": "DefaultCluster",
            "namesrvAddr": namesrv,
            "grpcServerPort": free_port(),
            "remotingListenPort": free_port(),
            **(config or {}),
        }
        file = self._folder / f"proxy-{len(self._running)}.json"
        file.write_text(json.dumps(values))
        shown = {key: str(value) for key, value in values.items()} | {
            "listenPort": str(values["grpcServerPort"])
        }
        return await self._start("proxy", shown, ("-pc", str(file)), "startup successfully")

    async def _start(
        self, kind: str, values: dict[str, str], arguments: tuple[str, ...], ready: str
    ) -> JavaProcess:
        number = len(self._running)
        log = self._folder / f"{kind}-{number}.log"
        output = log.open("wb")
        self._files.append(output)
        process = subprocess.Popen(
            [str(SCRIPT), kind, *arguments],
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**self._environment(kind), "PEER_USER_HOME": str(self._folder / f"home-{number}")},
        )
        started = JavaProcess(kind, values, process, log)
        self._running.append(started)
        await started.wait_for(ready)
        return started

    async def admin(self, command: str, *arguments: str, timeout_s: float = ADMIN_TIMEOUT_S) -> str:
        """Run one mqadmin command; returns what it printed, stdout and stderr together, without the chatter
        of its logging library. mqadmin exits with 0 even when it failed, so look at the text.
        """
        return await self._run("admin", command, *arguments, timeout_s=timeout_s)

    async def admin_until(
        self, text: str, command: str, *arguments: str, timeout_s: float = ADMIN_TIMEOUT_S
    ) -> str:
        """Repeat an mqadmin command until its output holds `text`; a Java broker, for one, says that it is
        ready before it has registered with its name servers."""
        deadline = time.monotonic() + timeout_s
        while text not in (output := await self.admin(command, *arguments)):
            if time.monotonic() > deadline:
                pytest.fail(f"mqadmin {command} did not print {text!r} in {timeout_s} s:\n{output}")
        return output

    async def java(self, source: Path, *arguments: str, timeout_s: float = 120) -> str:
        """Compile and run one Java file with RocketMQ's client on its class path; returns its output."""
        return await self._run("java", str(source), *arguments, timeout_s=timeout_s)

    async def java5(
        self, source: Path, *arguments: str, timeout_s: float = 120, signed_by: tuple[str, str] | None = None
    ) -> str:
        """As `java`, with the client of the proxy; `signed_by`: user and password in its environment."""
        user = {} if signed_by is None else {"USER_NAME": signed_by[0], "PASSWORD": signed_by[1]}
        return await self._run("java5", str(source), *arguments, timeout_s=timeout_s, environment=user)

    async def _run(
        self, verb: str, *arguments: str, timeout_s: float, environment: Mapping[str, str] | None = None
    ) -> str:
        def run() -> str:
            done = subprocess.run(
                [str(SCRIPT), verb, *arguments],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=timeout_s,
                env={**self._environment(verb), **(environment or {})},
                check=False,
            )
            text = done.stdout.decode(errors="replace")
            return "".join(line for line in text.splitlines(keepends=True) if "|-" not in line)

        return await asyncio.to_thread(run)

    def _environment(self, kind: str) -> dict[str, str]:
        heap = os.environ.get("PEER_HEAP", HEAPS.get(kind, "256m"))
        tools = {"PEER_USER_HOME": str(self._tools)} if kind == "admin" and self._tools is not None else {}
        return {**os.environ, "PEER_HEAP": heap, **tools, **chosen(self.release)}

    def stop_all(self) -> None:
        for each in self._running:
            if each.process.poll() is None:
                each.kill()
        for file in self._files:
            file.close()


@pytest.fixture(scope="session")
def rocketmq() -> Path:
    """The script that runs RocketMQ, with the release fetched; skips where Java or Maven is missing."""
    for tool in ("java", "mvn"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed; interop tests run the real Apache RocketMQ")
    fetch()
    return SCRIPT


def fetch(release: str | None = None) -> None:
    """Fetch a release; skips the test if that fails."""
    environment = {**os.environ, **chosen(release)}
    done = subprocess.run([str(SCRIPT), "get"], capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        pytest.skip(f"Apache RocketMQ could not be fetched: {(done.stdout + done.stderr)[-300:]}")


@pytest.fixture
def peer(rocketmq: Path, tmp_path: Path) -> Iterator[Peer]:
    """The real RocketMQ for one test."""
    made = Peer(tmp_path)
    yield made
    made.stop_all()
