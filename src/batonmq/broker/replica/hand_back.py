"""Hands the master role back to the preferred replica, without losing a message.

After a failover the role stays where it is (RocketMQ has nothing else). With `enableHandBack` a slave with a
better `brokerElectionPriority` than its master's asks it for the role (HAND_BACK), once it has followed the
master for `handBackDelay`. The master then appends nothing more until that slave
has all of its log, and asks the controllers to elect it. So not even a message that one replica alone had
acknowledged is lost. Messages that wait meanwhile are refused by the former master, and clients send them to
the new one.

If the controllers do not answer, the outcome is unknown. The master then waits for its role for
`UNKNOWN_S`, and appends again if it is still master: from there on messages are as safe as its configuration
makes them at any election.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from batonmq.broker.replica.controllers import Controllers, NoLeader
from batonmq.broker.replica.core import ReplicasCore
from batonmq.common.repeated_warnings import RepeatedWarnings
from batonmq.ha.autoswitch.service import HAService
from batonmq.net.dispatch import Reply, Request
from batonmq.net.errors import ConnectFailed, NetError
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers import controller as controller_wire
from batonmq.protocol.headers.broker.replication import HandBack, HandBackResponse

if TYPE_CHECKING:
    from batonmq.broker.context import Broker

log = logging.getLogger(__name__)

LOOK_S: Final = 1.0
"""Time between a slave's looks at whether to ask for the role."""
CATCH_UP_S: Final = 0.5
"""How long the master waits until the slave has all of its log; sends wait as long."""
UNKNOWN_S: Final = 3.0
"""How long it waits for its next role after an election whose outcome it does not know."""
POLL_S: Final = 0.002
TIMEOUT_MS: Final = 10_000


class HandBacks:
    """Both sides: `run` asks while slave, `asked` serves the request while master."""

    def __init__(
        self,
        broker: Broker,
        ha: HAService,
        core: ReplicasCore,
        controllers: Controllers,
        refresh_role: Callable[[], Awaitable[None]],
    ) -> None:
        """`refresh_role`: ask the controllers for the role. Raises `NetError`, `MQError`."""
        self._broker = broker
        self._ha = ha
        self._core = core
        self._controllers = controllers
        self._refresh_role = refresh_role
        self._warnings = RepeatedWarnings(log)
        self._began_ms: int | None = None
        """Master: when it last tried; a hand-back at most every `handBackDelay`."""
        self._busy = False
        self._electing = False
        """An election may have been requested, and its outcome is not known yet."""
        self._withdrawn = False

    def withdraw(self) -> None:
        """This broker stops and follows the controllers no longer: it would not learn of a new master.

        What waits is refused if there may be one. With one copy it would be acknowledged, and lost."""
        self._withdrawn = True
        if self._electing:
            self._broker.role.stopping = True
            self._broker.appender.resume()

    # -- slave

    async def run(self) -> None:
        """While slave, ask the master for the role when this replica is the preferred one."""
        clock = self._broker.clock
        following_since: tuple[int, int] | None = None
        while True:
            await asyncio.sleep(LOOK_S)
            role, config = self._core.role, self._broker.settings.broker
            own_id = self._core.broker_id
            follows = (
                config.enable_hand_back
                and not self._core.learner
                and role is not None
                and not self._core.is_master
                and self._broker.role.epoch == role.epoch
                and self._ha.following
            )
            if role is None or not follows or own_id is None:
                following_since = None
                continue
            now_ms = clock.monotonic_ms()
            if following_since is None or following_since[0] != role.epoch:
                following_since = role.epoch, now_ms
            if now_ms - following_since[1] < config.hand_back_delay:
                continue
            header = HandBack(config.broker_name, own_id, role.epoch, config.broker_election_priority)
            try:
                answer = await self._broker.client.call(role.master_address, header, timeout_ms=TIMEOUT_MS)
            except (NetError, MQError) as error:
                self._warnings.warn(
                    role.master_address, f"did not hand the master role back: {error}", now_ms
                )
            else:
                if isinstance(answer.header, HandBackResponse) and answer.header.elected:
                    log.info("the master of epoch %d handed the role back", role.epoch)
            following_since = role.epoch, clock.monotonic_ms()

    # -- master

    async def asked(self, request: Request, header: HandBack) -> Reply:
        """A slave asks for the role. `elected` is false if this master is as good.

        Raises `MQError` (SYSTEM_ERROR) if this broker is not the master of that epoch or does not hand back,
        or if the slave has not all of the log in time; or the controllers' refusal."""
        broker, config = self._broker, self._broker.settings.broker
        now_ms = broker.clock.monotonic_ms()
        if not broker.role.is_master or broker.role.epoch != header.epoch:
            raise _refusal(f"this broker is not the master of epoch {header.epoch}")
        if header.priority >= config.broker_election_priority:
            return Reply(HandBackResponse(elected=False))
        if not config.enable_hand_back:
            raise _refusal("enableHandBack is false at the master")
        if self._busy or (self._began_ms is not None and now_ms - self._began_ms < config.hand_back_delay):
            raise _refusal(f"the last attempt was less than {config.hand_back_delay} ms ago")
        if not self._in_sync(header.broker_id):
            raise _refusal(f"replica {header.broker_id} is not in the SyncStateSet")
        self._busy, self._began_ms = True, now_ms
        broker.appender.hold()
        try:
            await self._hand_over(header.broker_id, header.epoch)
        finally:
            self._busy = False
            broker.appender.resume()
        return Reply(HandBackResponse(elected=True))

    def _in_sync(self, broker_id: int) -> bool:
        return any(each.in_sync and each.broker_id == broker_id for each in self._ha.replicas())

    async def _hand_over(self, broker_id: int, epoch: int) -> None:
        broker, config = self._broker, self._broker.settings.broker
        deadline_ms = broker.clock.monotonic_ms() + int(1000 * CATCH_UP_S)
        while not self._has_all(broker_id):
            if broker.clock.monotonic_ms() >= deadline_ms or broker.role.epoch != epoch:
                raise _refusal(f"replica {broker_id} did not have all of the log within {CATCH_UP_S} s")
            await asyncio.sleep(POLL_S)
        if self._withdrawn:
            raise _refusal("this broker is stopping")
        log.info("hand the master role back to replica %d", broker_id)
        election = controller_wire.ElectMaster(
            config.broker_cluster_name, config.broker_name, broker_id, True, broker.clock.now_ms()
        )
        self._electing = True
        try:
            await self._elect(election, broker_id)
            await self._next_role(epoch)
        finally:
            self._electing = False

    async def _elect(self, election: controller_wire.ElectMaster, broker_id: int) -> None:
        """Returns if there was an election, or its outcome is unknown."""
        try:
            await self._controllers.call(election, once=True)  # a copy might be refused by its own effect
        except (ConnectFailed, NoLeader) as error:
            raise _refusal(f"no controller got the request: {error}") from error  # so there is no election
        except MQError as error:
            if error.code in _DEFINITE:
                raise
            log.warning("hand-back to replica %d: outcome unknown: %s", broker_id, error)
        except NetError as error:
            log.warning("hand-back to replica %d: outcome unknown: %s", broker_id, error)

    def _has_all(self, broker_id: int) -> bool:
        end = self._broker.store.max_offset
        return any(
            each.broker_id == broker_id and each.in_sync and each.ack_offset >= end
            for each in self._ha.replicas()
        )

    async def _next_role(self, epoch: int) -> None:
        """Until this broker has a role of a later epoch."""
        broker = self._broker
        deadline_ms = broker.clock.monotonic_ms() + int(1000 * UNKNOWN_S)
        while broker.role.epoch == epoch:
            if self._withdrawn:
                raise _refusal("this broker is stopping")
            if broker.clock.monotonic_ms() >= deadline_ms:
                raise _refusal(f"no role of an epoch after {epoch} within {UNKNOWN_S} s")
            try:
                await self._refresh_role()
            except (NetError, MQError) as error:
                log.debug("role after the hand-back: %s", error)
            await asyncio.sleep(0.02)


_DEFINITE: Final = frozenset(
    {
        ResponseCode.CONTROLLER_ELECT_MASTER_FAILED,
        ResponseCode.CONTROLLER_MASTER_STILL_EXIST,
        ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED,
        ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST,
        ResponseCode.CONTROLLER_INVALID_REQUEST,
    }
)
"""Refusals that the controllers decide: there was no election."""


def _refusal(reason: str) -> MQError:
    return MQError(ResponseCode.SYSTEM_ERROR, reason)
