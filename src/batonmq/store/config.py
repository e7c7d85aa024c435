"""Keys of a broker's `.conf` file that belong to the files on disk.

Spelling, defaults and units are those of RocketMQ's `MessageStoreConfig`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final

from batonmq.common.config import changeable, check_limits, number, require

UNIT_SIZE: Final = 20
"""Bytes of one consume queue unit."""


class FlushDiskType(StrEnum):
    """When a stored message counts as safe on disk."""

    SYNC_FLUSH = "SYNC_FLUSH"
    ASYNC_FLUSH = "ASYNC_FLUSH"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig:
    """Where the store lives, how large its files are, how long they stay."""

    store_path_root_dir: str = field(
        default_factory=lambda: str(Path.home() / "store"), metadata={"key": "storePathRootDir"}
    )
    """Directory for everything that the broker stores."""
    store_path_commit_log: str = ""
    """Directory of the commit log; empty: `commitlog` below storePathRootDir."""
    mapped_file_size_commit_log: int = number(1 << 30, 4096, 1 << 30)
    """Bytes of one commit log file; all files of a store have the same size."""
    mapped_file_size_consume_queue: int = number(300_000 * UNIT_SIZE, UNIT_SIZE)
    """Bytes of one consume queue file; rounded up to whole units of 20."""
    max_message_size: int = number(4 << 20, 1, 1 << 30, changeable=True)
    """Largest message body in bytes; also of a whole batch. Messages that wait, such as delayed ones, keep
    their size when it becomes smaller."""
    max_transfer_bytes_on_message_in_memory: int = number(256 << 10, 1, changeable=True)
    """Most bytes in one pull answer, for messages that are probably in the page cache."""
    max_transfer_count_on_message_in_memory: int = number(32, 1, changeable=True)
    """Most messages of such an answer."""
    max_transfer_bytes_on_message_in_disk: int = number(64 << 10, 1, changeable=True)
    """Most bytes in one pull answer, for messages that must be read from disk."""
    max_transfer_count_on_message_in_disk: int = number(8, 1, changeable=True)
    """Most messages of such an answer."""
    access_message_in_memory_max_ratio: int = number(40, 0, 100)
    """Percent of the machine's memory; messages further back than that count as on disk."""
    max_filter_message_size: int = number(16_000, 1, changeable=True)
    """Bytes of consume queue that one pull searches for messages that its filter accepts. With much more,
    RocketMQ's consumers pause: those of one answer may lie `consumeConcurrentlyMaxSpan` (2,000) apart."""
    max_consume_queue_scan: int = number(20_000, 1, changeable=True)
    """Messages of a queue from whose tags the lag of a group that subscribes by tags is estimated."""
    sample_count_threshold: int = number(5_000, 1, changeable=True)
    """That estimate also ends after this many messages with these tags."""
    message_index_enable: bool = True
    """Keep an index of keys and unique ids, for queryMsgByKey and queryMsgByUniqueKey."""
    max_hash_slot_num: int = number(5_000_000, 1)
    """Hash slots of one index file."""
    max_index_num: int = number(20_000_000, 2, (1 << 27) - 1)
    """Entries of one index file."""
    store_type: str = "default"
    """Files of RocketMQ's layout. Its RocksDB store (defaultRocksDB) is not available here: must stay
    default."""
    message_store_plug_in: str = ""
    """Plug-ins such as tiered storage are not available here: must stay empty."""
    enable_lmq: bool = False
    """Light message queues: a message also enters the queues that its property INNER_MULTI_DISPATCH names.
    Needs enableMultiDispatch, too. Must be the same on all replicas."""
    enable_multi_dispatch: bool = False
    """Build light message queues; see enableLmq."""
    enable_lmq_quota: bool = False
    """Refuse messages that would create more light message queues than maxLmqConsumeQueueNum."""
    max_lmq_consume_queue_num: int = number(20_000, 0)
    """Light message queues of this broker, with enableLmqQuota."""
    max_msgs_num_batch: int = number(64, 1, changeable=True)
    """Most messages that one query by key returns."""
    flush_disk_type: FlushDiskType = FlushDiskType.ASYNC_FLUSH
    """SYNC_FLUSH: a message is acknowledged once it is on disk; ASYNC_FLUSH: once it is in the page cache."""
    flush_interval_commit_log: int = number(500, 1)
    """Milliseconds between two flushes of the commit log with ASYNC_FLUSH."""
    flush_interval_consume_queue: int = number(1_000, 10)
    """Milliseconds between two flushes of consume queues, index and checkpoint."""
    sync_flush_timeout: int = number(5_000, 1)
    """Milliseconds that a message waits for its flush with SYNC_FLUSH before FLUSH_DISK_TIMEOUT."""
    check_crc_on_recover: bool = field(default=True, metadata={"key": "checkCRCOnRecover"})
    """Check every body's CRC in the part of the log that recovery reads."""
    file_reserved_time: int = number(72, 0, changeable=True)
    """Hours after its last write when a commit log file may be deleted."""
    delete_when: str = changeable("04")
    """Hours of the day, local time, in which old files are deleted, separated by `;`."""
    delete_file_batch_max: int = number(10, 1, changeable=True)
    """Most commit log files deleted at a time."""
    clean_resource_interval: int = number(10_000, 10)
    """Milliseconds between two checks for files to delete and of the disk usage."""
    disk_max_used_space_ratio: int = number(75, 0, 100, changeable=True)
    """Percent of disk usage above which old files are deleted at any hour; 10 to 95."""
    disk_space_clean_forcibly_ratio: int = number(85, 0, 100, changeable=True)
    """Percent of disk usage above which files are deleted before their time; kept between 30 and 85."""
    disk_space_warning_level_ratio: int = number(90, 0, 100, changeable=True)
    """Percent of disk usage above which messages are refused; kept between 35 and 90."""
    clean_file_forcibly_enable: bool = changeable(True)
    """Allow deletion before fileReservedTime when the disk is nearly full."""

    def __post_init__(self) -> None:
        check_limits(self)
        require(
            all(re.fullmatch(r"[01]?\d|2[0-3]", hour) for hour in self.delete_when.split(";")),
            f"deleteWhen={self.delete_when}: hours from 00 to 23, separated by ';'",
        )
        require(
            self.store_type == "default",
            f"storeType={self.store_type}: other stores than default are not available here; remove the key",
        )
        require(
            not self.message_store_plug_in,
            f"messageStorePlugIn={self.message_store_plug_in}: plug-ins are not available here; "
            "remove the key",
        )
        require(
            self.enable_lmq == self.enable_multi_dispatch,
            f"enableLmq={_text(self.enable_lmq)}, enableMultiDispatch={_text(self.enable_multi_dispatch)}: "
            "light message queues need both keys to be true",
        )

    @property
    def light_queues(self) -> bool:
        """Whether messages enter the light queues that they name."""
        return self.enable_lmq and self.enable_multi_dispatch

    @property
    def light_queue_limit(self) -> int | None:
        """From how many light queues on messages create no more; None: any number."""
        return self.max_lmq_consume_queue_num if self.enable_lmq_quota else None

    @property
    def root(self) -> Path:
        """`storePathRootDir` as a path."""
        return Path(self.store_path_root_dir)

    @property
    def commit_log_path(self) -> Path:
        """Where the commit log files are."""
        return Path(self.store_path_commit_log) if self.store_path_commit_log else self.root / "commitlog"

    @property
    def consume_queue_path(self) -> Path:
        """Where the consume queues are: ``<topic>/<queue id>/`` below it."""
        return self.root / "consumequeue"

    @property
    def index_path(self) -> Path:
        """Where the index files are."""
        return self.root / "index"

    @property
    def consume_queue_file_size(self) -> int:
        """`mapped_file_size_consume_queue` in whole units."""
        return -(-self.mapped_file_size_consume_queue // UNIT_SIZE) * UNIT_SIZE


def _text(value: bool) -> str:
    return "true" if value else "false"
