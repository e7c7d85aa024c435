"""Keys of a broker's `.conf` file that belong to replication. Spelling and units are RocketMQ's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Final

from batonmq.common.config import check_addresses, check_limits, number, require

MAX_TRANSFER_BATCH: Final = 4 * 1024 * 1024 - 64
"""A RocketMQ slave reads into a buffer of 4 MiB; a longer frame never fits and the link stands still."""
MAX_BEAT_MS: Final = 200
"""With controllers, an idle link carries a heartbeat this often: a silent replica is noticed there first."""
MIN_SECRET: Final = 16
MIN_TRANSFER_RATE: Final = 64 * 1024
"""Bytes a second; below it no slave would ever be in sync."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HAConfig:
    """The replication link and the SyncStateSet."""

    ha_listen_port: int = number(0, 0, 65_535)
    """Port slaves connect to; 0: listenPort + 1."""
    ha_send_heartbeat_interval: int = number(5_000, 10)
    """Silence after which either side of the link sends a heartbeat, ms; with controllers after 200 ms at the
    latest (docs/decisions/suspicion.md)."""
    ha_housekeeping_interval: int = number(20_000, 10)
    """Silence of the peer after which either side drops the link, ms."""
    ha_transfer_batch_size: int = number(256 * 1024, 1, MAX_TRANSFER_BATCH)
    """Largest piece of log in one frame, bytes. A member of the SyncStateSet gets a longer record in one
    frame nevertheless. RocketMQ's default is 32 KiB; its slaves accept up to 4 MiB."""
    ha_send_buffer_size: int = number(1024 * 1024, 1)
    """Bytes that may wait for a slow slave before the master stops reading the log for it."""
    ha_max_time_slave_not_catch_up: int = number(2_000, 1)
    """Lag after which the master asks to remove a member of the SyncStateSet, ms (RocketMQ: 15 000). A member
    that sends nothing at all is removed after three quarters of it."""
    ha_max_time_slave_not_catchup: int | None = number(None, 1)
    """The same key in RocketMQ's spelling; overrides the other one."""
    ha_max_gap_not_in_sync: int = number(256 * 1024 * 1024, 1)
    """Without controllers: a slave that lags by this many bytes is not in sync."""
    ha_master_address: str = ""
    """Without controllers: the master's replication port, `host:port`; empty: the name server says where."""
    ha_send_whole_log: bool = False
    """Without controllers: an empty slave gets the master's whole log, not only its last file as in
    RocketMQ."""
    ha_connect_timeout: int = number(3_000, 10)
    """How long connecting to the master's replication port may take, ms."""
    ha_flow_control_enable: bool = False
    """Send to each slave no faster than maxHaTransferByteInSecond."""
    max_ha_transfer_byte_in_second: int = number(100 * 1024 * 1024, MIN_TRANSFER_RATE)
    """Bytes of log a second to one slave, with haFlowControlEnable=true."""
    ha_secret: str = field(default="", repr=False, metadata={"secret": True})
    """Shared secret of the replicas of a broker set, 16 characters or more; empty: anyone who reaches the
    replication port may take part. RocketMQ's brokers do not support it."""
    ha_tls_enable: bool = False
    """TLS on the replication port with certificates on both sides, from the `tls.server.*` keys. RocketMQ's
    brokers do not support TLS there."""
    sync_from_last_file: bool = False
    """An empty slave copies only the master's last commit log file and what follows."""
    async_learner: bool = False
    """Copy the log, but never join the SyncStateSet or ask to be elected."""
    store_path_epoch_file: Path | None = None
    """The epoch file; empty: `epochFileCheckpoint` in storePathRootDir."""
    store_path_broker_identity: Path | None = field(default=None)
    """The file with the broker id the controller assigned; empty: `brokerIdentity` in storePathRootDir."""

    HAS_NO_EFFECT: ClassVar[Mapping[str, str]] = {
        "maxSlaveResendLength": "a slave asks for what it misses, however much that is",
        "syncMasterFlushOffsetWhenStartup": "slaves serve up to the confirm offset",
    }
    """RocketMQ's keys that mean nothing here, and why."""

    def __post_init__(self) -> None:
        check_limits(self)
        check_addresses("haMasterAddress", self.ha_master_address)
        require(
            ";" not in self.ha_master_address,
            f"haMasterAddress={self.ha_master_address}: must be one address, host:port",
        )
        require(
            self.ha_housekeeping_interval > self.ha_send_heartbeat_interval,
            f"haHousekeepingInterval={self.ha_housekeeping_interval}: must be above "
            f"haSendHeartbeatInterval={self.ha_send_heartbeat_interval}, or an idle link is dropped",
        )
        require(
            not self.ha_secret or len(self.ha_secret) >= MIN_SECRET,
            f"haSecret: must be at least {MIN_SECRET} characters, or it can be guessed",
        )

    @property
    def beat_ms(self) -> int:
        """With controllers: silence after which either side of the link sends a heartbeat."""
        return min(self.ha_send_heartbeat_interval, MAX_BEAT_MS)

    @property
    def max_lag_ms(self) -> int:
        """haMaxTimeSlaveNotCatchUp in whichever spelling it was given."""
        if self.ha_max_time_slave_not_catchup is not None:
            return self.ha_max_time_slave_not_catchup
        return self.ha_max_time_slave_not_catch_up
