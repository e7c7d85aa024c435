"""Options of ``format("rocketmq-store")``: parsed once into frozen, picklable values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from batonmq.spark.options import (
    Option,
    OptionError,
    flag,
    known_options,
    moment,
    number,
    option_rows,
    tag_names,
    topic_names,
    topic_pattern,
)

MESSAGES, CONSUME_QUEUES, INDEX, EPOCHS, FILES = "messages", "consumequeue", "index", "epochs", "files"
TIMERS = "timers"
TABLES: Final = (MESSAGES, CONSUME_QUEUES, INDEX, TIMERS, EPOCHS, FILES)
DEFAULT_PIECE, LEAST_PIECE = 128 << 20, 16 << 10
"""Bytes of commit log a task. Smaller ones would make more tasks of a log than a driver can hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions:
    """Everything a reader of store directories needs; travels to the executors."""

    paths: tuple[str, ...]
    """Store directories, or patterns of them."""
    table: str = MESSAGES
    topics: tuple[str, ...] | None = None
    """Only these; None: all but the system's."""
    pattern: str | None = None
    """Only topics whose full name this regular expression matches."""
    starting_timestamp_ms: int | None = None
    """Store time, ms since the epoch, inclusive."""
    ending_timestamp_ms: int | None = None
    """Exclusive."""
    tags: frozenset[str] | None = None
    queue_ids: frozenset[int] | None = None
    min_queue_offset: int | None = None
    """Inclusive, as the next three."""
    max_queue_offset: int | None = None
    min_physical_offset: int | None = None
    max_physical_offset: int | None = None
    broker_name: str | None = None
    include_unconfirmed: bool = False
    include_system_topics: bool = False
    include_properties: bool = False
    fail_on_data_loss: bool = True
    max_partition_bytes: int = DEFAULT_PIECE
    max_hash_slot_num: int | None = None
    """Hash slots of an index file; None: found out from the file's size."""


STORE_OPTIONS = (
    Option(
        "path",
        "required",
        "messages",
        "Store directories (`storePathRootDir`), separated by commas; each may be a pattern such as "
        "`/backup/broker-*`. Also the argument of `load()`.",
    ),
    Option("table", "`messages`", "all", "What to read: " + ", ".join(f"`{t}`" for t in TABLES) + "."),
    Option("subscribe", "all but system topics", "messages", "Only these topics, separated by commas."),
    Option(
        "subscribePattern", "", "messages", "Only topics whose full name this regular expression matches."
    ),
    Option(
        "startingTimestamp", "", "messages", "Only messages stored at this time (ms since 1970) or later."
    ),
    Option("endingTimestamp", "", "messages", "Only messages stored before this time (ms since 1970)."),
    Option("tags", "", "messages", "Only messages with one of these tags, `a || b`."),
    Option("queueIds", "", "messages", "Only messages of these queues of each topic: `0,3`."),
    Option("minQueueOffset", "", "messages", "Only messages at this offset of their queue or later."),
    Option("maxQueueOffset", "", "messages", "Only messages at this offset of their queue or earlier."),
    Option("minPhysicalOffset", "", "messages", "Only messages at this offset of the commit log or later."),
    Option("maxPhysicalOffset", "", "messages", "Only messages at this offset of the commit log or earlier."),
    Option("includeUnconfirmed", "`false`", "messages", "Also read messages after the confirm offset."),
    Option(
        "includeSystemTopics",
        "`false`",
        "messages",
        "Also read system topics that `subscribe` does not name: half messages, delayed messages, traces.",
    ),
    Option("includeProperties", "`false`", "messages", "Add the column `properties` if there is no schema."),
    Option(
        "brokerName",
        "from `brokerIdentity`, or the directory's name",
        "all",
        "Content of the column `broker`.",
    ),
    Option(
        "failOnDataLoss",
        "`true`",
        "messages",
        "Fail when a file is missing or a record is damaged; `false` reads what remains.",
    ),
    Option(
        "maxPartitionBytes",
        "`134217728`",
        "messages",
        "Bytes of commit log per task, at least 16384. A file is split where a consume queue has the start "
        "of a record.",
    ),
    Option(
        "maxHashSlotNum",
        "from the file's size",
        "index",
        "The broker's `maxHashSlotNum`, if it differs from a quarter of its `maxIndexNum`.",
    ),
)


def store_option_table() -> str:
    """`STORE_OPTIONS` as a Markdown table."""
    return option_rows(STORE_OPTIONS, "table")


def parse_store_options(raw: Mapping[str, str]) -> StoreOptions:
    """Check and parse the options; keys are case-insensitive. Raises `OptionError`."""
    options = known_options(raw, STORE_OPTIONS)
    paths = tuple(part.strip() for part in options.get("path", "").split(",") if part.strip())
    if not paths:
        raise OptionError("option 'path' is missing: a store directory, as in load('/data/store')")
    table = options.get("table", MESSAGES).strip().lower()
    if table not in TABLES:
        raise OptionError(f"option 'table' must be one of {', '.join(TABLES)}, not {options['table']!r}")
    if "subscribe" in options and "subscribepattern" in options:
        raise OptionError("give one of 'subscribe' and 'subscribePattern'")
    if table != MESSAGES:
        _refuse_what_tables_ignore(options, table)
    pattern = topic_pattern(options["subscribepattern"]) if "subscribepattern" in options else None
    return StoreOptions(
        paths=paths,
        table=table,
        topics=topic_names(options["subscribe"]) if "subscribe" in options else None,
        pattern=pattern,
        starting_timestamp_ms=moment(options, "startingTimestamp"),
        ending_timestamp_ms=moment(options, "endingTimestamp"),
        tags=tag_names(options["tags"]) if "tags" in options else None,
        queue_ids=_queue_ids(options["queueids"]) if "queueids" in options else None,
        min_queue_offset=number(options, "minQueueOffset", at_least=0),
        max_queue_offset=number(options, "maxQueueOffset", at_least=0),
        min_physical_offset=number(options, "minPhysicalOffset", at_least=0),
        max_physical_offset=number(options, "maxPhysicalOffset", at_least=0),
        broker_name=options.get("brokername"),
        include_unconfirmed=flag(options, "includeUnconfirmed", False),
        include_system_topics=flag(options, "includeSystemTopics", False),
        include_properties=flag(options, "includeProperties", False),
        fail_on_data_loss=flag(options, "failOnDataLoss", True),
        max_partition_bytes=number(options, "maxPartitionBytes", at_least=LEAST_PIECE) or DEFAULT_PIECE,
        max_hash_slot_num=number(options, "maxHashSlotNum"),
    )


def _queue_ids(text: str) -> frozenset[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and len(part) < 10 for part in parts):
        raise OptionError(f"option 'queueIds' must be numbers separated by commas, not {text!r}")
    return frozenset(map(int, parts))


def _refuse_what_tables_ignore(options: Mapping[str, str], table: str) -> None:
    for option in STORE_OPTIONS:
        if option.name.lower() in options and option.reads not in ("all", table) and option.name != "path":
            raise OptionError(f"option {option.name!r} has no effect on the table {table!r}")
