"""Guards of acting masters that the simulation has to miss when they are gone."""

from __future__ import annotations

from typing import Any

from batonmq.broker.escape.bridge import EscapeBridge
from batonmq.broker.messages.appender import Appender, PutStatus
from batonmq.broker.pop.positions import Positions
from batonmq.broker.replica.fixed_role import FixedSlave
from batonmq.broker.replica.role_switch import RoleSwitch
from batonmq.broker.timer.already import AlreadyDelivered
from batonmq.broker.timer.layout import Checkpoint
from batonmq.broker.timer.state import TimerState
from batonmq.broker.timer.waiting import OpenMessages
from tests.simulation.mutation import Mutation, Patch


def _writes_its_copy() -> list[Patch]:
    end_of_turn = Appender._end_of_turn

    def append(self: Any) -> None:
        role = self._role
        before, role.is_master = role.is_master, role.serves
        try:
            end_of_turn(self)
        finally:
            role.is_master = before

    return [(Appender, "_end_of_turn", append)]


def _never_ends() -> list[Patch]:
    return [(RoleSwitch, "end_acting", lambda self: None)]


def _never_follows_again() -> list[Patch]:
    acts = FixedSlave.acts
    return [(FixedSlave, "acts", lambda self, acting: acts(self, acting or self._acts))]


def _offsets_pass_what_is_handed_out() -> list[Patch]:
    follow = Positions.follow
    return [(Positions, "follow", lambda self, least: follow(self, {}))]


def _done_without_a_master() -> list[Patch]:
    put = EscapeBridge.put

    async def once(self: Any, message: Any) -> Any:
        await put(self, message)
        return PutStatus.PUT_OK

    return [(EscapeBridge, "put", once)]


def _open_messages_come_at_once() -> list[Patch]:
    return [(OpenMessages, "_is_due", lambda self, unit: True)]


def _open_messages_are_dropped() -> list[Patch]:
    return [(TimerState, "leave_open", lambda self, units: None)]


def _later_open_messages_are_left_out() -> list[Patch]:
    checkpoint = TimerState.checkpoint

    def only_earlier(self: TimerState) -> Checkpoint:
        whole = checkpoint(self)
        return whole._replace(open=tuple(unit for unit in whole.open if unit.slot_ms < whole.read_ms))

    return [(TimerState, "checkpoint", only_earlier)]


def _nobody_looks_what_is_delivered() -> list[Patch]:
    async def take(self: AlreadyDelivered, message: Any) -> bool:
        return False

    return [(AlreadyDelivered, "take", take)]


MUTATIONS: dict[str, tuple[Mutation[None], tuple[int, ...]]] = {
    "own-log": (Mutation("an acting master writes to its copy of the log", _writes_its_copy), (0, 2, 10)),
    "never-ends": (Mutation("a slave acts on when its master is back", _never_ends), (0, 2)),
    "never-follows": (Mutation("a slave that acted does not follow again", _never_follows_again), (1, 2, 6)),
    "offsets": (
        Mutation("a group's offset passes what an acting master hands out", _offsets_pass_what_is_handed_out),
        (6, 11, 12),
    ),
    "no-master": (
        Mutation("a message that no master took counts as stored", _done_without_a_master),
        (1, 3),
    ),
    "early": (
        Mutation("timed messages that waited come early by a master's clock", _open_messages_come_at_once),
        (7120020,),
    ),
    "dropped": (
        Mutation("a timed message that no master took is given up", _open_messages_are_dropped),
        (7120007, 7120009),
    ),
}
"""Name -> the guard taken out, and seeds of which one at least must notice."""
LONELY: dict[str, tuple[Mutation[None], tuple[int, ...]]] = {
    "later-slots": (
        Mutation("a checkpoint leaves out what waits in later slots", _later_open_messages_are_left_out),
        (7130009,),
    ),
    "no-look": (
        Mutation("nobody looks what is delivered already", _nobody_looks_what_is_delivered),
        (7130000, 7130001),
    ),
}
"""The same for the stories of `lonely.py`."""
