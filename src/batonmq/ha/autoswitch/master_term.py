"""One term of this replica as master: the slaves that follow it, the SyncStateSet and the confirm offset.

`sync_state.py` decides; this applies it to the store, and says when the set should change.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol

from batonmq.ha.autoswitch.master_link import MasterLink
from batonmq.ha.port import ReplicaStatus

if TYPE_CHECKING:
    from batonmq.ha.autoswitch.local import LocalReplica
    from batonmq.ha.autoswitch.sync_state import SyncStateSet, SyncStateTracker
    from batonmq.ha.listener import Listener

log = logging.getLogger(__name__)


class TermObserver(Protocol):
    """Callbacks, as `HAService` has them."""

    on_progress: Callable[[], None]
    on_sync_state_change: Callable[[], None]


class MasterTerm:
    """From `HAService.become_master` to the next change of the role; the `MasterSide` of its links."""

    def __init__(
        self,
        local: LocalReplica,
        tracker: SyncStateTracker,
        listener: Listener[MasterLink],
        observer: TermObserver,
    ) -> None:
        self.tracker = tracker
        """The SyncStateSet of this term."""
        self._local = local
        self._listener = listener
        self._observer = observer
        self._by_id: dict[int, MasterLink] = {}
        """Links in transfer, by the slave's broker id."""
        self._over = False

    def new_link(self) -> MasterLink:
        return MasterLink(self._local, self)

    def end(self) -> None:
        """Drop all slaves."""
        self._over = True
        self._listener.close_links()
        self._by_id.clear()

    # -- the confirm offset

    def wake(self) -> None:
        """See `Replication.wake`."""
        self._confirm()
        for link in self._by_id.values():
            link.pump()

    def moved(self) -> None:
        """The set or an ack changed: the confirm offset may have moved."""
        self._confirm()
        self._observer.on_progress()

    def _confirm(self) -> None:
        local = self._local
        held_by_all = self.tracker.confirm(local.confirmable_end)
        local.store.confirm_offset = local.store.confirmable(held_by_all)

    # -- the SyncStateSet

    def agree(self, current: SyncStateSet) -> None:
        """The controller's set."""
        self.tracker.agree(current)
        self.moved()

    def answered(self, outcome: SyncStateSet | None, *, refused: bool) -> None:
        """See `SyncStateTracker.answered`."""
        self.tracker.answered(outcome, refused=refused)
        self.moved()

    def registered(self, broker_ids: Iterable[int]) -> None:
        """See `HAService.registered`."""
        self.tracker.registered = frozenset(broker_ids)
        self.moved()
        self._check_sync_state()

    def unregistered(self) -> list[int]:
        """See `HAService.unregistered`."""
        return [each for each in self._by_id if not self.tracker.knows(each)]

    def _check_sync_state(self) -> None:
        tracker = self.tracker
        if tracker.in_flight:
            return
        now_ms = self._local.running.now_ms()
        if tracker.proposal is not None or tracker.wanted(now_ms) != tracker.agreed.members:
            self._observer.on_sync_state_change()

    # -- links: `MasterSide`

    def admit(self, link: MasterLink) -> bool:
        """A connection was made. False: it was closed again."""
        if self._over:
            link.close("not master")
            return False
        return self._listener.admit(link, self._is_replica)

    def _is_replica(self, link: MasterLink) -> bool:
        return link.replica is not None and self.tracker.knows(link.replica.broker_id)

    def entered(self, link: MasterLink) -> None:
        """A slave's link is in transfer."""
        session = link.session
        assert session.slave_id is not None
        former = self._by_id.get(session.slave_id)
        if former is not None:
            former.close("the slave has connected again")
        self._by_id[session.slave_id] = link
        link.replica = self.tracker.connected(session.slave_id, async_learner=session.async_learner)
        known = self.tracker.knows(session.slave_id)
        log.log(
            # A replica that has just got its id is logged when the SyncStateSet grows; any number of others
            # may come.
            logging.INFO if known else logging.DEBUG,
            "slave %d at %s follows from %d%s",
            session.slave_id,
            link.peer,
            session.next_offset,
            " as learner" if session.async_learner else "",
        )
        if not known:
            self._observer.on_sync_state_change()

    def acked(self, link: MasterLink) -> None:
        replica, session = link.replica, link.session
        assert replica is not None
        replica.ack_offset = session.ack_offset
        if session.last_caught_up_ms is not None:
            replica.caught_up_ms = max(replica.caught_up_ms, session.last_caught_up_ms)
        self.moved()
        if replica.broker_id not in self.tracker.agreed.members:
            self._check_sync_state()

    def left(self, link: MasterLink) -> None:
        self._listener.left(link)
        slave_id = link.session.slave_id
        if slave_id is not None and self._by_id.get(slave_id) is link:
            del self._by_id[slave_id]
            self.tracker.disconnected(slave_id)
            self._check_sync_state()

    def counts(self, broker_id: int) -> bool:
        return broker_id in self.tracker.counted

    def knows(self, broker_id: int) -> bool:
        return self.tracker.knows(broker_id)

    def warn(self, peer: str, text: str) -> None:
        self._listener.warn(peer, text)

    # -- time, and what others ask

    def tick(self, now_ms: int) -> None:
        """Look at heartbeats, silence and lag."""
        bounds = self._local.bounds()
        for link in list(self._listener.links):
            link.tick(bounds, now_ms)
        for link in self._by_id.values():
            caught_up = link.session.caught_up_ms(bounds, now_ms)
            replica = link.replica
            if replica is None:
                continue
            if caught_up is not None:
                replica.caught_up_ms = max(replica.caught_up_ms, caught_up)
            replica.silent = link.session.unusually_silent(now_ms, self.tracker.max_lag_ms)
        self._check_sync_state()

    def replicas(self) -> list[ReplicaStatus]:
        """The slaves that are connected."""
        members = self.tracker.agreed.members
        return [
            ReplicaStatus(
                broker_id,
                link.peer,
                link.session.ack_offset,
                link.session.next_offset,
                broker_id in members,
                link.session.async_learner,
                link.bytes_per_second,
            )
            for broker_id, link in self._by_id.items()
        ]
