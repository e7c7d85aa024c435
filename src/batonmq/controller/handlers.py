"""One function for each request a controller takes.

Requests that change or decide become events and are answered with what the state machine says of them;
consistent reads wait for a barrier, unsafe ones are answered from the state at hand (the classes of seed
004). All but metadata and configuration are for the leader: a follower answers CONTROLLER_NOT_LEADER.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from typing import Protocol

from batonmq.common import config as conf
from batonmq.common.config import ConfigError
from batonmq.controller import events
from batonmq.controller.config import FIXED_KEYS, ControllerConfig, Topology
from batonmq.controller.heartbeats import DEFAULT_TIMEOUT_MS, LOWEST_PRIORITY, NO_EPOCH, NO_OFFSET
from batonmq.controller.machine import ControllerMachine, Outcome
from batonmq.controller.proposer import NOT_LEADER, Proposer
from batonmq.controller.reads import Reads
from batonmq.controller.sessions import Sessions
from batonmq.net.connection import Connection
from batonmq.net.dispatch import Dispatcher, Reply, Request
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers import controller as wire
from batonmq.protocol.headers.namesrv import BrokerHeartbeat

log = logging.getLogger(__name__)

HEARTBEAT_DONE = Reply(code=0, remark="Heart beat success")
_NOT_LEADER = Reply(code=NOT_LEADER.code, remark=NOT_LEADER.remark)


class Controller(Protocol):
    """What the handlers need of the service around them."""

    config: ControllerConfig
    topology: Topology
    machine: ControllerMachine
    proposer: Proposer
    reads: Reads
    sessions: Sessions[Connection]

    @property
    def leading(self) -> bool:
        """This node leads and the state machine knows it."""

    @property
    def leader_id(self) -> str | None: ...
    def leader_now_ms(self) -> int: ...
    def decided(self, outcome: Outcome) -> None:
        """Acts on the effects of an outcome."""

    async def update_config(self, config: ControllerConfig) -> None:
        """Puts another configuration into force and into its file."""


def to_reply(outcome: Outcome) -> Reply:
    body = outcome.body
    return Reply(outcome.header, b"" if body is None else body.encode(), outcome.code, outcome.remark)


class Handlers:
    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    def register(self, dispatcher: Dispatcher) -> None:
        dispatcher.on(wire.AlterSyncStateSet, self.on_alter_sync_state_set)
        dispatcher.on(wire.ElectMaster, self.on_elect_master)
        dispatcher.on(wire.RegisterBrokerToController, self.on_register_broker)
        dispatcher.on(wire.ApplyBrokerId, self.on_apply_broker_id)
        dispatcher.on(wire.CleanBrokerData, self.on_clean_broker_data)
        dispatcher.on(BrokerHeartbeat, self.on_heartbeat)
        dispatcher.on(wire.GetReplicaInfo, self.on_get_replica_info)
        dispatcher.on(wire.GetNextBrokerId, self.on_get_next_broker_id)
        dispatcher.on(wire.GetSyncStateData, self.on_get_sync_state_data)
        dispatcher.on(wire.GetMetadata, self.on_get_metadata)
        dispatcher.on(wire.GetControllerConfig, self.on_get_config)
        dispatcher.on(wire.UpdateControllerConfig, self.on_update_config)

    # -- decided by the log --------------------------------------------------------------------------------

    def on_alter_sync_state_set(self, request: Request, header: wire.AlterSyncStateSet) -> Reply | None:
        if not self._controller.leading:
            return _NOT_LEADER
        body = wire.decode_sync_state_set(request.command.body)
        return self._propose(
            request,
            events.AlterSyncStateSet(
                header.broker_name,
                header.master_broker_id,
                header.master_epoch,
                body.sync_state_set,
                body.sync_state_set_epoch,
            ),
        )

    def on_elect_master(self, request: Request, header: wire.ElectMaster) -> Reply | None:
        return self._propose(
            request,
            events.ElectMaster(
                header.broker_name,
                header.broker_id,
                header.designate_elect,
                self._controller.config.enable_elect_unclean_master,
                "admin" if header.designate_elect or header.broker_id == events.NO_BROKER else "broker",
            ),
        )

    def on_register_broker(self, request: Request, header: wire.RegisterBrokerToController) -> Reply | None:
        return self._propose(
            request,
            events.RegisterBroker(
                header.cluster_name, header.broker_name, header.broker_id, header.broker_address
            ),
        )

    def on_apply_broker_id(self, request: Request, header: wire.ApplyBrokerId) -> Reply | None:
        return self._propose(
            request,
            events.ApplyBrokerId(
                header.cluster_name, header.broker_name, header.applied_broker_id, header.register_check_code
            ),
        )

    def on_clean_broker_data(self, request: Request, header: wire.CleanBrokerData) -> Reply | None:
        return self._propose(
            request,
            events.CleanBrokerData(
                header.cluster_name or "",
                header.broker_name,
                header.broker_controller_ids_to_clean or "",
                header.is_clean_living_broker,
            ),
        )

    def on_heartbeat(self, request: Request, header: BrokerHeartbeat) -> Reply | None:
        controller = self._controller
        broker_id = header.broker_id
        if broker_id is None:
            return Reply(
                code=int(ResponseCode.CONTROLLER_INVALID_REQUEST), remark="Heart beat with empty brokerId"
            )
        broker_set = controller.machine.broker_sets.get(header.broker_name)
        if broker_set is None or broker_id not in broker_set.replicas:
            if not controller.leading:
                return _NOT_LEADER
            return Reply(
                code=int(ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED),
                remark=f"replica {broker_id} of broker set {header.broker_name} is not registered",
            )
        session = controller.sessions.of(request.connection)
        session.brokers.add((header.broker_name, broker_id))
        if not controller.leading:
            return _NOT_LEADER
        timeout_ms = header.heartbeat_timeout_mills
        beat = events.Beat(
            header.cluster_name,
            header.broker_name,
            broker_id,
            header.broker_addr,
            session.id,
            timeout_ms if timeout_ms is not None and timeout_ms > 0 else DEFAULT_TIMEOUT_MS,
            NO_EPOCH if header.epoch is None else header.epoch,
            NO_OFFSET if header.max_offset is None else header.max_offset,
            NO_OFFSET if header.confirm_offset is None else header.confirm_offset,
            LOWEST_PRIORITY if header.election_priority is None else header.election_priority,
        )

        def answer(outcome: Outcome) -> None:
            if outcome.effects:
                controller.decided(outcome)
            request.reply(HEARTBEAT_DONE if outcome.code == 0 else to_reply(outcome))

        controller.proposer.submit_beat(beat, answer)
        return None

    def _propose(self, request: Request, event: events.AnyEvent) -> Reply | None:
        controller = self._controller
        if not controller.leading:
            return _NOT_LEADER

        def answer(outcome: Outcome) -> None:
            if outcome.effects:
                controller.decided(outcome)
            request.reply(to_reply(outcome))

        controller.proposer.submit(event, answer)
        return None

    # -- reads ---------------------------------------------------------------------------------------------

    def on_get_replica_info(self, request: Request, header: wire.GetReplicaInfo) -> Reply | None:
        machine, name = self._controller.machine, header.broker_name
        return self._read(request, lambda: machine.replica_info(name))

    def on_get_next_broker_id(self, request: Request, header: wire.GetNextBrokerId) -> Reply | None:
        machine = self._controller.machine
        return self._read(request, lambda: machine.next_broker_id(header.cluster_name, header.broker_name))

    def _read(self, request: Request, read: Callable[[], Outcome]) -> Reply | None:
        if not self._controller.leading:
            return _NOT_LEADER
        self._controller.reads.submit(read, lambda outcome: request.reply(to_reply(outcome)))
        return None

    def on_get_sync_state_data(self, request: Request, header: wire.GetSyncStateData) -> Reply:
        controller = self._controller
        if not controller.leading:
            return _NOT_LEADER
        body = request.command.body
        names = wire.decode_broker_names(body) if len(body) else []
        return to_reply(controller.machine.sync_state_data(names, controller.leader_now_ms()))

    def on_get_metadata(self, request: Request, header: wire.GetMetadata) -> Reply:
        controller = self._controller
        topology, leader_id = controller.topology, controller.leader_id
        return Reply(
            wire.GetMetadataReply(
                group=topology.group,
                controller_leader_id=leader_id,
                controller_leader_address=topology.rpc_addresses.get(leader_id or ""),
                is_leader=controller.leading,
                peers=topology.peers_text,
            )
        )

    # -- configuration -------------------------------------------------------------------------------------

    def on_get_config(self, request: Request, header: wire.GetControllerConfig) -> Reply:
        shown = dataclasses.replace(self._controller.config, controller_raft_secret="")
        return Reply(body=conf.to_properties(shown).encode())

    async def on_update_config(self, request: Request, header: wire.UpdateControllerConfig) -> Reply:
        controller = self._controller
        try:
            changes = conf.parse_properties(bytes(request.command.body).decode())
        except (UnicodeDecodeError, ConfigError) as error:
            raise MQError(ResponseCode.SYSTEM_ERROR, f"body is no properties file: {error}") from error
        forbidden = {"configBlackList", "configStorePath", "rocketmqHome"}
        forbidden.update(controller.config.config_black_list.split(";"))
        for key in changes:
            if key in forbidden:
                raise MQError(ResponseCode.NO_PERMISSION, f"Can not update config in black list: {key}")
            if key in FIXED_KEYS:
                raise MQError(
                    ResponseCode.NO_PERMISSION, f"{key} takes effect at start only; edit the file and restart"
                )
        try:
            config = conf.update(controller.config, changes, source="updateControllerConfig")
        except ConfigError as error:
            raise MQError(ResponseCode.SYSTEM_ERROR, str(error)) from error
        unknown = set(changes) - conf.keys_of([ControllerConfig])
        if unknown:
            log.warning("updateControllerConfig: unknown keys are ignored: %s", ", ".join(sorted(unknown)))
        await controller.update_config(config)
        log.info("configuration changed by %s: %s", request.connection.peer, changes)
        return Reply()
