"""The stream's table as Spark's sink has committed it, read without Spark.

Files of failed micro-batches may lie beside the others: only those that `_spark_metadata` names count.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlparse

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tests.spark.soak.compare import Row

METADATA = "_spark_metadata"


@dataclass(frozen=True, slots=True)
class Batch:
    """A micro-batch that is visible."""

    number: int
    visible_ms: int
    """Since when, ms since 1970."""
    files: tuple[Path, ...]


def batches(target: Path) -> Iterator[Batch]:
    """All micro-batches of a table. Those without rows have no files."""
    logs: dict[int, Path] = {}
    for path in (target / METADATA).glob("*"):
        number = path.name.removesuffix(".compact")
        if number.isdigit():
            logs[int(number)] = path
    known: set[str] = set()
    for number, path in sorted(logs.items()):
        # A compacted log has the files of all batches before it, too.
        _, *lines = path.read_text().splitlines()
        named = [str(json.loads(line)["path"]) for line in lines]
        new = [name for name in dict.fromkeys(named) if name not in known]
        if not path.name.endswith(".compact") and len(new) != len(named):
            raise ValueError(f"{path} names a file that it, or an earlier batch, has named")
        known.update(new)
        yield Batch(
            number,
            path.stat().st_mtime_ns // 1_000_000,
            tuple(Path(unquote(urlparse(name).path)) for name in new),
        )


@dataclass
class Table:
    """All rows, and how long each took to become visible."""

    rows: int
    batches: int
    files: int
    parts: Mapping[str, list[tuple[Batch, Path, pa.Table]]]
    """Topic -> its rows, in the order of batches and files."""
    delays_ms: np.ndarray
    """From the store time of each message to its visible row, sorted."""

    def of_topic(self, topic: str) -> Iterator[Row]:
        for batch, path, part in self.parts.get(topic, ()):
            stored = part["timestamp"].cast(pa.timestamp("ms"), safe=False).cast(pa.int64())
            columns = [
                part[name].to_pylist() for name in ("queueId", "queueOffset", "keys", "value", "msgId")
            ]
            for queue, offset, key, value, msg_id, stored_ms in zip(
                *columns, stored.to_pylist(), strict=True
            ):
                yield Row(queue, offset, key or "", value, msg_id or "", stored_ms, batch.number, path.name)

    def delay_ms(self, share: float) -> float:
        return float(np.quantile(self.delays_ms, share)) if len(self.delays_ms) else 0.0


def read(target: Path) -> Table:
    """The table below `target`, which nobody writes."""
    parts: dict[str, list[tuple[Batch, Path, pa.Table]]] = defaultdict(list)
    delays = [np.empty(0, np.int64)]
    table = Table(0, 0, 0, parts, delays[0])
    for batch in batches(target):
        table.batches += 1
        for path in batch.files:
            rows = pq.read_table(path, partitioning=None)
            table.files += 1
            table.rows += len(rows)
            stored = rows["timestamp"].cast(pa.timestamp("ms"), safe=False).cast(pa.int64()).to_numpy()
            delays.append(batch.visible_ms - stored)
            for topic in rows["topic"].unique().to_pylist():
                part = rows.filter(pc.equal(rows["topic"], topic))
                parts[topic].append((batch, path, part))
    table.delays_ms = np.sort(np.concatenate(delays))
    return table
