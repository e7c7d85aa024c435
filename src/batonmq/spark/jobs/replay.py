"""replay: sends the messages of a time window to another topic, at a chosen speed, exactly once across
restarts.

The first run stores the offsets to read in the state directory. The window is split into chunks. Each chunk
is a batch job with an id (`deliveryGuarantee=exactlyOnce`), so a second run continues with the first chunk
that is not done.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from batonmq.common.files import replace_file
from batonmq.protocol.message.properties import PROPERTY_SHARDING_KEY
from batonmq.spark.access import OPEN, Access
from batonmq.spark.jobs.dlq import origin_topic
from batonmq.spark.jobs.state import WINDOW, check_job, held
from batonmq.spark.options import ClearError, parse_read_options
from batonmq.spark.plan import Offsets, backlog, limit
from batonmq.spark.sink.exactly_once.core import BATCH_EPOCH
from batonmq.spark.sink.exactly_once.ledger import Ledger, LedgerError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COLUMNS = (
    "value binary, topic string, broker string, queueId int, queueOffset bigint, timestamp timestamp, "
    "bornTimestamp timestamp, keys string, tags string, msgId string, reconsumeTimes int, "
    "properties map<string,string>"
)
"""Columns that `where` can use."""
CHUNK_ROWS = 500_000
CHUNK_S = 5.0
"""Approximate duration of a chunk when the speed is limited."""


class ReplayError(ClearError):
    """The replay cannot continue; the text has the reason."""


@dataclass(frozen=True)
class Window:
    """The replayed window: offsets by queue, and the number of messages in a chunk."""

    source: str
    """The topic, and the other parameters that must be the same in a second run."""
    start: Offsets
    end: Offsets
    chunk_rows: int
    changes: tuple[tuple[int, int], ...] = ()
    """Numbers that no chunk has, and how many messages a chunk has from there on: a later run chose another
    speed."""

    @property
    def rows(self) -> int:
        return backlog(self.start, self.end)

    def numbered(self) -> Iterator[tuple[int, Offsets, Offsets]]:
        """Number, start and end of each chunk, in order."""
        at = {topic: dict(queues) for topic, queues in self.start.items()}
        number, rows, changes = 0, self.chunk_rows, dict(self.changes)
        while backlog(at, self.end):
            while number in changes:
                rows = changes[number]
                number += 1
            until = limit(at, self.end, rows)
            yield number, at, until
            at, number = until, number + 1

    def chunks(self) -> Iterator[tuple[Offsets, Offsets]]:
        """Start and end of each chunk, in order."""
        return ((start, end) for _, start, end in self.numbered())

    def to_json(self) -> bytes:
        fields = {
            "source": self.source,
            "start": self.start,
            "end": self.end,
            "chunkRows": self.chunk_rows,
            "changes": self.changes,
        }
        return json.dumps(fields, indent=1).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Window:
        """Raises `ValueError`, `KeyError`, `TypeError`."""
        fields = json.loads(data)
        source, start, end, chunk_rows = (fields[name] for name in ("source", "start", "end", "chunkRows"))
        changes = tuple((int(number), int(rows)) for number, rows in fields.get("changes", ()))
        return cls(source, start, end, int(chunk_rows), changes)


@dataclass(frozen=True)
class Replay:
    """The parameters of one replay."""

    namesrv: str
    topic: str
    target: str | None
    """Topic to write; None: the topic that each message was first sent to (for dead letters)."""
    state: Path
    """Directory that records the progress."""
    target_namesrv: str | None = None
    """None: the same cluster."""
    from_ms: int | None = None
    """Store time of the first message; None: the oldest."""
    until_ms: int | None = None
    """Store time that ends the window; None: the time of the first run."""
    where: str | None = None
    """Spark SQL over `COLUMNS`."""
    rate: int | None = None
    """Messages read a second; None: as fast as possible."""
    keep_queues: bool = False
    """Whether each message goes to the queue with the number of its source queue."""
    access: Access = OPEN
    target_access: Access = OPEN
    """Of the cluster of `target_namesrv`; without that, `access` counts."""

    @property
    def identity(self) -> str:
        """Parameters that must be the same in a second run with the same state directory."""
        places = (self.namesrv, self.topic, self.target_namesrv or self.namesrv, self.target)
        return json.dumps([*places, self.from_ms, self.until_ms, self.where, self.keep_queues])


@dataclass(frozen=True, slots=True)
class Replayed:
    """Result of one run."""

    rows: int
    """Messages in the window, for all runs together."""
    chunks: int
    skipped: int
    """Chunks that an earlier run has written."""
    seconds: float


def window_of(replay: Replay) -> Window:
    """The window of the first run, or a new one, which is stored unless it is empty. Raises as `look`."""
    window = look(replay)
    _keep(replay, window)
    return window


def look(replay: Replay) -> Window:
    """The window of the first run, or a new one, which is not stored. Raises `ReplayError`, `InUse`,
    `OptionError`, `NetError`, `DataLoss`."""
    check_job(replay.state, WINDOW)
    path = _window_path(replay)
    if path.exists():
        try:
            window = Window.from_json(path.read_bytes())
        except (ValueError, KeyError, TypeError) as error:
            raise ReplayError(f"{path} is damaged ({error}); delete {replay.state} to begin again") from None
        if window.source != replay.identity:
            raise ReplayError(
                f"{replay.state} belongs to another replay: {window.source}; give each replay its directory"
            )
        return window
    start, end = _offsets(replay)
    return Window(replay.identity, start, end, _chunk_rows(replay))


def _chunk_rows(replay: Replay) -> int:
    return CHUNK_ROWS if replay.rate is None else min(CHUNK_ROWS, max(1, round(replay.rate * CHUNK_S)))


def _keep(replay: Replay, window: Window) -> None:
    """Store a new window."""
    if window.rows and not _window_path(replay).exists():
        _store(replay, window)


def _store(replay: Replay, window: Window) -> None:
    path = _window_path(replay)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, window.to_json())


def _ledger(replay: Replay, number: int) -> Ledger:
    return Ledger(replay.state / f"chunk-{number}")


def _recut(replay: Replay, window: Window) -> Window:
    """The window with chunks for the speed of this run, from the first one on that is not decided.

    A chunk that a killed run has begun may be decided at any moment: Spark's own process can outlive its
    driver for a while. So its number is given up: the new window is stored first, then it is decided that
    nothing is in that chunk, and if that comes too late, the change is taken back."""
    if not _window_path(replay).exists():
        return window
    numbers = [number for number, *_ in window.numbered()]
    if window.changes and not any(
        _is_decided(replay, number) for number in numbers if _after(window, number)
    ):
        window = _given_up(replay, window)  # a run may have been killed before that
    wanted = _chunk_rows(replay)
    while True:
        chunks = list(window.numbered())
        last = max((at for at, (number, *_) in enumerate(chunks) if _is_decided(replay, number)), default=-1)
        if last + 1 == len(chunks):
            return window
        number, rows = chunks[last + 1][0], dict(window.changes)
        now = [window.chunk_rows, *(rows[at] for at in sorted(rows) if at < number)][-1]
        if now == wanted:
            return window
        changed = replace(window, changes=(*window.changes, (number, wanted)))
        _store(replay, changed)
        window = _given_up(replay, changed)


def _after(window: Window, number: int) -> bool:
    """Whether a chunk is one of those that the last change made."""
    return number > window.changes[-1][0]


def _is_decided(replay: Replay, number: int) -> bool:
    ledger = _ledger(replay, number)
    return ledger.is_done(BATCH_EPOCH) or ledger.decided(BATCH_EPOCH) is not None


def _given_up(replay: Replay, window: Window) -> Window:
    """Decide that nothing is in the chunk whose number the last change gave up. If it was decided otherwise
    before, return the window without that change."""
    ledger = _ledger(replay, window.changes[-1][0])
    try:
        if not ledger.is_done(BATCH_EPOCH) and ledger.decided(BATCH_EPOCH) is None:
            ledger.decide(BATCH_EPOCH, [])
    except LedgerError:
        if not ledger.is_done(BATCH_EPOCH) and ledger.decided(BATCH_EPOCH) is None:
            raise
    if not ledger.is_done(BATCH_EPOCH) and not ledger.decided(BATCH_EPOCH):
        return window
    window = replace(window, changes=window.changes[:-1])
    _store(replay, window)
    return window


def _window_path(replay: Replay) -> Path:
    return replay.state / WINDOW


def _offsets(replay: Replay) -> tuple[Offsets, Offsets]:
    from batonmq.spark.source import RangePartition, RocketMQBatchReader

    options = {"namesrvAddr": replay.namesrv, "subscribe": replay.topic} | replay.access.source_options()
    if replay.from_ms is not None:
        options["startingTimestamp"] = str(replay.from_ms)
    if replay.until_ms is not None:
        options["endingTimestamp"] = str(replay.until_ms)
    start: Offsets = {}
    end: Offsets = {}
    for partition in RocketMQBatchReader(
        parse_read_options(options, streaming=False), ("value",)
    ).partitions():
        assert isinstance(partition, RangePartition)
        for wanted in partition.wanted:
            start.setdefault(wanted.topic, {})[wanted.queue] = wanted.begin
            end.setdefault(wanted.topic, {})[wanted.queue] = wanted.end
    return start, end


def run(
    session: SparkSession,
    replay: Replay,
    *,
    progress: Callable[[int, int], None] = lambda done, total: None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Replayed:
    """Replay the remaining chunks. After each chunk `progress` gets the messages read and those in the
    window. Raises as `look`."""
    began = clock()
    done = skipped = chunks = 0
    due = began
    with held(replay.state, WINDOW):
        window = _recut(replay, look(replay))
        for number, start, end in window.numbered():
            rows = backlog(start, end)
            chunks += 1
            if _ledger(replay, number).is_done(BATCH_EPOCH):
                skipped += 1
            else:
                sleep(max(0.0, due - clock()))
                due = clock() + (0.0 if replay.rate is None else rows / replay.rate)
                frame = _rows(session, replay, start, end)
                _keep(replay, window)  # not before Spark has understood `where`
                _write(frame, replay, f"chunk-{number}")
            done += rows
            progress(done, window.rows)
    return Replayed(window.rows, chunks, skipped, clock() - began)


def _rows(session: SparkSession, replay: Replay, start: Offsets, end: Offsets) -> DataFrame:
    from pyspark.sql import functions as F

    queues = {
        topic: [queue for queue in named if start.get(topic, {}).get(queue, 0) < named[queue]]
        for topic, named in end.items()
    }
    frame = (
        session.read.format("rocketmq")
        .schema(COLUMNS)
        .options(namesrvAddr=replay.namesrv, assign=json.dumps(queues), **replay.access.source_options())
        .option("startingOffsets", json.dumps(_only(start, queues)))
        .option("endingOffsets", json.dumps(_only(end, queues)))
        .load()
    )
    if replay.where:
        frame = frame.where(replay.where)
    sharding_key = F.col("properties")[PROPERTY_SHARDING_KEY].alias("shardingKey")
    columns: list[Any] = ["value", "keys", "tags", "properties", sharding_key]
    if replay.keep_queues:
        columns.append("queueId")
        if replay.target_namesrv is None:
            columns.append("broker")
    if replay.target is None:
        frame = frame.where(origin_topic().isNotNull())
        columns.append(origin_topic().alias("topic"))
    return frame.select(*columns)


def _only(offsets: Offsets, queues: Mapping[str, list[str]]) -> Offsets:
    return {topic: {queue: offsets[topic][queue] for queue in named} for topic, named in queues.items()}


def _write(frame: DataFrame, replay: Replay, name: str) -> None:
    access = replay.access if replay.target_namesrv is None else replay.target_access
    options: dict[str, Any] = {
        "namesrvAddr": replay.target_namesrv or replay.namesrv,
        **({} if replay.target is None else {"topic": replay.target}),
        "deliveryGuarantee": "exactlyOnce",
        "transactionLocation": str(replay.state.absolute()),
        "transactionId": name,
        **access.options(),
    }
    frame.write.format("rocketmq").mode("append").options(**options).save()
