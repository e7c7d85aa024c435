"""The broker's consumer groups: whether they may consume, and how their messages are retried.

Owns the table behind ``config/subscriptionGroup.json`` and its data version, but does not write the file.
Source: RocketMQ's subscription group configuration (file format, system groups, creation on first use).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from batonmq.broker.config import BrokerConfig
from batonmq.broker.tables.attributes import GROUP_ATTRIBUTES, apply_change
from batonmq.broker.versions import next_version
from batonmq.common.clock import Clock
from batonmq.common.log import some
from batonmq.protocol.bodies.common import DataVersion
from batonmq.protocol.bodies.groups import SubscriptionGroupConfig, SubscriptionGroupWrapper
from batonmq.protocol.json import decode, encode
from batonmq.protocol.names import TOOLS_GROUP, TRANSACTION_GROUP, group_error, is_light

log = logging.getLogger(__name__)

SYSTEM_GROUPS = (
    TOOLS_GROUP,
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
    TRANSACTION_GROUP,
)
"""Groups that exist on every broker."""

LOGGED: Final = 8
"""Largest change that logs a line per group; the line costs more than the creation of the group."""

MOST_CREATED: Final = 100_000
"""With so many groups heartbeats create no further ones, about 2 KiB each with its retry topic. RocketMQ sets
no limit: any client could fill the memory and the disk."""

FORBID_READ = 2
"""Bit index of "may not consume" in a group's forbidden set for a topic."""


def _no_listener() -> None:
    """Default of `on_change`."""


class SubscriptionTable:
    """Consumer groups by name. Values are replaced, never changed in place.

    Groups of light queues (`%LMQ%…`) exist without being in the table; all have the defaults."""

    def __init__(self, config: BrokerConfig, clock: Clock, *, light_queues: bool = False) -> None:
        """`light_queues`: see above (`enableLmq`)."""
        self._config = config
        self._light_queues = light_queues
        self._clock = clock
        self._groups = {name: SubscriptionGroupConfig(group_name=name) for name in SYSTEM_GROUPS}
        self._forbidden: dict[str, dict[str, int]] = {}
        self._full = False
        """Whether the last unknown groups had no room, for the log."""
        self.state_version = 0
        """Master epoch in controller mode; part of every data version."""
        self.version = DataVersion(timestamp=clock.now_ms(), counter=0, state_version=0)
        self.on_change: Callable[[], None] = _no_listener
        """Called after every change."""

    def configure(self, config: BrokerConfig) -> None:
        """Apply changed keys (`autoCreateSubscriptionGroup`)."""
        self._config = config

    # -- reading

    def get(self, group: str) -> SubscriptionGroupConfig | None:
        found = self._groups.get(group)
        if found is None and self._has_light(group):
            return SubscriptionGroupConfig(group_name=group)
        return found

    def _has_light(self, group: str) -> bool:
        return self._light_queues and is_light(group)

    def __contains__(self, group: str) -> bool:
        return group in self._groups or self._has_light(group)

    def __iter__(self) -> Iterator[str]:
        return iter(self._groups)

    def __len__(self) -> int:
        return len(self._groups)

    @property
    def table(self) -> Mapping[str, SubscriptionGroupConfig]:
        return self._groups

    @property
    def forbidden_table(self) -> Mapping[str, Mapping[str, int]]:
        return self._forbidden

    def page(self, version: DataVersion | None, start: int, count: int) -> dict[str, SubscriptionGroupConfig]:
        """`count` groups in order of names from index `start`; from 0 if `version` is out of date."""
        begin = start if version == self.version else 0
        return {name: self._groups[name] for name in sorted(self._groups)[begin : begin + count]}

    def get_or_create(self, group: str) -> SubscriptionGroupConfig | None:
        """The group. An unknown one is created if its name is valid and `autoCreateSubscriptionGroup` is on,
        else the result is None."""
        self.ensure([group])
        return self.get(group)

    def ensure(self, groups: Iterable[str]) -> None:
        """Create the unknown groups as in `get_or_create`, as one change of the table."""
        if not self._config.auto_create_subscription_group:
            return
        unknown = dict.fromkeys(group for group in groups if group not in self)
        if not unknown:
            return
        created = [
            SubscriptionGroupConfig(group_name=group) for group in unknown if group_error(group) is None
        ]
        room = max(0, MOST_CREATED - len(self._groups))
        if len(created) > room and not self._full:
            log.error(
                "groups are no longer created automatically, with %d groups: delete some (deleteSubGroup), "
                "or create those that are needed (updateSubGroup)",
                MOST_CREATED,
            )
        self._full = len(created) > room
        if created[:room]:
            self._put(*created[:room])

    # -- changing

    def update(self, *configs: SubscriptionGroupConfig) -> None:
        """Create or replace groups; their `attributes` are changes. Raises MQError, changing nothing. Groups
        of light queues keep the defaults, as in RocketMQ."""
        merged: list[SubscriptionGroupConfig] = []
        for config in configs:
            if self._has_light(config.group_name):
                continue
            found = self._groups.get(config.group_name)
            current = None if found is None else found.attributes or {}
            values = {name: getattr(config, name) for name in config.__struct_fields__}
            values["attributes"] = apply_change(GROUP_ATTRIBUTES, current, config.attributes or {})
            merged.append(SubscriptionGroupConfig(**values))
        if merged:
            self._put(*merged)

    def delete(self, group: str) -> bool:
        """False if there was no such group."""
        self._forbidden.pop(group, None)
        if self._groups.pop(group, None) is None:
            return False
        log.info("consumer group deleted group=%s", group)
        self._touch()
        return True

    def forbidden(self, group: str, topic: str, bit: int = FORBID_READ) -> bool:
        """Whether an administrator has forbidden the group to consume this topic."""
        return self._forbidden.get(group, {}).get(topic, 0) >> bit & 1 == 1

    def set_forbidden(self, group: str, topic: str, forbidden: bool, bit: int = FORBID_READ) -> None:
        topics = dict(self._forbidden.get(group, {}))
        value = topics.get(topic, 0)
        value = value | 1 << bit if forbidden else value & ~(1 << bit)
        if value:
            topics[topic] = value
        else:
            topics.pop(topic, None)
        if topics:
            self._forbidden[group] = topics
        else:
            self._forbidden.pop(group, None)
        self._touch()

    def _put(self, *configs: SubscriptionGroupConfig) -> None:
        if len(configs) > LOGGED:
            log.info("consumer groups created or changed: %s", some([each.group_name for each in configs]))
        else:
            for config in configs:
                known = config.group_name in self._groups
                log.info("consumer group %s %s", "changed" if known else "created", config)
        self._groups.update((config.group_name, config) for config in configs)
        self._touch()

    def _touch(self) -> None:
        self.version = next_version(self.version, self._clock.now_ms(), self.state_version)
        self.on_change()

    def begin_term(self, epoch: int) -> None:
        """This broker is master of `epoch`; every later data version contains it."""
        self.state_version = epoch
        self._touch()

    # -- file and replication

    def encode(self) -> bytes:
        """Contents of subscriptionGroup.json, as a RocketMQ broker reads them."""
        return encode(
            SubscriptionGroupWrapper(
                subscription_group_table=self._groups,
                forbidden_table=self._forbidden,
                data_version=self.version,
            )
        )

    def restore(self, data: bytes) -> None:
        """Add the groups of a subscriptionGroup.json. Raises ValueError and then changes nothing."""
        read = decode(data, SubscriptionGroupWrapper)
        self._groups.update(read.subscription_group_table)
        self._forbidden = {group: dict(topics) for group, topics in (read.forbidden_table or {}).items()}
        self.version = read.data_version

    def replace(
        self,
        table: Mapping[str, SubscriptionGroupConfig],
        forbidden: Mapping[str, Mapping[str, int]] | None,
        version: DataVersion,
    ) -> bool:
        """On a slave: load the master's table. False if it is unchanged."""
        if version == self.version:
            return False
        self._groups = dict(table)
        self._forbidden = {group: dict(topics) for group, topics in (forbidden or {}).items()}
        self.version = version
        self.on_change()
        return True
