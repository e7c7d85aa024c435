"""Keys of a broker container's `.conf` file, with RocketMQ's spelling and defaults (`BrokerContainerConfig`,
`NettyServerConfig`).

Keys of the brokers are in the files that `brokerConfigPaths` names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from batonmq.common.config import changeable, check_addresses, check_limits, number, require

DEFAULT_PORT = 10_811
MAX_PROCESSES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerConfig:
    """One container: its port, its brokers, and what they share."""

    listen_port: int = number(DEFAULT_PORT, 0, 65_535)
    """Port for requests that add and remove brokers; 0 chooses a free one. Each broker has other ports."""
    bind_address: str = "0.0.0.0"
    """Local address the listening sockets of the container bind to; brokers have their own key."""
    vip_channel_enabled: bool = True
    """Also listen on listenPort - 2, as RocketMQ's container does."""
    broker_container_ip: str = field(default="", metadata={"key": "brokerContainerIP"})
    """Address of this container in its log; empty: the first address of this host that is not loopback."""
    namesrv_addr: str = changeable("")
    """Name servers of all brokers in this container, `host:port;host:port`; it overrides the key in their
    files. Empty: each broker has its own."""
    broker_config_paths: str = ""
    """Files of the brokers to start with, `:` between them; empty: none, and addBroker adds them."""
    add_broker_directories: str = ""
    """Directories from which addBroker takes files, `:` between them; empty: any, as in RocketMQ. Files that
    brokerConfigPaths names are always allowed."""
    config_black_list: str = "configBlackList;brokerConfigPaths"
    """Keys that updateBrokerConfig refuses to change, `;` between them."""
    container_processes: int = number(1, 1, MAX_PROCESSES)
    """Processes to spread the brokers over; 1: the container's own. With more, each has an event loop, and so
    a processor, for its brokers; one that dies is started again with them."""

    HAS_NO_EFFECT: ClassVar[Mapping[str, str]] = {
        "fetchNamesrvAddrByAddressServer": "there is no address server; set namesrvAddr",
        "fetchNameSrvAddrByDnsLookup": "each address of namesrvAddr is looked up when a broker connects",
        "fetchNamesrvAddrInterval": "there is no address server",
        "updateNamesrvAddrInterval": "a change of namesrvAddr takes effect at once",
        "brokerName": "it is a key of a broker's file; brokerConfigPaths names such files",
        "brokerId": "it is a key of a broker's file",
        "storePathRootDir": "it is a key of a broker's file",
    }
    """RocketMQ's keys that have no effect here, and the reasons."""

    def __post_init__(self) -> None:
        check_limits(self)
        check_addresses("namesrvAddr", self.namesrv_addr)
        require(
            not self.vip_channel_enabled or self.listen_port == 0 or self.listen_port > 2,
            f"listenPort={self.listen_port}: must be above 2, as the container listens on listenPort - 2 too",
        )

    @property
    def protected_keys(self) -> frozenset[str]:
        """Keys that no request may change (RocketMQ's black list)."""
        always = ("brokerConfigPaths", "configBlackList", "rocketmqHome", "addBrokerDirectories")
        return frozenset((*always, *filter(None, self.config_black_list.split(";"))))
