"""Which copies of a revived message a switch of the master excuses, and which it does not."""

from __future__ import annotations

import msgspec
import pytest

from batonmq.broker.pop.journal import ACK
from batonmq.protocol.bodies.pop import AckRecord
from batonmq.protocol.message.record import MessageExt
from tests.simulation.revivals import cut_revivals

REVIVE, RETRY = "rmq_sys_REVIVE_LOG_c", "%RETRY%g_t"
MESSAGE, COPY, SETTLED, ACKED = "message", "copy", "settled", "acked"


def record(kind: str, at: int) -> MessageExt:
    """The message `m`, one more copy of it, the broker's ack that ends a revival, or a consumer's."""
    if kind in (MESSAGE, COPY):
        topic = "t" if kind == MESSAGE else RETRY
        return stored(topic, 0 if kind == MESSAGE else at, at, b"", KEYS="m")
    ack = AckRecord(offset=0, topic="t", by_broker=kind == SETTLED)
    return stored(REVIVE, at, at, msgspec.json.encode(ack), TAGS=ACK)


def stored(topic: str, offset: int, at: int, body: bytes, **properties: str) -> MessageExt:
    return MessageExt(
        topic=topic, queue_id=0, queue_offset=offset, physical_offset=at, body=body, properties=properties
    )


@pytest.mark.parametrize(
    ("kinds", "switch", "excused"),
    [
        ((MESSAGE, COPY, SETTLED), 3, 0),
        ((MESSAGE, COPY, COPY, SETTLED), 2, 1),  # another master does not know of the first copy's revival
        ((MESSAGE, COPY, ACKED, COPY, SETTLED), 3, 1),  # what a consumer acknowledged ends no revival
        (
            (MESSAGE, COPY, SETTLED, COPY, SETTLED),
            3,
            0,
        ),  # the record was there: nothing excuses the second one
        ((MESSAGE, COPY, COPY, SETTLED), 4, 0),  # one master revived it twice
        ((MESSAGE, COPY, COPY), 3, 1),  # at most one of a master's copies is not settled
        ((MESSAGE, COPY, COPY, SETTLED), 9, 0),  # no other master has written since
    ],
)
def test_only_a_revival_that_a_switch_cut_in_two_is_excused(
    kinds: tuple[str, ...], switch: int, excused: int
) -> None:
    log = [record(kind, at) for at, kind in enumerate(kinds)]
    log.append(stored("t", 1, len(kinds), b""))
    assert cut_revivals(log, [0, switch], REVIVE)["m"] == excused
