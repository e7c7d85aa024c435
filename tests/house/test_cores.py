"""Sans-IO cores: what decides takes inputs and a time and returns outputs (docs/architecture.md, rule 1)."""

from __future__ import annotations

import pytest

from .source import Module, import_graph, matching, modules, reachable

IO = {"asyncio", "os", "random", "socket", "threading", "time"}

CORES = (
    "**/core.py",
    "**/*_core.py",
    "protocol/**/*.py",
    "admin/logical_offsets.py",
    "admin/static_plans.py",
    "broker/**/acks.py",
    "broker/**/attributes.py",
    "broker/**/consumers.py",
    "broker/**/deleted_topics.py",
    "broker/**/filters.py",
    "broker/**/held_pops.py",
    "broker/**/held_pulls.py",
    "broker/**/locks.py",
    "broker/**/offsets.py",
    "broker/**/producers.py",
    "broker/**/stats.py",
    "broker/**/subscriptions.py",
    "broker/**/topics.py",
    "broker/**/versions.py",
    "client/filter.py",
    "client/pop/received.py",
    "client/process_queue.py",
    "client/rebalance.py",
    "client/sharding.py",
    "client/trace_format.py",
    "common/properties.py",
    "common/running_time.py",
    "controller/**/elect.py",
    "controller/**/events.py",
    "controller/**/heartbeats.py",
    "controller/**/liveness.py",
    "controller/**/machine.py",
    "controller/**/replicas.py",
    "controller/**/sessions.py",
    "ha/**/copies.py",
    "ha/**/epochs.py",
    "ha/**/flow.py",
    "ha/**/proof.py",
    "ha/**/role.py",
    "ha/**/silence.py",
    "ha/**/sync_state.py",
    "namesrv/routes.py",
    "raft/**/*.py",
    "spark/decode.py",
    "spark/options.py",
    "spark/plan.py",
    "store/**/results.py",
    "store/**/scan.py",
)
"""Everything that decides without I/O: the one list of it. All of protocol/, and of raft/ all but SHELLS."""

SHELLS = {
    "raft/applier.py": "gives other work its turn between entries",
    "raft/membership_changes.py": "futures of those who wait for a change",
    "raft/persistence.py": "the disk's thread",
    "raft/proposals.py": "futures of those who propose",
    "raft/snapshots.py": "the disk's thread",
    "raft/barriers.py": "futures of those who wait for a read",
    "raft/disk.py": "files",
    "raft/node.py": "the event loop around the core",
    "raft/storage.py": "log and snapshots on a disk (`raft/disk.py`)",
    "raft/spare_connections.py": "more connections for the transport",
    "raft/transport.py": "messages to other nodes by net/",
    "raft/worker.py": "the thread for the disk",
}
"""Modules below the patterns that do I/O, and what they do it for."""

INDIRECT = {
    "broker/**/identity.py": "the identity of a broker, as data",
    "common/addresses.py": "splitting of addresses; the address of this host",
    "common/clock.py": "the protocol Clock",
    "routing/name_servers.py": "parsing of a list of name servers",
}
"""Modules that do I/O and that cores may import all the same, and what for."""


def cores() -> list[Module]:
    found = {module for pattern in CORES for module in matching(pattern)}
    kept = (m for m in found if m.place not in SHELLS and "handlers" not in m.path.parts)
    return sorted(kept, key=lambda module: module.place)


@pytest.mark.parametrize("core", cores(), ids=lambda core: core.place)
def test_a_core_imports_nothing_that_does_io(core: Module) -> None:
    assert not core.top_level_names & IO, f"{core.place} decides, and must not do I/O: pass in what it needs"


def test_what_cores_import_does_no_io_either() -> None:
    known = {module.name: module for module in modules()}
    exempt = {module.name for pattern in INDIRECT for module in matching(pattern)}
    graph = {name: imported - exempt for name, imported in import_graph(type_checking=False).items()}
    found = {}
    for core in cores():
        behind = (known[name] for name in reachable(graph, core.name))
        if io := sorted(module.place for module in behind if module.top_level_names & IO):
            found[core.place] = io
    assert not found


@pytest.mark.parametrize("pattern", [*CORES, *SHELLS, *INDIRECT])
def test_the_lists_name_what_exists(pattern: str) -> None:
    by_name = pattern in ("**/core.py", "**/*_core.py")
    assert by_name or matching(pattern), f"no module is {pattern}: take it off the list"
