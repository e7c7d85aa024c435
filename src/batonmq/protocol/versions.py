"""Releases of RocketMQ, as peers name them on the wire: ordinals of `MQVersion`."""

from __future__ import annotations

from typing import Final

V3_0_11: Final = 37
"""The first whose brokers register a `RegisterBrokerBody`; older ones send a bare table of topics."""
V3_4_9: Final = 121
"""The first whose clients say how often a message may be retried."""
V4_9_3: Final = 399
"""The last whose clients set a field of queries after they signed them."""
V5_0_0: Final = 413
"""The first whose brokers know static topics."""
V5_1_0: Final = 433
"""The first whose brokers search by store time for a lower bound."""
PROTOCOL_VERSION: Final = 513
"""What our frames say: release 5.5.0."""

_FIRST_REGULAR: Final = PROTOCOL_VERSION - 2 * (550 - 400)
"""Ordinal of V4_0_0: from there on each release has two versions, X_Y_Z_SNAPSHOT and X_Y_Z."""


def version_name(ordinal: int) -> str:
    """``V5_5_0`` for 513. Releases before 4.0.0, which kept no rule, are all ``V3``."""
    if ordinal < _FIRST_REGULAR - 1:
        return "V3"
    release, regular = divmod(ordinal - _FIRST_REGULAR + 1, 2)
    digits = f"{400 + release:d}"
    name = f"V{digits[:-2]}_{digits[-2]}_{digits[-1]}"
    return name if regular else f"{name}_SNAPSHOT"
