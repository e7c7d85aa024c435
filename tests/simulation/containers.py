"""One seeded story of two broker containers crosswise: each has one set's master and the other's slave.

The story is that of `acting.py`, and faults hit whole nodes: the brokers of a container share its process, so
they die, hang and are cut off together. Brokers are also removed from a running container and added again.
Besides the invariants of `acting.py`:

- a message is acknowledged at one place, and no other message is acknowledged there; once the faults stop,
  both replicas of its set have it there;
- a container that runs has all its brokers, except those that were removed, and no others;
- a slave's log is the begin of its master's, whatever its role;
- without `enableRemoteEscape` (every other seed) an acting slave's messages go to the master beside it only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from batonmq.broker.service import BrokerService
from batonmq.client.errors import ClientError
from batonmq.client.message import Message
from batonmq.common import garbage
from batonmq.container.config import ContainerConfig
from batonmq.container.core import BrokerIdentity
from batonmq.container.in_process import InProcess
from batonmq.container.service import ConfiguredBrokers, ContainerService
from batonmq.ha.classic.service import ClassicHAService
from batonmq.net.client import RemotingClient
from batonmq.net.errors import NetError
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker.replication import AddBroker, RemoveBroker
from batonmq.protocol.message.record import decode_records
from tests.simulation.acting import SETS, ActingCluster, ActingScenario, ActingStory
from tests.simulation.cluster import (
    COMMIT_LOG_FILE,
    NAMESRV_PORT,
    TIMER_LOG_FILE,
    TIMER_WINDOW,
    Node,
)
from tests.simulation.loop import SimLoop
from tests.simulation.story import FAULTS_S, Violation, play, scratch
from tests.simulation.witness import _first_difference

CLUSTER = "DefaultCluster"
CONTAINER_PORT = 10_811
FIRST_PORT, PORT_STEP = 20_000, 10
PLAIN = "plain"
PLAIN_QUEUES = 2
ADD_TIMEOUT_MS = 20_000
REMOVED_AT_START = 0.4
"""Share of brokers that are removed again while they start, as far as the operator can know."""
OPERATOR_S = 1.0
"""How often an operator looks for brokers that are to be added again."""


@dataclass
class ContainersStory(ActingStory):
    """What happened."""

    placed: dict[tuple[str, int, int], str] = field(default_factory=dict)
    """(Broker set, queue id, queue offset) -> key of the message that was acknowledged there."""
    removed: int = 0
    """Brokers that were removed from a running container."""
    added: int = 0


class Program:
    """What runs in a container's process: its port, then its brokers."""

    def __init__(self, service: ContainerService, paths: str, expected: int) -> None:
        self.container = service
        self._configured = ConfiguredBrokers(service, paths, lambda line: None)
        self._expected = expected
        self._stopping = False
        self.complete = False
        """All brokers have started."""

    @property
    def running(self) -> dict[BrokerIdentity, BrokerService]:
        (place,) = self.container._places
        assert isinstance(place, InProcess)
        return place._running

    async def start(self) -> None:
        await self.container.start()
        await self._configured.start()
        if not self._stopping and len(self.container.container.table) != self._expected:
            raise RuntimeError("a broker of the container did not start")
        self.complete = True

    async def stop(self) -> None:
        self._stopping = True
        await self.container.stop()


class Member:
    """A broker of a container, as the story of `acting.py` sees a node."""

    def __init__(self, node: Node, name: str, broker_id: int) -> None:
        self.node, self.set, self.broker_id = node, name, broker_id
        self.identity = BrokerIdentity(CLUSTER, name, broker_id)
        self.name = f"{name}{broker_id}"
        self.port = FIRST_PORT + PORT_STEP * (2 * SETS.index(name) + broker_id)
        self.removed = False
        """An operator removed it, or is about to."""
        self.removals = 0
        """Requests for that so far."""

    @property
    def path(self) -> Path:
        """Its file; with the container's directory it is another one after each crash."""
        return self.node.directory / f"{self.name}.conf"

    @property
    def address(self) -> str:
        return self.node.address

    @property
    def up(self) -> bool:
        return self.node.up

    @property
    def stopping(self) -> bool:
        return self.node.stopping

    @property
    def service(self) -> BrokerService | None:
        program = self.node.service
        return program.running.get(self.identity) if isinstance(program, Program) else None

    @property
    def broker(self) -> Any:
        """None while it does not run."""
        return getattr(self.service, "broker", None)

    @property
    def life(self) -> str:
        return f"{self.node.life} {self.name} {id(self.service)}"

    @property
    def following(self) -> bool:
        ha = self.broker.replication
        assert isinstance(ha, ClassicHAService)
        return ha.following


class ContainersCluster(ActingCluster):
    """A name server that shows acting masters, and two containers."""

    def __init__(self, loop: SimLoop, root: Path, *, remote_escape: bool) -> None:
        super().__init__(loop, root)
        self.remote_escape = remote_escape
        self.healed = False
        """The faults are over: nobody removes brokers any more."""
        self.brokers = [
            Node(f"node{number}", f"10.0.2.{number + 1}", "container", number, root / f"node{number}")
            for number in range(2)
        ]
        self.members = [
            Member(self.brokers[(number + broker_id) % 2], name, broker_id)
            for number, name in enumerate(SETS)
            for broker_id in range(2)
        ]

    @property
    def replicas(self) -> Sequence[Any]:
        return self.members

    def pair(self, name: str) -> Any:
        """The master and the slave of a set: `Member`s."""
        return tuple(member for member in self.members if member.set == name)

    def members_of(self, node: Node) -> list[Member]:
        return [member for member in self.members if member.node is node]

    def _make(self, node: Node) -> Any:
        if node.kind != "container":
            return super()._make(node)
        node.directory.mkdir(parents=True, exist_ok=True)
        members = self.members_of(node)
        for member in members:
            member.removed = False
            self._write(member)
        config = ContainerConfig(
            listen_port=CONTAINER_PORT,
            vip_channel_enabled=False,
            broker_container_ip=node.address,
            namesrv_addr=f"{self.namesrv.address}:{NAMESRV_PORT}",
        )
        service = ContainerService(config, clock=self._clock(), rng=self._rng())
        return Program(service, ":".join(str(member.path) for member in members), len(members))

    def _write(self, member: Member) -> None:
        store = member.node.directory / member.name
        values = {
            "brokerName": member.set,
            "brokerId": member.broker_id,
            "brokerRole": "SLAVE" if member.broker_id else "SYNC_MASTER",
            "brokerIP1": member.address,
            "listenPort": member.port,
            "inSyncReplicas": 2,
            "totalReplicas": 2,
            "enableAutoInSyncReplicas": "true",
            "enableSlaveActingMaster": "true",
            "enableRemoteEscape": str(self.remote_escape).lower(),
            "messageDelayLevel": "1s 3s 8s 15s",
            "transactionTimeOut": 2_000,
            "transactionCheckInterval": 1_500,
            "transactionCheckMax": 10_000,
            "transactionOpBatchInterval": 500,
            "vipChannelEnabled": "false",
            "timerRollWindowSlot": TIMER_WINDOW,
            "mappedFileSizeTimerLog": TIMER_LOG_FILE,
            "storePathRootDir": store,
            "storePathCommitLog": store / "commitlog",
            "mappedFileSizeCommitLog": COMMIT_LOG_FILE,
            "mappedFileSizeConsumeQueue": 20 * 200,
            "maxHashSlotNum": 100,
            "maxIndexNum": 400,
        }
        member.path.write_text("".join(f"{key}={value}\n" for key, value in values.items()))

    def heal(self) -> None:
        self.healed = True
        super().heal()

    def whole(self) -> bool:
        """All are up, all slaves follow and have everything, and none acts."""
        if any(not member.up or member.broker is None or member.stopping for member in self.members):
            return False
        for name in SETS:
            master, slave = self.pair(name)
            if not master.broker.role.is_master or not slave.following or slave.broker.role.is_acting:
                return False
            if slave.broker.store.max_offset != master.broker.store.max_offset:
                return False
        return True

    # -- an operator's requests; run them on the client's host

    async def remove(self, member: Member) -> bool:
        """Whether the container says that it did."""
        header = RemoveBroker(broker_name=member.set, broker_cluster_name=CLUSTER, broker_id=member.broker_id)
        return await self._ask(member, header)

    async def add(self, member: Member) -> bool:
        return await self._ask(member, AddBroker(config_path=str(member.path)))

    async def _ask(self, member: Member, header: AddBroker | RemoveBroker) -> bool:
        client = RemotingClient()
        try:
            await client.call(f"{member.address}:{CONTAINER_PORT}", header, timeout_ms=ADD_TIMEOUT_MS)
        except (NetError, MQError) as error:
            self.log(f"{type(header).__name__} {member.name}: {error}")
            return False
        finally:
            await client.close()
        return True


def run(seed: int, faults_s: float = FAULTS_S) -> ContainersStory:
    """Run the story of `seed`; raises `Violation` (with the events before it) if an invariant breaks."""
    loop = SimLoop(seed)
    story = ContainersStory(seed)
    with scratch("containers", seed) as root:
        cluster = ContainersCluster(loop, root, remote_escape=seed % 2 == 0)
        story.events = cluster.events
        # `play` collects garbage itself.
        with cluster.world.in_force(), mock.patch.object(garbage, "settle", lambda: None):
            play(loop, seed, story.events, ContainersScenario(cluster, story, faults_s).play)
        return story


class ContainersScenario(ActingScenario):
    """See `ActingScenario`."""

    cluster: ContainersCluster
    story: ContainersStory

    async def play(self) -> None:
        await super().play()
        self._check_places()

    # -- traffic

    async def _create_topic(self) -> None:
        await super()._create_topic()
        async with self.cluster.admin() as admin:
            await admin.create_topic(PLAIN, PLAIN_QUEUES)
        self.cluster.on(self.cluster.client_host, self._send_plain())
        self.cluster.on(self.cluster.client_host, self._operate())

    async def _send_plain(self) -> None:
        """Messages for either set; the producer chooses, and goes to the other one when a node is gone."""
        async with self.cluster.producer() as producer:
            number = 0
            while self.sending:
                number += 1
                key = f"p{number}"
                try:
                    result = await producer.send(Message(PLAIN, key.encode() * 20, keys=key))
                except (ClientError, MQError, NetError):
                    await asyncio.sleep(0.2)
                else:
                    place = result.queue.broker_name, result.queue.queue_id, result.queue_offset
                    other = self.story.placed.setdefault(place, key)
                    if other != key:
                        raise Violation(f"{key} and {other} were both acknowledged at {place}")
                await asyncio.sleep(self.random.expovariate(1 / 0.2))

    async def _operate(self) -> None:
        """Add brokers again that were removed, some time after."""
        while not self.over:
            await asyncio.sleep(OPERATOR_S * self.random.uniform(0.5, 4))
            for member in self.cluster.members:
                if member.removed and member.up and member.broker is None and not member.stopping:
                    before = member.node.life, member.removals
                    if self.random.random() < REMOVED_AT_START:
                        self.cluster.on(self.cluster.client_host, self._remove_soon(member))
                    if await self.cluster.add(member):
                        self.story.added += 1
                        if before == (member.node.life, member.removals):
                            member.removed = False

    # -- faults

    def _victim(self) -> Node:
        return self.cluster.brokers[0]

    def _more_faults(self, node: Node) -> list[tuple[int, Callable[[], Any]]]:
        return [(14, self._remove_one)]

    def _remove_one(self) -> None:
        """A removal may find a broker that is starting, or that was removed before. Most find the master
        beside the slave that acts most."""
        beside = self.cluster.pair("b")[0]
        member = self.random.choice([*self.cluster.members, *self.cluster.pair("a"), beside, beside, beside])
        if member.up and not member.stopping:
            self.cluster.log(f"remove {member.name}")
            self.cluster.on(self.cluster.client_host, self._remove(member))

    async def _remove_soon(self, member: Member) -> None:
        await asyncio.sleep(self.random.expovariate(1 / 0.01))
        if member.up and not self.cluster.healed:
            self.cluster.log(f"remove {member.name}, which starts")
            await self._remove(member)

    async def _remove(self, member: Member) -> None:
        member.removed = True  # it may be gone even if no answer comes
        member.removals += 1
        if await self.cluster.remove(member):
            self.story.removed += 1

    # -- looking

    def _look(self) -> None:
        super()._look()
        for node in self.cluster.brokers:
            program = node.service
            if not node.up or node.stopping or not isinstance(program, Program) or not program.complete:
                continue
            there = {entry.claims.identity for entry in program.container.container.table}
            if unknown := program.running.keys() - there:
                raise Violation(f"{min(unknown).canonical_name} runs in {node.name}, which does not know it")
            for member in self.cluster.members_of(node):
                if member.identity not in there and not member.removed:
                    raise Violation(f"{member.name} is not in {node.name}, and nobody removed it")
        for name in SETS:
            master, slave = self.cluster.pair(name)
            if master.broker is None or slave.broker is None or not master.up or not slave.up:
                continue
            one, copy = master.broker.store, slave.broker.store
            begin, end = max(one.min_offset, copy.min_offset), min(one.max_offset, copy.max_offset)
            if copy.max_offset > one.max_offset:
                raise Violation(f"{slave.name} has more than its master: {copy.max_offset}")
            compared = self._compared.get(name, 0)
            if _first_difference(one, copy, max(begin, compared), end) is not None:
                raise Violation(f"the log of {slave.name} is not the begin of its master's")
            self._compared[name] = end if (master.life, slave.life) == self._lives.get(name) else 0
            self._lives[name] = (master.life, slave.life)

    def __init__(self, cluster: ContainersCluster, story: ContainersStory, faults_s: float) -> None:
        super().__init__(cluster, story, faults_s)
        self._compared: dict[str, int] = {}
        """Up to where the logs of a set were found equal in these lives."""
        self._lives: dict[str, tuple[str, str]] = {}

    def _check_places(self) -> None:
        """Both replicas have each acknowledged message at its place. A slave that came empty got its master's
        log from the begin of the last file on (`haSendWholeLog=false`)."""
        for (name, queue_id, offset), key in self.story.placed.items():
            for member in self.cluster.pair(name):
                store = member.broker.store
                came_empty = member.broker_id > 0 and store.min_offset > 0
                if came_empty and offset < store.queue_bounds(PLAIN, queue_id).min_offset:
                    continue
                result = store.get(PLAIN, queue_id, offset, 1)
                found = [
                    record.properties["KEYS"] for view in result.buffers for record in decode_records(view)
                ]
                if found[:1] != [key]:
                    raise Violation(
                        f"{key} was acknowledged at {name}/{queue_id}/{offset}: {member.name} has {found}"
                    )
