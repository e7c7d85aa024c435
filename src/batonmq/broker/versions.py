"""Data versions: how brokers, slaves and name servers see that a table has changed."""

from __future__ import annotations

from typing import Final

from batonmq.protocol.bodies.common import DataVersion

ACTING_STEP: Final = 1 << 20
"""How far the version of a table jumps at the first change by a slave that acts as master. A master counts
changes that its slave has not copied yet; when it returns, the slave's table is the newer one."""


def age(version: DataVersion) -> tuple[int, int, int]:
    """Versions of one table by age: the newer one is greater. Source: RocketMQ's `DataVersion.compare`."""
    return version.state_version, version.counter, version.timestamp


def next_version(
    version: DataVersion, now_ms: int, state_version: int, *, acting: bool = False
) -> DataVersion:
    """The version after `version`; `state_version` is the master epoch, 0 without a controller. `acting`: the
    first one of a slave that acts as master."""
    counter = version.counter + (ACTING_STEP if acting else 1)
    return DataVersion(state_version=state_version, timestamp=now_ms, counter=counter)
