"""What a small request costs the server: CPU time of a process that only answers.

    python -m benchmarks.bench_net [--seconds 3] [--in-flight 64] [--connections 1] [--loop uvloop|asyncio]

The server runs in a separate process; a client process keeps `in-flight` requests going, batched as a
pipelining client does. Printed for each header serialisation and kind of handler: requests a second, and
server CPU microseconds a request, whole and without the frame codec (measured alone in this process).
"""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import subprocess
import sys
import time

import uvloop

from batonmq.net import Dispatcher, RemotingServer, Reply, Request
from batonmq.protocol.codes import FLAG_RESPONSE
from batonmq.protocol.frame import Command, FrameReader, encode, encode_head
from batonmq.protocol.registry import Header

RAW, TYPED, HELD = 30001, 30002, 30003
FIELDS = {"topic": "flights", "queueId": "3", "queueOffset": "123456789", "sysFlag": "0"}
KINDS = {"raw": RAW, "typed": TYPED, "held": HELD}


class Small(Header):
    """Four fields, as a small request has."""

    topic: str
    queue_id: int
    queue_offset: int
    sys_flag: int


Small.code = TYPED  # type: ignore[assignment]  # a code of the benchmark's own


def make_server() -> RemotingServer:
    """raw: answered at once without looking at the header; typed: the header is decoded; held: answered
    at the end of the loop turn, as a broker answers sends."""
    dispatcher = Dispatcher()
    empty = Reply()
    held: list[Request] = []
    dispatcher.on_code(RAW, lambda request: empty)
    dispatcher.on(Small, lambda request, header: empty)

    def hold(request: Request) -> None:
        if not held:
            asyncio.get_running_loop().call_soon(answer)
        held.append(request)

    def answer() -> None:
        for request in held:
            request.reply(empty)
        held.clear()

    dispatcher.on_code(HELD, hold)
    return RemotingServer(dispatcher, "127.0.0.1", 0)


async def serve() -> None:
    server = make_server()
    await server.start()
    sys.stdout.write(f"{server.port}\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


def load(port: int, binary: bool, code: int, seconds: float, in_flight: int, connections: int) -> int:
    """Blocking client: a batch on each connection, then all answers, and again. Returns the requests."""
    batch = b"".join(
        encode(Command(code, FIELDS, opaque=number, binary=binary))
        for number in range(in_flight // connections)
    )
    answer = len(encode_head(0, 1, FLAG_RESPONSE, binary=True)) if binary else None
    sockets = [socket.create_connection(("127.0.0.1", port)) for _ in range(connections)]
    count = 0
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for each in sockets:
            each.sendall(batch)
        for each in sockets:
            left = in_flight // connections
            if answer is not None:
                size = left * answer
                while size:
                    size -= len(each.recv(size))
            else:
                while left:
                    left -= each.recv(1 << 16).count(b'"code":0')
            count += in_flight // connections
    for each in sockets:
        each.close()
    return count


def codec_us(binary: bool, decode_fields: bool, batch: int) -> float:
    """CPU microseconds to cut one request out of a batch and encode its answer."""
    data = b"".join(encode(Command(TYPED, FIELDS, opaque=n, binary=binary)) for n in range(batch))
    rounds = 20_000 // batch
    started = time.process_time()
    for _ in range(rounds):
        for command in FrameReader().feed(data):
            if decode_fields:
                Small.from_ext(command.ext)
            encode_head(0, command.opaque, FLAG_RESPONSE, binary=command.binary)
    return (time.process_time() - started) / (rounds * batch) * 1e6


def cpu_seconds(pid: int) -> float:
    """User and system time of a process."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--in-flight", type=int, default=64)
    parser.add_argument("--connections", type=int, default=1)
    parser.add_argument("--loop", choices=("uvloop", "asyncio"), default="uvloop")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        factory = uvloop.new_event_loop if arguments.loop == "uvloop" else asyncio.new_event_loop
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(serve())
        return
    command = [sys.executable, "-m", "benchmarks.bench_net", "--serve", "--loop", arguments.loop]
    print(f"{'header':8}{'handler':9}{'req/s':>10}{'server µs':>12}{'codec µs':>11}{'net µs':>9}")
    for binary in (True, False):
        for kind, code in KINDS.items():
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
                assert server.stdout is not None
                port = int(server.stdout.readline())
                options = (binary, code)
                load(port, *options, 0.5, arguments.in_flight, arguments.connections)
                before = cpu_seconds(server.pid)
                count = load(port, *options, arguments.seconds, arguments.in_flight, arguments.connections)
                used = (cpu_seconds(server.pid) - before) / count * 1e6
                server.terminate()
            codec = codec_us(binary, kind == "typed", arguments.in_flight)
            rate = count / arguments.seconds
            name = "binary" if binary else "json"
            print(f"{name:8}{kind:9}{rate:10.0f}{used:12.2f}{codec:11.2f}{used - codec:9.2f}")


if __name__ == "__main__":
    main()
