"""Hooks around sends and handlers: message traces, and spans of OpenTelemetry."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from batonmq import sync
from batonmq.client import message_trace, trace_format
from batonmq.client.consumer import Consumer
from batonmq.client.errors import SendFailed
from batonmq.client.hooks import Delivery, Hook, Sending, SendKind
from batonmq.client.message import Message
from batonmq.client.message_trace import MessageTrace
from batonmq.client.opentelemetry import OpenTelemetry
from batonmq.client.pop_consumer import PopConsumer
from batonmq.client.producer import Producer
from batonmq.client.push.retries import RetryLater
from batonmq.protocol.codes import RequestCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.message.record import MessageExt, decode_record

from .fakes import FakeBroker, FakeCluster
from .helpers import FIRST, until
from .pop_fakes import PopBroker

TRACES = "RMQ_SYS_TRACE_TOPIC"


class Recorder(Hook):
    def __init__(self, name: str, log: list[str]) -> None:
        self.name = name
        self.log = log
        self.sends: list[Sending] = []

    @contextmanager
    def sending(self, sending: Sending) -> Iterator[None]:
        self.log.append(f"{self.name}>")
        self.sends.append(sending)
        try:
            yield
        finally:
            self.log.append(f"<{self.name}")

    @contextmanager
    def handling(self, delivery: Delivery) -> Iterator[None]:
        self.log.append(f"{self.name} {delivery.topic} {delivery.messages[0].body!r}")
        try:
            yield
        except Exception as error:
            self.log.append(f"{type(error).__name__} {delivery.retry_later}")
            raise


class Broken(Hook):
    def sending(self, sending: Sending) -> Any:
        raise OSError("broken at the beginning")


class BrokenAtTheEnd(Hook):
    @contextmanager
    def sending(self, sending: Sending) -> Iterator[None]:
        try:
            yield
        finally:
            raise OSError("broken at the end")


async def test_hooks_nest_and_a_broken_one_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    log: list[str] = []
    a, b = Recorder("a", log), Recorder("b", log)
    async with FakeCluster() as cluster:
        broker = await cluster.broker("a")
        cluster.topic("t", a=1)
        hooks = [a, Broken(), BrokenAtTheEnd(), b]
        async with Producer("g", cluster.namesrv, hooks=hooks) as producer:
            result = await producer.send(Message("t", b"x", delay=1))
            await producer.send([Message("t", b"x"), Message("t", b"y")])
            await producer.send(Message("t", b"x", sharding_key="k"))
            with pytest.raises(MQError, match="empty"):
                await producer.send([])
            broker.silent = True
            with pytest.raises(SendFailed):
                await producer.send(Message("t", b"x"), timeout_ms=50)
    assert log == ["a>", "b>", "<b", "<a"] * 4
    assert [send.kind for send in a.sends] == [
        SendKind.DELAYED,
        SendKind.NORMAL,
        SendKind.ORDERED,
        SendKind.NORMAL,
    ]
    assert a.sends[0].result is result and a.sends[0].address == broker.address
    assert len(a.sends[1].messages) == 2 and a.sends[3].result is None
    assert "broken at the beginning" in caplog.text and "broken at the end" in caplog.text


@pytest.mark.parametrize("kind", [Consumer, PopConsumer])
async def test_hooks_are_around_handlers(kind: type[Consumer] | type[PopConsumer]) -> None:
    log: list[str] = []

    def handle(message: MessageExt) -> None:
        if message.body == b"later":
            raise RetryLater(1)
        if message.body == b"bad":
            raise OSError("no")

    async with FakeCluster() as cluster:
        await cluster.broker_of(PopBroker, "a")
        cluster.topic("t", a=1)
        consumer = kind("g", cluster.namesrv, from_where=FIRST, hooks=[Recorder("h", log)], concurrency=1)
        consumer.subscribe("t", "*", handle)
        async with Producer("p", cluster.namesrv) as producer:
            for body in (b"good", b"later", b"bad"):
                await producer.send(Message("t", body))
        async with consumer:
            await until(lambda: len(log) >= 5)
    assert log[:5] == ["h t b'good'", "h t b'later'", "RetryLater True", "h t b'bad'", "OSError False"]


def traces_of(broker: FakeBroker) -> list[tuple[list[str], list[str]]]:
    """(fields, keys of the message) of all traces."""
    found = []
    for queue, records in broker.log.records.items():
        for record in records if queue.topic == TRACES else ():
            message = decode_record(record)
            for text in message.body.decode().split("\x02")[:-1]:
                found.append((text.split("\x01"), message.keys))
    return found


async def test_a_message_is_traced_from_its_sender_to_its_handler() -> None:
    async with FakeCluster() as cluster:
        broker = await cluster.broker("a")
        cluster.topic("t", a=1)
        cluster.topic(TRACES, a=1)
        done = asyncio.Event()

        def handle(message: MessageExt) -> None:
            done.set()
            if message.reconsume_times == 0:
                raise RetryLater

        async with MessageTrace(cluster.namesrv, interval_s=0.05) as trace:
            consumer = Consumer("g", cluster.namesrv, from_where=FIRST, hooks=[trace])
            consumer.subscribe("t", "*", handle)
            async with Producer("p", cluster.namesrv, hooks=[trace]) as producer, consumer:
                result = await producer.send(Message("t", b"x\x01", tags="a", keys=["k1", "k2"]))
                await done.wait()
                await until(lambda: len(broker.log.sent_back) == 1)
        sent, before, after = [fields for fields, _ in traces_of(broker)]
        time_ms, cost_ms = int(sent[1]), int(sent[10])
        assert abs(time_ms - time.time() * 1000) < 60_000 and 0 <= cost_ms < 10_000
        assert sent[0] == "Pub" and sent[2:10] == [
            *("DefaultRegion", "p", "t", result.message_id, "a", "k1 k2", broker.address, "2"),
        ]
        assert sent[11:] == ["0", result.offset_message_id, "true"]
        assert before[0] == "SubBefore" and before[2:4] == ["DefaultRegion", "g"]
        assert before[5:] == [result.message_id, "0", "k1 k2"]
        assert after[0] == "SubAfter" and after[1] == before[4] and after[2] == result.message_id
        assert after[4:7] == ["false", "k1 k2", "4"] and after[8] == "g"
        assert all({result.message_id, "k1", "k2"} <= set(keys) for _, keys in traces_of(broker))
        assert trace.dropped == 0


async def test_traces_are_bounded_and_their_failure_hurts_nobody(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(message_trace, "MAX_QUEUED", 10)
    monkeypatch.setattr(message_trace, "SEND_TIMEOUT_MS", 50)
    async with FakeCluster() as cluster:
        broker = await cluster.broker("a")
        cluster.topic("t", a=1)
        trace = MessageTrace(cluster.namesrv, interval_s=60)
        await trace.start()
        async with Producer("p", cluster.namesrv, hooks=[trace]) as producer:
            for _ in range(25):
                await producer.send(Message("t", b"x"))
            assert trace.dropped == 15 and caplog.text.count("are dropped") == 1
        await trace.close()
        assert trace.dropped == 25, "there is no trace topic, and no broker that creates one"
        assert len(broker.sends) == 25


async def test_traces_of_messages_with_long_keys_are_sent_in_several_messages() -> None:
    async with FakeCluster() as cluster:
        broker = await cluster.broker("a")
        cluster.topic("t", a=1)
        cluster.topic(TRACES, a=1)
        trace = MessageTrace(cluster.namesrv, interval_s=60)
        await trace.start()
        async with Producer("p", cluster.namesrv, hooks=[trace]) as producer:
            for number in range(100):
                await producer.send(Message("t", b"x", keys=f"{number:0400}"))
        await trace.close()
        assert trace.dropped == 0
        found = traces_of(broker)
        assert len(found) == 100 and all(fields[7] in keys for fields, keys in found)


def test_separators_inside_a_field_do_not_make_two_traces() -> None:
    trace = trace_format.publish(
        time_ms=1,
        region="r",
        group="g",
        topic="t",
        message_id="A,B",
        tags="a\x01b",
        keys="k\x02l",
        store_host="h",
        body_length=1,
        cost_ms=2,
        message_type=0,
        offset_message_id="O",
    )
    assert trace.text.count("\x01") == 13 and trace.text.count("\x02") == 1
    assert trace.keys[:2] == ("A", "B")


@pytest.fixture
def spans() -> Iterator[tuple[TracerProvider, InMemorySpanExporter]]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    yield provider, exporter
    provider.shutdown()


def by_name(exporter: InMemorySpanExporter) -> dict[str, list[ReadableSpan]]:
    found: dict[str, list[ReadableSpan]] = {}
    for span in exporter.get_finished_spans():
        found.setdefault(span.name, []).append(span)
    return found


async def test_spans_of_sender_and_handler_are_one_trace(spans: tuple[TracerProvider, Any]) -> None:
    provider, exporter = spans
    tracer = provider.get_tracer("application")
    async with FakeCluster() as cluster:
        broker = await cluster.broker("a")
        cluster.topic("t", a=1)
        hook = OpenTelemetry(provider)
        done = asyncio.Event()

        async def handle(message: MessageExt) -> None:
            with tracer.start_as_current_span("inside"):
                done.set()
            raise OSError("no")

        consumer = Consumer("g", cluster.namesrv, from_where=FIRST, hooks=[hook])
        consumer.subscribe("t", "*", handle)
        async with Producer("p", cluster.namesrv, hooks=[hook]) as producer, consumer:
            with tracer.start_as_current_span("outside"):
                result = await producer.send(Message("t", b"x", tags="a", keys="k"))
            await done.wait()
            await until(lambda: len(broker.log.sent_back) == 1)
    found = by_name(exporter)
    ((outside,), (sent,), (handled,), (inside,)) = (
        found[name] for name in ("outside", "send t", "process t", "inside")
    )
    assert len({span.context.trace_id for span in (outside, sent, handled, inside)}) == 1
    assert sent.parent.span_id == outside.context.span_id
    assert handled.parent.span_id == sent.context.span_id and inside.parent.span_id == handled.context.span_id
    assert (sent.kind, handled.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert handled.status.status_code is StatusCode.ERROR and handled.events[0].name == "exception"
    assert sent.attributes["messaging.system"] == "rocketmq"
    assert sent.attributes["messaging.message.id"] == result.message_id
    assert f"{sent.attributes['server.address']}:{sent.attributes['server.port']}" == broker.address
    assert handled.attributes["messaging.consumer.group.name"] == "g"
    assert handled.attributes["messaging.rocketmq.message.keys"] == ("k",)


async def test_a_batch_is_linked_to_its_senders_and_a_failed_send_is_an_error(
    spans: tuple[TracerProvider, Any],
) -> None:
    provider, exporter = spans
    async with FakeCluster() as cluster:
        broker = await cluster.broker("a")
        cluster.topic("t", a=1)
        hook = OpenTelemetry(provider)
        async with Producer("p", cluster.namesrv, hooks=[hook]) as producer:
            await producer.send(Message("t", b"x"))
            await producer.send(Message("t", b"y", properties={"traceparent": "junk"}))
            broker.answer = lambda code: (
                MQError(13, "illegal") if code == RequestCode.SEND_MESSAGE_V2 else None
            )
            with pytest.raises(MQError):
                await producer.send(Message("t", b"z"))
        done = asyncio.Event()
        consumer = Consumer("g", cluster.namesrv, from_where=FIRST, hooks=[hook])
        consumer.subscribe("t", "*", lambda messages: done.set(), batch_size=8)
        async with consumer:
            await done.wait()
    found = by_name(exporter)
    first, second, third = found["send t"]
    assert third.status.status_code is StatusCode.ERROR and not third.attributes.get("messaging.message.id")
    (handled,) = found["process t"]
    assert handled.attributes["messaging.batch.message_count"] == 2 and handled.parent is None
    assert [link.context.span_id for link in handled.links] == [
        first.context.span_id,
        second.context.span_id,
    ]


async def test_a_blocking_handler_runs_in_the_trace_of_its_message(spans: tuple[TracerProvider, Any]) -> None:
    provider, exporter = spans
    tracer = provider.get_tracer("application")
    async with FakeCluster() as cluster:
        await cluster.broker("a")
        cluster.topic("t", a=1)

        def blocking() -> None:
            done: list[bytes] = []
            hook = OpenTelemetry(provider)

            def handle(message: MessageExt) -> None:
                with tracer.start_as_current_span("inside"):
                    done.append(message.body)

            consumer = sync.Consumer("g", cluster.namesrv, from_where=FIRST, hooks=[hook])
            consumer.subscribe("t", "*", handle)
            with sync.Producer("p", cluster.namesrv, hooks=[hook]) as producer, consumer:
                producer.send(Message("t", b"x"))
                end = time.monotonic() + 5
                while not done and time.monotonic() < end:
                    time.sleep(0.01)

        await asyncio.to_thread(blocking)
    found = by_name(exporter)
    (inside,), (handled,), (sent,) = found["inside"], found["process t"], found["send t"]
    assert inside.parent.span_id == handled.context.span_id and handled.parent.span_id == sent.context.span_id
