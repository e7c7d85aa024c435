"""Three containers with three broker sets: each has the master of one set and slaves of the two others.

The layout is that of RocketMQ's tests of containers (`org.apache.rocketmq.test.container`). As there, the
name server is in the test's process and can isolate a broker that goes on running.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from tests.integration.container.files import BrokerConf

from batonmq import ConsumeFromWhere, Consumer, Message, MessageExt, MessageQueue, Producer
from batonmq.demo.cluster import Program
from batonmq.demo.ports import free_ports
from batonmq.namesrv.config import NamesrvConfig
from batonmq.namesrv.service import NamesrvService
from batonmq.net import RemotingClient, Request
from batonmq.net.dispatch import Outcome, RawHandler
from batonmq.net.errors import NetError
from batonmq.protocol.bodies.replication import HARuntimeInfo
from batonmq.protocol.bodies.routes import BrokerMemberGroup, GetBrokerMemberGroupResponseBody, TopicRouteData
from batonmq.protocol.codes import MASTER_ID, PullSysFlag, RequestCode, ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker.admin import UpdateBrokerConfig
from batonmq.protocol.headers.broker.pull import PullMessage, QueryConsumerOffset, QueryConsumerOffsetResponse
from batonmq.protocol.headers.broker.replication import AddBroker, GetBrokerHAStatus, RemoveBroker
from batonmq.protocol.headers.broker.topics import CreateTopic, GetTopicConfig
from batonmq.protocol.headers.namesrv import GetBrokerMemberGroup, GetRouteInfo, UnregisterBroker
from batonmq.protocol.json import decode
from batonmq.protocol.message.record import decode_records

CLUSTER = "DefaultCluster"
SETS = "abc"
SLAVES = 2
LAYOUT: dict[tuple[str, int], int] = {
    ("a", 0): 0,
    ("c", 1): 0,
    ("b", 2): 0,
    ("b", 0): 1,
    ("a", 1): 1,
    ("c", 2): 1,
    ("c", 0): 2,
    ("b", 1): 2,
    ("a", 2): 2,
}
"""Broker (set, id) -> its container."""
SETTINGS: dict[str, object] = {
    "totalReplicas": 3,
    "inSyncReplicas": 2,
    "minInSyncReplicas": 1,
    "enableAutoInSyncReplicas": "true",
    "enableSlaveActingMaster": "true",
    "enableRemoteEscape": "true",
    "slaveReadEnable": "true",
    "lockInStrictMode": "true",
    "compatibleWithOldNameSrv": "false",
    "consumerOffsetUpdateVersionStep": 10,
    "delayOffsetUpdateVersionStep": 10,
    "registerNameServerPeriod": 10_000,
    "mappedFileSizeTimerLog": 102_400,
    "transactionTimeOut": 3_000,
    "transactionCheckInterval": 2_000,
    "brokerIP2": "127.0.0.1",
}
_ANSWERS = (
    0,
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
)


class Trio(ABC):
    """The nine brokers; `await close()` at the end. A broker is ``(set, id)``; id 0 is the master."""

    patience_s: float
    delay_level: int
    delay_s: float
    """Of that level, and of timed messages: brokers are removed within this time."""
    also: ClassVar[dict[str, object]] = {}
    """More keys of all brokers."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.client = RemotingClient()
        self.confs = {place: self._conf(*place) for place in LAYOUT}
        self._by_address = {conf.address: place for place, conf in self.confs.items()}
        self._isolated: set[tuple[str, int]] = set()
        self._refused: RequestCode | None = None
        self._muted: Collection[tuple[str, int]] = ()
        self._namesrv = NamesrvService(
            NamesrvConfig(
                listen_port=free_ports(1)[0],
                bind_address="127.0.0.1",
                kv_config_path=str(directory / "kv.json"),
                support_acting_master=True,
                scan_not_active_broker_interval=1_000,
            )
        )
        for code in (
            RequestCode.REGISTER_BROKER,
            RequestCode.BROKER_HEARTBEAT,
            RequestCode.QUERY_DATA_VERSION,
        ):
            self._namesrv._server._dispatcher.wrap(code, self._admit)

    @abstractmethod
    async def start_container(self, number: int, paths: str) -> str:
        """Start a container with the brokers of these files; its address."""

    @abstractmethod
    async def stop_containers(self) -> None: ...

    def _conf(self, name: str, broker_id: int) -> BrokerConf:
        made = BrokerConf(self.directory, name, broker_id)
        role = {} if broker_id else {"brokerRole": "SYNC_MASTER"}
        made.settings = {**SETTINGS, **self.also, **role, "storePathCommitLog": made.store / "commitlog"}
        made.write()
        return made

    async def up(self) -> None:
        await self._namesrv.start()
        self.addresses = await asyncio.gather(
            *(
                self.start_container(
                    number,
                    ":".join(str(self.confs[place].path) for place, at in LAYOUT.items() if at == number),
                )
                for number in range(3)
            )
        )
        await self.whole()

    async def close(self) -> None:
        await self.client.close()
        await self.stop_containers()
        await self._namesrv.stop()

    async def until(
        self, condition: Callable[[], Awaitable[object]], what: str, timeout_s: float | None = None
    ) -> None:
        """Until the condition holds. Errors of calls count as not yet."""
        timeout_s = self.patience_s if timeout_s is None else timeout_s
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while True:
            with suppress(NetError, MQError):
                if await condition():
                    return
            assert loop.time() < deadline, f"in vain for {timeout_s:g} s: {what}"
            await asyncio.sleep(0.05)

    # -- the name server

    @property
    def namesrv_address(self) -> str:
        return f"127.0.0.1:{self._namesrv.port}"

    def _admit(self, request: Request, handler: RawHandler) -> Outcome:
        place = self._by_address.get(request.command.ext["brokerAddr"])
        if request.command.code == RequestCode.REGISTER_BROKER and place in self._isolated:
            raise MQError(ResponseCode.SYSTEM_ERROR, "isolated by the test")
        if place in self._muted and request.command.code in (self._refused, RequestCode.REGISTER_BROKER):
            raise MQError(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "not supported, says the test")
        return handler(request)

    def mute(self, code: RequestCode, container: int) -> None:
        """The name server refuses this request of the container's brokers from now on, and registrations."""
        self._refused = code
        self._muted = {place for place, at in LAYOUT.items() if at == container}

    def unmute(self) -> None:
        self._muted = ()

    async def isolate(self, name: str, broker_id: int = 0) -> None:
        """The name server forgets the broker and refuses its registrations. The broker goes on running."""
        self._isolated.add((name, broker_id))
        header = UnregisterBroker(
            broker_name=name,
            broker_addr=self.address(name, broker_id),
            cluster_name=CLUSTER,
            broker_id=broker_id,
        )
        await self.client.call(self.namesrv_address, header)

    async def rejoin(self, name: str, broker_id: int = 0) -> None:
        """End the isolation; returns when the name server lists the broker."""
        self._isolated.discard((name, broker_id))

        async def listed() -> bool:
            return broker_id in await self.members(name)

        await self.until(listed, f"{name}{broker_id} is registered again", 60)

    async def members(self, name: str) -> dict[int, str]:
        header = GetBrokerMemberGroup(cluster_name=CLUSTER, broker_name=name)
        answer = await self.client.call(self.namesrv_address, header)
        group = decode(answer.body, GetBrokerMemberGroupResponseBody).broker_member_group
        return (group or BrokerMemberGroup()).broker_addrs

    async def serving(self, name: str, topic: str) -> str | None:
        """The address that clients find as master of a set."""
        answer = await self.client.call(self.namesrv_address, GetRouteInfo(topic=topic))
        for data in decode(answer.body, TopicRouteData).broker_datas:
            if data.broker_name == name:
                return data.broker_addrs.get(MASTER_ID)
        return None

    async def acting(self, name: str, topic: str, broker_id: int = 1) -> str:
        """Until clients find this slave as master; its address."""
        address = self.address(name, broker_id)

        async def shown() -> bool:
            return await self.serving(name, topic) == address

        await self.until(shown, f"{name}{broker_id} acts")
        return address

    # -- brokers

    def address(self, name: str, broker_id: int = 0) -> str:
        return self.confs[name, broker_id].address

    async def remove(self, name: str, broker_id: int = 0) -> None:
        header = RemoveBroker(broker_name=name, broker_cluster_name=CLUSTER, broker_id=broker_id)
        await self.client.call(self.addresses[LAYOUT[name, broker_id]], header, timeout_ms=60_000)

    async def add(self, name: str, broker_id: int = 0) -> None:
        header = AddBroker(config_path=str(self.confs[name, broker_id].path))
        await self.client.call(self.addresses[LAYOUT[name, broker_id]], header, timeout_ms=60_000)

    async def lose(self, name: str, broker_id: int = 0) -> None:
        """Isolate and remove a broker."""
        await self.isolate(name, broker_id)
        await self.remove(name, broker_id)

    async def bring_back(self, name: str, broker_id: int = 0) -> None:
        await self.add(name, broker_id)
        await self.rejoin(name, broker_id)

    async def running(self, name: str, broker_id: int) -> bool:
        try:
            await self.client.call(self.address(name, broker_id), GetBrokerHAStatus())
        except NetError:
            return False
        return True

    async def set_key(self, name: str, broker_id: int, key: str, value: str) -> None:
        body = f"{key}={value}\n".encode()
        await self.client.call(self.address(name, broker_id), UpdateBrokerConfig(), body)

    async def slaves_of(self, name: str) -> int:
        """Slaves that have all of the master's log."""
        answer = await self.client.call(self.address(name), GetBrokerHAStatus())
        info = decode(bytes(answer.body), HARuntimeInfo)
        return sum(each.diff == 0 for each in info.ha_connection_info)

    async def _whole(self, sets: str) -> bool:
        for name in sets:
            if len(await self.members(name)) != 1 + SLAVES or await self.slaves_of(name) != SLAVES:
                return False
        return True

    async def whole(self, sets: str = SETS) -> None:
        """Until all brokers of these sets are registered and their slaves have everything."""
        await self.until(partial(self._whole, sets), f"{sets} are whole", 100)

    async def heals(self, timeout_s: float) -> bool:
        """Whether all are whole within this time."""
        try:
            await self.until(partial(self._whole, SETS), "", timeout_s)
        except AssertionError:
            return False
        return True

    # -- topics, messages and groups

    async def create_topic(self, topic: str, *, sets: str = SETS, queues: int = 1) -> None:
        """At these masters; returns when their slaves know it. A Java slave copies topics once a minute."""
        await asyncio.gather(*(self.create_at(name, topic, queues) for name in sets))

        async def known() -> bool:
            for name in sets:
                for broker_id in range(1, 1 + SLAVES):
                    await self.client.call(self.address(name, broker_id), GetTopicConfig(topic=topic))
            return True

        await self.until(known, f"slaves know {topic}", 100)

        async def routed() -> bool:
            return all([await self.serving(name, topic) for name in sets])

        await self.until(routed, f"the name server knows {topic}")

    async def create_at(self, name: str, topic: str, queues: int = 1) -> None:
        """At a master only."""
        header = CreateTopic(
            topic=topic,
            default_topic="TBW102",
            read_queue_nums=queues,
            write_queue_nums=queues,
            perm=6,
            topic_filter_type="SINGLE_TAG",
            topic_sys_flag=0,
            order=False,
        )
        await self.client.call(self.address(name), header)

    def producer(self) -> Producer:
        return Producer("trio_producers", self.namesrv_address, send_timeout_ms=15_000)

    async def send(self, name: str, topic: str, count: int, *, queues: int = 1, **values: Any) -> list[str]:
        """Send messages to the queues of a set in turn; their bodies."""
        bodies = [f"{topic} {number}" for number in range(count)]
        async with self.producer() as producer:
            for number, body in enumerate(bodies):
                queue = MessageQueue(topic, name, number % queues)
                await producer.send(Message(topic, body.encode(), **values), queue=queue)
        return bodies

    async def read(self, address: str, topic: str, queue_id: int = 0, offset: int = 0) -> list[MessageExt]:
        """The messages of a queue of this broker; none if it does not know the topic."""
        found: list[MessageExt] = []
        while True:
            header = PullMessage(
                consumer_group="trio_readers",
                topic=topic,
                queue_id=queue_id,
                queue_offset=offset + len(found),
                max_msg_nums=32,
                sys_flag=PullSysFlag.SUBSCRIPTION,
                commit_offset=0,
                suspend_timeout_millis=0,
                sub_version=0,
                subscription="*",
            )
            try:
                answer = await self.client.call(address, header, accept=_ANSWERS)
            except MQError as error:
                if error.code == ResponseCode.TOPIC_NOT_EXIST:
                    return found
                raise
            if answer.code != ResponseCode.SUCCESS:
                return found
            found += decode_records(bytes(answer.body), check_crc=True)

    async def bodies(self, topic: str, *places: tuple[str, int]) -> list[str]:
        """Bodies in queue 0 of these brokers."""
        found: list[str] = []
        for place in places:
            found += [each.body.decode() for each in await self.read(self.address(*place), topic)]
        return found

    def consumer(self, group: str, **options: Any) -> Consumer:
        return Consumer(
            group,
            self.namesrv_address,
            from_where=ConsumeFromWhere.FIRST_OFFSET,
            commit_interval_ms=500,
            poll_interval_ms=1_000,
            **options,
        )

    async def committed(self, address: str, group: str, topic: str, queue_id: int = 0) -> int:
        """A group's offset at this broker; -1 without one."""
        header = QueryConsumerOffset(
            consumer_group=group, topic=topic, queue_id=queue_id, set_zero_if_not_found=False
        )
        try:
            answer = await self.client.call(address, header)
        except MQError as error:
            if error.code == ResponseCode.QUERY_NOT_FOUND:
                return -1
            raise
        assert isinstance(answer.header, QueryConsumerOffsetResponse)
        return answer.header.offset


class OurTrio(Trio):
    """Three processes `batonmq container`."""

    patience_s = 20.0
    delay_level, delay_s = 3, 10.0

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._programs: list[Program] = []

    async def start_container(self, number: int, paths: str) -> str:
        settings: dict[str, object] = {
            "listenPort": free_ports(1)[0],
            "bindAddress": "127.0.0.1",
            "brokerContainerIP": "127.0.0.1",
            "namesrvAddr": self.namesrv_address,
            "brokerConfigPaths": paths,
        }
        program = Program(f"container-{number}", "container", self.directory, settings)
        self._programs.append(program)
        await asyncio.to_thread(program.start)
        return program.address

    async def stop_containers(self) -> None:
        for program in self._programs:
            await asyncio.to_thread(program.stop)

    def logs(self) -> str:
        return "\n".join(each.log_path.read_text(errors="replace")[-3_000:] for each in self._programs)
