"""`ReplicasManager`: a broker's conversation with its controllers, and the change of its role.

Finds the leading controller, claims and keeps a broker id, sends heartbeats, takes the role the controller
gave, and while master asks for changes of the SyncStateSet. Decides nothing by itself: see `replicas_core.py`
and `ha/sync_state.py`. Source: RIP-44 and the configuration of RocketMQ's controller mode.

A role change has no waits of its own: a controller's notice makes the broker ask (`role_notices.py`), the
answer wakes the switch, which goes on once the epoch is on disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Container, Coroutine
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import msgspec

from batonmq.broker.identity import IdentityFiles
from batonmq.broker.replicas_core import ReplicasCore, Role, Step
from batonmq.broker.role_notices import RoleNotices
from batonmq.broker.slave_sync import SlaveSync
from batonmq.ha.role import HARole
from batonmq.ha.service import StaleEpoch
from batonmq.ha.sync_state import SyncStateSet, SyncStateTracker
from batonmq.net.connection import Response
from batonmq.net.dispatch import Dispatcher, Reply, Request
from batonmq.net.errors import NetError
from batonmq.protocol import bodies
from batonmq.protocol.bodies import decode
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError, NotLeaderError
from batonmq.protocol.headers import controller as wire
from batonmq.protocol.headers.broker import ExchangeHAInfo, ExchangeHAInfoResponse
from batonmq.protocol.headers.namesrv import BrokerHeartbeat
from batonmq.protocol.registry import Header
from batonmq.store.errors import StoreError

if TYPE_CHECKING:
    from batonmq.broker.context import Broker

log = logging.getLogger(__name__)

CALL_TIMEOUT_MS: Final = 3_000
FIND_TIMEOUT_MS: Final = 1_000
RETRY_S: Final = (0.1, 1.0)
"""First and longest wait before a request to the controller is repeated; doubled in between."""

ASK_IDS_S: Final = (0.1, 5.0)
"""Least time between two questions for the group's ids, and between two about ids that it did not have."""

GRACE_S: Final = 3.0
"""Controllers that start together with the broker need a moment to elect their leader: not worth a line."""

USUAL_REFUSALS: Final = 5
"""Replicas that are new and start together ask for the same id, and all but one are refused: no fault yet."""

H = TypeVar("H", bound=Header)


class RoleHost(Protocol):
    """What the broker lets itself be told; `BrokerService` offers it. Never called twice at the same time."""

    @property
    def broker(self) -> Broker: ...

    async def become_master(self, epoch: int, sync_state_set: SyncStateSet, broker_id: int) -> None:
        """Writes are accepted when this returns. Raises `StaleEpoch`, OSError."""

    async def become_slave(
        self, epoch: int, broker_id: int, master_id: int, master_address: str, master_ha_address: str
    ) -> None:
        """Follow the master; its replication address may be unknown yet (empty). Raises `StaleEpoch`."""

    def end(self, cause: Exception) -> None:
        """Stop the program; returns at once."""


class ReplicasManager:
    """One broker in controller mode. `start` after its ports listen, `stop` before they close."""

    def __init__(self, host: RoleHost, files: IdentityFiles) -> None:
        """Raises ConfigError if the identity files are not this broker's."""
        self._host = host
        self._broker = broker = host.broker
        config = broker.config
        assert broker.ha is not None, "controller mode replicates"
        self._ha = broker.ha
        self._files = files
        identity = files.load(config.broker_cluster_name, config.broker_name)
        self.core = ReplicasCore(
            config.broker_cluster_name, config.broker_name, identity, self._ha.last_epoch
        )
        self._epochs_doubtful = self._ha.epoch_file.doubtful and broker.store.max_offset > 0
        """Until it is known that nobody relies on this log."""
        self.slave_sync = SlaveSync(broker)
        self._controller_addr = config.controller_addr
        self._controllers = self._configured
        """Those and whoever joined them since: any of these may lead one day."""
        self._leader: str | None = None
        self._finding: asyncio.Task[str] | None = None
        self._notices = RoleNotices(lambda: self.core.master_epoch, self._confirm)
        self._role_wanted = asyncio.Event()
        self._set_changed = asyncio.Event()
        self._refused_ids = 0
        self._asked_ids_at = -ASK_IDS_S[1]
        self._unknown_ids: frozenset[int] = frozenset()
        self._beating: dict[str, asyncio.Task[None]] = {}
        self._locating: asyncio.Task[None] | None = None
        self._tasks: list[asyncio.Task[None]] = []

    def register(self, dispatcher: Dispatcher) -> None:
        """Bind the controller's notice of a new master."""
        dispatcher.on(wire.NotifyBrokerRoleChanged, self._on_notice)

    # -- life

    def start(self) -> None:
        """Begin to register and to follow what the controller says; returns at once."""
        self._ha.on_sync_state_change = self._set_changed.set
        self._tasks = [
            asyncio.get_running_loop().create_task(self._guard(work))
            for work in (
                self._run(),
                self._switch(),
                self._alter(),
                self._beat(),
                self._watch_leader(),
                self._notices.run(),
            )
        ]

    async def stop(self) -> None:
        """Fall silent; the role stays as it is."""
        tasks: list[asyncio.Task[Any]] = [*self._tasks, *self._beating.values()]
        tasks += [task for task in (self._locating, self._finding) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.slave_sync.stop()
        self._tasks.clear()

    @staticmethod
    async def _guard(work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except asyncio.CancelledError:
            raise
        except Exception:
            log.exception("the broker's link to its controllers has failed")
            raise

    # -- the leading controller

    @property
    def _configured(self) -> list[str]:
        return [part.strip() for part in self._controller_addr.split(";") if part.strip()]

    def _heed_configuration(self) -> None:
        """controllerAddr may change while the broker runs: what former controllers said is over then."""
        configured = self._broker.config.controller_addr
        if configured != self._controller_addr:
            self._controller_addr = configured
            self._controllers = self._configured
            self._leader = self._finding = None

    async def _find_leader(self) -> str:
        """Ask all controllers who leads; the first that knows is believed. Raises `MQError` if none does."""

        asked = self._controller_addr

        async def ask(address: str) -> str:
            response = await self._broker.outer.call(address, wire.GetMetadata(), timeout_ms=FIND_TIMEOUT_MS)
            header = response.header
            if self._controller_addr != asked:
                raise NotLeaderError(ResponseCode.CONTROLLER_NOT_LEADER, "there are other controllers now")
            if not isinstance(header, wire.GetMetadataReply) or not header.controller_leader_address:
                raise NotLeaderError(ResponseCode.CONTROLLER_NOT_LEADER, f"{address} knows no leader")
            self._learn_controllers(header)
            return header.controller_leader_address

        asking = [asyncio.ensure_future(ask(address)) for address in self._controllers]
        reasons: list[str] = []
        try:
            for earliest in asyncio.as_completed(asking):
                try:
                    return await earliest
                except NetError as error:
                    reasons.append(str(error))
                except MQError as error:
                    reasons.append(error.remark)
        finally:
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
        raise NotLeaderError(
            ResponseCode.CONTROLLER_NOT_LEADER,
            f"no controller of controllerAddr leads ({'; '.join(sorted(set(reasons)))})",
        )

    def _learn_controllers(self, metadata: wire.GetMetadataReply) -> None:
        """Controllers may be added and replaced while brokers run; each must hear the heartbeats.

        The configured ones stay: they may be back, under the name by which this broker knows them.
        """
        known = list(dict.fromkeys([*self._configured, *members_of(metadata)]))
        if known != self._controllers:
            log.info("controllers are now %s", ", ".join(known))
            self._controllers = known

    async def _leader_address(self) -> str:
        self._heed_configuration()
        if self._leader is None:
            if self._finding is None or self._finding.done():
                self._finding = asyncio.get_running_loop().create_task(self._find_leader())
            leader = await asyncio.shield(self._finding)
            if leader != self._leader:
                log.info("leading controller is %s", leader)
                self._leader = leader
        return self._leader

    async def _call(
        self, header: Header, body: bytes = b"", *, accept: Container[int] = (ResponseCode.SUCCESS,)
    ) -> Response:
        """One call to the leading controller. Raises `NetError`, `MQError`; a lost leader is looked for."""
        leader = await self._leader_address()
        try:
            return await self._broker.outer.call(
                leader, header, body, timeout_ms=CALL_TIMEOUT_MS, accept=accept
            )
        except (NetError, NotLeaderError):
            if self._leader == leader:
                self._leader = None
            raise

    async def _watch_leader(self) -> None:
        """Follow a change of the leading controller."""
        while True:
            await asyncio.sleep(self._broker.config.sync_controller_metadata_period / 1000)
            try:
                leader = await self._find_leader()
            except (NetError, MQError) as error:
                log.debug("no leading controller: %s", error)
                continue
            if leader != self._leader:
                log.info("leading controller is %s", leader)
                self._leader = leader

    # -- registering, and looking at the role from time to time

    def _advice(self, error: Exception) -> str:
        """What an operator can do about it, where there is something."""
        registering = self.core.next_step() is Step.REGISTER
        code = error.code if isinstance(error, MQError) else None
        if registering and code == ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED:
            return (
                "; its id was removed from the controllers (cleanBrokerMetadata): to come back, as a new "
                "replica, this broker must be stopped and started with an empty store"
            )
        return ""

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        told, wait_s, well = "", RETRY_S[0], loop.time()
        while True:
            try:
                if self.core.next_step() is Step.RUN:
                    await self._look()
                else:
                    await self._step()
                told, wait_s, well = "", RETRY_S[0], loop.time()
            except (NetError, MQError, OSError) as error:
                step = self.core.next_step().name.lower().replace("_", " ")
                if str(error) != told and loop.time() - well > GRACE_S:
                    log.warning("controller, %s: %s%s", step, error, self._advice(error))
                    told = str(error)
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, RETRY_S[1])
                continue
            if self.core.next_step() is Step.RUN:
                await asyncio.sleep(self._broker.config.sync_broker_metadata_period / 1000)

    async def _step(self) -> None:
        core, config, loop = self.core, self._broker.config, asyncio.get_running_loop()
        cluster, name = config.broker_cluster_name, config.broker_name
        match core.next_step():
            case Step.GET_NEXT_ID:
                header = _typed(
                    await self._call(wire.GetNextBrokerId(name, cluster)), wire.GetNextBrokerIdReply
                )
                claim = core.next_id(header.next_broker_id, self._broker.address, self._broker.clock.now_ms())
                await loop.run_in_executor(None, self._files.save, claim)
            case Step.APPLY_ID:
                claimed = core.identity
                assert claimed is not None and claimed.check_code is not None
                try:
                    await self._call(wire.ApplyBrokerId(name, claimed.broker_id, claimed.check_code, cluster))
                except MQError as error:
                    if error.code != ResponseCode.CONTROLLER_BROKER_ID_INVALID:
                        raise
                    core.refused_id()
                    await loop.run_in_executor(None, self._files.drop_claim)
                    self._refused_ids += 1
                    if self._refused_ids > USUAL_REFUSALS:
                        raise
                    log.info("broker id %d of %s went to another replica, the next", claimed.broker_id, name)
                    await asyncio.sleep(RETRY_S[0])
                    return
                self._refused_ids = 0
                await loop.run_in_executor(None, self._files.save, core.applied())
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
        store, core = self._broker.store, self.core
        if not store.lost_bytes and not self._epochs_doubtful:
            return False
        group = await self._group()
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
        core, config, broker = self.core, self._broker.config, self._broker
        assert core.broker_id is not None
        response = await self._call(
            wire.RegisterBrokerToController(
                config.broker_cluster_name,
                config.broker_name,
                core.broker_id,
                broker.address,
                broker.clock.now_ms(),
            )
        )
        header = _typed(response, wire.RegisterBrokerToControllerReply)
        if not core.registered(
            _role(header.master_broker_id, header.master_address, header.master_epoch, response.body)
        ):
            raise MQError(
                ResponseCode.CONTROLLER_MASTER_STILL_EXIST,
                f"the controller still counts on the former life of this broker (epoch "
                f"{header.master_epoch}); waiting until that is given up",
            )
        self._role_wanted.set()
        self._beat_once()

    async def _elect(self) -> None:
        core, config, broker = self.core, self._broker.config, self._broker
        assert core.broker_id is not None
        response = await self._call(
            wire.ElectMaster(
                config.broker_cluster_name, config.broker_name, core.broker_id, False, broker.clock.now_ms()
            ),
            accept=(ResponseCode.SUCCESS, ResponseCode.CONTROLLER_MASTER_STILL_EXIST),
        )
        header = _typed(response, wire.ElectMasterReply)
        epoch = header.sync_state_set_epoch
        self._heard(
            _role(header.master_broker_id, header.master_address, header.master_epoch, response.body, epoch)
        )

    async def _look(self) -> None:
        """Ask who is master, and which SyncStateSet is in force."""
        core = self.core
        try:
            response = await self._call(wire.GetReplicaInfo(self._broker.config.broker_name))
        except MQError as error:
            if error.code == ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST:
                core.forgotten()
            raise
        header = _typed(response, wire.GetReplicaInfoReply)
        role = _role(header.master_broker_id, header.master_address, header.master_epoch, response.body)
        self._heard(role)
        if role is not None and core.role is not None and role.epoch == core.role.epoch and core.is_master:
            self._ha.agree(role.sync_state_set)

    def _heard(self, role: Role | None) -> None:
        self.core.heard(role)
        if self.core.next_role() is not None:
            self._role_wanted.set()

    def _on_notice(self, request: Request, header: wire.NotifyBrokerRoleChanged) -> Reply:
        """Somebody says that there is a new master."""
        if header.master_epoch is not None and self.core.broker_id is not None:
            self._notices.told(header.master_epoch)
        return Reply()

    async def _confirm(self, epoch: int) -> bool:
        """Ask every controller who is master, until one names this epoch or a later one. Raises `NetError` or
        `MQError` if none answers."""
        name = self._broker.config.broker_name

        async def ask(address: str) -> Role | None:
            answer = await self._broker.outer.call(
                address, wire.GetReplicaInfo(name), timeout_ms=FIND_TIMEOUT_MS
            )
            header = _typed(answer, wire.GetReplicaInfoReply)
            return _role(header.master_broker_id, header.master_address, header.master_epoch, answer.body)

        failure: NetError | MQError | None = None
        answered = False
        asking = [asyncio.ensure_future(ask(address)) for address in self._controllers]
        try:
            for earliest in asyncio.as_completed(asking):
                try:
                    role = await earliest
                except (NetError, MQError) as error:
                    failure = error
                    continue
                answered = True
                if role is not None:
                    self._heard(role)
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

    async def _switch(self) -> None:
        """Take the newest role that was heard of, one at a time."""
        core = self.core
        while True:
            await self._role_wanted.wait()
            self._role_wanted.clear()
            role = core.next_role()
            if role is None or core.broker_id is None:
                continue
            try:
                await self._take(role, core.broker_id)
            except StaleEpoch as error:
                log.error("role refused: %s", error)
                core.failed(role)
            except (OSError, StoreError) as error:
                log.error("role of epoch %d cannot be taken: %s", role.epoch, error)
                core.failed(role)
            else:
                core.took(role)
                self._beat_once()
                self._set_changed.set()
            if core.next_role() is not None:
                self._role_wanted.set()

    async def _take(self, role: Role, broker_id: int) -> None:
        if self._locating is not None:
            self._locating.cancel()
            self._locating = None
        await self.slave_sync.stop()
        if role.master_id == broker_id:
            await self._host.become_master(role.epoch, role.sync_state_set, broker_id)
            return
        await self._host.become_slave(role.epoch, broker_id, role.master_id, role.master_address, "")
        self.slave_sync.start(role.master_address)
        self._locating = asyncio.get_running_loop().create_task(self._locate(role))

    async def _locate(self, role: Role) -> None:
        """Ask the master for its replication port while there is no link to it; it may not be master yet."""
        ha, wait_s = self._ha, 0.02
        while True:
            if not ha.following:
                try:
                    response = await self._broker.outer.call(
                        role.master_address, ExchangeHAInfo(), timeout_ms=FIND_TIMEOUT_MS
                    )
                    address = _typed(response, ExchangeHAInfoResponse).master_ha_address
                    if address:
                        self._broker.master_ha_address = address
                        ha.set_master_address(address)
                except (NetError, MQError) as error:
                    log.debug("replication port of master %s: %s", role.master_address, error)
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, 1.0)

    # -- heartbeats

    async def _beat(self) -> None:
        while True:
            if (failure := self._failure()) is not None:
                self._host.end(StoreError(failure))
                return
            self._beat_once()
            await asyncio.sleep(self._broker.config.broker_heartbeat_interval / 1000)

    def _failure(self) -> str | None:
        """Why this master has to go: it can take no message any more, and others in sync can."""
        failure = self._broker.store.failure
        if failure is None or not self._ha.other_members():
            return None
        return f"{failure}. Another replica in sync takes over; this one's disk needs a look before a restart"

    def _beat_once(self) -> None:
        """A heartbeat to every controller; one that does not take it delays no other."""
        core, config, broker = self.core, self._broker.config, self._broker
        if core.broker_id is None or not core.may_heartbeat:
            return
        header = BrokerHeartbeat(
            config.broker_cluster_name,
            broker.address,
            config.broker_name,
            broker_id=core.broker_id,
            epoch=self._ha.last_epoch,
            max_offset=broker.store.max_offset,
            confirm_offset=broker.store.confirm_offset,
            heartbeat_timeout_mills=config.controller_heart_beat_timeout_mills,
            election_priority=config.broker_election_priority,
        )
        self._heed_configuration()
        for address in self._controllers:
            if address not in self._beating:
                task = asyncio.get_running_loop().create_task(self._beat_to(address, header))
                self._beating[address] = task

    async def _beat_to(self, address: str, header: BrokerHeartbeat) -> None:
        try:
            await self._broker.outer.oneway(address, header)
        except NetError as error:
            log.debug("heartbeat to controller %s: %s", address, error)
        finally:
            self._beating.pop(address, None)

    # -- the SyncStateSet

    async def _alter(self) -> None:
        """While master, ask the controller for the SyncStateSet that is due."""
        wait_s = RETRY_S[0]
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._broker.config.check_sync_state_set_period / 1000):
                    await self._set_changed.wait()
            self._set_changed.clear()
            tracker = self._ha.tracker
            if tracker is None or self._ha.role is not HARole.MASTER:
                continue
            await self._meet_strangers()
            members = self._ha.propose()
            if members is None:
                continue
            if await self._propose(tracker, members):
                wait_s = RETRY_S[0]
            else:
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, RETRY_S[1])

    async def _group(self) -> bodies.ReplicasInfo:
        """All replicas that the controllers know. Raises `NetError`, `MQError`, ValueError."""
        name = self._broker.config.broker_name
        response = await self._call(wire.GetSyncStateData(), msgspec.json.encode([name]))
        table = decode(bytes(response.body), bodies.BrokerReplicasInfo).replicas_info_table
        return table.get(name, bodies.ReplicasInfo())

    async def _meet_strangers(self) -> None:
        """Ask the controller whose ids they are that slaves came with and nobody has told us of."""
        strangers = frozenset(self._ha.strangers())
        if not strangers:
            return
        loop = asyncio.get_running_loop()
        wait_s = ASK_IDS_S[1] if strangers <= self._unknown_ids else ASK_IDS_S[0]
        wait_s -= loop.time() - self._asked_ids_at
        if wait_s > 0:
            loop.call_later(wait_s, self._set_changed.set)
            return
        self._asked_ids_at = loop.time()
        try:
            group = await self._group()
        except (NetError, MQError, ValueError) as error:
            log.warning("the ids of this group's replicas are unknown: %s", error)
            loop.call_later(RETRY_S[1], self._set_changed.set)
            return
        ids = frozenset(each.broker_id for each in (*group.in_sync_replicas, *group.not_in_sync_replicas))
        for stranger in sorted(strangers - ids - self._unknown_ids):
            log.warning(
                "slave %d is not registered with the controllers: it counts neither for acknowledgements nor "
                "for the SyncStateSet",
                stranger,
            )
        self._unknown_ids = strangers - ids
        self._ha.registered(ids)

    async def _propose(self, tracker: SyncStateTracker, members: frozenset[int]) -> bool:
        """Carry one proposal to the controller and its outcome back. False: try again a little later."""
        core, ha, config = self.core, self._ha, self._broker.config
        assert core.broker_id is not None
        epoch, before = tracker.agreed.epoch, tracker.agreed.members
        outcome: SyncStateSet | None = None
        refused = done = False
        try:
            response = await self._call(
                wire.AlterSyncStateSet(
                    config.broker_name, core.broker_id, ha.epoch, self._broker.clock.now_ms()
                ),
                wire.SyncStateSetBody(tuple(sorted(members)), epoch).encode(),
            )
            outcome = _sync_state_set(response.body)
            done = True
            log.info("SyncStateSet %s, was %s", sorted(outcome.members), sorted(before))
        except NetError as error:
            log.warning("SyncStateSet %s: outcome unknown: %s", sorted(members), error)
        except MQError as error:
            log.warning("SyncStateSet %s was refused: %s", sorted(members), error)
            # It may be refused because an earlier try of the same proposal has taken effect: only the set in
            # force tells whether the proposal may be forgotten.
            refused = error.code in DEFINITE and await self._ask_set(tracker)
        finally:
            ha.answered(tracker, outcome, refused=refused)
        return done

    async def _ask_set(self, tracker: SyncStateTracker) -> bool:
        try:
            response = await self._call(wire.GetReplicaInfo(self._broker.config.broker_name))
        except (NetError, MQError) as error:
            log.warning("SyncStateSet in force is unknown: %s", error)
            return False
        header = _typed(response, wire.GetReplicaInfoReply)
        role = _role(header.master_broker_id, header.master_address, header.master_epoch, response.body)
        self._heard(role)
        tracker.agree(_sync_state_set(response.body))
        return True


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
"""Refusals the controller decides when it applies a proposal: it took no effect then."""


def members_of(metadata: wire.GetMetadataReply) -> list[str]:
    """Where the members of a group of controllers serve brokers; empty where their leader is not among them:
    RocketMQ's jRaft controllers name their Raft ports there, which are not for brokers."""
    peers = [peer.split(":") for peer in metadata.peers.split(";")]
    addresses = [":".join(parts[-2:]) for parts in peers if len(parts) >= 2]
    return addresses if metadata.controller_leader_address in addresses else []


def _typed(response: Response, kind: type[H]) -> H:
    if not isinstance(response.header, kind):
        raise MQError(ResponseCode.SYSTEM_ERROR, f"an answer without {kind.__name__}")
    return response.header


def _sync_state_set(body: bytes | bytearray | memoryview) -> SyncStateSet:
    try:
        decoded = decode(body, bodies.SyncStateSet)
    except ValueError as error:
        raise MQError(
            ResponseCode.SYSTEM_ERROR, f"an answer whose body is no SyncStateSet: {error}"
        ) from None
    return SyncStateSet(frozenset(decoded.sync_state_set), decoded.sync_state_set_epoch)


def _role(
    master_id: int | None,
    master_address: str | None,
    master_epoch: int | None,
    body: bytes | bytearray | memoryview,
    sync_state_set_epoch: int | None = None,
) -> Role | None:
    """A role from an answer, None if it names no master. Raises `MQError` for a body that is none."""
    if master_id is None or not master_address or master_epoch is None:
        return None
    members = _sync_state_set(body)
    if sync_state_set_epoch is not None:
        members = SyncStateSet(members.members, sync_state_set_epoch)
    return Role(master_epoch, master_id, master_address, members)
