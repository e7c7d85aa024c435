"""Routes and addresses of other broker sets, from the name servers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from batonmq.common.addresses import split_addresses
from batonmq.net.errors import ConnectFailed
from batonmq.protocol.bodies.routes import TopicRouteData
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.namesrv import GetRouteInfo
from batonmq.protocol.json import decode
from batonmq.routing.name_servers import NameServers
from batonmq.routing.routes import parse_route

if TYPE_CHECKING:
    from batonmq.broker.context import Broker


async def route_of(broker: Broker, topic: str) -> TopicRouteData:
    """Where a topic is. Raises `NetError` or `MQError`."""
    addresses = split_addresses(broker.settings.broker.namesrv_addr)
    if not addresses:
        raise ConnectFailed(topic, "no name server is configured that knows this topic")
    answer = await NameServers(addresses, broker.client, broker.rng).ask(GetRouteInfo(topic))
    return decode(answer.body, TopicRouteData)


async def address_of(broker: Broker, broker_name: str, topic: str) -> str:
    """``host:port`` of the broker that serves a topic of a broker set: its master, or the slave that acts as
    master. Raises `NetError` or `MQError`."""
    address = parse_route(topic, await route_of(broker, topic)).replica(broker_name)
    if address is None:
        raise MQError(ResponseCode.BROKER_NOT_EXIST, f"no broker of {broker_name} has topic {topic}")
    return address
