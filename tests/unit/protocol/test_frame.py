"""Frames: whole, in pieces, hostile; and held against what the real RemotingCommand wrote."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batonmq.protocol.codes import FLAG_ONEWAY, FLAG_RESPONSE, LanguageCode
from batonmq.protocol.errors import FrameError, MQError
from batonmq.protocol.frame import (
    Command,
    FrameReader,
    decode_ext,
    encode,
    encode_ext,
)
from batonmq.protocol.headers.broker.clients import UnregisterClient
from batonmq.protocol.headers.broker.pull import GetMaxOffset, PullMessageResponse
from batonmq.protocol.headers.broker.send import SendMessageV2

DATA = Path(__file__).parents[2] / "data" / "protocol"

int32 = st.integers(-(2**31), 2**31 - 1)
text = st.text(st.characters(exclude_categories=("Cs",)), max_size=40)
commands = st.builds(
    Command,
    code=st.integers(-(2**15), 2**15 - 1),
    ext=st.dictionaries(text.filter(bool), text, max_size=6),
    body=st.binary(max_size=200),
    flag=int32,
    opaque=int32,
    remark=st.none() | text.filter(bool),
    language=st.sampled_from([int(code) for code in LanguageCode]),
    version=st.integers(0, 2**15 - 1),
    binary=st.booleans(),
)


def fields(command: Command) -> tuple[object, ...]:
    return (
        command.code,
        command.ext,
        bytes(command.body),
        command.flag,
        command.opaque,
        command.remark,
        command.language,
        command.version,
        command.binary,
    )


@given(st.lists(commands, min_size=1, max_size=4), st.lists(st.integers(1, 60), max_size=30))
def test_a_stream_cut_anywhere_gives_the_same_commands(sent: list[Command], cuts: list[int]) -> None:
    stream = b"".join(encode(command) for command in sent)
    reader = FrameReader()
    received: list[Command] = []
    position = 0
    for cut in cuts:
        received += reader.feed(stream[position : position + cut])
        position += cut
    received += reader.feed(stream[position:])
    assert [fields(command) for command in received] == [fields(command) for command in sent]
    assert reader.held == 0


def test_byte_by_byte() -> None:
    frame = encode(Command(11, {"topic": "t"}, b"xyz", binary=True, opaque=4))
    reader = FrameReader()
    for index, byte in enumerate(frame[:-1]):
        assert reader.feed(bytes([byte])) == []
        assert reader.held == index + 1
    (command,) = reader.feed(frame[-1:])
    assert bytes(command.body) == b"xyz"


def test_bodies_are_views_of_the_read() -> None:
    data = encode(Command(11, {}, b"x" * 100)) + encode(Command(12, {}, b"y" * 50))
    first, second = FrameReader().feed(data)
    assert isinstance(first.body, memoryview) and first.body.obj is data
    assert isinstance(second.body, memoryview) and second.body.obj is data


GOLDEN = {
    "send-v2": (
        310,
        77,
        0,
        None,
        "a body €",
        SendMessageV2(
            "producers",
            "orders",
            "TBW102",
            4,
            3,
            1,
            1_700_000_000_004,
            9,
            "KEYS\x01k1 k2\x02TAGS\x01a\x02name\x01grün€",
            2,
            False,
            16,
            False,
            "broker-a",
        ),
    ),
    "pull-response": (19, 78, 1, "nothing über", "", PullMessageResponse(1, 32, 0, 4_000_000_000)),
    "get-max-offset": (30, -5, 0, None, "", GetMaxOffset("orders", 0, False)),
    "unregister-client": (35, 79, 2, None, "", UnregisterClient("10.0.0.9@7", None, "consumers")),
}


@pytest.mark.parametrize("name", GOLDEN)
@pytest.mark.parametrize("form", ["json", "rocketmq"])
def test_frames_of_the_real_rocketmq(name: str, form: str) -> None:
    code, opaque, flag, remark, body, header = GOLDEN[name]
    data = (DATA / f"{name}.{form}.bin").read_bytes()
    (command,) = FrameReader().feed(data)
    assert command.binary is (form == "rocketmq")
    assert (command.code, command.opaque, command.flag, command.remark) == (code, opaque, flag, remark)
    assert (command.language, command.version) == (LanguageCode.JAVA, 475)
    assert bytes(command.body).decode() == body
    assert type(header).from_ext(command.ext) == header
    assert header.to_ext() == command.ext
    assert len(encode(command)) == len(data)  # field order aside, what we would write


def big_code() -> bytes:
    return encode(Command(200_050, {"a": "b"}, binary=True))


def test_a_code_beyond_16_bits_goes_as_json() -> None:
    (command,) = FrameReader().feed(big_code())
    assert command.code == 200_050
    assert command.binary is False
    assert command.ext == {"a": "b"}


@pytest.mark.parametrize(("flag", "code"), [(0, 200_050), (FLAG_ONEWAY, 200_050), (FLAG_RESPONSE, 3442)])
def test_a_code_of_which_a_binary_header_holds_the_lower_16_bits_is_read_whole(flag: int, code: int) -> None:
    """RocketMQ's clients write the 200050 of a pop as 3442 if `rocketmq.serialize.type` is ROCKETMQ."""
    command = Command(200_050 & 0xFFFF, {"a": "b"}, binary=True)
    command.flag = flag
    (read,) = FrameReader().feed(encode(command))
    assert (read.code, read.flag, read.binary) == (code, flag, True)


def test_json_header_of_other_clients() -> None:
    header = b'{"code":10,"language":"CPP","opaque":5,"extFields":{"a":1,"b":true,"c":null}}'
    (command,) = FrameReader().feed(struct.pack(">II", 4 + len(header), len(header)) + header)
    assert command.ext == {"a": "1", "b": "true"}
    assert command.language == LanguageCode.CPP


@pytest.mark.parametrize(
    "header",
    [
        b'{"code":"10","flag":"0","version":"3","opaque":"4","extFields":{"a":"b"}}',
        b'{"code":10,"opaque":4,"language":null,"flag":null,"remark":null,"extFields":{"a":"b","c":null}}',
        b'{"code":10.0,"opaque":4,"extFields":{"a":"b"},}',
        b'{"code":10,"opaque":4,"extFields":{"a":"b"} , } ',
    ],
)
def test_json_headers_as_fastjson_reads_them(header: bytes) -> None:
    (command,) = FrameReader().feed(json_frame(header))
    assert (command.code, command.opaque, command.flag, command.remark) == (10, 4, 0, None)
    assert command.language == LanguageCode.OTHER and command.ext == {"a": "b"}


def json_frame(header: bytes) -> bytes:
    return struct.pack(">II", 4 + len(header), len(header)) + header


def binary_frame(remark_length: int = 0, ext_length: int = 0, header_length: int = 21) -> bytes:
    body = struct.pack(">hbhiiII", 10, 0, 0, 1, 0, remark_length, ext_length)
    return struct.pack(">II", 4 + len(body), 1 << 24 | header_length) + body


HOSTILE = {
    "too long": struct.pack(">II", 16 * 1024 * 1024, 10),
    "negative length": struct.pack(">iI", -1, 10),
    "shorter than its own header length": struct.pack(">II", 3, 0),
    "header longer than frame": struct.pack(">II", 10, 7) + b"1234567",
    "unknown serialisation": struct.pack(">II", 4, 7 << 24),
    "json that is none": json_frame(b"hello"),
    "json of another shape": json_frame(b'{"code":"x"}'),
    "json without a code": json_frame(b'{"opaque":1,}'),
    "json with two last commas": json_frame(b'{"code":1,,}'),
    "json with a broken code": json_frame(b'{"code":1.5}'),
    "long json that is not strict": json_frame(b'{"code":"1","x":"' + b"x" * (1 << 16) + b'"}'),
    "json with a huge opaque": json_frame(b'{"code":1,"opaque":99999999999}'),
    "json not utf-8": json_frame(b'{"code":1,"remark":"\xff"}'),
    "binary header too short": struct.pack(">II", 4 + 10, 1 << 24 | 10) + b"0123456789",
    "binary remark too long": binary_frame(remark_length=1),
    "binary remark far too long": binary_frame(remark_length=2**32 - 1),
    "binary fields too long": binary_frame(ext_length=1),
    "binary fields far too long": binary_frame(ext_length=2**32 - 1),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_frames_are_named(name: str) -> None:
    with pytest.raises(FrameError, match=r"\w"):
        FrameReader().feed(HOSTILE[name])


def test_a_length_over_the_limit_is_refused_before_its_bytes_come() -> None:
    with pytest.raises(FrameError, match="limit"):
        FrameReader(max_length=100).feed(struct.pack(">I", 97))
    assert FrameReader(max_length=100).feed(struct.pack(">I", 96)) == []


@given(st.binary(max_size=300))
def test_any_bytes_either_parse_or_raise_frame_error(data: bytes) -> None:
    try:
        for command in FrameReader(max_length=1000).feed(data):
            _ = command.ext
    except (FrameError, MQError):
        pass


@given(st.dictionaries(text, text, max_size=8))
def test_binary_fields_round_trip(ext: dict[str, str]) -> None:
    assert decode_ext(encode_ext(ext)) == ext


@pytest.mark.parametrize(
    "raw",
    [
        b"\0",
        b"\0\1",
        b"\0\1a\0\0\0",
        b"\0\1a\0\0\0\2x",
        b"\xff\xff",
        b"\0\1a\0\0\0\1\xff",
        b"\0\1\xff\0\0\0\0",
    ],
)
def test_malformed_fields_are_the_senders_error(raw: bytes) -> None:
    with pytest.raises(MQError, match="header field"):
        decode_ext(raw)
