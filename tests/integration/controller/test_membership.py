"""Controllers that join, leave and replace others while the group runs: what an operator's commands do."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
from collections.abc import AsyncIterator
from functools import partial
from importlib.metadata import version
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.integration.controller.group import Group, brokers, until

from batonmq.admin.main import admin
from batonmq.admin.operations import controllers
from batonmq.admin.session import Admin, AdminError
from batonmq.controller.config import ControllerConfig
from batonmq.controller.service import ControllerService
from batonmq.demo.ports import free_ports
from batonmq.protocol.bodies.controller import ControllerMembers
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers import controller as wire
from batonmq.raft.config import RaftConfig


class Operator:
    """A group of three, and what one does to it."""

    def __init__(self, group: Group, admin: Admin, tmp_path: Path) -> None:
        self.group, self.admin, self.directory = group, admin, tmp_path
        self.newcomers: list[ControllerService] = []

    @property
    def addresses(self) -> str:
        return ";".join(f"127.0.0.1:{port}" for port in self.group.ports)

    async def newcomer(self, name: str, *, joins: bool = True) -> ControllerService:
        (port,) = free_ports(1)
        first = self.group.configs[0]
        config = dataclasses.replace(
            first,
            controller_d_leger_peers=f"{first.controller_d_leger_peers};{name}-127.0.0.1:{port}",
            controller_d_leger_self_id=name,
            controller_store_path=str(self.directory / name),
            controller_join_running_group=joins,
        )
        return await self.start(config)

    async def start(self, config: ControllerConfig) -> ControllerService:
        service = ControllerService(config)
        await service.start()
        self.newcomers.append(service)
        return service

    async def add(self, service: ControllerService) -> None:
        own = service.topology.self_id
        await controllers.add(self.admin, self.addresses, own, self.group.address(service), "", 10)

    async def remove(self, node_id: str) -> None:
        await controllers.remove(self.admin, self.addresses, node_id, 10)

    async def members(self) -> ControllerMembers:
        return await controllers.members(self.admin, self.addresses)

    async def voters(self) -> set[str]:
        return {each.controller_id for each in (await self.members()).members if each.role != "learner"}

    def number(self, service: ControllerService) -> int:
        return next(number for number, each in self.group.services.items() if each is service)

    async def leader(self) -> ControllerService:
        services = [*self.group.services.values(), *self.newcomers]
        await until(lambda: any(service.leading for service in services), "a leader")
        return next(service for service in services if service.leading)


CALM_MS = 1000
calm = pytest.mark.parametrize("operator", [CALM_MS], indirect=True)
"""For tests that nobody disturbs the leader. A machine that lets this process, in which all controllers are,
wait for an election timeout makes an election too: with 300 ms, pauses of 280 ms do it."""


@pytest.fixture
async def operator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> AsyncIterator[Operator]:
    # Nothing is kept before a snapshot: whoever joins later needs it.
    monkeypatch.setattr("batonmq.controller.service.RaftConfig", partial(RaftConfig, trailing_entries=0))
    group = Group(tmp_path, 3, election_timeout_ms=getattr(request, "param", 300))
    await group.start()
    await group.leader()
    async with Admin(None) as admin:
        operator = Operator(group, admin, tmp_path)
        yield operator
    for service in operator.newcomers:
        await service.stop()
    await group.stop_all()


@calm
async def test_a_newcomer_waits_without_disturbing_and_then_knows_everything(operator: Operator) -> None:
    leader = await operator.leader()
    first, second = await brokers(operator.group.address(leader))
    try:
        await first.elect(operator.group.address(leader))
        await leader.node.take_snapshot()
        term = leader.node.term
        new = await operator.newcomer("n3")
        await asyncio.sleep(2.5 * CALM_MS / 1000)
        assert (leader.node.term, leader.leading, new.leader_id) == (term, True, None)
        assert new.membership.standing == "joining" and "s" not in new.machine.broker_sets
        await operator.add(new)
        assert await operator.voters() == {"n0", "n1", "n2", "n3"}
        assert new.node.core.log.base_index > 0, "it got the snapshot, not the log from its beginning"
        await until(lambda: "s" in new.machine.broker_sets, "the newcomer knows the broker set")
        await until(lambda: new.membership.standing == "voter", "it knows that it is a voter")
        assert leader.node.term == term
        # Whichever controller they ask, tools and brokers learn of the newcomer.
        meta = (await first.client.call(operator.group.address(new), wire.GetMetadata())).header
        assert isinstance(meta, wire.GetMetadataReply)
        assert f"n3:{operator.group.address(new)};" in meta.peers
        assert meta.controller_leader_address == operator.group.address(leader)
        await operator.add(new)  # once more, as after an answer that was lost
    finally:
        await first.stop()
        await second.stop()


@calm
async def test_a_learner_that_was_never_there_does_not_answer(operator: Operator) -> None:
    leader = await operator.leader()
    (port,) = free_ports(1)
    await leader.membership.add("n9", f"127.0.0.1:{port}", "")

    def answering() -> set[str]:
        return {each.controller_id for each in leader.membership.show().members if each.answers}

    # One follower's answer completes the majority of a new leader, so the other's may still be on its way.
    await until(lambda: {"n0", "n1", "n2"} <= answering(), "every voter answers")
    assert answering() == {"n0", "n1", "n2"}


@calm
async def test_who_is_removed_says_so_once_and_disturbs_nobody(
    operator: Operator, caplog: pytest.LogCaptureFixture
) -> None:
    leader = await operator.leader()
    gone = next(each for each in operator.group.services.values() if each is not leader)
    own, term = gone.topology.self_id, leader.node.term
    with caplog.at_level(logging.WARNING):
        await operator.remove(own)
        await operator.remove(own)
        # By somebody who got an old membership from a controller without a leader, as in an election.
        await operator.admin.ask(operator.group.address(leader), wire.RemoveController(own))
        await until(lambda: gone.membership.standing == "removed", "the removed one is notified")
        await asyncio.sleep(2.5 * CALM_MS / 1000)
        said = [r.getMessage() for r in caplog.records if "was removed from the group" in r.getMessage()]
    assert len(said) == 1 and own in said[0]
    assert (leader.node.term, leader.leading) == (term, True)
    assert await operator.voters() == {f"n{i}" for i in range(3)} - {own}
    assert (gone.leader_id, gone.leading) == (None, False)


@calm
async def test_a_learner_that_is_removed_learns_of_it(
    operator: Operator, caplog: pytest.LogCaptureFixture
) -> None:
    leader = await operator.leader()
    new = await operator.newcomer("n3")
    await leader.node.changes.add_learner("n3", operator.group.address(new))
    await until(lambda: new.membership.standing == "learner", "it receives the log")
    term = leader.node.term
    with caplog.at_level(logging.WARNING):
        await operator.remove("n3")
        await until(lambda: new.membership.standing == "removed", "the removed learner is notified")
        await asyncio.sleep(2.5 * CALM_MS / 1000)
    said = [r.getMessage() for r in caplog.records if "was removed from the group" in r.getMessage()]
    assert len(said) == 1 and "n3" in said[0]
    assert (leader.node.term, leader.leading, new.leader_id) == (term, True, None)


async def test_a_leader_that_is_to_be_removed_hands_over_first(operator: Operator) -> None:
    leader = await operator.leader()
    new = await operator.newcomer("n3")
    await operator.add(new)
    await operator.remove(leader.topology.self_id)
    await until(lambda: leader.membership.standing == "removed", "the former leader is notified")
    heir = await operator.leader()
    assert heir is not leader and len(heir.node.members.voters) == 3
    # And the newcomer counts: with one more of the old ones gone it makes the majority.
    rest = [each for each in operator.group.services.values() if each is not leader]
    await operator.group.stop(operator.number(rest[0]))
    survivor = await operator.leader()
    first, second = await brokers(operator.group.address(survivor))
    await first.elect(operator.group.address(survivor))
    await first.stop()
    await second.stop()


async def test_leadership_is_handed_to_whom_the_operator_names(operator: Operator) -> None:
    leader = await operator.leader()
    other = next(each for each in operator.group.services.values() if each is not leader)
    await controllers.transfer(operator.admin, operator.addresses, other.topology.self_id, 10)
    assert (await operator.members()).leader_id == other.topology.self_id
    with pytest.raises(MQError, match="n7 is not another voter"):
        await controllers.transfer(operator.admin, operator.addresses, "n7", 10)


async def run(*words: str) -> Result:
    """A command of `batonmq admin`, as a process runs it."""
    return await asyncio.to_thread(CliRunner().invoke, admin, list(words))


@calm
async def test_the_removal_of_a_controller_that_is_not_a_member_fails(operator: Operator) -> None:
    result = await run("removeController", "-a", operator.addresses, "-i", "n7")
    assert result.exit_code == 1
    assert "n7 is not a member of g, whose members are n0, n1, n2" in result.output
    assert await operator.voters() == {"n0", "n1", "n2"}


@pytest.mark.parametrize("name", ["removeController", "transferControllerLeader"])
async def test_a_wrong_address_is_no_reason_to_wait_for_a_minute(name: str) -> None:
    addresses = ";".join(f"127.0.0.1:{port}" for port in free_ports(2))
    result = await asyncio.wait_for(run(name, "-a", addresses, "-i", "n7"), 20)
    assert result.exit_code == 1
    refused = "; ".join(f"{address}: Connection refused" for address in addresses.split(";"))
    assert result.output == f"Error: {refused}\n"


async def test_controllers_that_have_answered_may_be_away_for_longer(
    operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them restart: the member that answered last goes away too, for as long as somebody waits."""
    await operator.members()
    await operator.group.stop_all()
    monkeypatch.setattr(controllers, "_RESTART_S", 0)
    with pytest.raises(AdminError, match="whether n1 is removed is not known"):
        await controllers.remove(operator.admin, operator.addresses, "n1", 1)


@calm
async def test_the_members_are_shown_with_their_versions(operator: Operator) -> None:
    leader = await operator.leader()
    follower = next(each for each in operator.group.services.values() if each is not leader)
    await operator.group.stop(operator.number(follower))
    result = await run("getControllerMembers", "-a", operator.addresses, "--json")
    shown = {row["id"]: row["version"] for row in json.loads(result.output)}
    gone = follower.topology.self_id
    assert shown == {node: None if node == gone else version("batonmq") for node in ("n0", "n1", "n2")}


async def test_what_would_be_a_mistake_is_refused(
    operator: Operator, caplog: pytest.LogCaptureFixture
) -> None:
    leader = await operator.leader()
    founder = await operator.newcomer("n3", joins=False)
    with pytest.raises(AdminError, match="create a separate Raft group"):
        await operator.add(founder)
    for node_id, address, complaint in [
        ("n0", "127.0.0.1:1", "n0 is a member already"),
        ("n4", f"127.0.0.1:{operator.group.ports[1]}", "is the address of n1"),
        ("n4", "here", "is not an address"),
        ("", "127.0.0.1:1", "needs an id"),
    ]:
        with pytest.raises(MQError, match=complaint):
            await leader.membership.add(node_id, address, "")
    with pytest.raises(AdminError, match="start n5 first"):
        (port,) = free_ports(1)
        await controllers.add(operator.admin, operator.addresses, "n5", f"127.0.0.1:{port}", "", 1)
    followers = [each for each in operator.group.services.values() if each is not leader]
    await operator.group.stop(operator.number(followers[0]))
    await until(
        lambda: len(leader.node.core.replication.active(leader.node.members.voters)) == 2, "one is silent"
    )
    with pytest.raises(MQError, match=r"only n\d would answer: no majority"):
        await operator.remove(followers[1].topology.self_id)  # the one that lives
    assert leader.leading and len(leader.node.members.voters) == 3
    await operator.remove(followers[0].topology.self_id)
    await until(
        lambda: founder.membership.standing == "removed", "the group has said that n3 is not a member"
    )
    with pytest.raises(AdminError, match="was not started to join it"):
        await operator.add(founder)
    lines = [record.getMessage() for record in caplog.records if "controller n3 " in record.getMessage()]
    assert [text.split(",")[0] for text in lines] == ["controller n3 is no member of the group g"]


@calm
async def test_a_replacement_that_cannot_be_is_refused_before_anybody_is_removed(operator: Operator) -> None:
    leader = await operator.leader()
    follower = next(each for each in operator.group.services.values() if each is not leader)
    old, address = follower.topology.self_id, operator.group.address(follower)

    async def replace(new: str, raft: str) -> None:
        await controllers.replace(operator.admin, operator.addresses, old, new, raft, "", 2)

    everybody = {"n0", "n1", "n2"}
    with pytest.raises(AdminError, match=f"{old} is the controller to replace: the new one needs another id"):
        await replace(old, address)
    with pytest.raises(AdminError, match=f"at {address} is controller {old} of group g, not n3"):
        await replace("n3", address)
    assert await operator.voters() == everybody
    await operator.group.stop(operator.number(follower))
    with pytest.raises(AdminError, match="Connection refused; start n3 first"):
        await replace("n3", address)
    assert await operator.voters() == everybody


async def test_who_is_a_member_already_is_not_to_be_started_with_an_empty_directory(
    operator: Operator,
) -> None:
    leader = await operator.leader()
    follower = next(each for each in operator.group.services.values() if each is not leader)
    name, address = follower.topology.self_id, operator.group.address(follower)
    await operator.group.stop(operator.number(follower))

    async def add(node_id: str, raft: str) -> None:
        await controllers.add(operator.admin, operator.addresses, node_id, raft, "", 2)

    with pytest.raises(AdminError, match=f"{name} is a member already .*: start it again with its directory"):
        await add(name, address)
    (port,) = free_ports(1)
    with pytest.raises(
        AdminError, match=f"^{name} is a member already, at {address}; a new controller needs"
    ):
        await add(name, f"127.0.0.1:{port}")


async def test_the_log_says_who_belongs_to_it_after_a_restart(
    operator: Operator, caplog: pytest.LogCaptureFixture
) -> None:
    new = await operator.newcomer("n3")
    await operator.add(new)
    await operator.remove("n0")
    gone = operator.group.configs[0]
    await operator.group.stop(0)
    for number in (1, 2):
        await operator.group.stop(number)
    config = new.config
    await new.stop()
    operator.newcomers.clear()
    with caplog.at_level(logging.INFO):
        await operator.group.start(1, 2)
        again = await operator.start(dataclasses.replace(config, controller_join_running_group=False))
        leader = await operator.leader()
    assert set(leader.node.members.voters) == set(again.node.members.voters) == {"n1", "n2", "n3"}
    warned = [r.getMessage() for r in caplog.records if "bring it up to date" in r.getMessage()]
    assert len(warned) == 3 and all("the group consists of n1-" in text for text in warned)
    # A controller that was away when it was removed is notified when it comes back.
    caplog.clear()
    returned = await operator.start(gone)
    await until(lambda: returned.membership.standing == "removed", "it is notified", 5)
    assert sum("was removed from the group" in r.getMessage() for r in caplog.records) == 1
    assert leader.leading


async def test_jraft_controllers_join_under_both_their_addresses(tmp_path: Path) -> None:
    raft, rpc = free_ports(3), free_ports(3)

    def config(count: int, own: int) -> ControllerConfig:
        return ControllerConfig(
            controller_type="jRaft",
            j_raft_group_id="jr",
            j_raft_server_id=f"127.0.0.1:{raft[own]}",
            j_raft_init_conf=",".join(f"127.0.0.1:{port}" for port in raft[:count]),
            j_raft_controller_rpc_addr=",".join(f"127.0.0.1:{port}" for port in rpc[:count]),
            j_raft_election_timeout_ms=300,
            controller_store_path=str(tmp_path / str(own)),
            controller_raft_secret="sesame",
            controller_join_running_group=own == 2,
            bind_address="127.0.0.1",
        )

    services = [
        ControllerService(config(2, 0)),
        ControllerService(config(2, 1)),
        ControllerService(config(3, 2)),
    ]
    try:
        for service in services:
            await service.start()
        await until(lambda: any(service.leading for service in services), "a leader")
        async with Admin(None) as admin:
            own, served = f"127.0.0.1:{raft[2]}", f"127.0.0.1:{rpc[2]}"
            await controllers.add(admin, f"127.0.0.1:{rpc[0]}", own, own, served, 10)
            for service in services:
                await until(lambda s=service: own in s.node.members.voters, "all know of it")
                assert service.membership.peers_text == "".join(f"127.0.0.1:{port};" for port in rpc)
            await controllers.transfer(admin, f"127.0.0.1:{rpc[0]}", own, 10)
            assert await admin.leading_controller(f"127.0.0.1:{rpc[1]}") == served
    finally:
        for service in services:
            await service.stop()
