"""Disk usage, and what follows from it: RocketMQ's three levels. Only `used_ratio` looks at a disk."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from batonmq.store.config import StoreConfig


def used_ratio(path: Path) -> float:
    """Used part of the file system that holds `path`, 0 to 1, of what unprivileged users may use."""
    stats = os.statvfs(path)
    used = stats.f_blocks - stats.f_bfree
    return used / max(1, used + stats.f_bavail)


@dataclass(frozen=True, slots=True)
class DiskState:
    """What a usage means for the store."""

    writable: bool
    """Below the warning level: messages are accepted."""
    clean: bool
    """Old files should go now, whatever the hour."""
    forcibly: bool
    """Even before their reserved time."""


def judge(ratio: float, config: StoreConfig) -> DiskState:
    """Levels, as RocketMQ holds them within bounds: warning 35 to 90 %, forcible cleaning 30 to 85 %."""
    warning = min(max(config.disk_space_warning_level_ratio / 100, 0.35), 0.90)
    forcibly = min(max(config.disk_space_clean_forcibly_ratio / 100, 0.30), 0.85)
    normal = min(max(config.disk_max_used_space_ratio, 10), 95) / 100
    return DiskState(
        writable=ratio <= warning,
        clean=ratio > min(normal, forcibly, warning),
        forcibly=config.clean_file_forcibly_enable and ratio > min(forcibly, warning),
    )


def is_delete_hour(config: StoreConfig, now_ms: int) -> bool:
    """Whether `now_ms` (wall time) falls into an hour of `deleteWhen`, local time."""
    hour = datetime.fromtimestamp(now_ms / 1000).hour
    return hour in {int(text) for text in config.delete_when.split(";")}


def expired_count(
    modified_ms: list[int], config: StoreConfig, now_ms: int, *, forcibly: bool, limit: int
) -> int:
    """How many of a log's first files may go, given when each was last written. The last file never may."""
    oldest_kept = now_ms - config.file_reserved_time * 3_600_000
    count = 0
    for modified in modified_ms[:-1][:limit]:
        if not forcibly and modified > oldest_kept:
            break
        count += 1
    return count
