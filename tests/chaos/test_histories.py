"""What chaos writes is what Spark's audit and failover report read."""

from __future__ import annotations

import time
from pathlib import Path

import pyarrow.parquet as pq

from tests.chaos.check import Send
from tests.chaos.histories import write
from tests.chaos.load import SET_STRIDE, now_us


def test_a_history_has_wall_times_and_producers(tmp_path: Path) -> None:
    now, wall_us = now_us(), time.time_ns() // 1000
    acked = Send("Chaos-kill-2-7", now - 5_000, 1, now - 3_000, 3, 41)
    lost = Send("Chaos-hang-of-two-0-1", now - 1_000, 2, error="timeout")
    other = Send("Chaos-kill-1-1", now - 900, 1, now - 800, SET_STRIDE + 2, 0)
    write(tmp_path / "history.parquet", [acked, lost, other], ["broker-a", "broker-b"])
    first, second, third = pq.read_table(tmp_path / "history.parquet").to_pylist()
    assert (first["key"], first["status"], first["queue"]) == ("Chaos-kill-2-7", "acked", "broker-a:3")
    assert (first["offset"], first["producer"]) == (41, "producer 2")
    assert first["acked_us"] - first["sent_us"] == 2_000
    assert abs(first["acked_us"] - (wall_us - 3_000)) < 1_000_000
    assert (second["status"], second["queue"], second["offset"]) == ("unknown", None, None)
    assert (second["acked_us"], second["producer"]) == (None, "producer 0")
    assert third["queue"] == "broker-b:2"
