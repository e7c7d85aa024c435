"""A name server, a controller and one broker as processes, and a topic whose content the test knows."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from batonmq import Credentials, Message, MessageQueue, Producer, QueueReader
from batonmq.demo.cluster import LocalCluster, Program
from batonmq.net import RemotingClient
from batonmq.net.errors import NetError
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.controller import GetMetadata, GetMetadataReply
from batonmq.protocol.message.record import decode_records

TOPIC = "Kept"


def read(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""


def anonymous_mib(pid: int) -> float:
    """Memory of a process that is not a file's, MiB: what a flood could make it allocate."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1024
    raise AssertionError(f"/proc/{pid}/status has no RssAnon")


async def exchange(address: str, data: bytes, *, then_close: bool = False, timeout_s: float = 5) -> bytes:
    """Write `data` to a port and read until the server closes; what it said. TimeoutError if it does not."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(data)
        if then_close:
            with contextlib.suppress(OSError):  # ENOTCONN: the server reset it first
                writer.write_eof()
        async with asyncio.timeout(timeout_s):
            said = b""
            with contextlib.suppress(ConnectionError):  # closed with our bytes unread: as good as an end
                while piece := await reader.read(65_536):
                    said += piece
            return said
    finally:
        writer.close()
        with contextlib.suppress(OSError):  # the server reset it first
            await writer.wait_closed()


@dataclass
class Group:
    """See the module. `acked` has what brokers acknowledged to `send`; `check` demands it back."""

    directory: Path
    settings: dict[str, object] = field(default_factory=dict)
    replicas: int = 1
    acked: list[bytes] = field(default_factory=list)
    credentials: Credentials | None = None
    """Of the producer and the reader."""

    def __post_init__(self) -> None:
        small = {
            "mappedFileSizeCommitLog": 16 << 20,
            "maxHashSlotNum": 10_000,
            "maxIndexNum": 40_000,
            "bindAddress": "127.0.0.1",
        }
        self.cluster = LocalCluster(
            self.directory, replicas=self.replicas, broker_settings={**small, **self.settings}
        )
        self.pids: dict[str, int] = {}

    @property
    def broker(self) -> Program:
        return self.cluster.brokers[0]

    @property
    def addresses(self) -> dict[str, str]:
        """Where frames are taken."""
        return {
            "namesrv": self.cluster.namesrv_address,
            "controller": self.cluster.controller_addresses[0],
            "broker": self.broker.address,
        }

    @property
    def ha_address(self) -> str:
        return f"127.0.0.1:{int(str(self.broker.settings['listenPort'])) + 1}"

    @classmethod
    @contextlib.contextmanager
    def running(cls, directory: Path) -> Iterator[Group]:
        """A group that serves, until the end of the context."""
        made = cls(directory)
        try:
            made.start()
            asyncio.run(made.serving())
            yield made
        finally:
            made.cluster.stop()

    def start(self) -> None:
        self.cluster.start()
        self.pids = {program.name: program.pid for program in self.cluster.programs}

    def logs(self) -> str:
        return "".join(read(program.log_path) for program in self.cluster.programs)

    async def send(self, count: int = 1, size: int = 0) -> None:
        async with Producer(
            "p",
            self.cluster.namesrv_address,
            send_timeout_ms=15_000,
            retries=10,
            credentials=self.credentials,
        ) as producer:
            for _ in range(count):
                body = b"%d " % len(self.acked) + os.urandom(size)
                await producer.send(Message(TOPIC, body), queue=self._queue)
                self.acked.append(body)

    @property
    def _queue(self) -> MessageQueue:
        return MessageQueue(TOPIC, self.cluster.broker_name, 0)

    async def stored(self) -> list[bytes]:
        """Bodies of the topic, in order."""
        bodies: list[bytes] = []
        async with QueueReader(self.cluster.namesrv_address, credentials=self.credentials) as reader:
            offset, end = await reader.min_offset(self._queue), await reader.max_offset(self._queue)
            while offset < end:
                pulled = await reader.pull(self._queue, offset)
                bodies += [message.body for message in decode_records(pulled.records, check_crc=True)]
                assert pulled.next_offset > offset
                offset = pulled.next_offset
        return bodies

    async def serving(self) -> None:
        """Until the first master takes sends; makes the topic by sending to it."""
        deadline = time.monotonic() + 20
        while True:
            try:
                return await self.send()
            except (MQError, NetError):
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.1)

    async def check(self, *, repeats: bool = False) -> None:
        """Every program is the one that was started and serves; nothing acknowledged is lost or out of order.

        `repeats`: a producer whose answer was lost may have sent a message twice.
        """
        for program in self.cluster.programs:
            assert program.running, f"{program.name} is gone:\n{read(program.log_path)[-2000:]}"
            assert program.pid == self.pids[program.name]
        text = self.logs()
        assert "Traceback" not in text, text[text.index("Traceback") - 200 :][:3000]
        client = RemotingClient()
        try:
            answer = await client.call(self.addresses["controller"], GetMetadata(), timeout_ms=15_000)
            assert isinstance(answer.header, GetMetadataReply)
        finally:
            await client.close()
        await self.send()
        stored = await self.stored()
        first_of_each = list(dict.fromkeys(stored))
        acked = set(self.acked)
        assert [body for body in first_of_each if body in acked] == self.acked
        assert repeats or len(stored) == len(first_of_each)
