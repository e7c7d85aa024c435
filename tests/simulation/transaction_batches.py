"""Stories with batches as half messages, which are ended together, again and again, also after switches.

Invariants: those of `transactions.py` for each message of a batch.
"""

from __future__ import annotations

import asyncio
from typing import Any
from unittest import mock

from batonmq.broker.transaction import half as half_module
from batonmq.ha.config import HAConfig
from batonmq.net import RemotingClient
from batonmq.net.errors import NetError
from batonmq.protocol.bodies.transactions import TransactionEnd, TransactionEnds
from batonmq.protocol.codes import MessageSysFlag
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker.send import EndTransactions, PrepareBatch, SendMessageResponse
from batonmq.protocol.json import encode
from batonmq.protocol.message.batch import BatchItem, encode_batch
from batonmq.protocol.message.ids import decode_message_id
from batonmq.protocol.message.properties import encode_properties
from tests.simulation import cluster
from tests.simulation.cluster import BROKER_PORT
from tests.simulation.scenario import run
from tests.simulation.story import QUEUES, TOPIC, Shape, Story
from tests.simulation.transactions import (
    COMMIT,
    GROUP,
    PUT_BACK_MS,
    ROLLBACK,
    Transaction,
    TransactionScenario,
)

MOST_ROWS = 6
ROW_BYTES = 400
TRANSFER_BYTES = 700
"""Of the log at a time: a replica often has only a beginning of a batch."""


class BatchScenario(TransactionScenario):
    """Half of the traffic is batches as half messages; some of two or three are ended by one request."""

    async def _transact(self, net: RemotingClient, ends: list[asyncio.Task[None]]) -> None:
        masters = self.cluster.masters()
        if not masters:
            return
        address = f"{self.random.choice(masters).address}:{BROKER_PORT}"
        kind = COMMIT if self.random.random() < 0.8 else ROLLBACK
        silent = self.random.randint(0, 3) if self.random.random() < 0.3 else 0
        prepared: list[tuple[list[Transaction], TransactionEnd]] = []
        for _ in range(self.random.randint(1, 3)):
            rows = self._rows(kind, silent)
            header, body = self._batch([row.key for row in rows])
            try:
                answer = await net.call(address, header, body, timeout_ms=3_000)
            except (NetError, MQError):
                for row in rows:
                    row.kind = ROLLBACK
                self.story.unknown += 1
                continue
            assert isinstance(answer.header, SendMessageResponse)
            for row in rows:
                row.acked = True
            half = answer.header
            end = TransactionEnd(half.queue_offset, decode_message_id(half.msg_id)[2], rows[0].key)
            prepared.append((rows, end))
        if prepared and silent == 0 and self.random.random() < 0.8:
            ends.append(asyncio.ensure_future(self._end_all(net, kind, prepared)))

    def _rows(self, kind: int, silent: int) -> list[Transaction]:
        self._number += 1
        rows = []
        for row in range(self.random.randint(1, MOST_ROWS)):
            key = f"t{self._number}r{row}"
            rows.append(Transaction(key, kind, silent))
            self.transactions[key] = rows[-1]
        return rows

    def _batch(self, keys: list[str]) -> tuple[PrepareBatch, bytes]:
        body = encode_batch(
            BatchItem(
                body=key.encode().ljust(ROW_BYTES, b"."),
                properties=encode_properties({"KEYS": key, "UNIQ_KEY": key}),
            )
            for key in keys
        )
        properties = {
            "UNIQ_KEY": keys[0],
            "TRAN_MSG": "true",
            "PGROUP": GROUP,
            "__TRAN_BATCH": str(len(keys)),
        }
        header = PrepareBatch(
            producer_group=GROUP,
            topic=TOPIC,
            default_topic="TBW102",
            default_topic_queue_nums=QUEUES,
            queue_id=self.random.randrange(QUEUES),
            sys_flag=MessageSysFlag.TRANSACTION_PREPARED,
            born_timestamp=self._clock.now_ms(),
            flag=0,
            properties=encode_properties(properties).decode(),
        )
        return header, body

    async def _end_all(
        self, net: RemotingClient, kind: int, prepared: list[tuple[list[Transaction], TransactionEnd]]
    ) -> None:
        """End them by one request, until a master has answered; then perhaps once more, much later."""
        header = EndTransactions(GROUP, kind)
        body = encode(TransactionEnds([end for _, end in prepared]))
        repeats = self.random.choice((0, 1, 2))
        while self._sending and repeats >= 0:
            await asyncio.sleep(self.random.expovariate(1 / self.random.choice((0.01, 0.3, 4.0))))
            masters = self.cluster.masters()
            if not masters:
                continue
            for rows, _ in prepared:
                rows[0].ends += kind == COMMIT
            try:
                address = f"{self.random.choice(masters).address}:{BROKER_PORT}"
                await net.call(address, header, body, timeout_ms=3_000)
            except (NetError, MQError):
                continue
            repeats -= 1


def run_batches(seed: int, shape: Shape) -> tuple[Story, BatchScenario]:
    """Run the story of `seed` with batches; raises `Violation`. In every second one half messages are stored
    again after seconds."""
    scenarios: list[BatchScenario] = []

    class Kept(BatchScenario):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            scenarios.append(self)

    put_back_ms = PUT_BACK_MS if seed % 2 else half_module.PUT_BACK_AFTER_MS
    with (
        mock.patch.object(half_module, "PUT_BACK_AFTER_MS", put_back_ms),
        mock.patch.object(cluster, "HAConfig", lambda: HAConfig(ha_transfer_batch_size=TRANSFER_BYTES)),
    ):
        story = run(seed, shape, Kept)
    return story, scenarios[0]
