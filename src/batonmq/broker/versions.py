"""Data versions: how brokers, slaves and name servers see that a table has changed."""

from __future__ import annotations

from batonmq.protocol.bodies.common import DataVersion


def age(version: DataVersion) -> tuple[int, int, int]:
    """Versions of one table by age: the newer one is greater. Source: RocketMQ's `DataVersion.compare`."""
    return version.state_version, version.counter, version.timestamp


def next_version(version: DataVersion, now_ms: int, state_version: int) -> DataVersion:
    """The version after `version`; `state_version` is the master epoch, 0 without a controller."""
    return DataVersion(state_version=state_version, timestamp=now_ms, counter=version.counter + 1)
