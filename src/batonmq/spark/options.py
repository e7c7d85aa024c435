"""Options of ``format("rocketmq")``: parsed once into frozen, picklable values.

Names and meanings follow Spark's Kafka connector where the meaning is the same (``subscribe``, ``assign``,
``startingOffsets``, ``endingOffsets``, ``startingTimestamp``, ``endingTimestamp``, ``maxOffsetsPerTrigger``,
``minPartitions``, ``failOnDataLoss``); a queue is named ``broker-name:queue-id``.
"""

from __future__ import annotations

import difflib
import json
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from batonmq.common.addresses import name_server_addresses
from batonmq.common.config import LONG_MAX
from batonmq.protocol.codes import ALL_TAGS
from batonmq.protocol.names import SCHEDULE_TOPIC, group_error
from batonmq.protocol.signing import Credentials
from batonmq.protocol.tags import MAX_EXPRESSION

log = logging.getLogger(__name__)

EARLIEST, LATEST = -2, -1
"""The two symbolic offsets, with the numbers Kafka's connector gives them in JSON."""

OffsetSpec = int | Mapping[str, Mapping[str, int]]
"""EARLIEST, LATEST, or ``{topic: {"broker:queue": offset}}``."""


Times = Mapping[str, Mapping[str, int]]
"""``{topic: {"broker:queue": store time in ms}}``."""
ERROR_STRATEGY, LATEST_STRATEGY = "error", "latest"


class ClearError(Exception):
    """An error with a complete text; a traceback adds nothing."""


class OptionError(ClearError, ValueError):
    """An option that cannot be used; the text names it and its valid values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsOptions:
    """The `tls.client.*` options of a source or sink with ``tls.enable=true``; a path may be empty."""

    auth_server: bool = False
    trust_cert_path: str = ""
    cert_path: str = ""
    key_path: str = ""
    key_password: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """Everything a reader needs; travels to the executors."""

    namesrv: str
    """``host:port``, several separated by ``;``."""
    topics: tuple[str, ...]
    """Empty with a `pattern`."""
    pattern: str | None = None
    """Regular expression: all topics that it matches in full, also those that appear later."""
    assign: Mapping[str, tuple[str, ...]] | None = None
    """Only these queues of each topic; None: all of them."""
    starting_offsets: OffsetSpec = EARLIEST
    ending_offsets: OffsetSpec = LATEST
    starting_timestamp_ms: int | None = None
    """Store time, ms since the epoch; overrides `starting_offsets`."""
    ending_timestamp_ms: int | None = None
    starting_timestamps: Times | None = None
    """Store time of each queue, ms; None if `starting_timestamp_ms` is given, as in Kafka's connector."""
    ending_timestamps: Times | None = None
    nothing_that_late: str = LATEST_STRATEGY
    """What a queue without a message at its starting time means."""
    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay_ms: int = 15 * 60_000
    """How long `min_offsets_per_trigger` may hold a micro-batch back."""
    max_bytes_per_trigger: int | None = None
    group: str | None = None
    """Consumer group that pulls name and, for streams, that progress is committed for."""
    tls: TlsOptions | None = None
    credentials: Credentials | None = None
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    fail_on_data_loss: bool = True
    include_properties: bool = False
    poll_timeout_ms: int = 120_000
    """How long a reader keeps trying while no broker of a broker set answers (a switch takes less)."""
    tags: frozenset[str] | None = None
    """Only messages with one of these; brokers select them."""
    sql: str | None = None
    """SQL92 expression over properties: only messages that brokers select by it."""
    read_from_slaves: bool = False
    pull_batch_size: int = 4_096
    """Messages requested in one pull; a broker may send fewer (`maxTransferCountOnMessageInMemory`)."""


@dataclass(frozen=True, slots=True)
class Option:
    """One option as users write it; the table in docs/spark.md is generated from these."""

    name: str
    default: str
    reads: str
    """Kind of read that accepts it: ``both``, ``batch`` or ``stream``."""
    text: str


TLS_OPTIONS = (
    Option("tls.enable", "`false`", "both", "Use TLS for connections to name servers and brokers."),
    Option(
        "tls.client.authServer",
        "`false`",
        "both",
        "Verify servers against `tls.client.trustCertPath`; host names are not checked, as in RocketMQ.",
    ),
    Option(
        "tls.client.trustCertPath",
        "",
        "both",
        "Authorities trusted for servers' certificates: a PEM file, at the same path on all machines.",
    ),
    Option("tls.client.certPath", "", "both", "Certificate to show to servers that ask for one, PEM."),
    Option("tls.client.keyPath", "", "both", "Its private key, PEM."),
    Option("tls.client.keyPassword", "", "both", "Password of that key."),
)
"""RocketMQ's keys of TLS clients, for source and sink."""

CREDENTIALS_OPTIONS = (
    Option("accessKey", "", "both", "User that signs all requests, for clusters with access control."),
    Option("secretKey", "", "both", "Its secret; Spark redacts it where it shows options."),
    Option("securityToken", "", "both", "Sent with signed requests where the cluster wants one."),
)
"""The user of source and sink."""

OPTIONS = (
    Option("namesrvAddr", "required", "both", "Name servers, `host:port`, separated by `;`."),
    Option("subscribe", "one of three", "both", "Topics, separated by commas; all their queues."),
    Option(
        "subscribePattern",
        "one of three",
        "both",
        "All topics whose full name this regular expression matches, except system topics; retry and "
        "dead-letter topics only if it contains a `%`. A stream reads topics that are created later from "
        "their first message.",
    ),
    Option("assign", "one of three", "both", 'Only these queues: `{"topic": ["broker-a:0"]}`.'),
    Option(
        "tags",
        "",
        "both",
        "Only messages with one of these tags, `a || b`; the brokers select them.",
    ),
    Option(
        "sql",
        "",
        "both",
        "Only messages whose properties fit, as `region = 'eu' AND amount > 100`; the brokers select them "
        "(`enablePropertyFilter=true`).",
    ),
    Option(
        "startingOffsets",
        "batch `earliest`, stream `latest`",
        "both",
        'First offset: `earliest`, `latest` (streams), or one per queue, `{"topic": {"broker-a:0": 42}}`, '
        "with -2 for earliest and -1 for latest. A stream with a checkpoint continues from there.",
    ),
    Option("endingOffsets", "`latest`", "batch", "End offset (exclusive), in the same form."),
    Option(
        "startingTimestamp",
        "",
        "both",
        "First message stored at this time (ms since 1970) or later; overrides "
        "`startingOffsetsByTimestamp` and `startingOffsets`.",
    ),
    Option(
        "endingTimestamp",
        "",
        "batch",
        "End before the first message stored at this time (ms since 1970) or later; overrides "
        "`endingOffsetsByTimestamp` and `endingOffsets`.",
    ),
    Option(
        "startingOffsetsByTimestamp",
        "",
        "both",
        'As `startingTimestamp`, for each queue: `{"topic": {"broker-a:0": 1764000000000}}`; '
        "overrides `startingOffsets`.",
    ),
    Option(
        "endingOffsetsByTimestamp",
        "",
        "batch",
        "As `endingTimestamp`, for each queue; overrides `endingOffsets`.",
    ),
    Option(
        "startingOffsetsByTimestampStrategy",
        "`latest`",
        "both",
        "When a queue has no message at its starting time or later: `latest` starts at its end, `error` "
        "fails. (In Kafka's connector the default is `error`.)",
    ),
    Option(
        "maxOffsetsPerTrigger",
        "all there is",
        "stream",
        "Most messages in a micro-batch, divided among the queues in proportion to their backlog.",
    ),
    Option(
        "minOffsetsPerTrigger",
        "",
        "stream",
        "Hold a micro-batch back until there are this many messages, for at most `maxTriggerDelay`.",
    ),
    Option("maxTriggerDelay", "`15m`", "stream", "Longest such wait: `500ms`, `30s`, `15m`, `1h`."),
    Option(
        "maxBytesPerTrigger",
        "all there is",
        "stream",
        "Approximate limit of bytes in a micro-batch, estimated from the next messages of each queue.",
    ),
    Option(
        "groupId",
        "",
        "both",
        "Consumer group that brokers see. A stream commits its offsets for it after each micro-batch, so "
        "that `consumerProgress` shows its lag; it never reads them.",
    ),
    Option(
        "minPartitions",
        "one per queue",
        "both",
        "Least number of tasks: queues are split into ranges. Of more than 64 queues, those with few "
        "messages share tasks.",
    ),
    Option("maxRecordsPerPartition", "no limit", "both", "Most messages in a task."),
    Option(
        "failOnDataLoss",
        "`true`",
        "both",
        "Fail when messages to be read are gone; `false` reads what remains.",
    ),
    Option("includeProperties", "`false`", "both", "Add the column `properties` if there is no schema."),
    Option(
        "pollTimeoutMs",
        "`120000`",
        "both",
        "How long a reader keeps trying while no broker of a broker set answers.",
    ),
    Option(
        "readFromSlaves",
        "`false`",
        "both",
        "Pull each queue from one of its broker's slaves, to spare masters. Brokers allow it with "
        "`slaveReadEnable=true`. What a slave does not have or refuses is read from the master.",
    ),
    Option(
        "pullBatchSize",
        "`4096`",
        "both",
        "Messages requested in one pull; brokers return no more than their own limit.",
    ),
    *TLS_OPTIONS,
    *CREDENTIALS_OPTIONS,
)


def tls_options(options: Mapping[str, str]) -> TlsOptions | None:
    """What the `tls.*` options ask for; None is plain text. Raises `OptionError`."""
    given = [option.name for option in TLS_OPTIONS if option.name.lower() in options]
    if not flag(options, "tls.enable", False):
        if given and given != ["tls.enable"]:
            raise OptionError(f"option {given[-1]!r} has no effect without tls.enable=true")
        return None
    return TlsOptions(
        auth_server=flag(options, "tls.client.authServer", False),
        trust_cert_path=options.get("tls.client.trustcertpath", ""),
        cert_path=options.get("tls.client.certpath", ""),
        key_path=options.get("tls.client.keypath", ""),
        key_password=options.get("tls.client.keypassword", ""),
    )


def credentials_options(options: Mapping[str, str]) -> Credentials | None:
    """The user of a source or sink; None: requests are not signed. Raises `OptionError`."""
    given = [option.name for option in CREDENTIALS_OPTIONS if option.name.lower() in options]
    if not given:
        return None
    access_key, secret_key = options.get("accesskey", ""), options.get("secretkey", "")
    if not access_key.strip() or not secret_key.strip():
        raise OptionError(f"option {given[0]!r} needs both accessKey and secretKey, not empty")
    return Credentials(access_key, secret_key, options.get("securitytoken"))


def option_table() -> str:
    """`OPTIONS` as a Markdown table."""
    return option_rows(OPTIONS, "reads")


def option_rows(options: Iterable[Option], of: str | None = None) -> str:
    """Options as a Markdown table; `of`: title of the column that says where an option counts, if any."""
    if of is None:
        rows = [f"| `{o.name}` | {o.default} | {o.text} |" for o in options]
        return "\n".join(["| option | default | meaning |", "| --- | --- | --- |", *rows])
    rows = [f"| `{o.name}` | {o.default} | {o.reads} | {o.text} |" for o in options]
    return "\n".join([f"| option | default | {of} | meaning |", "| --- | --- | --- | --- |", *rows])


def known_options(raw: Mapping[str, str], known: Sequence[Option]) -> dict[str, str]:
    """Options by their names in lower case. Raises `OptionError` for one that is not `known`."""
    options = {key.lower(): value for key, value in raw.items()}
    names = {option.name.lower(): option.name for option in known}  # Spark passes some keys in lower case
    unknown = sorted(set(options) - set(names))
    if unknown:
        near = [names[each] for each in difflib.get_close_matches(unknown[0], names, n=1)]
        hint = f"did you mean {near[0]!r}? Known are" if near else "known are"
        raise OptionError(f"unknown option {unknown[0]!r}; {hint}: {', '.join(names.values())}")
    return options


def parse_read_options(raw: Mapping[str, str], *, streaming: bool) -> ReadOptions:
    """Check and parse a reader's options; keys are case-insensitive. Raises `OptionError`."""
    options = known_options({key: value for key, value in raw.items() if key.lower() != "path"}, OPTIONS)
    namesrv = name_servers(options)
    topics, pattern, assign = _topics(options)
    if streaming and {"endingoffsets", "endingtimestamp", "endingoffsetsbytimestamp"} & set(options):
        raise OptionError(
            "'endingOffsets', 'endingTimestamp' and 'endingOffsetsByTimestamp' are for batch reads; a stream "
            "has no end"
        )
    if not streaming:
        for option in OPTIONS:
            if option.reads == "stream" and option.name.lower() in options:
                log.warning("option %r is for streams: it has no effect in a batch read", option.name)
    strategy = options.get("startingoffsetsbytimestampstrategy", LATEST_STRATEGY).lower()
    if strategy not in (ERROR_STRATEGY, LATEST_STRATEGY):
        raise OptionError(
            f"option 'startingOffsetsByTimestampStrategy' must be error or latest, not {strategy!r}"
        )
    most, least = number(options, "maxOffsetsPerTrigger"), number(options, "minOffsetsPerTrigger")
    if most is not None and least is not None and least > most:
        raise OptionError(f"option 'minOffsetsPerTrigger' is {least}, more than maxOffsetsPerTrigger, {most}")
    group = options.get("groupid")
    if group is not None and (problem := group_error(group)) is not None:
        raise OptionError(f"option 'groupId': {problem}")
    starts_at = moment(options, "startingTimestamp")
    ends_at = moment(options, "endingTimestamp")
    starts, ends = _times(options, "startingOffsetsByTimestamp"), _times(options, "endingOffsetsByTimestamp")
    tags, sql = options.get("tags"), options.get("sql")
    if tags is not None and sql is not None:
        raise OptionError("give one of 'tags' and 'sql'")
    if tags is not None and SCHEDULE_TOPIC in (*topics, *(assign or ())):
        # Its consume queues have times of delivery where others have tags.
        raise OptionError(f"option 'tags': brokers cannot select messages of {SCHEDULE_TOPIC} by tags")
    if sql is not None and not sql.strip():
        raise OptionError("option 'sql' is empty")
    return ReadOptions(
        namesrv=namesrv,
        topics=topics,
        pattern=pattern,
        assign=assign,
        starting_offsets=_offsets(
            options, "startingOffsets", LATEST if streaming else EARLIEST, batch=not streaming
        ),
        ending_offsets=_offsets(options, "endingOffsets", LATEST, ending=True),
        starting_timestamp_ms=starts_at,
        ending_timestamp_ms=ends_at,
        starting_timestamps=None if starts_at is not None else starts,
        ending_timestamps=None if ends_at is not None else ends,
        nothing_that_late=strategy,
        max_offsets_per_trigger=most,
        min_offsets_per_trigger=least,
        max_trigger_delay_ms=duration_ms(options, "maxTriggerDelay", 15 * 60_000),
        max_bytes_per_trigger=number(options, "maxBytesPerTrigger"),
        group=group,
        tls=tls_options(options),
        credentials=credentials_options(options),
        min_partitions=number(options, "minPartitions"),
        max_records_per_partition=number(options, "maxRecordsPerPartition"),
        fail_on_data_loss=flag(options, "failOnDataLoss", True),
        include_properties=flag(options, "includeProperties", False),
        poll_timeout_ms=number(options, "pollTimeoutMs") or 120_000,
        tags=None if tags is None else tag_names(tags),
        sql=sql,
        read_from_slaves=flag(options, "readFromSlaves", False),
        pull_batch_size=number(options, "pullBatchSize") or 4_096,
    )


def name_servers(options: Mapping[str, str]) -> str:
    """The option `namesrvAddr`, checked."""
    namesrv = options.get("namesrvaddr", "").strip()
    if not namesrv:
        raise OptionError("option 'namesrvAddr' is missing: name servers as host:port;host:port")
    try:
        name_server_addresses(namesrv)
    except ValueError as error:
        raise OptionError(f"option 'namesrvAddr': {error}") from None
    return namesrv


def topic_names(text: str) -> tuple[str, ...]:
    """The value of `subscribe`: each name once."""
    topics = tuple(dict.fromkeys(t.strip() for t in text.split(",") if t.strip()))
    if not topics:
        raise OptionError("option 'subscribe' names no topic")
    return topics


def tag_names(text: str) -> frozenset[str] | None:
    """The value of `tags`; None for all."""
    if text.strip() == ALL_TAGS:
        return None
    tags = frozenset(tag.strip() for tag in text.split("||") if tag.strip())
    if not tags:
        raise OptionError("option 'tags' names no tag; write it as 'a || b'")
    if len(text) > MAX_EXPRESSION:
        raise OptionError(f"option 'tags' has {len(text)} characters, at most {MAX_EXPRESSION} are read")
    return tags


def topic_pattern(text: str) -> str:
    """The value of `subscribePattern`, checked."""
    try:
        re.compile(text)
    except re.error as error:
        raise OptionError(f"option 'subscribePattern' is not a regular expression: {error}") from None
    return text


def _topics(
    options: Mapping[str, str],
) -> tuple[tuple[str, ...], str | None, dict[str, tuple[str, ...]] | None]:
    """Topics, pattern, queues."""
    if len({"subscribe", "subscribepattern", "assign"} & set(options)) != 1:
        raise OptionError(
            "give one of 'subscribe' (topics, comma separated), 'subscribePattern' (a regular expression) "
            "and 'assign' (JSON: queues a topic)"
        )
    if "subscribe" in options:
        return topic_names(options["subscribe"]), None, None
    if "subscribepattern" in options:
        return (), topic_pattern(options["subscribepattern"]), None
    value = _json(options["assign"], "assign", '{"topic": ["broker-a:0", "broker-a:1"]}')
    assign: dict[str, tuple[str, ...]] = {}
    for topic, queues in value.items():
        if not isinstance(queues, list) or not queues or not all(isinstance(q, str) for q in queues):
            raise OptionError(f"option 'assign', topic {topic!r}: must be a list like [\"broker-a:0\"]")
        assign[topic] = tuple(queues)
    if not assign:
        raise OptionError("option 'assign' names no topic")
    return tuple(assign), None, assign


def _each_once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """A JSON object. Raises `ValueError` for a name that occurs twice; `json` drops the first value."""
    found: dict[str, object] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"{name!r} occurs twice")
        found[name] = value
    return found


def _json(text: str, name: str, example: str) -> dict[str, object]:
    try:
        value = json.loads(text, object_pairs_hook=_each_once)
    except ValueError as e:
        raise OptionError(f"option {name!r} is not JSON like {example}: {e}") from None
    except RecursionError:
        raise OptionError(f"option {name!r} is not JSON like {example}: nested too deep") from None
    if not isinstance(value, dict):
        raise OptionError(f"option {name!r} must be like {example}")
    return value


def _offsets(
    options: Mapping[str, str], name: str, default: int, *, ending: bool = False, batch: bool = False
) -> OffsetSpec:
    text = options.get(name.lower())
    if text is None:
        return default
    word = text.strip().lower()
    if word == "latest" and not batch:
        return LATEST
    if word == "earliest" and not ending:
        return EARLIEST
    if word in ("latest", "earliest"):
        what = "an end" if ending else "a batch read"
        raise OptionError(f"option {name!r} can not be {word!r} for {what}: nothing would be read")
    example = '{"topic": {"broker-a:0": 42, "broker-a:1": -2}}'
    value = _json(text, name, example)
    parsed: dict[str, dict[str, int]] = {}
    for topic, queues in value.items():
        if not isinstance(queues, dict) or not all(
            isinstance(o, int) and not isinstance(o, bool) and o >= EARLIEST for o in queues.values()
        ):
            raise OptionError(f"option {name!r}, topic {topic!r}: must be like {example}")
        parsed[topic] = dict(queues)
    return parsed


def _times(options: Mapping[str, str], name: str) -> Times | None:
    """An option that gives a store time, ms, for each queue."""
    if name.lower() not in options:
        return None
    example = '{"topic": {"broker-a:0": 1764000000000}}'
    parsed: dict[str, dict[str, int]] = {}
    for topic, queues in _json(options[name.lower()], name, example).items():
        if not isinstance(queues, dict) or not all(
            isinstance(ms, int) and not isinstance(ms, bool) and 0 <= ms <= LONG_MAX for ms in queues.values()
        ):
            raise OptionError(f"option {name!r}, topic {topic!r}: must be like {example}")
        parsed[topic] = dict(queues)
    return parsed


_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


def duration_ms(options: Mapping[str, str], name: str, default: int) -> int:
    """A time such as ``15m``, in ms. Raises `OptionError`."""
    text = options.get(name.lower())
    if text is None:
        return default
    found = re.fullmatch(r"(\d{1,12})\s*([a-z]+)", text.strip().lower())
    if found is None or found[2] not in _UNITS_MS:
        raise OptionError(f"option {name!r} must be like 500ms, 30s, 15m or 1h, not {text!r}")
    return int(found[1]) * _UNITS_MS[found[2]]


def moment(options: Mapping[str, str], name: str) -> int | None:
    """A time in ms since 1970, None without the option. Raises `OptionError`."""
    return number(options, name, at_least=0, kind="ms since 1970, a whole number")


def number(
    options: Mapping[str, str], name: str, *, at_least: int = 1, kind: str = "a whole number"
) -> int | None:
    """A whole number, None without the option. Raises `OptionError`."""
    text = options.get(name.lower())
    if text is None:
        return None
    try:
        number = int(text)
    except ValueError:
        raise OptionError(f"option {name!r} must be {kind}, not {text!r}") from None
    if number < at_least:
        raise OptionError(f"option {name!r} must be at least {at_least}, not {number}")
    if number > LONG_MAX:
        raise OptionError(f"option {name!r} must be at most {LONG_MAX}, not {number}")
    return number


def flag(options: Mapping[str, str], name: str, default: bool) -> bool:
    """``true`` or ``false``. Raises `OptionError`."""
    text = options.get(name.lower())
    if text is None:
        return default
    if text.lower() not in ("true", "false"):
        raise OptionError(f"option {name!r} must be true or false, not {text!r}")
    return text.lower() == "true"
