"""Brokers as controllers see them: `python -m benchmarks.controller.fleet`, a process with many of them.

Each broker has its own connections to all controllers, sends its heartbeat to each of them once a second
(oneway, as Java's and ours do), and takes role change notices at its own address: all of 127.0.0.0/8
leads to one listening socket. The parent sends one JSON object on stdin, then commands, one a line; answers
are JSON lines on stdout.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import uvloop

from batonmq.net.connection import Connection
from batonmq.net.dispatch import Dispatcher, Reply, Request
from batonmq.net.limits import Limits
from batonmq.net.server import RemotingServer
from batonmq.protocol.headers import controller as headers
from benchmarks.controller import wire
from benchmarks.controller.wire import Line, Template

TICK_S = 0.01
AT_ONCE = 64
ANSWER_TIMEOUT_S = 30.0
HEARTBEAT_TIMEOUT_MS = 10_000
"""`controllerHeartBeatTimeoutMills` of RocketMQ."""


class Refused(RuntimeError):
    """A controller refused what a broker needs."""


@dataclass(frozen=True)
class Orders:
    """What a fleet is."""

    controllers: list[str]
    leader: str
    port: int
    sets: list[int]
    """Numbers of the broker sets of which it has a replica each."""
    broker_id: int
    interval_ms: int = 1000
    sharing: int = 1
    """Brokers that share their connections, as in a broker container."""


def set_name(number: int) -> str:
    return f"set-{number}"


def broker_address(number: int, broker_id: int, port: int) -> str:
    """One address for each broker, all of them of this machine."""
    return f"127.{broker_id}.{number >> 8}.{number & 255}:{port}"


@dataclass
class Notice:
    """The first notice of a master epoch that a replica got."""

    number: int
    at_s: float
    """`time.monotonic`, which all processes of a machine share."""
    master_id: int
    master_epoch: int


@dataclass
class _Crew:
    """Brokers with the same connections."""

    frames: list[bytes]
    lines: dict[str, Line | None] = field(default_factory=dict)


class Fleet:
    def __init__(self, orders: Orders) -> None:
        self.orders = orders
        self._crews: list[_Crew] = []
        self._notices: dict[tuple[int, int], Notice] = {}
        self._beating = False
        self._late_s = 0.0
        self._sent = 0
        self._tasks: set[asyncio.Task[None]] = set()
        dispatcher = Dispatcher()
        dispatcher.on(headers.NotifyBrokerRoleChanged, self._on_notice)
        self._server = RemotingServer(
            dispatcher, "0.0.0.0", orders.port, limits=Limits(max_connections=100_000, idle_timeout_ms=0)
        )

    # -- commands ------------------------------------------------------------------------------------------

    async def start(self) -> dict[str, Any]:
        """Listen, connect, and give every broker its id."""
        orders = self.orders
        await self._server.start()
        for first in range(0, len(orders.sets), orders.sharing):
            crew = orders.sets[first : first + orders.sharing]
            self._crews.append(_Crew([self._beat(number) for number in crew]))
        gate = asyncio.Semaphore(AT_ONCE)

        async def enrol(number: int, crew: _Crew) -> None:
            # Connected only now: servers close a connection that says nothing for long.
            async with gate:
                await self._connect(crew, orders.leader)
                for index in range(
                    number * orders.sharing, min((number + 1) * orders.sharing, len(orders.sets))
                ):
                    await self._enrol(index, orders.sets[index])

        await asyncio.gather(*(enrol(number, crew) for number, crew in enumerate(self._crews)))
        for address in orders.controllers:
            if address != orders.leader:
                await asyncio.gather(*(self._connect(crew, address) for crew in self._crews))
        return {}

    async def beat(self) -> dict[str, Any]:
        """Send heartbeats from now on."""
        self._beating = True
        task = asyncio.get_running_loop().create_task(self._beat_on())
        self._tasks.add(task)
        return {}

    async def elect(self) -> dict[str, Any]:
        """Every broker asks to become master."""
        await self._each(lambda number: wire.elect(set_name(number), self.orders.broker_id))
        return {}

    async def expand(self) -> dict[str, Any]:
        """Every broker, being the first master of its set, takes replica 2 into the SyncStateSet."""
        await self._each(lambda number: wire.alter(set_name(number), self.orders.broker_id, 1, [1, 2], 1))
        return {}

    async def _each(self, request: Callable[[int], Template]) -> None:
        gate = asyncio.Semaphore(AT_ONCE)

        async def one(index: int, number: int) -> None:
            async with gate:
                await self._ask(index, request(number))

        await asyncio.gather(*(one(index, number) for index, number in enumerate(self.orders.sets)))

    async def _ask(self, index: int, request: Template) -> None:
        line = self._crews[index // self.orders.sharing].lines[self.orders.leader]
        assert line is not None, f"no connection to {self.orders.leader}"
        answer = await line.call(request, ANSWER_TIMEOUT_S)
        if answer.code:
            raise Refused(f"{set_name(self.orders.sets[index])}: {answer.code} {answer.remark}")

    async def notices(self) -> dict[str, Any]:
        """The notices that came, by set and epoch."""
        return {"notices": [asdict(each) for each in self._notices.values()]}

    async def load(self) -> dict[str, Any]:
        """Heartbeats sent, and by how much the worst tick was late, since this was last asked."""
        found = {"sent": self._sent, "late_ms": self._late_s * 1000}
        self._sent, self._late_s = 0, 0.0
        return found

    # -- the brokers ---------------------------------------------------------------------------------------

    def _beat(self, number: int) -> bytes:
        orders = self.orders
        address = broker_address(number, orders.broker_id, orders.port)
        return wire.heartbeat(
            set_name(number),
            orders.broker_id,
            address,
            timeout_ms=HEARTBEAT_TIMEOUT_MS,
            oneway=True,
        ).frame(1)

    async def _connect(self, crew: _Crew, address: str) -> None:
        def lost(_: Line) -> None:
            crew.lines[address] = None

        crew.lines[address] = await Line.to(address, lost=lost)

    async def _enrol(self, index: int, number: int) -> None:
        orders, name = self.orders, set_name(number)
        address = broker_address(number, orders.broker_id, orders.port)
        await self._ask(index, wire.apply_id(name, orders.broker_id, address))
        await self._ask(index, wire.register(name, orders.broker_id, address))
        # Until all are there and begin to beat.
        await self._ask(index, wire.heartbeat(name, orders.broker_id, address, timeout_ms=120_000))

    async def _beat_on(self) -> None:
        """A share of the brokers each tick, so that heartbeats come evenly."""
        loop = asyncio.get_running_loop()
        slots = max(1, round(self.orders.interval_ms / 1000 / TICK_S))
        shares = [self._crews[slot::slots] for slot in range(slots)]
        due, slot = loop.time(), 0
        while self._beating:
            for crew in shares[slot]:
                data = b"".join(crew.frames)
                for address, line in crew.lines.items():
                    if line is not None:
                        line.send(data)
                        self._sent += len(crew.frames)
                    else:
                        self._again(crew, address)
            slot = (slot + 1) % slots
            due += TICK_S
            pause = due - loop.time()
            self._late_s = max(self._late_s, -pause)
            await asyncio.sleep(max(0.0, pause))

    def _again(self, crew: _Crew, address: str) -> None:
        async def connect() -> None:
            with contextlib.suppress(OSError):  # it is down; the next heartbeat tries again
                await self._connect(crew, address)

        task = asyncio.get_running_loop().create_task(connect())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _on_notice(self, request: Request, header: headers.NotifyBrokerRoleChanged) -> Reply:
        number = _number_of(request.connection)
        epoch = header.master_epoch or 0
        key = (number, epoch)
        if key not in self._notices:
            self._notices[key] = Notice(number, time.monotonic(), header.master_broker_id or 0, epoch)
        return Reply()


def _number_of(connection: Connection) -> int:
    """The set whose replica was notified: its address is where the connection came in."""
    transport = connection._transport
    assert transport is not None
    _, _, high, low = transport.get_extra_info("sockname")[0].split(".")
    return int(high) << 8 | int(low)


async def serve() -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=1 << 24)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    fleet = Fleet(Orders(**json.loads(await reader.readline())))
    while line := await reader.readline():
        answer = await getattr(fleet, line.decode().strip())()
        print(json.dumps(answer), flush=True)


class FleetFailed(RuntimeError):
    """A process of brokers ended; what it said is on stderr."""


class FleetProcess:
    """The parent's side."""

    def __init__(self, orders: Orders) -> None:
        self.orders = orders
        self.process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.controller.fleet"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._send(json.dumps(asdict(orders)))

    def _send(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def begin(self, command: str) -> None:
        """Give a command without waiting for its answer."""
        self._send(command)

    def answer(self) -> dict[str, Any]:
        """The answer to the oldest command. Raises `FleetFailed`."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise FleetFailed(f"brokers {self.orders.broker_id} of {len(self.orders.sets)} sets ended")
        found: dict[str, Any] = json.loads(line)
        return found

    def do(self, command: str) -> dict[str, Any]:
        self.begin(command)
        return self.answer()

    def kill(self) -> None:
        """All its brokers die at once."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


def do_all(fleets: Sequence[FleetProcess], command: str) -> list[dict[str, Any]]:
    """The same command for all of them, at the same time."""
    for fleet in fleets:
        fleet.begin(command)
    return [fleet.answer() for fleet in fleets]


if __name__ == "__main__":
    uvloop.run(serve())
