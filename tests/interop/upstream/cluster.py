"""A name server and three masters as processes, of BatonMQ or of RocketMQ, configured as RocketMQ's tests
expect."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from batonmq.demo.cluster import Program
from batonmq.demo.ports import free_ports
from tests.interop.upstream.jars import PEER, RELEASE

System = Literal["ours", "java"]
BROKERS = 3
JAVA_START_TIMEOUT_S = 240.0
NAME = "DefaultCluster"
EVERY_HOUR = ";".join(f"{hour:02}" for hour in range(24))
BROKER_KEYS: dict[str, object] = {
    "brokerClusterName": NAME,
    "brokerId": 0,
    "brokerRole": "ASYNC_MASTER",
    "brokerIP1": "127.0.0.1",
    "enablePropertyFilter": "true",
    "recallMessageEnable": "true",
    "popConsumerKVServiceInit": "true",
    "loadBalancePollNameServerInterval": 500,
    "deleteWhen": EVERY_HOUR,
    "mappedFileSizeCommitLog": 100 << 20,
    "maxIndexNum": 1000,
    "maxHashSlotNum": 4000,
    "maxTransferCountOnMessageInMemory": 1024,
    "maxTransferCountOnMessageInDisk": 1024,
}
"""What the tests need of the configuration that RocketMQ gives them (IntegrationTestBase); the rest is each
system's default."""


@dataclass(frozen=True)
class RunningCluster:
    """Addresses of the processes."""

    namesrv: str
    brokers: dict[str, str]
    """Address by broker name."""
    programs: list[Program]

    @property
    def properties(self) -> dict[str, str]:
        """The system properties by which the Java side finds it (Cluster.java)."""
        brokers = ",".join(f"{name}@{address}" for name, address in self.brokers.items())
        return {
            "upstream.namesrv": self.namesrv,
            "upstream.cluster": NAME,
            "upstream.brokers": brokers,
        }


@contextlib.contextmanager
def running(system: System, work: Path, extra: dict[str, object] | None = None) -> Iterator[RunningCluster]:
    """Start the processes with files below `work`; they are killed at the end. `extra` are further keys of
    the brokers. Raises `ProcessFailed`."""
    tls = _tls_keys(work) if system == "ours" else {}  # Java's own test mode makes up a certificate
    ports = free_ports(1 + BROKERS)
    namesrv = _program(
        system,
        "namesrv",
        "namesrv",
        work,
        {
            "listenPort": ports[0],
            "kvConfigPath": work / "kvConfig.json",
            "configStorePath": work / "namesrv.properties",
            **tls,
        },
    )
    programs = [namesrv]
    for number, port in enumerate(ports[1:], 1):
        store = work / f"broker-{number}"
        keys = {
            **BROKER_KEYS,
            "brokerName": f"TestBrokerName_{number}",
            "listenPort": port,
            "haListenPort": port + 1,
            "namesrvAddr": namesrv.address,
            "storePathRootDir": store,
            "storePathCommitLog": store / "commitlog",
            **tls,
            **(extra or {}),
        }
        programs.append(_program(system, f"broker-{number}", "broker", work, keys))
    with contextlib.ExitStack() as stack:
        for program in programs:
            stack.callback(program.kill)
            program.start(wait=program is namesrv)
        for program in programs[1:]:
            program.wait_ready()
        brokers = {str(each.settings["brokerName"]): each.address for each in programs[1:]}
        yield RunningCluster(namesrv.address, brokers, programs)


def _program(system: System, name: str, verb: str, work: Path, keys: dict[str, object]) -> Program:
    if system == "ours":
        return Program(name, verb, work, keys)
    heap = "400m" if verb == "broker" else "128m"
    environment = (f"PEER_HEAP={heap}", f"PEER_USER_HOME={work / f'home-{name}'}", f"RMQ_VERSION={RELEASE}")
    command = ("env", *environment, str(PEER))
    return Program(name, verb, work, keys, command=command, start_timeout_s=JAVA_START_TIMEOUT_S)


def _tls_keys(work: Path) -> dict[str, object]:
    certificate, key = work / "server.pem", work / "server.key"
    options = ("-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost")
    subprocess.run(
        ["openssl", "req", "-x509", *options, "-keyout", key, "-out", certificate],
        check=True,
        capture_output=True,
    )
    return {"tls.server.certPath": certificate, "tls.server.keyPath": key}
