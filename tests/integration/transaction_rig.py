"""One of our brokers and a producer of transactional messages, and what their tests do with both."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.integration.broker.rig import configs
from tests.integration.transactions import Half, RawProducer

from batonmq.broker.service import BrokerService
from batonmq.broker.transaction.part import TransactionPart
from batonmq.broker.transaction.term import Term
from batonmq.net import Dispatcher, RemotingClient
from batonmq.protocol.headers.broker.send import (
    ResumeCheckHalfMessage,
)
from batonmq.protocol.headers.client import CheckTransactionState
from batonmq.protocol.message.record import MessageExt, decode_records
from batonmq.protocol.names import (
    TRANS_CHECK_MAX_TIME_TOPIC,
    TRANS_HALF_TOPIC,
    TRANSACTION_GROUP,
)

QUICK = {
    "transaction_time_out": 1,
    "transaction_check_interval": 50,
    "transaction_op_batch_interval": 20,
}
"""Checks every 50 ms."""


@dataclass
class Rig(RawProducer):
    """One of our brokers, and a producer."""

    service: BrokerService = field(kw_only=True)

    def stored(self, topic: str) -> list[MessageExt]:
        """All messages of queue 0 of a topic that clients may not read from."""
        result = self.service.broker.store.get(topic, 0, 0, 1_000)
        return [record for view in result.buffers for record in decode_records(view)]

    @property
    def part(self) -> TransactionPart:
        return self.service.part(TransactionPart)

    @property
    def term(self) -> Term:
        assert self.part.term is not None
        return self.part.term

    def offset(self, topic: str) -> int:
        return self.service.broker.tables.offsets.query(TRANSACTION_GROUP, topic, 0)


Starter = Callable[..., Awaitable[Rig]]


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Starter]:
    running: list[Rig] = []

    async def starter(**keys: Any) -> Rig:
        service = BrokerService(*configs(tmp_path / "store", **keys))
        await service.start()
        dispatcher = Dispatcher()
        client = RemotingClient(dispatcher=dispatcher)
        rig = Rig(client, f"127.0.0.1:{service.port}", service=service)
        dispatcher.on(CheckTransactionState, rig.on_check)
        running.append(rig)
        return rig

    yield starter
    for rig in running:
        await rig.client.close()
        if not rig.service.broker.role.stopping:
            await rig.service.stop()


async def until(condition: Callable[[], object], timeout_s: float = 5) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.01)


async def given_up(rig: Rig) -> tuple[Half, ResumeCheckHalfMessage]:
    """A half message that was given up, and the request to check it again."""
    await rig.connect()
    half = await rig.prepare("A")
    await until(lambda: rig.offset(TRANS_HALF_TOPIC) == 1)
    (record,) = rig.stored(TRANS_CHECK_MAX_TIME_TOPIC)
    return half, ResumeCheckHalfMessage(topic="T", msg_id=record.offset_message_id)
