"""What producers saw, as files in the schema of Spark's audit, with the producer of each message."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from batonmq.demo.history import SCHEMA
from tests.chaos.check import Send
from tests.chaos.load import SET_STRIDE, now_us

PRODUCER = pa.field("producer", pa.string())


def write(path: Path, sends: Sequence[Send], broker_names: Sequence[str]) -> None:
    """Write a history; `broker_names`: of the broker sets, in the order of `Places`.

    Its times are us since 1970, of one clock that does not jump.
    """
    since_1970_us = time.time_ns() // 1000 - now_us()
    columns = {
        "key": [send.key for send in sends],
        "status": ["unknown" if send.acked_us is None else "acked" for send in sends],
        "queue": [None if send.acked_us is None else _queue(send.queue, broker_names) for send in sends],
        "offset": [None if send.acked_us is None else send.offset for send in sends],
        "sent_us": [send.sent_us + since_1970_us for send in sends],
        "acked_us": [None if send.acked_us is None else send.acked_us + since_1970_us for send in sends],
        "producer": [producer_of(send.key) for send in sends],
    }
    pq.write_table(pa.table(columns, schema=SCHEMA.append(PRODUCER)), path)


def _queue(number: int, broker_names: Sequence[str]) -> str:
    return f"{broker_names[number // SET_STRIDE]}:{number % SET_STRIDE}"


def producer_of(key: str) -> str:
    """A key is ``<topic>-<producer>-<count>``."""
    return f"producer {key.split('-')[-2]}"
