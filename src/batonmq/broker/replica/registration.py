"""How a starting replica comes to its id and its first role: claim an id, report the address, ask for a
master.

The steps are `ReplicasCore`'s; here each is carried out. Source: RIP-44, and its persistent broker id
(temporary metadata, register check code).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from batonmq.broker.replica.controller_answers import role_of, typed
from batonmq.broker.replica.controllers import Controllers
from batonmq.broker.replica.core import ReplicasCore, Role, Step
from batonmq.broker.replica.identity import IdentityFiles
from batonmq.ha.autoswitch.service import HAService
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers import controller as wire

if TYPE_CHECKING:
    from batonmq.broker.context import Broker

log = logging.getLogger(__name__)

REFUSED_ID_WAIT_S: Final = 0.1
"""Before the next id is asked for when another replica was faster."""

USUAL_REFUSALS: Final = 5
"""Replicas that are new and start together ask for the same id, and all but one are refused: no fault yet."""


class ReplicaRegistration:
    """One replica on its way to `Step.RUN`."""

    def __init__(
        self,
        broker: Broker,
        ha: HAService,
        core: ReplicasCore,
        files: IdentityFiles,
        controllers: Controllers,
        *,
        on_registered: Callable[[], None],
        on_role: Callable[[Role | None], None],
    ) -> None:
        """`registered`: called when the controllers have the address. `heard`: called with the role that an
        election answered."""
        self._broker = broker
        self._ha = ha
        self._core = core
        self._files = files
        self._controllers = controllers
        self._on_registered = on_registered
        self._on_role = on_role
        self._refused_ids = 0
        self._epochs_doubtful = ha.epoch_file.doubtful and broker.store.max_offset > 0
        """Until it is known that nobody relies on this log."""

    async def step(self) -> None:
        """Make the next one. Raises `NetError`, `MQError`, OSError: the same is due again."""
        core, config, loop = self._core, self._broker.settings.broker, asyncio.get_running_loop()
        cluster, name = config.broker_cluster_name, config.broker_name
        match core.next_step():
            case Step.GET_NEXT_ID:
                header = typed(
                    await self._controllers.call(wire.GetNextBrokerId(name, cluster)),
                    wire.GetNextBrokerIdReply,
                )
                claim = core.claim_id(
                    header.next_broker_id, self._broker.address, self._broker.clock.now_ms()
                )
                await loop.run_in_executor(None, self._files.save, claim)
            case Step.APPLY_ID:
                claimed = core.identity
                assert claimed is not None and claimed.check_code is not None
                try:
                    await self._controllers.call(
                        wire.ApplyBrokerId(name, claimed.broker_id, claimed.check_code, cluster)
                    )
                except MQError as error:
                    if error.code != ResponseCode.CONTROLLER_BROKER_ID_INVALID:
                        raise
                    core.id_refused()
                    await loop.run_in_executor(None, self._files.drop_claim)
                    self._refused_ids += 1
                    if self._refused_ids > USUAL_REFUSALS:
                        raise
                    log.info("broker id %d of %s went to another replica, the next", claimed.broker_id, name)
                    await asyncio.sleep(REFUSED_ID_WAIT_S)
                    return
                self._refused_ids = 0
                await loop.run_in_executor(None, self._files.save, core.id_granted())
                log.info("broker id %d of %s is ours", claimed.broker_id, name)
            case Step.REGISTER:
                if not await self._gave_up_id():
                    await self._register()
            case Step.ELECT:
                await self._elect()

    async def _gave_up_id(self) -> bool:
        """Whether this replica must come back as a new one, because its log has lost what its disk had, or
        will be cut for want of its epochs.

        As a member of the SyncStateSet it could be elected while those are away that still have everything,
        and they would cut their logs to its own. A new replica is elected only when it has caught up.
        """
        store, core = self._broker.store, self._core
        if not store.lost_bytes and not self._epochs_doubtful:
            return False
        group = await self._controllers.broker_set()
        members = {each.broker_id for each in group.in_sync_replicas}
        others = {each.broker_id for each in (*group.in_sync_replicas, *group.not_in_sync_replicas)}
        former = core.broker_id
        must_catch_up = former not in members
        # Nobody else can have what is lost; and what is there, though its epochs are not, is best kept.
        alone = others == {former} or (not store.lost_bytes and members == {former})
        if must_catch_up or alone:
            self._epochs_doubtful = False
            return False
        kept = await asyncio.get_running_loop().run_in_executor(None, self._files.give_up)
        core.give_up_id()
        if store.lost_bytes:
            why = f"{store.lost_bytes} bytes of this replica's log are lost"
            cure = "delete the store's checkpoint"
        else:
            why = (
                f"{self._ha.epoch_file.path} lacks the epochs of this replica's log, for want of which it "
                "would be cut"
            )
            cure = "restore the epoch file"
        self._epochs_doubtful = False
        log.error(
            "%s: it gives up broker id %d (%s), which counts as in sync, and comes back as a new replica. "
            "Start the others, who have the data; when all is in sync, cleanBrokerMetadata removes id %d. If "
            "nobody else has it, stop, rename that file back and %s to go on with what is left",
            why,
            former,
            kept,
            former,
            cure,
        )
        return True

    async def _register(self) -> None:
        core, config, broker = self._core, self._broker.settings.broker, self._broker
        assert core.broker_id is not None
        response = await self._controllers.call(
            wire.RegisterBrokerToController(
                config.broker_cluster_name,
                config.broker_name,
                core.broker_id,
                broker.address,
                broker.clock.now_ms(),
            )
        )
        header = typed(response, wire.RegisterBrokerToControllerReply)
        if not core.registered(role_of(header, response.body)):
            raise MQError(
                ResponseCode.CONTROLLER_MASTER_STILL_EXIST,
                f"the controller still counts on the former life of this broker (epoch "
                f"{header.master_epoch}); waiting until that is given up",
            )
        self._on_registered()

    async def _elect(self) -> None:
        core, config, broker = self._core, self._broker.settings.broker, self._broker
        assert core.broker_id is not None
        response = await self._controllers.call(
            wire.ElectMaster(
                config.broker_cluster_name, config.broker_name, core.broker_id, False, broker.clock.now_ms()
            ),
            accept=(ResponseCode.SUCCESS, ResponseCode.CONTROLLER_MASTER_STILL_EXIST),
        )
        header = typed(response, wire.ElectMasterReply)
        epoch = header.sync_state_set_epoch
        self._on_role(role_of(header, response.body, epoch))

    def advice(self, error: Exception) -> str:
        """What an operator can do about it, where there is something."""
        registering = self._core.next_step() is Step.REGISTER
        code = error.code if isinstance(error, MQError) else None
        if registering and code == ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED:
            return (
                "; its id was removed from the controllers (cleanBrokerMetadata): to come back, as a new "
                "replica, this broker must be stopped and started with an empty store"
            )
        return ""
