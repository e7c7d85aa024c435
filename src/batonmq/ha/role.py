"""The roles of one end of the replication."""

from __future__ import annotations

from enum import Enum


class HARole(Enum):
    """What this end of the replication does."""

    NONE = "none"
    MASTER = "master"
    SLAVE = "slave"
