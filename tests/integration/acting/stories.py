"""What happens to clients of a broker set whose master dies: with processes and in the simulator."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.integration.acting.group import CLUSTER, QUEUES, TOPIC, Asks, until
from tests.integration.pop.rig import Popped
from tests.integration.pop.rig import Rig as PopRig
from tests.integration.transactions import COMMIT, ROLLBACK, RawProducer, raw_producer

from batonmq.net import RemotingClient
from batonmq.protocol.bodies.clients import (
    LockBatchRequestBody,
    LockBatchResponseBody,
    UnlockBatchRequestBody,
)
from batonmq.protocol.bodies.common import MessageQueue
from batonmq.protocol.bodies.pop import CheckPoint
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker.clients import LockBatchMq, UnlockBatchMq
from batonmq.protocol.headers.broker.pull import (
    GetEarliestMsgStoretime,
    GetEarliestMsgStoretimeResponse,
    GetMaxOffset,
    GetMaxOffsetResponse,
    GetMinOffset,
    GetMinOffsetResponse,
    QueryConsumerOffset,
    QueryConsumerOffsetResponse,
    SearchOffset,
    SearchOffsetResponse,
    UpdateConsumerOffset,
)
from batonmq.protocol.headers.broker.send import SendMessageV2
from batonmq.protocol.json import decode, encode
from batonmq.protocol.message.properties import encode_properties
from batonmq.protocol.message.record import MessageExt
from batonmq.protocol.names import revive_topic

QUICK_TRANSACTIONS = {
    "transactionTimeOut": 3_000,
    "transactionCheckInterval": 500,
    "transactionOpBatchInterval": 20,
}


async def placed(pairs: Asks, bodies: list[str], *places: tuple[str, int], timeout_s: float = 20) -> None:
    """Until the brokers have all these messages; each once."""

    async def there() -> bool:
        return set(bodies) <= set(await pairs.bodies(*places))

    await until(there, f"{len(bodies)} messages come", timeout_s)
    counts = await pairs.bodies(*places)
    assert {body: counts[body] for body in bodies} == dict.fromkeys(bodies, 1)


async def delayed_messages(pairs: Asks) -> None:
    """They come on time, on another master."""
    loop = asyncio.get_running_loop()
    delayed = await pairs.send("a", 10, delay_level=2)
    sent_s = loop.time()
    pairs.kill("a", 0)
    await pairs.acting("a")
    assert not (await pairs.bodies(("b", 0))).keys() & set(delayed)
    await placed(pairs, delayed, ("b", 0))
    assert 3.8 < loop.time() - sent_s < 6


async def timed_messages(pairs: Asks) -> None:
    """They come on time, on another master."""
    due_s = pairs.now_s() + 5
    timed = await pairs.send("a", 10, deliver_at=due_s)
    pairs.kill("a", 0)
    await pairs.acting("a")
    assert not (await pairs.bodies(("b", 0))).keys() & set(timed)
    await placed(pairs, timed, ("b", 0))
    assert -0.1 < pairs.now_s() - due_s < 2.5


async def without_another_master(pairs: Asks) -> None:
    """Delayed and timed messages of the only set wait for their own master."""
    delayed = await pairs.send("a", 10, delay_level=1)
    timed = await pairs.send("a", 10, deliver_at=pairs.now_s() + 2)
    pairs.kill("a", 0)
    await pairs.acting("a")
    await asyncio.sleep(4)
    assert not await pairs.bodies(("a", 1))
    await pairs.restart("a", 0)
    await pairs.acting("a", ends=True)
    await placed(pairs, delayed + timed, ("a", 0))


async def offsets_and_locks(pairs: Asks) -> None:
    """Consumers commit, ask for offsets and lock queues; the master's return ends it."""
    plain = await pairs.send("a", 10)
    assert set(await pairs.bodies(("a", 0))) == set(plain)  # creates the group
    await asyncio.sleep(0.5)
    pairs.kill("a", 0)
    await pairs.acting("a")
    address, call = pairs.address("a", 1), pairs.client.call
    assert set(await pairs.bodies(("a", 1))) == set(plain)
    (acting,) = [each for each in (await pairs.route()).broker_datas if each.broker_name == "a"]
    assert acting.broker_addrs == {0: address}

    await call(address, UpdateConsumerOffset(consumer_group="g", topic=TOPIC, queue_id=0, commit_offset=3))
    answer = await call(address, QueryConsumerOffset(consumer_group="g", topic=TOPIC, queue_id=0))
    assert answer.header == QueryConsumerOffsetResponse(offset=3)
    answer = await call(address, GetMaxOffset(topic=TOPIC, queue_id=0))
    assert answer.header == GetMaxOffsetResponse(offset=len(plain) // QUEUES)
    answer = await call(address, GetMinOffset(topic=TOPIC, queue_id=0))
    assert answer.header == GetMinOffsetResponse(offset=0)
    answer = await call(address, GetEarliestMsgStoretime(topic=TOPIC, queue_id=0))
    assert isinstance(answer.header, GetEarliestMsgStoretimeResponse)
    earliest_ms = answer.header.timestamp
    answer = await call(address, SearchOffset(topic=TOPIC, queue_id=0, timestamp=earliest_ms + 1_000_000))
    assert answer.header == SearchOffsetResponse(offset=len(plain) // QUEUES)

    queue = MessageQueue(topic=TOPIC, broker_name="a", queue_id=0)

    async def lock(client_id: str) -> bool:
        body = LockBatchRequestBody(consumer_group="g", client_id=client_id, mq_set=[queue])
        answer = await call(address, LockBatchMq(), encode(body))
        return decode(answer.body, LockBatchResponseBody).lock_ok_mq_set == [queue]

    assert await lock("one")
    assert not await lock("two")
    body = UnlockBatchRequestBody(consumer_group="g", client_id="one", mq_set=[queue])
    await call(address, UnlockBatchMq(), encode(body))
    assert await lock("two")


async def sends_are_refused(pairs: Asks) -> None:
    """An acting master takes no messages, and the name server offers none of its queues to producers."""
    producer = raw_producer(pairs.address("a", 1))
    try:
        await pairs.send("a", 1)
        pairs.kill("a", 0)
        await pairs.acting("a")
        for prepare in (producer.prepare("k", topic=TOPIC), producer.prepare("k", topic=TOPIC, DELAY="1")):
            try:
                await prepare
            except MQError as error:
                assert error.code == ResponseCode.SYSTEM_BUSY
            else:
                raise AssertionError("the send was taken")
        (queues,) = [each for each in (await pairs.route()).queue_datas if each.broker_name == "a"]
        assert queues.perm == 4
    finally:
        await producer.client.close()


async def transactions(pairs: Asks) -> None:
    """Half messages of the dead master are committed through its slave, or checked by another master. Needs
    `QUICK_TRANSACTIONS`."""
    old, acting, other = (raw_producer(pairs.address(*place)) for place in (("a", 0), ("a", 1), ("b", 0)))
    try:
        for producer in (old, acting, other):
            await producer.connect()
        halves = {key: await old.prepare(key, topic=TOPIC) for key in map(str, range(8))}
        await old.end(halves["7"], COMMIT)
        await asyncio.sleep(0.2)
        pairs.kill("a", 0)
        await pairs.acting("a")
        await _ended(acting, halves["0"], COMMIT)
        await _ended(acting, halves["1"], COMMIT)
        await _ended(acting, halves["1"], COMMIT)  # repeated
        await _ended(acting, halves["2"], ROLLBACK)
        assert await pairs.bodies(("b", 0)) == {"0": 1, "1": 1}
        for key in "3456":
            other.decisions[key] = COMMIT if key != "6" else ROLLBACK

        async def checked() -> bool:
            return len({header.transaction_id for header, _ in other.checks}) >= 4

        await until(checked, "the other master checks the half messages")
        await placed(pairs, ["0", "1", "3", "4", "5"], ("b", 0))
        await asyncio.sleep(2)
        assert await pairs.bodies(("b", 0)) == dict.fromkeys(["0", "1", "3", "4", "5"], 1)
        try:
            await acting.end(halves["3"], COMMIT)
        except MQError as error:
            assert error.code == ResponseCode.SYSTEM_ERROR, "the other master has it"
        else:
            raise AssertionError("a half message that moved was committed")
        assert await pairs.bodies(("a", 1)) == {"7": 1}
    finally:
        for producer in (old, acting, other):
            await producer.client.close()


async def _ended(producer: RawProducer, half: object, kind: int) -> None:
    """End a transaction; a moment after the role changed the broker may not know its half messages yet."""
    await producer.end(half, kind)  # type: ignore[arg-type]


async def pop(pairs: Asks) -> None:
    """Batches of the dead master are acknowledged at its slave; what nobody acknowledges goes to the retry
    topic on another master, whichever of the two handed it out."""
    clients = [RemotingClient() for _ in range(3)]
    old, acting, other = (
        PopRig(Path(), {}, client, address=pairs.address(*place))
        for client, place in zip(clients, (("a", 0), ("a", 1), ("b", 0)), strict=True)
    )
    try:
        sent = await pairs.send("a", 24)
        first = await _pop(old, 8, 4_000)
        await old.ack(*first[:2], topic=TOPIC)
        await asyncio.sleep(1.5)  # the slave copies the group's offset
        pairs.kill("a", 0)
        await pairs.acting("a")
        await acting.ack(*first[2:5], topic=TOPIC)
        second = await _pop(acting, 8, 4_000)
        assert not {each.body for each in second} & {each.body for each in first}
        await acting.ack(*second[:3], topic=TOPIC)
        hidden = await acting.change(second[3], 30_000, topic=TOPIC)
        assert hidden.invisible_time == 30_000
        late = {each.body for each in (*first[5:], *second[4:])}
        back: dict[bytes, Popped] = {}

        async def revived() -> bool:
            for each in await other.pop(TOPIC, max_msg_nums=32):
                assert each.body not in back, "it came twice"
                back[each.body] = each
            return len(back) >= len(late)

        await until(revived, "what nobody acknowledged comes back")
        assert back.keys() == late
        assert all(each.record.reconsume_times == 1 for each in back.values())
        third = await _pop(acting, 8, 60_000)
        done = {each.body for each in (*first, *second)}
        assert {each.body for each in third} == {body.encode() for body in sent} - done
        try:
            await acting.ack(first[6], topic=TOPIC)
        except MQError as error:
            assert error.code == ResponseCode.NO_MESSAGE
        else:
            raise AssertionError("a message that was revived was acknowledged")
    finally:
        for client in clients:
            await client.close()


async def consumption(pairs: Asks) -> None:
    """Consumers go on with what the dead master's slave has, ordered ones in order, and commit there."""
    found: dict[str, list[MessageExt]] = {"ordered": [], "plain": []}
    consumers = {group: pairs.consumer(group, orderly=group == "ordered") for group in found}
    sent = await pairs.send("a", 60)
    try:
        for group, consumer in consumers.items():

            async def handle(message: MessageExt, group: str = group) -> None:
                found[group].append(message)
                await asyncio.sleep(0.03)

            consumer.subscribe(TOPIC, "*", handle)
            await consumer.start()

        async def some() -> bool:
            return all(len(messages) >= 10 for messages in found.values())

        await until(some, "consumption begins")
        await asyncio.sleep(1.5)  # the slave copies the groups
        pairs.kill("a", 0)
        await pairs.acting("a")

        async def whole() -> bool:
            return all({each.body.decode() for each in got} >= set(sent) for got in found.values())

        await until(whole, "consumption goes on on the slave")
        for queue_id in range(QUEUES):
            offsets = [each.queue_offset for each in found["ordered"] if each.queue_id == queue_id]
            first = list(dict.fromkeys(offsets))
            assert first == sorted(first), "the ordered group got a message too early"
        repeated = {group: len(got) - len(sent) for group, got in found.items()}
        assert max(repeated.values()) < 30, repeated

        async def committed() -> bool:
            for group in found:
                for queue_id in range(QUEUES):
                    header = QueryConsumerOffset(consumer_group=group, topic=TOPIC, queue_id=queue_id)
                    answer = await pairs.client.call(pairs.address("a", 1), header)
                    if answer.header != QueryConsumerOffsetResponse(offset=len(sent) // QUEUES):
                        return False
            return True

        await until(committed, "the acting master has the groups' offsets")
        await pairs.restart("a", 0)
        await pairs.acting("a", ends=True)
        await pairs.whole("a")
        before = {group: len(got) for group, got in found.items()}
        more = await pairs.send("a", 10, keys="later")

        async def later() -> bool:
            return all({each.body.decode() for each in got} >= set(more) for got in found.values())

        await until(later, "consumption goes on on the master", 40)
        assert {group: len(got) - before[group] for group, got in found.items()} == dict.fromkeys(found, 10)
    finally:
        for consumer in consumers.values():
            await consumer.stop()


async def foreign_check_points(pairs: Asks) -> None:
    """An acting master of RocketMQ writes its check points to another master. That one reads the messages
    from the set that they name, also from its acting slave, and puts them into its own retry topic."""
    clients = [RemotingClient() for _ in range(2)]
    rig = PopRig(Path(), {}, clients[0], address=pairs.address("b", 0))
    try:
        await pairs.send("b", 8)  # other messages at the same offsets
        await rig.pop(TOPIC, max_msg_nums=32)  # creates the group
        await pairs.send("a", 8)
        pairs.kill("a", 0)
        await pairs.acting("a")
        popped_ms = int(pairs.now_s() * 1_000)
        for name, offsets in (("a", [0, 2]), ("nowhere", [0])):
            record = CheckPoint(
                start_offset=offsets[0],
                pop_time=popped_ms,
                invisible_time=1_000,
                num=len(offsets),
                queue_id=1,
                topic=TOPIC,
                consumer_group="g",
                differences=offsets,
                broker_name=name,
            )
            header = SendMessageV2(
                producer_group="p",
                topic=revive_topic(CLUSTER),
                default_topic="TBW102",
                default_topic_queue_nums=4,
                queue_id=0,
                sys_flag=0,
                born_timestamp=popped_ms,
                flag=0,
                properties=encode_properties({"TAGS": "ck"}).decode(),
            )
            await clients[1].call(pairs.address("b", 0), header, encode(record))
        back: list[Popped] = []

        async def revived() -> bool:
            back.extend(await rig.pop(TOPIC, max_msg_nums=32))
            return len(back) >= 2

        await until(revived, "the messages come back")
        assert {each.body.decode() for each in back} == {f"a {{}} {number}" for number in (1, 5)}
        assert all(each.record.reconsume_times == 1 for each in back)
    finally:
        for client in clients:
            await client.close()


async def _pop(rig: PopRig, count: int, invisible_ms: int) -> list[Popped]:
    found: list[Popped] = []

    async def enough() -> bool:
        found.extend(await rig.pop(TOPIC, max_msg_nums=count - len(found), invisible_time=invisible_ms))
        return len(found) == count

    await until(enough, f"{count} messages are popped")
    return found


STORIES = {
    "delayed messages": (delayed_messages, "ab", {}),
    "timed messages": (timed_messages, "ab", {}),
    "nobody else": (without_another_master, "a", {}),
    "offsets and locks": (offsets_and_locks, "ab", {}),
    "sends": (sends_are_refused, "ab", {}),
    "transactions": (transactions, "ab", QUICK_TRANSACTIONS),
    "pop": (pop, "ab", {}),
    "consumption": (consumption, "ab", {}),
    "foreign check points": (foreign_check_points, "ab", {}),
}
"""Name -> the story, the broker sets it needs, and their settings."""
