"""The subscriptions of a consumer, and how their handlers are called."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, cast

from batonmq.client.filter import Expression, subscription_data
from batonmq.protocol.bodies.clients import SubscriptionData
from batonmq.protocol.message.record import MessageExt
from batonmq.protocol.names import check_topic

Handler = Callable[[MessageExt], Awaitable[None] | None]
BatchHandler = Callable[[list[MessageExt]], Awaitable[None] | None]


class Subscribed(Protocol):
    """What brokers have to know of a subscription."""

    @property
    def data(self) -> SubscriptionData:
        """Topic and expression."""


@dataclass(slots=True)
class Subscription:
    data: SubscriptionData
    handler: BatchHandler
    batch_size: int


Subscriptions: TypeAlias = Mapping[str, Subscription]
"""By topic; complete once the consumer has started."""


def one_by_one(handler: Any) -> Callable[[list[MessageExt]], Any]:
    return lambda messages: handler(messages[0])


def _subscription(
    data: SubscriptionData, handler: Handler | BatchHandler, batch_size: int | None
) -> Subscription:
    """One message a call, or with ``batch_size`` a list of up to so many. Raises ValueError if that is less
    than 1."""
    if batch_size is None:
        return Subscription(data, one_by_one(handler), 1)
    if batch_size < 1:
        raise ValueError(f"batch_size is {batch_size}")
    return Subscription(data, cast(BatchHandler, handler), batch_size)


def subscribe(
    subscriptions: dict[str, Subscription],
    topic: str,
    expression: Expression,
    handler: Handler | BatchHandler,
    batch_size: int | None,
    now_ms: int,
) -> None:
    """Add a subscription: one message a call, or with ``batch_size`` a list of up to so many.

    Raises:
        ValueError: the topic is subscribed already or a light queue, the expression names no tag, or
            ``batch_size`` is less than 1.
        MQError: the topic's name is not allowed.
    """
    check_topic(topic)
    if topic in subscriptions:
        raise ValueError(f"{topic} is subscribed already")
    data = subscription_data(topic, expression, now_ms)
    subscriptions[topic] = _subscription(data, handler, batch_size)


async def call(handler: Callable[[list[MessageExt]], Any], messages: list[MessageExt]) -> None:
    """Raises what the handler raises. A handler that awaited something cancelled has failed as with any other
    exception: only who cancels the caller may end it with `CancelledError`."""
    try:
        outcome = handler(messages)
        if inspect.isawaitable(outcome):
            await outcome
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise RuntimeError("the handler awaited something that was cancelled") from error


def for_retried(subscriptions: Subscriptions) -> BatchHandler:
    """The handler of the retry topic."""

    async def handle(messages: list[MessageExt]) -> None:
        """A message that failed before goes to the handler of the topic it came from."""
        for message in messages:
            subscription = subscriptions.get(message.topic)
            if subscription is None:
                raise LookupError(f"no handler for {message.topic}, which was subscribed once")
            await call(subscription.handler, [message])

    return handle
