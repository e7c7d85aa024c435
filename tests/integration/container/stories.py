"""What RocketMQ's own tests of containers and acting masters check, over the wire.

The source is `org.apache.rocketmq.test.container` (5.5.0), whose tests run nine brokers in one JVM. Here each
container is a process, and the same story runs on ours and on RocketMQ's. A story leaves the nine brokers
whole. Its topic, one queue at each master unless it says otherwise, exists beforehand: a Java slave copies
topics once a minute.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tests.integration.container.trio import SETS, SLAVES, Trio
from tests.integration.pop.rig import Rig as PopRig

from batonmq import Message, MessageExt, MessageQueue, PopConsumer, TransactionProducer, TransactionState
from batonmq.broker.timer.layout import decode_checkpoint
from batonmq.protocol.bodies.clients import LockBatchRequestBody, LockBatchResponseBody
from batonmq.protocol.bodies.routes import ClusterInfo
from batonmq.protocol.bodies.statistics import DelayOffsetSerializeWrapper
from batonmq.protocol.codes import RequestCode, ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker.admin import GetTimerCheckPoint
from batonmq.protocol.headers.broker.clients import LockBatchMq
from batonmq.protocol.headers.broker.pull import GetAllDelayOffset, GetMaxOffset, GetMaxOffsetResponse
from batonmq.protocol.headers.broker.replication import AddBroker
from batonmq.protocol.headers.broker.send import ConsumerSendMsgBack
from batonmq.protocol.headers.namesrv import GetBrokerClusterInfo
from batonmq.protocol.json import decode, encode
from batonmq.protocol.names import pop_retry_topic, retry_topic

COUNT = 32
LATE_S = 4.0
"""How late a delayed or timed message may come while brokers come and go; RocketMQ's tests allow as much."""


@dataclass(frozen=True)
class Story:
    run: Callable[[Trio], Awaitable[None]]
    sets: str = SETS
    """Masters that have the topic beforehand."""
    queues: int = 1
    pop_group: str = ""
    """Its retry topic of pop exists beforehand, too."""

    @property
    def name(self) -> str:
        return self.run.__name__

    async def prepare(self, trio: Trio) -> None:
        await trio.create_topic(self.name, sets=self.sets, queues=self.queues)
        if self.pop_group:
            await trio.create_topic(pop_retry_topic(self.pop_group, self.name, v2=False), sets=self.sets)


STORIES: list[Story] = []


def story(**values: Any) -> Callable[[Callable[[Trio], Awaitable[None]]], Callable[[Trio], Awaitable[None]]]:
    """Adds the function to `STORIES`; its topic has the function's name."""

    def add(run: Callable[[Trio], Awaitable[None]]) -> Callable[[Trio], Awaitable[None]]:
        STORIES.append(Story(run, **values))
        return run

    return add


@asynccontextmanager
async def consuming(trio: Trio, group: str, topic: str) -> AsyncIterator[dict[str, list[float]]]:
    """A push consumer of the topic: body -> the wall times at which it came."""
    came: dict[str, list[float]] = {}

    async def handle(message: MessageExt) -> None:
        came.setdefault(message.body.decode(), []).append(time.time())

    consumer = trio.consumer(group)
    consumer.subscribe(topic, "*", handle)
    async with consumer:
        yield came


async def complete(
    trio: Trio, came: dict[str, list[float]], bodies: list[str], timeout_s: float = 60
) -> None:
    async def all_there() -> bool:
        return came.keys() >= set(bodies)

    await trio.until(all_there, f"{len(bodies)} messages come", timeout_s)


async def on_time(trio: Trio, came: dict[str, list[float]], due: dict[str, float]) -> None:
    """Until all came; 95 of 100 on time, none early."""
    await complete(trio, came, list(due))
    late = {body: came[body][0] - due[body] for body in due}
    assert min(late.values()) > -1.1, late
    assert sum(each < LATE_S for each in late.values()) >= 0.95 * len(due), late


async def delayed(trio: Trio, name: str, topic: str) -> dict[str, float]:
    """Send delayed messages to a set: body -> when each is due, wall time in s."""
    bodies = await trio.send(name, topic, COUNT, delay_level=trio.delay_level)
    return dict.fromkeys(bodies, time.time() + trio.delay_s)


async def timed(trio: Trio, name: str, topic: str) -> dict[str, float]:
    """The same of timed ones."""
    due_s = time.time() + trio.delay_s
    return dict.fromkeys(await trio.send(name, topic, COUNT, deliver_at=due_s), due_s)


async def offset_of(
    trio: Trio, address: str, group: str, topic: str, wanted: int, timeout_s: float = 60
) -> None:
    async def reached() -> bool:
        return await trio.committed(address, group, topic) >= wanted

    await trio.until(reached, f"{address} has offset {wanted} of {group}", timeout_s)


# -- AddAndRemoveBrokerIT, SlaveBrokerIT, BrokerMemberGroupIT, BrokerFailoverIT


@story()
async def an_added_broker_needs_a_file(trio: Trio) -> None:
    try:
        await trio.client.call(trio.addresses[0], AddBroker(config_path=""))
    except MQError as error:
        assert error.code == ResponseCode.SYSTEM_ERROR and "empty" in error.remark
    else:
        raise AssertionError("a broker without a file was added")


@story()
async def a_slave_is_removed_and_added(trio: Trio) -> None:
    await trio.remove("c", 1)
    assert not await trio.running("c", 1)
    assert await trio.running("a", 0) and await trio.running("b", 2)
    await trio.add("c", 1)
    await trio.whole()


@story()
async def a_slave_of_each_set_is_removed_and_added(trio: Trio) -> None:
    async def listed(count: int) -> bool:
        answer = await trio.client.call(trio.namesrv_address, GetBrokerClusterInfo())
        sets = decode(bytes(answer.body), ClusterInfo).broker_addr_table
        return all(len(sets[name].broker_addrs) == count for name in SETS)

    await trio.until(partial(listed, 3), "all are listed", 60)
    for name in SETS:
        await trio.remove(name, 1)
    await trio.until(partial(listed, 2), "two of each set are listed", 60)
    for name in SETS:
        await trio.add(name, 1)
    await trio.until(partial(listed, 3), "all are listed again", 60)
    await trio.whole()


@story()
async def the_member_group_follows_what_is_removed(trio: Trio) -> None:
    async def without_slave_1(name: str) -> bool:
        return set(await trio.members(name)) == {0, 2}

    for name in "ac":
        assert len(await trio.members(name)) == 1 + SLAVES
        await trio.remove(name, 1)
    for name in "ac":
        await trio.until(partial(without_slave_1, name), f"{name} has two members", 5)
    for name in "ac":
        await trio.add(name, 1)
    await trio.whole()


async def _failover(trio: Trio, topic: str, code: RequestCode) -> None:
    """The name server takes no heartbeats of container 0: its brokers leave their sets, and the slave of its
    master acts. All come back with the heartbeats. Registrations are refused, too: a broker of ours registers
    as soon as the name server has dropped it, one of RocketMQ's half a minute later."""

    async def lost() -> bool:
        return [set(await trio.members(name)) for name in SETS] == [{1, 2}, {0, 1}, {0, 2}]

    async def back() -> bool:
        return [len(await trio.members(name)) for name in SETS] == [3, 3, 3]

    trio.mute(code, 0)
    try:
        await trio.until(lost, "the brokers of container 0 are gone", 60)
        await trio.acting("a", topic)
    finally:
        trio.unmute()
    await trio.until(back, "they are back", 60)
    await trio.whole()


@story()
async def without_heartbeats_the_slave_acts(trio: Trio) -> None:
    await _failover(trio, "without_heartbeats_the_slave_acts", RequestCode.BROKER_HEARTBEAT)


@story()
async def the_same_with_heartbeats_for_old_name_servers(trio: Trio) -> None:
    for place in trio.confs:
        await trio.set_key(*place, "compatibleWithOldNameSrv", "true")
    try:
        topic = "the_same_with_heartbeats_for_old_name_servers"
        await _failover(trio, topic, RequestCode.QUERY_DATA_VERSION)
    finally:
        for place in trio.confs:
            await trio.set_key(*place, "compatibleWithOldNameSrv", "false")


# -- GetMaxOffsetFromSlaveIT, SyncConsumerOffsetIT, RebalanceLockOnSlaveIT


@story(queues=8)
async def the_acting_slave_knows_the_end_of_each_queue(trio: Trio) -> None:
    topic = "the_acting_slave_knows_the_end_of_each_queue"
    await trio.send("c", topic, 100, queues=8)

    async def ends(address: str) -> list[int]:
        found = []
        for queue_id in range(8):
            answer = await trio.client.call(address, GetMaxOffset(topic=topic, queue_id=queue_id))
            assert isinstance(answer.header, GetMaxOffsetResponse)
            found.append(answer.header.offset)
        return found

    before = await ends(trio.address("c"))
    assert sum(before) == 100
    await trio.whole()
    await trio.isolate("c")
    assert await ends(await trio.acting("c", topic)) == before
    await trio.rejoin("c")
    await trio.whole()


@story(sets="c")
async def slaves_copy_the_offsets_of_groups(trio: Trio) -> None:
    topic = "slaves_copy_the_offsets_of_groups"
    bodies = await trio.send("c", topic, 100)
    async with consuming(trio, "trio_copied", topic) as came:
        await complete(trio, came, bodies, 100)
        for broker_id in range(1 + SLAVES):
            await offset_of(trio, trio.address("c", broker_id), "trio_copied", topic, 100, 120)


@story(queues=8)
async def locks_need_more_than_half_of_the_replicas(trio: Trio) -> None:
    topic, group = "locks_need_more_than_half_of_the_replicas", "trio_locks"

    async def locked(name: str) -> bool:
        address = await trio.serving(name, topic)
        if address is None:
            return False
        queues = [MessageQueue(topic, name, queue_id) for queue_id in range(8)]
        body = LockBatchRequestBody(consumer_group=group, client_id="one", mq_set=queues)
        answer = await trio.client.call(address, LockBatchMq(), encode(body), timeout_ms=10_000)
        return len(decode(answer.body, LockBatchResponseBody).lock_ok_mq_set) == 8

    async def refused() -> bool:
        return not await locked("c")

    for name in SETS:
        await trio.until(partial(locked, name), f"locks of {name}", 60)
    await trio.isolate("c")
    await trio.acting("c", topic)
    await trio.until(partial(locked, "c"), "locks of c while its slave acts", 60)
    await trio.remove("c", 1)
    await trio.acting("c", topic, 2)
    await trio.until(refused, "one of three replicas grants no lock", 60)
    await trio.add("c", 1)
    await trio.rejoin("c")
    await trio.whole()


# -- PullMultipleReplicasIT, PushMultipleReplicasIT, SendMultipleReplicasIT


@story()
async def all_replicas_serve_a_pull(trio: Trio) -> None:
    topic = "all_replicas_serve_a_pull"
    bodies = await trio.send("b", topic, 3)

    async def same(broker_id: int) -> bool:
        return await trio.bodies(topic, ("b", broker_id)) == bodies

    for broker_id in range(1 + SLAVES):
        await trio.until(partial(same, broker_id), f"b{broker_id} serves pulls", 60)


@story()
async def a_master_beside_a_slave_stores_what_comes_back(trio: Trio) -> None:
    """A consumer sends a message back to a slave of c. The master of a, in the same container, stores it."""
    topic, group = "a_master_beside_a_slave_stores_what_comes_back", "trio_sent_back"
    bodies = await trio.send("c", topic, 1)
    async with consuming(trio, group, topic) as came:  # creates the group at all masters
        await complete(trio, came, bodies)
    await trio.whole()
    (message,) = await trio.read(trio.address("c", 1), topic)
    header = ConsumerSendMsgBack(
        offset=message.physical_offset,
        group=group,
        delay_level=1,
        origin_topic=topic,
        max_reconsume_times=16,
    )
    await trio.client.call(trio.address("c", 1), header)

    async def stored() -> bool:
        return len(await trio.bodies(retry_topic(group), ("a", 0))) >= 1

    await trio.until(stored, "the master of a has the message", 60)
    assert set(await trio.bodies(retry_topic(group), ("a", 0))) == set(bodies)


@story(sets="a")
async def consumers_go_on_at_the_slave_of_an_isolated_master(trio: Trio) -> None:
    topic, group = "consumers_go_on_at_the_slave_of_an_isolated_master", "trio_isolated"
    bodies = await trio.send("a", topic, COUNT)
    await trio.whole()
    await trio.isolate("a")
    slave = await trio.acting("a", topic)
    async with consuming(trio, group, topic) as came:
        await complete(trio, came, bodies)
        await offset_of(trio, slave, group, topic, COUNT)
    await trio.rejoin("a")
    await trio.whole()


@story()
async def a_send_needs_no_slaves_that_are_gone(trio: Trio) -> None:
    topic = "a_send_needs_no_slaves_that_are_gone"
    await trio.send("a", topic, 1)
    for broker_id in (1, 2):
        await trio.remove("a", broker_id)

    async def sent() -> bool:
        await trio.send("a", topic, 1)
        return True

    await trio.until(sent, "the master alone takes messages", 100)
    for broker_id in (1, 2):
        await trio.add("a", broker_id)
    await trio.whole()


@story()
async def without_automatic_degrade_a_send_is_refused(trio: Trio) -> None:
    topic = "without_automatic_degrade_a_send_is_refused"
    for broker_id in (1, 2):
        await trio.remove("a", broker_id)

    async def alone() -> bool:
        return len(await trio.members("a")) == 1 and await trio.slaves_of("a") == 0

    await trio.until(alone, "the master is alone", 100)
    await trio.set_key("a", 0, "enableAutoInSyncReplicas", "false")
    try:
        await trio.send("a", topic, 1)
    except MQError as error:
        assert error.code == ResponseCode.SYSTEM_ERROR and "in-sync" in error.remark.lower(), error
    else:
        raise AssertionError("the send was accepted with one copy")
    finally:
        await trio.set_key("a", 0, "enableAutoInSyncReplicas", "true")
        for broker_id in (1, 2):
            await trio.add("a", broker_id)
    await trio.whole()


# -- ScheduledMessageIT, ScheduleSlaveActingMasterIT


Send = Callable[[Trio, str, str], Awaitable[dict[str, float]]]
"""`delayed` or `timed`."""


async def _come_from_an_isolated_master(trio: Trio, topic: str, send: Send) -> None:
    due = await send(trio, "a", topic)
    await trio.isolate("a")
    async with consuming(trio, f"of_{topic}", topic) as came:
        await complete(trio, came, list(due))
    await trio.rejoin("a")
    await trio.whole()


async def _come_elsewhere(trio: Trio, topic: str, send: Send, *, lost: str, at: str) -> None:
    """Messages wait at a, and the masters of these sets are lost: they come in time at the master of `at`."""
    async with consuming(trio, f"of_{topic}", topic) as came:
        due = await send(trio, "a", topic)
        for name in lost:
            await trio.lose(name)
        await on_time(trio, came, due)
    assert set(await trio.bodies(topic, (at, 0))) == set(due)
    for name in lost:
        await trio.bring_back(name)
    await trio.whole()


@story()
async def delayed_messages_of_an_isolated_master_come(trio: Trio) -> None:
    await _come_from_an_isolated_master(trio, "delayed_messages_of_an_isolated_master_come", delayed)


@story()
async def timed_messages_of_an_isolated_master_come(trio: Trio) -> None:
    await _come_from_an_isolated_master(trio, "timed_messages_of_an_isolated_master_come", timed)


@story()
async def delayed_messages_come_at_the_master_beside(trio: Trio) -> None:
    """The master of b is in the container of the acting slave."""
    topic = "delayed_messages_come_at_the_master_beside"
    await _come_elsewhere(trio, topic, delayed, lost="a", at="b")


@story()
async def timed_messages_come_at_the_master_beside(trio: Trio) -> None:
    await _come_elsewhere(trio, "timed_messages_come_at_the_master_beside", timed, lost="a", at="b")


@story()
async def delayed_messages_come_at_a_master_elsewhere(trio: Trio) -> None:
    """The master of c is in another container than the acting slave."""
    topic = "delayed_messages_come_at_a_master_elsewhere"
    await _come_elsewhere(trio, topic, delayed, lost="ab", at="c")


@story()
async def timed_messages_come_at_a_master_elsewhere(trio: Trio) -> None:
    await _come_elsewhere(trio, "timed_messages_come_at_a_master_elsewhere", timed, lost="ab", at="c")


# -- GetMetadataReverseIT: what the acting slave did, the master knows when it is back


@story(sets="a")
async def a_master_that_returns_takes_the_offsets_of_groups(trio: Trio) -> None:
    topic, group = "a_master_that_returns_takes_the_offsets_of_groups", "trio_reverse"
    bodies = await trio.send("a", topic, COUNT)
    await trio.whole()
    await trio.lose("a")
    slave = await trio.acting("a", topic)
    async with consuming(trio, group, topic) as came:
        await complete(trio, came, bodies, 180)
        await offset_of(trio, slave, group, topic, COUNT)
    await trio.bring_back("a")
    await offset_of(trio, trio.address("a"), group, topic, COUNT)
    await trio.whole()


async def _progress_is_taken(
    trio: Trio, topic: str, send: Send, progress: Callable[[], Awaitable[int]]
) -> dict[str, float]:
    """The acting slave delivers what waited at a; the master's `progress` counts it after the return."""
    before = await progress()
    due = await send(trio, "a", topic)
    await trio.lose("a")
    async with consuming(trio, f"of_{topic}", topic) as came:
        await complete(trio, came, list(due))
    await trio.bring_back("a")

    async def taken() -> bool:
        return await progress() >= before + COUNT

    await trio.until(taken, "the master knows that they were delivered", 60)
    await trio.whole()
    return due


@story()
async def a_master_that_returns_takes_the_progress_of_delay_levels(trio: Trio) -> None:
    async def progress() -> int:
        answer = await trio.client.call(trio.address("a"), GetAllDelayOffset())
        return decode(bytes(answer.body), DelayOffsetSerializeWrapper).offset_table.get(trio.delay_level, 0)

    topic = "a_master_that_returns_takes_the_progress_of_delay_levels"
    due = await _progress_is_taken(trio, topic, delayed, progress)
    assert sorted(await trio.bodies(topic, ("a", 0), ("b", 0), ("c", 0))) == sorted(due), "each came once"


@story()
async def a_master_that_returns_takes_the_progress_of_timers(trio: Trio) -> None:
    async def progress() -> int:
        answer = await trio.client.call(trio.address("a"), GetTimerCheckPoint())
        return decode_checkpoint(bytes(answer.body)).master_queue_offset

    topic = "a_master_that_returns_takes_the_progress_of_timers"
    await _progress_is_taken(trio, topic, timed, progress)


# -- PopSlaveActingMasterIT


async def _pop_all(trio: Trio, address: str, topic: str, group: str, count: int, invisible_ms: int) -> None:
    """Pop so many messages of the topic, and acknowledge none."""
    rig = PopRig(Path(), {}, trio.client, address=address)
    found: list[bytes] = []

    async def enough() -> bool:
        popped = await rig.pop(topic, group, init_mode=0, invisible_time=invisible_ms)
        found.extend(each.body for each in popped)
        return len(found) >= count

    await trio.until(enough, f"{count} messages are popped", 60)


async def _popped_and_acknowledged(trio: Trio, topic: str, group: str) -> None:
    bodies = await trio.send("a", topic, 16)
    await trio.whole("a")
    came: list[str] = []

    async def handle(message: MessageExt) -> None:
        came.append(message.body.decode())

    await trio.isolate("a")
    await trio.acting("a", topic)
    consumer = PopConsumer(group, trio.namesrv_address, poll_interval_ms=1_000, invisible_duration=5)
    consumer.subscribe(topic, "*", handle)
    async with consumer:

        async def enough() -> bool:
            return set(came) >= set(bodies)

        await trio.until(enough, "all come", 60)


async def _popped_and_forgotten(
    trio: Trio, topic: str, group: str, *, lost: Sequence[tuple[str, int]]
) -> None:
    """Messages are popped from the acting slave of a, while a is isolated and other brokers are lost. Nobody
    acknowledges them, so all come into the retry topic."""
    bodies = await trio.send("a", topic, 16)
    await trio.whole()
    await trio.isolate("a")
    for place in lost:
        await trio.lose(*place)
    await _pop_all(trio, await trio.acting("a", topic), topic, group, 16, 5_000)

    async def back() -> bool:
        return sorted(await _retried(trio, topic, group)) == sorted(bodies)

    await trio.until(back, "all are in the retry topic, once", 180)
    await trio.rejoin("a")
    for place in lost:
        await trio.bring_back(*place)
    await trio.whole()


async def _retried(trio: Trio, topic: str, group: str) -> list[str]:
    """What was put into the retry topics of pop, at all brokers that masters or slaves in their place."""
    found = []
    for name in SETS:
        try:
            address = await trio.serving(name, topic)
        except MQError:
            continue
        if address is None:
            continue
        for v2 in (False, True):
            records = await trio.read(address, pop_retry_topic(group, topic, v2=v2))
            found += [each.body.decode() for each in records]
    return found


@story(pop_group="trio_pop_local")
async def what_was_acknowledged_at_the_acting_slave_never_comes_back(trio: Trio) -> None:
    topic, group = "what_was_acknowledged_at_the_acting_slave_never_comes_back", "trio_pop_local"
    await _popped_and_acknowledged(trio, topic, group)
    await asyncio.sleep(10)
    assert await _retried(trio, topic, group) == []
    await trio.rejoin("a")
    await trio.whole()


@story(pop_group="trio_pop_late")
async def what_was_not_acknowledged_comes_back_at_the_master_beside(trio: Trio) -> None:
    topic = "what_was_not_acknowledged_comes_back_at_the_master_beside"
    await _popped_and_forgotten(trio, topic, "trio_pop_late", lost=[])


@story(pop_group="trio_pop_remote")
async def what_was_acknowledged_never_comes_back_without_a_master_beside(trio: Trio) -> None:
    topic, group = "what_was_acknowledged_never_comes_back_without_a_master_beside", "trio_pop_remote"
    await trio.lose("b")
    await _popped_and_acknowledged(trio, topic, group)
    await asyncio.sleep(10)
    assert await _retried(trio, topic, group) == []
    await trio.rejoin("a")
    await trio.bring_back("b")
    await trio.whole()
    await asyncio.sleep(10)
    assert await _retried(trio, topic, group) == []


@story(pop_group="trio_pop_near")
async def what_was_not_acknowledged_comes_back_at_a_master_beside_another_slave(trio: Trio) -> None:
    """The master of c stores the check points. It reads the messages from slave 2 of a in its container."""
    topic = "what_was_not_acknowledged_comes_back_at_a_master_beside_another_slave"
    await _popped_and_forgotten(trio, topic, "trio_pop_near", lost=[("b", 0)])


@story(pop_group="trio_pop_far")
async def what_was_not_acknowledged_comes_back_at_a_master_elsewhere(trio: Trio) -> None:
    """The master of c has no replica of a in its container, and reads the messages over the network."""
    topic = "what_was_not_acknowledged_comes_back_at_a_master_elsewhere"
    await _popped_and_forgotten(trio, topic, "trio_pop_far", lost=[("b", 0), ("a", 2)])


# -- TransactionMessageIT


class _Open(Exception):
    """Leaves a transaction open."""


@asynccontextmanager
async def _transactions(
    trio: Trio, topic: str, group: str, decided: asyncio.Event
) -> AsyncIterator[list[str]]:
    """A producer with 16 open half messages at a; it commits when asked, once `decided` is set."""

    def check(message: MessageExt) -> TransactionState:
        return TransactionState.COMMIT if decided.is_set() else TransactionState.UNKNOWN

    producer = TransactionProducer(group, trio.namesrv_address, check=check, poll_interval_ms=1_000)
    async with producer:
        bodies = [f"{topic} {number}" for number in range(16)]
        for body in bodies:
            half = producer.transaction(Message(topic, body.encode()), queue=MessageQueue(topic, "a", 0))
            with suppress(_Open):
                async with half:
                    raise _Open
        yield bodies


@story(sets="a")
async def committed_transactions_are_delivered(trio: Trio) -> None:
    topic = "committed_transactions_are_delivered"
    producer = TransactionProducer(
        "trio_tx", trio.namesrv_address, check=lambda message: TransactionState.COMMIT, poll_interval_ms=1_000
    )
    bodies = [f"{topic} {number}" for number in range(16)]
    async with consuming(trio, "trio_tx_group", topic) as came, producer:
        for body in bodies:
            async with producer.transaction(Message(topic, body.encode())):
                pass
        await complete(trio, came, bodies)


@story(sets="a")
async def open_transactions_are_checked_by_the_master_beside(trio: Trio) -> None:
    topic, decided = "open_transactions_are_checked_by_the_master_beside", asyncio.Event()
    async with (
        consuming(trio, "trio_tx_local", topic) as came,
        _transactions(trio, topic, "trio_tx_local_p", decided) as bodies,
    ):
        await trio.lose("a")
        await trio.create_at("b", topic)
        decided.set()
        await complete(trio, came, bodies, 300)
    await trio.bring_back("a")
    await trio.whole()


@story(sets="a")
async def open_transactions_are_checked_by_a_master_elsewhere(trio: Trio) -> None:
    topic, decided = "open_transactions_are_checked_by_a_master_elsewhere", asyncio.Event()
    async with (
        consuming(trio, "trio_tx_remote", topic) as came,
        _transactions(trio, topic, "trio_tx_remote_p", decided) as bodies,
    ):
        await trio.lose("a")
        for name in "bc":
            await trio.create_at(name, topic)
        await trio.lose("b")
        decided.set()
        await complete(trio, came, bodies, 180)
    await trio.bring_back("a")
    await trio.bring_back("b")
    await trio.whole()
    async with consuming(trio, "trio_tx_remote", topic) as again:
        await asyncio.sleep(10)
    assert not again, "nothing comes twice"
