"""A server and a client of it, and what the server answers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from batonmq.net import (
    Dispatcher,
    Limits,
    RemotingClient,
    RemotingServer,
    Reply,
    Request,
)

ECHO, LATER, NEVER, ASYNC, BUG, REFUSE, TYPED, PARTS = range(30001, 30009)
CODES = {
    "echo": ECHO,
    "later": LATER,
    "never": NEVER,
    "async": ASYNC,
    "bug": BUG,
    "refuse": REFUSE,
    "typed": TYPED,
    "parts": PARTS,
}


@asynccontextmanager
async def pair(
    dispatcher: Dispatcher, *, limits: Limits | None = None, client_dispatcher: Dispatcher | None = None
) -> AsyncIterator[tuple[RemotingServer, RemotingClient, str]]:
    server = RemotingServer(dispatcher, "127.0.0.1", 0, limits=limits)
    client = RemotingClient(dispatcher=client_dispatcher)
    await server.start()
    try:
        yield server, client, f"127.0.0.1:{server.port}"
    finally:
        await client.close()
        await server.stop()


def echo(request: Request) -> Reply:
    return Reply(body=bytes(request.command.body), ext=request.command.ext, remark=request.command.remark)


def dispatcher(**handlers: Callable[[Request], Reply | Awaitable[Reply | None] | None]) -> Dispatcher:
    """Answers the codes of these names, see `CODES`."""
    made = Dispatcher()
    for name, handler in handlers.items():
        made.on_code(CODES[name], handler)
    return made
