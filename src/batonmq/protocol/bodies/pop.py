"""Bodies of pop consumption: batches of acks, the records of the revive topic, the state of ordered pops.

Source: `BatchAck`, `PopCheckPoint`, `AckMsg`, `BatchAckMsg` and `ConsumerOrderInfoManager` of Apache RocketMQ
5.5. Its brokers ignore members and tags that they do not know.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from binascii import Error as Base64Error

import msgspec
from msgspec import field

from batonmq.protocol.json import Body, BodyError
from batonmq.protocol.registry import I32, I64


class BatchAck(Body):
    """Acks of one receipt's batch.

    ``retry`` is the receipt's retry flag ("0", "1", "2") and ``bit_set`` (base64) has bit ``n`` set if offset
    ``start_offset + n`` is acknowledged, least significant bit of the first byte first (Java's `BitSet`).
    """

    consumer_group: str = field(name="c", default="")
    topic: str = field(name="t", default="")
    retry: str = field(name="r", default="0")
    start_offset: I64 = field(name="so", default=0)
    queue_id: I32 = field(name="q", default=0)
    revive_queue_id: I32 = field(name="rq", default=0)
    pop_time: I64 = field(name="pt", default=0)
    invisible_time: I64 = field(name="it", default=0)
    bit_set: str = field(name="b", default="")


class BatchAckMessageRequestBody(Body):
    """Body of BATCH_ACK_MESSAGE."""

    broker_name: str | None = None
    acks: list[BatchAck] = field(default_factory=list)


def bit_set_of(differences: list[int]) -> str:
    """`BatchAck.bit_set` of differences to the start offset (each at least 0)."""
    bits = 0
    for difference in differences:
        bits |= 1 << difference
    return b64encode(bits.to_bytes((bits.bit_length() + 7) // 8, "little")).decode()


MAX_BIT_SET_BYTES = 4096
"""Of one `BatchAck`: a batch has at most 32 messages, between which a filter may have passed over others."""


def differences_of(bit_set: str) -> list[int]:
    """Inverse of `bit_set_of`, ascending.

    Raises `BodyError` if the text is not base64 or describes more than `MAX_BIT_SET_BYTES`.
    """
    if len(bit_set) > MAX_BIT_SET_BYTES * 4 // 3 + 4:
        raise BodyError(f"the bit set of a batch ack has {len(bit_set)} characters")
    try:
        bits = int.from_bytes(b64decode(bit_set, validate=True), "little")
    except (Base64Error, ValueError):
        raise BodyError("the bit set of a batch ack is not base64") from None
    differences = []
    while bits:
        lowest = bits & -bits
        differences.append(lowest.bit_length() - 1)
        bits ^= lowest
    return differences


class CheckPoint(msgspec.Struct, omit_defaults=True):
    """A batch that was handed out (tag ``ck``). It is due at ``pt + it`` (wall ms).

    Message ``i`` is at offset ``so + d[i]``; ``bm`` has bit ``i`` set once it is acknowledged.
    """

    start_offset: int = field(name="so", default=0)
    pop_time: int = field(name="pt", default=0)
    invisible_time: int = field(name="it", default=0)
    bit_map: int = field(name="bm", default=0)
    num: int = field(name="n", default=0)
    queue_id: int = field(name="q", default=0)
    topic: str = field(name="t", default="")
    consumer_group: str = field(name="c", default="")
    revive_offset: int = field(name="ro", default=0)
    differences: list[int] | None = field(name="d", default=None)
    broker_name: str | None = field(name="bn", default=None)
    put_again: str | None = field(name="rp", default=None)
    """How often the check point was written again because its messages could not be revived."""
    suspend: bool = field(name="sp", default=False)
    """The next delivery does not count as an attempt."""
    next_offset: int = field(name="nb", default=-1)
    """BatonMQ's own: where the group's next pop of the queue begins; -1: this check point does not move
    it."""
    position: int = field(name="pp", default=-1)
    """BatonMQ's own: commit log offset of the first record of this check point, if this is a later one."""


class AckRecord(msgspec.Struct, omit_defaults=True):
    """An ack (tag ``ack``), or with `offsets` several of one check point (tag ``bAck``)."""

    offset: int = field(name="ao", default=0)
    start_offset: int = field(name="so", default=0)
    consumer_group: str = field(name="c", default="")
    topic: str = field(name="t", default="")
    queue_id: int = field(name="q", default=0)
    pop_time: int = field(name="pt", default=0)
    broker_name: str | None = field(name="bn", default=None)
    offsets: list[int] | None = field(name="aol", default=None)
    by_broker: bool = field(name="bb", default=False)
    """BatonMQ's own: no consumer acknowledged the messages; they were revived, or got another check point."""


class OrderInfo(Body):
    """A batch of one queue that an ordered pop handed out. Times are wall ms."""

    pop_time: int = 0
    invisible_time: int | None = field(name="i", default=None)
    """ms"""
    offset_list: list[int] = field(name="o", default_factory=list)
    """The first message's offset, then the distances of the others from it."""
    next_visible: dict[int, int] = field(name="ot", default_factory=dict)
    """Offset -> when the message may be handed out again, if it differs from the others'."""
    consumed: dict[int, int] = field(name="oc", default_factory=dict)
    """Offset -> how often the message was handed out before."""
    last_consume: int = field(name="l", default=0)
    acked: int = field(name="cm", default=0)
    """Bit ``n``: message ``n`` of the list is acknowledged."""
    attempt_id: str | None = field(name="a", default=None)


class ConsumerOrderInfo(Body):
    """consumerOrderInfo.json: ``topic@group`` -> queue id -> batch."""

    table: dict[str, dict[int, OrderInfo]] = field(default_factory=dict)


class OrderRecord(msgspec.Struct, omit_defaults=True):
    """BatonMQ's own record of the revive topic (tag ``order``): the state of one queue of an ordered
    group."""

    topic: str = field(name="t", default="")
    consumer_group: str = field(name="c", default="")
    queue_id: int = field(name="q", default=0)
    next_offset: int = field(name="nb", default=0)
    """The first message that is not acknowledged."""
    info: OrderInfo = field(default_factory=OrderInfo)
    reset: int = field(name="r", default=0)
    """Number of the offset reset that a pop has used, also of a group without order; 0: none."""
