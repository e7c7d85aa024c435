"""Registers a starting replica: it claims an id, reports its address, and asks for an election.

`ReplicasCore` decides the steps; this module carries them out. Source: RIP-44, and its persistent broker id
(temporary metadata, register check code).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from batonmq.broker.replica.controller_answers import role_of, sync_state_set_of, typed
from batonmq.broker.replica.controllers import Controllers, NoLeader
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
"""Pause before asking for the next id, after another replica claimed this one first."""

USUAL_REFUSALS: Final = 5
"""Refusals that are not an error: replicas that start together ask for the same id, and one gets it."""


class ReplicaRegistration:
    """Carries out the steps of one replica until `Step.RUN`."""

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
        """`on_registered`: called when the controllers have the address. `on_role`: called with the role that
        an election returned."""
        self._broker = broker
        self._ha = ha
        self._core = core
        self._files = files
        self._controllers = controllers
        self._on_registered = on_registered
        self._on_role = on_role
        self._refused_ids = 0
        self._epochs_doubtful = ha.epoch_file.doubtful and broker.store.max_offset > 0
        """Cleared once it is certain that the controllers do not count on this log."""

    async def step(self) -> None:
        """Carry out the next step. After `NetError`, `MQError` or OSError the same step is due again."""
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
                    log.info(
                        "broker id %d of %s went to another replica, asking for the next one",
                        claimed.broker_id,
                        name,
                    )
                    await asyncio.sleep(REFUSED_ID_WAIT_S)
                    return
                self._refused_ids = 0
                await loop.run_in_executor(None, self._files.save, core.id_granted())
                log.info("broker id %d of %s is granted", claimed.broker_id, name)
            case Step.REGISTER:
                if not await self._gave_up_id():
                    await self._register()
            case Step.ELECT:
                await self._elect()

    async def _gave_up_id(self) -> bool:
        """Give up the id if the log lost data, or will be cut for lack of its epochs; whether it did.

        As a member of the SyncStateSet this replica could be elected while the replicas with all data are
        down; they would then cut their logs to match it. A new replica is elected only after it has caught
        up.
        """
        store, core = self._broker.store, self._core
        if not store.lost_bytes and not self._epochs_doubtful:
            return False
        group = await self._controllers.broker_set()
        members = await self._members()
        replicas = (*group.in_sync_replicas, *group.not_in_sync_replicas)
        others = {each.broker_id for each in replicas} | members
        former = core.broker_id
        must_catch_up = former not in members
        # No other replica has the lost data; and a log that only lacks its epochs is better kept.
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
                f"{self._ha.epoch_file.path} lacks the epochs of this replica's log, which would therefore "
                "be cut"
            )
            cure = "restore the epoch file"
        self._epochs_doubtful = False
        log.error(
            "%s: it gives up broker id %d (%s), which counts as in sync, and comes back as a new replica. "
            "Start the other replicas, which have the data; when all are in sync, remove id %d with "
            "cleanBrokerMetadata. If no other replica has the data, stop this broker, rename that file back "
            "and %s to continue with the data that is left",
            why,
            former,
            kept,
            former,
            cure,
        )
        return True

    async def _members(self) -> frozenset[int]:
        """The SyncStateSet, by a consistent read: `Controllers.broker_set` may show what a former leader
        knows. Empty if the controllers do not know this broker set."""
        try:
            response = await self._controllers.call(
                wire.GetReplicaInfo(self._broker.settings.broker.broker_name)
            )
        except MQError as error:
            if error.code == ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST:
                return frozenset()
            raise
        return sync_state_set_of(response.body).members

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
            ),
            in_turn=True,  # a copy that arrives later deposes this replica if it is master by then
        )
        header = typed(response, wire.RegisterBrokerToControllerReply)
        if not core.registered(role_of(header, response.body)):
            raise MQError(
                ResponseCode.CONTROLLER_MASTER_STILL_EXIST,
                f"the controller still takes this broker for the master of epoch {header.master_epoch}, from "
                "before its restart; waiting until it drops that",
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
        """Text for the log line that says what an operator can do; empty if nothing."""
        registering = self._core.next_step() is Step.REGISTER
        code = error.code if isinstance(error, MQError) else None
        if isinstance(error, NoLeader) and error.connections_ended:
            return "; if they want TLS or a certificate, set tls.enable=true and tls.client.certPath"
        if registering and code == ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED:
            return (
                "; these controllers do not know its id. If it was removed (cleanBrokerMetadata), stop this "
                "broker and start it with an empty store, as a new replica. If the controllers lost their "
                "state, keep the store, which may be the only one with the messages, and delete "
                "brokerIdentity in it, first at the replica with the longest log (docs/operations.md)"
            )
        return ""
