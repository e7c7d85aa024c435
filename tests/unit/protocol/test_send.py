"""The hand-written halves of the send path agree with the generic codec they stand in for."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batonmq.protocol.codes import RequestCode, ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.frame import Command, FrameReader, encode_head
from batonmq.protocol.headers.broker.send import SendMessage, SendMessageV2
from batonmq.protocol.message.ids import pack_host
from batonmq.protocol.send import request
from batonmq.protocol.send.reply import SendReplies
from batonmq.protocol.send.request import SendFields, fields_of, send_ext

LETTERS = "abcdefghijklmn"
NUMBER = st.integers(-(2**31), 2**31 - 1).map(str)
JAVA = {
    "a": "group",
    "b": "Topic",
    "c": "TBW102",
    "d": "4",
    "e": "3",
    "f": "0",
    "g": "1700000000000",
    "h": "0",
    "i": "UNIQ_KEY\x01K\x02WAIT\x01true\x02",
    "j": "0",
    "k": "false",
    "m": "false",
    "n": "broker-a",
}


def received(ext: dict[str, str], *, binary: bool, code: int = RequestCode.SEND_MESSAGE_V2) -> Command:
    (command,) = FrameReader().feed(encode_head(code, 1, 0, binary=binary, ext=ext))
    return command


def test_long_and_short_names_are_of_the_same_fields() -> None:
    long = {each.name: (each.type, each.default) for each in msgspec.structs.fields(SendMessage)}
    short = {each.name: (each.type, each.default) for each in msgspec.structs.fields(SendMessageV2)}
    assert short.pop("broker_name") == (str | None, None)
    assert short == long
    assert SendMessageV2.__struct_encode_fields__ == tuple(LETTERS)


@given(st.booleans(), st.integers(-1, 2000), NUMBER, st.text(max_size=12))
def test_what_a_client_sends_is_what_a_broker_reads(batch: bool, queue: int, flag: str, text: str) -> None:
    ext = send_ext(
        "group",
        "Topic",
        "broker-a",
        queue,
        sys_flag=1,
        born_timestamp="1700000000000",
        flag=int(flag),
        properties=text,
        batch=batch,
    )
    code = RequestCode.SEND_BATCH_MESSAGE if batch else RequestCode.SEND_MESSAGE_V2
    assert SendMessageV2.from_ext(ext).to_ext() == ext
    for binary in (True, False):
        assert fields_of(received(ext, binary=binary, code=code)) == SendFields(
            producer_group="group",
            topic="Topic",
            default_topic="TBW102",
            default_topic_queue_nums=4,
            queue_id=queue,
            sys_flag=1,
            born_timestamp=1_700_000_000_000,
            flag=int(flag),
            properties=text.encode(),
            batch=batch,
        )


def test_a_header_as_java_writes_it() -> None:
    assert fields_of(received(JAVA, binary=True)) == SendFields(
        producer_group="group",
        topic="Topic",
        default_topic="TBW102",
        default_topic_queue_nums=4,
        queue_id=3,
        born_timestamp=1_700_000_000_000,
        properties=b"UNIQ_KEY\x01K\x02WAIT\x01true\x02",
    )


def test_long_headers_are_not_kept_in_memory() -> None:
    ext = {**JAVA, "a": "g" * 10_000, "n": "b" * 10_000}
    before = len(request._heads), len(request._tails)
    assert fields_of(received(ext, binary=True)).producer_group == ext["a"]
    assert (len(request._heads), len(request._tails)) == before


# Texts that contain what the fast reader looks for, so that it must not be fooled by a value.
TRAPS = ["\0\1e\0\0\0\1" + "7", "\0\1i\0\0\0\2xx", "\0\1e\0\0\0"]
TEXT = st.one_of(st.text(max_size=12), st.sampled_from(TRAPS))
VALUES = {
    **dict.fromkeys("abcin", TEXT),
    **dict.fromkeys("deh", NUMBER),
    "f": NUMBER,
    "g": st.integers(0, 2**62).map(str),
    "j": st.integers(0, 100).map(str),
    "k": st.sampled_from(["true", "false"]),
    "l": st.integers(0, 100).map(str),
    "m": st.sampled_from(["true", "false"]),
}


@given(st.data())
def test_both_header_forms_and_any_order_read_the_same(data: st.DataObject) -> None:
    optional = data.draw(st.sets(st.sampled_from("ijklmn")))
    letters = [letter for letter in LETTERS if letter in "abcdefgh" or letter in optional]
    if data.draw(st.booleans()):
        letters = data.draw(st.permutations(letters))
    ext = {letter: data.draw(VALUES[letter]) for letter in letters}
    assert fields_of(received(ext, binary=True)) == fields_of(received(ext, binary=False))


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize(
    ("letter", "value"),
    [("e", "x"), ("f", str(2**31)), ("h", "9" * 12), ("g", "9" * 20), ("d", ""), ("j", "-9" * 9)],
)
def test_a_malformed_number_is_named(letter: str, value: str, binary: bool) -> None:
    with pytest.raises(MQError) as refused:
        fields_of(received({**JAVA, letter: value}, binary=binary))
    assert refused.value.code == ResponseCode.SYSTEM_ERROR
    assert f"<{letter}>" in refused.value.remark


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("letter", "abcdefgh")
def test_a_missing_field_is_named(letter: str, binary: bool) -> None:
    ext = {key: value for key, value in JAVA.items() if key != letter}
    with pytest.raises(MQError) as refused:
        fields_of(received(ext, binary=binary))
    assert refused.value.remark == f"the custom field <{letter}> is null"


@given(
    st.booleans(),
    st.sampled_from([0, 10, 12]),
    st.integers(0, 2**62),
    st.integers(0, 2000),
    st.integers(0, 2**62),
    st.one_of(st.just(b""), st.binary(min_size=1, max_size=300).map(lambda raw: raw.hex().encode())),
)
def test_answers_are_what_the_generic_encoder_writes(
    binary: bool, code: int, physical: int, queue: int, offset: int, unique: bytes
) -> None:
    replies = SendReplies(pack_host("10.0.0.1", 10911), "DefaultRegion", True)
    request = Command(310, {}, opaque=77, binary=binary)
    frame = replies.encode(request, code, physical, queue, offset, unique)
    (answer,) = FrameReader().feed(frame)
    assert (answer.code, answer.opaque, answer.is_response, answer.binary) == (code, 77, True, binary)
    expected = {
        "msgId": f"0A00000100002A9F{physical:016X}",
        "queueId": str(queue),
        "queueOffset": str(offset),
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
    }
    if unique:
        expected["transactionId"] = unique.decode()
    assert answer.ext == expected


@pytest.mark.parametrize("host", [pack_host("10.0.0.1", 10911), pack_host("fd00::1", 10911)])
def test_the_ids_of_a_batch_are_those_of_its_messages(host: bytes) -> None:
    replies = SendReplies(host, "DefaultRegion", True)
    for offsets in ([7], [0, 255, 1 << 32, (1 << 63) - 1]):
        assert replies.message_ids(offsets) == ",".join(replies.message_id(offset) for offset in offsets)
