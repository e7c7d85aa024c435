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
import zlib
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

current_host: contextvars.ContextVar[Host | None] = contextvars.ContextVar("host", default=None)


@dataclass(eq=False)
class Host:
    """One simulated machine; a restart is a new `Host` object with the same address."""

    name: str
    address: str
    alive: bool = True
    paused_until: float = 0.0
    """Virtual time before which nothing of this host runs (a stopped process: SIGSTOP, a long pause)."""
    held: list[_Callback] = field(default_factory=list)
    """What was due while it was paused."""
    disk_s: float = 0.002
    """Mean duration of one piece of executor work (fsync, reading at start)."""
    before_work: Callable[[Host, str], None] | None = None
    """Outcome the name of each piece of executor work before and after it is done; may crash the host."""
    tasks: list[asyncio.Task[Any]] = field(default_factory=list)
    """Also those of a dead host: were they collected, their `finally` clauses would run in the story."""
    endpoints: dict[Endpoint, None] = field(default_factory=dict)
    servers: dict[int, SimServer] = field(default_factory=dict)
    next_port: int = 40_000


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


PACKET, FAST = 536, 1e6
"""Bytes of one packet, and the bytes a second from which on single packets make no difference."""
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

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.random = random.Random(seed)
        self.now = 1_000.0
        self.network = Network(self)
        self._disposed = False
        self._timers: list[tuple[float, int, _Timer]] = []
        self._timer_numbers = itertools.count()
        self.turns = 0
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
        if self.turns > MAX_TURNS:
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
        """As `call_at`, but it is no host's: it happens whatever becomes of the caller's."""
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


class SimServer:
    """What `create_server` returns."""

    def __init__(
        self, loop: SimLoop, host: Host, port: int, factory: Callable[[], asyncio.BaseProtocol]
    ) -> None:
        self._loop, self.host, self.port, self.factory = loop, host, port, factory
        self.context = contextvars.copy_context()

    @property
    def sockets(self) -> list[Any]:
        return [self]

    def getsockname(self) -> tuple[str, int]:
        return (self.host.address, self.port)

    def is_serving(self) -> bool:
        return self.host.servers.get(self.port) is self

    def close(self) -> None:
        if self.is_serving():
            del self.host.servers[self.port]

    def close_clients(self) -> None:
        for endpoint in list(self.host.endpoints):
            if endpoint.local_port == self.port:
                endpoint.close()

    async def start_serving(self) -> None:
        return None

    async def wait_closed(self) -> None:
        return None

    async def __aenter__(self) -> SimServer:
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.close()


class Endpoint(asyncio.Transport):
    """One end of a connection. Bytes arrive in order, after a delay, or not while the link is cut."""

    def __init__(self, loop: SimLoop, host: Host, remote: Host, local_port: int, remote_port: int) -> None:
        super().__init__()
        self._loop, self.host, self.remote_host = loop, host, remote
        self.local_port, self.remote_port = local_port, remote_port
        self.peer: Endpoint | None = None
        self.protocol: Any = None
        self.context: contextvars.Context | None = None
        self.closing = False
        self.lost = False
        self._in_flight: deque[tuple[float, bytes | None]] = deque()
        self._delivering = False
        self._reading = True
        self._last_arrival = 0.0
        self.lost_until = 0.0
        """Until then bytes of this connection vanish on the way, whatever the link is like."""
        self._unsent = 0
        self._high, self._low = 64 * 1024, 16 * 1024
        self._writing_paused = False
        self._incoming: deque[bytes | None] = deque()

    # -- the interface of asyncio.Transport -----------------------------------------------------------

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "peername":
            return (self.remote_host.address, self.remote_port)
        if name == "sockname":
            return (self.host.address, self.local_port)
        return default

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol

    def get_protocol(self) -> Any:
        return self.protocol

    def is_closing(self) -> bool:
        return self.closing

    def is_reading(self) -> bool:
        return self._reading

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        self._loop.call_soon(self._pump_in, context=self.context)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = 64 * 1024 if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return (self._low, self._high)

    def get_write_buffer_size(self) -> int:
        return self._unsent

    def can_write_eof(self) -> bool:
        return False

    def write(self, data: Any) -> None:
        if self.closing or not len(data):
            return
        self._send(bytes(data))

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self.write(b"".join(list_of_data))

    def close(self) -> None:
        if not self.closing:
            self.closing = True
            self._send(None)
            self._loop.call_soon(self._lose, None, context=self.context)

    def abort(self) -> None:
        self.close()

    # -- the wire ---------------------------------------------------------------------------------------

    def _send(self, data: bytes | None) -> None:
        """Queue bytes (or, as None, the end of the stream) to the other end."""
        network = self._loop.network
        network.note(self, data)
        ready = max(self._last_arrival, self._loop.now + network.delay(self.host, self.remote_host))
        rate = network.rate(self.host, self.remote_host)
        if data is None or rate >= FAST:
            self._last_arrival = ready + len(data or b"") / rate
            self._in_flight.append((self._last_arrival, data))
        else:  # packet by packet: some may arrive and others not
            for at in range(0, len(data), PACKET):
                packet = data[at : at + PACKET]
                ready = self._last_arrival = ready + len(packet) / rate
                self._in_flight.append((ready, packet))
        if data is not None:
            self._unsent += len(data)
            if self._unsent > self._high and not self._writing_paused:
                self._writing_paused = True
                self.protocol.pause_writing()
        if not self._delivering:
            self._delivering = True
            network.schedule(self, self._last_arrival)

    def forget_after(self, when: float) -> None:
        """What would arrive later than this never does."""
        while self._in_flight and self._in_flight[-1][0] > when:
            self._in_flight.pop()

    def deliver(self) -> None:
        """Called by the network: hand over what has arrived, unless the link is cut just now."""
        network, peer = self._loop.network, self.peer
        assert peer is not None
        while self._in_flight:
            arrival, data = self._in_flight[0]
            if network.is_cut(self.host, self.remote_host) or self.lost_until > self._loop.now:
                network.schedule(self, self._loop.now + 0.2)  # as TCP does: sent again until it passes
                return
            if arrival > self._loop.now:
                network.schedule(self, arrival)
                return
            if not peer.host.alive and network.hosts[peer.host.address] is not peer.host:
                # The machine has started again and knows nothing of this connection: it answers with a reset.
                self._in_flight.clear()
                self._end(ConnectionResetError(104, "connection reset by peer"))
                break
            self._in_flight.popleft()
            if data is None:
                peer._receive_end()
                continue
            self._unsent -= len(data)
            peer._receive(data)
            if self._writing_paused and self._unsent <= self._low and self.host.alive:
                self._writing_paused = False
                self._loop.call_soon(self.protocol.resume_writing, context=self.context)
        self._delivering = False

    def _receive(self, data: bytes) -> None:
        if self.closing or not self.host.alive:
            return
        # Delivered in pieces now and then: nothing may rely on one read being one write.
        if len(data) > 1 and self._loop.random.random() < 0.05:
            cut = self._loop.random.randrange(1, len(data))
            self._incoming.append(data[:cut])
            data = data[cut:]
        self._incoming.append(data)
        self._loop.call_soon(self._pump_in, context=self.context)

    def _receive_end(self) -> None:
        """The stream ends behind what has arrived: that is read first, as from a real socket."""
        if self.closing or not self.host.alive:
            return
        self._incoming.append(None)
        self._loop.call_soon(self._pump_in, context=self.context)

    def _pump_in(self) -> None:
        while self._incoming and self._reading and not self.closing:
            data = self._incoming.popleft()
            if data is None:
                self._end(None)
            elif isinstance(self.protocol, asyncio.BufferedProtocol):
                view = memoryview(data)
                while view:
                    buffer = self.protocol.get_buffer(len(view))
                    count = min(len(buffer), len(view))
                    buffer[:count] = view[:count]
                    self.protocol.buffer_updated(count)
                    view = view[count:]
            else:
                self.protocol.data_received(data)

    def _end(self, error: Exception | None) -> None:
        if self.host.alive and not self.closing:
            self.closing = True
            self._loop.call_soon(self._lose, error, context=self.context)

    def _lose(self, error: Exception | None) -> None:
        if not self.lost:
            self.lost = True
            self.host.endpoints.pop(self, None)
            self.protocol.connection_lost(error)


class Network:
    """Which host reaches which, and how fast."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self.hosts: dict[str, Host] = {}
        self.all_hosts: list[Host] = []
        self.cuts: set[tuple[str, str]] = set()
        """(from, to) host names whose bytes do not arrive, one way each."""
        self.min_delay, self.mean_delay = 0.000_1, 0.000_3
        self.slow: dict[str, float] = {}
        """Host name -> bytes a second of each of its connections, where that is little."""
        self.late: dict[str, float] = {}
        """Host name -> mean delay of its packets in s, where that is much."""
        self.trace = 0
        """Checksum of everything that was ever sent, and when: equal for two runs of one seed."""

    def note(self, endpoint: Endpoint, data: bytes | None) -> None:
        """Something is sent."""
        head = f"{self._loop.now} {endpoint.host.name} {endpoint.remote_host.name} ".encode()
        self.trace = zlib.crc32(head + (data or b""), self.trace)

    def delay(self, source: Host, target: Host) -> float:
        if source is target:
            return 0.000_02
        mean = self.mean_delay
        if self.late:
            mean += self.late.get(source.name, 0.0) + self.late.get(target.name, 0.0)
        return self.min_delay + self._loop.random.expovariate(1 / mean)

    def is_cut(self, source: Host, target: Host) -> bool:
        return (source.name, target.name) in self.cuts

    def cut(self, a: str, b: str, *, both: bool = True) -> None:
        self.cuts.add((a, b))
        if both:
            self.cuts.add((b, a))

    def rate(self, source: Host, target: Host) -> float:
        """Bytes a second of one connection."""
        if not self.slow or source is target:
            return 100e6
        return min(self.slow.get(source.name, 100e6), self.slow.get(target.name, 100e6))

    def heal(self) -> None:
        self.cuts.clear()
        self.slow.clear()
        self.late.clear()

    def schedule(self, endpoint: Endpoint, when: float) -> None:
        # Bytes under way belong to no host: they arrive although the sender has crashed.
        self._loop.outside_at(when, endpoint.deliver)

    def start(self, name: str, address: str) -> Host:
        host = Host(name, address)
        self.hosts[address] = host
        self.all_hosts.append(host)
        return host

    def run_on(self, host: Host, function: Callable[[], Any]) -> Any:
        """Call `function` as code of `host`: the tasks it starts and timers it sets die with that host."""
        context = contextvars.copy_context()
        context.run(current_host.set, host)
        return context.run(function)

    async def connect(self, owner: Host, address: str, port: int, factory: Callable[[], Any]) -> Any:
        target = owner if address in ("127.0.0.1", "localhost") else self.hosts.get(address)
        started = self._loop.now
        while target is not None and (self.is_cut(owner, target) or self.is_cut(target, owner)):
            if self._loop.now - started > 60:
                raise TimeoutError(110, f"connect to {address}:{port} timed out")
            await asyncio.sleep(0.2)
            target = self.hosts.get(address)
        await asyncio.sleep(2 * self.delay(owner, target or owner))
        server = target.servers.get(port) if target is not None and target.alive else None
        if target is None or server is None:
            raise ConnectionRefusedError(111, f"connection refused: {address}:{port}")
        owner.next_port += 1
        near = Endpoint(self._loop, owner, target, owner.next_port, port)
        far = Endpoint(self._loop, target, owner, port, owner.next_port)
        near.peer, far.peer = far, near
        owner.endpoints[near] = None
        target.endpoints[far] = None
        far.context = server.context.copy()
        far.protocol = server.factory()
        far.context.run(far.protocol.connection_made, far)
        near.context = contextvars.copy_context()
        near.protocol = factory()
        near.protocol.connection_made(near)
        return near, near.protocol

    def reset(self, endpoint: Endpoint) -> None:
        """Both ends of one connection get ECONNRESET; what is under way is lost."""
        for end in (endpoint, endpoint.peer):
            if end is not None:
                end._in_flight.clear()
                end._incoming.clear()
                end._end(ConnectionResetError(104, "connection reset by peer"))

    def stall(self, endpoint: Endpoint, seconds: float, *, both: bool = True) -> None:
        """A half-open connection: it looks alive, but nothing arrives for a while (one way, or both)."""
        endpoint.lost_until = self._loop.now + seconds
        if both and endpoint.peer is not None:
            endpoint.peer.lost_until = endpoint.lost_until

    def crash(self, host: Host, *, silent: bool = False) -> None:
        """Kill a host's process. Its kernel sends what it has and closes the connections.

        `silent`: the power is gone, and with it what was not yet on its way.
        """
        host.alive = False
        host.servers.clear()
        for task in host.tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        for endpoint in list(host.endpoints):
            endpoint.closing = True
            if silent:
                endpoint.forget_after(self._loop.now + 2 * self.mean_delay)
            else:
                endpoint._in_flight.append((self._loop.now, None))
                if not endpoint._delivering:
                    endpoint._delivering = True
                    self.schedule(endpoint, self._loop.now + self.delay(host, endpoint.remote_host))
        host.endpoints.clear()
