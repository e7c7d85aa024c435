"""The sequential specification of a controller, as its clients see it: one broker set, and its ids.

It says what RocketMQ's controller mode promises (seeds 000 and 001), independently of the state machine's
code: who may change a SyncStateSet, what each answer must show, in which order refusals are found. What it
leaves open is who is alive: an election may go to any member of the SyncStateSet, and a refusal because
somebody is not alive means nothing.

Decisions that no client asked for (a connection closed, a master that restarted) are operations too,
`Decided`, taken from the log: what they changed is known exactly.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, NamedTuple, TypeAlias

from batonmq.protocol.codes import ResponseCode

# -- one broker set ----------------------------------------------------------------------------------------


class SetState(NamedTuple):
    master: int | None
    master_epoch: int
    members: tuple[int, ...]
    set_epoch: int


class Alter(NamedTuple):
    """AlterSyncStateSet, as the sender believes things to be. Answered with `Altered` or `Refused`."""

    master: int
    master_epoch: int
    members: tuple[int, ...]
    set_epoch: int

    @property
    def fence(self) -> bool:
        """Whether a refusal raises the epoch (fenceRefused): about half of the alterations ask for it."""
        return (self.set_epoch + len(self.members)) % 2 == 0


class Fenced(NamedTuple):
    """An `Alter` of unknown outcome may have been refused, and have raised the epoch."""

    alter: Alter


class Altered(NamedTuple):
    members: tuple[int, ...]
    set_epoch: int


class Elect(NamedTuple):
    """ElectMaster by a broker for itself, or by an operator. Answered with `Elected` or `Refused`."""

    broker_id: int
    designated: bool


class Elected(NamedTuple):
    is_new: bool
    """False: the master is still there (MASTER_STILL_EXIST)."""
    state: SetState


class Read(NamedTuple):
    """getReplicaInfo. Answered with (master, master epoch, members, set epoch)."""


class Decided(NamedTuple):
    """An election that the controller decided by itself. Answered with the state after it."""


class Refused(NamedTuple):
    code: int


UNKNOWN_REPLICA = 99
"""An id that no replica has."""
_UNFIT = (ResponseCode.CONTROLLER_BROKER_NOT_ALIVE, ResponseCode.CONTROLLER_INVALID_REPLICAS)
"""Refusals because of a member. They raise the epoch if the sender asks for it."""

DECISION_REFUSALS = frozenset(
    {
        ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED,
        ResponseCode.CONTROLLER_INVALID_MASTER,
        ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH,
        ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH,
        ResponseCode.CONTROLLER_BROKER_NOT_ALIVE,
        ResponseCode.CONTROLLER_INVALID_REPLICAS,
        ResponseCode.CONTROLLER_ELECT_MASTER_FAILED,
    }
)
"""Answers to `Alter` and `Elect` that were decided: they say something of the state."""


# -- ids ---------------------------------------------------------------------------------------------------


class Ids(NamedTuple):
    """Key of the ids of one broker set, apart from what else is known of it."""

    broker_name: str


class NextId(NamedTuple):
    """GetNextBrokerId. Answered with the id."""


class ApplyId(NamedTuple):
    """ApplyBrokerId. Answered with "taken" (it is the sender's now) or `Refused`."""

    broker_id: int
    check_code: str


IdState: TypeAlias = tuple[tuple[str, ...], ...]


class ControllerModel:
    """Keys: a broker set's name, or its `Ids`."""

    def __init__(self, initial: dict[Any, Hashable]) -> None:
        self._initial = initial

    def initial(self, key: Any) -> Hashable:
        return self._initial[key]

    def step(self, state: Any, asked: Any, answer: Any) -> Hashable | None:
        match asked:
            case Read():
                return state if answer == state else None
            case Alter():
                return _alter(state, asked, answer)
            case Fenced(alter):
                return _raised(state) if _refusal(state, alter) in (None, *_UNFIT) else None
            case Elect():
                return _elect(state, asked, answer)
            case Decided():
                return _decided(state, answer)
            case NextId():
                return state if answer == _next_id(state) else None
            case ApplyId():
                return _apply_id(state, asked, answer)
        raise TypeError(f"unknown operation {asked}")

    def only_reads(self, asked: Any, answer: Any) -> bool:
        if isinstance(asked, Alter) and asked.fence and isinstance(answer, Refused):
            return answer.code not in _UNFIT
        refused = isinstance(answer, Refused) or (isinstance(answer, Elected) and not answer.is_new)
        return refused or isinstance(asked, Read | NextId)


def _alter(state: SetState, asked: Alter, answer: Altered | Refused | None) -> SetState | None:
    refusal = _refusal(state, asked)
    after = SetState(state.master, state.master_epoch, asked.members, state.set_epoch + 1)
    if answer is None:
        return after if refusal is None else None
    if isinstance(answer, Refused):
        if refusal is None and answer.code == ResponseCode.CONTROLLER_BROKER_NOT_ALIVE:
            refusal = answer.code  # a sender cannot know that
        if answer.code != refusal:
            return None
        return _raised(state) if asked.fence and refusal in _UNFIT else state
    is_right = refusal is None and answer == Altered(after.members, after.set_epoch)
    return after if is_right else None


def _raised(state: SetState) -> SetState:
    return state._replace(set_epoch=state.set_epoch + 1)


def _refusal(state: SetState, asked: Alter) -> ResponseCode | None:
    """Why a SyncStateSet is not altered, by what a sender can know; the first reason counts."""
    if set(asked.members) == set(state.members):
        return ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED
    if state.master is None or asked.master != state.master:
        return ResponseCode.CONTROLLER_INVALID_MASTER
    if asked.master_epoch != state.master_epoch:
        return ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH
    if asked.set_epoch != state.set_epoch:
        return ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH
    if UNKNOWN_REPLICA in asked.members:
        return ResponseCode.CONTROLLER_INVALID_REPLICAS
    return None


def _elect(state: SetState, asked: Elect, answer: Elected | Refused | None) -> SetState | None:
    if isinstance(answer, Refused):
        # Nobody eligible is alive; that changes nothing.
        return state if answer.code == ResponseCode.CONTROLLER_ELECT_MASTER_FAILED else None
    if answer is None:
        # Who would be elected, if it took effect: the designated one, else it depends on who is alive. A
        # broker that asks for itself while the master lives changes nothing.
        may = asked.designated and asked.broker_id in state.members and asked.broker_id != state.master
        return _after_election(state, asked.broker_id) if may else None
    if not answer.is_new:
        return state if answer.state == state and state.master is not None else None
    master = answer.state.master
    if master is None or master not in state.members or master == state.master:
        return None
    if asked.designated and master != asked.broker_id:
        return None
    after = _after_election(state, master)
    return after if answer.state == after else None


def _after_election(state: SetState, master: int) -> SetState:
    return SetState(master, state.master_epoch + 1, (master,), state.set_epoch + 1)


def _decided(state: SetState, after: SetState) -> SetState | None:
    if after.master is None:
        lost = SetState(None, state.master_epoch + 1, state.members, state.set_epoch)
        return after if state.master is not None and after == lost else None
    elected = after.master in state.members and after.master != state.master
    return after if elected and after == _after_election(state, after.master) else None


def _next_id(state: IdState) -> int:
    return max((int(broker_id) for broker_id, _ in state), default=0) + 1


def _apply_id(state: IdState, asked: ApplyId, answer: str | Refused | None) -> IdState | None:
    owner = dict(state).get(str(asked.broker_id))
    may_take = owner is None and (bool(state) or asked.broker_id == 1)
    after = (*state, (str(asked.broker_id), asked.check_code))
    if answer is None:
        return after if may_take else None
    if isinstance(answer, Refused):
        is_taken = owner is not None and owner != asked.check_code
        refused = is_taken or (owner is None and not may_take)
        return state if refused and answer.code == ResponseCode.CONTROLLER_BROKER_ID_INVALID else None
    if owner == asked.check_code:
        return state
    return after if may_take else None
