"""``python -m benchmarks.acting``: how soon a slave acts for its master, and how soon the master is back.

A broker set without controllers (SYNC_MASTER and SLAVE, `enableSlaveActingMaster`) loses its master by
`kill -9` or SIGSTOP; a second broker set takes what the acting slave has to deliver. Both systems get the
same configuration files, except for `JAVA_ONLY`. In each round are measured, from the fault on:

- locks: until a consumer's LOCK_BATCH_MQ is granted by the broker that the route shows as master;
- offsets: the same for UPDATE_CONSUMER_OFFSET, until the broker answers a query with the new offset;
- timers: how late the latest timed message is that was due in the first `DUE_S` seconds;
- back: from the start of the former master (or SIGCONT) until the name server lists both members and the
  slave has all of the master's log again.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import uvloop

from batonmq import Message, MessageQueue, Producer
from batonmq.demo.cluster import Program
from batonmq.demo.ports import free_ports
from batonmq.net import RemotingClient
from batonmq.net.errors import NetError
from batonmq.protocol.bodies.clients import LockBatchRequestBody, LockBatchResponseBody
from batonmq.protocol.bodies.replication import HARuntimeInfo
from batonmq.protocol.bodies.routes import BrokerMemberGroup, GetBrokerMemberGroupResponseBody, TopicRouteData
from batonmq.protocol.codes import MASTER_ID, PullSysFlag, ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker.clients import LockBatchMq
from batonmq.protocol.headers.broker.pull import (
    PullMessage,
    QueryConsumerOffset,
    QueryConsumerOffsetResponse,
    UpdateConsumerOffset,
)
from batonmq.protocol.headers.broker.replication import GetBrokerHAStatus
from batonmq.protocol.headers.broker.topics import CreateTopic, GetTopicConfig
from batonmq.protocol.headers.namesrv import GetBrokerMemberGroup, GetRouteInfo
from batonmq.protocol.json import decode, encode
from batonmq.protocol.message.record import decode_records
from batonmq.spark.jobs.bench import Figure, as_json
from benchmarks.clusters import JAVA, JAVA_START_TIMEOUT_S, OURS, PEER, SYSTEMS
from benchmarks.failover import percentile

TOPIC, QUEUES, GROUP = "BenchActing", 1, "bench_acting"
CLUSTER = "DefaultCluster"
DUE_S = 3.0
DUE_STEP_S = 0.1
POLL_S = 0.005
TRY_MS = 250
"""How long one request may take: a broker that hangs must not hold up the next attempt."""
LIMIT_S = 90.0
"""Longest time that anything may take."""
SETTLE_S = 1.0
RULE: Mapping[str, object] = {
    "brokerClusterName": CLUSTER,
    "brokerIP1": "127.0.0.1",
    "brokerIP2": "127.0.0.1",
    "totalReplicas": 2,
    "inSyncReplicas": 2,
    "minInSyncReplicas": 1,
    "enableAutoInSyncReplicas": "true",
    "enableSlaveActingMaster": "true",
    "enableRemoteEscape": "true",
    "timerPrecisionMs": 100,
}
ALONE: Mapping[str, object] = {"totalReplicas": 1, "inSyncReplicas": 1, "enableAutoInSyncReplicas": "false"}
JAVA_ONLY: Mapping[str, object] = {"skipPreOnline": "true"}
"""A master of 5.5.0 that returns cannot read its slave's consumer offsets, and would never serve again."""
HEAPS = {"namesrv": "256m", "broker": "700m"}
_PULLED = (
    0,
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
)


@dataclass
class Times:
    """Milliseconds, by round."""

    locks_ms: list[float] = field(default_factory=list)
    offsets_ms: list[float] = field(default_factory=list)
    timers_ms: list[float] = field(default_factory=list)
    back_ms: list[float] = field(default_factory=list)

    def rows(self) -> dict[str, list[float]]:
        return {
            "locks": self.locks_ms,
            "offsets": self.offsets_ms,
            "timers": self.timers_ms,
            "back": self.back_ms,
        }


class Sets:
    """A name server, the broker set a (master and slave) and the master of b. A context manager."""

    def __init__(self, system: str, directory: Path) -> None:
        namesrv, *ports = free_ports(4)
        self.namesrv = self._program(
            system,
            directory,
            "namesrv",
            {
                "listenPort": namesrv,
                "kvConfigPath": directory / "kv.json",
                "supportActingMaster": "true",
                "notifyMinBrokerIdChanged": "true",
            },
        )
        common = {
            **RULE,
            **(JAVA_ONLY if system == JAVA else {}),
            "namesrvAddr": self.namesrv.address,
        }
        self.master, self.slave, self.other = (
            self._program(
                system,
                directory,
                f"broker-{name}-{broker_id}",
                {
                    **common,
                    **(ALONE if name == "b" else {}),
                    "brokerName": name,
                    "brokerId": broker_id,
                    "brokerRole": role,
                    "listenPort": port,
                    "haListenPort": port + 1,
                    "storePathRootDir": directory / f"store-{name}-{broker_id}",
                    "storePathCommitLog": directory / f"store-{name}-{broker_id}" / "commitlog",
                },
            )
            for (name, broker_id, role), port in zip(
                (("a", 0, "SYNC_MASTER"), ("a", 1, "SLAVE"), ("b", 0, "ASYNC_MASTER")), ports, strict=True
            )
        )

    @staticmethod
    def _program(system: str, directory: Path, name: str, settings: dict[str, object]) -> Program:
        program = Program(name, name.partition("-")[0], directory, settings)
        if system == JAVA:
            home = f"PEER_USER_HOME={directory / name}"
            program.command = ("env", home, f"PEER_HEAP={HEAPS[program.verb]}", str(PEER))
            program.start_timeout_s = JAVA_START_TIMEOUT_S
        return program

    @property
    def programs(self) -> list[Program]:
        return [self.namesrv, self.master, self.slave, self.other]

    def __enter__(self) -> Sets:
        try:
            for program in self.programs:
                program.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        for program in reversed(self.programs):
            program.kill()


class Round:
    """Requests that a client makes, and when they first succeed."""

    def __init__(self, sets: Sets, client: RemotingClient) -> None:
        self._sets, self._client = sets, client

    async def serving(self) -> str | None:
        """The address that the route shows as master of the set a."""
        answer = await self._client.call(
            self._sets.namesrv.address, GetRouteInfo(topic=TOPIC), timeout_ms=TRY_MS
        )
        for data in decode(answer.body, TopicRouteData).broker_datas:
            if data.broker_name == "a":
                return data.broker_addrs.get(MASTER_ID)
        return None

    async def lock(self, client_id: str) -> bool:
        address = await self.serving()
        if address is None:
            return False
        body = LockBatchRequestBody(
            consumer_group=f"{GROUP}_{client_id}",
            client_id=client_id,
            mq_set=[MessageQueue(TOPIC, "a", 0)],
        )
        answer = await self._client.call(address, LockBatchMq(), encode(body), timeout_ms=TRY_MS)
        return bool(decode(answer.body, LockBatchResponseBody).lock_ok_mq_set)

    async def commit(self, offset: int) -> bool:
        address = await self.serving()
        if address is None:
            return False
        await self._client.call(address, UpdateConsumerOffset(GROUP, TOPIC, 0, offset), timeout_ms=TRY_MS)
        answer = await self._client.call(address, QueryConsumerOffset(GROUP, TOPIC, 0), timeout_ms=TRY_MS)
        assert isinstance(answer.header, QueryConsumerOffsetResponse)
        return answer.header.offset == offset

    async def whole(self) -> bool:
        """The name server lists both members of a, and the slave has all of the master's log."""
        call, sets = self._client.call, self._sets
        answer = await call(
            sets.namesrv.address,
            GetBrokerMemberGroup(cluster_name=CLUSTER, broker_name="a"),
            timeout_ms=TRY_MS,
        )
        group = decode(answer.body, GetBrokerMemberGroupResponseBody).broker_member_group
        if set((group or BrokerMemberGroup()).broker_addrs) != {0, 1}:
            return False
        answer = await call(sets.master.address, GetBrokerHAStatus(), timeout_ms=TRY_MS)
        info = decode(bytes(answer.body), HARuntimeInfo)
        return any(each.diff == 0 for each in info.ha_connection_info)

    async def has_topic(self, address: str) -> bool:
        await self._client.call(address, GetTopicConfig(topic=TOPIC), timeout_ms=TRY_MS)
        return True


async def first(attempt: Callable[[], Awaitable[bool]], what: str) -> float:
    """When (`time.monotonic`) an attempt first succeeded. Raises `TimeoutError`."""
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        with suppress(NetError, MQError):
            if await attempt():
                return time.monotonic()
        await asyncio.sleep(POLL_S)
    raise TimeoutError(f"not within {LIMIT_S:g} s: {what}")


class Arrivals:
    """Reads queue 0 of the topic at both masters and the slave, and notes when each body first came."""

    def __init__(self, sets: Sets, client: RemotingClient) -> None:
        self._client = client
        self._next = {program.address: 0 for program in (sets.other, sets.slave, sets.master)}
        self.came: dict[str, float] = {}
        """Body -> wall time in s."""

    async def read(self, address: str) -> None:
        while True:
            header = PullMessage(
                consumer_group=GROUP,
                topic=TOPIC,
                queue_id=0,
                queue_offset=self._next[address],
                max_msg_nums=32,
                sys_flag=PullSysFlag.SUBSCRIPTION,
                commit_offset=0,
                suspend_timeout_millis=0,
                sub_version=0,
                subscription="*",
            )
            try:
                answer = await self._client.call(address, header, accept=_PULLED, timeout_ms=TRY_MS)
            except (NetError, MQError):
                await asyncio.sleep(POLL_S)
                continue
            if answer.code != ResponseCode.SUCCESS:
                await asyncio.sleep(POLL_S)
                continue
            for message in decode_records(bytes(answer.body)):
                self.came.setdefault(message.body.decode(), time.time())
                self._next[address] = message.queue_offset + 1

    def start(self) -> list[asyncio.Task[None]]:
        return [asyncio.create_task(self.read(address)) for address in self._next]


async def measure(sets: Sets, fault: str, rounds: int, say: Callable[[str], None]) -> Times:
    """Lose the master `rounds` times. Raises `TimeoutError` if something does not come."""
    times, client = Times(), RemotingClient()
    asks, arrivals = Round(sets, client), Arrivals(sets, client)
    await _prepare(sets, client, asks)
    readers = arrivals.start()
    try:
        for number in range(rounds):
            await first(asks.whole, "the set is whole")
            await asyncio.sleep(SETTLE_S)
            due = await _send_timed(sets, number)
            began = time.monotonic()
            if fault == "kill":
                sets.master.kill()
            else:
                os.killpg(sets.master.pid, signal.SIGSTOP)
            locked, committed = await asyncio.gather(
                first(lambda number=number: asks.lock(f"c{number}"), "a lock"),  # type: ignore[misc]
                first(lambda number=number: asks.commit(number + 1), "an offset"),  # type: ignore[misc]
            )
            times.locks_ms.append((locked - began) * 1000)
            times.offsets_ms.append((committed - began) * 1000)
            deadline = time.monotonic() + LIMIT_S
            while not due.keys() <= arrivals.came.keys() and time.monotonic() < deadline:
                await asyncio.sleep(POLL_S)
            missing = due.keys() - arrivals.came.keys()
            if missing:
                raise TimeoutError(f"{len(missing)} of {len(due)} timed messages did not come")
            times.timers_ms.append(max(arrivals.came[body] - when for body, when in due.items()) * 1000)
            began = time.monotonic()
            if fault == "kill":
                await asyncio.to_thread(sets.master.start, wait=False)
            else:
                os.killpg(sets.master.pid, signal.SIGCONT)
            times.back_ms.append((await first(asks.whole, "the master is back") - began) * 1000)
            say(f"{fault} {number + 1} of {rounds}: " + _last(times))
    finally:
        for task in readers:
            task.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
        await client.close()
    return times


def _last(times: Times) -> str:
    return ", ".join(f"{name} {values[-1]:.0f} ms" for name, values in times.rows().items())


async def _prepare(sets: Sets, client: RemotingClient, asks: Round) -> None:
    """The topic on all brokers; a Java slave copies topics once a minute."""
    await first(asks.whole, "the set is whole")
    header = CreateTopic(
        topic=TOPIC,
        default_topic="TBW102",
        read_queue_nums=QUEUES,
        write_queue_nums=QUEUES,
        perm=6,
        topic_filter_type="SINGLE_TAG",
        topic_sys_flag=0,
        order=False,
    )
    for program in (sets.master, sets.other):
        await client.call(program.address, header)
    await first(lambda: asks.has_topic(sets.slave.address), "the slave knows the topic")
    await first(lambda: asks.lock("before"), "the route")


async def _send_timed(sets: Sets, number: int) -> dict[str, float]:
    """One message for the round's offset, and messages that are due in the next seconds: body -> when, wall
    time in s."""
    due: dict[str, float] = {}
    async with Producer("bench_producers", sets.namesrv.address) as producer:
        await producer.send(Message(TOPIC, b"plain"), queue=MessageQueue(TOPIC, "a", 0))
        started = time.time() + 0.5
        for step in range(int(DUE_S / DUE_STEP_S)):
            body, when = f"{number}-{step}", started + step * DUE_STEP_S
            await producer.send(
                Message(TOPIC, body.encode(), deliver_at=when), queue=MessageQueue(TOPIC, "a", 0)
            )
            due[body] = when
    return due


def table(found: Mapping[str, Mapping[str, Times]]) -> list[str]:
    """Markdown: a row for each fault and figure, a column for each system."""
    systems = list(found)
    lines = [f"| p50 / p99 / max, ms | {' | '.join(systems)} |", f"| --- |{' ---: |' * len(systems)}"]
    for fault in dict.fromkeys(fault for times in found.values() for fault in times):
        for name in Times().rows():
            cells = []
            for system in systems:
                values = found[system][fault].rows()[name] if fault in found[system] else []
                cells.append(
                    " / ".join(f"{percentile(values, percent):.0f}" for percent in (50, 99, 100))
                    + f" ({len(values)})"
                    if values
                    else "–"
                )
            lines.append(f"| {fault}: {name} | {' | '.join(cells)} |")
    return lines


def figures_of(found: Mapping[str, Mapping[str, Times]]) -> list[Figure]:
    return [
        Figure(benchmark="acting", figure=f"{fault}: {name}", unit="ms", system=system, passes=values)
        for system, by_fault in found.items()
        for fault, times in by_fault.items()
        for name, values in times.rows().items()
        if values
    ]


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--fault", "faults", multiple=True, type=click.Choice(["kill", "hang"]), help="Default: both.")
@click.option("--rounds", default=50, show_default=True, help="Kills; hangs are a fifth of it.")
@click.option("--rounds-java", default=5, show_default=True, help="Of each fault.")
@click.option("--only", type=click.Choice(["java", "ours"]), help="Measure one of the two.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write the figures to this file.")
def main(
    faults: tuple[str, ...], rounds: int, rounds_java: int, only: str | None, json_path: Path | None
) -> None:
    """How soon a slave acts for a master that was killed or hangs, and how soon the master is back."""
    systems = [{"java": JAVA, "ours": OURS}[only]] if only else list(SYSTEMS)
    found: dict[str, dict[str, Times]] = {}
    for system in systems:
        for fault in faults or ("kill", "hang"):
            count = rounds_java if system == JAVA else rounds if fault == "kill" else max(1, rounds // 5)
            with (
                TemporaryDirectory(prefix="batonmq-acting-") as directory,
                Sets(system, Path(directory)) as sets,
            ):

                def say(text: str, system: str = system) -> None:
                    click.echo(f"  {system}: {text}", err=True)

                found.setdefault(system, {})[fault] = uvloop.run(measure(sets, fault, count, say))
    for line in table(found):
        click.echo(line)
    if json_path is not None:
        json_path.write_text(json.dumps(as_json(figures_of(found)), indent=1) + "\n")


if __name__ == "__main__":
    main()
