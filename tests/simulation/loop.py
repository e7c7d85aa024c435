"""An asyncio event loop on virtual time, with an in-memory network between simulated hosts.

Whole programs, shells included, run on it unchanged: timers fire in virtual time, sockets are pipes with
delays that a `Network` can cut, executor work happens after a virtual delay, and a crashed host's callbacks
simply never run again, as if the process had been killed. All chance comes from one seeded generator, so a
seed names one schedule.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import itertools
import random
import socket
from collections import deque
from collections.abc import Callable
from typing import Any

from tests.simulation.host import Host, current_host
from tests.simulation.network import Network, SimServer


class _Callback(asyncio.Handle):
    """A handle that knows whose it is: a dead host's callbacks never run, a paused one's when it wakes."""

    __slots__ = ("host",)

    host: Host | None

    def __init__(
        self,
        callback: Any,
        args: Any,
        loop: SimLoop,
        context: contextvars.Context | None,
    ) -> None:
        # As asyncio's, without what only its debug mode needs: a story makes some 60,000 of them.
        if context is None:
            self._context = contextvars.copy_context()
            self.host = current_host.get()
        else:
            self._context = context
            self.host = context.get(current_host)
        self._loop = loop
        self._callback = callback
        self._args = args
        self._cancelled = False
        self._repr = self._source_traceback = None


class _Timer(asyncio.TimerHandle):
    """The same for a later time. The loop's heap orders timers itself, by time and then by age."""

    __slots__ = ("host",)

    host: Host | None

    __init__ = _Callback.__init__


class Deadlock(Exception):
    """Nothing is left to run: the program waits for something that can never happen."""


class Livelock(Exception):
    """A program is busy without an end: it asks for its next turn at once, for ever."""


MAX_TURNS = 1_000_000
"""Turns of the loop in one story; a story has some 50,000."""


class SimTask(asyncio.Task[Any]):
    """A task whose place in a set is the same in every run: by number, not by address in memory."""

    def __init__(self, coro: Any, *, loop: SimLoop, **kw: Any) -> None:
        self._number = next(loop.task_numbers)
        super().__init__(coro, loop=loop, **kw)

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return self is other


class SimLoop(asyncio.BaseEventLoop):
    """Virtual time; `network` decides what happens to bytes between hosts.

    Scheduling is its own: asyncio's compares timers in Python and asks a selector in every turn, which took
    a third of a story's time.
    """

    _ready: deque[Any]

    def __init__(self, seed: int, *, max_turns: int = MAX_TURNS) -> None:
        """`max_turns`: a story of more is a `Livelock`."""
        super().__init__()
        self.random = random.Random(seed)
        self.now = 1_000.0
        self.network = Network(self)
        self._disposed = False
        self._timers: list[tuple[float, int, _Timer]] = []
        self._timer_numbers = itertools.count()
        self.turns = 0
        self._max_turns = max_turns
        self.task_numbers = itertools.count()
        self.failures: list[dict[str, Any]] = []
        self.set_task_factory(self._make_task)
        self.set_exception_handler(lambda _loop, context: self.failures.append(context))

    def time(self) -> float:
        return self.now

    def dispose(self) -> None:
        """End all that is left to run, without a word about tasks that never ended, and close.

        Coroutines of hosts that crashed were never cancelled. They are closed here: left to the garbage
        collector, one that awaits in a `finally` clause complains that it "ignored GeneratorExit".
        """
        self._disposed = True
        closed: set[asyncio.Task[Any]] = set()
        while left := asyncio.all_tasks(self) - closed:  # a `finally` clause may begin new tasks
            closed |= left
            for task in left:
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                _close_coroutine(task.get_coro())
        for host in self.network.all_hosts:
            host.alive = False
            host.tasks.clear()
        self.close()

    def close(self) -> None:
        super().close()
        self._timers.clear()

    def _make_task(self, loop: asyncio.AbstractEventLoop, coro: Any, **kw: Any) -> asyncio.Task[Any]:
        task = SimTask(coro, loop=self, **kw)
        host = current_host.get()
        if host is not None:
            host.tasks.append(task)
            if len(host.tasks) > 512:
                host.tasks = [t for t in host.tasks if not t.done()]
        return task

    # -- scheduling --------------------------------------------------------------------------------------

    def _run_once(self) -> None:
        """One turn: time goes on to the next timer unless something is ready, and what is due runs."""
        ready, timers = self._ready, self._timers
        while timers and timers[0][2]._cancelled:
            heapq.heappop(timers)
        self.turns += 1
        if self.turns > self._max_turns:
            raise Livelock("a program is busy without an end")
        if ready or self._stopping or (timers and timers[0][0] <= self.now):
            self.now += 1e-6  # a turn costs a little time, so that a busy program can not freeze the clock
        elif timers:
            self.now = timers[0][0]
        else:
            raise Deadlock
        while timers and timers[0][0] <= self.now:
            ready.append(heapq.heappop(timers)[2])
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle._cancelled:
                continue
            host = handle.host
            if host is not None:
                if not host.alive:
                    continue
                if host.paused_until > self.now:
                    if not host.held:
                        self._wake_at(host)
                    host.held.append(handle)
                    continue
            try:  # as `asyncio.Handle._run`
                handle._context.run(handle._callback, *handle._args)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:
                message = f"exception in {handle!r}"
                self.call_exception_handler({"message": message, "exception": error, "handle": handle})

    def _wake_at(self, host: Host) -> None:
        self.outside_at(host.paused_until, self._wake, host)

    def _wake(self, host: Host) -> None:
        """A paused host goes on with everything that was due meanwhile, in the order in which it was."""
        if host.paused_until > self.now:
            self._wake_at(host)
            return
        held, host.held = host.held, []
        self._ready.extend(held)

    def call_soon(self, callback: Any, *args: Any, context: contextvars.Context | None = None) -> Any:
        if self._disposed:
            return None  # the `finally` of a coroutine that is closed after the story's end
        handle = _Callback(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_at(
        self, when: float, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> Any:
        handle = _Timer(callback, args, self, context)
        handle._when = when
        handle._scheduled = True
        heapq.heappush(self._timers, (when, next(self._timer_numbers), handle))
        return handle

    def call_later(
        self, delay: float, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> Any:
        return self.call_at(self.now + delay, callback, *args, context=context)

    def outside_at(self, when: float, callback: Callable[..., object], *args: Any) -> None:
        """As `call_at`, but it is not a host's: it happens whatever becomes of the caller's."""
        self.call_at(when, callback, *args, context=contextvars.Context())

    def call_soon_threadsafe(self, callback: Any, *args: Any, context: Any = None) -> Any:
        return self.call_soon(callback, *args, context=context)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """It is left in the heap until its time."""

    # -- blocking work ----------------------------------------------------------------------------------

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        future = self.create_future()
        host = current_host.get()

        def work() -> None:
            # A thread goes on when its caller was cancelled: the work is done all the same.
            if host is not None and host.before_work is not None:
                host.before_work(host, _name(func))
                if not host.alive:
                    return
            try:
                result = func(*args)
            except BaseException as e:
                if not future.done():
                    future.set_exception(e)
            else:
                if not future.done():
                    future.set_result(result)
            if host is not None and host.before_work is not None:
                host.before_work(host, f"after {_name(func)}")

        self.call_later(self.random.expovariate(1 / (host.disk_s if host is not None else 0.002)), work)
        return future

    # -- sockets ----------------------------------------------------------------------------------------

    async def create_server(
        self, protocol_factory: Any, host: Any = None, port: Any = None, **kw: Any
    ) -> Any:
        owner = current_host.get()
        assert owner is not None, "servers run on a simulated host"
        if not port:
            owner.next_port += 1
            port = owner.next_port
        if port in owner.servers:
            raise OSError(98, f"address already in use: {owner.address}:{port}")
        server = SimServer(self, owner, port, protocol_factory)
        owner.servers[port] = server
        return server

    async def create_connection(
        self, protocol_factory: Any, host: Any = None, port: Any = None, **kw: Any
    ) -> Any:
        owner = current_host.get()
        assert owner is not None, "connections start on a simulated host"
        return await self.network.connect(owner, str(host), int(port), protocol_factory)

    async def getaddrinfo(self, host: Any, port: Any, **kw: Any) -> Any:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port))]


def _name(func: Any) -> str:
    """Of a function, a method or a partial."""
    return getattr(getattr(func, "func", func), "__name__", "?")


def _close_coroutine(coroutine: Any) -> None:
    for _ in range(100):  # each close gets a coroutine past one await in its `finally` clauses
        try:
            coroutine.close()
        except RuntimeError as error:
            if "ignored GeneratorExit" not in str(error):
                return  # "no running event loop" and the like: the clause has failed, the coroutine ended
        except Exception:
            return  # what its clauses raise concerns nobody any more
        else:
            return
