"""Stories with transactions: producers that commit, roll back, stay silent, or decide only when asked.

Invariants, besides those of `scenario.py`: what was committed is read once; what was rolled back, or never
acknowledged, is not read; a master asks for what is undecided, so in the end nothing is.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any
from unittest import mock

from batonmq.broker.transaction import half as half_module
from batonmq.broker.transaction.part import TransactionPart
from batonmq.net import Dispatcher, RemotingClient, Reply, Request
from batonmq.net.errors import NetError
from batonmq.protocol.bodies.clients import HeartbeatData, ProducerData
from batonmq.protocol.codes import MessageSysFlag
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker.clients import Heartbeat
from batonmq.protocol.headers.broker.send import EndTransaction, SendMessageResponse, SendMessageV2
from batonmq.protocol.headers.client import CheckTransactionState
from batonmq.protocol.json import encode
from batonmq.protocol.message.ids import decode_message_id
from batonmq.protocol.message.properties import encode_properties
from tests.simulation.cluster import BROKER_PORT, SimClock, SimCluster
from tests.simulation.scenario import Scenario, run
from tests.simulation.story import HEAL_S, QUEUES, TOPIC, Shape, Story, Violation

COMMIT, ROLLBACK = MessageSysFlag.TRANSACTION_COMMIT, MessageSysFlag.TRANSACTION_ROLLBACK
GROUP = "transactions"
PUT_BACK_MS = 3_000
KEYS = {
    "transaction_time_out": 1_000,
    "transaction_check_interval": 1_500,
    "transaction_check_max": 10_000,
    "transaction_op_batch_interval": 1_000,
}

HASTY = {"slave_timeout": 400, "transaction_check_interval": 300}
"""Where slaves get nothing for two seconds: commits do not wait for them, and rounds of checks follow."""


@dataclass
class Transaction:
    """What the producer knows of one half message."""

    key: str
    kind: int
    silent_checks: int
    """Checks that the producer does not answer before it has decided."""
    acked: bool = False
    ends: int = 0
    """Commits that were sent."""
    answered: bool = False
    """The broker has answered that the message is committed."""
    read: int = 0


class TransactionScenario(Scenario):
    """Half of the traffic is transactions."""

    def __init__(self, cluster: SimCluster, story: Story, shape: Shape) -> None:
        cluster.broker_keys.update(KEYS)
        if shape.plot == "stalled":
            cluster.broker_keys.update(HASTY)
        super().__init__(cluster, story, shape)
        self.transactions: dict[str, Transaction] = {}
        self._plain = 0
        self._clock = SimClock(cluster.loop)
        self._seen_by_witness = self.witness.seen
        self.witness.seen = self._seen  # type: ignore[method-assign]

    def _seen(self, key: str, queue_id: int, queue_offset: int, physical: int) -> None:
        new = (queue_id, queue_offset) not in self.story.seen
        self._seen_by_witness(key, queue_id, queue_offset, physical)
        transaction = self.transactions.get(key)
        if transaction is None or not new:
            return
        transaction.read += 1
        if transaction.kind != COMMIT or not transaction.acked:
            what = "rolled back" if transaction.acked else "never acknowledged"
            raise Violation(f"{key} was {what}, and was read")
        if transaction.read > 1:
            raise Violation(f"{key} was read {transaction.read} times, after {transaction.ends} commits")

    # -- the producer -------------------------------------------------------------------------------------

    async def _work(self) -> None:
        self._plain += 1
        if self._plain == 1:
            await super()._work()
            return
        dispatcher = Dispatcher()
        net = RemotingClient(dispatcher=dispatcher)
        dispatcher.on(CheckTransactionState, self._on_check)
        ends: list[asyncio.Task[None]] = []
        beats = asyncio.ensure_future(self._beat(net))
        try:
            while self._sending:
                await self._transact(net, ends)
                await asyncio.sleep(self.random.expovariate(1 / 0.06))
            await asyncio.gather(*ends)
            await self._until(self._all_ended, HEAL_S, "end of all transactions")
        finally:
            beats.cancel()
            await asyncio.gather(beats, return_exceptions=True)
            await net.close()

    def _all_ended(self) -> bool:
        """All half messages are decided, and all that was committed was read."""
        for node in self.cluster.masters():
            term = node.service.part(TransactionPart).term
            if term is None or not term.ready.done() or term.window.size:
                return False
        if not self.cluster.masters():
            return False
        return all(t.read for t in self.transactions.values() if t.acked and t.kind == COMMIT)

    async def _beat(self, net: RemotingClient) -> None:
        data = HeartbeatData(client_id="sim", producer_data_set=[ProducerData(group_name=GROUP)])
        body = encode(data)
        while True:
            for node in self.cluster.brokers:
                try:
                    await net.call(f"{node.address}:{BROKER_PORT}", Heartbeat(), body, timeout_ms=500)
                except (NetError, MQError):
                    continue
            await asyncio.sleep(1.0)

    async def _transact(self, net: RemotingClient, ends: list[asyncio.Task[None]]) -> None:
        masters = self.cluster.masters()
        if not masters:
            return
        address = f"{self.random.choice(masters).address}:{BROKER_PORT}"
        self._number += 1
        key = f"t{self._number}"
        kind = COMMIT if self.random.random() < 0.7 else ROLLBACK
        silent = self.random.randint(0, 3) if self.random.random() < 0.3 else 0
        transaction = self.transactions[key] = Transaction(key, kind, silent)
        try:
            answer = await net.call(address, self._prepare(key), key.encode(), timeout_ms=3_000)
        except (NetError, MQError):
            # Java's producer does not run the local transaction then, and rolls back when it is asked.
            transaction.kind = ROLLBACK
            self.story.unknown += 1
            return
        transaction.acked = True
        assert isinstance(answer.header, SendMessageResponse)
        if silent == 0 and self.random.random() < 0.6:
            ends.append(asyncio.ensure_future(self._end(net, address, transaction, answer.header)))

    def _prepare(self, key: str) -> SendMessageV2:
        properties = {"KEYS": key, "UNIQ_KEY": key, "TRAN_MSG": "true", "PGROUP": GROUP}
        return SendMessageV2(
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

    async def _end(
        self, net: RemotingClient, address: str, transaction: Transaction, half: SendMessageResponse
    ) -> None:
        """End a transaction without being asked, perhaps when its check is under way."""
        await asyncio.sleep(self.random.expovariate(1 / self.random.choice((0.01, 0.3, 2.0))))
        header = EndTransaction(
            producer_group=GROUP,
            tran_state_table_offset=half.queue_offset,
            commit_log_offset=decode_message_id(half.msg_id)[2],
            commit_or_rollback=transaction.kind,
            msg_id=transaction.key,
            transaction_id=transaction.key,
        )
        transaction.ends += transaction.kind == COMMIT
        try:
            await net.call(address, header, timeout_ms=3_000)
        except (NetError, MQError):
            return  # a master will ask
        transaction.answered = True

    def _on_check(self, request: Request, header: CheckTransactionState) -> Reply | None:
        transaction = self.transactions.get(header.transaction_id or "")
        if transaction is None:
            raise Violation(f"a check for {header.transaction_id}, which nobody has sent")
        if not transaction.acked and transaction.kind == COMMIT:
            return None  # the answer to its send is still on the way
        if transaction.silent_checks > 0:
            transaction.silent_checks -= 1
            return None
        transaction.ends += transaction.kind == COMMIT
        request.connection.oneway(
            EndTransaction(
                producer_group=GROUP,
                tran_state_table_offset=header.tran_state_table_offset,
                commit_log_offset=header.commit_log_offset,
                commit_or_rollback=transaction.kind,
                msg_id=transaction.key,
                from_transaction_check=True,
                transaction_id=header.transaction_id,
            )
        )
        return None


def run_transactions(seed: int, shape: Shape) -> tuple[Story, TransactionScenario]:
    """Run the story of `seed` with transactions; raises `Violation`. In every second one half messages are
    stored again after seconds."""
    scenarios: list[TransactionScenario] = []

    class Kept(TransactionScenario):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            scenarios.append(self)

    put_back_ms = PUT_BACK_MS if seed % 2 else half_module.PUT_BACK_AFTER_MS
    with mock.patch.object(half_module, "PUT_BACK_AFTER_MS", put_back_ms):
        story = run(seed, shape, Kept)
    return story, scenarios[0]
