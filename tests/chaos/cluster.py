"""The cluster under test, ours or Apache RocketMQ's, spread over the hosts of a network.

Both get the same configuration: names, addresses and all-ack. Everything else is as each ships it.
"""

from __future__ import annotations

import os
from pathlib import Path

from batonmq.demo.cluster import LocalCluster
from tests.chaos.network import Network

PEER = Path(os.environ.get("PEER_SH", Path(__file__).parents[1] / "interop" / "peer.sh"))
SYSTEMS = {"ours": "BatonMQ", "java": "Apache RocketMQ 5.5.0"}
HEAPS = {"namesrv": "160m", "controller": "256m", "broker": "700m"}
"""Of a Java program: seven of them share the machine."""
NAME_SERVERS = 2
CONTROLLERS = 3


def host_names(replicas: int) -> list[str]:
    """One host for each program, named as `LocalCluster` names the programs."""
    return [
        *("namesrv" if i == 0 else f"namesrv-{i}" for i in range(NAME_SERVERS)),
        *(f"controller-{i}" for i in range(CONTROLLERS)),
        *(f"broker-{i}" for i in range(replicas)),
    ]


def make_cluster(system: str, directory: Path, network: Network, replicas: int) -> LocalCluster:
    """A cluster of `system` (a key of `SYSTEMS`) on the network's hosts, not started."""
    cluster = LocalCluster(
        directory,
        replicas=replicas,
        controllers=CONTROLLERS,
        name_servers=NAME_SERVERS,
        place=network.place,
    )
    if system == "java":
        for program in cluster.programs:
            # Each program believes in a home directory of its own, where it keeps what no key moves.
            home = f"PEER_USER_HOME={directory / program.name}"
            program.command = ("env", home, f"PEER_HEAP={HEAPS[program.verb]}", str(PEER))
        for broker in cluster.brokers:
            ha_port = int(str(broker.settings["listenPort"])) + 1
            broker.settings = {**broker.settings, "haListenPort": ha_port}
    return cluster
