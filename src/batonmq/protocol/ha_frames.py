"""Frames of the replication port: handshake, transfer, acknowledgement, and readers that cut them.

Owns the layout and nothing else; what the fields mean for a log is decided in `ha/autoswitch/core.py`. All
integers are big-endian, as everywhere in RocketMQ. Source: `docs/en/controller/design.md` of Apache
RocketMQ ("Replication protocol") with the layout of 5.x, which replaced the slave's address in the
handshake by its broker id.

    slave -> master   handshake   state i32, sync from last file i16, async learner i16, broker id i64
                      ack         state i32, max offset i64
    master -> slave   handshake   state i32, body size i32, max offset i64, epoch i32,
                                  then for each epoch: epoch i32, start offset i64
                      transfer    state i32, body size i32, offset i64, epoch i32, epoch start i64,
                                  confirm offset i64, then the bytes of the log

Where both sides have a shared secret (BatonMQ's own, `ha/proof.py`) three frames come before all others:

    slave -> master   greeting    mark i32, nonce 32 bytes
    master -> slave   challenge   mark i32, nonce 32 bytes, proof 32 bytes
    slave -> master   proof       mark i32, proof 32 bytes
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final, NamedTuple

_SLAVE_HANDSHAKE = struct.Struct(">ihhq")
_ACK = struct.Struct(">iq")
_MASTER_HANDSHAKE = struct.Struct(">iiqi")
_EPOCH = struct.Struct(">iq")
_TRANSFER = struct.Struct(">iiqiqq")
_STATE = struct.Struct(">i")
_GREETING = struct.Struct(">i32s")
_CHALLENGE = struct.Struct(">i32s32s")

SLAVE_HANDSHAKE_SIZE = _SLAVE_HANDSHAKE.size
ACK_SIZE = _ACK.size
MASTER_HANDSHAKE_SIZE = _MASTER_HANDSHAKE.size
EPOCH_SIZE = _EPOCH.size
TRANSFER_HEADER_SIZE = _TRANSFER.size

PROOF_MARK = int.from_bytes(b"BMQP", "big")
"""Stands where other frames have their state, and is none of `HAState`. The last letter is the version of the
three frames: the next one is Q."""
NONCE_SIZE: Final = 32
PROOF_SIZE: Final = 32
GREETING_SIZE = _GREETING.size
CHALLENGE_SIZE = _CHALLENGE.size

MAX_EPOCHS: Final = 100_000
"""Longest epoch list a slave accepts; bounds the memory of a handshake."""
MAX_BODY_SIZE: Final = 1 << 30
"""Largest body of one transfer frame: RocketMQ's largest commit log file."""


class HAFrameError(Exception):
    """The peer sent what is no frame of this protocol, or none it may send now; the connection is useless."""


class HAState(IntEnum):
    """First field of every frame: the state of the sender's side of the connection."""

    READY = 0
    HANDSHAKE = 1
    TRANSFER = 2
    SUSPEND = 3
    SHUTDOWN = 4


class EpochStart(NamedTuple):
    """A master's term and the physical offset at which its part of the log begins."""

    epoch: int
    start_offset: int


class SlaveHandshake(NamedTuple):
    """A slave introduces itself."""

    broker_id: int
    """Id the controller gave it; -1 if none."""
    sync_from_last_file: bool = False
    """An empty slave wants only the master's last commit log file."""
    async_learner: bool = False
    """It copies but never wants to be in the SyncStateSet."""

    def encode(self) -> bytes:
        return _SLAVE_HANDSHAKE.pack(
            HAState.HANDSHAKE, self.sync_from_last_file, self.async_learner, self.broker_id
        )


class Ack(NamedTuple):
    """A slave has the log up to here (exclusive end, bytes). The first one says where transfer begins."""

    max_offset: int

    def encode(self) -> bytes:
        return _ACK.pack(HAState.TRANSFER, self.max_offset)


class MasterHandshake(NamedTuple):
    """The master's answer: all its epochs, for the slave to find the last point both logs share."""

    max_offset: int
    epoch: int
    """Epoch of the last entry, -1 if there is none."""
    epochs: tuple[EpochStart, ...]

    def encode(self) -> bytes:
        head = _MASTER_HANDSHAKE.pack(
            HAState.HANDSHAKE, len(self.epochs) * EPOCH_SIZE, self.max_offset, self.epoch
        )
        return head + b"".join(_EPOCH.pack(*entry) for entry in self.epochs)


class Transfer(NamedTuple):
    """Header of a piece of log; with `body_size` 0 a heartbeat. The body follows, cut into `Body` pieces."""

    body_size: int
    offset: int
    epoch: int
    epoch_start: int
    confirm_offset: int

    def encode(self) -> bytes:
        return _TRANSFER.pack(
            HAState.TRANSFER, self.body_size, self.offset, self.epoch, self.epoch_start, self.confirm_offset
        )


class Body(NamedTuple):
    """Some bytes of the log, a view of what was fed in: use or copy them before the next feed."""

    offset: int
    data: "memoryview"  # noqa: UP037  # mypyc finds it by this name only


class Greeting(NamedTuple):
    """A slave that shares a secret wants the master to prove that it does too."""

    nonce: bytes

    def encode(self) -> bytes:
        return _GREETING.pack(PROOF_MARK, self.nonce)

    @classmethod
    def decode(cls, data: bytes) -> Greeting:
        """From `GREETING_SIZE` bytes. Raises `HAFrameError`."""
        return cls(_marked(_GREETING.unpack(data))[0])


class Challenge(NamedTuple):
    """The master's proof, and what the slave's has to cover."""

    nonce: bytes
    proof: bytes

    def encode(self) -> bytes:
        return _CHALLENGE.pack(PROOF_MARK, self.nonce, self.proof)

    @classmethod
    def decode(cls, data: bytes) -> Challenge:
        """From `CHALLENGE_SIZE` bytes. Raises `HAFrameError`."""
        return cls(*_marked(_CHALLENGE.unpack(data)))


class Proof(NamedTuple):
    """The slave's proof; its handshake follows. As long as a greeting."""

    proof: bytes

    def encode(self) -> bytes:
        return _GREETING.pack(PROOF_MARK, self.proof)

    @classmethod
    def decode(cls, data: bytes) -> Proof:
        """From `GREETING_SIZE` bytes. Raises `HAFrameError`."""
        return cls(_marked(_GREETING.unpack(data))[0])


def begins_with_proof(data: bytes) -> bool:
    """Whether these bytes, the first of a connection, can be the begin of a frame with `PROOF_MARK`."""
    mark = _STATE.pack(PROOF_MARK)
    return mark.startswith(data[: len(mark)])


def proof_version(data: bytes) -> str | None:
    """The version of the frame with a proof that these bytes begin with; None if they do not."""
    mark = _STATE.pack(PROOF_MARK)
    version = data[len(mark) - 1 : len(mark)]
    return version.decode() if data.startswith(mark[:-1]) and b"P" <= version <= b"Z" else None


def _marked(fields: tuple[int, *tuple[bytes, ...]]) -> tuple[bytes, ...]:
    if fields[0] != PROOF_MARK:
        raise HAFrameError("no proof of a shared secret")
    return fields[1:]


class SlaveFrameReader:
    """Cuts what a slave sends into frames; a partial frame waits for its rest (15 bytes at most)."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes | memoryview) -> list[SlaveHandshake | Ack]:
        """Frames that are complete now. Raises `HAFrameError`."""
        buffer = self._rest + bytes(data)
        frames: list[SlaveHandshake | Ack] = []
        position = 0
        while len(buffer) - position >= _STATE.size:
            (state,) = _STATE.unpack_from(buffer, position)
            if state == HAState.TRANSFER:
                if len(buffer) - position < ACK_SIZE:
                    break
                offset = _ACK.unpack_from(buffer, position)[1]
                if offset < 0:
                    raise HAFrameError(f"ack of offset {offset}")
                frames.append(Ack(offset))
                position += ACK_SIZE
            elif state == HAState.HANDSHAKE:
                if len(buffer) - position < SLAVE_HANDSHAKE_SIZE:
                    break
                _, last_file, learner, broker_id = _SLAVE_HANDSHAKE.unpack_from(buffer, position)
                frames.append(SlaveHandshake(broker_id, last_file == 1, learner == 1))
                position += SLAVE_HANDSHAKE_SIZE
            elif state == PROOF_MARK:
                raise HAFrameError("the slave has a haSecret, and none is set here")
            else:
                raise HAFrameError(f"state {state} in a slave's frame")
        self._rest = buffer[position:]
        return frames


class MasterFrameReader:
    """Cuts what a master sends into frames. Bodies are handed on as they arrive, never collected."""

    __slots__ = ("_body_left", "_body_offset", "_rest")

    def __init__(self) -> None:
        self._rest = b""
        self._body_offset = 0
        self._body_left = 0

    def feed(self, data: bytes) -> list[MasterHandshake | Transfer | Body]:
        """Frames, and pieces of bodies, that `data` brings. Raises `HAFrameError`.

        Only an incomplete header or handshake is kept, so memory does not grow with the size of frames.
        """
        frames: list[MasterHandshake | Transfer | Body] = []
        if self._rest:
            data = self._rest + data
            self._rest = b""
        view = memoryview(data)
        size, position = len(data), 0
        while True:
            if self._body_left:
                piece = min(self._body_left, size - position)
                if piece:
                    frames.append(Body(self._body_offset, view[position : position + piece]))
                    self._body_offset += piece
                    self._body_left -= piece
                    position += piece
                if self._body_left:
                    return frames
            left = size - position
            if left < _STATE.size:
                break
            (state,) = _STATE.unpack_from(data, position)
            if state == HAState.TRANSFER:
                if left < TRANSFER_HEADER_SIZE:
                    break
                transfer = Transfer(*_TRANSFER.unpack_from(data, position)[1:])
                if not 0 <= transfer.body_size <= MAX_BODY_SIZE:
                    raise HAFrameError(f"transfer of {transfer.body_size} bytes")
                if transfer.body_size and transfer.offset < 0:
                    raise HAFrameError(f"transfer at offset {transfer.offset}")
                frames.append(transfer)
                position += TRANSFER_HEADER_SIZE
                self._body_offset, self._body_left = transfer.offset, transfer.body_size
            elif state == HAState.HANDSHAKE:
                if left < MASTER_HANDSHAKE_SIZE:
                    break
                _, body_size, max_offset, epoch = _MASTER_HANDSHAKE.unpack_from(data, position)
                if not 0 <= body_size <= MAX_EPOCHS * EPOCH_SIZE or body_size % EPOCH_SIZE:
                    raise HAFrameError(f"handshake with {body_size} bytes of epochs")
                if max_offset < 0:
                    raise HAFrameError(f"handshake with max offset {max_offset}")
                if left < MASTER_HANDSHAKE_SIZE + body_size:
                    break
                position += MASTER_HANDSHAKE_SIZE
                body = view[position : position + body_size]
                frames.append(
                    MasterHandshake(max_offset, epoch, tuple(map(EpochStart._make, _EPOCH.iter_unpack(body))))
                )
                position += body_size
            else:
                raise HAFrameError(f"state {state} in a master's frame")
        self._rest = data[position:]
        return frames
