"""Whose message a stored record is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from batonmq.broker.auth.record_topics import half_topic_at, topic_at
from batonmq.common.clock import ManualClock
from batonmq.protocol.message.layout import BODY_POSITION_V4
from batonmq.protocol.message.properties import encode_properties
from batonmq.protocol.message.record import StoredMessage, encode_record
from batonmq.protocol.names import SCHEDULE_TOPIC, TRANS_HALF_TOPIC
from batonmq.store.config import StoreConfig
from batonmq.store.store import MessageStore


@pytest.fixture(params=["confirmed", "unconfirmed"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MessageStore]:
    config = StoreConfig(store_path_root_dir=str(tmp_path), mapped_file_size_commit_log=8192)
    wait = request.param == "unconfirmed"
    one = MessageStore.open(config, ManualClock(), wait_for_confirm=wait, disk_usage=lambda _: 0.1)
    yield one
    one.abandon()


def put(store: MessageStore, topic: str, body: bytes = b"", **properties: str) -> int:
    """The commit log offset."""
    message = StoredMessage(
        topic=topic, queue_id=0, body=body, properties=encode_properties(properties), born_timestamp=1
    )
    (result,) = store.put([message])
    return result.physical_offset


@pytest.mark.parametrize(
    ("topic", "properties", "expected"),
    [
        ("T", {}, "T"),
        ("T", {"REAL_TOPIC": "other", "RETRY_TOPIC": "other"}, "T"),
        (SCHEDULE_TOPIC, {"REAL_TOPIC": "T"}, "T"),
        (SCHEDULE_TOPIC, {"REAL_TOPIC": "%RETRY%g", "RETRY_TOPIC": "T"}, "T"),
        (TRANS_HALF_TOPIC, {"REAL_TOPIC": "T"}, "T"),
        ("%RETRY%g", {"RETRY_TOPIC": "T"}, "T"),
        ("%RETRY%g", {}, "%RETRY%g"),
        ("%RETRY%g_x_T_y", {"ORIGIN_GROUP": "g_x"}, "T_y"),
        ("%RETRY%g+T", {"ORIGIN_GROUP": "g"}, "T"),
        ("%RETRY%g_T", {"ORIGIN_GROUP": "h"}, "%RETRY%g_T"),
        ("%RETRY%g_", {"ORIGIN_GROUP": "g"}, "%RETRY%g_"),
        ("%RETRY%_T", {"ORIGIN_GROUP": ""}, "%RETRY%_T"),
        ("%DLQ%g", {"RETRY_TOPIC": "T"}, "%DLQ%g"),
    ],
)
def test_a_message_is_one_of_the_topic_that_it_was_sent_to(
    store: MessageStore, topic: str, properties: dict[str, str], expected: str
) -> None:
    offset = put(store, topic, **properties)
    confirmed = store.confirm_offset > offset
    assert topic_at(store, offset) == (expected if confirmed else None)
    for elsewhere in (offset + 1, 1 << 40, -1):
        assert topic_at(store, elsewhere) is None


def test_a_half_message_is_one_of_its_real_topic_confirmed_or_not(store: MessageStore) -> None:
    offsets = [put(store, TRANS_HALF_TOPIC, bytes(3000), REAL_TOPIC=f"T{n}") for n in range(6)]
    assert [half_topic_at(store, offset) for offset in offsets] == [f"T{n}" for n in range(6)]
    plain = put(store, "T", REAL_TOPIC="T")
    for elsewhere in (plain, offsets[1] + 1, 1 << 40, -1):
        assert half_topic_at(store, elsewhere) is None


def test_a_record_inside_a_body_is_not_a_half_message(store: MessageStore) -> None:
    put(store, TRANS_HALF_TOPIC, REAL_TOPIC="T")
    inside = store.max_offset + BODY_POSITION_V4
    properties = encode_properties({"REAL_TOPIC": "T"})
    forged = StoredMessage(
        topic=TRANS_HALF_TOPIC, queue_id=0, body=b"", properties=properties, born_timestamp=1
    )
    for queue_offset in (0, 1):
        body = encode_record(forged, queue_offset=queue_offset, physical_offset=inside, store_timestamp=1)
        put(store, "T", body)
        assert half_topic_at(store, inside) is None
        inside = store.max_offset + BODY_POSITION_V4
