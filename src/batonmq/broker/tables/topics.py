"""The broker's topics, with their queues and permissions.

Owns the table behind ``config/topics.json`` and its data version. It neither writes the file nor calls name
servers: it calls `listeners` with the changed topics. Source: RocketMQ's topic configuration (file format,
system topics, creation on send).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from typing import Final

from batonmq.broker.config import BrokerConfig
from batonmq.broker.tables.attributes import TOPIC_ATTRIBUTES, apply_change, not_built
from batonmq.broker.tables.deleted_topics import DeletedTopics
from batonmq.broker.versions import next_version
from batonmq.common.clock import Clock
from batonmq.common.log import some
from batonmq.protocol.bodies.common import DataVersion
from batonmq.protocol.bodies.topics import TopicConfig, TopicConfigSerializeWrapper
from batonmq.protocol.codes import Perm
from batonmq.protocol.json import decode, encode
from batonmq.protocol.names import (
    AUTO_CREATE_TOPIC,
    BENCHMARK_TOPIC,
    DLQ_PREFIX,
    OFFSET_MOVED_EVENT,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    SELF_TEST_TOPIC,
    SYSTEM_TOPIC_PREFIX,
    SYSTEM_TOPICS,
    TIMER_TOPIC,
    TRANS_HALF_TOPIC,
    TRANS_OP_HALF_TOPIC,
    is_light,
    reply_topic,
    revive_topic,
)

log = logging.getLogger(__name__)

DEFAULT_QUEUES = 16
"""Queues of a topic that is created without a number of queues."""
SCHEDULE_QUEUES = 18
"""One queue for each delay level."""
REVIVE_QUEUES = 8
MAX_QUEUES: Final = 16_384
"""Largest number of queues of a topic: a request about all of them must not delay other requests."""

MOST_CREATED: Final = 100_000
"""With so many topics sends create no further ones. RocketMQ sets no limit: any client could fill the memory
and the disk."""

LOGGED: Final = 8
"""Largest change that logs a line per topic; the line costs more than the creation of the topic."""


class TopicTable:
    """Topics by name. Values are replaced, never changed in place, so callers may keep them.

    Light queues (`%LMQ%…`) are found by name, all alike, but are not in the table: neither files nor slaves
    nor name servers have them."""

    def __init__(self, config: BrokerConfig, clock: Clock, *, light_queues: bool = False) -> None:
        """`light_queues`: every name of a light queue is a topic (`enableLmq`)."""
        self._config = config
        self._light_queues = light_queues
        self._clock = clock
        self._topics: dict[str, TopicConfig] = {}
        self.state_version = 0
        """Master epoch in controller mode; part of every data version."""
        self.version = DataVersion(timestamp=clock.now_ms(), counter=0, state_version=0)
        self.listeners: list[Callable[[Sequence[TopicConfig]], None]] = []
        """Called after every change with the new and changed topics (empty after a deletion)."""
        for topic in _system_topics(config):
            self._topics[topic.topic_name] = topic
        self._system = SYSTEM_TOPICS | self._topics.keys()
        self.deleted = DeletedTopics()
        self._full = False
        """Whether the last unknown topic had no room, for the log."""
        self._warned: set[str] = set()
        """Topics whose unsupported attributes were logged."""
        self.missing_on_master: dict[str, TopicConfig] = {}
        """On a slave of a RocketMQ broker: topics that the master lacks, but perhaps has not deleted."""

    def configure(self, config: BrokerConfig) -> None:
        """Apply changed keys (`autoCreateTopicEnable`)."""
        self._config = config

    # -- reading

    def get(self, topic: str) -> TopicConfig | None:
        found = self._topics.get(topic)
        if found is None and self._has_light(topic):
            return TopicConfig(topic_name=topic, read_queue_nums=1, write_queue_nums=1, perm=Perm.READ_WRITE)
        return found

    def _has_light(self, topic: str) -> bool:
        return self._light_queues and is_light(topic)

    def __contains__(self, topic: str) -> bool:
        return topic in self._topics or self._has_light(topic)

    def __iter__(self) -> Iterator[str]:
        return iter(self._topics)

    def __len__(self) -> int:
        return len(self._topics)

    @property
    def table(self) -> Mapping[str, TopicConfig]:
        return self._topics

    @property
    def system_topics(self) -> frozenset[str]:
        return self._system

    def is_system(self, topic: str) -> bool:
        return topic in self._system or topic.startswith(SYSTEM_TOPIC_PREFIX)

    def is_order(self, topic: str) -> bool:
        found = self._topics.get(topic)
        return found is not None and found.order

    def page(self, version: DataVersion | None, start: int, count: int) -> dict[str, TopicConfig]:
        """`count` topics in order of names from index `start`; from 0 if `version` is out of date."""
        begin = start if version == self.version else 0
        return {name: self._topics[name] for name in sorted(self._topics)[begin : begin + count]}

    @property
    def has_room(self) -> bool:
        """Whether clients may create further topics by sending to them."""
        return len(self._topics) < MOST_CREATED

    # -- changing

    def create_on_send(
        self, topic: str, default_topic: str, queues: int, sys_flag: int = 0, client: str = ""
    ) -> TopicConfig | None:
        """The topic for a message to `topic`. An unknown one is created from the template `default_topic`.

        None if the template does not exist or does not allow it (`autoCreateTopicEnable=false`). `queues`:
        the number that the sender requests, limited by the template's.
        """
        found = self._topics.get(topic)
        if found is not None:
            return found
        template = self._topics.get(default_topic)
        if template is None:
            log.warning(
                "topic not created: no template topic=%s template=%s client=%s", topic, default_topic, client
            )
            return None
        disabled = default_topic == AUTO_CREATE_TOPIC and not self._config.auto_create_topic_enable
        if disabled or not template.perm & Perm.INHERIT:
            log.warning(
                "topic not created: template not inheritable topic=%s template=%s client=%s",
                topic,
                default_topic,
                client,
            )
            return None
        if not self.has_room:
            if not self._full:
                log.error(
                    "topics are no longer created automatically, with %d topics: delete some (deleteTopic), "
                    "or create those that are needed (updateTopic)",
                    MOST_CREATED,
                )
            self._full = True
            return None
        self._full = False
        count = max(0, min(queues, template.write_queue_nums))
        created = TopicConfig(
            topic_name=topic,
            read_queue_nums=count,
            write_queue_nums=count,
            perm=template.perm & ~Perm.INHERIT,
            topic_filter_type=template.topic_filter_type,
            topic_sys_flag=sys_flag,
        )
        self._put(created)
        return created

    def create_on_send_back(
        self, topic: str, queues: int, perm: int = Perm.READ_WRITE, *, order: bool = False, sys_flag: int = 0
    ) -> TopicConfig:
        """A topic that the broker itself needs (%RETRY%…, %DLQ%…); created if missing."""
        found = self._topics.get(topic)
        if found is None or found.order != order:
            wanted = TopicConfig(
                topic_name=topic,
                read_queue_nums=queues,
                write_queue_nums=queues,
                perm=perm,
                topic_sys_flag=sys_flag,
                order=order,
            )
            self.ensure([wanted])
        return self._topics[topic]

    def widen(self, topic: str, queues: int) -> bool:
        """A topic that the broker itself needs, with at least this many queues; False if nothing changed."""
        found = self._topics.get(topic)
        if found is not None and min(found.read_queue_nums, found.write_queue_nums) >= queues:
            return False
        if found is None:
            self.create_on_send_back(topic, queues)
        else:
            read, write = max(found.read_queue_nums, queues), max(found.write_queue_nums, queues)
            self._put(_changed(found, read_queue_nums=read, write_queue_nums=write))
        return True

    def ensure(self, wanted: Iterable[TopicConfig]) -> None:
        """Create the missing topics; of an existing one only `order` is changed. All are one change of the
        table."""
        changed: dict[str, TopicConfig] = {}
        for config in wanted:
            found = self._topics.get(config.topic_name)
            if found is None:
                changed[config.topic_name] = config
            elif found.order != config.order:
                changed[config.topic_name] = _changed(found, order=config.order)
        if changed:
            self._put(*changed.values())

    def update(self, *configs: TopicConfig) -> None:
        """Create or replace topics; their `attributes` are changes (``+key``, ``-key``). Light queues stay as
        they are, as in RocketMQ.

        Raises MQError if one of them is refused, and then changes nothing.
        """
        merged: list[TopicConfig] = []
        for config in configs:
            if self._has_light(config.topic_name):
                continue
            found = self._topics.get(config.topic_name)
            current = None if found is None else found.attributes or {}
            merged.append(
                _changed(config, attributes=apply_change(TOPIC_ATTRIBUTES, current, config.attributes or {}))
            )
        if merged:
            self._put(*merged)

    def set_order(self, topics: Iterable[str]) -> None:
        """Mark the topics in the name servers' order configuration as ordered."""
        marked = [
            _changed(found, order=True)
            for found in map(self._topics.get, topics)
            if found is not None and not found.order
        ]
        if marked:
            self._put(*marked)

    def delete(self, topic: str) -> bool:
        """False if there was no such topic."""
        if self._topics.pop(topic, None) is None:
            return False
        log.info("topic deleted topic=%s", topic)
        self.deleted.add(topic)
        self.touch()
        self._announce(())
        return True

    def touch(self) -> None:
        """Raise the data version after a change of data that is registered together with the topics."""
        self.version = next_version(self.version, self._clock.now_ms(), self.state_version)

    def _put(self, *configs: TopicConfig) -> None:
        if len(configs) > LOGGED:
            log.info("topics created or changed: %s", some([each.topic_name for each in configs]))
        else:
            for config in configs:
                known = config.topic_name in self._topics
                log.info("topic %s %s", "changed" if known else "created", config)
        self._topics.update((config.topic_name, config) for config in configs)
        self.deleted.discard(config.topic_name for config in configs)
        self.touch()
        self._announce(configs)

    def _announce(self, changed: Sequence[TopicConfig]) -> None:
        for listener in self.listeners:
            listener(changed)

    # -- a new master

    def begin_term(self, epoch: int) -> None:
        """This broker is master of `epoch`; every later data version contains it. As in RocketMQ the version
        changes at once, so that name servers and slaves accept this table as the current one."""
        self.state_version = epoch
        self.touch()

    def recreate_missing(self, queues: Iterable[tuple[str, int]]) -> None:
        """Recreate topics that have messages in the log but are missing here, unless they were deleted.

        `queues`: (topic, queue id) of all consume queues. A master that died right after it created a topic
        may have replicated messages of the topic, but not the topic. The number of queues is known only for
        topics in `missing_on_master`; others get the default number, or more if the log has more queues.
        Light queues are not topics."""
        missing: dict[str, int] = {}
        for topic, queue_id in queues:
            if topic not in self._topics and topic not in self.deleted and not is_light(topic):
                missing[topic] = max(missing.get(topic, 0), queue_id + 1)
        recreated = []
        for topic, count in missing.items():
            internal = topic.startswith((RETRY_PREFIX, DLQ_PREFIX))
            count = count if internal else max(count, self._config.default_topic_queue_nums)
            # Anybody can have a message delivered to any queue, by a send to the timer topic itself.
            count = min(count, MAX_QUEUES)
            config = self.missing_on_master.get(topic)
            if config is None:
                config = TopicConfig(topic_name=topic, read_queue_nums=count, write_queue_nums=count)
            log.warning(
                "topic %s is in the log only, recreated with %d queues", topic, config.write_queue_nums
            )
            recreated.append(config)
        self.missing_on_master = {}
        if recreated:
            self._put(*recreated)

    # -- file and replication

    def encode(self) -> bytes:
        """Contents of topics.json, as a RocketMQ broker reads them."""
        return encode(TopicConfigSerializeWrapper(topic_config_table=self._topics, data_version=self.version))

    def restore(self, data: bytes) -> None:
        """Add the topics of a topics.json. Raises ValueError and then changes nothing."""
        read = decode(data, TopicConfigSerializeWrapper)
        self._warn_not_built(read.topic_config_table)
        self._topics.update(read.topic_config_table)
        self.version = read.data_version

    def infer_deleted(
        self, stored: Set[str], table: Mapping[str, TopicConfig], version: DataVersion, *, complete: bool
    ) -> bool:
        """On a slave, before `replace`: infer which topics with messages in the log (`stored`) the master has
        deleted, because its `table` lacks them. True if `missing_on_master` has new topics.

        `complete`: the master is one of ours. It creates a topic before it accepts messages of it, and
        recreated all topics that only its log had; so a topic that it lacks was deleted. A RocketMQ master
        that was elected may lack topics that its predecessor created in its last ten seconds, and does not
        recreate them. So a topic that this broker has from an earlier master epoch does not count as deleted.
        """
        missing = {topic for topic in stored - table.keys() if not is_light(topic)}
        known = self.missing_on_master
        if version.state_version != self.version.state_version:
            known = {**known, **self._topics}
        uncertain = {} if complete else {topic: known[topic] for topic in missing & known.keys()}
        more = not uncertain.keys() <= self.missing_on_master.keys()
        self.missing_on_master = uncertain
        self.deleted.replace(missing - uncertain.keys())
        return more

    def replace(self, table: Mapping[str, TopicConfig], version: DataVersion) -> bool:
        """On a slave: load the master's table. False if it is unchanged."""
        if version == self.version:
            return False
        self._warn_not_built(table)
        self._topics = dict(table)
        self.version = version
        self._announce(list(self._topics.values()))
        return True

    def _warn_not_built(self, table: Mapping[str, TopicConfig]) -> None:
        """RocketMQ wrote these topics, or is the master: its own requests would have been refused here."""
        for name, config in table.items():
            found = not_built(config.attributes)
            if found and name not in self._warned:
                self._warned.add(name)
                log.error("topic %s: %s is not supported by this broker and has no effect", name, found)


def _changed(config: TopicConfig, **fields: object) -> TopicConfig:
    values = {name: getattr(config, name) for name in config.__struct_fields__}
    return TopicConfig(**{**values, **fields})


def _system_topics(config: BrokerConfig) -> list[TopicConfig]:
    def topic(name: str, queues: int, perm: int = Perm.READ_WRITE) -> TopicConfig:
        return TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues, perm=perm)

    def offered(enabled: bool) -> int:
        return Perm.INHERIT | (Perm.READ_WRITE if enabled else 0)

    topics = [
        topic(SELF_TEST_TOPIC, 1),
        topic(BENCHMARK_TOPIC, 1024),
        topic(config.broker_cluster_name, DEFAULT_QUEUES, offered(config.cluster_topic_enable)),
        topic(config.broker_name, 1, offered(config.broker_topic_enable)),
        topic(OFFSET_MOVED_EVENT, 1),
        topic(SCHEDULE_TOPIC, SCHEDULE_QUEUES),
        topic(reply_topic(config.broker_cluster_name), 1),
        topic(revive_topic(config.broker_cluster_name), REVIVE_QUEUES),
        topic(f"{SYSTEM_TOPIC_PREFIX}SYNC_BROKER_MEMBER_{config.broker_name}", 1, Perm.INHERIT),
        topic(TRANS_HALF_TOPIC, 1),
        topic(TRANS_OP_HALF_TOPIC, 1),
    ]
    if config.timer_wheel_enable:
        topics.append(topic(TIMER_TOPIC, 1))
    if config.auto_create_topic_enable:
        topics.append(topic(AUTO_CREATE_TOPIC, config.default_topic_queue_nums, offered(True)))
    if config.trace_topic_enable:
        topics.append(topic(config.msg_trace_topic_name, 1))
    return topics
