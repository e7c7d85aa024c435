"""The bytes of the timer's files: slots of the wheel, units of the timer log, the checkpoint. No I/O.

All numbers are big endian. Source: RocketMQ's `Slot`, `TimerWheel`, `TimerLog` and `TimerCheckpoint`.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final, NamedTuple

import numpy as np

from batonmq.protocol.bodies.common import DataVersion

SLOTS: Final = 7 * 86_400 * 2
"""Slots of the wheel, whatever the precision: twice `TIMER_WHEEL_TTL_DAY` days of seconds."""
BLANK_SLOTS: Final = 60
"""Slots that the roll window leaves free (`TIMER_BLANK_SLOTS`)."""

SLOT: Final = struct.Struct(">qqqii")
"""Time divided by the precision, position of the first and of the last unit, number of messages, 0."""
UNIT: Final = struct.Struct(">iqiqiqiiq")
"""Size (52), position of the slot's previous unit, magic, write time, slot time minus write time, commit log
offset and size of the record, hash of the real topic, 0."""
BLANK: Final = struct.Struct(">iqI")
"""At the end of a file: bytes up to the end, 0, `BLANK_MAGIC`."""
CHECKPOINT: Final = struct.Struct(">7q")
_OPEN: Final = struct.Struct(">4sIqI")
"""What only BatonMQ writes behind a checkpoint: `_OPEN_MAGIC`, CRC of the bytes before, read time, number of
units, which follow."""
_OPEN_MAGIC: Final = b"BMQ1"

BLANK_MAGIC: Final = 0xCBD43194
MAGIC_DEFAULT: Final = 1
MAGIC_ROLL: Final = 2
"""The message is due later than the wheel reaches: store it again when this slot is due."""
MAGIC_DELETE: Final = 4
"""The message recalls another one."""
MAGIC_MASK: Final = 0xF
NO_UNIT: Final = -1
"""In place of a position."""

SLOT_DTYPE: Final = np.dtype(
    [("time", ">i8"), ("first", ">i8"), ("last", ">i8"), ("count", ">i4"), ("magic", ">i4")]
)
UNIT_DTYPE: Final = np.dtype(
    [
        ("size", ">i4"),
        ("previous", ">i8"),
        ("magic", ">i4"),
        ("written", ">i8"),
        ("delay", ">i4"),
        ("physical", ">i8"),
        ("length", ">i4"),
        ("topic", ">i4"),
        ("reserved", ">i8"),
    ]
)
assert SLOT_DTYPE.itemsize == SLOT.size == 32
assert UNIT_DTYPE.itemsize == UNIT.size == 52


class Slot(NamedTuple):
    """The messages that are due in one step of the precision, as a chain of units."""

    first: int
    last: int
    """Position of the newest unit; each unit has the position of the one before."""
    number: int
    """Messages, less those that recall one."""


class Unit(NamedTuple):
    """One waiting message in the timer log."""

    previous: int
    magic: int
    written_ms: int
    """Store time of the message, rounded down to the precision."""
    slot_ms: int
    physical_offset: int
    size: int
    topic_hash: int

    @property
    def roll(self) -> bool:
        return self.magic & MAGIC_ROLL != 0

    @property
    def recalls(self) -> bool:
        """Whether the message recalls another one in the same slot."""
        return self.magic & (MAGIC_DELETE | MAGIC_ROLL) == MAGIC_DELETE

    def encode(self) -> bytes:
        return UNIT.pack(
            UNIT.size,
            self.previous,
            self.magic,
            self.written_ms,
            self.slot_ms - self.written_ms,
            self.physical_offset,
            self.size,
            self.topic_hash,
            0,
        )


class Checkpoint(NamedTuple):
    """A consistent state of the timer: of the messages before `queue_offset`, those in slots before
    `read_ms` are delivered, but for the `open` ones, and the others are in the wheel. Those in later slots
    were taken out of the wheel of a broker whose clock is ahead; if they are in another one, they are open.

    RocketMQ knows no open messages. It reads the time of the first one as read time, and delivers what was
    delivered since a second time.
    """

    read_ms: int = 0
    """Slots before this time are delivered."""
    log_end: int = 0
    """Durable end of the timer log."""
    queue_offset: int = 0
    """First message of the timer topic that this replica has not put into its wheel."""
    master_queue_offset: int = 0
    """The same of the master, to which `read_ms` belongs."""
    version: DataVersion = DataVersion()
    open: tuple[Unit, ...] = ()

    def encode(self) -> bytes:
        version = self.version
        held_ms = min([self.read_ms, *(unit.slot_ms for unit in self.open)])
        data = CHECKPOINT.pack(held_ms, *self[1:4], version.state_version, version.timestamp, version.counter)
        if self.open:
            data += _OPEN.pack(_OPEN_MAGIC, zlib.crc32(data), self.read_ms, len(self.open))
            data += b"".join(unit.encode() for unit in self.open)
        return data


def decode_unit(data: bytes | memoryview) -> Unit | None:
    """The unit in these 52 bytes; None if they are none."""
    size, previous, magic, written, delay, physical, length, topic, _ = UNIT.unpack(data)
    if size != UNIT.size or magic & ~MAGIC_MASK or length <= 0 or physical < 0:
        return None
    return Unit(previous, magic, written, written + delay, physical, length, topic)


def decode_checkpoint(data: bytes) -> Checkpoint:
    """From the file or the answer to GET_TIMER_CHECK_POINT; old brokers leave out the version, files of
    RocketMQ are longer. Raises ValueError."""
    if len(data) < 32:
        raise ValueError(f"a timer checkpoint has at least 32 bytes, not {len(data)}")
    padded = data[: CHECKPOINT.size].ljust(CHECKPOINT.size, b"\0")
    read_ms, log_end, queue_offset, master, state, timestamp, counter = CHECKPOINT.unpack(padded)
    if min(read_ms, log_end, queue_offset, master) < 0:
        raise ValueError(
            f"a timer checkpoint with negative numbers: {(read_ms, log_end, queue_offset, master)}"
        )
    version = DataVersion(state_version=state, timestamp=timestamp, counter=counter)
    plain = Checkpoint(read_ms, log_end, queue_offset, master, version)
    begin = CHECKPOINT.size + _OPEN.size
    if len(data) < begin:
        return plain
    magic, crc, read_ms, count = _OPEN.unpack_from(data, CHECKPOINT.size)
    if magic != _OPEN_MAGIC or crc != zlib.crc32(padded):
        return plain  # RocketMQ has written the part before since
    if len(data) < begin + count * UNIT.size:
        raise ValueError(f"a timer checkpoint with less than its {count} open messages")
    units = [
        decode_unit(data[at : at + UNIT.size]) for at in range(begin, begin + count * UNIT.size, UNIT.size)
    ]
    return plain._replace(read_ms=read_ms, open=tuple(unit for unit in units if unit is not None))
