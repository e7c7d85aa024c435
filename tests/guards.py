"""Guards that tests of one part can be run without, beside those of the simulation.

Each is a `Mutation`, as those in `tests/simulation/mutations.py`. What they take out shows at once in a unit
test and hardly in a story: a forged ack, a file that is read once, a switch right after a topic was made.
"""

from __future__ import annotations

from typing import Any

from batonmq.broker.replica.slave_sync import SlaveSync
from batonmq.broker.tables.topics import TopicTable
from batonmq.broker.tables.watch import TableWatch
from batonmq.ha.autoswitch.service import HAService
from batonmq.ha.autoswitch.sync_state import SyncStateSet, SyncStateTracker
from batonmq.ha.role import HARole
from batonmq.store.checkpoint import Checkpoint
from batonmq.store.commitlog import CommitLog
from batonmq.store.store import MessageStore
from tests.simulation.mutation import Mutation, Patch
from tests.simulation.mutations import MUTATIONS


def _shrink_alone() -> list[Patch]:
    original = SyncStateTracker.disconnected

    def disconnected(self: SyncStateTracker, broker_id: int) -> None:
        original(self, broker_id)
        self.agreed = SyncStateSet(self.agreed.members - {broker_id}, self.agreed.epoch)

    return [(SyncStateTracker, "disconnected", disconnected)]


def _unregistered_count() -> list[Patch]:
    return [(SyncStateTracker, "knows", lambda self, broker_id: True)]


def _links_kept() -> list[Patch]:
    original = HAService._leave_role

    async def leave(self: Any) -> None:
        if self.role is HARole.MASTER:
            self.role = HARole.NONE
        else:
            await original(self)

    return [(HAService, "_leave_role", leave)]


def _dispatch_unconfirmed() -> list[Patch]:
    original = CommitLog.confirm_offset
    everything = property(lambda self: self.max_offset, original.fset)
    return [(CommitLog, "confirm_offset", everything)]


def _confirm_forgotten() -> list[Patch]:
    original = Checkpoint.save

    def save(self: Checkpoint) -> None:
        self.confirm_offset = 0
        original(self)

    return [(Checkpoint, "save", save)]


def _offsets_from_queues() -> list[Patch]:
    def learn(self: Any) -> None:
        for queue in self._queues:
            queue.next_offset = queue.max_offset
        self._offsets_known = True

    return [(MessageStore, "_learn_queue_offsets", learn)]


def _tables_not_awaited() -> list[Patch]:
    async def wait_until_copied(self: Any) -> bool:
        return True

    return [(TableWatch, "wait_until_copied", wait_until_copied)]


def _tables_not_copied() -> list[Patch]:
    async def copy(self: Any, master: object) -> None:
        """Nothing."""

    return [(SlaveSync, "copy", copy)]


def _topics_not_recreated() -> list[Patch]:
    return [(TopicTable, "recreate_missing", lambda self, found: None)]


GUARDS: dict[str, Mutation[Any]] = {
    **MUTATIONS,
    "shrink-alone": Mutation("a lost slave is dropped without the controller's word", _shrink_alone),
    "unregistered-count": Mutation("ids that nobody gave out count", _unregistered_count),
    "links-kept": Mutation("a master's new term goes on with the old links", _links_kept),
    "dispatch-all": Mutation("consumers are shown what is not confirmed", _dispatch_unconfirmed),
    "confirm-forgotten": Mutation("the confirm offset is not kept on disk", _confirm_forgotten),
    "offsets-twice": Mutation("queue offsets go on from the confirm offset", _offsets_from_queues),
    "tables-late": Mutation("a new topic is answered before slaves have it", _tables_not_awaited),
    "tables-lost": Mutation("slaves do not copy topics, groups and offsets", _tables_not_copied),
    "topics-lost": Mutation("a new master does not look for topics in its log", _topics_not_recreated),
}
