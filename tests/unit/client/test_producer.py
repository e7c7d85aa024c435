"""The producer against brokers that fail in every way."""

from __future__ import annotations

import asyncio
import random
import time
from array import array
from collections.abc import Sequence

import pytest
import uvloop

from batonmq.client import delivery
from batonmq.client.errors import NotSafelyStored, SendFailed
from batonmq.client.message import Message, SendResult, SendStatus
from batonmq.client.producer import Producer
from batonmq.net.errors import NetError
from batonmq.protocol.bodies.common import MessageQueue
from batonmq.protocol.codes import RequestCode, ResponseCode
from batonmq.protocol.compression import CompressionType, decompress
from batonmq.protocol.errors import MQError, TopicNotExistError, error_for
from batonmq.protocol.message.record import decode_record

from .fakes import FakeCluster, properties_of


async def test_send_fills_the_header() -> None:
    async with FakeCluster() as cluster:
        broker = await cluster.broker("a")
        cluster.topic("t", a=4)
        async with Producer("g", cluster.namesrv) as producer:
            message = Message("t", b"body", tags="x", keys="k", flag=7)
            result = await producer.send(message)
            assert result.status is SendStatus.SEND_OK
            assert result.message_id == message.unique_id and len(result.message_id) == 32
            assert result.queue.broker_name == "a" and result.queue_offset == 0
            again = await producer.send(message, queue=MessageQueue("t", "a", 3))
            assert again.message_id == result.message_id
            assert again.queue == MessageQueue("t", "a", 3)
        header = broker.sends[0]
        assert (header.producer_group, header.topic, header.flag, header.batch) == ("g", "t", 7, False)
        assert properties_of(header)["UNIQ_KEY"] == message.unique_id
        assert broker.left == [producer.client_id]
        assert broker.heartbeats[0].producer_data_set[0].group_name == "g"


async def test_queues_take_turns_and_a_selector_decides() -> None:
    async with FakeCluster() as cluster:
        await cluster.broker("a")
        await cluster.broker("b")
        cluster.topic("t", a=2, b=2)
        async with Producer("g", cluster.namesrv) as producer:
            results = [await producer.send(Message("t", b"x")) for _ in range(8)]
            assert len({result.queue for result in results}) == 4
            result = await producer.send(Message("t", b"x"), selector=lambda queues, message: queues[-1])
            assert str(result.queue) == "t@b:1"
            assert len(await producer.queues("t")) == 4


async def test_a_batch_is_one_request() -> None:
    async with FakeCluster() as cluster:
        broker = await cluster.broker("a")
        cluster.topic("t", a=1)
        async with Producer("g", cluster.namesrv) as producer:
            messages = [Message("t", b"%d" % number, tags="x") for number in range(5)]
            result = await producer.send(messages)
        assert len(broker.sends) == 1 and broker.sends[0].batch is True
        assert "UNIQ_KEY" not in str(broker.sends[0].properties), (
            "older brokers would put it over each message's"
        )
        assert result.message_id == ",".join(str(message.unique_id) for message in messages)
        records = [decode_record(record) for record in broker.log.records[MessageQueue("t", "a", 0)]]
        assert [record.body for record in records] == [b"0", b"1", b"2", b"3", b"4"]
        assert [record.message_id for record in records] == [message.unique_id for message in messages]


BATCHES = [
    ([], "empty"),
    ([Message("t", b"x"), Message("u", b"x")], "same topic"),
    ([Message("t", b"x"), Message("t", b"x", wait_store_ok=False)], "agree"),
    ([Message("t", b"x", delay_level=1)], "delayed"),
    ([Message("t", b"x" * 60), Message("t", b"x" * 60)], "over the limit of 100"),
]


@pytest.mark.parametrize(("batch", "why"), BATCHES)
async def test_batches_that_cannot_be(batch: list[Message], why: str) -> None:
    producer = Producer("g", "127.0.0.1:1", max_message_size=100)
    with pytest.raises(MQError, match=why):
        await producer.send(batch)
    await producer.close()


@pytest.mark.parametrize("kind", list(CompressionType))
async def test_large_bodies_are_compressed(kind: CompressionType) -> None:
    async with FakeCluster() as cluster:
        broker = await cluster.broker("a")
        cluster.topic("t", a=1)
        async with Producer("g", cluster.namesrv, compress_over=100, compression=kind) as producer:
            await producer.send(Message("t", b"x" * 100))
            await producer.send(Message("t", b"y" * 101))
        plain, packed = (
            decode_record(record, inflate=False) for record in broker.log.records[MessageQueue("t", "a", 0)]
        )
        assert (plain.body, plain.sys_flag) == (b"x" * 100, 0)
        assert packed.sys_flag == kind.sys_flag
        assert decompress(packed.body, packed.sys_flag) == b"y" * 101


@pytest.mark.parametrize("kind", list(CompressionType))
async def test_a_body_that_compression_makes_larger_is_sent_as_it_is(kind: CompressionType) -> None:
    """Brokers would refuse one whose size is just within their limit."""
    body = random.Random(1).randbytes(5_000)
    async with FakeCluster() as cluster:
        broker = await cluster.broker("a")
        cluster.topic("t", a=1)
        async with Producer("g", cluster.namesrv, compression=kind, max_message_size=len(body)) as producer:
            await producer.send(Message("t", body))
        (record,) = broker.log.records[MessageQueue("t", "a", 0)]
        stored = decode_record(record, inflate=False)
        assert (stored.body, stored.sys_flag) == (body, 0)


@pytest.mark.parametrize("oneway", [False, True], ids=["send", "oneway"])
def test_a_buffer_may_be_used_again_after_the_send(oneway: bool) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:  # it keeps the memory it is to write
        runner.run(use_a_buffer_again(oneway))


async def use_a_buffer_again(oneway: bool) -> None:
    async with FakeCluster() as cluster:
        broker = await cluster.broker("a")
        cluster.topic("t", a=1)
        async with Producer("g", cluster.namesrv, compress_over=0) as producer:
            await producer.send(Message("t", b"x"))
            (connection,) = broker.server.connections
            assert connection._transport is not None
            connection._transport.pause_reading()
            buffer = bytearray(8_000_000)
            message = Message("t", memoryview(buffer)[: 4 << 20])
            if oneway:
                await producer.send_oneway(message)
            else:
                with pytest.raises(SendFailed):
                    await producer.send(message, timeout_ms=100)
            buffer[:] = b"y" * len(buffer)
            connection._transport.resume_reading()
        await asyncio.sleep(0.1)
        records = [decode_record(record) for record in broker.log.records[MessageQueue("t", "a", 0)]]
        assert records[1].body == bytes(4 << 20)


@pytest.mark.parametrize(
    "view", [memoryview(array("I", [1, 2, 3])), memoryview(b"abcdef")[::2]], ids=["numbers", "every second"]
)
async def test_a_body_may_be_any_view(view: memoryview) -> None:
    async with FakeCluster() as cluster:
        broker = await cluster.broker("a")
        cluster.topic("t", a=1)
        async with Producer("g", cluster.namesrv, max_message_size=12) as producer:
            await producer.send(Message("t", view))
        async with Producer("g", cluster.namesrv) as producer:
            await producer.send([Message("t", view), Message("t", view)])
        records = [decode_record(record) for record in broker.log.records[MessageQueue("t", "a", 0)]]
        assert [record.body for record in records] == [view.tobytes()] * 3
        with pytest.raises(MQError, match="over the limit of 11"):
            Message("t", memoryview(array("I", [1, 2, 3]))).check(11)


async def test_the_sharding_key_of_a_batch_decides_its_queue() -> None:
    async with FakeCluster() as cluster:
        broker = await cluster.broker("a")
        cluster.topic("t", a=8)

        def batch(*keys: str | None) -> list[Message]:
            return [Message("t", b"x", sharding_key=key, keys="k") for key in keys]

        seen: list[Message] = []

        def select(queues: Sequence[MessageQueue], message: Message) -> MessageQueue:
            seen.append(message)
            return queues[2]

        async with Producer("g", cluster.namesrv) as producer:
            queues = {(await producer.send(batch("17")[0])).queue}
            for _ in range(4):
                queues.add((await producer.send(batch("17", "17"))).queue)
            assert len(queues) == 1
            assert "SHARDING_KEY" not in properties_of(broker.sends[-1])
            for mixed in (batch("17", "18"), batch("17", None), batch(None, "17")):
                with pytest.raises(MQError, match="the same sharding key") as caught:
                    await producer.send(mixed)
                assert caught.value.code == ResponseCode.MESSAGE_ILLEGAL
                assert (await producer.send(mixed, selector=select)).queue.queue_id == 2
                assert seen.pop() is mixed[0] and not seen
                assert (await producer.send(mixed, queue=MessageQueue("t", "a", 3))).queue.queue_id == 3


async def test_kill_of_the_master_costs_little_more_than_the_election() -> None:
    """The old master dies; 100 ms later the name server knows the new one."""
    async with FakeCluster() as cluster:
        master = await cluster.broker("a")
        slave = await cluster.broker("a", 1)
        cluster.topic("t", a=2)
        async with Producer("g", cluster.namesrv) as producer:
            await producer.send(Message("t", b"before"))
            stop = asyncio.ensure_future(master.server.stop())
            master.kill()
            sends = [asyncio.ensure_future(producer.send(Message("t", b"during"))) for _ in range(16)]
            began = time.monotonic()
            await asyncio.sleep(0.1)
            cluster.addresses["a"] = {0: slave.address}
            results = await asyncio.gather(*sends)
            took = time.monotonic() - began
            await stop
        assert len(slave.sends) == 16 and len(results) == 16
        assert took < 0.4
        assert cluster.asked < 60  # the polls are shared by all sends


async def test_a_master_that_hangs_is_left_as_soon_as_there_is_another_one() -> None:
    """Its connections stay open: only the route shows that nothing more is to be expected of it."""
    async with FakeCluster() as cluster:
        master = await cluster.broker("a")
        slave = await cluster.broker("a", 1)
        cluster.topic("t", a=2)
        async with Producer("g", cluster.namesrv) as producer:
            await producer.send(Message("t", b"before"))
            master.silent = True
            sends = [asyncio.ensure_future(producer.send(Message("t", b"during"))) for _ in range(16)]
            await asyncio.sleep(0.5)
            assert not any(send.done() for send in sends)
            began = time.monotonic()
            cluster.addresses["a"] = {0: slave.address}
            await asyncio.gather(*sends)
            assert time.monotonic() - began < 0.5  # not the 3 s of a send's timeout
            assert len(slave.sends) == 16
            asked = cluster.asked
            assert asked < 20
            await asyncio.sleep(0.3)
            assert cluster.asked == asked  # nothing is late, nobody asks
            master.silent = False


async def test_another_broker_takes_over_at_once() -> None:
    async with FakeCluster() as cluster:
        bad = await cluster.broker("a")
        good = await cluster.broker("b")
        cluster.topic("t", a=2, b=2)
        bad.answer = lambda code: (
            error_for(ResponseCode.SYSTEM_BUSY, "busy") if code == RequestCode.SEND_MESSAGE_V2 else None
        )
        async with Producer("g", cluster.namesrv) as producer:
            began = time.monotonic()
            results = [await producer.send(Message("t", b"x")) for _ in range(6)]
            assert time.monotonic() - began < 0.5
        assert {result.queue.broker_name for result in results} == {"b"} and len(good.sends) == 6


@pytest.mark.parametrize("code", [ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.GO_AWAY])
async def test_a_demoted_master_is_left_as_soon_as_the_route_says_so(code: ResponseCode) -> None:
    async with FakeCluster() as cluster:
        old = await cluster.broker("a")
        new = await cluster.broker("a", 1)
        cluster.topic("t", a=1)
        old.answer = lambda asked: (
            error_for(code, "not in write mode") if asked == RequestCode.SEND_MESSAGE_V2 else None
        )
        async with Producer("g", cluster.namesrv) as producer:
            sending = asyncio.ensure_future(producer.send(Message("t", b"x")))
            await asyncio.sleep(0.1)
            cluster.addresses["a"] = {0: new.address, 1: old.address}
            await sending
        assert len(new.sends) == 1


@pytest.mark.parametrize("known_after_s", [0.0, 0.2])
async def test_a_new_master_is_tried_at_once_and_the_old_one_not_again(
    monkeypatch: pytest.MonkeyPatch, known_after_s: float
) -> None:
    """A refusal makes the route be asked for at once; if that knows nothing new, again after the pause."""
    monkeypatch.setattr(delivery, "FIRST_PAUSE_S", 10.0)
    monkeypatch.setattr(delivery, "OUTAGE_POLL_S", 0.4)
    async with FakeCluster() as cluster:
        old = await cluster.broker("a")
        new = await cluster.broker("a", 1)
        cluster.topic("t", a=1)
        async with Producer("g", cluster.namesrv) as producer:
            await producer.send(Message("t", b"before"))
            refused: list[int] = []

            def refuse(asked: int) -> MQError | None:
                if asked != RequestCode.SEND_MESSAGE_V2:
                    return None
                refused.append(asked)
                return error_for(ResponseCode.SERVICE_NOT_AVAILABLE, "not in write mode")

            old.answer = refuse
            began = time.monotonic()
            sending = asyncio.ensure_future(producer.send(Message("t", b"x")))
            if known_after_s:
                await asyncio.sleep(known_after_s)
            cluster.addresses["a"] = {0: new.address, 1: old.address}
            await sending
            took = time.monotonic() - began
        assert len(new.sends) == 1 and len(refused) == 1
        assert took > 0.35 if known_after_s else took < 0.35


async def test_a_refusal_is_tried_as_often_as_allowed() -> None:
    async with FakeCluster() as cluster:
        broker = await cluster.broker("a")
        cluster.topic("t", a=1)
        asked: list[int] = []

        def refuse(code: int) -> Exception | None:
            if code != RequestCode.SEND_MESSAGE_V2:
                return None
            asked.append(code)
            return error_for(ResponseCode.SYSTEM_ERROR, "in-sync replicas not enough")

        broker.answer = refuse
        async with Producer("g", cluster.namesrv, retries=2) as producer:
            with pytest.raises(MQError, match="not enough"):
                await producer.send(Message("t", b"x"))
        assert len(asked) == 3


FORBIDDEN = "the broker[127.0.0.1] sending message is forbidden"


async def test_a_broker_without_permission_is_left_for_another_one() -> None:
    async with FakeCluster() as cluster:
        bad = await cluster.broker("a")
        await cluster.broker("b")
        cluster.topic("t", a=2, b=2)
        bad.answer = lambda code: (
            error_for(ResponseCode.NO_PERMISSION, FORBIDDEN) if code == RequestCode.SEND_MESSAGE_V2 else None
        )
        async with Producer("g", cluster.namesrv) as producer:
            results = [await producer.send(Message("t", b"x")) for _ in range(6)]
        assert {result.queue.broker_name for result in results} == {"b"}


CHOSEN = {
    "any": (Message("t", b"x"), {}, 3),
    "queue": (Message("t", b"x"), {"queue": MessageQueue("t", "a", 0)}, 1),
    "selector": (Message("t", b"x"), {"selector": lambda queues, message: queues[0]}, 1),
    "sharding key": (Message("t", b"x", sharding_key="k"), {}, 1),
}


@pytest.mark.parametrize("how", CHOSEN)
async def test_without_permission_the_send_ends_soon_with_the_brokers_remark(how: str) -> None:
    """As RocketMQ's client: three attempts, or one if the caller chose the queue."""
    message, arguments, attempts = CHOSEN[how]
    asked: list[int] = []

    def refuse(code: int) -> MQError | None:
        if code != RequestCode.SEND_MESSAGE_V2:
            return None
        asked.append(code)
        return error_for(ResponseCode.NO_PERMISSION, FORBIDDEN)

    async with FakeCluster() as cluster:
        broker = await cluster.broker("a")
        cluster.topic("t", a=1)
        broker.answer = refuse
        async with Producer("g", cluster.namesrv, retries=2) as producer:
            began = time.monotonic()
            with pytest.raises(MQError) as caught:
                await producer.send(message, **arguments)
            assert time.monotonic() - began < 1
    assert (caught.value.code, caught.value.remark) == (ResponseCode.NO_PERMISSION, FORBIDDEN)
    assert len(asked) == attempts


@pytest.mark.parametrize("oneway", [False, True])
async def test_a_read_only_topic_has_no_writable_queue(oneway: bool) -> None:
    async with FakeCluster() as cluster:
        await cluster.broker("a")
        cluster.topic("t", a=1)
        cluster.perms["t"] = 4
        async with Producer("g", cluster.namesrv) as producer:
            send = producer.send_oneway if oneway else producer.send
            began = time.monotonic()
            with pytest.raises(
                MQError, match=r"topic t has no writable queue: .* on a by the topic's perm"
            ) as caught:
                await send(Message("t", b"x"))
            assert time.monotonic() - began < 1 and caught.value.code == ResponseCode.NO_PERMISSION
            cluster.perms["t"] = 6
            await send(Message("t", b"x"))  # the route is asked for again


async def test_a_topic_whose_slave_acts_as_master_is_waited_for() -> None:
    """Name servers hide the permission to write until the master is back."""
    async with FakeCluster() as cluster:
        await cluster.broker("a")
        cluster.topic("t", a=1)
        cluster.perms["t"], cluster.acting_master = 4, True
        async with Producer("g", cluster.namesrv) as producer:
            sending = asyncio.ensure_future(producer.send(Message("t", b"x")))
            await asyncio.sleep(0.1)
            assert not sending.done()
            cluster.perms["t"] = 6
            await sending
            cluster.perms["t"] = 4
            with pytest.raises(SendFailed, match="has no master now at a; a slave, even one that acts as"):
                await Producer("h", cluster.namesrv, send_timeout_ms=50).send(Message("t", b"x"))


async def test_an_illegal_message_is_not_tried_again() -> None:
    async with FakeCluster() as cluster:
        broker = await cluster.broker("a")
        cluster.topic("t", a=1)
        asked: list[int] = []
        broker.answer = lambda code: (
            (asked.append(code), error_for(ResponseCode.MESSAGE_ILLEGAL, "no"))[1] if code == 310 else None
        )
        async with Producer("g", cluster.namesrv) as producer:
            with pytest.raises(MQError, match="MESSAGE_ILLEGAL"):
                await producer.send(Message("t", b"x"))
        assert len(asked) == 1


STATUSES = [
    ResponseCode.FLUSH_DISK_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE,
]


@pytest.mark.parametrize("code", STATUSES)
async def test_half_safe_is_not_an_acknowledgement(code: ResponseCode) -> None:
    async with FakeCluster() as cluster:
        broker = await cluster.broker("a")
        cluster.topic("t", a=1)
        broker.send_code = code
        async with Producer("g", cluster.namesrv) as producer:
            with pytest.raises(NotSafelyStored, match=code.name) as caught:
                await producer.send(Message("t", b"x"))
        assert caught.value.result.queue == MessageQueue("t", "a", 0)
        assert len(broker.sends) == 1


async def test_silence_ends_with_the_timeout_and_says_that_it_may_be_stored() -> None:
    async with FakeCluster() as cluster:
        broker = await cluster.broker("a")
        cluster.topic("t", a=1)
        async with Producer("g", cluster.namesrv, send_timeout_ms=300) as producer:
            # Connects, which may take longer than 300 ms on a busy machine, and stores nothing if it does.
            await producer.send(Message("t", b"before"), timeout_ms=10_000)
            broker.silent = True
            began = time.monotonic()
            with pytest.raises(SendFailed, match="after 1 attempt: ") as caught:
                await producer.send(Message("t", b"x"))
            assert 0.25 < time.monotonic() - began < 1.0
            assert caught.value.maybe_stored
            broker.silent = False


async def test_attempts_may_have_a_timeout_of_their_own() -> None:
    async with FakeCluster() as cluster:
        silent = await cluster.broker("a")
        good = await cluster.broker("b")
        cluster.topic("t", a=1, b=1)
        async with Producer("g", cluster.namesrv, attempt_timeout_ms=100) as producer:
            silent.silent = True
            for _ in range(2):
                await producer.send(Message("t", b"x"))
            silent.silent = False
        assert len(good.sends) == 2


async def test_nobody_there() -> None:
    producer = Producer("g", "127.0.0.1:1", send_timeout_ms=150)
    with pytest.raises(SendFailed, match="was not possible: ") as caught:
        await producer.send(Message("t", b"x"))
    assert isinstance(caught.value.cause, NetError) and not caught.value.maybe_stored
    assert caught.value.attempts == 0
    await producer.close()


async def test_an_unknown_topic_is_created_by_the_template_or_refused() -> None:
    async with FakeCluster() as cluster:
        broker = await cluster.broker("a")
        async with Producer("g", cluster.namesrv) as producer:
            with pytest.raises(TopicNotExistError):
                await producer.send(Message("new", b"x"))
            cluster.topic("TBW102", a=8)
            result = await producer.send(Message("new", b"x"))
        assert result.queue.topic == "new" and result.queue.queue_id < 4
        assert broker.sends[0].default_topic == "TBW102"
        async with Producer("g", cluster.namesrv, auto_create=False) as producer:
            with pytest.raises(TopicNotExistError):
                await producer.send(Message("new", b"x"))


async def test_a_send_that_creates_its_topic_shares_no_question_that_may_not() -> None:
    async with FakeCluster() as cluster:
        await cluster.broker("a")
        cluster.topic("TBW102", a=8)
        async with Producer("g", cluster.namesrv) as producer:
            asked, sent = await asyncio.gather(
                producer.queues("new"), producer.send(Message("new", b"x")), return_exceptions=True
            )
        assert isinstance(asked, TopicNotExistError)
        assert isinstance(sent, SendResult) and sent.queue.topic == "new"


async def test_oneway() -> None:
    async with FakeCluster() as cluster:
        broker = await cluster.broker("a")
        cluster.topic("t", a=1)
        async with Producer("g", cluster.namesrv) as producer:
            await producer.send_oneway(Message("t", b"x", tags="y"))
            for _ in range(100):
                if broker.sends:
                    break
                await asyncio.sleep(0.01)
        assert properties_of(broker.sends[0])["TAGS"] == "y"


async def test_oneway_waits_for_a_broker_that_takes_less_than_is_sent() -> None:
    async with FakeCluster() as cluster:
        broker = await cluster.broker("a")
        cluster.topic("t", a=1)
        count = 0
        async with Producer("g", cluster.namesrv, send_timeout_ms=300, compress_over=0) as producer:
            await producer.send(Message("t", b"x"), timeout_ms=10_000)
            (connection,) = broker.server.connections
            assert connection._transport is not None
            connection._transport.pause_reading()
            with pytest.raises(NetError, match="does not read what we send"):
                for count in range(1_000):
                    await producer.send_oneway(Message("t", bytes(100_000), keys=f"{count}"))
            connection._transport.resume_reading()
        for _ in range(100):
            if len(broker.sends) == count + 1:
                break
            await asyncio.sleep(0.01)
        assert len(broker.sends) == count + 1, "close sends what was taken"


async def test_the_next_name_server_is_asked() -> None:
    async with FakeCluster() as cluster:
        await cluster.broker("a")
        cluster.topic("t", a=1)
        async with Producer("g", f"127.0.0.1:1;{cluster.namesrv}") as producer:
            await producer.send(Message("t", b"x"))


async def test_bad_group_name() -> None:
    with pytest.raises(MQError, match="illegal"):
        Producer("a b", "127.0.0.1:1")


def test_a_text_is_not_a_body():
    with pytest.raises(TypeError, match=r"bytes, not str: encode it"):
        Message("T", "text")  # type: ignore[arg-type]
