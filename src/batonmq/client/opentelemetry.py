"""OpenTelemetry spans around sends and handlers, joined by the W3C trace context in the messages' properties.

Needs the package ``opentelemetry-api`` (``pip install 'batonmq[tracing]'``). What happens to the spans is the
application's set-up of OpenTelemetry. Attributes: the semantic conventions for messaging.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from opentelemetry import propagate, trace
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, Tracer, TracerProvider
from opentelemetry.util.types import AttributeValue

from batonmq.client.hooks import Delivery, Hook, Sending, SendKind
from batonmq.client.message import Message
from batonmq.protocol.message.record import MessageExt

_TYPES = {
    SendKind.NORMAL: "normal",
    SendKind.DELAYED: "delay",
    SendKind.ORDERED: "fifo",
    SendKind.HALF: "transaction",
}


class OpenTelemetry(Hook):
    """A hook for producers and consumers.

        Producer("orders", namesrv, hooks=[OpenTelemetry()])

    A send is a span of kind PRODUCER. Its context travels in the message's properties (``traceparent``). The
    call of the handler is a span of kind CONSUMER: a child of it for one message, linked to them for several.
    Inside a handler the span is the current one.

    Args:
        tracer_provider: where the tracer comes from; the global one when None.
    """

    def __init__(self, tracer_provider: TracerProvider | None = None) -> None:
        self._tracer: Tracer = trace.get_tracer("batonmq.client", tracer_provider=tracer_provider)

    @contextmanager
    def sending(self, sending: Sending) -> Iterator[None]:
        attributes = _attributes(sending.topic, sending.client_id, sending.messages)
        attributes["messaging.operation.name"] = attributes["messaging.operation.type"] = "send"
        attributes["messaging.rocketmq.message.type"] = _TYPES[sending.kind]
        with self._tracer.start_as_current_span(
            f"send {sending.topic}",
            kind=SpanKind.PRODUCER,
            attributes=attributes,
            record_exception=True,
            set_status_on_exception=True,
        ) as span:
            for message in sending.messages:
                propagate.inject(message.properties)
            yield
            if sending.result is not None:
                span.set_attribute("messaging.message.id", sending.result.message_id)
                partition = f"{sending.result.queue.broker_name}:{sending.result.queue.queue_id}"
                span.set_attribute("messaging.destination.partition.id", partition)
            _server(span, sending.address)

    @contextmanager
    def handling(self, delivery: Delivery) -> Iterator[None]:
        attributes = _attributes(delivery.topic, delivery.client_id, delivery.messages)
        attributes["messaging.operation.name"] = attributes["messaging.operation.type"] = "process"
        attributes["messaging.consumer.group.name"] = delivery.group
        contexts = [propagate.extract(message.properties) for message in delivery.messages]
        single = len(contexts) == 1
        if single:
            attributes["messaging.message.id"] = delivery.messages[0].message_id
        senders = [trace.get_current_span(context).get_span_context() for context in contexts]
        with self._tracer.start_as_current_span(
            f"process {delivery.topic}",
            context=contexts[0] if single else None,
            kind=SpanKind.CONSUMER,
            links=None if single else [Link(sender) for sender in senders if sender.is_valid],
            attributes=attributes,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield
            except Exception as error:
                if not delivery.retry_later:
                    span.record_exception(error)
                span.set_status(Status(StatusCode.ERROR, str(error) or type(error).__name__))
                raise


def _attributes(
    topic: str, client_id: str, messages: Sequence[Message] | Sequence[MessageExt]
) -> dict[str, AttributeValue]:
    attributes: dict[str, AttributeValue] = {
        "messaging.system": "rocketmq",
        "messaging.destination.name": topic,
        "messaging.client.id": client_id,
        "messaging.message.body.size": sum(len(message.body) for message in messages),
    }
    if len(messages) > 1:
        attributes["messaging.batch.message_count"] = len(messages)
    first = messages[0]
    if first.tags:
        attributes["messaging.rocketmq.message.tag"] = first.tags
    if first.keys:
        attributes["messaging.rocketmq.message.keys"] = list(first.keys)
    return attributes


def _server(span: Span, address: str) -> None:
    host, _, port = address.rpartition(":")
    if host and port.isdigit():
        span.set_attribute("server.address", host)
        span.set_attribute("server.port", int(port))
