"""Rows to wire batches, in bulk: Arrow joins the parts of all messages, and a batch is a slice of the result.

Nothing here runs once a row, but for messages that cannot travel in a batch (delayed ones, and such as are
larger than a batch). The layout is that of `protocol.message.batch`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from batonmq.client.message import SYSTEM_PREFIXES, SYSTEM_PROPERTIES
from batonmq.protocol.message.ids import UniqueIds
from batonmq.protocol.message.properties import (
    MAX_PROPERTIES_BYTES,
    PROPERTY_DELAY_LEVEL,
    PROPERTY_KEYS,
    PROPERTY_PRIORITY,
    PROPERTY_SHARDING_KEY,
    PROPERTY_TAGS,
    PROPERTY_TIMER_DELIVER_MS,
    PROPERTY_UNIQUE_KEY,
    RESERVED_PROPERTIES,
    decode_properties,
)
from batonmq.protocol.names import RETRY_PREFIX, topic_error
from batonmq.spark.options import ClearError, OptionError
from batonmq.store.dtypes import BATCH_HEAD
from batonmq.store.index import key_hashes

SINK_COLUMNS: Final = {
    "value": ("binary", "string"),
    "topic": ("string",),
    "key": ("string", "binary"),
    "keys": ("string",),
    "tags": ("string",),
    "shardingKey": ("string",),
    "broker": ("string",),
    "queueId": ("int",),
    "properties": ("map<string,string>",),
    "deliverAt": ("timestamp",),
    "delayLevel": ("int",),
}
"""Every column of the sink: name -> its Spark types."""
MARK_PROPERTY: Final = "__SPARK_BATCH"
"""Property of a half message that names its batch (`exactly_once.core.Mark`)."""
MOST_BYTES: Final = 64 << 20
"""Rows that are encoded at a time; more are cut."""
_LENGTH_SIZE = 2
_NO_QUEUE = -1


class RowError(ClearError, ValueError):
    """A row that is not a message; the text says which column is wrong."""


@dataclass(frozen=True, slots=True)
class QueueChoice:
    """Where a message goes: a queue that the row names, or one that its key decides, or any."""

    broker: str | None = None
    queue_id: int | None = None
    key_hash: int | None = None

    @property
    def free(self) -> bool:
        """Whether any queue will do."""
        return self.queue_id is None and self.key_hash is None


@dataclass(frozen=True, slots=True)
class Encoded:
    """Messages of one topic for one queue, as the body of one send."""

    topic: str
    queue: Any
    """What `Queues.of` returned for them; None: any queue."""
    body: memoryview
    count: int


@dataclass(frozen=True, slots=True)
class Single:
    """A message that travels alone."""

    topic: str
    queue: Any
    body: bytes
    properties: dict[str, str]
    """All properties, the system's too."""


class Queues:
    """Says to which queue a choice leads: the interface that `Encoder` asks."""

    def of(self, topic: str, choice: QueueChoice) -> Any:
        """The queue; None for a free choice. Raises `RowError` for a queue that does not exist."""
        raise NotImplementedError

    def count(self, topic: str) -> int:
        """How many queues the keys of this topic are spread over."""
        raise NotImplementedError


DELAYING: Final = ("deliverAt", "delayLevel")


def check_columns(
    names_and_types: Sequence[tuple[str, str]], *, topic: str | None, exactly_once: bool = False
) -> None:
    """Whether the sink can write rows of this schema. Raises `OptionError` that says what to do."""
    names = [name for name, _ in names_and_types]
    for name, kind in names_and_types:
        if name not in SINK_COLUMNS:
            raise OptionError(
                f"column {name!r} cannot be written; select only some of: {', '.join(SINK_COLUMNS)}"
            )
        if kind not in SINK_COLUMNS[name]:
            wanted = " or ".join(SINK_COLUMNS[name])
            raise OptionError(f"column {name!r} must be of type {wanted}, not {kind}; cast it")
    if exactly_once and (delaying := [name for name in names if name in DELAYING]):
        raise OptionError(f"column {delaying[0]!r}: exactlyOnce cannot delay rows; use atLeastOnce")
    if "broker" in names and "queueId" not in names:
        raise OptionError("column 'broker' chooses a queue only with column 'queueId'; add that or drop this")
    if "value" not in names:
        raise OptionError("there is no column 'value': it becomes the body of the message")
    if topic is None and "topic" not in names:
        raise OptionError("name the topic: by the option 'topic', or by a column 'topic'")


class Encoder:
    """Encodes the rows of one task."""

    def __init__(
        self,
        ids: UniqueIds,
        queues: Queues,
        *,
        topic: str | None = None,
        include_headers: bool = True,
        max_batch_bytes: int = 512 << 10,
        max_batch_rows: int = 2_000,
    ) -> None:
        self._ids, self._queues = ids, queues
        self._topic = topic
        self._include_headers = include_headers
        self._max_bytes, self._max_rows = max_batch_bytes, max_batch_rows
        self._last_id_ms = 0

    def encode(self, rows: pa.RecordBatch, now_ms: int) -> Iterator[Encoded | Single]:
        """The messages of these rows; those of one queue in the order of the rows. Raises `RowError`."""
        if rows.num_rows == 0:
            return
        if rows.nbytes > MOST_BYTES and rows.num_rows > 1:
            half = rows.num_rows // 2
            yield from self.encode(rows.slice(0, half), now_ms)
            yield from self.encode(rows.slice(half), now_ms)
            return
        columns = {name: rows.column(i) for i, name in enumerate(rows.schema.names)}
        bodies = _binary(columns["value"])
        sizes = _lengths(bodies)
        if bodies.null_count or not sizes.all():
            raise RowError(
                "column 'value' is null or empty in a row: a message needs a body; filter such rows"
            )
        topics, topic_codes = self._topics(columns, rows.num_rows)
        properties = self._properties(columns, rows.num_rows, now_ms)
        property_sizes = _lengths(properties)
        if (property_sizes > MAX_PROPERTIES_BYTES).any():
            raise RowError(
                f"keys, tags and properties of a row take {int(property_sizes.max())} bytes; at most "
                f"{MAX_PROPERTIES_BYTES} are allowed"
            )
        targets, groups = self._targets(columns, topics, topic_codes)
        heads = np.zeros(rows.num_rows, BATCH_HEAD)
        heads["body_size"] = sizes
        heads["size"] = BATCH_HEAD.itemsize + sizes + _LENGTH_SIZE + property_sizes
        alone = self._alone(columns, topics, topic_codes, heads["size"])
        messages = pc.binary_join_element_wise(
            _fixed(heads), bodies, _fixed(property_sizes.astype(">u2")), properties, b""
        )
        order = np.argsort(groups, kind="stable")
        for work in self._batches(messages, order, alone[order], groups[order], targets):
            if isinstance(work, Encoded):
                yield work
                continue
            i = int(order[work])
            topic, queue = targets[groups[i]]
            yield Single(topic, queue, bodies[i].as_py(), decode_properties(properties[i].as_py()))

    def _batches(
        self, messages: pa.Array, order: Any, alone: Any, groups: Any, targets: list[tuple[str, Any]]
    ) -> Iterator[Encoded | int]:
        """The messages in this order as batches; the place of one that travels alone."""
        plain = bool((order == np.arange(len(order))).all())
        ordered = messages if plain else messages.take(pa.array(order))
        edges = np.frombuffer(ordered.buffers()[1], np.int32)[
            ordered.offset : ordered.offset + len(ordered) + 1
        ]
        data = memoryview(ordered.buffers()[2])
        apart = np.flatnonzero(alone)
        changes = np.flatnonzero(np.diff(groups)) + 1
        begin = 0
        for end in np.unique(np.concatenate([changes, apart, apart + 1, [len(order)]])).tolist():
            if begin == end:
                continue
            if alone[begin]:
                yield begin
                begin = end
                continue
            topic, queue = targets[groups[begin]]
            while begin < end:
                stop = int(np.searchsorted(edges, edges[begin] + self._max_bytes, side="right")) - 1
                stop = min(max(stop, begin + 1), begin + self._max_rows, end)
                yield Encoded(topic, queue, data[edges[begin] : edges[stop]], stop - begin)
                begin = stop

    def _topics(self, columns: dict[str, pa.Array], count: int) -> tuple[list[str], Any]:
        """The distinct topics, and which of them each row has."""
        if self._topic is not None:
            return [self._topic], np.zeros(count, np.int64)
        column = columns["topic"]
        if column.null_count:
            raise RowError("column 'topic' is null in a row; give the option 'topic', or fill the column")
        encoded = column.dictionary_encode()
        topics = encoded.dictionary.to_pylist()
        for topic in topics:
            if (problem := topic_error(topic)) is not None:
                raise RowError(f"column 'topic': {problem}")
        return topics, np.asarray(encoded.indices).astype(np.int64)

    def _targets(
        self, columns: dict[str, pa.Array], topics: list[str], topic_codes: Any
    ) -> tuple[list[tuple[str, Any]], Any]:
        """The distinct (topic, queue) pairs, and which of them each row has."""
        count = len(topic_codes)
        numbers = np.full(count, _NO_QUEUE, np.int64)
        brokers = np.zeros(count, np.int64)
        broker_names: list[str | None] = [None]
        key = columns.get("shardingKey")
        for column in (columns.get("key"), key):  # a sharding key counts before a key
            if column is not None and column.null_count < count:
                hashes, held = _hashes(column)
                spread = np.array([max(1, self._queues.count(topic)) for topic in topics], np.int64)
                numbers = np.where(held, hashes % spread[topic_codes], numbers)
        named = np.zeros(count, bool)
        if "queueId" in columns:
            column = columns["queueId"]
            named = np.asarray(column.is_valid())
            numbers = np.where(named, np.asarray(column.fill_null(0)).astype(np.int64), numbers)
            if (numbers[named] < 0).any():
                raise RowError("column 'queueId' is negative in a row; null lets the sink choose a queue")
            if "broker" in columns:
                encoded = columns["broker"].dictionary_encode()
                broker_names += encoded.dictionary.to_pylist()
                brokers = np.where(named, np.asarray(encoded.indices.fill_null(-1)).astype(np.int64) + 1, 0)
        rows, groups = _distinct(topic_codes, brokers, named, numbers - _NO_QUEUE)
        targets = []
        for row in rows.tolist():
            topic, value = topics[topic_codes[row]], int(numbers[row])
            if named[row]:
                choice = QueueChoice(broker_names[brokers[row]], value)
            else:
                choice = QueueChoice(key_hash=None if value == _NO_QUEUE else value)
            targets.append((topic, self._queues.of(topic, choice)))
        return targets, groups

    def _alone(self, columns: dict[str, pa.Array], topics: list[str], topic_codes: Any, sizes: Any) -> Any:
        """Rows that brokers refuse in a batch (delayed ones, those of retry topics), or too large for one."""
        alone = sizes > self._max_bytes
        if "delayLevel" in columns:
            alone |= np.asarray(columns["delayLevel"].fill_null(0)) > 0
        if "deliverAt" in columns:
            alone |= np.asarray(columns["deliverAt"].is_valid())
        retries = np.array([topic.startswith(RETRY_PREFIX) for topic in topics], bool)
        return np.asarray(alone) | retries[topic_codes]

    # -- properties

    def _properties(self, columns: dict[str, pa.Array], count: int, now_ms: int) -> pa.Array:
        """The encoded properties of each row, in the order of `Message.encoded_properties`."""
        parts: list[Any] = []
        keys = _keys(columns)
        if keys is not None:
            parts.append(_property(PROPERTY_KEYS, keys))
        parts += [
            f"{PROPERTY_UNIQUE_KEY}\x01".encode(),
            self._unique_ids(count, now_ms),
            b"\x02WAIT\x01true\x02",
        ]
        for name, column in ((PROPERTY_TAGS, "tags"), (PROPERTY_SHARDING_KEY, "shardingKey")):
            if column in columns:
                values = _clean(columns[column], column)
                if name == PROPERTY_TAGS:
                    values = pc.utf8_trim_whitespace(values)
                parts.append(_property(name, values))
        if "delayLevel" in columns:
            levels = columns["delayLevel"]
            if (np.asarray(levels.fill_null(0)) < 0).any():
                raise RowError("column 'delayLevel' is negative in a row; 0 or null is at once")
            delayed = pc.if_else(pc.greater(levels, 0), levels, None)
            parts.append(_property(PROPERTY_DELAY_LEVEL, delayed.cast(pa.string())))
        if "deliverAt" in columns:
            # Spark gives times in the session's zone, where an hour of autumn is ambiguous.
            due = pc.floor_temporal(columns["deliverAt"].cast(pa.timestamp("us", "UTC")), unit="millisecond")
            due = due.cast(pa.timestamp("ms", "UTC"))
            parts.append(_property(PROPERTY_TIMER_DELIVER_MS, due.cast(pa.int64()).cast(pa.string())))
        if self._include_headers and "properties" in columns:
            parts.append(_user_properties(columns["properties"]))
        parts = [part.cast(pa.binary()) if isinstance(part, pa.Array) else part for part in parts]
        return pc.binary_join_element_wise(*parts, b"")

    def _unique_ids(self, count: int, now_ms: int) -> pa.Array:
        """New unique ids, in Java's layout: the last 6 bytes are a time in ms and a counter."""
        # Ids of one task differ because each call begins at a later millisecond than the one before ended.
        now_ms = max(now_ms, self._last_id_ms + 1)
        self._last_id_ms = now_ms + (count >> 16)
        first = self._ids.next(now_ms)
        prefix, since = first[:-12].encode(), int(first[-12:-4], 16)
        tails = np.zeros(count, np.dtype([("since", ">u4"), ("counter", ">u2")]))
        numbers = np.arange(count)
        tails["since"] = since + (numbers >> 16)
        tails["counter"] = numbers & 0xFFFF
        text = tails.tobytes().hex().upper().encode()
        fixed = pa.Array.from_buffers(pa.binary(12), count, [None, pa.py_buffer(text)]).cast(pa.binary())
        return pc.binary_join_element_wise(prefix, fixed, b"")


def _binary(column: pa.Array) -> pa.Array:
    return column.cast(pa.binary())


def _lengths(column: pa.Array) -> Any:
    return np.asarray(pc.binary_length(column).fill_null(0)).astype(np.int64)


def _fixed(values: Any) -> pa.Array:
    """A numpy array's items as binary."""
    kind = pa.binary(values.dtype.itemsize)
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)]).cast(pa.binary())


def _clean(column: pa.Array, name: str) -> pa.Array:
    """A text column; raises `RowError` if a value holds a separator of properties."""
    try:
        text = column.cast(pa.string())
    except pa.ArrowInvalid:
        raise RowError(f"column {name!r} is not UTF-8 text in a row") from None
    if pc.any(pc.match_substring_regex(text, "[\x01\x02]")).as_py():
        raise RowError(
            f"column {name!r} holds \\x01 or \\x02 in a row; RocketMQ separates properties by them"
        )
    return text


def _property(name: str, values: pa.Array) -> pa.Array:
    """``name \\x01 value \\x02``, and nothing for null or an empty value."""
    empty = pc.equal(pc.binary_length(values), 0)
    values = pc.if_else(empty, None, values)
    return pc.binary_join_element_wise(f"{name}\x01", values, "\x02", "").fill_null("")


def _keys(columns: dict[str, pa.Array]) -> pa.Array | None:
    """The index keys: `key`, which may have no blanks, and `keys`, separated by blanks."""
    found = []
    for name in ("key", "keys"):
        if name in columns:
            found.append(_clean(columns[name], name))
    if not found:
        return None
    if "key" in columns and pc.any(pc.match_substring_regex(found[0], r"\s")).as_py():
        raise RowError(
            "column 'key' has a blank in a row: use 'keys' for several, or shardingKey for any text"
        )
    if len(found) == 1:
        return found[0]
    both = pc.binary_join_element_wise(*found, " ", null_handling="skip")
    return pc.if_else(pc.equal(pc.binary_length(both), 0), None, both)


def _user_properties(column: pa.Array) -> pa.Array:
    """The application's properties. Names that belong to RocketMQ or to this sink are left out, and so are
    empty values: rows that come from the source have both."""
    names, values = _clean(column.keys, "properties"), _clean(column.items, "properties")
    ours = (SYSTEM_PROPERTIES - {PROPERTY_PRIORITY}) | {MARK_PROPERTY}
    reserved = pa.array(sorted(RESERVED_PROPERTIES | ours), pa.string())
    left_out = pc.is_in(names, value_set=reserved)
    for prefix in SYSTEM_PREFIXES:
        left_out = pc.or_(left_out, pc.starts_with(names, prefix))
    empty = pc.or_(pc.equal(pc.binary_length(names), 0), pc.equal(pc.binary_length(values).fill_null(0), 0))
    pairs = pc.binary_join_element_wise(names, "\x01", values.fill_null(""), "\x02", "")
    pairs = pc.if_else(pc.or_(left_out, empty), "", pairs)
    # The offsets of a sliced map begin where the slice does; its keys are those of the whole.
    lists = pa.ListArray.from_arrays(column.offsets, pairs)
    return pc.if_else(column.is_valid(), pc.binary_join(lists, ""), "")


def _distinct(*columns: Any) -> tuple[Any, Any]:
    """A row of each distinct tuple of these columns' values, which are not negative and below 2^32; and which
    of the tuples each row has."""
    codes = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        if column[0] == column[-1] and (column == column[0]).all():
            continue  # nearly always all of them; sorting takes ten times as long
        # Codes are below 2^31 here, for there are fewer rows.
        codes = codes * (int(column.max()) + 1) + column
        codes = np.unique(codes, return_inverse=True)[1]
    rows = np.zeros(int(codes.max()) + 1, np.int64)
    rows[codes] = np.arange(len(codes))
    return rows, codes


def _hashes(column: pa.Array) -> tuple[Any, Any]:
    """Java's hash of each value, not negative, and which rows have one: as `SelectMessageQueueByHash`."""
    encoded = _clean(column, "key").dictionary_encode()
    held = np.asarray(encoded.is_valid())
    names = encoded.dictionary.to_pylist()
    if not names:
        return np.zeros(len(column), np.int64), held
    return key_hashes(names)[np.asarray(encoded.indices.fill_null(0))], held
