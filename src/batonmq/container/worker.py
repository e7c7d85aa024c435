"""A worker process of a container: it runs some of the brokers and carries out the container's calls.

`python -m batonmq.container.worker FD`, started by `supervisor.py`; FD is its end of the socket pair. A
terminal or systemd sends signals to all processes of a container; only the container acts on them. If the
container is gone, its workers exit at once, as brokers in the container's process would.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from pathlib import Path

import uvloop

from batonmq.common import garbage
from batonmq.common.config import ConfigError
from batonmq.common.log import log_identity, set_up
from batonmq.common.threads import START_PATIENCE_S, close_runner
from batonmq.container import control
from batonmq.container.broker_file import BrokerFile, read_broker_file
from batonmq.container.core import BrokerIdentity
from batonmq.container.in_process import InProcess
from batonmq.container.place import StartFailed, StopFailed

log = logging.getLogger(__name__)

ORPHANED: int = 3
"""Exit code of a worker whose container is gone."""


class Worker:
    """Carries out calls concurrently."""

    def __init__(self, hello: control.Hello, writer: asyncio.StreamWriter) -> None:
        self._place = InProcess(hello.tls, self._ended)
        self._writer = writer
        self._orders: set[asyncio.Task[None]] = set()
        self._starts: set[asyncio.Task[None]] = set()
        """Those of the orders that start a broker."""

    async def open(self) -> None:
        """Get ready for brokers."""
        await self._place.open()

    def take(self, order: control.Start | control.Stop | control.NameServers) -> None:
        """Carry out a call; the answer is sent later."""
        task = asyncio.get_running_loop().create_task(self._carry_out(order))
        for tasks in (self._orders, self._starts) if isinstance(order, control.Start) else (self._orders,):
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    def answer(self, ping: control.Ping) -> None:
        self._say(control.Answer(ping.call))

    async def close(self, order: control.Close) -> None:
        """Stop all brokers and answer."""
        if self._starts:
            _, recovering = await asyncio.wait(list(self._starts), timeout=START_PATIENCE_S)
            for start in recovering:
                start.cancel()
        if self._orders:
            await asyncio.wait(list(self._orders))
        await self._place.close()
        self._say(control.Answer(order.call))
        await self._writer.drain()

    async def _carry_out(self, order: control.Start | control.Stop | control.NameServers) -> None:
        error: str | None = None
        try:
            match order:
                case control.Start():
                    await self._place.start(await _read(order))
                case control.Stop():
                    await self._place.stop(order.identity)
                case control.NameServers():
                    await self._place.set_name_servers(order.addresses)
        except (StartFailed, StopFailed, ConfigError) as failed:
            error = str(failed)
        except Exception as bug:
            log.exception("an order of the container failed")
            error = f"{type(bug).__name__}: {bug}"
        self._say(control.Answer(order.call, error))

    def _ended(self, identity: BrokerIdentity, cause: str) -> None:
        self._say(control.Ended(identity, cause))

    def _say(self, report: control.Report) -> None:
        self._writer.write(control.frame(report))


async def _read(order: control.Start) -> BrokerFile:
    loop = asyncio.get_running_loop()
    file = await loop.run_in_executor(None, read_broker_file, Path(order.path), order.namesrv_addr)
    if file.identity != order.identity:
        raise StartFailed(f"{order.path} has changed: it is the file of {file.identity.canonical_name} now")
    return file


async def work(end: socket.socket) -> None:
    """Run until the container sends `Close` or is gone."""
    reader, writer = await asyncio.open_unix_connection(sock=end)
    hello = await control.read_order(reader)
    if not isinstance(hello, control.Hello):
        os._exit(ORPHANED)
    log_identity.set(f"worker-{hello.number}")
    worker = Worker(hello, writer)
    await worker.open()
    garbage.settle()
    while True:
        order = await control.read_order(reader)
        match order:
            case None | control.Hello():
                log.error("the container is gone: this worker ends")
                os._exit(ORPHANED)
            case control.Ping():
                worker.answer(order)
            case control.Close():
                await worker.close(order)
                return
            case _:
                worker.take(order)


def main() -> None:
    """The command line."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    set_up()
    runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
    try:
        with socket.socket(fileno=int(sys.argv[1])) as end:
            runner.run(work(end))
    finally:
        close_runner(runner)
        logging.shutdown()


if __name__ == "__main__":
    main()
