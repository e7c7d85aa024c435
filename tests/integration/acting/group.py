"""Two broker sets of a master and a slave, and name servers that show acting masters, as processes."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from batonmq import ConsumeFromWhere, Consumer, Message, MessageQueue, Producer
from batonmq.demo.cluster import Program
from batonmq.demo.ports import free_ports
from batonmq.net import RemotingClient
from batonmq.net.errors import NetError
from batonmq.protocol.bodies.replication import HARuntimeInfo
from batonmq.protocol.bodies.routes import BrokerMemberGroup, GetBrokerMemberGroupResponseBody, TopicRouteData
from batonmq.protocol.codes import PullSysFlag, ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker.pull import PullMessage
from batonmq.protocol.headers.broker.replication import GetBrokerHAStatus
from batonmq.protocol.headers.broker.topics import CreateTopic
from batonmq.protocol.headers.namesrv import GetBrokerMemberGroup, GetRouteInfo
from batonmq.protocol.json import decode
from batonmq.protocol.message.record import MessageExt, decode_records

TOPIC = "Kept"
QUEUES = 2
PATIENCE_S = 20.0
CLUSTER = "DefaultCluster"
CONSUMING = {
    "from_where": ConsumeFromWhere.FIRST_OFFSET,
    "concurrency": 1,
    "commit_interval_ms": 500,
    "poll_interval_ms": 1_000,
}
"""Consumers in the stories."""
_PULLED = (
    0,
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
)


async def until(
    condition: Callable[[], Awaitable[object]], what: str = "", timeout_s: float = PATIENCE_S
) -> float:
    """Seconds until the condition held."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    while not await condition():
        assert loop.time() < began + timeout_s, f"in vain for {timeout_s} s: {what}"
        await asyncio.sleep(0.01)
    return loop.time() - began


class Asks(ABC):
    """What tests ask of two broker sets, in processes or in the simulator. Brokers by (set, id): ``("a", 0)``
    is the master of the first set."""

    client: RemotingClient
    sets: str = "ab"
    slaves: int = 1
    namesrv_address: str

    @abstractmethod
    def address(self, name: str, broker_id: int) -> str: ...

    @abstractmethod
    def acts(self, name: str, broker_id: int = 1) -> bool: ...

    @abstractmethod
    def kill(self, name: str, broker_id: int) -> None: ...

    @abstractmethod
    async def restart(self, name: str, broker_id: int) -> None: ...

    @abstractmethod
    def log(self, name: str, broker_id: int) -> str: ...

    @abstractmethod
    def now_s(self) -> float:
        """Wall time of the brokers."""

    @abstractmethod
    def producer(self) -> Producer: ...

    @abstractmethod
    def consumer(self, group: str, *, orderly: bool) -> Consumer: ...

    async def create_topic(self, name: str, topic: str = TOPIC, **values: object) -> None:
        header = CreateTopic(
            **{
                "topic": topic,
                "default_topic": "TBW102",
                "read_queue_nums": QUEUES,
                "write_queue_nums": QUEUES,
                "perm": 6,
                "topic_filter_type": "SINGLE_TAG",
                "topic_sys_flag": 0,
                "order": False,
                **values,
            }
        )
        await self.client.call(self.address(name, 0), header)

    async def ready(self) -> None:
        """Until all is up and the topic is known."""
        for name in self.sets:
            await self.whole(name)
            await self.create_topic(name)
        await until(self._routed, "the route has all sets")

    async def members(self, name: str) -> dict[int, str]:
        header = GetBrokerMemberGroup(cluster_name=CLUSTER, broker_name=name)
        answer = await self.client.call(self.namesrv_address, header)
        group = decode(answer.body, GetBrokerMemberGroupResponseBody).broker_member_group
        return (group or BrokerMemberGroup()).broker_addrs

    async def route(self, topic: str = TOPIC) -> TopicRouteData:
        answer = await self.client.call(self.namesrv_address, GetRouteInfo(topic=topic))
        return decode(answer.body, TopicRouteData)

    async def _routed(self) -> bool:
        try:
            return len((await self.route()).broker_datas) == len(self.sets)
        except MQError:
            return False

    async def _whole(self, name: str) -> bool:
        try:
            answer = await self.client.call(self.address(name, 0), GetBrokerHAStatus())
        except NetError:
            return False
        info = decode(bytes(answer.body), HARuntimeInfo)
        linked = [each for each in info.ha_connection_info if each.diff == 0]
        return len(linked) == self.slaves and len(await self.members(name)) == 1 + self.slaves

    async def whole(self, name: str) -> float:
        """Until the set's slaves have all of its master's log; seconds."""
        return await until(lambda: self._whole(name), f"set {name} is whole:\n{self.log(name, 0)[-3000:]}")

    async def acting(self, name: str, broker_id: int = 1, *, ends: bool = False) -> float:
        """Until the slave acts, or no longer acts; seconds."""

        async def reached() -> bool:
            return self.acts(name, broker_id) is not ends

        try:
            return await until(reached)
        except AssertionError as error:
            raise AssertionError(f"{name}{broker_id} acts={not ends}:\n{self.logs()[-9000:]}") from error

    # -- messages

    async def send(self, name: str, count: int, **values: object) -> list[str]:
        """Send messages to the queues of a set in turn; their bodies."""
        async with self.producer() as producer:
            bodies = []
            for number in range(count):
                body = f"{name} {values} {number}"
                message = Message(TOPIC, body.encode(), **values)  # type: ignore[arg-type]
                await producer.send(message, queue=MessageQueue(TOPIC, name, number % QUEUES))
                bodies.append(body)
            return bodies

    async def messages(self, name: str, broker_id: int, topic: str = TOPIC) -> list[MessageExt]:
        """What a broker has of a topic."""
        found: list[MessageExt] = []
        for queue_id in range(QUEUES):
            at = 0
            while True:
                header = PullMessage(
                    consumer_group="g",
                    topic=topic,
                    queue_id=queue_id,
                    queue_offset=at,
                    max_msg_nums=32,
                    sys_flag=PullSysFlag.SUBSCRIPTION,
                    commit_offset=0,
                    suspend_timeout_millis=0,
                    sub_version=0,
                    subscription="*",
                )
                answer = await self.client.call(self.address(name, broker_id), header, accept=_PULLED)
                if answer.code != ResponseCode.SUCCESS:
                    break
                records = list(decode_records(bytes(answer.body), check_crc=True))
                found += records
                at += len(records)
        return found

    async def bodies(self, *places: tuple[str, int], topic: str = TOPIC) -> Counter[str]:
        """How often the messages of these brokers have each body."""
        found: Counter[str] = Counter()
        for place in places:
            found.update(message.body.decode() for message in await self.messages(*place, topic=topic))
        return found


@dataclass
class Pairs(Asks):
    """`await close()` at the end."""

    directory: Path
    settings: dict[str, object] = field(default_factory=dict)
    namesrv_settings: dict[str, object] = field(default_factory=dict)
    sets: str = "ab"
    slaves: int = 1

    def __post_init__(self) -> None:
        self.client = RemotingClient()
        namesrv_port, *ports = free_ports(1 + len(self.sets) * (1 + self.slaves))
        self.namesrv = Program(
            "namesrv",
            "namesrv",
            self.directory,
            {
                "listenPort": namesrv_port,
                "bindAddress": "127.0.0.1",
                "kvConfigPath": self.directory / "kvConfig.json",
                "supportActingMaster": "true",
                "notifyMinBrokerIdChanged": "true",
                **self.namesrv_settings,
            },
        )
        places = [(name, broker_id) for name in self.sets for broker_id in range(1 + self.slaves)]
        self.namesrv_address = self.namesrv.address
        self.brokers = {
            place: Program(f"{place[0]}{place[1]}", "broker", self.directory, self._settings(*place, port))
            for place, port in zip(places, ports, strict=True)
        }

    def _settings(self, name: str, broker_id: int, port: int) -> dict[str, object]:
        return {
            "brokerName": name,
            "brokerId": broker_id,
            "brokerRole": "SLAVE" if broker_id else "SYNC_MASTER",
            "inSyncReplicas": 2,
            "minInSyncReplicas": 1,
            "enableAutoInSyncReplicas": "true",
            "totalReplicas": 1 + self.slaves,
            "brokerIP1": "127.0.0.1",
            "bindAddress": "127.0.0.1",
            "listenPort": port,
            "namesrvAddr": self.namesrv.address,
            "storePathRootDir": self.directory / f"store-{name}{broker_id}",
            "mappedFileSizeCommitLog": 1 << 20,
            "mappedFileSizeTimerLog": 4096,
            "maxHashSlotNum": 10_000,
            "maxIndexNum": 40_000,
            "enableSlaveActingMaster": "true",
            "enableRemoteEscape": "true",
            "messageDelayLevel": "2s 4s 6s",
            **self.settings,
        }

    async def up(self) -> None:
        await asyncio.to_thread(self.namesrv.start)
        await asyncio.gather(*(asyncio.to_thread(program.start) for program in self.brokers.values()))
        await self.ready()

    async def close(self) -> None:
        await self.client.close()
        for program in (*self.brokers.values(), self.namesrv):
            await asyncio.to_thread(program.stop)

    # -- what there is

    def address(self, name: str, broker_id: int) -> str:
        return self.brokers[name, broker_id].address

    def log(self, name: str, broker_id: int) -> str:
        return self.brokers[name, broker_id].log_path.read_text(errors="replace")

    def logs(self) -> str:
        return "".join(self.log(*place) for place in self.brokers)

    def acts(self, name: str, broker_id: int = 1) -> bool:
        """Whether a slave's log says, since its last start, that it acts as master."""
        text = self.log(name, broker_id).rpartition(" boot success.")[2]
        return text.rfind(" acting as master with") > text.rfind("no longer acting as master")

    def kill(self, name: str, broker_id: int) -> None:
        self.brokers[name, broker_id].kill()

    async def restart(self, name: str, broker_id: int) -> None:
        await asyncio.to_thread(self.brokers[name, broker_id].start)

    def now_s(self) -> float:
        return time.time()

    def producer(self) -> Producer:
        return Producer("p", self.namesrv_address, send_timeout_ms=6_000)

    def consumer(self, group: str, *, orderly: bool) -> Consumer:
        return Consumer(group, self.namesrv_address, orderly=orderly, **CONSUMING)
