"""Groups without controllers, whose roles are in their files: a pair, and two containers crosswise.

All brokers have the same rule: a message is acknowledged when both replicas have it, or the master alone
while the slave is gone (`enableAutoInSyncReplicas`). A slave acts as master while its master is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from batonmq.demo.cluster import Place, Program
from batonmq.demo.ports import free_ports

NAME_SERVERS = 2
NODES = 2
RULE: Mapping[str, object] = {
    "totalReplicas": NODES,
    "inSyncReplicas": NODES,
    "minInSyncReplicas": 1,
    "enableAutoInSyncReplicas": "true",
    "enableSlaveActingMaster": "true",
    "enableRemoteEscape": "true",
    "slaveReadEnable": "true",
}
LAYOUTS: Mapping[str, tuple[str, ...]] = {"classic": ("broker-a",), "containers": ("broker-a", "broker-b")}
"""Names of the broker sets. Set number n has its master on node n and its slave on the other one."""


class FixedBroker:
    """One broker of a node, and its file."""

    def __init__(
        self, directory: Path, name: str, broker_id: int, host: str, namesrv: str, more: Mapping[str, object]
    ) -> None:
        self.name, self.broker_id, self.host = name, broker_id, host
        self.port = free_ports(1)[0]
        self.store = directory / f"store-{name}-{broker_id}"
        self.path = directory / f"{name}-{broker_id}.conf"
        self.settings: dict[str, object] = {
            "brokerClusterName": "DefaultCluster",
            "brokerName": name,
            "brokerId": broker_id,
            "brokerRole": "SLAVE" if broker_id else "SYNC_MASTER",
            "brokerIP1": host,
            "listenPort": self.port,
            "haListenPort": self.port + 1,
            "namesrvAddr": namesrv,
            "storePathRootDir": self.store,
            "storePathCommitLog": self.store / "commitlog",
            **RULE,
            **more,
        }

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def write(self) -> None:
        """Write the file, for a container."""
        self.path.write_text("".join(f"{key}={value}\n" for key, value in self.settings.items()))


class FixedGroups:
    """Name servers and two nodes, not started. A node is a broker, or a container with two."""

    def __init__(
        self, layout: str, directory: Path, place: Callable[[str], Place], more: Mapping[str, object]
    ) -> None:
        """`layout`: a key of `LAYOUTS`. `more`: further keys of all brokers."""
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.layout = layout
        self.names = LAYOUTS[layout]
        self.replicas = NODES
        self.controller_programs: list[Program] = []
        self.controller_addresses: list[str] = []
        hosts = node_names(layout)
        self.namesrvs = [
            Program(
                name,
                "namesrv",
                directory,
                {
                    "listenPort": port,
                    "kvConfigPath": directory / f"{name}-kv.json",
                    "supportActingMaster": "true",
                    "notifyMinBrokerIdChanged": "true",
                },
                place(name),
            )
            for name, port in zip(namesrv_names(), free_ports(NAME_SERVERS), strict=True)
        ]
        self.sets = {
            name: [
                FixedBroker(
                    directory,
                    name,
                    broker_id,
                    place(hosts[(number + broker_id) % NODES]).host,
                    self.namesrv_address,
                    more,
                )
                for broker_id in range(NODES)
            ]
            for number, name in enumerate(self.names)
        }
        """Name of a broker set -> its master and its slave."""
        self.brokers = [self._node(name, directory, place(name)) for name in hosts]
        """The nodes; the first has the master of the first set."""

    def _node(self, name: str, directory: Path, place: Place) -> Program:
        mine = [each for pair in self.sets.values() for each in pair if each.host == place.host]
        if self.layout == "classic":
            (broker,) = mine
            return Program(name, "broker", directory, broker.settings, place)
        for each in mine:
            each.write()
        settings = {
            "listenPort": free_ports(1)[0],
            "brokerContainerIP": place.host,
            "namesrvAddr": self.namesrv_address,
            "brokerConfigPaths": ":".join(str(each.path) for each in mine),
        }
        return Program(name, "container", directory, settings, place)

    @property
    def programs(self) -> list[Program]:
        return [*self.namesrvs, *self.brokers]

    @property
    def namesrv_address(self) -> str:
        return ";".join(program.address for program in self.namesrvs)

    @property
    def stores(self) -> list[list[Path]]:
        """Of each broker set the stores of its master and its slave."""
        return [[each.store for each in pair] for pair in self.sets.values()]

    def stop(self) -> dict[str, int | None]:
        """Stop the nodes first, then the name servers; exit codes by name."""
        return {program.name: program.stop() for program in reversed(self.programs)}


def namesrv_names() -> list[str]:
    return ["namesrv" if i == 0 else f"namesrv-{i}" for i in range(NAME_SERVERS)]


def node_names(layout: str) -> list[str]:
    return [f"{'broker' if layout == 'classic' else 'node'}-{i}" for i in range(NODES)]
