"""Sends a master's proposals for the SyncStateSet (`ha/autoswitch/sync_state.py`) to the controllers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from batonmq.broker.replica.controller_answers import role_of, sync_state_set_of, typed
from batonmq.broker.replica.controllers import RETRY_S, Controllers
from batonmq.broker.replica.core import ReplicasCore, Role
from batonmq.ha.autoswitch.service import HAService
from batonmq.ha.autoswitch.sync_state import SyncStateSet, SyncStateTracker
from batonmq.ha.role import HARole
from batonmq.net.errors import NetError
from batonmq.protocol.bodies.controller import SyncStateSetBody
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers import controller as wire
from batonmq.protocol.json import encode

if TYPE_CHECKING:
    from batonmq.broker.context import Broker

log = logging.getLogger(__name__)

ID_QUERY_S: Final = (0.1, 5.0)
"""Least time between two queries for the ids of the broker set, and if the last one was in vain."""
DOWN_QUERY_S: Final = (0.1, 1.0)
"""Time until the first query whether replicas are still down for the controllers, and at most between two. A
slave that comes back follows its master a moment before its heartbeats reach the controllers."""

DEFINITE: Final = frozenset(
    {
        ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH,
        ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH,
        ResponseCode.CONTROLLER_INVALID_MASTER,
        ResponseCode.CONTROLLER_INVALID_REPLICAS,
        ResponseCode.CONTROLLER_BROKER_NOT_ALIVE,
        ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED,
        ResponseCode.CONTROLLER_INVALID_REQUEST,
    }
)
"""Refusals that the controllers decide when they apply a proposal: it had no effect. An earlier attempt that
got no answer may still be on its way; the raised epoch (`fence_refused`) keeps it from taking effect."""


ABOUT_REPLICAS: Final = frozenset(
    {ResponseCode.CONTROLLER_INVALID_REPLICAS, ResponseCode.CONTROLLER_BROKER_NOT_ALIVE}
)
"""Refusals because of a replica in the proposed set. The master must leave it out to change anything."""


class SetProposals:
    """`run` proposes until cancelled. Set `changed` when a replica connects, leaves or catches up."""

    def __init__(
        self,
        broker: Broker,
        ha: HAService,
        core: ReplicasCore,
        controllers: Controllers,
        *,
        on_role: Callable[[Role | None], None],
    ) -> None:
        """`on_role`: called with the role from an answer."""
        self._broker = broker
        self._ha = ha
        self._core = core
        self._controllers = controllers
        self._on_role = on_role
        self.changed = asyncio.Event()
        self._ids_queried_at = -ID_QUERY_S[1]
        self._unknown_ids: frozenset[int] = frozenset()
        self._down_queried_at = -DOWN_QUERY_S[1]
        self._down_wait_s = DOWN_QUERY_S[0]

    async def run(self) -> None:
        """While master, propose the SyncStateSet that is due."""
        wait_s = RETRY_S[0]
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._broker.settings.broker.check_sync_state_set_period / 1000):
                    await self.changed.wait()
            self.changed.clear()
            tracker = self._ha.tracker
            if tracker is None or self._ha.role is not HARole.MASTER:
                continue
            await self._check_unregistered_slaves()
            if tracker.down:
                await self._check_down(tracker)
            # Only now: another term may have begun during these questions. Its proposal would stay in flight.
            tracker = self._ha.tracker
            members = self._ha.propose()
            if tracker is None or members is None:
                continue
            if await self._propose(tracker, members):
                wait_s = RETRY_S[0]
            else:
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, RETRY_S[1])

    async def _check_unregistered_slaves(self) -> None:
        """Ask the controllers whether the unknown ids of connected slaves are registered."""
        unregistered = frozenset(self._ha.unregistered())
        if not unregistered:
            return
        loop = asyncio.get_running_loop()
        wait_s = ID_QUERY_S[1] if unregistered <= self._unknown_ids else ID_QUERY_S[0]
        wait_s -= loop.time() - self._ids_queried_at
        if wait_s > 0:
            loop.call_later(wait_s, self.changed.set)
            return
        self._ids_queried_at = loop.time()
        try:
            broker_set = await self._controllers.broker_set()
        except (NetError, MQError, ValueError) as error:
            log.warning("the ids of this broker set's replicas are unknown: %s", error)
            loop.call_later(RETRY_S[1], self.changed.set)
            return
        ids = frozenset(
            each.broker_id for each in (*broker_set.in_sync_replicas, *broker_set.not_in_sync_replicas)
        )
        for broker_id in sorted(unregistered - ids - self._unknown_ids):
            log.warning(
                "slave %d is not registered with the controllers: it counts neither for acknowledgements nor "
                "for the SyncStateSet",
                broker_id,
            )
        self._unknown_ids = unregistered - ids
        self._ha.registered(ids)

    async def _check_down(self, tracker: SyncStateTracker) -> None:
        """Ask the controllers again which replicas are down for them."""
        loop = asyncio.get_running_loop()
        wait_s = self._down_wait_s - (loop.time() - self._down_queried_at)
        if wait_s > 0:
            loop.call_later(wait_s, self.changed.set)
        else:
            await self._query_replicas(tracker)

    async def _query_replicas(self, tracker: SyncStateTracker) -> None:
        """They refuse a set with a replica that is down for them, or was removed by an operator. It may be
        linked to this master nevertheless."""
        loop = asyncio.get_running_loop()
        self._down_queried_at = loop.time()
        try:
            broker_set = await self._controllers.broker_set()
        except (NetError, MQError, ValueError) as error:
            log.warning("which replicas the controllers know is unknown: %s", error)
            loop.call_later(DOWN_QUERY_S[1], self.changed.set)
            return
        replicas = (*broker_set.in_sync_replicas, *broker_set.not_in_sync_replicas)
        self._ha.registered(each.broker_id for each in replicas)
        down = frozenset(each.broker_id for each in replicas if not each.alive)
        if tracker.local_id in down:
            down = frozenset()  # this master is down, so they refuse any set; or they do not say who lives
        if down != tracker.down:
            log.info("down for the controllers: replicas %s, were %s", sorted(down), sorted(tracker.down))
            tracker.down = down
            self._down_wait_s = DOWN_QUERY_S[0]
        else:
            self._down_wait_s = min(2 * self._down_wait_s, DOWN_QUERY_S[1])
        if down:
            loop.call_later(self._down_wait_s, self.changed.set)

    async def _propose(self, tracker: SyncStateTracker, members: frozenset[int]) -> bool:
        """Send one proposal to the controllers and apply the outcome. False: try again later."""
        core, ha, config = self._core, self._ha, self._broker.settings.broker
        assert core.broker_id is not None
        epoch, before = tracker.agreed.epoch, tracker.agreed.members
        outcome: SyncStateSet | None = None
        refused = done = False
        try:
            response = await self._controllers.call(
                wire.AlterSyncStateSet(
                    config.broker_name,
                    core.broker_id,
                    ha.epoch,
                    self._broker.clock.now_ms(),
                    fence_refused=True,
                ),
                encode(SyncStateSetBody(tuple(sorted(members)), epoch)),
            )
            outcome = sync_state_set_of(response.body)
            done = True
            log.info("SyncStateSet %s, was %s", sorted(outcome.members), sorted(before))
        except NetError as error:
            log.warning("SyncStateSet %s: outcome unknown: %s", sorted(members), error)
        except MQError as error:
            log.warning("SyncStateSet %s was refused: %s", sorted(members), error)
            # The refusal may mean that an earlier attempt of the same proposal took effect: drop the proposal
            # only if the current set is known.
            refused = error.code in DEFINITE and await self._fetch_set(tracker)
            if refused and error.code in ABOUT_REPLICAS:
                await self._query_replicas(tracker)
        finally:
            ha.answered(tracker, outcome, refused=refused)
        return done

    async def _fetch_set(self, tracker: SyncStateTracker) -> bool:
        try:
            response = await self._controllers.call(
                wire.GetReplicaInfo(self._broker.settings.broker.broker_name)
            )
            role = role_of(typed(response, wire.GetReplicaInfoReply), response.body)
            current = sync_state_set_of(response.body)
        except (NetError, MQError) as error:
            log.warning("the current SyncStateSet is unknown: %s", error)
            return False
        self._on_role(role)
        tracker.agree(current)
        return True
