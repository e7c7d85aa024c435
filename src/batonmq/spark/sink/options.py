"""Options of the sink: parsed once into frozen, picklable values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from batonmq.protocol.names import group_error, topic_error
from batonmq.spark.options import (
    TLS_OPTIONS,
    Option,
    OptionError,
    TlsOptions,
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


SINK_OPTIONS = (
    Option("namesrvAddr", "required", "", "Name servers, `host:port`, separated by `;`."),
    Option("topic", "the column `topic`", "", "Topic of all rows."),
    Option(
        "deliveryGuarantee",
        "`atLeastOnce`",
        "",
        "`atLeastOnce`: a task that is repeated sends its rows again. `exactlyOnce` is not available yet.",
    ),
    Option(
        "includeHeaders", "`true`", "", "Whether the column `properties` becomes the message's properties."
    ),
    Option("producerGroup", f"`{DEFAULT_GROUP}`", "", "Producer group that brokers see."),
    Option(
        "sendTimeoutMs",
        "`120000`",
        "",
        "How long a batch is sent again while no broker acknowledges it; then the task fails.",
    ),
    Option("maxBatchBytes", "`524288`", "", "Most bytes of messages in one send."),
    Option("maxBatchRows", "`2000`", "", "Most messages in one send."),
    Option("maxInFlight", "`8`", "", "Sends of one task that wait for their acknowledgement at a time."),
    Option("maxMessageSize", "`4194304`", "", "The brokers' `maxMessageSize`, bytes."),
    *TLS_OPTIONS,
)


def sink_option_table() -> str:
    """`SINK_OPTIONS` as a Markdown table."""
    return option_rows(SINK_OPTIONS)


def parse_sink_options(raw: Mapping[str, str]) -> SinkOptions:
    """Check and parse the options; keys are case-insensitive. Raises `OptionError`."""
    options = known_options({k: v for k, v in raw.items() if k.lower() not in _SPARKS_OWN}, SINK_OPTIONS)
    guarantee = options.get("deliveryguarantee", "atLeastOnce").lower()
    if guarantee == "exactlyonce":
        raise OptionError(
            "option 'deliveryGuarantee': exactlyOnce is not available yet; use atLeastOnce, and remove "
            "duplicates by a key of your own"
        )
    if guarantee != "atleastonce":
        raise OptionError(
            f"option 'deliveryGuarantee' must be atLeastOnce, not {options['deliveryguarantee']!r}"
        )
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
    )
