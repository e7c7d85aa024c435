"""Clients of the stories of `acting.py`: a producer of transactions, and a pop consumer.

They use whichever broker of a set serves: its master, or the slave that acts as one.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from batonmq.net import Dispatcher, RemotingClient, Reply, Request
from batonmq.net.errors import NetError
from batonmq.protocol.bodies.clients import HeartbeatData, ProducerData
from batonmq.protocol.codes import MessageSysFlag, ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker.clients import Heartbeat
from batonmq.protocol.headers.broker.pop import AckMessage, PopMessage
from batonmq.protocol.headers.broker.send import EndTransaction, SendMessageResponse, SendMessageV2
from batonmq.protocol.headers.client import CheckTransactionState
from batonmq.protocol.json import encode
from batonmq.protocol.message.ids import decode_message_id
from batonmq.protocol.message.properties import encode_properties
from batonmq.protocol.pop import Receipt
from tests.simulation.cluster import SimClock
from tests.simulation.receipts import with_receipts

if TYPE_CHECKING:
    from tests.simulation.acting import ActingScenario

COMMIT, ROLLBACK = MessageSysFlag.TRANSACTION_COMMIT, MessageSysFlag.TRANSACTION_ROLLBACK
GROUP = "transactions"
POP_GROUP = "poppers"
POPPED = "popped"
_POPPED = (ResponseCode.SUCCESS, ResponseCode.POLLING_TIMEOUT, ResponseCode.POLLING_FULL)


@dataclass
class _Client:
    scenario: ActingScenario

    def serving(self, name: str) -> str | None:
        """Address of the broker that serves a set."""
        for node in self.scenario.cluster.pair(name):
            if node.up and node.broker is not None and node.broker.role.serves:
                return f"{node.address}:{node.port}"
        return None


class Transactions(_Client):
    """Half messages to set `a`, ended a while later, or only when a broker asks."""

    def __init__(self, scenario: ActingScenario, topic: str, queues: int) -> None:
        super().__init__(scenario)
        self._topic, self._queues = topic, queues
        self.kinds: dict[str, int] = {}
        """Key -> how it ends."""
        self.committed: set[str] = set()
        """Acknowledged half messages that are to be committed."""
        self._clock = SimClock(scenario.cluster.loop)

    async def run(self) -> None:
        dispatcher = Dispatcher()
        net = RemotingClient(dispatcher=dispatcher)
        dispatcher.on(CheckTransactionState, self._on_check)
        beats = asyncio.ensure_future(self._beat(net))
        ends: list[asyncio.Task[None]] = []
        try:
            while not self.scenario.over:
                if self.scenario.sending:
                    await self._transact(net, ends)
                await asyncio.sleep(self.scenario.random.expovariate(1 / 0.3))
        finally:
            for task in (beats, *ends):
                task.cancel()
            await asyncio.gather(beats, *ends, return_exceptions=True)
            await net.close()

    async def _beat(self, net: RemotingClient) -> None:
        body = encode(HeartbeatData(client_id="sim", producer_data_set=[ProducerData(group_name=GROUP)]))
        while True:
            for node in self.scenario.cluster.replicas:
                try:
                    await net.call(f"{node.address}:{node.port}", Heartbeat(), body, timeout_ms=500)
                except (NetError, MQError):
                    continue
            await asyncio.sleep(1.0)

    async def _transact(self, net: RemotingClient, ends: list[asyncio.Task[None]]) -> None:
        pick = self.scenario.random
        address = self.serving("a")
        if address is None:
            return
        key = f"t{len(self.kinds)}"
        kind = self.kinds[key] = COMMIT if pick.random() < 0.7 else ROLLBACK
        header = SendMessageV2(
            producer_group=GROUP,
            topic=self._topic,
            default_topic="TBW102",
            default_topic_queue_nums=4,
            queue_id=pick.randrange(self._queues),
            sys_flag=MessageSysFlag.TRANSACTION_PREPARED,
            born_timestamp=self._clock.now_ms(),
            flag=0,
            properties=encode_properties(
                {"TRAN_MSG": "true", "PGROUP": GROUP, "UNIQ_KEY": key, "KEYS": key}
            ).decode(),
        )
        try:
            answer = await net.call(address, header, key.encode(), timeout_ms=3_000)
        except (NetError, MQError):
            self.kinds[key] = ROLLBACK
            return
        assert isinstance(answer.header, SendMessageResponse)
        if kind == COMMIT:
            self.committed.add(key)
        if pick.random() < 0.7:
            ends.append(asyncio.ensure_future(self._end(net, key, kind, answer.header, pick.expovariate(1))))

    async def _end(
        self, net: RemotingClient, key: str, kind: int, half: SendMessageResponse, delay_s: float
    ) -> None:
        await asyncio.sleep(delay_s)
        address = self.serving("a")
        if address is None:
            return
        header = EndTransaction(
            producer_group=GROUP,
            tran_state_table_offset=half.queue_offset,
            commit_log_offset=decode_message_id(half.msg_id)[2],
            commit_or_rollback=kind,
            msg_id=key,
            transaction_id=key,
        )
        with contextlib.suppress(NetError, MQError):  # a check decides
            await net.call(address, header, timeout_ms=3_000)

    async def _on_check(self, request: Request, header: CheckTransactionState) -> Reply | None:
        key = header.transaction_id or ""
        if self.kinds.get(key) == COMMIT and key not in self.committed:
            return None  # the answer to its send is still on the way
        end = EndTransaction(
            producer_group=GROUP,
            tran_state_table_offset=header.tran_state_table_offset,
            commit_log_offset=header.commit_log_offset,
            commit_or_rollback=self.kinds.get(key, ROLLBACK),
            msg_id=key,
            from_transaction_check=True,
            transaction_id=key,
        )
        request.connection.oneway(end)
        return None


class Popper(_Client):
    """Pops from all sets, acknowledges most messages, and lets the others come again."""

    def __init__(self, scenario: ActingScenario) -> None:
        super().__init__(scenario)
        self.done: set[str] = set()
        """Keys of messages whose ack was answered, or whose ack may have been carried out."""

    async def run(self) -> None:
        net = RemotingClient()
        try:
            while not self.scenario.over:
                for name in self.scenario.cluster.sets:
                    address = self.serving(name)
                    if address is not None:
                        await self._pop(net, name, address)
                await asyncio.sleep(
                    self.scenario.random.expovariate(1 / (0.2 if self.scenario.sending else 2.0))
                )
        finally:
            await net.close()

    async def _pop(self, net: RemotingClient, name: str, address: str) -> None:
        pick = self.scenario.random
        header = PopMessage(
            consumer_group=POP_GROUP,
            topic=POPPED,
            queue_id=-1,
            max_msg_nums=pick.randint(1, 16),
            invisible_time=pick.randint(1_000, 5_000),
            poll_time=0,
            born_time=0,
            init_mode=0,
        )
        try:
            answer = await net.call(address, header, timeout_ms=3_000, accept=_POPPED)
        except (NetError, MQError):
            return
        for record, receipt in with_receipts(answer, name):
            if pick.random() < 0.7 and await self._ack(net, self.serving(name), receipt):
                self.done.add(record.properties["KEYS"])

    async def _ack(self, net: RemotingClient, address: str | None, receipt: Receipt) -> bool:
        if address is None:
            return False
        header = AckMessage(
            consumer_group=POP_GROUP,
            topic=receipt.stored_topic(POPPED, POP_GROUP),
            queue_id=receipt.queue_id,
            extra_info=str(receipt),
            offset=receipt.offset,
        )
        try:
            await net.call(address, header, timeout_ms=3_000)
        except MQError:
            return False
        except NetError as error:
            return error.sent
        return True
