"""The next offset to consume, for each consumer group and queue.

Owns the table behind ``config/consumerOffset.json`` (``lmqConsumerOffset.json`` with light queues, as in
RocketMQ) and its data version, but does not write the file. Keys are ``topic@group`` as in the file. Source:
RocketMQ's consumer offsets, including resets on the server (`useServerSideResetOffset`): a reset offset is
returned until the next pull has used it. Unlike RocketMQ's, resets outlive a restart and a switch of the
master (``config/resetOffset.json``, copied by slaves).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, TypeAlias

from batonmq.broker.versions import ACTING_STEP, age, next_version
from batonmq.common.clock import Clock
from batonmq.protocol.bodies.common import DataVersion
from batonmq.protocol.bodies.statistics import ConsumerOffsetSerializeWrapper, ResetOffsets
from batonmq.protocol.json import decode, encode
from batonmq.protocol.message.light import LIGHT_QUEUE_ID
from batonmq.protocol.names import REVIVE_GROUP, is_light

log = logging.getLogger(__name__)

OFFSETS = "consumerOffset"
"""Name of the table."""
FILES: Final = {False: "consumerOffset.json", True: "lmqConsumerOffset.json"}
"""By whether there are light queues."""
NOT_FOUND = -1
_REVIVED: Final = f"@{REVIVE_GROUP}"
Offset: TypeAlias = tuple[str, str, int, int]
"""(topic, group, queue, offset)."""


def _split(key: str) -> tuple[str, str] | None:
    """(topic, group) of a key; None if the key is invalid."""
    topic, at, group = key.partition("@")
    return (topic, group) if at and topic and group and "@" not in group else None


def _no_listener() -> None:
    """Default of `on_first_commit`."""


class OffsetTable:
    """Next offset to consume, by topic, group and queue."""

    def __init__(self, clock: Clock, version_step: int = 500, *, light_queues: bool = False) -> None:
        """`light_queues`: encode groups of light queues as RocketMQ does with `enableLmq`."""
        self._clock = clock
        self._light_queues = light_queues
        self._version_step = max(1, version_step)
        """Commits between two data versions (`consumerOffsetUpdateVersionStep`)."""
        self._commits = 0
        self._offsets: dict[str, dict[int, int]] = {}
        self._pulled: dict[str, dict[int, int]] = {}
        self._resets: dict[str, dict[int, int]] = {}
        self._numbers: dict[str, dict[int, int]] = {}
        """The number of each reset; later ones have higher numbers."""
        self._last_number = 0
        self.state_version = 0
        """Master epoch in controller mode; part of every data version."""
        self.version = DataVersion(timestamp=clock.now_ms(), counter=0, state_version=0)
        self.on_first_commit: Callable[[], None] = _no_listener
        """Called at a group's first commit for a topic, so that slaves copy it at once."""
        self.on_resets: Callable[[], None] = _no_listener
        """Called when a reset was stored, or used by a pull."""
        self._changed = False
        self._acts = False
        """Whether the next commit is the first one since this slave acts as master."""
        self._acting: dict[str, set[int]] | None = None
        """What was committed here while this broker acts as master, and since, until its master has it."""

    # -- committing

    def commit(self, group: str, topic: str, queue_id: int, offset: int, client: str = "") -> None:
        """Store an offset. `client` (``ip:port``) appears in the log line if the offset goes back."""
        key = f"{topic}@{group}"
        queues = self._offsets.get(key)
        if queues is None:
            queues = self._offsets[key] = {}
            self.on_first_commit()
        before = queues.get(queue_id)
        queues[queue_id] = offset
        self._changed = True
        if self._acting is not None:
            self._acting.setdefault(key, set()).add(queue_id)
        if before is not None and offset < before:
            log.warning(
                "consumer offset went back group=%s topic=%s queue=%d from=%d to=%d client=%s",
                group,
                topic,
                queue_id,
                before,
                offset,
                client,
            )
        self._moved()

    def _moved(self) -> None:
        self._commits += 1
        if self._acts or self._commits % self._version_step == 0:
            self.version = next_version(
                self.version, self._clock.now_ms(), self.state_version, acting=self._acts
            )
            self._acts = False

    def commit_pulled(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Store the last delivered offset; in memory only."""
        self._pulled.setdefault(f"{topic}@{group}", {})[queue_id] = offset

    # -- reading

    def query(self, group: str, topic: str, queue_id: int) -> int:
        """Next offset to consume; a pending reset takes precedence. NOT_FOUND (-1) without a commit."""
        key = f"{topic}@{group}"
        reset = self._resets.get(key)
        if reset is not None and queue_id in reset:
            return reset[queue_id]
        return self._offsets.get(key, {}).get(queue_id, NOT_FOUND)

    def query_pulled(self, group: str, topic: str, queue_id: int) -> int:
        """Last delivered offset, else the committed one; NOT_FOUND (-1) if there is neither."""
        pulled = self._pulled.get(f"{topic}@{group}", {}).get(queue_id)
        return self.query(group, topic, queue_id) if pulled is None else pulled

    def of(self, group: str, topic: str) -> Mapping[int, int]:
        """Committed offsets by queue; empty if none."""
        return self._offsets.get(f"{topic}@{group}", {})

    def topics_of(self, group: str) -> set[str]:
        return {topic for topic, owner in self._pairs() if owner == group}

    def groups_of(self, topic: str) -> set[str]:
        return {group for name, group in self._pairs() if name == topic}

    def _pairs(self) -> Iterator[tuple[str, str]]:
        return (pair for pair in map(_split, self._offsets) if pair is not None)

    # -- resets

    def reset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Make `offset` the next one to consume, regardless of commits, until a pull has used it.

        Raises ValueError for negative numbers."""
        if queue_id < 0 or offset < 0:
            raise ValueError(f"cannot reset queue {queue_id} to offset {offset}")
        key = f"{topic}@{group}"
        self._resets.setdefault(key, {})[queue_id] = offset
        # The time, so that another master after this one gives higher numbers.
        self._last_number = max(self._last_number + 1, self._clock.now_ms())
        self._numbers.setdefault(key, {})[queue_id] = self._last_number
        self._offsets.setdefault(key, {})[queue_id] = offset
        self._changed = True
        self._moved()
        self.on_resets()

    def has_reset(self, group: str, topic: str, queue_id: int) -> bool:
        return queue_id in self._resets.get(f"{topic}@{group}", {})

    def take_reset(self, group: str, topic: str, queue_id: int) -> int | None:
        """Remove and return the reset offset, for the answer to a pull; None if there is none."""
        key = f"{topic}@{group}"
        queues = self._resets.get(key)
        if queues is None:
            return None
        offset = queues.pop(queue_id, None)
        if not queues:
            del self._resets[key]
            self._numbers.pop(key, None)
        if offset is not None:
            self.on_resets()
        return offset

    def pending_reset(self, group: str, topic: str, queue_id: int) -> tuple[int, int] | None:
        """(offset, number) of a reset that was not used, for `drop_reset`; None if there is none."""
        key = f"{topic}@{group}"
        queues = self._resets.get(key)
        if queues is None or queue_id not in queues:
            return None
        return queues[queue_id], self._numbers.get(key, {}).get(queue_id, 0)

    def drop_reset(self, group: str, topic: str, queue_id: int, number: int) -> None:
        """The reset with this number was used; a later one stays."""
        pending = self.pending_reset(group, topic, queue_id)
        if pending is not None and pending[1] == number:
            self.take_reset(group, topic, queue_id)

    # -- whole groups and topics

    def remove_topic(self, topic: str) -> None:
        self._remove(lambda name, _group: name == topic)

    def remove_group(self, group: str) -> None:
        self._remove(lambda _topic, owner: owner == group)

    def _remove(self, matches: Callable[[str, str], bool]) -> None:
        for table in (self._offsets, self._pulled, self._resets, self._numbers):
            for key in list(table):
                pair = _split(key)
                if pair is not None and matches(*pair):
                    del table[key]
                    self._changed = True
                    if table is self._resets:
                        self.on_resets()

    def clone(self, source: str, target: str, topic: str) -> None:
        """Copy a group's offsets in a topic to another group."""
        queues = self._offsets.get(f"{topic}@{source}")
        if queues is not None:
            self._offsets[f"{topic}@{target}"] = dict(queues)
            self._changed = True

    def begin_term(self, epoch: int) -> None:
        """This broker is master of `epoch`; every later data version contains it."""
        self.state_version = epoch
        self.version = next_version(self.version, self._clock.now_ms(), epoch)

    def act(self, acting: bool) -> None:
        """This slave begins or ends to act as master. What is committed meanwhile is newer than the master's
        table, whatever the master's version is."""
        self._acts = acting
        if acting and self._acting is None:  # else not all of the last time is handed over yet
            self._acting = {}

    def end_acting(self) -> None:
        """This broker is master, or has handed over what was committed to it while it acted."""
        self._acting = None

    def not_before(self, table: Mapping[str, Mapping[int, int]], version: DataVersion) -> list[Offset]:
        """What was committed to this slave while it acted, unless the master's `table` has more.

        The master may have the same offset from an earlier attempt to hand it over, and not on disk yet. If
        the slave was restarted since, its version says that it acted: both were away, and the master
        served without asking it.
        """
        committed: Mapping[str, Iterable[int]] = self._acting or {}
        if self.version.counter - version.counter >= ACTING_STEP // 2:
            committed = self._offsets
        found: list[Offset] = []
        for key, queue_ids in committed.items():
            pair, queues = _split(key), self._offsets.get(key, {})
            if pair is None:
                continue
            for queue_id in sorted(queue_ids):
                offset = queues.get(queue_id, NOT_FOUND)
                if offset >= table.get(key, {}).get(queue_id, 0):
                    found.append((*pair, queue_id, offset))
        return found

    def take_back(self, table: Mapping[str, Mapping[int, int]], version: DataVersion) -> bool:
        """On a master that returns: take the offsets of a slave if they are newer than these, and the greater
        ones if both are of one version, which many commits share. True: something has changed."""
        newer = age(version) > age(self.version)
        if not newer and version != self.version:
            return False
        changed = newer
        if newer:
            self._drop_revived(table)
        for key, queues in table.items():
            own = self._offsets.setdefault(key, {})
            for queue_id, offset in queues.items():
                before = own.get(queue_id, NOT_FOUND)
                if offset > before or (newer and offset != before):
                    own[queue_id] = offset
                    changed = True
        self.version = version
        self._changed |= changed
        return changed

    # -- file and replication

    def take_changed(self) -> bool:
        """Whether an offset changed since the last call."""
        changed, self._changed = self._changed, False
        return changed

    def encode(self) -> bytes:
        """Contents of the table's file, as a RocketMQ broker reads them."""
        if not self._light_queues:
            return encode(
                ConsumerOffsetSerializeWrapper(offset_table=self._offsets, data_version=self.version)
            )
        light = {
            key: queues[LIGHT_QUEUE_ID]
            for key, queues in self._offsets.items()
            if is_light(key.partition("@")[2]) and queues.keys() == {LIGHT_QUEUE_ID}
        }
        others = {key: queues for key, queues in self._offsets.items() if key not in light}
        return encode(
            ConsumerOffsetSerializeWrapper(
                offset_table=others, data_version=self.version, lmq_offset_table=light
            )
        )

    def restore(self, data: bytes) -> None:
        """Load the contents of the table's file. Raises ValueError and then changes nothing."""
        read = decode(data, ConsumerOffsetSerializeWrapper)
        self._offsets = {key: dict(queues) for key, queues in read.whole_table().items()}
        self.version = read.data_version or DataVersion()

    def replace(self, table: Mapping[str, Mapping[int, int]], version: DataVersion) -> None:
        """On a slave: load the master's table; offsets that the master does not have stay."""
        self._drop_revived(table)
        for key, queues in table.items():
            self._offsets[key] = dict(queues)
        self.version = version
        self._changed = True

    def _drop_revived(self, table: Mapping[str, Mapping[int, int]]) -> None:
        """The offsets of `table` count from now on; those of the revive queues say up to where the others
        follow the log, so none may be left from before. A new master would not read what came since."""
        for key in [key for key in self._offsets if key.endswith(_REVIVED)]:
            own = self._offsets.pop(key)
            if key in table:
                self._offsets[key] = {queue_id: own[queue_id] for queue_id in own.keys() & table[key].keys()}

    def encode_resets(self) -> bytes:
        """Contents of resetOffset.json."""
        numbers = {
            key: {queue_id: number for queue_id, number in queues.items() if queue_id in self._resets[key]}
            for key, queues in self._numbers.items()
            if key in self._resets
        }
        return encode(ResetOffsets(reset_table=self._resets, numbers=numbers))

    def restore_resets(self, data: bytes) -> None:
        """Load the contents of a resetOffset.json. Raises ValueError."""
        read = decode(data, ResetOffsets)
        self._resets = {key: dict(queues) for key, queues in read.reset_table.items() if queues}
        self._numbers = {key: dict(queues) for key, queues in read.numbers.items() if key in self._resets}

    def replace_resets(self, data: bytes) -> None:
        """On a slave: load the master's resets. Raises ValueError."""
        before = self._resets, self._numbers
        self.restore_resets(data)
        if (self._resets, self._numbers) != before:
            self.on_resets()
