"""The exactly-once sink against model brokers that lose answers, masters and drivers at every step."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from batonmq.net.errors import CallTimeout, ConnectFailed, ConnectionLost
from batonmq.protocol.errors import MQError
from batonmq.spark.sink.exactly_once import settle
from batonmq.spark.sink.exactly_once.core import (
    BATCH_EPOCH,
    NO_EPOCH,
    Action,
    Ends,
    Kind,
    Mark,
    State,
    Unit,
    is_left_over,
)
from batonmq.spark.sink.exactly_once.ledger import BATCH_JOB, Ledger, LedgerError, decode_units, encode_units
from batonmq.spark.sink.exactly_once.settle import NotEnded, NotSupported, commit_batch
from batonmq.spark.sink.exactly_once.write import ledger_of
from batonmq.spark.sink.options import parse_sink_options
from batonmq.spark.sink.writer import ExactlyOnceWriter


def unit(number: int, *, broker: str = "a", queue: int = 0, **fields: Any) -> Unit:
    return Unit("T", broker, queue, number, 100 * number, f"K{number}", 1, 10, **fields)


# -- a model of brokers and of Spark


class Crash(BaseException):
    """The driver is killed here."""


@dataclass
class BrokerModel:
    """A broker set. `once`: its master has END_TRANSACTIONS."""

    name: str
    once: bool
    rng: random.Random
    changes: bool = False
    """A switch brings a master of the other kind."""
    master: int = 0
    log: list[tuple[str, Unit]] = field(default_factory=list)
    """Committed messages with the half message of each."""
    confirmed: int = 0
    """Messages that all replicas have."""
    late: list[Unit] = field(default_factory=list)
    """Commits that the master carries out later: their requests wait in it."""

    @property
    def address(self) -> str:
        return f"{self.name}-{self.master}"

    def has(self, one: Unit) -> bool:
        return any(found is one or found == one for _, found in self.log)

    def append(self, one: Unit) -> None:
        if self.once and self.has(one):
            return
        rows = [f"{one.key}.{row}" for row in range(one.rows)]
        self.log += [(row, one) for row in rows]

    def run_late(self) -> None:
        for one in self.late:
            self.append(one)
        self.late.clear()

    def switch(self) -> None:
        """The master dies. What was not confirmed is lost; ours confirms what it acknowledges."""
        self.late.clear()
        del self.log[self.confirmed :]
        self.master += 1
        if self.changes:
            self.once = not self.once


class World:
    """Brokers, the ledger and the driver; counts steps, and kills the driver at some."""

    def __init__(self, path: Path, brokers: Sequence[BrokerModel], seed: int, trouble: float) -> None:
        self.ledger = Ledger(path)
        self.brokers = {broker.name: broker for broker in brokers}
        self.rng = random.Random(seed)
        self.trouble = trouble
        self.step = 0
        self.kill_at: int | None = None
        self.rolled_back: set[str] = set()

    def tick(self) -> None:
        self.step += 1
        if self.step == self.kill_at:
            raise Crash

    # Cluster

    async def _request(self, name: str, units: Sequence[Unit]) -> BrokerModel:
        """What happens to a request before it is carried out. The driver dies before or after it."""
        self.tick()
        broker = self.brokers[name]
        if self.rng.random() < self.trouble:
            match self.rng.randrange(4):
                case 0:
                    raise ConnectFailed(broker.address, "refused")
                case 1:
                    broker.switch()
                    raise ConnectionLost(broker.address, "the master died")
                case 2:
                    broker.late += units
                    raise CallTimeout(broker.address, "no answer")
                case _:
                    raise MQError(1, "busy")
        return broker

    def _answer(self, broker: BrokerModel) -> str:
        self.tick()
        if self.rng.random() < self.trouble:
            raise ConnectionLost(broker.address, "the answer is lost")
        return broker.address

    async def commit_many(self, units: Sequence[Unit]) -> str:
        broker = await self._request(units[0].broker, units if self.brokers[units[0].broker].once else ())
        if not broker.once:
            raise NotSupported
        for one in units:
            broker.append(one)
        broker.confirmed = len(broker.log)
        return self._answer(broker)

    async def commit(self, one: Unit) -> str:
        assert not one.batch
        broker = await self._request(one.broker, (one,))
        broker.append(one)
        return self._answer(broker)

    async def look_up(self, one: Unit) -> str | None:
        broker = await self._request(one.broker, ())
        broker.run_late()
        found = broker.has(one)
        address = self._answer(broker)
        return address if found else None

    async def confirm(self, one: Unit) -> str:
        broker = await self._request(one.broker, ())
        broker.confirmed = len(broker.log)
        return self._answer(broker)

    async def roll_back(self, units: Sequence[Unit]) -> None:
        self.tick()
        self.rolled_back |= {one.key for one in units}

    # Decisions

    def is_done(self, epoch: int) -> bool:
        self.tick()
        return self.ledger.is_done(epoch)

    def decided(self, epoch: int) -> list[Unit] | None:
        self.tick()
        return self.ledger.decided(epoch)

    def unfinished(self) -> list[int]:
        self.tick()
        return self.ledger.unfinished()

    def decide(self, epoch: int, units: list[Unit]) -> None:
        self.tick()
        self.ledger.decide(epoch, units)
        self.tick()

    def finish(self, epoch: int) -> None:
        self.tick()
        self.ledger.finish(epoch)
        self.tick()


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settle, "PAUSE_S", 0.0)
    monkeypatch.setattr(settle, "MOST_PAUSE_S", 0.0)


KINDS = {"ours": (True, False), "RocketMQ's": (False, False), "mixed": (True, True)}
EPOCHS = 3


async def run_job(world: World, kill_at: list[int], batches: bool) -> list[list[Unit]]:
    """A stream of some batches, killed at these steps of the driver. Returns what was prepared, by batch and
    in the order of the attempts."""
    prepared: list[list[Unit]] = [[] for _ in range(EPOCHS)]
    number = 0
    for epoch in range(EPOCHS):
        while True:
            units = []
            for at in range(4):  # Spark runs the tasks again: other half messages of the same rows
                number += 1
                batch = batches and at == 0
                rows, key = 3 if batch else 1, f"{epoch}/{at}/{number}"
                units.append(Unit("T", "ab"[at % 2], at % 3, number, number, key, rows, 10, batch, at != 3))
            prepared[epoch] += units
            world.step, world.kill_at = 0, kill_at.pop(0) if kill_at else None
            try:
                await commit_batch(world, world, epoch, units, timeout_s=20)
                break
            except Crash:
                continue
    return prepared


def check(world: World, prepared: list[list[Unit]]) -> None:
    """Each row once, of one attempt for each batch, and in the order of its queue."""
    for broker in world.brokers.values():
        broker.run_late()
    rows = [row for broker in world.brokers.values() for row, _ in broker.log]
    assert len(rows) == len(set(rows))
    by_row: dict[tuple[str, ...], int] = {}
    for row in rows:
        epoch, at, rest = row.split("/")
        place = (epoch, at, rest.partition(".")[2])
        by_row[place] = by_row.get(place, 0) + 1
    assert set(by_row.values()) == {1}
    assert {place[:2] for place in by_row} == {(str(e), str(at)) for e in range(EPOCHS) for at in range(4)}
    for batch, units in enumerate(prepared):
        committed = {one.key for broker in world.brokers.values() for _, one in broker.log}
        wanted = {one.key for one in units} & committed
        attempts = {(int(key.rpartition("/")[2]) - 1) // 4 for key in wanted}
        assert len(attempts) == 1, f"batch {batch} has rows of several attempts"


def world_of(path: Path, kind: str, seed: int, trouble: float) -> World:
    once, changes = KINDS[kind]
    rng = random.Random(seed)
    return World(path, [BrokerModel(name, once, rng, changes) for name in "ab"], seed, trouble)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_driver_that_dies_at_any_step_delivers_each_row_once(kind: str, tmp_path: Path) -> None:
    step = 0
    while True:
        step += 1
        world = world_of(tmp_path / str(step), kind, step, 0.0)
        kills = [step]
        prepared = await run_job(world, kills, batches=kind == "ours")
        check(world, prepared)
        if len(prepared[0]) == 4:  # it ended before that step
            break
    assert step > 10


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(150))
async def test_lost_answers_masters_and_drivers_together_deliver_each_row_once(
    kind: str, seed: int, tmp_path: Path
) -> None:
    rng = random.Random(seed)
    world = world_of(tmp_path, kind, seed, rng.choice((0.05, 0.2, 0.4)))
    kills = [rng.randrange(1, 60) for _ in range(rng.randrange(6))]
    prepared = await run_job(world, kills, batches=kind != "RocketMQ's")
    check(world, prepared)


async def test_a_decided_batch_holds_when_its_rows_come_again(tmp_path: Path) -> None:
    world = world_of(tmp_path, "ours", 1, 0.0)
    first, second = [unit(1), unit(2)], [unit(3), unit(4)]
    await commit_batch(world, world, 7, first, timeout_s=1)
    await commit_batch(world, world, 7, second, timeout_s=1)
    assert [one for _, one in world.brokers["a"].log] == first
    assert world.rolled_back == {"K3", "K4"}


async def test_an_unfinished_batch_is_delivered_before_the_next_one(tmp_path: Path) -> None:
    world = world_of(tmp_path, "ours", 1, 0.0)
    world.ledger.decide(3, [unit(1)])
    await commit_batch(world, world, 4, [unit(2)], timeout_s=1)
    assert [one.key for _, one in world.brokers["a"].log] == ["K1", "K2"]


async def test_an_empty_batch_is_done_without_a_request(tmp_path: Path) -> None:
    world = world_of(tmp_path, "ours", 1, 1.0)
    await commit_batch(world, world, 0, [], timeout_s=1)
    assert world.ledger.is_done(0)


async def test_brokers_that_do_not_answer_fail_the_batch_which_stays_decided(tmp_path: Path) -> None:
    world = world_of(tmp_path, "ours", 1, 1.0)
    with pytest.raises(NotEnded, match="batch 5 is decided, but 1 of its 1 half messages"):
        await commit_batch(world, world, 5, [unit(1)], timeout_s=0.05)
    assert world.ledger.decided(5) == [unit(1)]
    world.trouble = 0.0
    await commit_batch(world, world, 5, [unit(2)], timeout_s=1)
    assert [one.key for _, one in world.brokers["a"].log] == ["K1"]


# -- Ends


def numbers(actions: list[Action]) -> list[tuple[str, tuple[int, ...]]]:
    return [(action.kind.name, action.units) for action in actions]


def test_one_request_at_a_time_ends_the_half_messages_of_a_broker_set() -> None:
    ends = Ends([unit(i, broker="ab"[i % 2]) for i in range(6)], fresh=True)
    actions = ends.ready()
    assert numbers(actions) == [("END_MANY", (0, 2, 4)), ("END_MANY", (1, 3, 5))]
    assert ends.ready() == []
    ends.failed(actions[0], maybe_done=True)
    (again,) = ends.ready()
    assert again.units == (0, 2, 4)
    for action in (again, actions[1]):
        ends.done(action, "x")
    assert ends.finished and ends.ready() == []


def test_requests_are_bounded_by_number_and_bytes() -> None:
    units = [Unit("T", "a", 0, i, i, str(i), 1, 5 << 20) for i in range(3)]
    assert numbers(Ends(units, fresh=True).ready()) == [("END_MANY", (0,))]
    small = Ends([unit(i) for i in range(2_500)], fresh=True)
    sizes = []
    while not small.finished:
        (action,) = small.ready()
        sizes.append(len(action.units))
        small.done(action, "x")
    assert sizes == [1_000, 1_000, 500]


def one_by_one(units: list[Unit], *, fresh: bool = True, most: int = 4) -> Ends:
    ends = Ends(units, fresh=fresh, most_in_flight=most)
    for action in ends.ready():
        ends.unsupported(action)
    return ends


def test_without_the_extension_an_ordered_queue_has_one_end_under_way() -> None:
    ends = one_by_one([unit(i, queue=i % 2, ordered=True) for i in range(4)])
    first = ends.ready()
    assert numbers(first) == [("END", (0,)), ("END", (1,))]
    ends.done(first[1], "x")
    assert numbers(ends.ready()) == [("END", (3,))]
    ends.failed(first[0], maybe_done=False)
    assert numbers(ends.ready()) == [("END", (0,))]


def test_an_end_without_an_answer_is_looked_up_first() -> None:
    ends = one_by_one([unit(0)])
    (action,) = ends.ready()
    ends.failed(action, maybe_done=True)
    (look,) = ends.ready()
    assert look.kind is Kind.LOOK_UP
    ends.failed(look, maybe_done=False)
    (look,) = ends.ready()
    assert look.kind is Kind.LOOK_UP  # still unknown
    ends.absent(look)
    (action,) = ends.ready()
    assert action.kind is Kind.END
    ends.done(action, "m1")
    (confirm,) = ends.ready()
    assert confirm.kind is Kind.CONFIRM and not ends.finished
    ends.confirmed(confirm, "m2")  # another master: what m1 acknowledged may be lost
    (look,) = ends.ready()
    assert look.kind is Kind.LOOK_UP
    ends.found(look, "m2")
    (confirm,) = ends.ready()
    ends.confirmed(confirm, "m2")
    assert ends.finished


def test_after_a_restart_all_is_unknown() -> None:
    ends = one_by_one([unit(i) for i in range(9)], fresh=False)
    assert {action.kind for action in ends.ready()} == {Kind.LOOK_UP}
    assert ends.state(0) is State.BUSY and ends.ready() == []


def test_batches_wait_for_a_master_that_knows_them() -> None:
    ends = one_by_one([unit(0, batch=True, ordered=True), unit(1, ordered=True), unit(2)])
    (single,) = ends.ready()
    assert single.units == (2,)
    ends.done(single, "x")
    (probe,) = ends.ready()
    assert (probe.kind, probe.units) == (Kind.END_MANY, (0, 1))
    ends.unsupported(probe)
    (probe,) = ends.ready()
    ends.done(probe, "y")
    (rest,) = ends.ready()  # it knows what the other master acknowledged
    assert rest.units == (2,)
    ends.done(rest, "y")
    assert ends.finished


# -- marks


@pytest.mark.parametrize(
    "text", [None, "", "a", "a:b:c", "a:1", ":1:c", "a:1:b:c", "a:٣:c", f"a:{'9' * 40}:c", "a:--1:c", "a::c"]
)
def test_what_is_not_a_mark_is_none(text: str | None) -> None:
    assert Mark.parse(text) is None


def test_marks_travel_as_text() -> None:
    for mark in (Mark("r", 0, "1.2"), Mark("r", NO_EPOCH, ""), Mark("0f", 10**12, "x")):
        assert Mark.parse(mark.text()) == mark


@pytest.mark.parametrize(
    ("mark", "expected"),
    [
        (Mark("r", 4, "a"), True),
        (Mark("r", 0, "a"), True),
        (Mark("r", 5, "a"), False),
        (Mark("r", 6, "a"), False),
        (Mark("other", 4, "a"), False),
        (Mark("r", NO_EPOCH, "a"), False),
        (None, False),
    ],
)
def test_only_what_an_earlier_batch_of_the_run_left_over_is_rolled_back(
    mark: Mark | None, expected: bool
) -> None:
    assert is_left_over(mark, "r", 5) is expected


# -- the ledger


def test_units_travel_as_bytes() -> None:
    units = [unit(1), unit(2, batch=True, ordered=True)]
    assert decode_units(encode_units(units)) == units


def test_a_ledger_keeps_one_decision_for_each_batch(tmp_path: Path) -> None:
    ledger, other = Ledger(tmp_path / "l"), Ledger(tmp_path / "l")
    assert ledger.decided(0) is None and ledger.unfinished() == []
    assert ledger.run() == other.run() and len(ledger.run()) == 32
    ledger.decide(0, [unit(1)])
    with pytest.raises(LedgerError, match="batch 0 was decided by another driver"):
        other.decide(0, [unit(2)])
    assert other.decided(0) == [unit(1)] and other.unfinished() == [0]
    ledger.finish(0)
    other.finish(0)
    assert ledger.is_done(0) and ledger.decided(0) is None and ledger.unfinished() == []
    assert sorted(path.name for path in (tmp_path / "l").iterdir()) == ["0.done", "run"]


def test_a_batch_that_another_driver_has_finished_meanwhile_is_not_decided_again(tmp_path: Path) -> None:
    """The other driver's list is gone then, so that its name is free."""
    ledger, other = Ledger(tmp_path), Ledger(tmp_path)
    assert ledger.decided(0) is None and not ledger.is_done(0)
    other.decide(0, [])
    other.finish(0)
    with pytest.raises(LedgerError, match="decided by another driver"):
        ledger.decide(0, [])
    assert ledger.decided(0) is None and ledger.unfinished() == []


def test_a_ledger_forgets_old_batches(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    for epoch in range(105):
        ledger.decide(epoch, [])
        ledger.finish(epoch)
    assert not ledger.is_done(4) and ledger.is_done(5)


@pytest.mark.parametrize(
    "damage", [lambda b: b[:-1], lambda b: b"", lambda b: b"\xff" + b[1:], lambda b: b + b"x"]
)
def test_a_damaged_list_is_an_error_and_never_a_shorter_batch(tmp_path: Path, damage: Any) -> None:
    ledger = Ledger(tmp_path)
    ledger.decide(0, [unit(1)])
    path = tmp_path / "0.batch"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(LedgerError, match=r"0\.batch is damaged"):
        ledger.decided(0)


def test_a_ledger_of_another_query_is_refused(tmp_path: Path) -> None:
    """With a new checkpoint and a kept ledger, batch 0 would count as done, and its rows would be dropped."""
    ledger = Ledger(tmp_path / "l")
    ledger.claim("one")
    Ledger(tmp_path / "l").claim("one")
    with pytest.raises(LedgerError, match="another query"):
        Ledger(tmp_path / "l").claim("two")
    with pytest.raises(LedgerError, match="another query"):
        Ledger(tmp_path / "l").claim(BATCH_JOB)


def test_a_ledger_that_is_ahead_of_the_checkpoint_is_refused(tmp_path: Path) -> None:
    """A batch of an older checkpoint would count as done, and its rows would be dropped."""
    ledger = Ledger(tmp_path)
    ledger.check_last(0)
    for epoch in (0, 1):
        ledger.decide(epoch, [])
        ledger.finish(epoch)
    ledger.decide(2, [unit(1)])
    ledger.check_last(2)  # Spark repeats the last batch
    ledger.check_last(3)
    with pytest.raises(
        LedgerError, match=r"up to 2: the checkpoint is older .*, or another query is running"
    ):
        ledger.check_last(1)


def test_another_producer_group_waits_for_a_decided_batch(tmp_path: Path) -> None:
    """Brokers refuse to end a half message for another group, so the batch would never be delivered."""
    ledger = Ledger(tmp_path / "l")
    ledger.run()
    ledger.use_group("one")
    ledger.use_group("two")  # nothing is decided
    ledger.decide(0, [unit(1)])
    ledger.use_group("two")
    with pytest.raises(LedgerError, match="producerGroup=two"):
        Ledger(tmp_path / "l").use_group("three")
    ledger.finish(0)
    ledger.use_group("three")


def test_a_batch_job_that_is_complete_says_that_it_writes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Else an id that is used again, by mistake, would lose the rows without a word."""
    options = parse_sink_options(
        {
            "namesrvAddr": "a:1",
            "deliveryGuarantee": "exactlyOnce",
            "transactionLocation": str(tmp_path),
            "transactionId": "load-1",
        }
    )
    ExactlyOnceWriter(options)
    ledger = ledger_of(options)
    ledger.decide(BATCH_EPOCH, [unit(1)])
    ExactlyOnceWriter(options)  # of a run that continues one
    assert not caplog.records
    ledger.finish(BATCH_EPOCH)
    ExactlyOnceWriter(options)
    (record,) = caplog.records
    assert "is complete: this run of it writes nothing" in record.getMessage()
    assert "load-1" in record.getMessage()
