"""Topics: creating, changing, deleting and listing them.

A change is answered after the slaves have copied it, so that it survives a switch; slow slaves and RocketMQ's
are given up after a while (`broker/tables/watch.py`). Source: RocketMQ's admin requests; its tools depend on
the codes and show the remarks.
"""

from __future__ import annotations

import logging
from typing import Final

from batonmq.broker.context import Broker
from batonmq.broker.requests import PAGE_SIZE, required_body, version_of
from batonmq.broker.tables.attributes import (
    MESSAGE_TYPE,
    TOPIC_ATTRIBUTES,
    apply_change,
    parse_change,
)
from batonmq.broker.tables.topics import MAX_QUEUES
from batonmq.net.dispatch import Dispatcher, Reply, Request
from batonmq.protocol.bodies.common import TopicList
from batonmq.protocol.bodies.static_topics import TopicQueueMappingDetail
from batonmq.protocol.bodies.topics import (
    MULTI_TAG,
    SINGLE_TAG,
    CreateTopicListRequestBody,
    TopicConfig,
    TopicConfigAndMappingSerializeWrapper,
    TopicConfigAndQueueMapping,
)
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker import topics as wire
from batonmq.protocol.json import encode
from batonmq.protocol.names import check_topic

log = logging.getLogger(__name__)


def register(dispatcher: Dispatcher, broker: Broker) -> None:
    """Bind the requests of this module."""
    topics = _TopicHandlers(broker)
    dispatcher.on(wire.CreateTopic, topics.create)
    dispatcher.on(wire.CreateStaticTopic, topics.create_static)
    dispatcher.on(wire.CreateTopicList, topics.create_list)
    dispatcher.on(wire.DeleteTopic, topics.delete)
    dispatcher.on(wire.GetTopicConfig, topics.get)
    dispatcher.on(wire.GetAllTopicConfig, topics.get_all)
    dispatcher.on(wire.GetSystemTopicListFromBroker, topics.system_topics)


_FILTER_TYPES: Final = (SINGLE_TAG, MULTI_TAG)


class _TopicHandlers:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def _check(self, config: TopicConfig) -> None:
        """Raises MQError if a client may not create or change this topic."""
        check_topic(config.topic_name, ResponseCode.INVALID_PARAMETER)
        self._check_not_system(config.topic_name)
        mixed = self._broker.settings.broker.enable_mixed_message_type
        if not mixed and config.attributes.get(f"+{MESSAGE_TYPE}") == "MIXED":
            raise MQError(ResponseCode.INVALID_PARAMETER, "MIXED message type is not supported.")
        if config.topic_filter_type not in _FILTER_TYPES:  # RocketMQ's programs could not read the topic
            raise MQError(
                ResponseCode.SYSTEM_ERROR, f"topicFilterType = [{config.topic_filter_type}] value invalid"
            )
        if config.read_queue_nums < 0 or config.write_queue_nums < 0:
            raise MQError(
                ResponseCode.INVALID_PARAMETER,
                f"The topic {config.topic_name} cannot have less than 0 queues.",
            )
        if max(config.read_queue_nums, config.write_queue_nums) > MAX_QUEUES:
            raise MQError(
                ResponseCode.INVALID_PARAMETER,
                f"The topic {config.topic_name} cannot have more than {MAX_QUEUES} queues.",
            )

    def _check_not_system(self, topic: str) -> None:
        broker = self._broker
        if broker.settings.broker.validate_system_topic_when_update_topic and broker.tables.topics.is_system(
            topic
        ):
            raise MQError(
                ResponseCode.INVALID_PARAMETER, f"The topic[{topic}] is conflict with system topic."
            )

    async def _update(self, *configs: TopicConfig) -> None:
        for config in configs:
            self._check(config)
            self._check_logical(config)
        topics = self._broker.tables.topics
        changed = [config for config in configs if topics.get(config.topic_name) != config]
        if changed:
            topics.update(*changed)
        await self._broker.tables.durable()

    def _check_logical(self, config: TopicConfig) -> None:
        """Raises MQError if a static topic lost queues that logical queues consist of. RocketMQ allows it,
        and clients can then neither send to these queues nor read them."""
        mapping = self._broker.tables.mappings.get(config.topic_name)
        if mapping is None:
            return
        parts = (item for items in mapping.hosted_queues.values() for item in items)
        needed = max((item.queue_id + 1 for item in parts if item.bname == mapping.bname), default=0)
        if min(config.read_queue_nums, config.write_queue_nums) < needed:
            raise MQError(
                ResponseCode.INVALID_PARAMETER,
                f"topic {config.topic_name} is static, and its logical queues use {needed} queues here",
            )

    async def create(self, request: Request, header: wire.CreateTopic) -> Reply:
        log.info("creating or changing topic=%s client=%s", header.topic, request.connection.peer)
        check_topic(header.topic, ResponseCode.INVALID_PARAMETER)
        await self._update(
            TopicConfig(
                topic_name=header.topic,
                read_queue_nums=header.read_queue_nums,
                write_queue_nums=header.write_queue_nums,
                perm=header.perm,
                topic_filter_type=header.topic_filter_type,
                topic_sys_flag=header.topic_sys_flag or 0,
                order=header.order,
                attributes=parse_change(header.attributes),
            )
        )
        return Reply()

    async def create_static(self, request: Request, header: wire.CreateStaticTopic) -> Reply:
        """Create or change a static topic. After the answer the queues that this broker no longer leads get
        no more messages, also from a slave that is elected, and consumers can read all that they have: the
        tool decides now where the queue continues elsewhere."""
        topic, broker = header.topic, self._broker
        log.info("creating or changing static topic=%s client=%s", topic, request.connection.peer)
        self._check_master()
        mapping = required_body(request, TopicQueueMappingDetail)
        # A topic that exists keeps its attributes, as with RocketMQ, whose brokers ignore these altogether.
        attributes = {} if broker.tables.topics.get(topic) is not None else parse_change(header.attributes)
        apply_change(TOPIC_ATTRIBUTES, None, attributes)  # refuses the request before anything is changed
        config = TopicConfig(
            topic_name=topic,
            read_queue_nums=header.read_queue_nums,
            write_queue_nums=header.write_queue_nums,
            perm=header.perm,
            topic_filter_type=header.topic_filter_type,
            topic_sys_flag=header.topic_sys_flag or 0,
            attributes=attributes,
        )
        self._check(config)
        self._check_mapping(mapping, config)
        broker.tables.mappings.update(mapping, force=header.force)
        broker.tables.topics.update(config)
        changes, timeout_ms = broker.tables.watch.changes, broker.settings.broker.forward_timeout
        deadline = broker.clock.monotonic_ms() + timeout_ms
        if not await broker.appender.settle(timeout_ms):
            raise MQError(
                ResponseCode.SYSTEM_ERROR,
                f"the mapping is in force, but the last messages are not visible within {timeout_ms} ms: "
                "send it again once the replicas are in sync",
            )
        await broker.tables.durable()
        left_s = max(0, deadline - broker.clock.monotonic_ms()) / 1000
        if lacking := await broker.tables.watch.lacking(changes, left_s):
            raise MQError(
                ResponseCode.SYSTEM_ERROR,
                f"the mapping is in force, but slave {', '.join(map(str, sorted(lacking)))}, which may be "
                f"elected, has not copied it within {timeout_ms} ms: send it again once the slave has, or is "
                "no longer in sync",
            )
        self._check_master()
        return Reply()

    def _check_master(self) -> None:
        """Raises MQError at a slave: the master would continue with its own mapping, which a slave copies."""
        broker = self._broker
        if not broker.role.is_master:
            name, master = broker.settings.broker.broker_name, broker.role.master_address or "unknown"
            raise MQError(
                ResponseCode.SYSTEM_ERROR, f"this broker is not the master of {name}; the master is {master}"
            )

    def _check_mapping(self, mapping: TopicQueueMappingDetail, config: TopicConfig) -> None:
        """Raises MQError for a mapping of another topic or broker, or of queues that the topic lacks."""
        name = self._broker.settings.broker.broker_name
        if (mapping.topic, mapping.bname) != (config.topic_name, name):
            raise MQError(
                ResponseCode.SYSTEM_ERROR,
                f"the mapping is of topic {mapping.topic} and broker {mapping.bname}, "
                f"not of {config.topic_name} and {name}",
            )
        queues = min(config.read_queue_nums, config.write_queue_nums)
        for items in mapping.hosted_queues.values():
            for item in items:
                if item.bname == name and item.queue_id >= queues:
                    raise MQError(
                        ResponseCode.SYSTEM_ERROR,
                        f"the mapping has queue {item.queue_id}, but the topic has only {queues} here",
                    )

    async def create_list(self, request: Request, header: wire.CreateTopicList) -> Reply:
        await self._update(*required_body(request, CreateTopicListRequestBody).topic_config_list)
        return Reply()

    async def delete(self, request: Request, header: wire.DeleteTopic) -> Reply:
        broker, topic = self._broker, header.topic
        log.info("deleting topic=%s client=%s", topic, request.connection.peer)
        check_topic(topic, ResponseCode.INVALID_PARAMETER)  # it becomes a path
        self._check_not_system(topic)
        broker.tables.mappings.delete(topic)
        broker.tables.topics.delete(topic)
        broker.tables.offsets.remove_topic(topic)
        broker.stats.forget_topic(topic)
        broker.store.delete_topic(topic)
        await broker.tables.durable()
        return Reply()

    def get(self, request: Request, header: wire.GetTopicConfig) -> Reply:
        config = self._broker.tables.topics.get(header.topic)
        if config is None:
            raise MQError(ResponseCode.TOPIC_NOT_EXIST, f"No topic in this broker. topic: {header.topic}")
        if header.lo:
            fields = {name: getattr(config, name) for name in config.__struct_fields__}
            mapping = self._broker.tables.mappings.get(header.topic)
            config = TopicConfigAndQueueMapping(**fields, mapping_detail=mapping)
        return Reply(body=encode(config))

    def get_all(self, request: Request, header: wire.GetAllTopicConfig) -> Reply:
        topics, mappings = self._broker.tables.topics, self._broker.tables.mappings
        table = dict(topics.table)
        if header.topic_seq is not None:
            count = min(PAGE_SIZE, header.max_topic_num or PAGE_SIZE)
            table = topics.page(version_of(header.data_version), header.topic_seq, count)
        body = TopicConfigAndMappingSerializeWrapper(
            topic_config_table=table,
            data_version=topics.version,
            topic_queue_mapping_detail_map={
                topic: mapping for topic, mapping in mappings.table.items() if topic in table
            },
            mapping_data_version=mappings.version,
        )
        return Reply(wire.GetAllTopicConfigResponse(total_topic_num=len(topics)), encode(body))

    def system_topics(self, request: Request, header: wire.GetSystemTopicListFromBroker) -> Reply:
        return Reply(body=encode(TopicList(topic_list=sorted(self._broker.tables.topics.system_topics))))
