"""The few administrative calls that programs need; `batonmq admin` has the rest."""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from types import TracebackType
from typing import Self

from batonmq.protocol.bodies.common import TopicList
from batonmq.protocol.bodies.groups import SubscriptionGroupConfig
from batonmq.protocol.bodies.routes import ClusterInfo
from batonmq.protocol.bodies.topics import SINGLE_TAG
from batonmq.protocol.codes import MASTER_ID, Perm
from batonmq.protocol.errors import TopicNotExistError
from batonmq.protocol.headers.broker.topics import CreateTopic, DeleteTopic, UpdateSubscriptionGroup
from batonmq.protocol.headers.namesrv import DeleteTopicInNamesrv, GetAllTopicList, GetBrokerClusterInfo
from batonmq.protocol.json import decode, encode
from batonmq.protocol.names import AUTO_CREATE_TOPIC, check_topic
from batonmq.protocol.signing import Credentials
from batonmq.routing.name_servers import NoNameServer
from batonmq.routing.session import Session


class Admin:
    """Creates and deletes topics and groups on every master of a cluster.

    Methods raise `MQError` for an answer that says no, and `NetError` when somebody did not answer.
    """

    def __init__(
        self,
        namesrv: str | Iterable[str],
        *,
        tls: ssl.SSLContext | None = None,
        credentials: Credentials | None = None,
        session: Session | None = None,
    ) -> None:
        self._session = session if session is not None else Session(namesrv, tls=tls, credentials=credentials)

    async def __aenter__(self) -> Self:
        try:
            await self._session.name_servers.connect()
        except NoNameServer:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()

    async def cluster(self) -> ClusterInfo:
        """All clusters and broker sets."""
        answer = await self._session.name_servers.ask(GetBrokerClusterInfo())
        return decode(answer.body, ClusterInfo)

    async def masters(self, cluster: str | None = None) -> dict[str, str]:
        """Broker name -> address of its master, of one cluster or of all."""
        info = await self.cluster()
        names = info.broker_addr_table.keys() if cluster is None else info.cluster_addr_table.get(cluster, ())
        return {
            name: info.broker_addr_table[name].broker_addrs[MASTER_ID]
            for name in names
            if MASTER_ID in info.broker_addr_table[name].broker_addrs
        }

    async def topics(self) -> list[str]:
        """Names of all topics that the name server knows."""
        answer = await self._session.name_servers.ask(GetAllTopicList())
        return sorted(decode(answer.body, TopicList).topic_list)

    async def create_topic(
        self,
        topic: str,
        queues: int = 8,
        *,
        cluster: str | None = None,
        perm: int = Perm.READ | Perm.WRITE,
        order: bool = False,
        attributes: str | None = None,
    ) -> None:
        """Create a topic, or change it, with ``queues`` queues on each master.

        Raises:
            LookupError: there is no master to create it on.
        """
        check_topic(topic)
        masters = await self._required_masters(cluster)
        header = CreateTopic(
            topic=topic,
            default_topic=AUTO_CREATE_TOPIC,
            read_queue_nums=queues,
            write_queue_nums=queues,
            perm=int(perm),
            topic_filter_type=SINGLE_TAG,
            topic_sys_flag=0,
            order=order,
            attributes=attributes,
        )
        for address in masters.values():
            await self._session.net.call(address, header)

    async def delete_topic(self, topic: str, *, cluster: str | None = None) -> None:
        """Delete a topic from every master and from the name servers.

        Raises:
            LookupError: there is no master to delete it from, or a broker set without a master keeps it. Its
                route remains in the second case: delete it again when that master is back.
        """
        masters = await self._required_masters(cluster)
        kept = [name for name in await self._sets_of(topic, cluster) if name not in masters]
        for address in masters.values():
            await self._session.net.call(address, DeleteTopic(topic))
        if kept:
            raise LookupError(f"topic {topic} remains at {', '.join(kept)}, of which no master lives")
        for address in self._session.name_servers.addresses:
            await self._session.net.call(address, DeleteTopicInNamesrv(topic))

    async def create_group(self, config: SubscriptionGroupConfig, *, cluster: str | None = None) -> None:
        """Create a consumer group, or change it, on each master.

        Raises:
            LookupError: there is no master to create it on.
        """
        for address in (await self._required_masters(cluster)).values():
            await self._session.net.call(address, UpdateSubscriptionGroup(), encode(config))

    async def _sets_of(self, topic: str, cluster: str | None) -> list[str]:
        """Names of the broker sets of a cluster, or of all, that have a topic."""
        try:
            route = await self._session.refresh(topic)
        except TopicNotExistError:
            return []
        if cluster is None:
            return sorted(route.brokers)
        members = (await self.cluster()).cluster_addr_table.get(cluster, [])
        return sorted(name for name in route.brokers if name in members)

    async def _required_masters(self, cluster: str | None) -> dict[str, str]:
        masters = await self.masters(cluster)
        if not masters:
            raise LookupError(f"no broker of cluster {cluster or '(any)'} has a master")
        return masters
