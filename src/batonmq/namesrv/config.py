"""Keys of a name server's `.conf` file, with RocketMQ's spelling and defaults.

They are `NamesrvConfig` and what means something here of `NettyServerConfig`; counts of threads do not,
as there is one event loop.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from batonmq.common.config import changeable, check_limits, number

DEFAULT_PORT = 9876


def _below_home(name: str) -> str:
    return str(Path.home() / "namesrv" / name)


@dataclass(frozen=True, slots=True, kw_only=True)
class NamesrvConfig:
    """One name server."""

    listen_port: int = number(DEFAULT_PORT, 0, 65535)
    """Port for brokers, clients and tools; 0 takes a free one."""
    bind_address: str = "0.0.0.0"
    """Local address the listening socket binds to."""
    server_channel_max_idle_time_seconds: int = number(120, 1)
    """Seconds after which a connection silent in both directions is closed."""
    rocketmq_home: str = field(default_factory=lambda: os.environ.get("ROCKETMQ_HOME", ""))
    """Installation folder; only reported, nothing is read from it."""
    kv_config_path: str = field(default_factory=lambda: _below_home("kvConfig.json"))
    """File that keeps the key-value configuration."""
    config_store_path: str = field(default_factory=lambda: _below_home("namesrv.properties"))
    """File that updateNamesrvConfig changes; the file given with -c, if one is."""
    config_black_list: str = "configBlackList;configStorePath;kvConfigPath"
    """Keys that updateNamesrvConfig refuses to change, separated by semicolons."""
    order_message_enable: bool = changeable(False)
    """Put the order configuration of a topic into its route."""
    return_order_topic_config_to_broker: bool = changeable(True)
    """Send all order configurations to a broker when it registers."""
    scan_not_active_broker_interval: int = number(5_000, 10, changeable=True)
    """Milliseconds between looks for brokers that fell silent."""
    support_acting_master: bool = changeable(False)
    """Show the live slave with the least id as master of a group that has none (slave acting master)."""
    notify_min_broker_id_changed: bool = changeable(False)
    """Tell the brokers of a group when the least live id among them changes (slave acting master)."""
    enable_all_topic_list: bool = changeable(True)
    """Answer the request for all topics."""
    enable_topic_list: bool = changeable(True)
    """Answer the requests for the topics of a cluster and for unit topics."""
    enable_controller_in_namesrv: bool = False
    """Run a controller in this process as well; it has keys of its own."""
    need_wait_for_service: bool = changeable(False)
    """Answer no route until waitSecondsForService after the start, when brokers have had time to register."""
    wait_seconds_for_service: int = number(45, 0, changeable=True)
    """Seconds, see needWaitForService."""
    delete_topic_with_broker_registration: bool = changeable(False)
    """Take topics out of the routes that a broker no longer registers; its brokers then need
    enableSingleTopicRegister."""

    def __post_init__(self) -> None:
        check_limits(self)

    @property
    def protected_keys(self) -> frozenset[str]:
        """Keys a running name server does not let anyone change."""
        always = ("configBlackList", "configStorePath", "kvConfigPath", "rocketmqHome")
        return frozenset((*always, *filter(None, self.config_black_list.split(";"))))
