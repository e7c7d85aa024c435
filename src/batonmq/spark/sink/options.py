"""Options of the sink: parsed once into frozen, picklable values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote, urlsplit

from batonmq.protocol.names import group_error, topic_error
from batonmq.protocol.signing import Credentials
from batonmq.spark.options import (
    CREDENTIALS_OPTIONS,
    TLS_OPTIONS,
    Option,
    OptionError,
    TlsOptions,
    credentials_options,
    flag,
    known_options,
    name_servers,
    number,
    option_rows,
    tls_options,
)

DEFAULT_GROUP: Final = "batonmq_spark"
_SPARKS_OWN: Final = ("path", "checkpointlocation", "queryname", "outputmode")
"""What Spark hands over together with the sink's options."""
AT_LEAST_ONCE: Final = "atLeastOnce"
EXACTLY_ONCE: Final = "exactlyOnce"
LEDGER_DIRECTORY: Final = "rocketmq-sink"
"""Of the ledger, in the checkpoint."""
_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """Everything a task that writes needs; travels to the executors."""

    namesrv: str
    topic: str | None = None
    """For all rows; None: the column `topic` says it."""
    include_headers: bool = True
    group: str = DEFAULT_GROUP
    send_timeout_ms: int = 120_000
    max_batch_bytes: int = 512 << 10
    max_batch_rows: int = 2_000
    max_in_flight: int = 8
    max_message_size: int = 4 << 20
    tls: TlsOptions | None = None
    credentials: Credentials | None = None
    ledger: str | None = None
    """Directory of the ledger of an exactly-once write; None: at least once."""

    @property
    def exactly_once(self) -> bool:
        return self.ledger is not None


SINK_OPTIONS = (
    Option("namesrvAddr", "required", "", "Name servers, `host:port`, separated by `;`."),
    Option("topic", "the column `topic`", "", "Topic of all rows."),
    Option(
        "deliveryGuarantee",
        "`atLeastOnce`",
        "",
        "`atLeastOnce`: a task that is repeated sends its rows again. "
        "`exactlyOnce`: each row is in its topic once.",
    ),
    Option(
        "transactionLocation",
        f"the stream's `checkpointLocation`/{LEDGER_DIRECTORY}",
        "",
        "Directory of the ledger of `exactlyOnce`: a local or mounted path of the driver's machine.",
    ),
    Option(
        "transactionId",
        "",
        "",
        "Id of a batch job with `exactlyOnce`: a job with this id writes once, however often it is run.",
    ),
    Option(
        "includeHeaders", "`true`", "", "Whether the column `properties` becomes the message's properties."
    ),
    Option("producerGroup", f"`{DEFAULT_GROUP}`", "", "Producer group that brokers see."),
    Option(
        "sendTimeoutMs",
        "`120000`",
        "",
        "How long a task repeats a send that no broker acknowledges; then it fails.",
    ),
    Option("maxBatchBytes", "`524288`", "", "Most bytes of messages in one send."),
    Option("maxBatchRows", "`2000`", "", "Most messages in one send."),
    Option("maxInFlight", "`8`", "", "Sends of one task that wait for their acknowledgement at a time."),
    Option("maxMessageSize", "`4194304`", "", "The brokers' `maxMessageSize`, bytes."),
    *TLS_OPTIONS,
    *CREDENTIALS_OPTIONS,
)


def sink_option_table() -> str:
    """`SINK_OPTIONS` as a Markdown table."""
    return option_rows(SINK_OPTIONS)


def parse_sink_options(raw: Mapping[str, str], *, streaming: bool = False) -> SinkOptions:
    """Check and parse the options; keys are case-insensitive. Raises `OptionError`."""
    options = known_options({k: v for k, v in raw.items() if k.lower() not in _SPARKS_OWN}, SINK_OPTIONS)
    guarantee = options.get("deliveryguarantee", "atLeastOnce").lower()
    if guarantee not in (AT_LEAST_ONCE.lower(), EXACTLY_ONCE.lower()):
        raise OptionError(
            f"option 'deliveryGuarantee' must be {AT_LEAST_ONCE} or {EXACTLY_ONCE}, not "
            f"{options['deliveryguarantee']!r}"
        )
    once = guarantee == EXACTLY_ONCE.lower()
    for name in ("transactionLocation", "transactionId"):
        if not once and name.lower() in options:
            raise OptionError(f"option {name!r} has no effect without deliveryGuarantee=exactlyOnce")
    topic = options.get("topic")
    if topic is not None and (problem := topic_error(topic)) is not None:
        raise OptionError(f"option 'topic': {problem}")
    group = options.get("producergroup", DEFAULT_GROUP)
    if (problem := group_error(group)) is not None:
        raise OptionError(f"option 'producerGroup': {problem}")
    defaults = SinkOptions(namesrv="")
    most = number(options, "maxMessageSize") or defaults.max_message_size
    return SinkOptions(
        namesrv=name_servers(options),
        topic=topic,
        include_headers=flag(options, "includeHeaders", True),
        group=group,
        send_timeout_ms=number(options, "sendTimeoutMs") or defaults.send_timeout_ms,
        max_batch_bytes=min(number(options, "maxBatchBytes") or defaults.max_batch_bytes, most),
        max_batch_rows=number(options, "maxBatchRows") or defaults.max_batch_rows,
        max_in_flight=number(options, "maxInFlight") or defaults.max_in_flight,
        max_message_size=most,
        tls=tls_options(options),
        credentials=credentials_options(options),
        ledger=_ledger({k.lower(): v for k, v in raw.items()}, streaming) if once else None,
    )


def _ledger(raw: Mapping[str, str], streaming: bool) -> str:
    """The directory of the ledger. `raw`: all options, Spark's own too, by their lower-case names."""
    location, name = raw.get("transactionlocation"), raw.get("transactionid")
    if streaming:
        if name is not None:
            raise OptionError("option 'transactionId' is for batch jobs; a stream has its checkpoint")
        if location is not None:
            return local_path(location, "transactionLocation")
        checkpoint = raw.get("checkpointlocation")
        if checkpoint is None:
            raise OptionError(
                "exactlyOnce needs the option 'checkpointLocation' (Spark shows the sink none that its "
                "configuration sets), or 'transactionLocation', a directory for the sink's ledger"
            )
        return f"{local_path(checkpoint, 'checkpointLocation').rstrip('/')}/{LEDGER_DIRECTORY}"
    if location is None or name is None:
        raise OptionError(
            "exactlyOnce for a batch job needs the options 'transactionLocation', a directory for the "
            "ledger, and 'transactionId', a name that is used for one job only"
        )
    if not _ID.fullmatch(name):
        raise OptionError(
            f"option 'transactionId': {name!r} is not a name of at most 100 letters, digits, '.', '_' and '-'"
        )
    return f"{local_path(location, 'transactionLocation').rstrip('/')}/{name}"


def local_path(location: str, option: str) -> str:
    """A path, or a ``file:`` URI, as a path. Raises `OptionError`."""
    parts = urlsplit(location)
    if parts.scheme not in ("", "file") or parts.netloc:
        raise OptionError(
            f"option {option!r}: {location!r} is not a directory of the driver; mount it there, or give "
            "'transactionLocation' a directory that outlives the driver"
        )
    path = unquote(parts.path) if parts.scheme else location
    if not path.startswith("/"):
        raise OptionError(f"option {option!r}: {location!r} is not an absolute path")
    return path
