"""Elections as the state machine carries them out; who wins is decided in `elect.py`."""

from __future__ import annotations

from batonmq.controller.effects import Effect, Election, Outcome, ReplicaDown, refusal
from batonmq.controller.elect import elect
from batonmq.controller.events import NO_BROKER
from batonmq.controller.replicas import BrokerSet
from batonmq.protocol.bodies.controller import ElectMasterBody
from batonmq.protocol.bodies.routes import BrokerMemberGroup
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.headers import controller as wire


def hold_election(
    broker_set: BrokerSet,
    now_ms: int,
    cause: str,
    *,
    asked: int = NO_BROKER,
    designated: bool = False,
    allow_unclean: bool = False,
) -> Outcome:
    """Elect a master, and put the result into the state.

    `asked` is the broker that asks to become master, or that an operator names (`designated`); without it the
    controller itself asks. `cause` goes into the event log.
    """
    alive = broker_set.alive(now_ms)
    old_master = broker_set.master_id
    candidates = broker_set.sync_state_set
    master = elect(
        broker_set,
        alive,
        asking=None if asked == NO_BROKER else asked,
        designated=asked if designated else None,
        allow_unclean=allow_unclean,
    )

    def election(result: str, *, unclean: bool = False) -> Election:
        return Election(
            cluster_name=broker_set.cluster_name,
            broker_name=broker_set.broker_name,
            cause=cause,
            result=result,
            old_master=old_master,
            new_master=broker_set.master_id,
            master_epoch=broker_set.master_epoch,
            sync_state_set_epoch=broker_set.sync_state_set_epoch,
            candidates=candidates,
            alive=tuple(sorted(alive)),
            asked_for=asked,
            unclean=unclean,
        )

    if master is not None and master == old_master:
        return Outcome(
            code=int(ResponseCode.CONTROLLER_MASTER_STILL_EXIST),
            remark=f"the master {master} of {broker_set.broker_name} is alive, nothing to elect",
            header=_elect_reply(broker_set),
            body=ElectMasterBody(sync_state_set=broker_set.sync_state_set),
            effects=(election("kept-master"),),
        )
    if master is not None:
        unclean = not broker_set.never_had_master and master not in candidates
        broker_set.set_master(master)
        return Outcome(
            header=_elect_reply(broker_set),
            body=_elect_body(broker_set),
            effects=(election("new-master", unclean=unclean),),
        )
    if asked != NO_BROKER:
        return refusal(
            ResponseCode.CONTROLLER_ELECT_MASTER_FAILED,
            f"no replica of {broker_set.broker_name} may become master: SyncStateSet {list(candidates)}, "
            f"alive {sorted(alive)}",
            election("refused"),
        )
    if old_master is not None:
        broker_set.lose_master()
    return refusal(
        ResponseCode.CONTROLLER_MASTER_NOT_AVAILABLE,
        f"the master of {broker_set.broker_name} is down and no member of the SyncStateSet "
        f"{list(candidates)} is alive",
        election("no-master"),
    )


def count_as_down(
    gone: list[tuple[BrokerSet, int]], now_ms: int, cause: str, *, allow_unclean: bool = False
) -> list[Effect]:
    """Count replicas as down, then elect at once where the master was among them."""
    effects: list[Effect] = []
    for broker_set, broker_id in gone:
        del broker_set.live[broker_id]
        effects.append(ReplicaDown(broker_set.broker_name, broker_id, cause))
    for broker_set, broker_id in gone:
        if broker_set.master_id == broker_id and (broker_set.live or cause != "heartbeat-timeout"):
            effects += hold_election(broker_set, now_ms, cause, allow_unclean=allow_unclean).effects
    return effects


def _elect_reply(broker_set: BrokerSet) -> wire.ElectMasterReply:
    return wire.ElectMasterReply(
        broker_set.master_id,
        broker_set.master_address,
        broker_set.master_epoch,
        broker_set.sync_state_set_epoch,
    )


def _elect_body(broker_set: BrokerSet) -> ElectMasterBody:
    addresses = {broker_id: replica.address for broker_id, replica in broker_set.replicas.items()}
    return ElectMasterBody(
        sync_state_set=broker_set.sync_state_set,
        broker_member_group=BrokerMemberGroup(broker_set.cluster_name, broker_set.broker_name, addresses),
        cluster=broker_set.cluster_name,
        broker_name=broker_set.broker_name,
        broker_addrs=addresses,
    )
