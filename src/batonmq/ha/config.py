"""Keys of a broker's `.conf` file that belong to replication. Spelling and units are RocketMQ's."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from batonmq.common.config import require


@dataclass(frozen=True, slots=True, kw_only=True)
class HAConfig:
    """The replication link and the SyncStateSet."""

    ha_listen_port: int = 0
    """Port slaves connect to; 0: listenPort + 1."""
    ha_send_heartbeat_interval: int = 5_000
    """Silence after which either side of the link sends a heartbeat, ms."""
    ha_housekeeping_interval: int = 20_000
    """Silence of the peer after which either side drops the link, ms."""
    ha_transfer_batch_size: int = 256 * 1024
    """Largest piece of log in one frame, bytes. RocketMQ's default is 32 KiB; its slaves take up to 4 MiB."""
    ha_send_buffer_size: int = 1024 * 1024
    """Bytes a link may have waiting for a slow slave before the master stops reading the log for it."""
    ha_max_time_slave_not_catch_up: int = 3_000
    """Lag after which the master asks to drop a member of the SyncStateSet, ms (RocketMQ: 15 000)."""
    ha_max_time_slave_not_catchup: int | None = None
    """The same in RocketMQ's own spelling; wins if set."""
    ha_connect_timeout: int = 3_000
    """How long connecting to the master's replication port may take, ms."""
    sync_from_last_file: bool = False
    """An empty slave copies only the master's last commit log file and what follows."""
    async_learner: bool = False
    """Copy the log but never join the SyncStateSet."""
    store_path_epoch_file: Path | None = None
    """The epoch file; empty: `epochFileCheckpoint` in storePathRootDir."""
    store_path_broker_identity: Path | None = field(default=None)
    """The file with the broker id the controller assigned; empty: `brokerIdentity` in storePathRootDir."""

    def __post_init__(self) -> None:
        require(
            self.ha_housekeeping_interval > self.ha_send_heartbeat_interval > 0,
            f"haHousekeepingInterval={self.ha_housekeeping_interval}: must be above "
            f"haSendHeartbeatInterval={self.ha_send_heartbeat_interval}, or an idle link is dropped",
        )
        # A RocketMQ slave reads into a buffer of 4 MiB; a longer frame never fits and the link stands still.
        require(
            1 <= self.ha_transfer_batch_size <= 4 * 1024 * 1024 - 64,
            f"haTransferBatchSize={self.ha_transfer_batch_size}: must be from 1 to {4 * 1024 * 1024 - 64}",
        )
        require(self.max_lag_ms > 0, f"haMaxTimeSlaveNotCatchUp={self.max_lag_ms}: must be above 0")

    @property
    def max_lag_ms(self) -> int:
        """haMaxTimeSlaveNotCatchUp in whichever spelling it was given."""
        if self.ha_max_time_slave_not_catchup is not None:
            return self.ha_max_time_slave_not_catchup
        return self.ha_max_time_slave_not_catch_up
