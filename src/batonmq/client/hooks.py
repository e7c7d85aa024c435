"""Hooks: code around each send and each call of a handler, for traces and metrics.

    class Timing(Hook):
        @contextmanager
        def sending(self, sending):
            began = time.perf_counter()
            try:
                yield
            finally:
                observe(sending.topic, time.perf_counter() - began)

    Producer("group", namesrv, hooks=[Timing()])

A hook that raises is logged and changes nothing else. The first hook is the outermost.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from enum import Enum
from types import TracebackType

from batonmq.client.message import Message, SendResult
from batonmq.protocol.message.record import MessageExt

log = logging.getLogger(__name__)


class SendKind(Enum):
    """What a message is, as far as its sender knows."""

    NORMAL = "normal"
    DELAYED = "delayed"
    ORDERED = "ordered"
    HALF = "half"
    """The prepared message of a transaction."""


class TransactionState(Enum):
    """What became of the local transaction that a half message belongs to."""

    COMMIT = "COMMIT_MESSAGE"
    ROLLBACK = "ROLLBACK_MESSAGE"
    UNKNOWN = "UNKNOW"
    """Not yet known: the broker asks again later. (RocketMQ spells it so.)"""


@dataclass(slots=True)
class Sending:
    """One call of `Producer.send`."""

    topic: str
    group: str
    client_id: str
    messages: Sequence[Message]
    """A hook may add properties to them before they are sent."""
    kind: SendKind
    result: SendResult | None = None
    """Set when the send has succeeded."""
    address: str = ""
    """``host:port`` of the master that acknowledged."""


@dataclass(slots=True)
class Delivery:
    """One call of a handler."""

    topic: str
    group: str
    client_id: str
    messages: Sequence[MessageExt]
    retry_later: bool = False
    """Set when the handler asked for another delivery (`RetryLater`)."""
    state: dict[str, object] = field(default_factory=dict)
    """For the hooks' own use."""


@dataclass(frozen=True, slots=True)
class TransactionEnd:
    """The state of a half message, as it is sent to its broker."""

    group: str
    client_id: str
    message: Message | MessageExt
    message_id: str
    transaction_id: str
    address: str
    state: TransactionState
    from_check: bool
    """The broker asked for it."""


class Hook:
    """Override what is of interest."""

    def sending(self, sending: Sending) -> AbstractContextManager[None]:
        """Around a send with all its attempts; what it raises is thrown into the context."""
        return nullcontext()

    def handling(self, delivery: Delivery) -> AbstractContextManager[None]:
        """Around the call of a handler; what the handler raises is thrown into the context."""
        return nullcontext()

    def transaction_ended(self, end: TransactionEnd) -> None:
        """A transaction is committed, rolled back, or its state is answered to a check."""


Hooks = Sequence[Hook]


@contextmanager
def around(enter: Callable[[Hook], AbstractContextManager[None]], hooks: Iterable[Hook]) -> Iterator[None]:
    """Enter each hook's context and leave them in the opposite order, whatever they do."""
    entered: list[tuple[Hook, AbstractContextManager[None]]] = []
    for hook in hooks:
        try:
            context = enter(hook)
            context.__enter__()
        except Exception:
            log.exception("the hook %r failed", hook)
        else:
            entered.append((hook, context))
    try:
        yield
    except BaseException as error:
        _leave(entered, type(error), error, error.__traceback__)
        raise
    _leave(entered, None, None, None)


def _leave(
    entered: list[tuple[Hook, AbstractContextManager[None]]],
    kind: type[BaseException] | None,
    error: BaseException | None,
    trace: TracebackType | None,
) -> None:
    for hook, context in reversed(entered):
        try:
            context.__exit__(kind, error, trace)
        except BaseException as failure:
            if failure is error:
                continue  # a generator that lets the error through raises it again
            if not isinstance(failure, Exception):
                raise
            log.exception("the hook %r failed", hook)


def report_end(hooks: Iterable[Hook], end: TransactionEnd) -> None:
    """Call every hook with the end of a transaction."""
    for hook in hooks:
        try:
            hook.transaction_ended(end)
        except Exception:
            log.exception("the hook %r failed", hook)
