"""The consume mode of a group (pull or pop), and the queues that its clients get.

QUERY_ASSIGNMENT (400), SET_MESSAGE_REQUEST_MODE (401) and GET_ALL_MESSAGE_REQUEST_MODE (402); the modes are
in messageRequestMode.json. Source: RocketMQ's `QueryAssignmentProcessor` and `MessageRequestModeManager`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from batonmq.broker.pop.assignment_core import STRATEGIES, allocate, allocate_for_pop
from batonmq.broker.requests import required_body
from batonmq.broker.role import rejected
from batonmq.broker.tables.persistence import fetch_if_known
from batonmq.common.addresses import name_server_addresses
from batonmq.net.dispatch import Dispatcher, Reply, Request
from batonmq.net.errors import NetError
from batonmq.protocol.bodies.clients import (
    MessageModel,
    MessageQueueAssignment,
    MessageRequestMode,
    MessageRequestModeSerializeWrapper,
    QueryAssignmentRequestBody,
    QueryAssignmentResponseBody,
    SetMessageRequestModeRequestBody,
)
from batonmq.protocol.bodies.common import MessageQueue
from batonmq.protocol.bodies.routes import TopicRouteData
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError, TopicNotExistError
from batonmq.protocol.headers.broker.clients import (
    GetAllMessageRequestMode,
    QueryAssignment,
    SetMessageRequestMode,
)
from batonmq.protocol.headers.namesrv import GetRouteInfo
from batonmq.protocol.json import decode, encode
from batonmq.protocol.names import RETRY_PREFIX, is_light, topic_error
from batonmq.routing.name_servers import NameServers
from batonmq.routing.routes import parse_route

if TYPE_CHECKING:
    from batonmq.broker.context import Broker
    from batonmq.broker.tables.persistence import Master

log = logging.getLogger(__name__)

MODES: Final = "messageRequestMode"
ROUTE_AGE_MS: Final = 5_000
"""A route is asked for again when it is this old."""
MAX_ROUTES: Final = 10_000
MAX_MODES: Final = 100_000
"""Modes that are kept; each needs an existing topic and group."""

_NO_ASSIGNMENT: Final = b'{"messageQueueAssignments":null}'
"""The client keeps what it has."""


class RequestModes:
    """Topic -> group -> mode."""

    def __init__(self) -> None:
        self._modes: dict[str, dict[str, SetMessageRequestModeRequestBody]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._modes.values()))

    def get(self, topic: str, group: str) -> SetMessageRequestModeRequestBody | None:
        return self._modes.get(topic, {}).get(group)

    def put(self, mode: SetMessageRequestModeRequestBody) -> None:
        self._modes.setdefault(mode.topic, {})[mode.consumer_group] = mode

    def keep(self, is_topic: Callable[[str], bool], is_group: Callable[[str], bool]) -> None:
        """Drop the modes of topics and groups that do not exist."""
        kept: dict[str, dict[str, SetMessageRequestModeRequestBody]] = {}
        for topic, modes in self._modes.items():
            if is_topic(topic) and (left := {name: mode for name, mode in modes.items() if is_group(name)}):
                kept[topic] = left
        self._modes = kept

    def encode(self) -> bytes:
        """Contents of messageRequestMode.json, as a RocketMQ broker reads them."""
        return encode(MessageRequestModeSerializeWrapper(self._modes))

    def restore(self, data: bytes) -> None:
        """Load the contents of a messageRequestMode.json. Raises ValueError and then changes nothing."""
        self._modes = decode(data, MessageRequestModeSerializeWrapper).message_request_mode_map


class _Routes:
    """The queues of topics on all brokers of the cluster, as the name servers know them."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._routes: dict[str, tuple[int, list[MessageQueue] | None]] = {}
        self._servers: tuple[str, NameServers] | None = None

    async def queues(self, topic: str) -> list[MessageQueue] | None:
        """The queues that can be read; None if the topic does not exist. For a light queue that of this
        broker: name servers do not know it."""
        if is_light(topic) and topic in self._broker.tables.topics:
            return self._own(topic)
        if topic_error(topic) is not None:
            return None  # its name would be kept, and may have megabytes
        now_ms = self._broker.clock.monotonic_ms()
        known = self._routes.get(topic)
        if known is not None and now_ms - known[0] < ROUTE_AGE_MS:
            return known[1]
        servers = self._name_servers()
        if servers is None:
            return self._own(topic)
        try:
            answer = await servers.ask(GetRouteInfo(topic))
            queues: list[MessageQueue] | None = list(
                parse_route(topic, decode(answer.body, TopicRouteData)).read_queues
            )
        except TopicNotExistError:
            queues = None
        except (NetError, MQError) as error:
            log.warning("the name servers do not give the route of %s: %s", topic, error)
            return self._own(topic) if known is None else known[1]
        if len(self._routes) >= MAX_ROUTES:
            self._routes.clear()
        self._routes[topic] = (now_ms, queues)
        return queues

    def _name_servers(self) -> NameServers | None:
        addresses = self._broker.settings.broker.namesrv_addr
        if not addresses:
            return None
        if self._servers is None or self._servers[0] != addresses:
            servers = NameServers(name_server_addresses(addresses), self._broker.client, self._broker.rng)
            self._servers = (addresses, servers)
        return self._servers[1]

    def _own(self, topic: str) -> list[MessageQueue] | None:
        config = self._broker.tables.topics.get(topic)
        if config is None:
            return None
        name = self._broker.settings.broker.broker_name
        return [MessageQueue(topic, name, queue) for queue in range(config.read_queue_nums)]


class Assignments:
    """Modes and assignments of one broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._routes = _Routes(broker)
        self.modes = RequestModes()

    def register(self, dispatcher: Dispatcher) -> None:
        dispatcher.on(QueryAssignment, self._query)
        dispatcher.on(SetMessageRequestMode, self._set)
        dispatcher.on(GetAllMessageRequestMode, self._all)

    async def copy(self, master: Master) -> None:
        """On a slave: load the master's modes."""
        data = await fetch_if_known(master, GetAllMessageRequestMode())
        if data and data != self.modes.encode():
            self.modes.restore(data)
            self._broker.tables.persistence.save(MODES)

    def mode_of(self, topic: str, group: str) -> SetMessageRequestModeRequestBody:
        """How a group consumes a topic: as it was set, or by default. Retry topics are always pulled."""
        found = self.modes.get(topic, group)
        if found is not None:
            return found
        config = self._broker.settings.broker
        mode = MessageRequestMode(config.default_message_request_mode)
        if topic.startswith(RETRY_PREFIX):
            mode = MessageRequestMode.PULL
        share = config.default_pop_share_queue_num if mode is MessageRequestMode.POP else 0
        return SetMessageRequestModeRequestBody(topic, group, mode, share)

    async def _query(self, request: Request, header: QueryAssignment) -> Reply:
        asked = required_body(request, QueryAssignmentRequestBody)
        mode = self.mode_of(asked.topic, asked.consumer_group)
        queues = await self._assigned(asked, mode)
        if queues is None:
            return Reply(body=_NO_ASSIGNMENT)
        assignments = [MessageQueueAssignment(queue, mode.mode) for queue in queues]
        return Reply(body=encode(QueryAssignmentResponseBody(assignments)))

    async def _assigned(
        self, asked: QueryAssignmentRequestBody, mode: SetMessageRequestModeRequestBody
    ) -> list[MessageQueue] | None:
        """None: the client keeps what it has."""
        queues = await self._routes.queues(asked.topic)
        if queues is None or asked.message_model is None:
            return None
        if asked.message_model is MessageModel.BROADCASTING:
            return queues
        if not self._broker.settings.broker.server_load_balancer_enable:
            return queues
        group = self._broker.tables.consumers.group(asked.consumer_group)
        strategy = asked.strategy_name or ""
        if group is None or strategy not in STRATEGIES:
            return None
        clients = group.client_ids
        if mode.mode is MessageRequestMode.POP:
            return allocate_for_pop(strategy, asked.client_id, clients, queues, mode.pop_share_queue_num)
        return allocate(strategy, asked.client_id, clients, queues)

    async def _set(self, request: Request, header: SetMessageRequestMode) -> Reply:
        mode = required_body(request, SetMessageRequestModeRequestBody)
        tables = self._broker.tables
        if not self._broker.role.is_master:
            raise rejected(self._broker.role)
        if mode.topic.startswith(RETRY_PREFIX):
            raise MQError(ResponseCode.NO_PERMISSION, "retry topic is not allowed to set mode")
        if mode.topic not in tables.topics:
            raise MQError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{mode.topic}] not exist")
        if tables.subscriptions.get_or_create(mode.consumer_group) is None:
            raise MQError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "subscription group does not exist")
        self.modes.keep(tables.topics.__contains__, tables.subscriptions.__contains__)
        if len(self.modes) >= MAX_MODES:
            raise MQError(ResponseCode.SYSTEM_ERROR, f"{MAX_MODES} modes are set already")
        self.modes.put(mode)
        log.info(
            "group=%s consumes topic=%s by %s, client=%s",
            mode.consumer_group,
            mode.topic,
            mode.mode,
            request.connection.peer,
        )
        tables.persistence.save(MODES)
        tables.watch.changed()
        await tables.durable()
        return Reply()

    def _all(self, request: Request, header: GetAllMessageRequestMode) -> Reply:
        return Reply(body=self.modes.encode())
