"""The body of REGISTER_BROKER, plain or compressed.

Plain it is the JSON of a `RegisterBrokerBody`. Compressed (`compressedRegister` of a broker) it is one zlib
stream of length-prefixed pieces, all integers big-endian 32 bits:

    length, DataVersion as JSON
    number of topics; for each: length, text "name readQueues writeQueues perm filterType {attributes JSON}"
    length, filter servers as a JSON array
    from release 5.0.0 on: number of static topics; for each: length, TopicQueueMappingInfo as JSON

Source: `RegisterBrokerBody` and `TopicConfig.encode` of Apache RocketMQ 5.
"""

from __future__ import annotations

import struct
import zlib

from batonmq.protocol.bodies.common import DataVersion
from batonmq.protocol.bodies.routes import TopicQueueMappingInfo
from batonmq.protocol.bodies.topics import (
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigAndMappingSerializeWrapper,
    TopicConfigSerializeWrapper,
)
from batonmq.protocol.json import BodyError, decode, decode_request, encode
from batonmq.protocol.versions import V3_0_11, V5_0_0

MAX_INFLATED_BYTES = 32 * 1024 * 1024
"""A body that inflates beyond this is refused as a bomb. It is twice the longest frame, to which brokers that
do not compress are limited."""
MAX_TOPICS = 200_000
"""Topics of one broker: more than fit into the longest frame as JSON. Reading them takes half a second."""

_ZLIB_FIRST_BYTE = 0x78
"""Of a zlib stream with the usual window; JSON never begins with it."""
_INT = struct.Struct(">i")


def decode_register_body(data: bytes | memoryview, *, compressed: bool, version: int) -> RegisterBrokerBody:
    """What a broker of this `MQVersion` ordinal registers; empty bytes are an empty table.

    Raises:
        BodyError: the bytes are not what they should be.
    """
    if not data:
        return RegisterBrokerBody()
    if version < V3_0_11:
        old = decode_request(data, TopicConfigSerializeWrapper)
        return RegisterBrokerBody(
            TopicConfigAndMappingSerializeWrapper(old.topic_config_table, old.data_version)
        )
    # Brokers of release 5 compress the body and say in the header that they did not.
    if not compressed and data[0] != _ZLIB_FIRST_BYTE:
        body = decode_request(data, RegisterBrokerBody)
        _check_number(len(body.topic_config_serialize_wrapper.topic_config_table))
        return body
    pieces = _Pieces(_inflate(data))
    data_version = decode(pieces.next(), DataVersion)
    topics = [_topic_from_text(pieces.next()) for _ in range(pieces.topics())]
    filter_servers = decode(pieces.next(), list[str])
    mappings: list[TopicQueueMappingInfo] = []
    if version >= V5_0_0:
        mappings = [decode(pieces.next(), TopicQueueMappingInfo) for _ in range(pieces.topics())]
    return RegisterBrokerBody(
        TopicConfigAndMappingSerializeWrapper(
            {topic.topic_name: topic for topic in topics},
            data_version,
            {mapping.topic: mapping for mapping in mappings if mapping.topic is not None},
        ),
        filter_servers,
    )


def encode_register_body(body: RegisterBrokerBody, *, compressed: bool) -> bytes:
    """The bytes a broker of this release sends."""
    if not compressed:
        return encode(body)
    wrapper = body.topic_config_serialize_wrapper
    out: list[bytes] = []

    def piece(data: bytes) -> None:
        out.append(_INT.pack(len(data)))
        out.append(data)

    piece(encode(wrapper.data_version))
    out.append(_INT.pack(len(wrapper.topic_config_table)))
    for topic in wrapper.topic_config_table.values():
        piece(_topic_to_text(topic))
    piece(encode(body.filter_server_list))
    out.append(_INT.pack(len(wrapper.topic_queue_mapping_info_map)))
    for mapping in wrapper.topic_queue_mapping_info_map.values():
        piece(encode(mapping))
    return zlib.compress(b"".join(out), 9)


def _inflate(data: bytes | memoryview) -> bytes:
    inflater = zlib.decompressobj()
    try:
        inflated = inflater.decompress(data, MAX_INFLATED_BYTES)
    except zlib.error as error:
        raise BodyError(f"compressed registration: {error}") from None
    if inflater.unconsumed_tail:
        raise BodyError(f"compressed registration of more than {MAX_INFLATED_BYTES} bytes")
    if not inflater.eof:
        raise BodyError("compressed registration: the stream ends early")
    return inflated


class _Pieces:
    """Reads the length-prefixed pieces in order."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def count(self) -> int:
        """A number; one that cannot be true raises."""
        if self._at + 4 > len(self._data):
            raise BodyError("compressed registration ends early")
        value: int = _INT.unpack_from(self._data, self._at)[0]
        self._at += 4
        if not 0 <= value <= len(self._data) - self._at:
            raise BodyError(f"compressed registration: {value} is not a length or count")
        return value

    def topics(self) -> int:
        """How many topics or mappings of topics follow."""
        number = self.count()
        _check_number(number)
        return number

    def next(self) -> bytes:
        """The next piece."""
        length = self.count()
        piece = self._data[self._at : self._at + length]
        self._at += length
        return piece


def _check_number(topics: int) -> None:
    if topics > MAX_TOPICS:
        raise BodyError(f"registration of {topics} topics, {MAX_TOPICS} are allowed")


def _topic_to_text(topic: TopicConfig) -> bytes:
    return (
        f"{topic.topic_name} {topic.read_queue_nums} {topic.write_queue_nums} {topic.perm}"
        f" {topic.topic_filter_type} {encode(topic.attributes).decode()}"
    ).encode()


def _topic_from_text(text: bytes) -> TopicConfig:
    # At most five splits: attributes may hold spaces (Java loses the attributes then).
    fields = text.decode(errors="replace").split(" ", 5)
    try:
        name, read_queues, write_queues, perm, filter_type = fields[:5]
        topic = TopicConfig(name, int(read_queues), int(write_queues), int(perm), filter_type)
    except ValueError:
        raise BodyError(f"compressed registration: no topic: {text[:100]!r}") from None
    if len(fields) == 6 and fields[5]:
        topic.attributes = decode(fields[5].encode(), dict[str, str])
    return topic
