"""Who founds a group of controllers and who joins one, and where its members are reached."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from batonmq.controller.config import ControllerConfig
from batonmq.controller.membership import Membership, founders
from batonmq.raft.messages import Members
from batonmq.raft.node import RaftNode


def dledger(**more: Any) -> ControllerConfig:
    return ControllerConfig(
        controller_d_leger_peers="n0-h0:1;n1-h1:1;n3-h3:1", controller_d_leger_self_id="n3", **more
    )


def jraft(**more: Any) -> ControllerConfig:
    return ControllerConfig(
        controller_type="jRaft",
        j_raft_server_id="h3:1",
        j_raft_init_conf="h0:1,h3:1",
        j_raft_controller_rpc_addr="h0:2,h3:2",
        **more,
    )


def test_one_that_founds_a_group_votes_in_it() -> None:
    assert founders(dledger().topology()) == Members({"n0": "h0:1", "n1": "h1:1", "n3": "h3:1"})


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (dledger, Members({"n0": "h0:1", "n1": "h1:1"}, {"n3": "h3:1"})),
        (jraft, Members({"h0:1": "h0:1"}, {"h3:1": "h3:1"}, {"h0:1": "h0:2", "h3:1": "h3:2"})),
    ],
)
def test_one_that_joins_has_no_vote_but_knows_whom_to_answer(config: Any, expected: Members) -> None:
    assert founders(config(controller_join_running_group=True).topology()) == expected


def membership(config: ControllerConfig, members: Members) -> Membership:
    node = SimpleNamespace(members=members, leader_id=None)
    return Membership(config.topology(), cast("RaftNode", node), 1_000)


def test_addresses_are_those_of_the_log_not_of_the_configuration() -> None:
    now = membership(dledger(), Members({"n1": "h1:1", "n4": "h4:1"}, {"n5": "h5:1"}))
    assert now.peers_text == "n1:h1:1;n4:h4:1;"
    assert [now.rpc_address(peer) for peer in ("n0", "n4", "n5", None)] == [None, "h4:1", "h5:1", None]


def test_addresses_for_brokers_are_in_the_log_where_the_ports_differ() -> None:
    # The founders of a group that an earlier release founded are known by the configuration alone.
    now = membership(jraft(), Members({"h0:1": "h0:1", "h4:1": "h4:1"}, {}, {"h4:1": "h4:2"}))
    assert now.peers_text == "h0:2;h4:2;"
    assert now.rpc_address("h4:1") == "h4:2"


def test_steps_of_a_change_keep_what_they_do_not_concern() -> None:
    members = Members({"a": "a:1"}, {"c": "c:1"}, {"a": "a:2", "c": "c:2"})
    grown = members.with_learner("b", "b:1", "b:2")
    assert grown == Members({"a": "a:1"}, {"c": "c:1", "b": "b:1"}, {"a": "a:2", "c": "c:2", "b": "b:2"})
    assert grown.promoted("b").voters == {"a": "a:1", "b": "b:1"}
    assert grown.promoted("b").without("b") == members
    assert members.without("c") == Members({"a": "a:1"}, {}, {"a": "a:2"})
