"""Interceptors: what is done with every request and every connection, whichever handler it is for.

An `Interceptor` is a set of up to four functions, given to `Dispatcher.intercept`. The list is ordered from
the outside in: the first one sees a request first and its answer last. A function that refuses raises
`MQError`; the interceptors after it and the handler do not see that request, nor its answer. ::

    class Accounts:
        def __init__(self, owners: Mapping[str, str]) -> None:
            self.owners = owners                        # topic -> certificate subject

        def opened(self, connection: Connection) -> None:
            if connection.tls is None:
                raise MQError(ResponseCode.NO_PERMISSION, "plain text is not accepted here")

        def before(self, request: Request) -> None:
            owner = self.owners.get(request.command.ext.get("topic", ""))
            if owner is not None and owner != request.connection.tls.subject:
                raise MQError(ResponseCode.NO_PERMISSION, f"the topic belongs to {owner}")

    accounts = Accounts({"orders": "CN=shop"})
    dispatcher.intercept(Interceptor(opened=accounts.opened, before=accounts.before))

Nothing is paid per request for what an interceptor leaves out: handlers are wrapped once, when an interceptor
or a handler is added, and a lone `answered` is called directly.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from batonmq.net.connection import Connection
    from batonmq.net.dispatch import Outcome, RawHandler, Reply, Request

REACHED_ALL = sys.maxsize
"""`Request.reached` of a request that passed all interceptors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interceptor:
    """What to call, and when; None: nothing. An exception other than `MQError` is a bug and is logged with
    its traceback; in `opened` and `before` it refuses as well."""

    opened: Callable[[Connection], None] | None = None
    """A server accepted a connection. `MQError` refuses it: it is closed and its remark is logged."""
    closed: Callable[[Connection], None] | None = None
    """A connection that `opened` let in has ended, for whatever reason."""
    before: Callable[[Request], Awaitable[None] | None] | None = None
    """A request came in, oneway ones and those without handler included. `MQError` refuses it and is the
    answer. An awaitable holds the request, and it alone: later ones of its connection may overtake it."""
    answered: Callable[[Request, int], None] | None = None
    """A request is answered with this code, also by an error or because its time was up: once for each
    request, before the answer is written. A request that was not answered at once is still among its
    connection's `in_flight`. Not called for a oneway request whose handler gives no answer."""


def guard(handler: RawHandler, interceptors: Sequence[Interceptor]) -> RawHandler:
    """`handler` behind the `before` of each interceptor; `handler` itself where there is none."""
    for position in reversed(range(len(interceptors))):
        before = interceptors[position].before
        if before is not None:
            handler = _behind(before, position, handler)
    return handler


def _behind(
    before: Callable[[Request], Awaitable[None] | None], position: int, inner: RawHandler
) -> RawHandler:
    def check_and_handle(request: Request) -> Outcome:
        try:
            waiting = before(request)
        except BaseException:
            request.reached = position
            raise
        if waiting is None:
            return inner(request)
        request.reached = position
        return _handle_later(request, waiting, inner)

    return check_and_handle


async def _handle_later(request: Request, waiting: Awaitable[None], inner: RawHandler) -> Reply | None:
    await waiting
    if request.answered:  # its time was up meanwhile
        return None
    request.reached = REACHED_ALL
    outcome = inner(request)
    return await outcome if isinstance(outcome, Awaitable) else outcome


def each_answered(interceptors: Sequence[Interceptor]) -> Callable[[Request, int], None] | None:
    """One function for all `answered`, innermost first; None where there is none."""
    functions = [
        (position, each.answered) for position, each in enumerate(interceptors) if each.answered is not None
    ]
    if not functions:
        return None
    outermost, first = functions[0]
    if len(functions) == 1 and all(each.before is None for each in interceptors[: outermost + 1]):
        return first
    functions.reverse()

    def answered(request: Request, code: int) -> None:
        reached = getattr(request, "reached", REACHED_ALL)
        for position, function in functions:
            if position < reached:
                try:
                    function(request, code)
                except Exception:
                    request.connection.interceptor_failed(request)

    return answered
