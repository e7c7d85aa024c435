"""Loads of transactions, pop consumption and timers, and what their clients saw."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Mapping, Sequence

from batonmq import Message
from batonmq.broker.pop.journal import ACK, BATCH_ACK
from batonmq.client.errors import ClientError, TransactionUnconfirmed
from batonmq.client.hooks import TransactionState
from batonmq.client.pop.received import receipt_of
from batonmq.client.simple_consumer import SimpleConsumer
from batonmq.client.transactions import TransactionProducer
from batonmq.net.errors import NetError
from batonmq.protocol.bodies.clients import ConsumeFromWhere
from batonmq.protocol.bodies.pop import AckRecord
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.json import decode_request
from batonmq.protocol.message.record import MessageExt
from batonmq.protocol.names import revive_topic
from tests.chaos.check import Found, Verdict
from tests.chaos.feature_check import Handle, Prepared, Receipt, check_pops, check_timers, check_transactions
from tests.chaos.load import (
    CONSUMERS,
    PAUSE_S,
    PRODUCERS,
    CountingClient,
    Load,
    body_of,
    found,
    now_us,
    read_messages,
    reason,
)

COMMITTED, LEFT_OPEN, UNACKNOWLEDGED = 0.6, 0.25, 0.15
"""Shares of transactions that commit, of those whose end is left to the broker's check, and of popped
messages that are not acknowledged."""
INVISIBLE_S = 5.0
CLUSTER = "DefaultCluster"
"""Name of the cluster, which is in the name of the revive topic."""
LEAST_DELAY_S, MOST_DELAY_S = 1.0, 20.0
SETTLE_TIMEOUT_S = 60.0
"""Until checks have decided, and what was popped and left has come again."""


class _LeftOpen(Exception):
    """The producer forgets to end its transaction."""


class TransactionLoad(Load):
    """Producers whose transactions commit, roll back, or stay open until a broker asks."""

    def __init__(self, topic: str, namesrv: str, seed: int) -> None:
        super().__init__(topic, namesrv, seed)
        self.transactions: dict[str, Prepared] = {}
        self._idle = 0
        """Producers that begin no more transactions."""

    async def _produce(self, number: int) -> None:
        client = CountingClient()
        rng = random.Random(f"{self.seed}/{self.topic}/{number}")
        async with TransactionProducer(
            f"chaos_{self.topic}", self._namesrv, check=self._state_of, remoting=client
        ) as producer:
            count = 0
            while not self._stopping:
                count += 1
                key = f"{self.topic}-{number}-{count}"
                client.attempts = 0
                await self._transact(producer, client, Prepared(key, now_us()), rng)
                await asyncio.sleep(PAUSE_S)
            self._idle += 1
            await self._drained.wait()  # somebody must answer the checks

    async def _transact(
        self, producer: TransactionProducer, client: CountingClient, mine: Prepared, rng: random.Random
    ) -> None:
        commits, left_open = rng.random() < COMMITTED, rng.random() < LEFT_OPEN
        self.transactions[mine.key] = mine
        try:
            async with producer.transaction(
                Message(self.topic, body_of(mine.key), keys=mine.key)
            ) as transaction:
                mine.attempts = client.attempts
                mine.commits, mine.acked_us = commits, now_us()
                if left_open:
                    raise _LeftOpen
                if not commits:
                    await transaction.rollback()
            mine.ended_us = now_us()
        except _LeftOpen:
            pass
        except TransactionUnconfirmed as error:
            mine.error = reason(error)  # the broker asks
        except (ClientError, NetError, MQError) as error:
            mine.attempts = client.attempts
            mine.error = reason(error)
            mine.given_up = True

    def _state_of(self, message: MessageExt) -> TransactionState:
        mine = self.transactions.get(message.keys[0])
        if mine is None or (mine.acked_us is None and not mine.given_up):
            return TransactionState.UNKNOWN  # its send is not answered yet
        return TransactionState.COMMIT if mine.commits else TransactionState.ROLLBACK

    def _wanted(self) -> set[str]:
        return {each.key for each in self.transactions.values() if each.commits and each.acked_us is not None}

    async def finish(self) -> None:
        self._stopping = True
        await self._until(
            lambda: self._idle == PRODUCERS and self._wanted() <= self._delivered, SETTLE_TIMEOUT_S
        )
        self._drained.set()
        await asyncio.gather(*self._producers)
        await self._stop_consumers()

    @property
    def acks_us(self) -> list[int]:
        return sorted(each.acked_us for each in self.transactions.values() if each.acked_us is not None)

    @property
    def reasons(self) -> list[str]:
        return [each.error for each in self.transactions.values() if each.error]

    async def check(self) -> Verdict:
        log = await self._read_topic()
        return check_transactions(
            [*self.transactions.values()],
            log,
            [delivery.key for delivery in self.deliveries],
            acting=self.acting,
        )

    def check_store(self, log: Sequence[Found]) -> Verdict:
        return check_transactions([*self.transactions.values()], log, acting=self.acting)


class PopLoad(Load):
    """Plain producers; consumers that pop, and leave some messages unacknowledged."""

    def __init__(self, topic: str, namesrv: str, seed: int) -> None:
        super().__init__(topic, namesrv, seed)
        self.receipts: list[Receipt] = []
        self._group = f"chaos_{topic}"
        self._settled: set[str] = set()
        """Keys of messages that were acknowledged, or whose ack has an unknown outcome."""
        self._poppers: list[asyncio.Task[None]] = []

    async def _start_consumers(self) -> None:
        self._poppers = [asyncio.create_task(self._pop(number)) for number in range(CONSUMERS)]

    async def _pop(self, number: int) -> None:
        rng = random.Random(f"{self.seed}/{self.topic}/pop {number}")
        async with SimpleConsumer(
            self._group,
            self._namesrv,
            invisible_duration=INVISIBLE_S,
            from_where=ConsumeFromWhere.FIRST_OFFSET,
        ) as consumer:
            consumer.subscribe(self.topic)
            while not self._drained.is_set():
                asked = now_us()
                try:
                    messages = await consumer.receive(wait=1)
                except (ClientError, NetError, MQError):
                    await asyncio.sleep(0.2)
                    continue
                got = now_us()
                received = [
                    Receipt(found(message).key, asked, got, handle=self._handle(message))
                    for message in messages
                ]
                self.receipts += received
                await asyncio.gather(
                    *(
                        self._ack(consumer, message, receipt)
                        for message, receipt in zip(messages, received, strict=True)
                        if self._stopping or rng.random() >= UNACKNOWLEDGED
                    )
                )

    def _handle(self, message: MessageExt) -> Handle:
        receipt = receipt_of(message)
        topic = receipt.stored_topic(message.topic, self._group)
        return Handle(topic, receipt.queue_id, receipt.offset, receipt.pop_time)

    async def _ack(self, consumer: SimpleConsumer, message: MessageExt, receipt: Receipt) -> None:
        try:
            await consumer.ack(message)
        except (NetError, MQError) as error:
            receipt.failed = True
            if isinstance(error, MQError) and error.code == ResponseCode.NO_MESSAGE:
                return  # too late: it comes again
        else:
            receipt.acked_us = now_us()
        self._settled.add(receipt.key)

    async def finish(self) -> None:
        self._stopping = True
        await asyncio.gather(*self._producers)
        await self._until(lambda: self._wanted() <= self._settled, SETTLE_TIMEOUT_S)
        await asyncio.sleep(2 * INVISIBLE_S)  # what was acknowledged must not come again
        self._drained.set()
        await self._stop_consumers()

    async def _stop_consumers(self) -> None:
        await asyncio.gather(*self._poppers)

    async def abandon(self) -> None:
        for task in self._poppers:
            task.cancel()
        await asyncio.gather(*self._poppers, return_exceptions=True)
        await super().abandon()

    async def check(self) -> Verdict:
        log = await self._read_topic()
        acks = await read_acks(self._group, self._namesrv)
        return check_pops(
            self.sends,
            log,
            self.receipts,
            invisible_us=int(INVISIBLE_S * 1e6),
            stored_acks=acks,
            acting=self.acting,
        )

    def check_store(self, log: Sequence[Found]) -> Verdict:
        return check_pops(self.sends, log)


async def read_acks(group: str, namesrv: str) -> set[Handle]:
    """The acks of a group's consumers in the revive topic; not those that the broker wrote for messages that
    come again. Raises `MQError`, `NetError`."""
    acks: set[Handle] = set()
    for message in await read_messages(revive_topic(CLUSTER), namesrv):
        if message.tags not in (ACK, BATCH_ACK):
            continue
        ack = decode_request(message.body, AckRecord)
        if ack.consumer_group == group and not ack.by_broker:
            for offset in [ack.offset] if ack.offsets is None else ack.offsets:
                acks.add(Handle(ack.topic, ack.queue_id, offset, ack.pop_time))
    return acks


class TimerLoad(Load):
    """Producers of messages that are due some seconds later."""

    def __init__(self, topic: str, namesrv: str, seed: int) -> None:
        super().__init__(topic, namesrv, seed)
        self.due_ms: dict[str, int] = {}
        self.arrivals: list[tuple[str, int]] = []
        self._delays = random.Random(f"{seed}/{topic}/delays")

    def _message(self, key: str) -> Message:
        due_ms = time.time_ns() // 1_000_000 + int(1000 * self._delays.uniform(LEAST_DELAY_S, MOST_DELAY_S))
        self.due_ms[key] = due_ms
        return Message(self.topic, body_of(key), keys=key, deliver_at=due_ms / 1000)

    def _got(self, message: MessageExt) -> None:
        self.arrivals.append((found(message).key, time.time_ns() // 1_000_000))
        super()._got(message)

    async def finish(self) -> None:
        self._stopping = True
        await asyncio.gather(*self._producers)
        await self._until_delivered(MOST_DELAY_S + SETTLE_TIMEOUT_S)
        await self._stop_consumers()

    async def check(self) -> Verdict:
        log = await self._read_topic()
        return check_timers(self.sends, self.due_ms, log, self.arrivals)

    def check_store(self, log: Sequence[Found]) -> Verdict:
        return check_timers(self.sends, self.due_ms, log)


LOADS: Mapping[str, tuple[Callable[[str, str, int], Load], Mapping[str, object]]] = {
    "plain": (Load, {}),
    "transactions": (
        TransactionLoad,
        {"transactionTimeOut": 2_000, "transactionCheckInterval": 3_000, "transactionCheckMax": 1_000},
    ),
    "pop": (PopLoad, {}),
    "timers": (TimerLoad, {}),
}
"""Name -> the load, and keys of the brokers that it needs."""
