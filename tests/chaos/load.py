"""Producers and consumers outside the cluster, and what they saw."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from batonmq import Consumer, Message, Producer
from batonmq.client.errors import ClientError, NotSafelyStored, SendFailed
from batonmq.client.reader import QueueReader
from batonmq.net.client import RemotingClient
from batonmq.net.errors import NetError
from batonmq.protocol.bodies.clients import ConsumeFromWhere
from batonmq.protocol.codes import RequestCode
from batonmq.protocol.errors import MQError, code_name
from batonmq.protocol.frame import Command
from batonmq.protocol.message.record import MessageExt, decode_records
from batonmq.protocol.signing import Credentials
from tests.chaos.check import Found, Send, Verdict, check
from tests.chaos.feature_check import Span

QUEUES = 4
PRODUCERS = 4
CONSUMERS = 2
PAUSE_S = 0.008
"""Between an acknowledgement and the producer's next send: the load must leave the machine room."""
BODY_BYTES = 256
DRAIN_TIMEOUT_S = 20.0
SET_STRIDE = 100
"""More than a topic has queues on a broker set."""


def now_us() -> int:
    """Time of this process, us; every moment of a run is on this clock."""
    return time.monotonic_ns() // 1000


def body_of(key: str) -> bytes:
    """The body that goes with a key, so that a reader can tell whether it is intact."""
    digest = hashlib.sha256(key.encode()).hexdigest().encode()
    return (digest * (BODY_BYTES // len(digest) + 1))[:BODY_BYTES]


@dataclass(frozen=True)
class Places:
    """Numbers for the queues of several broker sets; with one set they are the queue ids."""

    names: Sequence[str] = ()
    """Of the broker sets."""
    addresses: Mapping[tuple[str, int], int] = field(default_factory=dict)
    """Address of a broker -> number of its set. Messages carry the address of the master that took them."""

    def of_name(self, name: str, queue_id: int) -> int:
        return (self.names.index(name) if self.names else 0) * SET_STRIDE + queue_id

    def of_message(self, message: MessageExt) -> int:
        number = self.addresses[message.store_address] if self.addresses else 0
        return number * SET_STRIDE + message.queue_id


ONE_SET = Places()


def found(message: MessageExt, places: Places = ONE_SET) -> Found:
    key = message.properties.get("KEYS", "")
    return Found(places.of_message(message), message.queue_offset, key, message.body == body_of(key))


def reason(error: Exception) -> str:
    """Why a send was not acknowledged, in a word."""
    if isinstance(error, NotSafelyStored):
        return error.result.status.value
    if isinstance(error, SendFailed) and error.cause is not None:
        error = error.cause
    return code_name(error.code) if isinstance(error, MQError) else type(error).__name__


class CountingClient(RemotingClient):
    """Counts the requests that try to store a message, and remembers who got the last one."""

    def __init__(self, *, credentials: Credentials | None = None) -> None:
        super().__init__(credentials=credentials)
        self.attempts = 0
        self.last = ""

    async def invoke(
        self, address: str, command: Command, *, body: Any = None, timeout_ms: float = 3000
    ) -> Command:
        if command.code == RequestCode.SEND_MESSAGE_V2:
            self.attempts += 1
            self.last = address
        return await super().invoke(address, command, body=body, timeout_ms=timeout_ms)


class Load:
    """Producers and consumers of one topic, which must exist; between `start` and `finish`."""

    def __init__(self, topic: str, namesrv: str, seed: int) -> None:
        self.topic = topic
        self.seed = seed
        self.sends: list[Send] = []
        self.deliveries: list[Found] = []
        self.places = ONE_SET
        self.acting: list[Span] = []
        """When a slave may have acted as master; set before `check`."""
        self._namesrv = namesrv
        self._stopping = False
        self._producers: list[asyncio.Task[None]] = []
        self._consumers: list[Consumer] = []
        self._delivered: set[str] = set()
        self._drained = asyncio.Event()
        """Set when nothing more is expected."""

    async def start(self) -> None:
        """Consumers first, so that they see everything from the beginning."""
        await self._start_consumers()
        self._producers = [asyncio.create_task(self._produce(number)) for number in range(PRODUCERS)]

    async def _start_consumers(self) -> None:
        for _ in range(CONSUMERS):
            consumer = Consumer(
                f"chaos_{self.topic}", self._namesrv, from_where=ConsumeFromWhere.FIRST_OFFSET
            )
            consumer.subscribe(self.topic, "*", self._got)
            await consumer.start()
            self._consumers.append(consumer)

    def _message(self, key: str) -> Message:
        return Message(self.topic, body_of(key), keys=key)

    def _got(self, message: MessageExt) -> None:
        got = found(message, self.places)
        self.deliveries.append(got)
        self._delivered.add(got.key)

    async def _produce(self, number: int) -> None:
        """One send after the other, with the client's defaults; a failed one is not repeated by us."""
        client = CountingClient()
        async with Producer("chaos_producers", self._namesrv, remoting=client) as producer:
            count = 0
            while not self._stopping:
                count += 1
                key = f"{self.topic}-{number}-{count}"
                client.attempts = 0
                began = now_us()
                try:
                    result = await producer.send(self._message(key))
                except (ClientError, NetError, MQError) as error:
                    self.sends.append(Send(key, began, client.attempts, error=reason(error)))
                else:
                    self.sends.append(
                        Send(
                            key,
                            began,
                            client.attempts,
                            now_us(),
                            self.places.of_name(result.queue.broker_name, result.queue.queue_id),
                            result.queue_offset,
                            client.last,
                        )
                    )
                await asyncio.sleep(PAUSE_S)

    async def finish(self) -> None:
        """Stop producing; consumers go on until they have all that was acknowledged, or the time is up.

        Raises the first exception that ended a producer too early.
        """
        self._stopping = True
        await asyncio.gather(*self._producers)
        await self._until_delivered(DRAIN_TIMEOUT_S)
        await self._stop_consumers()

    def _wanted(self) -> set[str]:
        """Keys that consumers must get."""
        return {send.key for send in self.sends if send.acked_us is not None}

    async def _until_delivered(self, timeout_s: float) -> None:
        wanted = self._wanted()
        await self._until(lambda: wanted <= self._delivered, timeout_s)

    async def _until(self, condition: Callable[[], bool], timeout_s: float) -> None:
        """Wait, but not longer than the timeout: the check says what is missing."""
        deadline = time.monotonic() + timeout_s
        while not condition() and time.monotonic() < deadline:
            await asyncio.sleep(0.1)

    async def _stop_consumers(self) -> None:
        await asyncio.gather(*(consumer.stop() for consumer in self._consumers))

    # -- what came of it

    @property
    def acks_us(self) -> list[int]:
        """Moments of all acknowledgements, sorted."""
        return sorted(send.acked_us for send in self.sends if send.acked_us is not None)

    @property
    def reasons(self) -> list[str]:
        """Why sends were not acknowledged."""
        return [send.error for send in self.sends if send.acked_us is None]

    async def check(self) -> Verdict:
        """Compare what the clients saw with what the cluster shows now. Raises `MQError`, `NetError`."""
        return check(self.sends, await self._read_topic(), self.deliveries)

    async def _read_topic(self) -> list[Found]:
        return await read_topic(self.topic, self._namesrv, self.places)

    def check_store(self, log: Sequence[Found]) -> Verdict:
        """Compare what the producers saw with the topic's messages in the files of one replica of each broker
        set."""
        return check(self.sends, log)

    async def abandon(self) -> None:
        """Stop everything at once."""
        for task in self._producers:
            task.cancel()
        await asyncio.gather(*self._producers, return_exceptions=True)
        await asyncio.gather(*(consumer.stop() for consumer in self._consumers), return_exceptions=True)


async def read_topic(topic: str, namesrv: str, places: Places = ONE_SET) -> list[Found]:
    """Every message of a topic, as any client reads it. Raises `MQError`, `NetError`."""
    return [found(message, places) for message in await read_messages(topic, namesrv)]


async def read_messages(topic: str, namesrv: str) -> list[MessageExt]:
    """As `read_topic`: the messages themselves."""
    messages: list[MessageExt] = []
    async with QueueReader(namesrv) as reader:
        for queue in await reader.queues(topic):
            offset, end = await reader.min_offset(queue), await reader.max_offset(queue)
            while offset < end:
                pulled = await reader.pull(queue, offset)
                messages += decode_records(pulled.records)
                if pulled.next_offset <= offset:
                    raise RuntimeError(f"{queue} stands still at {offset}, it should end at {end}")
                offset = pulled.next_offset
    return messages
