"""Where the next pop of a group begins in each queue, and where a group without an offset begins.

The offset of the group (consumerOffset.json) follows once the check point of a pop is safe (`journal.py`);
until then the position is here.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

from batonmq.protocol.names import RETRY_PREFIX

if TYPE_CHECKING:
    from batonmq.broker.context import Broker
    from batonmq.broker.pop.journal import Journal

QueueOfGroup: TypeAlias = tuple[str, str, int]
"""Topic, group and queue id."""
INIT_MIN: Final = 0


class Position:
    """Where the next pop of one queue begins, while the table is behind."""

    __slots__ = ("next", "uncommitted")

    def __init__(self, next_offset: int) -> None:
        self.next = next_offset
        self.uncommitted = 0
        """Number of moves that the table does not have yet."""


class Positions:
    """Positions of all groups."""

    def __init__(self, broker: Broker, journal: Journal) -> None:
        self._broker = broker
        self._journal = journal
        self._ahead: dict[QueueOfGroup, Position] = {}
        self._used: dict[QueueOfGroup, int] = {}
        """Numbers of resets that pops have used, while the record that says so is not safe."""
        self.held = False
        """Whether the table moves by `follow` only: on an acting master, whose check points are in memory."""

    def __len__(self) -> int:
        """Number of queues whose table is behind."""
        return len(self._ahead)

    def clear(self) -> None:
        self._ahead.clear()
        self._used.clear()

    def forget_topics(self) -> None:
        """A topic was deleted: positions in it are void."""
        topics = self._broker.tables.topics
        for key in [key for key in self._ahead if key[0] not in topics]:
            del self._ahead[key]
        for key in [key for key in self._used if key[0] not in topics]:
            del self._used[key]

    # -- reading

    def get(self, key: QueueOfGroup) -> int:
        """The next offset; -1 for a group that has not begun."""
        position = self._ahead.get(key)
        if position is not None:
            return position.next
        topic, group, queue_id = key
        return self._broker.tables.offsets.query(group, topic, queue_id)

    def begin(self, key: QueueOfGroup, init_mode: int) -> int:
        """The first offset of a group that has none; it is committed.

        `init_mode` 0 (MIN): the first message; 1 (MAX): the last one, or the first if it is still in memory
        (`initPopOffsetByCheckMsgInMem`). Retry topics begin at their first message.
        """
        topic, group, queue_id = key
        offset = self.beginning(topic, queue_id, init_mode)
        self._broker.tables.offsets.commit(group, topic, queue_id, offset)
        return offset

    def beginning(self, topic: str, queue_id: int, init_mode: int) -> int:
        store = self._broker.store
        bounds = store.queue_bounds(topic, queue_id)
        if init_mode == INIT_MIN or topic.startswith(RETRY_PREFIX):
            return bounds.min_offset
        if self._broker.settings.broker.init_pop_offset_by_check_msg_in_mem and bounds.min_offset <= 0:
            first = store.get(topic, queue_id, 0, 1)
            if first.count and not first.suggest_slave:
                return 0
        return max(bounds.max_offset - 1, 0)

    def take_reset(self, key: QueueOfGroup) -> tuple[int, int] | None:
        """The offset that an administrator has set, and the number of the reset, once; pops begin there from
        now on. Follow with `reset_done` or `reset_refused`."""
        if not self._broker.settings.broker.use_server_side_reset_offset:
            return None
        topic, group, queue_id = key
        pending = self._broker.tables.offsets.pending_reset(group, topic, queue_id)
        if pending is None or self._used.get(key) == pending[1]:
            return None
        self._used[key] = pending[1]
        self._ahead.pop(key, None)
        # A move that was not committed yet may have overwritten it.
        self._broker.tables.offsets.commit(group, topic, queue_id, pending[0])
        return pending

    def reset_done(self, key: QueueOfGroup, number: int) -> None:
        """The record that says that the reset was used is safe. Before, another master must find the reset in
        the table."""
        topic, group, queue_id = key
        self._broker.tables.offsets.drop_reset(group, topic, queue_id, number)
        self._forget_used(key, number)

    def reset_refused(self, key: QueueOfGroup, number: int) -> None:
        """The record was refused: the next pop uses the reset again."""
        self._forget_used(key, number)

    def _forget_used(self, key: QueueOfGroup, number: int) -> None:
        if self._used.get(key) == number:
            del self._used[key]

    # -- moving

    def move(self, key: QueueOfGroup, next_offset: int) -> Position:
        """Pops begin at `next_offset` now; follow with `commit` or `take_back`."""
        position = self._ahead.get(key)
        if position is None:
            position = self._ahead[key] = Position(next_offset)
        position.next = next_offset
        position.uncommitted += 1
        return position

    def commit(self, key: QueueOfGroup, position: Position, next_offset: int) -> None:
        """What the move follows from is safe."""
        if self.held:
            return
        if self._ahead.get(key) is position:
            topic, group, queue_id = key
            offsets = self._broker.tables.offsets
            if offsets.query(group, topic, queue_id) != next_offset:
                offsets.commit(group, topic, queue_id, next_offset)
        self._settled(key, position)

    def take_back(self, key: QueueOfGroup, position: Position, start: int) -> None:
        """The record of the move was refused: its messages are to be handed out again."""
        position.next = min(position.next, start)
        self._settled(key, position)

    def skip(self, key: QueueOfGroup, next_offset: int) -> None:
        """No message before `next_offset` concerns the group."""
        position = self.move(key, next_offset)
        self._journal.after_all(partial(self.commit, key, position, next_offset))

    def follow(self, least: Mapping[QueueOfGroup, int]) -> None:
        """While `held`: let the table follow up to the messages that are not settled; `least`: the first of
        each queue."""
        offsets = self._broker.tables.offsets
        for key, position in self._ahead.items():
            topic, group, queue_id = key
            offset = min(position.next, least.get(key, position.next))
            if offset > offsets.query(group, topic, queue_id):
                offsets.commit(group, topic, queue_id, offset)

    def _settled(self, key: QueueOfGroup, position: Position) -> None:
        position.uncommitted -= 1
        if not position.uncommitted and self._ahead.get(key) is position:
            del self._ahead[key]
