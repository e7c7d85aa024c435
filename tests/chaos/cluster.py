"""The cluster under test, ours or Apache RocketMQ's, spread over the hosts of a network.

Both get the same configuration: names, addresses and the rule for acknowledgements. Everything else is as
each ships it, except for `JAVA_PAIRS`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from batonmq.demo.cluster import LocalCluster, Program
from tests.chaos.fixed import FixedGroups, namesrv_names, node_names
from tests.chaos.load import Places
from tests.chaos.network import Network

PEER = Path(os.environ.get("PEER_SH", Path(__file__).parents[1] / "interop" / "peer.sh"))
HEAPS = {"namesrv": "160m", "controller": "256m", "broker": "700m", "container": "900m"}
"""Of a Java program: seven of them share the machine."""
NAME_SERVERS = 2
CONTROLLERS = 3
JAVA_PAIRS: Mapping[str, object] = {"skipPreOnline": "true"}
"""Keys of Java brokers without controllers. A master of 5.5.0 that returns cannot read its slave's consumer
offsets in its pre-online step: without this key it would never serve again."""


class Cluster(Protocol):
    """What a run needs of a cluster: `LocalCluster` with controllers, or `FixedGroups`."""

    replicas: int
    namesrvs: list[Program]
    controller_programs: list[Program]
    brokers: list[Program]
    """The nodes that hold replicas."""

    @property
    def programs(self) -> list[Program]: ...

    @property
    def namesrv_address(self) -> str: ...

    def stop(self) -> Mapping[str, int | None]: ...


def host_names(replicas: int, groups: str = "controllers") -> list[str]:
    """One host for each program, named as the cluster names the programs."""
    if groups != "controllers":
        return [*namesrv_names(), *node_names(groups)]
    return [
        *("namesrv" if i == 0 else f"namesrv-{i}" for i in range(NAME_SERVERS)),
        *(f"controller-{i}" for i in range(CONTROLLERS)),
        *(f"broker-{i}" for i in range(replicas)),
    ]


def make_cluster(
    system: str,
    directory: Path,
    network: Network,
    replicas: int,
    groups: str = "controllers",
    more: Mapping[str, object] | None = None,
) -> LocalCluster | FixedGroups:
    """A cluster of `system` (a key of `SYSTEMS`) on the network's hosts, not started.

    `groups`: see `scenarios.GROUPS`. `more`: further keys of all brokers.
    """
    more = more or {}
    cluster: LocalCluster | FixedGroups
    if groups == "controllers":
        cluster = LocalCluster(
            directory,
            replicas=replicas,
            controllers=CONTROLLERS,
            name_servers=NAME_SERVERS,
            place=network.place,
            broker_settings=more,
        )
    else:
        cluster = FixedGroups(
            groups, directory, network.place, {**more, **(JAVA_PAIRS if system == "java" else {})}
        )
    if system == "java":
        for program in cluster.programs:
            # Each program gets its own home directory, for files that no key moves.
            home = f"PEER_USER_HOME={directory / program.name}"
            program.command = ("env", home, f"PEER_HEAP={HEAPS[program.verb]}", str(PEER))
        if isinstance(cluster, LocalCluster):
            for broker in cluster.brokers:
                ha_port = int(str(broker.settings["listenPort"])) + 1
                broker.settings = {**broker.settings, "haListenPort": ha_port}
    return cluster


def stores_of(cluster: Cluster) -> Sequence[Sequence[Path]]:
    """The store directories of each broker set."""
    if isinstance(cluster, FixedGroups):
        return cluster.stores
    assert isinstance(cluster, LocalCluster)
    return [[cluster.store_path(number) for number in range(cluster.replicas)]]


def places_of(cluster: Cluster) -> Places:
    """How to distinguish messages of several broker sets."""
    if not isinstance(cluster, FixedGroups):
        return Places()
    addresses = {
        (broker.host, broker.port): number
        for number, pair in enumerate(cluster.sets.values())
        for broker in pair
    }
    # The masters of RocketMQ's containers store their container's port in messages.
    nodes = {node.place.host: int(str(node.settings["listenPort"])) for node in cluster.brokers}
    for number, (master, _) in enumerate(cluster.sets.values()):
        addresses[master.host, nodes[master.host]] = number
    return Places(cluster.names, addresses)
