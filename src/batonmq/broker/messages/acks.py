"""Stored sends that wait for their acknowledgement, with their order and deadlines. Pure.

The log assigns offsets in the order in which sends are added, and every send waits the same time. So both
offsets and deadlines only grow, and a queue is enough where otherwise a heap would be needed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container
from typing import Final, Generic, TypeVar

T = TypeVar("T")

ALL_IN_SYNC: Final = -1
"""In place of a number of copies: the whole SyncStateSet."""


class PendingAcks(Generic[T]):
    """FIFO of sends that wait for an offset. `T` is the type that the caller uses to answer one send."""

    __slots__ = ("_postponed", "_waiting", "acked_offset")

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, int, T]] = deque()
        self._postponed: deque[tuple[int, int, T]] = deque()
        """Sends with a second deadline; they are older than all in `_waiting`."""
        self.acked_offset = -1
        """Sends that end at or below this physical offset are acknowledged."""

    def __len__(self) -> int:
        return len(self._waiting) + len(self._postponed)

    def add(self, end_offset: int, deadline_ms: int, send: T) -> None:
        """Add a send that ends at physical offset `end_offset` (exclusive) and expires at `deadline_ms`."""
        assert not self._waiting or end_offset >= self._waiting[-1][0], "sends are added in log order"
        self._waiting.append((end_offset, deadline_ms, send))

    def complete(self, acked_offset: int) -> list[T]:
        """The log is acknowledged up to `acked_offset`. Returns the acknowledged sends in log order."""
        self.acked_offset = acked_offset
        waiting = self._waiting
        done: list[T] = []
        if self._postponed:
            while self._postponed and self._postponed[0][0] <= acked_offset:
                done.append(self._postponed.popleft()[2])
        while waiting and waiting[0][0] <= acked_offset:
            done.append(waiting.popleft()[2])
        return done

    def expire(self, now_ms: int) -> tuple[list[T], list[T]]:
        """Remove and return the sends that expired by `now_ms`, in log order: those past their second
        deadline, and those past their first one, which `postpone` may add again."""
        return _expired(self._postponed, now_ms), _expired(self._waiting, now_ms)

    def postpone(self, end_offset: int, deadline_ms: int, send: T) -> None:
        """Add a send that `expire` just returned, with a second deadline."""
        assert not self._postponed or end_offset >= self._postponed[-1][0], "sends are postponed in log order"
        self._postponed.append((end_offset, deadline_ms, send))

    def next_deadline_ms(self) -> int | None:
        """The next deadline; None while no send waits."""
        first = self._waiting[0][1] if self._waiting else None
        if not self._postponed:
            return first
        second = self._postponed[0][1]
        return second if first is None else min(first, second)

    def abandon(self) -> list[T]:
        """Remove and return all sends: this broker is no longer master, and offsets may be reused."""
        abandoned = [send for _, _, send in (*self._postponed, *self._waiting)]
        self._postponed.clear()
        self._waiting.clear()
        self.acked_offset = -1
        return abandoned


class PendingByCopies(Generic[T]):
    """`PendingAcks` for each number of copies that sends wait for, oldest first.

    Almost always there is one. Another begins when `enableAutoInSyncReplicas` or a change of the
    configuration changes the number.
    """

    __slots__ = ("groups",)

    def __init__(self) -> None:
        self.groups: list[tuple[int, PendingAcks[T]]] = []
        """Number of copies (or `ALL_IN_SYNC`) -> the sends that wait for them."""

    def __len__(self) -> int:
        count = 0  # each send asks for it
        for _, sends in self.groups:
            count += len(sends)
        return count

    def waiting_for(self, copies: int) -> PendingAcks[T]:
        """Where to add sends that wait for `copies`; drops the groups that are done."""
        if self.groups and self.groups[-1][0] == copies:
            return self.groups[-1][1]
        sends: PendingAcks[T] = PendingAcks()
        self.groups = [group for group in self.groups if len(group[1])]
        self.groups.append((copies, sends))
        return sends

    def next_deadline_ms(self) -> int | None:
        """The next deadline; None while no send waits."""
        deadlines = [sends.next_deadline_ms() for _, sends in self.groups]
        return min([deadline for deadline in deadlines if deadline is not None], default=None)

    def abandon(self) -> list[T]:
        """See `PendingAcks.abandon`."""
        abandoned = [send for _, sends in self.groups for send in sends.abandon()]
        self.groups.clear()
        return abandoned


def _expired(waiting: deque[tuple[int, int, T]], now_ms: int) -> list[T]:
    expired: list[T] = []
    while waiting and waiting[0][1] <= now_ms:
        expired.append(waiting.popleft()[2])
    return expired


def acks_needed(
    *,
    controller_mode: bool,
    slave_acting_master: bool,
    all_in_sync_state_set: bool,
    in_sync_replicas: int,
    min_in_sync_replicas: int,
    auto_in_sync_replicas: bool,
    replicas_in_sync: int,
) -> int | None:
    """Copies that a SYNC_MASTER needs of a message (its own included), or `ALL_IN_SYNC`. None: refuse it.

    `replicas_in_sync` counts the master; with `slave_acting_master` it is not above the number of replicas
    that the name servers count as alive. Source: the table of keys and modes in
    `docs/en/controller/deploy.md` of Apache RocketMQ, and its `CommitLog.asyncPutMessage`.
    """
    if controller_mode:
        if replicas_in_sync < min_in_sync_replicas:
            return None
        return ALL_IN_SYNC if all_in_sync_state_set else in_sync_replicas
    if slave_acting_master:
        needed = in_sync_replicas
        if auto_in_sync_replicas:
            needed = max(min(needed, replicas_in_sync), min_in_sync_replicas)
        return needed if needed <= replicas_in_sync else None
    return in_sync_replicas


def keys_without_effect(
    *,
    controller_mode: bool,
    slave_acting_master: bool,
    set_keys: Container[str],
    all_ack: bool,
    asynchronous: bool = False,
) -> list[str]:
    """Log lines for acknowledgement keys that are set (`set_keys`) but have no effect in this mode.
    `asynchronous`: brokerRole=ASYNC_MASTER."""
    reasons: dict[str, str] = {}
    if controller_mode:
        reasons["enableAutoInSyncReplicas"] = "in controller mode the SyncStateSet shrinks instead"
        reasons["totalReplicas"] = "the controllers know the replicas"
        reasons["skipPreOnline"] = "with controllers no broker waits before it registers"
        reasons["haMaxGapNotInSync"] = "in controller mode haMaxTimeSlaveNotCatchup decides who is in sync"
        reasons["haMasterAddress"] = "the controllers say who is master, and the master where its port is"
        reasons["haSendWholeLog"] = "in controller mode a slave says with syncFromLastFile what it wants"
        if all_ack:
            reasons["inSyncReplicas"] = "allAckInSyncStateSet=true waits for the whole SyncStateSet"
    else:
        reasons["allAckInSyncStateSet"] = "only controller mode has a SyncStateSet"
        for key in (
            "syncFromLastFile",
            "asyncLearner",
            "haMaxTimeSlaveNotCatchUp",
            "haMaxTimeSlaveNotCatchup",
            "enableHandBack",
            "handBackDelay",
        ):
            reasons[key] = "only controller mode uses it"
        if not slave_acting_master:
            reasons["minInSyncReplicas"] = "only controller mode and enableSlaveActingMaster use it"
            reasons["enableAutoInSyncReplicas"] = "only enableSlaveActingMaster uses it"
            reasons["skipPreOnline"] = "only enableSlaveActingMaster uses it"
        if asynchronous:
            for key in ("inSyncReplicas", "minInSyncReplicas", "enableAutoInSyncReplicas"):
                reasons[key] = "brokerRole=ASYNC_MASTER waits for no slave"
    return [f"{key} has no effect here: {why}" for key, why in reasons.items() if key in set_keys]
