"""Keys of a controller's `.conf` file, and the group of controllers they describe.

Both of RocketMQ's families are understood and mean the same engine: `controllerType=DLedger`, where Raft and
RPC share the port, and `controllerType=jRaft`, where Raft has a separate port. Spelling, defaults and units
are RocketMQ's (`ControllerConfig`, `JraftConfig`); keys below "our own" are additions.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from batonmq.common.addresses import is_address
from batonmq.common.config import ConfigError, changeable, check_limits, number, require
from batonmq.common.metrics_config import MetricsConfig

DLEDGER = "DLedger"
JRAFT = "jRaft"


@dataclass(frozen=True, slots=True)
class Topology:
    """The members of the Raft group. Addresses are `host:port`, ids as they appear in metadata."""

    group: str
    self_id: str
    raft_addresses: dict[str, str]
    rpc_addresses: dict[str, str]
    shared_port: bool
    """Raft and brokers use the same port."""
    joins: bool
    """This controller does not create the Raft group but waits to be added to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerConfig(MetricsConfig):
    """One controller: its group, its disk, and how it judges brokers."""

    controller_type: str = DLEDGER
    """DLedger or jRaft: which of the two families of keys below defines the Raft group."""
    controller_d_leger_group: str = "group1"
    """Name of the controllers' Raft group (DLedger)."""
    controller_d_leger_peers: str = ""
    """All controllers, `n0-127.0.0.1:9877;n1-127.0.0.1:9878;…` (DLedger)."""
    controller_d_leger_self_id: str = ""
    """Which of the peers this one is (DLedger)."""
    j_raft_group_id: str = "jRaft-Controller"
    """Name of the controllers' Raft group (jRaft)."""
    j_raft_server_id: str = "localhost:9880"
    """This controller's Raft address, one of jRaftInitConf (jRaft)."""
    j_raft_init_conf: str = "localhost:9880,localhost:9881,localhost:9882"
    """Raft addresses of all controllers (jRaft)."""
    j_raft_controller_rpc_addr: str = field(
        default="localhost:9770,localhost:9771,localhost:9772", metadata={"key": "jRaftControllerRPCAddr"}
    )
    """Addresses for brokers, in the order of jRaftInitConf (jRaft)."""
    j_raft_election_timeout_ms: int = number(1_000, 30)
    """Silence of the leader, ms, after which another controller stands for election (both families)."""
    j_raft_snapshot_interval_secs: int = number(3_600, 0)
    """Time between snapshots of the state, after which the log before them is deleted, s (both families)."""
    bind_address: str = "0.0.0.0"
    """Local address the listening sockets bind to."""
    controller_store_path: str = ""
    """Directory for Raft log, snapshots and events.jsonl; empty: DLedgerController or jRaftController in the
    home directory."""
    config_store_path: str = ""
    """File that updateControllerConfig changes; empty: the file given with -c, or else
    controller.properties in controllerStorePath."""
    config_black_list: str = "configBlackList;configStorePath"
    """Keys that updateControllerConfig must not touch, separated by `;`."""
    enable_elect_unclean_master: bool = changeable(False)
    """Elect a replica outside the SyncStateSet if no member is alive: acknowledged messages may be lost."""
    scan_not_active_broker_interval: int = number(250, 10, changeable=True)
    """Time between checks for brokers whose heartbeats stopped, ms (RocketMQ: 5 000)."""
    scan_inactive_master_interval: int = number(5_000, 10, changeable=True)
    """Time between checks for broker sets without a living master, ms."""
    elect_master_max_retry_count: int = number(3, 0, changeable=True)
    """How often an election that could not be written to the log is repeated."""
    notify_broker_role_changed: bool = changeable(True)
    """Notify the replicas of a new master at once; otherwise they find out with their next request."""
    is_process_read_event: bool = changeable(False)
    """Confirm each read with a quorum, even if the leader has a lease."""
    controller_request_thread_pool_queue_capacity: int = number(50_000, 1, changeable=True)
    """Requests that may wait to be written to the log; further ones are refused with SYSTEM_BUSY."""

    # our own
    controller_join_running_group: bool = False
    """With an empty directory: do not create the Raft group, but wait until `batonmq admin addController`
    adds this controller to it. No effect once the directory belongs to the Raft group; may stay."""
    controller_max_connections: int = number(16_384, 16)
    """Open connections of brokers, tools and other controllers; further ones are refused. Every broker holds
    one. Each needs an open file: see RLIMIT_NOFILE."""
    enable_lease_read: bool = False
    """Answer consistent reads from the leader's lease, without a round of messages. Correct only while clocks
    run alike (leaseReadClockDriftPercent). Takes effect once a majority of the controllers has it on."""
    lease_read_clock_drift_percent: int = number(10, 0, 99)
    """Largest difference between the speeds of two controllers' clocks, percent; shortens the lease."""
    enable_follower_read: bool = changeable(False)
    """Followers answer consistent reads too, after they have asked the leader for its index; otherwise they
    name the leader."""
    follower_read_max_lag: int = number(1_000, 0)
    """A follower that is more log entries than this behind names the leader instead of answering late; 0: no
    limit."""
    controller_raft_secret: str = field(default="", repr=False)
    """Shared secret; controllers refuse Raft messages without it. Empty: trust the network."""
    controller_raft_tls_enable: bool = False
    """TLS on the Raft port with certificates on both sides, from the tls.server.* keys. jRaft only: the port
    for brokers follows tls.*; if Raft and brokers share a port (DLedger), tls.* must require certificates."""
    heartbeat_coalesce_ms: int = number(2, 0, 1000, changeable=True)
    """Heartbeats that wait for their commit and arrive within this time share one log entry, ms."""
    request_timeout_ms: int = number(5_000, 10, changeable=True)
    """Time after which a request that the log has not decided is answered with an error, ms."""
    event_log_max_bytes: int = number(16 << 20, 1)
    """Size at which events.jsonl is rotated, bytes."""
    event_log_backups: int = number(4, 0)
    """Number of rotated files to keep."""

    ALIASES: ClassVar[Mapping[str, str]] = {"processReadEvent": "isProcessReadEvent"}
    """RocketMQ shows the key by its field's name and sets it by its setter's."""

    def __post_init__(self) -> None:
        check_limits(self)
        MetricsConfig.__post_init__(self)  # super() does not know the class that slots=True creates
        require(
            self.controller_type.lower() in (DLEDGER.lower(), JRAFT.lower()),
            f"controllerType={self.controller_type}: expected {DLEDGER} or {JRAFT}",
        )

    @property
    def is_jraft(self) -> bool:
        return self.controller_type.lower() == JRAFT.lower()

    @property
    def store_path(self) -> Path:
        if self.controller_store_path:
            return Path(self.controller_store_path).expanduser()
        return Path.home() / ("jRaftController" if self.is_jraft else "DLedgerController")

    @property
    def config_file(self) -> Path:
        if self.config_store_path:
            return Path(self.config_store_path).expanduser()
        return self.store_path / "controller.properties"

    def topology(self) -> Topology:
        """The group of controllers. Raises `ConfigError` naming the key that does not fit."""
        return self._jraft() if self.is_jraft else self._dledger()

    def _dledger(self) -> Topology:
        key = "controllerDLegerPeers"
        peers: dict[str, str] = {}
        for part in _split(self.controller_d_leger_peers, ";"):
            peer_id, dash, address = part.partition("-")
            require(bool(dash and peer_id), f"{key}={part}: expected id-host:port, e.g. n0-127.0.0.1:9877")
            require(peer_id not in peers, f"{key}: peer {peer_id} appears twice")
            check_address(key, address)
            peers[peer_id] = address
        require(bool(peers), f"{key} is empty: name all controllers, e.g. n0-127.0.0.1:9877")
        self_id = self.controller_d_leger_self_id
        require(
            self_id in peers,
            f"controllerDLegerSelfId={self_id}: is not one of the peers {', '.join(peers)} of {key}",
        )
        joins = self.controller_join_running_group
        self._check_join(peers)
        return Topology(self.controller_d_leger_group, self_id, peers, peers, True, joins)

    def _check_join(self, peers: Collection[str]) -> None:
        require(
            len(peers) > 1 or not self.controller_join_running_group,
            "controllerJoinRunningGroup=true: name the controllers of the running group, too",
        )

    def _jraft(self) -> Topology:
        raft = _split(self.j_raft_init_conf, ",")
        rpc = _split(self.j_raft_controller_rpc_addr, ",")
        for key, addresses in (("jRaftInitConf", raft), ("jRaftControllerRPCAddr", rpc)):
            require(bool(addresses), f"{key} is empty: name all controllers, e.g. 127.0.0.1:9880")
            require(len(set(addresses)) == len(addresses), f"{key}: an address appears twice")
            for address in addresses:
                check_address(key, address)
        self._check_join(raft)
        require(
            len(raft) == len(rpc),
            f"jRaftControllerRPCAddr names {len(rpc)} controllers, jRaftInitConf {len(raft)}",
        )
        require(
            self.j_raft_server_id in raft,
            f"jRaftServerId={self.j_raft_server_id}: is not one of jRaftInitConf={self.j_raft_init_conf}",
        )
        return Topology(
            self.j_raft_group_id,
            self.j_raft_server_id,
            dict(zip(raft, raft, strict=True)),
            dict(zip(raft, rpc, strict=True)),
            False,
            self.controller_join_running_group,
        )


def _split(text: str, separator: str) -> list[str]:
    return [part.strip() for part in text.split(separator) if part.strip()]


def check_address(key: str, address: str) -> None:
    """Raises ConfigError unless it is host:port."""
    if not is_address(address):
        raise ConfigError(f"{key}: {address!r} is not an address, expected host:port")
