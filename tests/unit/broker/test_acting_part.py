"""When the part for acting masters decides, whatever comes first: members, the role, or a notice."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from batonmq.broker.acting.part import ActingPart
from batonmq.broker.members import MemberGroup
from batonmq.broker.role import RoleState
from batonmq.protocol.headers.broker.replication import NotifyMinBrokerIdChange

MASTER, SLAVE = "10.0.0.1:1", "10.0.0.2:1"


class Rig:
    """A slave that is linked to its master."""

    def __init__(self) -> None:
        self.role, self.members, self.acts = RoleState(), MemberGroup(), False
        config = SimpleNamespace(
            enable_slave_acting_master=True, enable_controller_mode=False, broker_name="a", namesrv_addr=""
        )
        broker = SimpleNamespace(
            settings=SimpleNamespace(broker=config, listeners=[]),
            members=self.members,
            role=self.role,
            tables=SimpleNamespace(watch=SimpleNamespace()),
            replication=SimpleNamespace(following=True),
            address=SLAVE,
            clock=SimpleNamespace(monotonic_ms=lambda: 1_000),
        )
        self.part = ActingPart(cast("Any", broker))
        self.part._switch = cast("Any", SimpleNamespace(become_acting=self._act, end_acting=self._end))

    def _act(self) -> None:
        self.acts = True
        self.role.set_acting(True)
        self.part.role_changed(self.role)

    def _end(self) -> None:
        self.acts = False
        self.role.set_acting(False)
        self.part.role_changed(self.role)

    def become_slave(self) -> None:
        self.role.set_slave(broker_id=1, epoch=0, master_address=MASTER, master_ha_address=None)
        self.part.role_changed(self.role)

    def notice(self) -> None:
        request = SimpleNamespace(connection=SimpleNamespace(peer="n"))
        header = NotifyMinBrokerIdChange(
            min_broker_id=1, broker_name="a", min_broker_addr=SLAVE, offline_broker_addr=MASTER
        )
        self.part._min_broker_id_changed(cast("Any", request), header)


async def test_a_master_known_before_the_role_counts_as_known() -> None:
    """Otherwise a notice that it left was not understood, and a linked slave waited two more seconds."""
    rig = Rig()
    rig.members.update({0: MASTER, 1: SLAVE})
    rig.become_slave()
    rig.notice()
    rig.members.update({1: SLAVE})
    assert rig.acts


async def test_without_a_notice_a_linked_slave_waits() -> None:
    rig = Rig()
    rig.become_slave()
    rig.members.update({0: MASTER, 1: SLAVE})
    rig.members.update({1: SLAVE})
    assert not rig.acts
    rig.part._cancel_timer()


@pytest.mark.parametrize("members", [{1: SLAVE}, {1: SLAVE, 2: "10.0.0.3:1"}])
async def test_a_slave_that_gets_its_role_after_the_master_left_acts(members: dict[int, str]) -> None:
    rig = Rig()
    rig.members.update({0: MASTER, **members})
    rig.part._broker.replication = None
    rig.members.update(members)
    rig.become_slave()
    assert rig.acts
    rig.members.update({0: MASTER, **members})
    assert not rig.acts
