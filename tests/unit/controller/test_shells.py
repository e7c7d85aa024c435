"""The thin parts around the state machine: proposer, reads, sessions, event log."""

from __future__ import annotations

import asyncio
import json
import resource
import signal
from collections.abc import Callable
from pathlib import Path
from typing import cast

import msgspec
import pytest

from batonmq.controller import events, notices
from batonmq.controller.effects import Cleaned, LeadershipStarted, Outcome
from batonmq.controller.eventlog import EventLog
from batonmq.controller.heartbeat_handler import MAX_HEARTBEAT_BYTES
from batonmq.controller.machine import ControllerMachine
from batonmq.controller.notices import RoleChangeNotices
from batonmq.controller.proposer import (
    ANSWERED_WAIT_S,
    MAX_BEATS,
    MAX_ENTRY_BYTES,
    MAX_EVENTS,
    MIN_BATCH,
    PIPELINE,
    PROMPT_S,
    Proposer,
)
from batonmq.controller.reads import MIN_BATCH as MIN_READS
from batonmq.controller.reads import Reads
from batonmq.controller.replicas import BrokerSet
from batonmq.controller.sessions import Sessions
from batonmq.net.client import RemotingClient
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.headers.controller import NotifyBrokerRoleChanged
from batonmq.raft.errors import (
    NodeStopped,
    NotLeader,
    Overloaded,
    ProposalLost,
    RaftError,
    ReadUnavailable,
    ReplicaLagging,
)


class FakeLog:
    """Applies entries to a machine on request, or fails them."""

    def __init__(self) -> None:
        self.machine = ControllerMachine()
        self.entries: list[events.Entry] = []
        self.error: RaftError | None = None
        self.gate: asyncio.Event | None = None
        self.barriers = 0

    async def propose(self, data: bytes) -> object:
        self.entries.append(events.decode(data))
        index = len(self.entries)
        if self.gate is not None:
            await self.gate.wait()
        if self.error is not None:
            raise self.error
        return self.machine.apply(index, data)

    async def read_index(self) -> None:
        self.barriers += 1
        if self.gate is not None:
            await self.gate.wait()
        if self.error is not None:
            raise self.error


def proposer(
    log: FakeLog, decided: Callable[[Outcome], None] = lambda outcome: None, **overrides: int
) -> Proposer:
    values = {"coalesce_ms": 5, "timeout_ms": 1_000, "capacity": 10_000} | overrides
    return Proposer(log, lambda: 1_234, decided=decided, **values)


def claim(broker_id: int, name: str = "s") -> events.ApplyBrokerId:
    return events.ApplyBrokerId("c", name, broker_id, f"h{broker_id}:1;1")


def beat(broker_id: int) -> events.Beat:
    return events.Beat("c", "s", broker_id, "h:1", 1, 1_000, 0, 0, 0, 0)


async def settle(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.001)


async def test_all_events_of_a_turn_share_one_entry_and_one_time() -> None:
    log, outcomes = FakeLog(), list[Outcome]()
    mine = proposer(log)
    for number in range(1, 4):
        mine.submit(claim(number), outcomes.append)
    await settle(lambda: len(outcomes) == 3)
    assert [len(entry.events) for entry in log.entries] == [3]
    assert log.entries[0].now_ms == 1_234
    assert [outcome.code for outcome in outcomes] == [0, 0, 0]
    await mine.close()


async def test_heartbeats_share_an_event_and_keep_their_place_before_what_follows() -> None:
    log, outcomes, decided = FakeLog(), list[Outcome](), list[Outcome]()
    mine = proposer(log, decided.append)
    mine.submit(claim(1))
    mine.submit_beat(beat(1), outcomes.append)
    mine.submit_beat(beat(1), outcomes.append)
    mine.submit(events.ElectMaster("s", 1, False, False, "broker"), outcomes.append)
    await settle(lambda: len(outcomes) == 3)
    (entry,) = log.entries
    kinds = [type(event) for event in entry.events]
    assert kinds == [events.ApplyBrokerId, events.Heartbeats, events.ElectMaster]
    # The replica came up once: that is reported once, and not by any of the two senders.
    assert [len(outcome.effects) for outcome in decided] == [1]
    assert [len(outcome.effects) for outcome in outcomes] == [0, 0, 1]
    await mine.close()


async def test_heartbeats_wait_for_company_but_not_for_ever() -> None:
    log, outcomes = FakeLog(), list[Outcome]()
    mine = proposer(log, coalesce_ms=200)
    for number in range(1, 6):
        mine.submit_beat(beat(number), outcomes.append)
        await asyncio.sleep(0.001)
    assert log.entries == []
    await settle(lambda: len(outcomes) == 5)
    assert len(log.entries) == 1
    await mine.close()


async def test_under_load_entries_grow_instead_of_queues() -> None:
    log, outcomes = FakeLog(), list[Outcome]()
    log.gate = asyncio.Event()
    mine = proposer(log)
    total = 2 * MIN_BATCH + 10
    for number in range(1, total + 1):
        mine.submit(claim(number), outcomes.append)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    # The first goes alone; the second when it has company; all others wait for one of the two.
    assert [len(entry.events) for entry in log.entries] == [1, MIN_BATCH]
    log.gate.set()
    await settle(lambda: len(outcomes) == total)
    assert len(log.entries) == PIPELINE + 1
    order = [event.broker_id for entry in log.entries for event in entry.events]  # type: ignore[union-attr]
    assert order == list(range(1, total + 1))
    await mine.close()


async def test_a_full_company_of_heartbeats_does_not_wait_for_more() -> None:
    log, outcomes = FakeLog(), list[Outcome]()
    mine = proposer(log, coalesce_ms=60_000)
    for number in range(MIN_BATCH):
        mine.submit_beat(beat(number), outcomes.append)
    await settle(lambda: len(outcomes) == MIN_BATCH)
    assert len(log.entries) == 1
    await mine.close()


async def test_of_a_brokers_heartbeats_only_the_newest_is_written() -> None:
    log, outcomes = FakeLog(), list[Outcome]()
    mine = proposer(log, coalesce_ms=50)
    for offset in range(3):
        mine.submit_beat(msgspec.structs.replace(beat(1), max_offset=offset), outcomes.append)
    mine.submit_beat(msgspec.structs.replace(beat(1), session=2), outcomes.append)
    await settle(lambda: len(outcomes) == 4)
    ((beats,),) = (entry.events for entry in log.entries)
    assert isinstance(beats, events.Heartbeats)
    assert [(each.session, each.max_offset) for each in beats.beats] == [(1, 2), (2, 0)]
    await mine.close()


async def test_heartbeats_that_nobody_waits_for_go_later_but_delay_no_other() -> None:
    log, outcomes = FakeLog(), list[Outcome]()
    mine = proposer(log, coalesce_ms=1)
    loop = asyncio.get_running_loop()
    began = loop.time()
    mine.submit_beat(beat(1))
    await settle(lambda: len(log.entries) == 1)
    assert loop.time() - began >= ANSWERED_WAIT_S
    for number in range(MIN_BATCH):
        mine.submit_beat(beat(number))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(log.entries) == 1, "so many are not a reason to hurry"
    began = loop.time()
    mine.submit_beat(beat(MIN_BATCH), outcomes.append)
    await settle(lambda: len(outcomes) == 1)
    assert loop.time() - began < ANSWERED_WAIT_S, "the one that is waited for takes the others with it"
    assert len(cast("events.Heartbeats", log.entries[1].events[0]).beats) == MIN_BATCH + 1
    await mine.close()


async def test_the_log_keeps_up_unless_an_entry_is_under_way_for_long() -> None:
    log, outcomes = FakeLog(), list[Outcome]()
    log.gate = asyncio.Event()
    mine = proposer(log, capacity=2)
    assert mine.keeps_up
    mine.submit(claim(1), outcomes.append)
    await settle(lambda: len(log.entries) == 1)
    assert mine.keeps_up
    await asyncio.sleep(PROMPT_S)
    assert not mine.keeps_up
    log.gate.set()
    await settle(lambda: len(outcomes) == 1)
    assert mine.keeps_up
    mine.submit(claim(2))
    mine.submit(claim(3))
    assert not mine.keeps_up, "too much waits"
    log.error = Overloaded("full")
    await settle(lambda: len(log.entries) == 2)
    await asyncio.sleep(0)
    assert not mine.keeps_up, "the last entry was refused"
    log.error = None
    mine.submit(claim(4), outcomes.append)
    await settle(lambda: len(outcomes) == 2)
    assert mine.keeps_up
    await mine.close()
    assert not mine.keeps_up


async def test_an_entry_is_bounded() -> None:
    log, outcomes = FakeLog(), list[Outcome]()
    mine = proposer(log)
    for _ in range(MAX_EVENTS + 1):
        mine.submit(claim(1), outcomes.append)
    await settle(lambda: len(outcomes) == MAX_EVENTS + 1)
    assert [len(entry.events) for entry in log.entries] == [MAX_EVENTS, 1]
    await mine.close()


async def test_an_event_that_cannot_be_written_takes_no_other_with_it() -> None:
    log, outcomes = FakeLog(), dict[str, Outcome]()
    mine = proposer(log)

    def note(name: str) -> Callable[[Outcome], None]:
        return lambda outcome: outcomes.__setitem__(name, outcome)

    mine.submit(claim(1), note("first"))
    mine.submit(events.AlterSyncStateSet("s", 1, 1, (2**64,), 1), note("no number"))
    mine.submit_beat(beat(1), note("beat"))
    mine.submit(events.RegisterBroker("c", "s", 1, "h" * MAX_ENTRY_BYTES), note("too long"))
    mine.submit(claim(2), note("last"))
    await settle(lambda: len(outcomes) == 5)
    invalid = {name for name, out in outcomes.items() if out.code == ResponseCode.CONTROLLER_INVALID_REQUEST}
    assert invalid == {"no number", "too long"}
    assert outcomes["first"].code == outcomes["beat"].code == outcomes["last"].code == 0
    assert set(log.machine.broker_sets["s"].replicas) == {1, 2}
    await mine.close()


async def test_heartbeats_of_any_number_fit_into_entries() -> None:
    log, outcomes = FakeLog(), list[Outcome]()
    mine = proposer(log)
    for number in range(MAX_BEATS + 1):
        mine.submit_beat(beat(number), outcomes.append)
    await settle(lambda: len(outcomes) == MAX_BEATS + 1)
    sizes = [len(e.beats) for entry in log.entries for e in entry.events if isinstance(e, events.Heartbeats)]
    assert sum(sizes) == MAX_BEATS + 1 and max(sizes) <= MAX_BEATS
    largest = events.Beat("c", "s" * MAX_HEARTBEAT_BYTES, 1, "h", 2**63 - 1, *[2**63 - 1] * 5)
    assert len(events.encode(1, (events.Heartbeats((largest,) * MAX_BEATS),))) < MAX_ENTRY_BYTES
    await mine.close()


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (NotLeader("n1"), ResponseCode.CONTROLLER_NOT_LEADER),
        (Overloaded("full"), ResponseCode.SYSTEM_BUSY),
        (ProposalLost("lost"), ResponseCode.CONTROLLER_JRAFT_INTERNAL_ERROR),
        (NodeStopped("gone"), ResponseCode.CONTROLLER_JRAFT_INTERNAL_ERROR),
    ],
)
async def test_what_the_log_refuses_is_said_to_every_sender(error: RaftError, code: int) -> None:
    log, outcomes = FakeLog(), list[Outcome]()
    log.error = error
    mine = proposer(log)
    mine.submit(claim(1), outcomes.append)
    mine.submit_beat(beat(1), outcomes.append)
    await settle(lambda: len(outcomes) == 2)
    assert [outcome.code for outcome in outcomes] == [code, code]
    await mine.close()


async def test_without_a_quorum_the_answer_comes_in_time() -> None:
    log, outcomes = FakeLog(), list[Outcome]()
    log.gate = asyncio.Event()
    mine = proposer(log, timeout_ms=30)
    mine.submit(claim(1), outcomes.append)
    await settle(lambda: len(outcomes) == 1)
    assert outcomes[0].code == ResponseCode.CONTROLLER_JRAFT_INTERNAL_ERROR
    assert "may yet happen" in (outcomes[0].remark or "")
    await mine.close()


async def test_too_much_waiting_is_refused_except_for_the_controllers_own_events() -> None:
    log, outcomes, own = FakeLog(), list[Outcome](), list[Outcome]()
    mine = proposer(log, capacity=2)
    for number in range(1, 4):
        mine.submit(claim(number), outcomes.append)
    assert [outcome.code for outcome in outcomes] == [ResponseCode.SYSTEM_BUSY]
    mine.submit(events.Scan(True, True, False), own.append, urgent=True)
    await settle(lambda: len(own) == 1)
    assert own[0].code == 0
    await mine.close()


async def test_every_heartbeat_that_waits_for_its_answer_counts() -> None:
    log, outcomes = FakeLog(), list[Outcome]()
    mine = proposer(log, capacity=2)
    for _ in range(3):
        mine.submit_beat(beat(1), outcomes.append)
    assert [outcome.code for outcome in outcomes] == [ResponseCode.SYSTEM_BUSY]
    await mine.close()


async def test_closing_answers_what_waits() -> None:
    log, outcomes = FakeLog(), list[Outcome]()
    mine = proposer(log)
    mine.submit(claim(1), outcomes.append)
    mine.submit_beat(beat(1), outcomes.append)
    await mine.close()
    mine.submit(claim(2), outcomes.append)
    assert [outcome.code for outcome in outcomes] == [ResponseCode.CONTROLLER_NOT_LEADER] * 3
    assert log.entries == []


async def test_one_failing_callback_keeps_nobody_from_an_answer(caplog: pytest.LogCaptureFixture) -> None:
    log, outcomes = FakeLog(), list[Outcome]()
    mine = proposer(log)

    def broken(outcome: Outcome) -> None:
        raise RuntimeError("a bug")

    mine.submit(claim(1), broken)
    mine.submit(claim(2), outcomes.append)
    await settle(lambda: len(outcomes) == 1)
    assert "a bug" in caplog.text
    await mine.close()


async def test_effects_that_fail_keep_no_heartbeat_from_its_answer(caplog: pytest.LogCaptureFixture) -> None:
    log, outcomes = FakeLog(), list[Outcome]()

    def broken(outcome: Outcome) -> None:
        raise RuntimeError("a bug")

    mine = proposer(log, broken)
    mine.submit(claim(1))
    mine.submit_beat(beat(1), broken)
    mine.submit_beat(beat(1), outcomes.append)
    await settle(lambda: len(outcomes) == 1)
    assert caplog.text.count("RuntimeError: a bug") == 2
    await mine.close()


async def test_reads_of_a_turn_share_one_barrier_and_run_after_it() -> None:
    log = FakeLog()
    log.gate = asyncio.Event()
    reads = Reads(log)
    ran: list[tuple[int, Outcome | None]] = []
    for number in range(5):
        reads.submit(lambda refusal, n=number: ran.append((n, refusal)))  # type: ignore[misc]
    await asyncio.sleep(0.01)
    assert (log.barriers, ran) == (1, [])
    log.gate.set()
    await settle(lambda: len(ran) == 5)
    assert ran == [(number, None) for number in range(5)]
    await reads.close()


@pytest.mark.parametrize(("waiting", "barriers"), [(MIN_READS - 1, 1), (MIN_READS, 2), (3 * MIN_READS, 2)])
async def test_few_reads_wait_for_the_barrier_under_way(waiting: int, barriers: int) -> None:
    """A barrier costs more than a read; those that came during it share the next one."""
    log, ran = FakeLog(), list[Outcome | None]()
    log.gate = asyncio.Event()
    reads = Reads(log)
    reads.submit(ran.append)
    await settle(lambda: log.barriers == 1)
    for _ in range(waiting):
        reads.submit(ran.append)
        await asyncio.sleep(0)
    await asyncio.sleep(0.01)
    assert (log.barriers, ran) == (barriers, [])
    log.gate.set()
    await settle(lambda: len(ran) == waiting + 1)
    assert log.barriers <= 3
    await reads.close()


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (NotLeader(None), ResponseCode.CONTROLLER_NOT_LEADER),
        (ReadUnavailable("slow"), ResponseCode.CONTROLLER_JRAFT_INTERNAL_ERROR),
        (ReplicaLagging("7 entries behind"), ResponseCode.CONTROLLER_NOT_LEADER),
    ],
)
async def test_a_read_without_barrier_is_refused(error: RaftError, code: int) -> None:
    log, refusals = FakeLog(), list[Outcome | None]()
    log.error = error
    reads = Reads(log)
    reads.submit(refusals.append)
    await settle(lambda: len(refusals) == 1)
    assert refusals[0] is not None and refusals[0].code == code
    await reads.close()


def test_sessions_are_never_reused_and_the_latest_counts() -> None:
    sessions: Sessions[str] = Sessions()
    first = sessions.of("a")
    first.brokers["s", 1] = 5000
    second = sessions.of("b")
    second.brokers |= {("s", 1): 6000, ("s", 2): 7000}
    assert (first.id, second.id) == (1, 2)
    assert sessions.known() == (("s", 1, 2), ("s", 2, 2))
    assert sessions.silent(9000) == (("s", 1, 3000), ("s", 2, 2000))
    assert sessions.closed("a") is first
    assert sessions.closed("a") is None
    assert sessions.of("a").id == 3


async def test_event_log_rotates_and_loses_no_line_of_what_it_keeps(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "events.jsonl"
    log = EventLog(path, max_bytes=300, backups=2)
    for number in range(20):
        log.write(number, "n0", [Cleaned("s", (number,))])
        await log.close()
    files = [path.with_name("events.jsonl.2"), path.with_name("events.jsonl.1"), path]
    assert sorted(path.parent.iterdir()) == sorted(files)
    lines = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    numbers = [line["time_ms"] for line in lines]
    assert numbers == list(range(numbers[0], 20))
    assert lines[-1] == {
        "time_ms": 19,
        "node": "n0",
        "event": "cleaned",
        "broker_name": "s",
        "broker_ids": [19],
    }
    assert all(file.stat().st_size <= 300 for file in files)


@pytest.mark.parametrize("whole", [0, 1, 3000])
async def test_an_event_log_cuts_what_a_crash_left_of_a_line(tmp_path: Path, whole: int) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text('{"time_ms":0}\n' * whole + '{"time_ms":1,"bro' + "x" * 70_000)
    log = EventLog(path, max_bytes=60_000, backups=1)
    log.write(2, "n0", [LeadershipStarted("n0")])
    await log.close()
    assert [json.loads(line)["time_ms"] for line in path.read_text().splitlines()] == [0] * whole + [2]


async def test_an_event_log_continues_after_a_line_that_the_disk_took_half_of(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    log = EventLog(path, max_bytes=10_000, backups=1)
    log.write(1, "n0", [LeadershipStarted("n0")])
    await log.close()
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    handled = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 10, limit[1]))
    try:
        log.write(2, "n0", [LeadershipStarted("n0")])
        await log.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, handled)
    assert not path.read_bytes().endswith(b"\n")
    log.write(3, "n0", [LeadershipStarted("n0")])
    await log.close()
    assert [json.loads(line)["time_ms"] for line in path.read_text().splitlines()] == [1, 3]


async def test_an_event_log_that_cannot_be_written_stops_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """And says so once, and when it is over."""
    (tmp_path / "file").write_text("")
    path = tmp_path / "file" / "events.jsonl"
    log = EventLog(path, max_bytes=300, backups=1)
    for _ in range(3):
        log.write(1, "n0", [LeadershipStarted("n0")])
        await log.close()
    (tmp_path / "file").unlink()
    for _ in range(3):
        log.write(2, "n0", [LeadershipStarted("n0")])
        await log.close()
    assert caplog.messages == [
        f"{path}: events are not recorded: File exists",
        f"{path}: events are recorded again",
    ]
    assert [json.loads(line)["time_ms"] for line in path.read_text().splitlines()] == [2, 2, 2]


class Mailbox:
    """Stands in for `RemotingClient`: remembers who was called, and can be slow."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []

    async def call(
        self, address: str, header: NotifyBrokerRoleChanged, body: bytes, *, timeout_ms: int
    ) -> None:
        self.calls.append((address, header.master_epoch or 0))


def notified_set() -> tuple[ControllerMachine, BrokerSet, Mailbox, RoleChangeNotices]:
    machine, mailbox = ControllerMachine(), Mailbox()
    beats = tuple(events.Beat("c", "s", n, f"h{n}:1", n, 99_999, 0, 0, 0, 0) for n in (1, 2))
    elect = events.ElectMaster("s", 1, False, False, "broker")
    machine.apply(1, events.encode(1, (claim(1), claim(2), events.Heartbeats(beats), elect)))
    mine = RoleChangeNotices(machine, cast("RemotingClient", mailbox))
    return machine, machine.broker_sets["s"], mailbox, mine


async def test_a_replica_that_shows_the_epoch_is_notified_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices, "FIRST_PAUSE_MS", 5)
    _, broker_set, mailbox, mine = notified_set()
    mine.announce(broker_set)
    broker_set.live[1].epoch = broker_set.live[2].epoch = 1
    await settle(lambda: mine.pending == 0)
    assert sorted(mailbox.calls) == [("h1:1", 1), ("h2:1", 1)]


async def test_others_are_notified_until_the_master_has_them_in_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices, "FIRST_PAUSE_MS", 2)
    machine, broker_set, mailbox, mine = notified_set()
    mine.announce(broker_set)
    await settle(lambda: mailbox.calls.count(("h2:1", 1)) >= 3)
    machine.apply(2, events.encode(1, (events.AlterSyncStateSet("s", 1, 1, (1, 2), 1),)))
    await settle(lambda: mine.pending == 0)


async def test_the_next_election_replaces_the_notice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices, "FIRST_PAUSE_MS", 5)
    machine, broker_set, mailbox, mine = notified_set()
    mine.announce(broker_set)
    await settle(lambda: len(mailbox.calls) == 2)
    alter = events.AlterSyncStateSet("s", 1, 1, (1, 2), 1)
    machine.apply(2, events.encode(1, (alter, events.ElectMaster("s", 2, True, False, "admin"))))
    mine.announce(broker_set)
    await settle(lambda: mailbox.calls.count(("h1:1", 2)) >= 2)
    first_new = next(i for i, (_, epoch) in enumerate(mailbox.calls) if epoch == 2)
    assert all(epoch == 2 for _, epoch in mailbox.calls[first_new:])
    await mine.stop()
    assert mine.pending == 0


async def test_notices_of_many_elections_are_sent_so_many_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices, "AT_ONCE", 3)
    monkeypatch.setattr(notices, "FIRST_PAUSE_MS", 5)
    under_way = most = 0

    class Slow(Mailbox):
        async def call(
            self, address: str, header: NotifyBrokerRoleChanged, body: bytes, *, timeout_ms: int
        ) -> None:
            nonlocal under_way, most
            under_way += 1
            most = max(most, under_way)
            await asyncio.sleep(0.002)
            under_way -= 1
            await super().call(address, header, body, timeout_ms=timeout_ms)

    machine, mailbox = ControllerMachine(), Slow()
    mine = RoleChangeNotices(machine, cast("RemotingClient", mailbox))
    for number in range(10):
        name = f"s{number}"
        beats = (events.Beat("c", name, 1, f"{name}:1", 1, 99_999, 0, 0, 0, 0),)
        elect = events.ElectMaster(name, 1, False, False, "broker")
        machine.apply(number + 1, events.encode(1, (claim(1, name), events.Heartbeats(beats), elect)))
        mine.announce(machine.broker_sets[name])
    await settle(lambda: len(mailbox.calls) >= 10)
    assert most == 3
    await mine.stop()


async def test_a_dead_replica_is_not_notified_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices, "FIRST_PAUSE_MS", 2)
    machine, broker_set, mailbox, mine = notified_set()
    mine.announce(broker_set)
    await settle(lambda: len(mailbox.calls) >= 2)
    machine.apply(2, events.encode(1, (events.ChannelClosed(2, (("s", 2),), False),)))
    await settle(lambda: mine.pending == 1)
    await mine.stop()
