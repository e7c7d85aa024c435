"""Metrics of acting masters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from batonmq.common.metrics import Kind, Metric, Source

if TYPE_CHECKING:
    from batonmq.broker.context import Broker
    from batonmq.broker.escape.bridge import EscapeBridge

ACTING: Final = Metric(
    "batonmq_broker_is_acting_master", Kind.GAUGE, "1 on a slave that acts as master, else 0"
)
ESCAPED: Final = Metric(
    "batonmq_escaped_messages_total",
    Kind.COUNTER,
    "Messages of an acting master that another master stored: in the same process (local) or elsewhere "
    "(remote)",
    ("to",),
)
REFUSED: Final = Metric(
    "batonmq_escape_refusals_total",
    Kind.COUNTER,
    "Attempts of an acting master that found no other master; the message waits and is tried again",
)
METRICS: Final = (ACTING, ESCAPED, REFUSED)


def sources(broker: Broker, bridge: EscapeBridge) -> Mapping[Metric, Source]:
    return {
        ACTING: lambda: [((), int(broker.role.is_acting))],
        ESCAPED: lambda: [(("local",), bridge.local), (("remote",), bridge.remote)],
        REFUSED: lambda: [((), bridge.refused)],
    }
