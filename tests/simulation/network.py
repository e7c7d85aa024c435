"""An in-memory network between simulated hosts: sockets are pipes with delays, and links that can be cut."""

from __future__ import annotations

import asyncio
import contextvars
import zlib
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from tests.simulation.host import Host, current_host

if TYPE_CHECKING:
    from tests.simulation.loop import SimLoop

PACKET, FAST = 536, 1e6
"""Bytes of one packet, and the bytes a second from which on single packets make no difference."""


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
