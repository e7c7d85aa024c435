"""What a controller does with each request: three classes of events, each a table and a function.

- `WRITES` change or decide. They become events of the log and are answered with what the state machine said
  of them when it applied them. Leader only.
- `CONSISTENT_READS` see everything that was acknowledged before they were asked: they wait for a barrier of
  the log (ReadIndex, or the leader's lease). Leader; with `enableFollowerRead` any controller that is not
  more than `followerReadMaxLag` behind.
- `UNSAFE_READS` are answered from the state at hand. Leader only, where that state is newest; but for up to
  an election timeout a leader may not know that there is another one.

Requests about the controller itself (metadata, configuration) are of no class: they do not touch the state
machine, and every controller answers them. Whoever is not to answer says CONTROLLER_NOT_LEADER. A broker that
does not reach the leader has another controller pass its requests on (`forwarding.py`).
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Mapping
from functools import partial
from importlib.metadata import version
from types import MappingProxyType
from typing import Any, Protocol, TypeAlias

from batonmq.common.config import ConfigError, changeable_keys, parse_properties
from batonmq.common.config_loader import canonical, known_to, update
from batonmq.common.config_values import to_properties
from batonmq.controller import events, queries
from batonmq.controller.answers import NOT_LEADER_REPLY, to_reply, too_large
from batonmq.controller.config import ControllerConfig, Topology
from batonmq.controller.effects import Outcome
from batonmq.controller.forwarding import Forwarding
from batonmq.controller.machine import ControllerMachine
from batonmq.controller.membership import VOTER, Membership, leader_fields
from batonmq.controller.proposer import NOT_LEADER, Proposer
from batonmq.controller.reads import Reads
from batonmq.controller.replicas import FIRST_BROKER_ID
from batonmq.net.dispatch import Dispatcher, Reply, Request
from batonmq.protocol.bodies.controller import decode_broker_names, decode_sync_state_set
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers import controller as wire
from batonmq.protocol.headers.namesrv import BrokerHeartbeat
from batonmq.protocol.json import encode
from batonmq.protocol.registry import Header

log = logging.getLogger(__name__)

VERSION = version("batonmq")
MAX_NAME = 255
"""Characters of the names of clusters and broker sets, as of topics; more would not fit into heartbeats."""
MAX_WRITE_BYTES = 1 << 20
"""Header fields and body of any other write."""
MAX_ID_GAP = 1_000
"""So far beyond the next broker id may be claimed: ids of another controller's group have gaps."""


class Controller(Protocol):
    """What the handlers need of the service around them."""

    config: ControllerConfig
    topology: Topology
    membership: Membership
    machine: ControllerMachine
    proposer: Proposer
    reads: Reads
    forwarding: Forwarding

    @property
    def leading(self) -> bool:
        """This node leads and the state machine knows it."""

    @property
    def leader_id(self) -> str | None: ...
    def leader_now_ms(self) -> int: ...
    def entry_version(self) -> int:
        """Of the entries that this controller writes as leader."""

    def decided(self, outcome: Outcome) -> None:
        """Acts on the effects of an outcome."""

    async def update_config(self, config: ControllerConfig, changes: Mapping[str, str]) -> None:
        """Puts another configuration into force and into its file."""


class Handlers:
    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._changing = asyncio.Lock()
        """Memory and file take changes of the configuration in the same order."""

    def register(self, dispatcher: Dispatcher) -> None:
        for header, event in WRITES.items():
            dispatcher.on(header, partial(self._write, event))
        dispatcher.on(wire.ForwardToLeader, self.on_forward)
        for header, read in CONSISTENT_READS.items():
            dispatcher.on(header, partial(self._consistent_read, read))
        for header, read in UNSAFE_READS.items():
            dispatcher.on(header, partial(self._unsafe_read, read))
        dispatcher.on(wire.GetMetadata, self.on_get_metadata)
        dispatcher.on(wire.GetControllerMembers, self.on_get_members)
        dispatcher.on(wire.AddController, self.on_add)
        dispatcher.on(wire.RemoveController, self.on_remove)
        dispatcher.on(wire.TransferControllerLeadership, self.on_transfer)
        dispatcher.on(wire.GetControllerConfig, self.on_get_config)
        dispatcher.on(wire.UpdateControllerConfig, self.on_update_config)

    # -- writes --------------------------------------------------------------------------------------------

    def _write(self, event: MakeEvent, request: Request, header: Any) -> Reply | None:
        controller = self._controller
        if not controller.leading:
            return NOT_LEADER_REPLY
        size = len(request.command.raw_ext) + len(request.command.body)
        if size > MAX_WRITE_BYTES:
            raise too_large(size, MAX_WRITE_BYTES)

        def answer(outcome: Outcome) -> None:
            if outcome.effects:
                controller.decided(outcome)
            request.reply(to_reply(outcome))

        controller.proposer.submit(event(controller, request, header), answer)
        return None

    # -- reads ---------------------------------------------------------------------------------------------

    def _consistent_read(self, read: Read, request: Request, header: Any) -> Reply | None:
        controller = self._controller
        if not (controller.leading or controller.config.enable_follower_read):
            return self._ask_the_leader()

        def answer(refusal: Outcome | None) -> None:
            if refusal is None:
                request.reply(read(controller, request, header))
            elif refusal.code == ResponseCode.CONTROLLER_NOT_LEADER:
                request.reply(self._ask_the_leader(refusal.remark))
            else:
                request.reply(to_reply(refusal))

        controller.reads.submit(answer)
        return None

    def _unsafe_read(self, read: Read, request: Request, header: Any) -> Reply:
        controller = self._controller
        if not controller.leading:
            return self._ask_the_leader()
        return read(controller, request, header)

    def _ask_the_leader(self, remark: str | None = NOT_LEADER.remark) -> Reply:
        """A refusal that names whom to ask, in the fields in which GetMetadata's answer does."""
        controller = self._controller
        leader_id = controller.leader_id
        address = controller.membership.rpc_address(leader_id)
        if leader_id is None or address is None or leader_id == controller.topology.self_id:
            return NOT_LEADER_REPLY
        return Reply(
            code=NOT_LEADER.code,
            remark=f"{remark}; ask {leader_id} at {address}",
            ext=leader_fields(leader_id, address),
        )

    async def on_forward(self, request: Request, header: wire.ForwardToLeader) -> Reply:
        return await self._controller.forwarding.forward(request, header)

    # -- of no class: about this controller ----------------------------------------------------------------

    def on_get_metadata(self, request: Request, header: wire.GetMetadata) -> Reply:
        controller = self._controller
        topology, leader_id = controller.topology, controller.leader_id
        return Reply(
            wire.GetMetadataReply(
                group=topology.group,
                controller_leader_id=leader_id,
                controller_leader_address=controller.membership.rpc_address(leader_id),
                is_leader=controller.leading,
                peers=controller.membership.peers_text,
            )
        )

    # -- members of the group of controllers: also outside the classes, for the Raft room decides about them

    def on_get_members(self, request: Request, header: wire.GetControllerMembers) -> Reply:
        shown = self._controller.membership.show()
        shown.version = VERSION
        return Reply(body=encode(shown))

    async def on_add(self, request: Request, header: wire.AddController) -> Reply:
        membership, node_id = self._controller.membership, header.controller_id
        known = node_id in membership.members.all()
        reply = await membership.add(node_id, header.raft_address, header.rpc_address)
        if not known or reply.state == VOTER:
            log.info("controller %s is %s, as %s requested", node_id, reply.state, request.connection.peer)
        return Reply(reply)

    async def on_remove(self, request: Request, header: wire.RemoveController) -> Reply:
        membership, node_id = self._controller.membership, header.controller_id
        known = node_id in membership.members.all()
        await membership.remove(node_id)
        if known:
            log.info("controller %s was removed, as %s requested", node_id, request.connection.peer)
        return Reply()

    async def on_transfer(self, request: Request, header: wire.TransferControllerLeadership) -> Reply:
        await self._controller.membership.transfer(header.controller_id)
        return Reply()

    def on_get_config(self, request: Request, header: wire.GetControllerConfig) -> Reply:
        # Whoever reaches the port may ask: secrets, and tokens for the metrics' collector, are not shown.
        config = self._controller.config
        shown = dataclasses.replace(
            config,
            config_store_path=str(config.config_file),
            controller_raft_secret="",
            metrics_grpc_exporter_header="",
        )
        return Reply(body=to_properties(shown).encode())

    async def on_update_config(self, request: Request, header: wire.UpdateControllerConfig) -> Reply:
        controller = self._controller
        try:
            changes = canonical(parse_properties(bytes(request.command.body).decode()), ControllerConfig)
        except (UnicodeDecodeError, ConfigError) as error:
            raise MQError(ResponseCode.SYSTEM_ERROR, f"body is no properties file: {error}") from error
        forbidden = {"configBlackList", "configStorePath", "rocketmqHome"}
        forbidden.update(controller.config.config_black_list.split(";"))
        own = known_to(changes, ControllerConfig)
        fixed = own.keys() - changeable_keys(ControllerConfig)
        for key in changes:
            if key in forbidden:
                raise MQError(ResponseCode.NO_PERMISSION, f"Can not update config in black list: {key}")
            if key in fixed:
                raise MQError(
                    ResponseCode.NO_PERMISSION, f"{key} takes effect at start only; edit the file and restart"
                )
        unknown = changes.keys() - own.keys()
        if unknown:
            log.warning("updateControllerConfig: unknown keys are ignored: %s", ", ".join(sorted(unknown)))
        async with self._changing:
            try:
                config = update(controller.config, changes, source="updateControllerConfig")
            except ConfigError as error:
                raise MQError(ResponseCode.SYSTEM_ERROR, str(error)) from error
            try:
                await controller.update_config(config, own)
            except (OSError, UnicodeDecodeError) as error:
                raise MQError(
                    ResponseCode.SYSTEM_ERROR,
                    f"in force until a restart: {config.config_file} cannot be written: {error}",
                ) from error
        log.info("configuration changed by %s: %s", request.connection.peer, changes)
        return Reply()


# -- the classes -------------------------------------------------------------------------------------------

MakeEvent: TypeAlias = Callable[[Controller, Request, Any], events.AnyEvent]
Read: TypeAlias = Callable[[Controller, Request, Any], Reply]


def _alter(controller: Controller, request: Request, header: wire.AlterSyncStateSet) -> events.AnyEvent:
    body = decode_sync_state_set(request.command.body)
    return events.AlterSyncStateSet(
        header.broker_name,
        header.master_broker_id,
        header.master_epoch,
        body.sync_state_set,
        body.sync_state_set_epoch,
        header.fence_refused is True and controller.entry_version() >= events.FENCE_SINCE,
    )


def _check_names(cluster: str, broker_set: str) -> None:
    for kind, name in (("cluster", cluster), ("broker", broker_set)):
        if len(name) > MAX_NAME:
            raise MQError(
                ResponseCode.CONTROLLER_INVALID_REQUEST,
                f"a {kind} name of {len(name)} characters, at most {MAX_NAME} are allowed",
            )


def _check_cluster(controller: Controller, cluster: str, broker_set: str) -> None:
    """Two clusters may have broker sets of one name; only one of them can have this controller."""
    known = controller.machine.broker_sets.get(broker_set)
    if known is not None and cluster != known.cluster_name:
        raise MQError(
            ResponseCode.CONTROLLER_INVALID_REQUEST,
            f"broker set {broker_set} belongs to cluster {known.cluster_name}, not {cluster}",
        )


def _elect(controller: Controller, _: Request, header: wire.ElectMaster) -> events.AnyEvent:
    if not header.designate_elect:  # for operators the name of the broker set is enough, as with RocketMQ
        _check_cluster(controller, header.cluster_name, header.broker_name)
    if header.designate_elect and header.broker_id < FIRST_BROKER_ID:
        # NO_BROKER is for the controller itself, and may depose a master.
        raise MQError(
            ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED,
            f"broker set {header.broker_name} has no replica {header.broker_id}, ids begin with 1",
        )
    return events.ElectMaster(
        header.broker_name,
        header.broker_id,
        header.designate_elect,
        _allows_unclean(controller, header),
        "admin" if header.designate_elect or header.broker_id == events.NO_BROKER else "broker",
    )


def _allows_unclean(controller: Controller, header: wire.ElectMaster) -> bool:
    """Whether the broker that an operator names may be one that is not in sync. As in every other election,
    only if no member of the SyncStateSet lives. (With RocketMQ it replaces a healthy master, and messages are
    lost.)"""
    allowed = controller.config.enable_elect_unclean_master
    broker_set = controller.machine.broker_sets.get(header.broker_name)
    if broker_set is None or not header.designate_elect:
        return allowed
    now_ms = controller.leader_now_ms()
    if (
        broker_set.never_had_master
        and header.broker_id in broker_set.replicas
        and not broker_set.is_alive(header.broker_id, now_ms)
    ):
        # It would be in sync alone, and nobody else could be elected.
        raise MQError(
            ResponseCode.CONTROLLER_ELECT_MASTER_FAILED,
            f"replica {header.broker_id} of {header.broker_name} is not alive",
        )
    return allowed and not any(broker_set.is_alive(member, now_ms) for member in broker_set.sync_state_set)


def _register(controller: Controller, _: Request, header: wire.RegisterBrokerToController) -> events.AnyEvent:
    _check_cluster(controller, header.cluster_name, header.broker_name)
    broker_set = controller.machine.broker_sets.get(header.broker_name)
    replica = None if broker_set is None else broker_set.replicas.get(header.broker_id)
    # Two brokers with one id could both be master in the same epoch. A broker whose address changed registers
    # after its old connection was closed, or once its old address counts as down. (RocketMQ does not check.)
    if (
        broker_set is not None
        and replica is not None
        and replica.address != header.broker_address
        and broker_set.is_alive(header.broker_id, controller.leader_now_ms())
    ):
        raise MQError(
            ResponseCode.CONTROLLER_INVALID_REQUEST,
            f"broker id {header.broker_id} of {header.broker_name} is that of the broker at "
            f"{replica.address}, which is alive: was its brokerIdentity copied?",
        )
    return events.RegisterBroker(
        header.cluster_name, header.broker_name, header.broker_id, header.broker_address
    )


def _apply_broker_id(controller: Controller, _: Request, header: wire.ApplyBrokerId) -> events.AnyEvent:
    _check_names(header.cluster_name, header.broker_name)
    _check_cluster(controller, header.cluster_name, header.broker_name)
    if not header.register_check_code.partition(";")[0]:
        raise MQError(
            ResponseCode.SYSTEM_ERROR,
            f"registerCheckCode {header.register_check_code!r} has no address, expected host:port;time",
        )
    broker_set = controller.machine.broker_sets.get(header.broker_name)
    if broker_set is not None and header.applied_broker_id > broker_set.next_broker_id + MAX_ID_GAP:
        # The next id follows the greatest one: an id at the end of the range would be the last.
        raise MQError(
            ResponseCode.CONTROLLER_BROKER_ID_INVALID,
            f"{header.applied_broker_id} is no broker id of {header.broker_name}, whose next is "
            f"{broker_set.next_broker_id}",
        )
    return events.ApplyBrokerId(
        header.cluster_name, header.broker_name, header.applied_broker_id, header.register_check_code
    )


def _clean(_: Controller, __: Request, header: wire.CleanBrokerData) -> events.AnyEvent:
    return events.CleanBrokerData(
        header.cluster_name or "",
        header.broker_name,
        header.broker_controller_ids_to_clean or "",
        header.is_clean_living_broker,
    )


def _replica_info(controller: Controller, _: Request, header: wire.GetReplicaInfo) -> Reply:
    return queries.replica_info(controller.machine.broker_sets, header.broker_name)


def _next_broker_id(controller: Controller, _: Request, header: wire.GetNextBrokerId) -> Reply:
    return queries.next_broker_id(controller.machine.broker_sets, header.cluster_name, header.broker_name)


def _sync_state_data(controller: Controller, request: Request, _: wire.GetSyncStateData) -> Reply:
    body = request.command.body
    names = decode_broker_names(body) if len(body) else []
    return queries.sync_state_data(controller.machine.broker_sets, names, controller.leader_now_ms())


WRITES: Mapping[type[Header], MakeEvent] = MappingProxyType(
    {
        wire.AlterSyncStateSet: _alter,
        wire.ElectMaster: _elect,
        wire.RegisterBrokerToController: _register,
        wire.ApplyBrokerId: _apply_broker_id,
        wire.CleanBrokerData: _clean,
    }
)
"""Request -> the event it becomes; heartbeats (`heartbeat_handler.py`) are writes too. The controller's own
writes, from its timers and connections, are in `leadership.py`."""

CONSISTENT_READS: Mapping[type[Header], Read] = MappingProxyType(
    {wire.GetReplicaInfo: _replica_info, wire.GetNextBrokerId: _next_broker_id}
)
"""Request -> what is read once the barrier has passed."""

UNSAFE_READS: Mapping[type[Header], Read] = MappingProxyType({wire.GetSyncStateData: _sync_state_data})
"""Request -> what is read at once. The controller's own unsafe reads are those of its timers
(`leadership.py`): the event that they write decides again when it is applied."""

_FORWARDED: tuple[type[Header], ...] = (*WRITES, *CONSISTENT_READS, *UNSAFE_READS, BrokerHeartbeat)
FORWARDABLE: frozenset[int] = frozenset(int(header.code) for header in _FORWARDED)
"""Codes of the requests that a controller passes on to the leader."""
