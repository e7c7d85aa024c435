"""A `Place` in a worker process, which the container restarts when it dies or hangs.

Its brokers restart with it, as after a `kill -9` of each. Brokers in other processes are not affected.
Pending calls fail.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import signal
import socket
import sys
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Callable
from typing import Final

from batonmq.common.tasks import Tasks
from batonmq.container import control
from batonmq.container.broker_file import BrokerFile
from batonmq.container.core import BrokerIdentity
from batonmq.container.place import Ended, StartFailed, StopFailed
from batonmq.net.tls import TlsConfig

log = logging.getLogger(__name__)

CLOSE_S: Final = 30.0
"""How long the brokers of a worker may take to stop; then the worker is killed."""
EXIT_S: Final = 5.0
"""How long a worker may take to exit after that."""
PAUSE_S: Final = (0.1, 5.0)
"""First and longest pause before a restart; the pause doubles each time."""
HEALTHY_S: Final = 10.0
"""If a worker ran this long, its next restart comes after the first pause."""
PING_S: Final = 1.0
"""Interval of pings."""
SILENT_PINGS: Final = 10
"""A worker that has not answered for so many intervals hangs, and is killed."""
STARTING_PINGS: Final = 600
"""The same while it starts, or starts brokers. The recovery of a large store may keep the whole process busy,
and a kill would make it begin again."""


class _Gone(Exception):
    """The worker ended before it answered."""


class WorkerProcess:
    """One worker, numbered from 1."""

    def __init__(self, number: int, tls: TlsConfig, ended: Ended) -> None:
        self._number = number
        self._tls = tls
        self._ended = ended
        self._brokers: dict[BrokerIdentity, tuple[str, str]] = {}
        """Running brokers: file and name servers."""
        self._starting: dict[int, tuple[BrokerIdentity, tuple[str, str]]] = {}
        """Pending calls that start a broker. The broker may stop itself before the caller runs again."""
        self._calls: dict[int, asyncio.Future[str | None]] = {}
        self._ids = itertools.count(1)
        self._writer: asyncio.StreamWriter | None = None
        self._process: Process | None = None
        self._watch: asyncio.Task[None] | None = None
        self._pings: asyncio.Task[None] | None = None
        self._silent = 0
        """Intervals since the worker's last message."""
        self._answers = False
        """Whether this process has sent a message; until then it may be busy with its imports."""
        self._returning: dict[BrokerIdentity, asyncio.Task[bool]] = {}
        """Brokers that a worker starts again."""
        self._tasks = Tasks()
        self._closing = asyncio.Event()

    @property
    def pid(self) -> int | None:
        """The running process; None between two processes."""
        return None if self._process is None else self._process.pid

    async def open(self) -> None:
        reader = await self._spawn()
        self._watch = self._tasks.spawn(self._supervise(reader))
        self._pings = self._tasks.spawn(self._ping())

    async def start(self, file: BrokerFile) -> None:
        identity, order = file.identity, (str(file.path), file.config.namesrv_addr)

        def ask(call: int) -> control.Order:
            self._starting[call] = identity, order
            return control.Start(call, *order, identity)

        try:
            error = await self._call(ask)
        except _Gone as gone:
            raise StartFailed(str(gone)) from gone
        if error is not None:
            raise StartFailed(error)

    async def stop(self, identity: BrokerIdentity) -> None:
        self._brokers.pop(identity, None)
        if (returning := self._returning.get(identity)) is not None:
            await asyncio.wait([returning])  # before that the worker would not know what to stop
        if self._writer is None:
            return  # it died with its worker; the next worker does not start it
        try:
            error = await self._call(lambda call: control.Stop(call, identity))
        except _Gone as gone:
            raise StopFailed(str(gone)) from gone
        if error is not None:
            raise StopFailed(error)

    async def set_name_servers(self, addresses: str) -> None:
        self._brokers = {each: (path, addresses) for each, (path, _) in self._brokers.items()}
        with contextlib.suppress(_Gone):  # its brokers restart with the new addresses
            await self._call(lambda call: control.NameServers(call, addresses))

    async def close(self) -> None:
        self._closing.set()
        if self._pings is not None:
            self._pings.cancel()
        try:
            async with asyncio.timeout(CLOSE_S):
                await self._call(control.Close)
        except TimeoutError:
            log.error("worker-%d did not stop its brokers in %.0f s", self._number, CLOSE_S)
            self._kill()
        except _Gone:
            log.error("worker-%d is not there: its brokers ended with it", self._number)
        if self._watch is not None:
            done, _ = await asyncio.wait([self._watch], timeout=EXIT_S)
            if not done:
                self._kill()
                await self._watch

    # -- the process

    async def _spawn(self) -> asyncio.StreamReader:
        """Start the process. Raises `OSError`."""
        mine, its = socket.socketpair()
        with its:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "batonmq.container.worker",
                str(its.fileno()),
                pass_fds=(its.fileno(),),
                stdin=DEVNULL,
            )
        self._answers = False
        mine.setblocking(False)
        reader, self._writer = await asyncio.open_unix_connection(sock=mine)
        self._writer.write(control.frame(control.Hello(self._number, self._tls)))
        log.info("worker-%d started pid=%d", self._number, self._process.pid)
        return reader

    async def _supervise(self, reader: asyncio.StreamReader) -> None:
        """Read the worker's messages, and restart it when it ends, until `close`."""
        loop = asyncio.get_running_loop()
        pause_s = PAUSE_S[0]
        while True:
            began = loop.time()
            code = await self._serve(reader)
            if self._closing.is_set():
                return
            if loop.time() - began >= HEALTHY_S:
                pause_s = PAUSE_S[0]
            names = ", ".join(sorted(each.canonical_name for each in self._brokers)) or "none"
            log.error(
                "worker-%d ended (%s); it starts again in %.1f s, with its brokers: %s",
                self._number,
                _how(code),
                pause_s,
                names,
            )
            again = await self._again(pause_s)
            if again is None:
                return
            reader, pause_s = again, min(pause_s * 2, PAUSE_S[1])

    async def _again(self, pause_s: float) -> asyncio.StreamReader | None:
        """Start a process and its former brokers; None if the container stops."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._closing.wait()
                    return None
            try:
                reader = await self._spawn()
            except OSError as error:
                log.error("worker-%d cannot be started: %s", self._number, error)
                pause_s = PAUSE_S[1]
                continue
            if self._closing.is_set():
                self._kill()
            else:
                self._tasks.spawn(self._restore())
            return reader

    async def _restore(self) -> None:
        """Start the brokers that the worker had; those that fail are removed."""
        starts = {
            each: self._tasks.spawn(self._start_again(each, *order)) for each, order in self._brokers.items()
        }
        self._returning.update(starts)
        if all(await asyncio.gather(*starts.values())):
            log.info("worker-%d is back brokers=%d", self._number, len(self._brokers))

    async def _start_again(self, identity: BrokerIdentity, path: str, addresses: str) -> bool:
        """False: the worker ended meanwhile, and `_supervise` starts another one."""
        try:
            error = await self._call(lambda call: control.Start(call, path, addresses, identity))
            if identity not in self._brokers:
                return True  # removed in the meantime: `stop` waits for this
            if error is not None:
                del self._brokers[identity]
                self._ended(identity, f"it did not start again after its worker ended: {error}")
                return True
            _, now = self._brokers[identity]
            if now != addresses:  # `set_name_servers` did not reach a broker that was starting
                await self._call(lambda call: control.NameServers(call, now))
        except _Gone:
            return False
        finally:
            if self._returning.get(identity) is asyncio.current_task():
                del self._returning[identity]
        return True

    async def _serve(self, reader: asyncio.StreamReader) -> int:
        """Wait until the process has ended; returns its exit code."""
        assert self._process is not None and self._writer is not None
        try:
            while (report := await control.read_report(reader)) is not None:
                self._silent, self._answers = 0, True
                if isinstance(report, control.Answer):
                    self._answered(report)
                elif self._brokers.pop(report.identity, None) is not None:
                    self._ended(report.identity, report.cause)
        except ValueError as error:
            log.error("worker-%d cannot be understood, it is killed: %s", self._number, error)
            self._kill()
        finally:
            self._writer.close()
            self._writer = None
        code = await self._process.wait()
        self._process = None
        calls, self._calls = self._calls, {}
        self._starting.clear()
        for call in calls.values():
            if not call.done():
                call.set_exception(_Gone(f"worker-{self._number} ended ({_how(code)})"))
        return code

    async def _ping(self) -> None:
        """Ping the worker, and kill it when it has been silent for too long. `_supervise` starts another one.

        Intervals are counted, not the time: if this process was stopped, too, no time has passed for it.
        """
        loop = asyncio.get_running_loop()
        sent: asyncio.Future[str | None] | None = None
        while True:
            await asyncio.sleep(PING_S)
            if self._writer is None:
                self._silent = 0
                continue
            starting = not self._answers or self._returning or self._starting
            most = STARTING_PINGS if starting else SILENT_PINGS
            if self._silent >= most:
                log.error("worker-%d has not answered for %.0f s: it is killed", self._number, most * PING_S)
                self._silent = 0
                self._kill()
                continue
            self._silent += 1
            if sent is None or sent.done():
                call = next(self._ids)
                sent = self._calls[call] = loop.create_future()
                sent.add_done_callback(_observed)
                self._writer.write(control.frame(control.Ping(call)))

    def _answered(self, answer: control.Answer) -> None:
        started = self._starting.pop(answer.call, None)
        if started is not None and answer.error is None:
            self._brokers[started[0]] = started[1]
        waiting = self._calls.pop(answer.call, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer.error)

    def _kill(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    # -- calls

    async def _call(self, order: Callable[[int], control.Order]) -> str | None:
        """Call the worker; returns the error of its answer. Raises `_Gone`."""
        if self._writer is None:
            raise _Gone(f"worker-{self._number} has ended and starts again")
        call = next(self._ids)
        answer: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self._calls[call] = answer
        self._writer.write(control.frame(order(call)))
        return await answer


def _observed(ping: asyncio.Future[str | None]) -> None:
    """Nobody waits for the answer to a ping."""
    if not ping.cancelled():
        ping.exception()


def _how(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
