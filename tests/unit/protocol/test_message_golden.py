"""Byte for byte what RocketMQ 5.5.0's own classes made: see ``tests/interop/java/MessageBytes.java``."""

from __future__ import annotations

from pathlib import Path

import pytest

from batonmq.protocol.compression import CompressionType, decompress
from batonmq.protocol.java_hash import java_hash
from batonmq.protocol.message.batch import decode_batch, encode_batch, split_batch
from batonmq.protocol.message.ids import decode_message_id, encode_message_id, pack_host
from batonmq.protocol.message.properties import decode_properties, encode_properties
from batonmq.protocol.message.record import StoredMessage, decode_record, encode_record
from batonmq.store.scan import tags_code

DATA = Path(__file__).parents[2] / "data/message"
HOSTS = {"4": ("10.1.2.3", 10911), "6": ("2001:db8::1", 54321)}


@pytest.mark.parametrize(
    ("version", "hosts"), [(1, "44"), (1, "46"), (1, "64"), (1, "66"), (2, "44"), (2, "66")]
)
def test_records(version, hosts):
    path = DATA / f"record-v{version}-{hosts}.bin"
    properties = {"KEYS": "k1 k2", "TAGS": "TagÄ", "UNIQ_KEY": "0A01"}
    message = StoredMessage(
        topic="TopicTest" if version == 1 else "x" * 200,
        queue_id=3,
        body="Hällo RocketMQ".encode(),
        properties=encode_properties(properties),
        flag=-7,
        born_timestamp=1700000000123,
        born_host=pack_host(*HOSTS[hosts[0]]),
        store_host=pack_host(*HOSTS[hosts[1]]),
        reconsume_times=2,
        prepared_transaction_offset=99,
    )
    data = path.read_bytes()
    ours = encode_record(
        message, queue_offset=1234567890123, physical_offset=9876543210, store_timestamp=1700000000456
    )
    assert ours == data
    back = decode_record(data, check_crc=True)
    assert (back.properties, back.keys, back.message_id) == (properties, ["k1", "k2"], "0A01")
    assert (back.born_address, back.store_address) == (HOSTS[hosts[0]], HOSTS[hosts[1]])


def test_wire_batch_and_its_records():
    wire = (DATA / "batch-wire.bin").read_bytes()
    items = list(decode_batch(wire))
    assert [(item.body, item.flag) for item in items] == [(b"body %d" % n, n - 1) for n in range(3)]
    for number, item in enumerate(items):
        assert decode_properties(item.properties) == {"name": f"välue{number}", "WAIT": "true"}
    assert encode_batch(items) == wire
    batch = StoredMessage(
        topic="TopicTest",
        queue_id=3,
        body=wire,
        batch=True,
        born_timestamp=1700000000123,
        born_host=pack_host(*HOSTS["4"]),
        store_host=pack_host(*HOSTS["4"]),
        reconsume_times=2,
        prepared_transaction_offset=99,
    )
    stored, at = b"", 0
    for number, message in enumerate(split_batch(batch)):
        stored += encode_record(
            message, queue_offset=5 + number, physical_offset=1000 + at, store_timestamp=1700000000456
        )
        at = len(stored)
    java = (DATA / "batch-stored.bin").read_bytes()
    assert stored == java


@pytest.mark.parametrize("kind", CompressionType)
def test_compressed_bodies(kind):
    packed = (DATA / f"body-{kind.name.lower()}.bin").read_bytes()
    assert decompress(packed, kind.sys_flag) == b"some text that repeats itself " * 50


def test_ids_and_hashes():
    first, second, *hashes = (DATA / "facts.txt").read_text(encoding="utf-8").splitlines()
    assert encode_message_id(pack_host(*HOSTS["4"]), 9876543210) == first
    assert encode_message_id(pack_host(*HOSTS["6"]), 9876543210) == second
    assert decode_message_id(first) == (*HOSTS["4"], 9876543210)
    assert decode_message_id(second) == (*HOSTS["6"], 9876543210)
    assert len(hashes) == 4
    for line in hashes:
        text, value = line.rsplit(" ", 1)
        assert java_hash(text) == int(value)
        assert tags_code(encode_properties({"TAGS": text})) == int(value)
