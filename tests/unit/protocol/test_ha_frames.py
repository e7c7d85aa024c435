"""Replication frames: bytes as RocketMQ's AutoSwitchHAConnection and AutoSwitchHAClient write them."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batonmq.protocol.ha_frames import (
    TRANSFER_HEADER_SIZE,
    Ack,
    Body,
    EpochStart,
    HAFrameError,
    MasterFrameReader,
    MasterHandshake,
    SlaveFrameReader,
    SlaveHandshake,
    Transfer,
)

GOLDEN = [
    (SlaveHandshake(7), "00000001 0000 0000 0000000000000007"),
    (SlaveHandshake(7, True, False), "00000001 0001 0000 0000000000000007"),
    (SlaveHandshake(-1, False, True), "00000001 0000 0001 ffffffffffffffff"),
    (Ack(0x1122334455), "00000002 0000001122334455"),
    (MasterHandshake(0, -1, ()), "00000001 00000000 0000000000000000 ffffffff"),
    (
        MasterHandshake(500, 3, (EpochStart(1, 0), EpochStart(3, 256))),
        "00000001 00000018 00000000000001f4 00000003 00000001 0000000000000000 00000003 0000000000000100",
    ),
    (
        Transfer(5, 256, 3, 128, 200),
        "00000002 00000005 0000000000000100 00000003 0000000000000080 00000000000000c8",
    ),
    (
        Transfer(0, -1, 3, 0, -1),
        "00000002 00000000 ffffffffffffffff 00000003 0000000000000000 ffffffffffffffff",
    ),
]


@pytest.mark.parametrize(("frame", "text"), GOLDEN, ids=lambda value: type(value).__name__)
def test_golden_bytes(frame, text):
    assert frame.encode() == bytes.fromhex(text)


def test_transfer_header_has_36_bytes():
    assert TRANSFER_HEADER_SIZE == 36 == len(Transfer(0, 0, 0, 0, 0).encode())


i64 = st.integers(0, 2**63 - 1)
slave_frames = st.lists(
    st.one_of(
        st.builds(Ack, i64),
        st.builds(SlaveHandshake, st.integers(-1, 2**63 - 1), st.booleans(), st.booleans()),
    )
)


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    points = sorted({cut % (len(data) + 1) for cut in cuts})
    return [data[a:b] for a, b in zip([0, *points], [*points, len(data)], strict=True)]


@given(slave_frames, st.lists(st.integers(0, 10_000)))
def test_slave_frames_survive_any_cut(frames, cuts):
    reader = SlaveFrameReader()
    data = b"".join(frame.encode() for frame in frames)
    assert [frame for piece in split(data, cuts) for frame in reader.feed(piece)] == frames


epoch_lists = st.lists(st.tuples(st.integers(0, 2**31 - 1), i64)).map(
    lambda entries: tuple(EpochStart(*entry) for entry in entries)
)
master_frames = st.lists(
    st.one_of(
        st.builds(MasterHandshake, i64, st.integers(-1, 2**31 - 1), epoch_lists),
        st.tuples(st.integers(0, 2**40), st.binary(max_size=300)),
    )
)


@given(master_frames, st.lists(st.integers(0, 10_000)))
def test_master_frames_survive_any_cut(frames, cuts):
    data, expected, log = b"", [], {}
    for frame in frames:
        if isinstance(frame, MasterHandshake):
            data += frame.encode()
            expected.append(frame)
        else:
            offset, body = frame
            header = Transfer(len(body), offset, 1, 0, 0)
            data += header.encode() + body
            expected.append(header)
            log.update((offset + i, byte) for i, byte in enumerate(body))
    reader, got, read = MasterFrameReader(), [], {}
    for piece in split(data, cuts):
        for frame in reader.feed(piece):
            if isinstance(frame, Body):
                read.update((frame.offset + i, byte) for i, byte in enumerate(frame.data))
            else:
                got.append(frame)
    assert got == expected
    assert read == log


@pytest.mark.parametrize(
    ("reader", "text", "words"),
    [
        (SlaveFrameReader, "00000000 00000000", "state 0"),
        (SlaveFrameReader, "504f5354202f20", "state 1347375956"),
        (SlaveFrameReader, "00000002 ffffffffffffffff", "ack of offset -1"),
        (MasterFrameReader, "00000003 00000000", "state 3"),
        (MasterFrameReader, "00000001 0000000d 0000000000000000 00000001", "13 bytes of epochs"),
        (MasterFrameReader, "00000001 7ffffff8 0000000000000000 00000001", "bytes of epochs"),
        (MasterFrameReader, "00000001 00000000 ffffffffffffffff 00000001", "max offset -1"),
        (MasterFrameReader, "00000002 ffffffff" + "00" * 28, "transfer of -1 bytes"),
        (MasterFrameReader, "00000002 7fffffff" + "00" * 28, "transfer of 2147483647 bytes"),
        (MasterFrameReader, "00000002 00000001 ffffffffffffffff" + "00" * 20, "transfer at offset -1"),
    ],
)
def test_hostile_frames_are_refused(reader, text, words):
    with pytest.raises(HAFrameError, match=words):
        reader().feed(bytes.fromhex(text))


@given(st.binary(max_size=200))
def test_garbage_raises_nothing_but_frame_errors(data):
    for reader in (SlaveFrameReader(), MasterFrameReader()):
        with contextlib.suppress(HAFrameError):
            reader.feed(data)


def test_an_unfinished_body_is_handed_on_and_not_kept():
    reader = MasterFrameReader()
    reader.feed(Transfer(1 << 30, 0, 1, 0, 0).encode())
    for _ in range(10):
        (piece,) = reader.feed(b"x" * 100_000)
        assert len(piece.data) == 100_000
    assert reader._rest == b""
