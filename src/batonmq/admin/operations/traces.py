"""Message traces that clients send to a trace topic: who sent and who consumed a message.

Source: `TraceDataEncoder` of RocketMQ's client. A trace message has several traces; each is a line of fields.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from batonmq.admin.operations.messages import ALWAYS, by_key
from batonmq.admin.session import Admin
from batonmq.client.trace_format import END, FIELD
from batonmq.protocol.message.ids import unpack_host

_LATEST_MS: Final = 1 << 43
"""In the year 2248. Later times are no times, and cannot be shown."""


@dataclass(frozen=True, slots=True)
class Trace:
    """One step of a message. `kind`: Pub (sent) or SubAfter (consumed)."""

    kind: str
    group: str
    client_host: str
    time_ms: int
    """0 if the client did not say."""
    cost_ms: int
    ok: bool


async def of_message(
    admin: Admin, message_id: str, trace_topic: str, count: int, times_ms: tuple[int, int] = ALWAYS
) -> list[Trace]:
    """The traces of a message (unique id), from at most `count` trace messages, oldest first."""
    found = await by_key(admin, trace_topic, message_id, count, times_ms)
    traces = [
        trace
        for message in found
        for trace in parse(str(message.body, "utf-8", "replace"), message_id, host_of(message.born_host))
    ]
    return sorted(traces, key=lambda trace: (trace.kind, trace.time_ms))


def host_of(packed: bytes) -> str:
    """Address without the port of a host in a record."""
    return unpack_host(packed)[0]


def _time(text: str) -> int:
    value = int(text)
    if not 0 <= value < _LATEST_MS:
        raise ValueError(text)
    return value


def parse(text: str, message_id: str, client_host: str) -> Iterator[Trace]:
    """The sends and completed consumptions of one message in the body of a trace message. Lines that are none
    are left out: anybody can send to the topic."""
    for line in text.split(END):
        fields = line.split(FIELD)
        try:
            if fields[0] == "Pub" and fields[5] == message_id:
                ok = fields[12] if len(fields) == 13 else fields[13]
                yield Trace(
                    "Pub", fields[3], client_host, _time(fields[1]), int(fields[10]), ok.lower() == "true"
                )
            elif fields[0] == "SubAfter" and fields[2] == message_id:
                time_ms, group = (_time(fields[7]), fields[8]) if len(fields) >= 9 else (0, "")
                yield Trace(
                    "SubAfter", group, client_host, time_ms, int(fields[3]), fields[4].lower() == "true"
                )
        except (IndexError, ValueError):
            continue
