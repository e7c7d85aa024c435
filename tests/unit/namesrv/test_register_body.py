"""The registration body, plain and compressed; broken ones raise."""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batonmq.protocol import register_body
from batonmq.protocol.bodies.common import DataVersion
from batonmq.protocol.bodies.routes import TopicQueueMappingInfo
from batonmq.protocol.bodies.topics import (
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigAndMappingSerializeWrapper,
    TopicConfigSerializeWrapper,
)
from batonmq.protocol.json import BodyError, encode
from batonmq.protocol.register_body import decode_register_body, encode_register_body

V5 = 513
names = st.text("abcXYZ019%|_-", min_size=1, max_size=20)
topics = st.builds(
    TopicConfig,
    topic_name=names,
    read_queue_nums=st.integers(0, 1000),
    write_queue_nums=st.integers(0, 1000),
    perm=st.integers(0, 7),
    attributes=st.dictionaries(names, st.text(max_size=10), max_size=2),
)


@given(
    st.lists(topics, max_size=5, unique_by=lambda each: each.topic_name),
    st.lists(names, max_size=3),
    st.lists(names, max_size=3, unique=True),
    st.booleans(),
)
def test_what_is_encoded_is_decoded(
    tables: list[TopicConfig], filters: list[str], mapped: list[str], compressed: bool
) -> None:
    body = RegisterBrokerBody(
        TopicConfigAndMappingSerializeWrapper(
            {each.topic_name: each for each in tables},
            DataVersion(1, 2, 3),
            {name: TopicQueueMappingInfo(name, total_queues=1, curr_id_map={0: 3}) for name in mapped},
        ),
        filters,
    )
    assert (
        decode_register_body(
            encode_register_body(body, compressed=compressed), compressed=compressed, version=V5
        )
        == body
    )


def test_brokers_of_release_5_deny_that_they_compressed() -> None:
    assert decode_register_body(GOOD, compressed=False, version=V5) == GOOD_BODY


def test_releases_before_5_sent_no_mappings() -> None:
    body = RegisterBrokerBody(TopicConfigAndMappingSerializeWrapper({"t": TopicConfig("t")}))
    data = zlib.decompress(encode_register_body(body, compressed=True))
    assert decode_register_body(zlib.compress(data[:-4]), compressed=True, version=400) == body


def test_releases_before_3_0_11_sent_the_topics_alone() -> None:
    old = encode(TopicConfigSerializeWrapper({"t": TopicConfig("t")}, DataVersion(1, 2)))
    decoded = decode_register_body(old, compressed=False, version=10).topic_config_serialize_wrapper
    assert decoded.topic_config_table == {"t": TopicConfig("t")} and decoded.data_version == DataVersion(1, 2)


def test_no_body_is_an_empty_table_of_version_zero() -> None:
    wrapper = decode_register_body(b"", compressed=True, version=V5).topic_config_serialize_wrapper
    assert wrapper.data_version == DataVersion(0, 0, 0) and not wrapper.topic_config_table


GOOD_BODY = RegisterBrokerBody(TopicConfigAndMappingSerializeWrapper({"t": TopicConfig("t")}))
GOOD = encode_register_body(GOOD_BODY, compressed=True)


@pytest.mark.parametrize(
    ("data", "compressed"),
    [
        (b"garbage", True),
        (b"garbage", False),
        (b"\xff\xfe", False),
        (GOOD[:-3], True),
        (zlib.compress(zlib.decompress(GOOD)[:-2]), True),
        (zlib.compress(b"\x7f\xff\xff\xff{}"), True),
        (zlib.compress(b"\xff\xff\xff\xff{}"), True),
        (zlib.compress(b"\0\0\0\2{}\0\0\0\1\0\0\0\5t x y"), True),
    ],
)
def test_a_broken_body_raises(data: bytes, compressed: bool) -> None:
    with pytest.raises(BodyError):
        decode_register_body(data, compressed=compressed, version=V5)


def test_a_bomb_is_not_inflated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(register_body, "MAX_INFLATED_BYTES", 1000)
    with pytest.raises(BodyError, match="more than 1000"):
        decode_register_body(zlib.compress(bytes(100_000)), compressed=True, version=V5)


@pytest.mark.parametrize("compressed", [True, False])
def test_too_many_topics_are_refused(compressed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(register_body, "MAX_TOPICS", 1)
    decode_register_body(GOOD, compressed=True, version=V5)
    table = {name: TopicConfig(name) for name in ("a", "b")}
    two = RegisterBrokerBody(TopicConfigAndMappingSerializeWrapper(table))
    with pytest.raises(BodyError, match="2 topics, 1 are allowed"):
        decode_register_body(
            encode_register_body(two, compressed=compressed), compressed=compressed, version=V5
        )


def test_what_a_java_broker_of_5_5_sent() -> None:
    file = Path(__file__).parents[2] / "data" / "namesrv" / "register-compressed-java-5.5.0.bin"
    wrapper = decode_register_body(
        file.read_bytes(), compressed=False, version=V5
    ).topic_config_serialize_wrapper
    assert len(wrapper.topic_config_table) == 14
    assert wrapper.data_version == DataVersion(timestamp=1795262372003, counter=0, state_version=0)
    template = wrapper.topic_config_table["TBW102"]
    assert (template.read_queue_nums, template.write_queue_nums, template.perm) == (8, 8, 7)
