"""Brokers in memory that have logical queues, which move from one to another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from batonmq.net.dispatch import Reply, Request
from batonmq.protocol.bodies.common import MessageQueue
from batonmq.protocol.bodies.routes import TopicQueueMappingInfo
from batonmq.protocol.codes import PullSysFlag, RequestCode, ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker.pull import PullMessage, PullMessageResponse
from batonmq.protocol.headers.broker.send import EndTransaction, SendMessageV2

from .fakes import FakeBroker, FakeCluster, Log

TOPIC = "static"
LOGICAL = [MessageQueue(TOPIC, "__syslo__global__", number) for number in range(4)]
BLOCK = 1_000
PHYSICAL_IDS = 10
"""Logical queue n is physical queue n + 10 of its broker, so that mixed-up ids show."""


@dataclass
class Parts:
    """Where each logical queue is, oldest part first: the broker and the offset at which the part begins."""

    of: dict[int, list[tuple[str, int]]] = field(default_factory=dict)
    logs: dict[str, Log] = field(default_factory=dict)

    def records(self, number: int, broker: str) -> list[bytes]:
        return self.logs[broker].records[MessageQueue(TOPIC, broker, number + PHYSICAL_IDS)]


class StaticBroker(FakeBroker):
    """Serves the logical queues that it leads, and refuses the others as RocketMQ does."""

    def __init__(self, name: str, log: Log) -> None:
        super().__init__(name, log)
        self.parts = Parts()
        self.pulled: list[PullMessage] = []

    def more(self) -> dict[int, Callable[[Request], object]]:
        self.ends: list[EndTransaction] = []
        return {RequestCode.END_TRANSACTION: self._end}

    def _end(self, request: Request) -> Reply:
        self.ends.append(EndTransaction.from_ext(request.command.ext))
        return Reply()

    def _led(self, topic: str, number: int) -> None:
        if topic == TOPIC and self.parts.of[number][-1][0] != self.name:
            raise MQError(ResponseCode.NOT_LEADER_FOR_QUEUE, f"{topic}-{number} is not here")

    def _queue(self, request: Request) -> MessageQueue:
        queue = super()._queue(request)
        self._led(queue.topic, queue.queue_id)
        return queue

    def _send(self, request: Request) -> Reply:
        header = SendMessageV2.from_ext(request.command.ext)
        if header.topic != TOPIC:
            return super()._send(request)
        self._led(TOPIC, header.queue_id)
        number, (_, begin) = header.queue_id, self.parts.of[header.queue_id][-1]
        request.command.ext["e"] = str(number + PHYSICAL_IDS)
        reply = super()._send(request)
        assert reply.header is not None
        reply.header.queue_id, reply.header.queue_offset = number, reply.header.queue_offset + begin
        return reply

    async def _pull(self, request: Request) -> Reply:
        header = PullMessage.from_ext(request.command.ext)
        self.pulled.append(header)
        if header.topic != TOPIC:
            return await super()._pull(request)
        self._led(TOPIC, header.queue_id)
        parts = self.parts.of[header.queue_id]
        at = max(n for n, (_, begin) in enumerate(parts) if begin <= max(0, header.queue_offset))
        broker, begin = parts[at]
        records = self.parts.records(header.queue_id, broker)
        offset = header.queue_offset - begin
        if at + 1 < len(parts) and offset >= len(records):
            moved = PullMessageResponse(0, parts[at + 1][1], 0, parts[at + 1][1], parts[at + 1][1])
            return Reply(moved, code=ResponseCode.PULL_RETRY_IMMEDIATELY)
        if offset >= len(records) and header.sys_flag & PullSysFlag.SUSPEND:
            await self._wait()
        found = records[offset : offset + 3]
        answer = PullMessageResponse(0, begin + offset + len(found), 0, begin + len(records), begin)
        return Reply(answer, found, code=0 if found else ResponseCode.PULL_NOT_FOUND)


class StaticCluster(FakeCluster):
    """Two brokers, and a topic of four logical queues that all are at the first one."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = Parts({number: [("a", 0)] for number in range(4)}, self.logs)
        self.topic(TOPIC, a=4, b=4)

    async def start(self) -> tuple[StaticBroker, StaticBroker]:
        brokers = await self.broker_of(StaticBroker, "a"), await self.broker_of(StaticBroker, "b")
        for broker in brokers:
            broker.parts = self.parts
        self.register()
        return brokers

    def move(self, *numbers: int, to: str, known: bool = True) -> None:
        """Have a broker lead queues; the name server learns it now or with `register`."""
        for number in numbers:
            self.parts.of[number].append((to, BLOCK))
        if known:
            self.register()

    def register(self) -> None:
        self.mappings[TOPIC] = {
            name: TopicQueueMappingInfo(
                TOPIC,
                total_queues=4,
                bname=name,
                curr_id_map={
                    number: number + PHYSICAL_IDS
                    for number, parts in self.parts.of.items()
                    if parts[-1][0] == name
                },
            )
            for name in ("a", "b")
        }
