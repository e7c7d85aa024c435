"""The story of `scenario.py` with readers that ask all the time where their queues end.

Invariants: the end of a queue never goes back, as a reader sees it that follows the master, or any master;
and no broker sends a reader back to messages that it has read, in whatever role. Former masters that do not
know of their successor yet are left out: they take their own log for the whole one.
"""

from __future__ import annotations

import asyncio
import contextlib

from batonmq.net.client import RemotingClient
from batonmq.net.errors import NetError
from batonmq.protocol.bodies.common import MessageQueue
from batonmq.protocol.errors import MQError
from batonmq.protocol.frame import Command
from batonmq.protocol.headers.broker.pull import (
    GetMaxOffset,
    GetMaxOffsetResponse,
    PullMessage,
    PullMessageResponse,
)
from batonmq.protocol.message.record import decode_records
from tests.simulation.cluster import BROKER_NAME, BROKER_PORT, Node, SimCluster
from tests.simulation.scenario import Scenario, run
from tests.simulation.story import TOPIC, Shape, Story, Violation

POLL_S = 0.01
TIMEOUT_MS = 1_000


class EndsScenario(Scenario):
    """Each reader follows the master; for each queue all brokers are asked where a reader should go on."""

    def __init__(self, cluster: SimCluster, story: Story, shape: Shape) -> None:
        super().__init__(cluster, story, shape)
        self._read_to: dict[int, int] = {}
        """Queue id -> offset after the last message that the reader has."""

    async def _read(self, queue_id: int) -> None:
        queue = MessageQueue(topic=TOPIC, broker_name=BROKER_NAME, queue_id=queue_id)
        self._read_to[queue_id] = offset = end = 0
        async with self.cluster.reader() as reader:
            asking = [asyncio.ensure_future(self._ask(node, queue)) for node in self.cluster.brokers]
            while self._reading:
                try:
                    newest = await reader.max_offset(queue)
                    pulled = await reader.pull(queue, offset)
                except (NetError, MQError):
                    await asyncio.sleep(POLL_S)
                    continue
                with self._noting():
                    if newest < end:
                        raise Violation(f"queue {queue_id} ended at {end}, and now at {newest}")
                    if pulled.next_offset < offset:
                        raise Violation(f"queue {queue_id}: the master sent a reader back from {offset}")
                    for record in decode_records(pulled.records):
                        key = record.properties["KEYS"]
                        self.witness.seen(key, queue_id, record.queue_offset, record.physical_offset)
                end = newest
                self._read_to[queue_id] = offset = pulled.next_offset
                await asyncio.sleep(POLL_S)
            await asyncio.gather(*asking)

    async def _ask(self, node: Node, queue: MessageQueue) -> None:
        async with self.cluster.reader() as client:
            net, address = client._session.net, f"{node.address}:{BROKER_PORT}"
            while self._reading:
                with contextlib.suppress(NetError):
                    await self._ask_for_end(net, address, node, queue)
                    await self._ask_for_messages(net, address, node, queue)
                await asyncio.sleep(POLL_S)

    async def _ask_for_end(self, net: RemotingClient, address: str, node: Node, queue: MessageQueue) -> None:
        if not self._is_master(node):
            return  # slaves answer as RocketMQ's do
        read_to = self._read_to[queue.queue_id]
        header = GetMaxOffset(queue.topic, queue.queue_id)
        try:
            answer = (await net.call(address, header, timeout_ms=TIMEOUT_MS)).header
        except MQError:
            return  # it does not know, and says so
        assert isinstance(answer, GetMaxOffsetResponse)
        with self._noting():
            if answer.offset < read_to and self._is_master(node):
                raise Violation(
                    f"queue {queue.queue_id} was read up to {read_to}, and ends at {answer.offset} "
                    f"at {node.name}"
                )

    async def _ask_for_messages(
        self, net: RemotingClient, address: str, node: Node, queue: MessageQueue
    ) -> None:
        read_to = self._read_to[queue.queue_id]
        header = PullMessage.at_once("ends", queue.topic, queue.queue_id, read_to, 1)
        command = Command(int(header.code), header.to_ext())
        answer = await net.invoke(address, command, timeout_ms=TIMEOUT_MS)
        if "nextBeginOffset" not in answer.ext:
            return  # it serves no pulls now
        sent_to = PullMessageResponse.from_ext(answer.ext).next_begin_offset
        with self._noting():
            if sent_to < read_to and not self._is_deposed(node):
                raise Violation(
                    f"queue {queue.queue_id}: {node.name} sent a reader back from {read_to} to {sent_to}"
                )

    def _is_master(self, node: Node) -> bool:
        return node.broker is not None and node.broker.role.is_master and not self._is_deposed(node)

    def _is_deposed(self, node: Node) -> bool:
        """Whether this broker takes itself for the master, and has a successor."""
        if node.broker is None:
            return True
        role = node.broker.role
        return role.is_master and role.epoch < self.witness.newest_epoch


def run_ends(seed: int, shape: Shape) -> Story:
    """Raises `Violation`."""
    return run(seed, shape, EndsScenario)
