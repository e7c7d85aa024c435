"""Microseconds a message in the store: put one by one, in turns, as wire batches; append_raw; get; index.

python benchmarks/bench_store.py [--dir DIR] [--messages N] [--body BYTES]
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from batonmq.common.clock import SystemClock
from batonmq.protocol.message.batch import BatchItem, encode_batch
from batonmq.protocol.message.properties import encode_properties
from batonmq.protocol.message.record import StoredMessage
from batonmq.store.config import StoreConfig
from batonmq.store.store import MessageStore

PROPERTIES = encode_properties(
    {"UNIQ_KEY": "7F0000017B3F18B4AAC22F5B00000001", "WAIT": "true", "TAGS": "TagA"}
)


def message(number: int, body: bytes) -> StoredMessage:
    return StoredMessage(
        topic="BenchmarkTopic", queue_id=number % 8, body=body, properties=PROPERTIES, born_timestamp=1
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dir", type=Path, help="where the files go (default: a temporary directory)")
    parser.add_argument("--messages", type=int, default=96_000)
    parser.add_argument("--body", type=int, default=1024)
    options = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="bench-store-", dir=options.dir))
    try:
        run(root, options.messages, bytes(range(256)) * (options.body // 256 + 1), options.body)
    finally:
        shutil.rmtree(root)


def run(root: Path, count: int, pattern: bytes, size: int) -> None:
    body = pattern[:size]

    def store(name: str, *, confirm: bool = False) -> MessageStore:
        config = StoreConfig(store_path_root_dir=str(root / name), max_hash_slot_num=500_000)
        return MessageStore.open(config, SystemClock(), wait_for_confirm=confirm)

    def measure(name: str, messages: int, work: Callable[[], None]) -> None:
        begin = time.perf_counter()
        work()
        print(f"{name:34} {(time.perf_counter() - begin) / messages * 1e6:8.2f} µs/message", flush=True)

    def puts(target: MessageStore, turn: int) -> Callable[[], None]:
        turns = [[message(n, body) for n in range(turn)] for _ in range(8)]

        def work() -> None:
            for number in range(count // turn):
                target.put(turns[number % 8])

        return work

    for turn in (1, 16, 64):
        target = store(f"turn{turn}")
        measure(f"put, {turn} a turn", count, puts(target, turn))
        target.close()
    batch = encode_batch([BatchItem(body=body, properties=PROPERTIES)] * 32)
    target = store("batch")

    def put_batches() -> None:
        for number in range(count // 32):
            wire = message(number, batch)
            wire.batch = True
            target.put([wire])

    measure("put, wire batches of 32", count, put_batches)
    target.close()

    source = store("turn64")
    copy = store("slave")

    def replicate() -> None:
        while copy.max_offset < source.max_offset:
            copy.append_raw(copy.max_offset, source.read(copy.max_offset, 64 << 10))
            copy.dispatch()

    measure("append_raw and dispatch", count, replicate)
    waiting = store("confirm", confirm=True)

    def put_and_confirm() -> None:
        turn = [message(n, body) for n in range(64)]
        for _ in range(count // 64):
            waiting.put(turn)
            waiting.confirm_offset = waiting.max_offset
            waiting.dispatch()

    measure("put, 64 a turn, then confirm", count, put_and_confirm)

    def consume() -> None:
        for queue in range(8):
            at = 0
            while (found := copy.get("BenchmarkTopic", queue, at, 32)).count:
                at = found.next_offset

    measure("get, 32 at a time of 8 queues", count, consume)

    def index() -> None:
        while copy.build_index():
            pass

    measure("index (behind the hot path)", count, index)
    for target in (source, copy, waiting):
        target.close()
    begin = time.perf_counter()
    store("turn64").close()
    print(f"open and close after a clean stop  {(time.perf_counter() - begin) * 1e3:8.1f} ms")


if __name__ == "__main__":
    main()
