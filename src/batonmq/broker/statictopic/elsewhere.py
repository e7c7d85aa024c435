"""Requests about physical queues that other broker sets have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from batonmq.broker.escape.addresses import address_of
from batonmq.net.dispatch import Reply
from batonmq.net.errors import NetError
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError

if TYPE_CHECKING:
    from collections.abc import Container

    from batonmq.broker.context import Broker
    from batonmq.protocol.registry import Header

KEPT_MS: Final = 5_000
"""Age at which an address is requested again."""


class Elsewhere:
    """Calls the brokers that serve other broker sets."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._known: dict[tuple[str, str], tuple[str, int]] = {}
        """(broker name, topic) -> address, and the monotonic time at which it expires."""

    async def call(self, broker_name: str, topic: str, header: Header, accept: Container[int]) -> Reply:
        """The answer, which has one of the codes in `accept`. Raises `MQError`."""
        broker = self._broker
        key, now_ms = (broker_name, topic), broker.clock.monotonic_ms()
        try:
            address, expires_ms = self._known.get(key, ("", 0))
            if expires_ms <= now_ms:
                self._known = {each: value for each, value in self._known.items() if value[1] > now_ms}
                address = await address_of(broker, broker_name, topic)
                self._known[key] = address, now_ms + KEPT_MS
            timeout_ms = broker.settings.broker.forward_timeout
            answer = await broker.client.call(address, header, timeout_ms=timeout_ms, accept=accept)
        except NetError as error:
            self._known.pop(key, None)
            raise MQError(
                ResponseCode.SYSTEM_ERROR, f"{broker_name} has this part of the queue: {error}"
            ) from error
        except MQError:
            self._known.pop(key, None)
            raise
        return Reply(answer.header, answer.body, answer.code, answer.remark)
