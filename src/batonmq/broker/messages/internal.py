"""Messages that the broker itself stores: half messages put back, checkpoints, due timers.

For features; sends of clients go through `sender.py`. `message_of` (`protocol/message/record.py`) copies a
record of the log for another queue.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from batonmq.broker.messages.appender import PutStatus
from batonmq.store.results import PutResult

if TYPE_CHECKING:
    from batonmq.broker.messages.appender import Appender
    from batonmq.protocol.message.record import StoredMessage


class PutOutcome(NamedTuple):
    """`result` is set if and only if the message is in the log and this broker was still master then. PUT_OK
    without a result: this broker acts as master, and another master has the message."""

    status: PutStatus
    result: PutResult | None

    @property
    def ok(self) -> bool:
        """Whether the message is as safe as the configuration demands."""
        return self.status is PutStatus.PUT_OK


class _Put:
    """Waits for one message (`Waiter`)."""

    __slots__ = ("outcome", "wait")

    def __init__(self, wait: bool) -> None:
        self.wait = wait
        self.outcome: asyncio.Future[PutOutcome] = asyncio.get_running_loop().create_future()

    def stored(self, status: PutStatus, result: PutResult | None) -> None:
        if not self.outcome.done():
            self.outcome.set_result(PutOutcome(status, result))


def put(appender: Appender, message: StoredMessage, *, wait: bool = True) -> asyncio.Future[PutOutcome]:
    """Append `message` at the end of this loop turn; messages of one turn keep their order.

    The future has the outcome once replicas and disk have the message (`wait`), or once it is in the log.
    With FLUSH_SLAVE_TIMEOUT or FLUSH_DISK_TIMEOUT it is in the log but not safe yet: do not append it again,
    ask `Appender.is_acked` later.
    """
    waiter = _Put(wait)
    appender.submit(message, waiter)
    return waiter.outcome
