"""Large batches become the records that encoding message by message gives."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from batonmq.protocol.codes import MessageSysFlag
from batonmq.protocol.message.batch import BatchItem, encode_batch
from batonmq.protocol.message.record import StoredMessage
from batonmq.store import append_many, batch_columns
from batonmq.store.append import Turn, encode_turn
from batonmq.store.consumequeue import UNIT
from batonmq.store.queues import ConsumeQueues
from batonmq.store.results import PutStatus

POSITION = 4_711
FILE_SIZE = 1 << 22
NOW = 1_700_000_000_000
TAGS = (
    b"",
    b"",
    b"TAGS\x01t\x02",
    b"TAGS\x01\xc3\xa4\x02",
    b"MYTAGS\x01t\x02",
    b"TAGS\x01a\x02TAGS\x01b\x02",
)


def items(rng: random.Random, count: int, tags: tuple[bytes, ...] = TAGS) -> list[BatchItem]:
    return [
        BatchItem(
            body=rng.randbytes(rng.choice([0, 1, 50, 300])),
            properties=b"UNIQ_KEY\x01" + rng.randbytes(16).hex().encode() + b"\x02" + rng.choice(tags),
            flag=rng.choice([0, 7, -1]),
        )
        for _ in range(count)
    ]


def message_of(body: bytes, **fields: object) -> StoredMessage:
    given = {
        "topic": "Topic",
        "queue_id": 1,
        "body": body,
        "batch": True,
        "born_timestamp": NOW - 5,
        "sys_flag": MessageSysFlag.TRANSACTION_COMMIT | MessageSysFlag.MULTI_TAGS,
        "born_host": bytes(range(8)),
        "store_host": bytes(range(8, 16)),
        "reconsume_times": 3,
        "prepared_transaction_offset": 1 << 40,
        **fields,
    }
    return StoredMessage(**given)  # type: ignore[arg-type]


def encode(messages: list[StoredMessage], folder: Path, position: int = POSITION) -> tuple[object, ...]:
    """What there is to see of a turn."""
    queues = ConsumeQueues(folder, 6_000_000, {})
    for queue_id in range(2):
        queues.ensure("Topic", queue_id).next_offset = 5_000_000_000
    turn: Turn = encode_turn(messages, queues, position, NOW, FILE_SIZE, 1 << 22)
    assert all(at // FILE_SIZE == (at + len(b"".join(parts)) - 1) // FILE_SIZE for at, parts in turn.segments)
    written: dict[int, bytes] = {}
    """First offset in a file -> what is written from there on."""
    for at, parts in turn.segments:
        run = next((begin for begin, data in written.items() if begin + len(data) == at), at)
        run = at if at % FILE_SIZE == 0 else run
        written[run] = written.get(run, b"") + b"".join(parts)
    units = [
        (queue and queue.queue_id, offset + number, unit)
        for _, queue, offset, some in turn.units
        for number, unit in enumerate(UNIT.iter_unpack(some))
    ]
    before = {queue.queue_id: offset for queue, offset in turn.before.items()}
    ends = [queue.next_offset for queue in queues]
    results = [result._replace(physical_offsets=tuple(result.physical_offsets)) for result in turn.results]
    return results, written, units, before, turn.end, ends


def compare(
    messages: list[StoredMessage], folder: Path, monkeypatch: pytest.MonkeyPatch, position: int = POSITION
) -> tuple[object, ...]:
    found = encode(messages, folder, position)
    with monkeypatch.context() as patch:
        patch.setattr(batch_columns, "LEAST_MESSAGES", 1 << 30)
        assert encode(messages, folder, position) == found
    return found


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each batch was encoded as arrays."""
    found: list[bool] = []
    make = append_many.encode_many

    def noted(*given: object) -> append_many.Records | None:
        records = make(*given)  # type: ignore[arg-type]
        found.append(records is not None)
        return records

    monkeypatch.setattr("batonmq.store.append.encode_many", noted)
    return found


@pytest.mark.parametrize("seed", range(20))
def test_the_same_bytes(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: list[bool]
) -> None:
    rng = random.Random(seed)
    some = encode_batch(items(rng, 3))
    many = [encode_batch(items(rng, rng.choice([400, 1_000]))) for _ in range(2)]
    messages = [message_of(many[0]), message_of(some), message_of(many[1], queue_id=0), message_of(many[0])]
    results, *_ = compare(messages, tmp_path, monkeypatch)
    assert {result.status for result in results} == {PutStatus.PUT_OK}  # type: ignore[attr-defined]
    assert taken[:4] == [True, False, True, True]


@pytest.mark.parametrize("tags", [b"", b"TAGS\x01t\x02", b"MYTAGS\x01t\x02"])
def test_the_same_bytes_with_properties_of_one_size(
    tags: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: list[bool]
) -> None:
    joined: list[int] = []
    join = append_many._joined_rows
    monkeypatch.setattr(append_many, "_joined_rows", lambda *given: joined.append(1) or join(*given))
    rng = random.Random(tags)
    one, other = (message_of(encode_batch(items(rng, 500, (tags,)))) for _ in range(2))
    _, _, units, *_ = compare([one, other], tmp_path, monkeypatch)
    assert taken[:2] == [True, True]
    assert len(joined) == 2
    codes = {unit[2] for _, _, unit in units}  # type: ignore[attr-defined]
    assert codes == {0 if tags != b"TAGS\x01t\x02" else ord("t")}


@pytest.mark.parametrize("size", [0, 1, 257])
@pytest.mark.parametrize("tags", [b"", b"TAGS\x01t\x02"])
def test_the_same_bytes_of_messages_of_one_size(
    size: int, tags: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: list[bool]
) -> None:
    found: list[bool] = []
    layout = append_many._layout

    def noted(*given: object) -> object:
        made = layout(*given)  # type: ignore[arg-type]
        found.append(made is not None)
        return made

    monkeypatch.setattr(append_many, "_layout", noted)
    rng = random.Random(size)
    rows = items(rng, 500, (tags,))
    for row in rows:
        row.body = rng.randbytes(size)
    same = encode_batch(rows)
    rows[300].body = rng.randbytes(size + 1)
    compare([message_of(same), message_of(encode_batch(rows)), message_of(same)], tmp_path, monkeypatch)
    assert taken[:3] == [True, True, True]
    assert found[:3] == [size > 0, False, size > 0]


def test_a_batch_over_the_end_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: list[bool]
) -> None:
    body = encode_batch(items(random.Random(1), 500))
    _, written, *_ = compare([message_of(body)], tmp_path, monkeypatch, FILE_SIZE - 10_000)
    assert len(written) == 2 and not taken[0]  # type: ignore[arg-type]


@pytest.mark.parametrize("fields", [{"born_host": bytes(20)}, {"store_host": bytes(20)}])
def test_hosts_of_ipv6(
    fields: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: list[bool]
) -> None:
    body = encode_batch(items(random.Random(1), 500))
    compare([message_of(body, **fields)], tmp_path, monkeypatch)
    assert not taken[0]


def test_properties_without_a_last_separator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: list[bool]
) -> None:
    rows = items(random.Random(1), 500)
    rows[77].properties = b"A\x01\0"
    rows[78].properties = b""
    compare([message_of(encode_batch(rows))], tmp_path, monkeypatch)
    assert not taken[0]


@pytest.mark.parametrize("seed", range(60))
def test_a_damaged_batch(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    body = bytearray(encode_batch(items(rng, 300)))
    for _ in range(rng.choice([1, 3])):
        body[rng.randrange(len(body))] = rng.choice([0, 1, 2, 127, 128, 255])
    if rng.random() < 0.5:
        # A length that is wrong is what matters, and seldom hit.
        at = 0
        for _ in range(rng.randrange(250)):
            at += max(1, int.from_bytes(body[at : at + 4], "big"))
        if at < len(body) - 20:
            body[at + rng.choice([0, 1, 2, 3, 16, 17, 18, 19])] ^= 1 << rng.randrange(8)
    if rng.random() < 0.3:
        del body[rng.randrange(len(body)) :]
    compare([message_of(bytes(body))], tmp_path, monkeypatch)


@pytest.mark.parametrize("seed", range(10))
def test_a_batch_that_is_confirmed_in_parts(seed: int, opener) -> None:  # type: ignore[no-untyped-def]
    rng = random.Random(seed)
    store = opener(confirm=True, mapped_file_size_commit_log=1 << 21)
    ends: list[tuple[int, int]] = []
    """End of each record in the log, and its queue."""
    for queue_id in (0, 1, 1, 0):
        batch = message_of(encode_batch(items(rng, 300)), queue_id=queue_id)
        single = message_of(b"x", queue_id=queue_id, batch=False)
        for result in store.put([single, batch, single]):
            begins = result.physical_offsets or [result.physical_offset]
            ends += [(end, queue_id) for end in (*begins[1:], result.end_offset)]
    confirmed = 0
    while confirmed < store.max_offset:
        confirmed += rng.choice([1, 400, 40_000])
        store.confirm_offset = confirmed
        whole = [(end, queue_id) for end, queue_id in ends if end <= store.confirm_offset]
        assert store.dispatch() == max((end for end, _ in whole), default=0)
        for queue_id in range(2):
            shown = sum(queue_id == other for _, other in whole)
            assert store.queue_bounds("Topic", queue_id).max_offset == shown
    for queue_id in range(2):
        records = opener.messages(store, queue_id, "Topic")
        assert [record.queue_offset for record in records] == list(range(604))


@pytest.mark.parametrize("count", [99, 100, 101, 500])
@pytest.mark.parametrize("sizes", [(50,), (0,), (50, 51), (10, 90)])
def test_messages_of_one_size_are_found_where_walking_finds_them(count: int, sizes: tuple[int, ...]) -> None:
    rng = random.Random(count)
    given = [
        BatchItem(body=rng.randbytes(rng.choice(sizes)), properties=b"UNIQ_KEY\x01a\x02", flag=0)
        for _ in range(count)
    ]
    data = encode_batch(given)
    edges = batch_columns._edges_of_one_size(data)
    assert (edges is not None) == (len(sizes) == 1 and count >= batch_columns.LEAST_MESSAGES)
    if edges is not None:
        assert edges.tolist() == batch_columns._starts(data)
    for cut in (data[:-1], data + b"\0", data[:15], b""):
        assert batch_columns.batch_columns(cut) is None
        short = batch_columns._edges_of_one_size(cut)
        assert short is None
