"""A real cluster on this machine: name servers, controllers and a broker set, one process each.

For the demonstration, benchmarks and tests. Every process has its configuration file and log below one
directory, and listens on a free port.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from batonmq.demo.ports import free_ports

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 20.0


class ProcessFailed(RuntimeError):
    """A program did not start; the text contains the end of its log."""


@dataclass(frozen=True)
class Place:
    """Where a program runs."""

    host: str = "127.0.0.1"
    """Address at which the other programs reach it."""
    enter: Sequence[str] = ()
    """Prefix of the command, to run it there (``nsenter``, ``ssh``)."""


HERE = Place()


@dataclass
class Program:
    """One process: ``batonmq <verb> -c <name>.conf``."""

    name: str
    verb: str
    directory: Path
    settings: Mapping[str, object]
    place: Place = HERE
    command: Sequence[str] = (sys.executable, "-m", "batonmq")
    process: subprocess.Popen[bytes] | None = None
    starts: int = 0
    port: int = 0
    """Where it listens, if its settings have no listenPort: a controller's port is in its peers."""
    start_timeout_s: float = START_TIMEOUT_S

    @property
    def config_path(self) -> Path:
        return self.directory / f"{self.name}.conf"

    @property
    def log_path(self) -> Path:
        return self.directory / f"{self.name}.log"

    @property
    def address(self) -> str:
        return f"{self.place.host}:{self.port or self.settings['listenPort']}"

    @property
    def pid(self) -> int:
        assert self.process is not None, f"{self.name} was not started"
        return self.process.pid

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self, *, wait: bool = True) -> None:
        """Start the process; with `wait`, return when it serves. Raises `ProcessFailed`."""
        lines = "".join(f"{key}={value}\n" for key, value in self.settings.items())
        self.config_path.write_text(lines)
        already = self.log_path.stat().st_size if self.log_path.exists() else 0
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [*self.place.enter, *self.command, self.verb, "-c", str(self.config_path)],
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
                # A separate process group, so that Ctrl-C reaches only us. Not a session: Linux shares the
                # processors between sessions, not processes (autogroup), which distorts measurements.
                process_group=0,
            )
        self.starts += 1
        if wait:
            self.wait_ready(already)

    def wait_ready(self, from_byte: int = 0) -> None:
        deadline = time.monotonic() + self.start_timeout_s
        while time.monotonic() < deadline:
            with self.log_path.open("rb") as log:
                log.seek(from_byte)
                text = log.read()
            if b"boot success" in text:
                return
            if not self.running:
                break
            time.sleep(0.01)
        tail = "\n".join(self.log_path.read_text(errors="replace").splitlines()[-15:])
        self.kill()
        raise ProcessFailed(f"{self.name} ({self.verb}) did not come up; the end of {self.log_path}:\n{tail}")

    def signal(self, number: signal.Signals) -> None:
        if self.running:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """``kill -9``: the process has no chance to say that it ends."""
        self.signal(signal.SIGKILL)
        if self.process is not None:
            self.process.wait()

    def stop(self) -> int | None:
        """SIGTERM, then SIGKILL if it does not stop in time. Returns the exit code."""
        if self.process is None:
            return None
        self.signal(signal.SIGTERM)
        try:
            return self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            return self.process.returncode


@dataclass
class LocalCluster:
    """A context manager: name servers, controllers and `replicas` brokers of one name, in controller mode."""

    directory: Path
    replicas: int = 2
    controllers: int = 1
    broker_settings: Mapping[str, object] = field(default_factory=dict)
    cluster_name: str = "DefaultCluster"
    broker_name: str = "broker-a"
    name_servers: int = 1
    place: Callable[[str], Place] = lambda name: HERE
    """Where the program of this name (``namesrv``, ``namesrv-1``, ``controller-0``, ``broker-0``) runs."""
    namesrvs: list[Program] = field(init=False)
    controller_programs: list[Program] = field(init=False)
    brokers: list[Program] = field(init=False)

    def __post_init__(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        ports = iter(free_ports(self.name_servers + self.controllers + self.replicas))
        self.namesrvs = [
            self._program("namesrv" if i == 0 else f"namesrv-{i}", "namesrv", {"listenPort": next(ports)})
            for i in range(self.name_servers)
        ]
        self.controller_programs = [
            self._program(
                f"controller-{i}",
                "controller",
                {
                    "controllerDLegerGroup": "controllers",
                    "controllerDLegerSelfId": f"n{i}",
                    "controllerStorePath": self.directory / f"controller-{i}",
                },
            )
            for i in range(self.controllers)
        ]
        for program in self.controller_programs:
            program.port = next(ports)
        peers = ";".join(f"n{i}-{address}" for i, address in enumerate(self.controller_addresses))
        for program in self.controller_programs:
            program.settings = {**program.settings, "controllerDLegerPeers": peers}
        self.brokers = [self._broker(i, next(ports)) for i in range(self.replicas)]

    def _program(self, name: str, verb: str, settings: Mapping[str, object]) -> Program:
        return Program(name, verb, self.directory, settings, self.place(name))

    def _broker(self, number: int, port: int) -> Program:
        name = f"broker-{number}"
        return self._program(
            name,
            "broker",
            {
                "brokerClusterName": self.cluster_name,
                "brokerName": self.broker_name,
                "brokerIP1": self.place(name).host,
                "listenPort": port,
                "namesrvAddr": self.namesrv_address,
                "storePathRootDir": self.store_path(number),
                "storePathCommitLog": self.store_path(number) / "commitlog",
                "enableControllerMode": "true",
                "controllerAddr": ";".join(self.controller_addresses),
                "allAckInSyncStateSet": "true",
                **self.broker_settings,
            },
        )

    @property
    def programs(self) -> list[Program]:
        return [*self.namesrvs, *self.controller_programs, *self.brokers]

    @property
    def namesrv(self) -> Program:
        """The first name server."""
        return self.namesrvs[0]

    @property
    def namesrv_address(self) -> str:
        """The addresses for clients: all name servers, ``host:port;host:port``."""
        return ";".join(program.address for program in self.namesrvs)

    @property
    def controller_addresses(self) -> list[str]:
        return [p.address for p in self.controller_programs]

    def store_path(self, replica: int) -> Path:
        return self.directory / f"store-{replica}"

    def start(self) -> None:
        """Start everything. The first broker starts before the others, so that it becomes master."""
        try:
            for program in (*self.namesrvs, *self.controller_programs):
                program.start(wait=False)
            for program in (*self.namesrvs, *self.controller_programs):
                program.wait_ready()
            for broker in self.brokers:
                broker.start()
        except BaseException:
            self.stop()
            raise

    def broker_at(self, address: str) -> Program:
        """The broker that listens on `address`. Raises `StopIteration` if there is none."""
        return next(b for b in self.brokers if b.address == address)

    def stop(self) -> dict[str, int | None]:
        """Stop the brokers first, then the rest; exit codes by name."""
        codes = {}
        for program in reversed(self.programs):
            codes[program.name] = program.stop()
        return codes

    def __enter__(self) -> LocalCluster:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()
