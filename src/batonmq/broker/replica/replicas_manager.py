"""`ReplicasManager`: a broker in controller mode follows the role that the controllers assign.

It registers the replica (`registration.py`), sends heartbeats (`heartbeats.py`), takes the assigned role, and
as master proposes changes of the SyncStateSet (`set_proposals.py`). The decisions are in `core.py` and
`ha/autoswitch/sync_state.py`. Source: RIP-44 and the configuration of RocketMQ's controller mode.

A role change has no fixed delays: a controller's notice makes the broker ask (`role_notices.py`), the answer
wakes the switch, and the switch waits only until the epoch is on disk.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from batonmq.broker.replica.controller_answers import role_of, typed
from batonmq.broker.replica.controllers import FIND_TIMEOUT_MS, RETRY_S, Controllers, in_words
from batonmq.broker.replica.core import ReplicasCore, Role, Step
from batonmq.broker.replica.hand_back import HandBacks
from batonmq.broker.replica.heartbeats import Heartbeats
from batonmq.broker.replica.identity import IdentityFiles
from batonmq.broker.replica.registration import ReplicaRegistration
from batonmq.broker.replica.role_notices import RoleNotices
from batonmq.broker.replica.set_proposals import SetProposals
from batonmq.broker.replica.slave_sync import SlaveSync
from batonmq.common.repeated_warnings import RepeatedWarnings
from batonmq.common.tasks import lasting
from batonmq.ha.autoswitch.local import ForeignMaster
from batonmq.ha.autoswitch.service import HAService, StaleEpoch
from batonmq.net.dispatch import Dispatcher, Reply, Request
from batonmq.net.errors import NetError
from batonmq.protocol.bodies.replication import EpochEntryCache
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers import controller as wire
from batonmq.protocol.headers.broker.replication import (
    ExchangeHAInfo,
    ExchangeHAInfoResponse,
    GetBrokerEpochCache,
    HandBack,
)
from batonmq.protocol.json import decode
from batonmq.store.errors import StoreError

if TYPE_CHECKING:
    from batonmq.broker.context import Broker
    from batonmq.broker.replica.role_switch import RoleSwitch

log = logging.getLogger(__name__)

HA_ADDRESS_TIMEOUT_MS: Final = 1_000
GRACE_S: Final = 3.0
"""Failures in this time are not logged: controllers that start with the broker first elect their leader."""


class ReplicasManager:
    """One broker in controller mode. Call `start` once the ports listen, `stop` before they close."""

    def __init__(self, broker: Broker, switch: RoleSwitch, files: IdentityFiles) -> None:
        """Raises ConfigError if the identity files belong to another broker."""
        self._broker = broker
        self._switch = switch
        config = broker.settings.broker
        assert isinstance(broker.replication, HAService), "controller mode uses AutoSwitch replication"
        self._ha = broker.replication
        identity = files.load(config.broker_cluster_name, config.broker_name)
        self.core = ReplicasCore(
            config.broker_cluster_name,
            config.broker_name,
            identity,
            self._ha.last_epoch,
            learner=self._ha.config.async_learner,
        )
        self._controllers = Controllers(broker)
        self._registration = ReplicaRegistration(
            broker,
            self._ha,
            self.core,
            files,
            self._controllers,
            on_registered=self._on_registered,
            on_role=self._on_role,
        )
        self._proposals = SetProposals(broker, self._ha, self.core, self._controllers, on_role=self._on_role)
        self.slave_sync = SlaveSync(broker.client, broker.role, broker.tables, broker.store)
        self._notices = RoleNotices(lambda: self.core.master_epoch, self._confirm)
        self._role_wanted = asyncio.Event()
        self._warnings = RepeatedWarnings(log)
        self._heartbeats = Heartbeats(
            broker, self._ha, self.core, self._controllers, on_epoch=self._notices.notified
        )
        self._hand_backs = HandBacks(broker, self._ha, self.core, self._controllers, self._refresh_role)
        self._ha_address_search: asyncio.Task[None] | None = None
        self._tasks: list[asyncio.Task[None]] = []

    def register(self, dispatcher: Dispatcher) -> None:
        """Bind the controller's notice of a new master, and a slave's request for the role."""
        dispatcher.on(wire.NotifyBrokerRoleChanged, self._on_notice)
        dispatcher.on(HandBack, self._hand_backs.asked)

    # -- life cycle

    def start(self) -> None:
        """Start to register and to follow the controllers; returns at once."""
        self._ha.on_sync_state_change = self._proposals.changed.set
        self._ha.on_master_silent = self._heartbeats.send
        self._ha.local.check_master = self._check_master
        self._tasks = [
            asyncio.get_running_loop().create_task(lasting(work, "link to the controllers"))
            for work in (
                self._run,
                self._follow_roles,
                self._proposals.run,
                self._heartbeats.run,
                self._controllers.watch,
                self._notices.run,
                self._hand_backs.run,
            )
        ]

    async def stop(self) -> None:
        """Stop all requests to the controllers; the role stays unchanged."""
        self._hand_backs.withdraw()
        tasks = list(self._tasks)
        if self._ha_address_search is not None:
            tasks.append(self._ha_address_search)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._heartbeats.stop()
        await self._controllers.stop()
        await self.slave_sync.stop()
        self._tasks.clear()

    # -- registration, and the periodic refresh of the role

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        logged, wait_s, succeeded_at = "", RETRY_S[0], loop.time()
        while True:
            try:
                if self.core.next_step() is Step.RUN:
                    await self._refresh_role()
                else:
                    await self._registration.step()
                logged, wait_s, succeeded_at = "", RETRY_S[0], loop.time()
            except (NetError, MQError, OSError) as error:
                step = self.core.next_step().name.lower().replace("_", " ")
                text = in_words(error)
                if text != logged and loop.time() - succeeded_at > GRACE_S:
                    log.warning("controller, %s: %s%s", step, text, self._registration.advice(error))
                    logged = text
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, RETRY_S[1])
                continue
            if self.core.next_step() is Step.RUN:
                await asyncio.sleep(self._broker.settings.broker.sync_broker_metadata_period / 1000)

    async def _refresh_role(self) -> None:
        """Ask the controllers for the master and the SyncStateSet."""
        core = self.core
        try:
            response = await self._controllers.call(
                wire.GetReplicaInfo(self._broker.settings.broker.broker_name)
            )
        except MQError as error:
            if error.code == ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST:
                core.registration_lost()
            raise
        header = typed(response, wire.GetReplicaInfoReply)
        role = role_of(header, response.body)
        self._on_role(role)
        if role is None and core.learner:
            self._warnings.warn(
                self._broker.settings.broker.broker_name,
                "has no master: this replica is a learner (asyncLearner=true) and waits for another replica",
                int(asyncio.get_running_loop().time() * 1000),
            )
        if role is not None and core.role is not None and role.epoch == core.role.epoch and core.is_master:
            self._ha.agree(role.sync_state_set)

    def _on_registered(self) -> None:
        self._role_wanted.set()
        self._heartbeats.send()

    def _on_role(self, role: Role | None) -> None:
        self.core.role_reported(role)
        if self.core.next_role() is not None:
            self._role_wanted.set()

    def _on_notice(self, request: Request, header: wire.NotifyBrokerRoleChanged) -> Reply:
        """A notice, from any client, of a new master."""
        if header.master_epoch is not None and self.core.broker_id is not None:
            self._notices.notified(header.master_epoch)
        return Reply()

    async def _confirm(self, epoch: int) -> bool:
        """Ask all controllers for the master, until one names this epoch or a later one; whether one did.
        Raises `NetError` or `MQError` if no controller answers."""
        name = self._broker.settings.broker.broker_name

        async def ask(address: str) -> Role | None:
            controllers, query = self._controllers, wire.GetReplicaInfo(name)
            if controllers.leader_answers or not controllers.may_forward(address):
                answer = await self._broker.client.call(address, query, timeout_ms=FIND_TIMEOUT_MS)
            else:
                answer = await controllers.call_through(address, query, timeout_ms=FIND_TIMEOUT_MS)
            header = typed(answer, wire.GetReplicaInfoReply)
            return role_of(header, answer.body)

        failure: NetError | MQError | None = None
        answered = False
        asking = [asyncio.ensure_future(ask(address)) for address in self._controllers.addresses]
        try:
            for earliest in asyncio.as_completed(asking):
                try:
                    role = await earliest
                except (NetError, MQError) as error:
                    failure = error
                    continue
                answered = True
                if role is not None:
                    self._on_role(role)
                if self.core.master_epoch >= epoch:
                    return True
        finally:
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
        if failure is not None and not answered:
            raise failure
        return False

    # -- the role

    async def _follow_roles(self) -> None:
        """Take the newest reported role, one at a time."""
        core, loop = self.core, asyncio.get_running_loop()
        while True:
            await self._role_wanted.wait()
            self._role_wanted.clear()
            role = core.next_role()
            if role is None or core.broker_id is None:
                continue
            try:
                await self._take_role(role, core.broker_id)
            except StaleEpoch as error:
                self._warnings.warn(
                    role.master_address,
                    f"is master of an epoch that this replica refuses: {error}. If the controllers lost "
                    "their state, run electMaster until their epochs are later. Otherwise this epoch file "
                    "belongs to another broker set: start with an empty store, as a new replica",
                    int(loop.time() * 1000),
                )
                core.role_failed(role)
            except (OSError, StoreError) as error:
                log.error("role of epoch %d cannot be taken: %s", role.epoch, error)
                core.role_failed(role)
            else:
                core.role_taken(role)
                self._heartbeats.send()
                self._proposals.changed.set()
            if core.next_role() is not None:
                self._role_wanted.set()

    async def _take_role(self, role: Role, broker_id: int) -> None:
        if self._ha_address_search is not None:
            self._ha_address_search.cancel()
            self._ha_address_search = None
        await self.slave_sync.stop()
        if role.master_id == broker_id:
            await self._switch.become_master(role.epoch, role.sync_state_set, broker_id)
            return
        await self._switch.become_slave(role.epoch, broker_id, role.master_id, role.master_address, "")
        self.slave_sync.start(role.master_address)
        self._ha_address_search = asyncio.get_running_loop().create_task(self._find_ha_address(role))

    async def _find_ha_address(self, role: Role) -> None:
        """While not connected, ask the master for its replication address; it may not have its role yet."""
        ha, wait_s = self._ha, 0.02
        while True:
            if not ha.following:
                try:
                    response = await self._broker.client.call(
                        role.master_address, ExchangeHAInfo(), timeout_ms=HA_ADDRESS_TIMEOUT_MS
                    )
                    address = typed(response, ExchangeHAInfoResponse).master_ha_address
                    if address:
                        self._broker.role.master_ha_address = address
                        ha.set_master_address(address)
                except (NetError, MQError) as error:
                    log.debug("replication port of master %s: %s", role.master_address, error)
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, 1.0)

    async def _check_master(self) -> None:
        """See `LocalReplica.check_master`. A broker that does not say its name is trusted."""
        config, address = self._broker.settings.broker, self._broker.role.master_address
        if address is None:
            return
        try:
            answer = await self._broker.client.call(
                address, GetBrokerEpochCache(), timeout_ms=HA_ADDRESS_TIMEOUT_MS
            )
            found = decode(bytes(answer.body), EpochEntryCache)
        except MQError as error:
            log.debug("master %s does not say its name: %s", address, error)
            return
        if (found.cluster_name, found.broker_name) != (config.broker_cluster_name, config.broker_name):
            raise ForeignMaster(
                f"at {address} is broker {found.broker_name} of cluster {found.cluster_name}, not "
                f"{config.broker_name} of {config.broker_cluster_name}: another broker has this address now"
            )
