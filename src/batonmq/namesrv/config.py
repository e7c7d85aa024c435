"""Keys of a name server's `.conf` file, with RocketMQ's spelling and defaults.

They come from `NamesrvConfig` and `NettyServerConfig`. Numbers of threads are left out, because there is
one event loop.
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
    """Port for brokers, clients and tools; 0 chooses a free one."""
    bind_address: str = "0.0.0.0"
    """Local address the listening socket binds to."""
    server_channel_max_idle_time_seconds: int = number(120, 1)
    """Seconds after which a connection silent in both directions is closed."""
    rocketmq_home: str = field(default_factory=lambda: os.environ.get("ROCKETMQ_HOME", ""))
    """Installation folder; only reported, never read."""
    kv_config_path: str = field(default_factory=lambda: _below_home("kvConfig.json"))
    """File that keeps the key-value configuration."""
    config_store_path: str = field(default_factory=lambda: _below_home("namesrv.properties"))
    """File that updateNamesrvConfig changes; the file given with -c overrides it."""
    config_black_list: str = "configBlackList;configStorePath;kvConfigPath"
    """Keys that updateNamesrvConfig refuses to change, separated by semicolons."""
    order_message_enable: bool = changeable(False)
    """Put the order configuration of a topic into its route."""
    return_order_topic_config_to_broker: bool = changeable(True)
    """Send all order configurations to a broker when it registers."""
    scan_not_active_broker_interval: int = number(5_000, 10, changeable=True)
    """Longest time between checks for silent brokers, ms. One that falls silent is removed when its timeout
    ends."""
    support_acting_master: bool = changeable(False)
    """Show the live slave with the lowest id as master of a broker set without one (slave acting master)."""
    notify_min_broker_id_changed: bool = changeable(False)
    """Notify the brokers of a broker set when their lowest live id changes (slave acting master)."""
    enable_all_topic_list: bool = changeable(True)
    """Answer requests for all topics."""
    enable_topic_list: bool = changeable(True)
    """Answer requests for the topics of a cluster and for unit topics."""
    enable_controller_in_namesrv: bool = False
    """Also run a controller in this process; it has separate keys."""
    need_wait_for_service: bool = changeable(False)
    """Answer no route until waitSecondsForService after the start, so that brokers have time to register."""
    wait_seconds_for_service: int = number(45, 0, changeable=True)
    """Seconds, see needWaitForService."""
    delete_topic_with_broker_registration: bool = changeable(False)
    """Remove topics from the routes when a broker no longer registers them; brokers then need
    enableSingleTopicRegister."""

    def __post_init__(self) -> None:
        check_limits(self)

    @property
    def protected_keys(self) -> frozenset[str]:
        """Keys that nobody can change while the name server runs."""
        always = ("configBlackList", "configStorePath", "kvConfigPath", "rocketmqHome")
        return frozenset((*always, *filter(None, self.config_black_list.split(";"))))
