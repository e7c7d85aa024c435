"""Calls the users' handlers, with the hooks around them."""

from __future__ import annotations

from batonmq.client.hooks import Delivery, Hooks, around
from batonmq.client.push.retries import RetryLater
from batonmq.client.push.subscriptions import Subscription, Subscriptions, call
from batonmq.protocol.message.record import MessageExt


class Handlers:
    """Has the handler of a topic called with messages; raises what it raises."""

    def __init__(self, subscriptions: Subscriptions, group: str, client_id: str, hooks: Hooks) -> None:
        self._subscriptions = subscriptions
        self._group = group
        self._client_id = client_id
        self._hooks = hooks

    async def __call__(self, topic: str, messages: list[MessageExt]) -> None:
        """``topic``: the one that was subscribed to, or the retry topic."""
        await self.call(self._subscriptions[topic], messages)

    async def call(self, subscription: Subscription, messages: list[MessageExt]) -> None:
        if not self._hooks:
            await call(subscription.handler, messages)
            return
        delivery = Delivery(messages[0].topic, self._group, self._client_id, messages)
        with around(lambda hook: hook.handling(delivery), self._hooks):
            try:
                await call(subscription.handler, messages)
            except RetryLater:
                delivery.retry_later = True
                raise
