"""An event loop in a separate thread, for callers that block.

Threads may share it, and a signal handler may use it while its own thread waits in it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

import uvloop

from batonmq.net.errors import ConnectionLost, NetError
from batonmq.protocol.errors import MQError

log = logging.getLogger(__name__)

T = TypeVar("T")

DRAIN_S = 1.0
"""How long calls that are under way at the end have to fail by themselves, before they are cancelled."""


class LoopThread:
    """Runs coroutines for other threads until it is closed."""

    def __init__(self, name: str) -> None:
        self._loop = uvloop.new_event_loop()
        self._process = os.getpid()
        self._lock = threading.RLock()  # a signal handler may interrupt its holder
        self._accepts = True
        self._ending = False
        self._ended: Future[None] = Future()
        """Done when the thread is."""
        self._failure: BaseException | None = None
        """What the last coroutine raised."""
        self._killed: BaseException | None = None
        """What ended the loop though nobody asked for that."""
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Begin; the future holds the outcome, `ConnectionLost` if the loop ends before.

        Raises RuntimeError if the loop has ended, and in another process than the one that made it.
        """
        try:
            self._check_process()
            with self._lock:
                if not self._accepts:
                    raise self._over() from self._killed
                return asyncio.run_coroutine_threadsafe(self._watched(work), self._loop)
        except RuntimeError:
            work.close()
            raise

    def call(self, function: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Wait for the outcome. Raises also what `submit` raises."""
        self._check_thread()
        future = self.submit(function())
        try:
            return future.result()
        except BaseException:
            future.cancel()  # after Ctrl-C it would continue for nobody
            raise

    def call_or_close(self, function: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """`call` for a start: where it fails because of the network, nothing is left behind."""
        try:
            self.call(function)
        except (NetError, MQError):
            self.close()
            raise

    def close(self, last: Callable[[], Coroutine[Any, Any, None]] | None = None) -> None:
        """Run a last coroutine, then end the thread. All callers wait for the end of the first one's.

        The thread does all of it: the first caller may be interrupted by a signal handler that calls again.
        Raises what the coroutine raised, and what `submit` raises, but nothing if all has ended well before.
        """
        self._check_process()
        self._check_thread()
        with self._lock:
            if self._accepts:
                asyncio.run_coroutine_threadsafe(self._end(last), self._loop)
        self._ended.result()

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise RuntimeError(
                f"this client belongs to process {self._process}, which made it: make one after the fork"
            )

    def _check_thread(self) -> None:
        if threading.current_thread() is self._thread:
            raise RuntimeError("a blocking call from a handler: use the asynchronous client there")

    def _over(self) -> RuntimeError:
        if self._killed is None:
            return RuntimeError("this client is closed")
        return RuntimeError(f"this client's event loop was ended by {self._killed!r}")

    async def _watched(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            return await work
        except asyncio.CancelledError:
            if self._accepts:
                raise
            raise ConnectionLost(self._thread.name, "this client is closed") from None

    async def _end(self, last: Callable[[], Coroutine[Any, Any, None]] | None) -> None:
        if self._ending or not self._accepts:
            return
        self._ending = True
        try:
            if last is not None:
                await last()
        except BaseException as error:
            self._failure = error
        finally:
            self._loop.stop()

    def _run(self) -> None:
        try:
            self._loop.run_forever()
        except BaseException as error:  # sys.exit() in a hook, for one
            log.critical("the event loop of %s was ended by %r", self._thread.name, error)
            self._killed = error
        with self._lock:
            self._accepts = False
        try:
            self._loop.run_until_complete(self._drain())
        finally:
            self._loop.close()
            if self._killed is not None:
                over = self._over()
                over.__cause__ = self._killed
                self._ended.set_exception(over)
            elif self._failure is not None:
                self._ended.set_exception(self._failure)
            else:
                self._ended.set_result(None)

    async def _drain(self) -> None:
        """Have everything end that still runs."""
        running = asyncio.all_tasks() - {asyncio.current_task()}
        if running and self._killed is None:
            _, running = await asyncio.wait(running, timeout=DRAIN_S)
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running, timeout=DRAIN_S)
