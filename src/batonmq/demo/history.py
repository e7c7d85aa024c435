"""The history of a producer, message by message: the evidence for "nothing acknowledged was lost".

The sender records it in memory and writes it as Parquet at the end, in the schema of `spark.jobs.audit`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        ("status", pa.string()),
        ("queue", pa.string()),
        ("offset", pa.int64()),
        ("sent_us", pa.int64()),
        ("acked_us", pa.int64()),
    ]
)


def now_us() -> int:
    """Wall time in us; all times of a history are on this clock."""
    return time.time_ns() // 1_000


@dataclass
class History:
    """One producer's sends, one list per column; `failures` counts unknown outcomes by error."""

    keys: list[str] = field(default_factory=list)
    statuses: list[str] = field(default_factory=list)
    queues: list[str | None] = field(default_factory=list)
    offsets: list[int | None] = field(default_factory=list)
    sent_us: list[int] = field(default_factory=list)
    acked_us: list[int | None] = field(default_factory=list)
    failures: dict[str, int] = field(default_factory=dict)

    def acked(self, key: str, queue: str, offset: int, sent_us: int, acked_us: int) -> None:
        self._add(key, "acked", queue, offset, sent_us, acked_us)

    def unknown(self, key: str, sent_us: int, reason: str) -> None:
        """Record a send whose outcome the client does not know: the message may be stored or not."""
        self._add(key, "unknown", None, None, sent_us, None)
        self.failures[reason] = self.failures.get(reason, 0) + 1

    def _add(
        self, key: str, status: str, queue: str | None, offset: int | None, sent_us: int, acked_us: int | None
    ) -> None:
        self.keys.append(key)
        self.statuses.append(status)
        self.queues.append(queue)
        self.offsets.append(offset)
        self.sent_us.append(sent_us)
        self.acked_us.append(acked_us)

    def __len__(self) -> int:
        return len(self.keys)

    def acks_us(self) -> np.ndarray:
        """Times of all acknowledgements, sorted, us."""
        return np.sort(np.array([t for t in self.acked_us if t is not None], dtype=np.int64))

    def write(self, path: Path) -> None:
        columns = [self.keys, self.statuses, self.queues, self.offsets, self.sent_us, self.acked_us]
        arrays = [pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)]
        pq.write_table(pa.Table.from_arrays(arrays, schema=SCHEMA), path)
