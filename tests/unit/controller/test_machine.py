"""Random histories: the invariants of the state machine hold after every event, whatever the order."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batonmq.controller import events, queries
from batonmq.controller.effects import Election, Outcome
from batonmq.controller.heartbeats import FORWARDED
from batonmq.controller.machine import ControllerMachine
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.json import encode
from batonmq.raft.errors import ForeignEntry, NewerEntry, UnreadableState

NAMES = st.sampled_from(["a", "b"])
IDS = st.integers(1, 4)
EPOCHS = st.integers(0, 6)


def beats(draw: st.DrawFn) -> events.Heartbeats:
    return events.Heartbeats(
        tuple(
            events.Beat(
                draw(st.sampled_from(["c", "c", "c", "other"])),
                draw(NAMES),
                draw(IDS),
                "h:1",
                draw(st.sampled_from([FORWARDED, 1, 2, 3, 4])),
                draw(st.sampled_from([500, 5_000])),
                draw(EPOCHS),
                draw(st.integers(0, 9)),
                0,
                draw(st.integers(0, 3)),
            )
            for _ in range(draw(st.integers(1, 6)))
        )
    )


@st.composite
def event(draw: st.DrawFn) -> events.AnyEvent:
    kind = draw(st.integers(0, 11))
    name, broker_id, flag = draw(NAMES), draw(IDS), draw(st.booleans())
    match kind:
        case 0 | 1:
            code = f"h{broker_id}:1;{draw(st.integers(1, 2))}"
            return events.ApplyBrokerId("c", name, draw(st.integers(-1, 5)), code)
        case 2:
            return events.RegisterBroker("c", name, broker_id, f"h{broker_id}:{draw(st.integers(1, 2))}")
        case 3 | 4 | 5:
            return beats(draw)
        case 6:
            asked = draw(st.sampled_from([events.NO_BROKER, 1, 2, 3, 4]))
            return events.ElectMaster(name, asked, flag and asked > 0, draw(st.booleans()), "broker")
        case 7 | 8:
            members = draw(st.lists(IDS, max_size=4).map(tuple))
            return events.AlterSyncStateSet(name, broker_id, draw(EPOCHS), members, draw(EPOCHS), flag)
        case 9:
            ids = ";".join(map(str, draw(st.lists(IDS, max_size=2))))
            return events.CleanBrokerData("c", name, ids, flag)
        case 10:
            brokers = tuple(draw(st.lists(st.tuples(NAMES, IDS), max_size=4)))
            return events.ChannelClosed(draw(st.integers(0, 4)), brokers, flag)
        case _:
            if flag:
                return events.Scan(draw(st.booleans()), draw(st.booleans()), draw(st.booleans()))
            return events.LeaderStarted("n", ((name, broker_id, draw(st.integers(1, 4))),))


entries = st.lists(
    st.tuples(st.integers(-2_000, 3_000), st.lists(event(), min_size=1, max_size=3)), min_size=1, max_size=40
)


def encoded(history: list[tuple[int, list[events.AnyEvent]]]) -> list[bytes]:
    now_ms, out = 100_000, []
    for step_ms, batch in history:
        now_ms += step_ms
        out.append(events.encode(now_ms, tuple(batch)))
    return out


def check(machine: ControllerMachine) -> None:
    for name, broker_set in machine.broker_sets.items():
        assert name == broker_set.broker_name
        assert broker_set.replicas
        assert set(broker_set.live) <= set(broker_set.replicas)
        assert set(broker_set.sync_state_set) <= set(broker_set.replicas)
        assert list(broker_set.sync_state_set) == sorted(set(broker_set.sync_state_set))
        assert broker_set.master_id is None or broker_set.master_id in broker_set.sync_state_set
        assert (broker_set.master_epoch == 0) <= (broker_set.master_id is None)
        assert broker_set.next_broker_id > max(broker_set.replicas)


class Watcher:
    """Remembers masters and epochs of each life of a broker set: a cleaned set starts over."""

    def __init__(self) -> None:
        self.masters: dict[tuple[str, int], int] = {}
        self.before: dict[str, tuple[int, int, tuple[int, ...], int | None]] = {}

    def look(self, machine: ControllerMachine, outcomes: list[Outcome]) -> None:
        for name in [name for name in self.before if name not in machine.broker_sets]:
            del self.before[name]
            self.masters = {key: value for key, value in self.masters.items() if key[0] != name}
        for name, broker_set in machine.broker_sets.items():
            epoch, set_epoch, members, master = self.before.get(name, (0, 0, (), None))
            assert broker_set.master_epoch >= epoch, "the master epoch went back"
            assert broker_set.sync_state_set_epoch >= set_epoch, "the SyncStateSet epoch went back"
            if broker_set.sync_state_set != members:
                assert broker_set.sync_state_set_epoch > set_epoch, "the set changed within one epoch"
            if broker_set.master_id != master:
                assert broker_set.master_epoch > epoch, "the master changed within one epoch"
            if broker_set.master_id is not None:
                ruler = self.masters.setdefault((name, broker_set.master_epoch), broker_set.master_id)
                assert ruler == broker_set.master_id, "two masters in one epoch"
            self.before[name] = (
                broker_set.master_epoch,
                broker_set.sync_state_set_epoch,
                broker_set.sync_state_set,
                broker_set.master_id,
            )
        for outcome in outcomes:
            for effect in outcome.effects:
                if isinstance(effect, Election) and effect.result == "new-master":
                    clean = effect.new_master in effect.candidates
                    first = effect.master_epoch == 1 or not effect.candidates
                    assert clean or first or effect.unclean


def signature(outcomes: list[Outcome]) -> list[bytes]:
    return [msgspec.json.encode((o.code, o.remark, o.header, o.body, o.effects)) for o in outcomes]


@settings(max_examples=120, deadline=None)
@given(entries)
def test_invariants_hold_after_every_event(history: list[tuple[int, list[events.AnyEvent]]]) -> None:
    machine, watcher = ControllerMachine(), Watcher()
    now_ms = 100_000
    index = 0
    for step_ms, batch in history:
        now_ms += step_ms
        for one in batch:
            index += 1
            outcomes = machine.apply(index, events.encode(now_ms, (one,)))
            check(machine)
            watcher.look(machine, outcomes)
            # A controller refuses snapshots that break its rules: those it takes itself never do.
            ControllerMachine().restore(machine.snapshot())


@settings(max_examples=60, deadline=None)
@given(entries, st.integers(0, 40))
def test_replicas_agree_also_across_a_snapshot(
    history: list[tuple[int, list[events.AnyEvent]]], cut: int
) -> None:
    first, second = ControllerMachine(), ControllerMachine()
    for index, data in enumerate(encoded(history), start=1):
        if index == cut:
            restored = ControllerMachine()
            restored.restore(second.snapshot())
            second = restored
        assert signature(first.apply(index, data)) == signature(second.apply(index, data))
    assert first.snapshot() == second.snapshot()
    assert first.now_ms == second.now_ms


@settings(max_examples=40, deadline=None)
@given(entries)
def test_without_unclean_elections_every_master_comes_from_the_sync_state_set(
    history: list[tuple[int, list[events.AnyEvent]]],
) -> None:
    machine = ControllerMachine()
    for index, data in enumerate(encoded(history), start=1):
        entry = events.decode(data)
        clean = tuple(
            msgspec.structs.replace(one, allow_unclean=False) if hasattr(one, "allow_unclean") else one
            for one in entry.events
        )
        for outcome in machine.apply(index, events.encode(entry.now_ms, clean)):
            for effect in outcome.effects:
                if isinstance(effect, Election) and effect.result == "new-master":
                    assert not effect.unclean
                    assert effect.new_master in effect.candidates or effect.master_epoch == 1


@pytest.mark.parametrize(
    ("entry", "named"),
    [
        ([events.ENTRY_VERSION, 5, [["later-invention", 1]]], "'later-invention'"),
        ([9, 5, []], "version 9"),
        ([9, 5, [["later-invention", 1]]], "version 9"),
        ([9, 5, [["scan", "of other fields"]], "field"], "version 9"),
    ],
)
def test_an_entry_of_a_newer_version_stops_the_replica(entry: list[object], named: str) -> None:
    machine, data = ControllerMachine(), msgspec.msgpack.encode(entry)
    with pytest.raises(NewerEntry, match=f"has .*{named}.*must be upgraded"):
        machine.apply(1, data)
    assert named in str(machine.refusal(data))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"forged",
        b"\x93",
        b"\x91" * 100_000,
        bytes(range(256)),
        *map(
            msgspec.msgpack.encode,
            [
                [],
                {},
                "text",
                [0, 5, []],
                [-1, 5, []],
                [1, 5],
                [1, -5, []],
                [1, 2**63, []],
                [1, 5, {}],
                [1, 5, [[]]],
                [1, 5, [["scan"]]],
                [1, 5, [["scan", 1, 2, 3]]],
                [1, 5, [["closed", 2**63, [], False]]],
                [1, 5, [["leader", "n0", [["s", 1, 2**63]]]]],
                [1, 5, [["leader", "n0", [], [["s", 1, -(2**63)]]]]],
                [2, 5, [["beats", [["c", "s", 1, "h:1", 2**64 - 1, 1, 1, 1, 1, 1]]]]],
            ],
        ),
        msgspec.msgpack.encode([1, 5, [["clean", "c", "n\u00e4me", "", False]]]).replace(
            b"\xc3\xa4", b"\xff\xfe"
        ),
    ],
    ids=range(22),
)
def test_bytes_that_are_no_event_change_nothing(data: bytes) -> None:
    machine = ControllerMachine()
    machine.apply(1, events.encode(1_000, (events.ApplyBrokerId("c", "s", 1, "h:1;1"),)))
    before = machine.snapshot()
    with pytest.raises(ForeignEntry):
        machine.apply(2, data)
    assert machine.snapshot() == before
    assert machine.refusal(data)


def test_what_the_versions_of_entries_hold() -> None:
    """A change here needs the next version in `events.VERSIONS`, unless it is a field at the end with a
    default: controllers of the former version read the entries otherwise, or not at all."""
    fields = {
        str(type_.__struct_config__.tag): [
            field.name for field in msgspec.structs.fields(type_) if field.required
        ]
        for type_ in events.Event.__subclasses__()
    }
    assert fields == {
        "alter": ["broker_name", "master_id", "master_epoch", "sync_state_set", "sync_state_set_epoch"],
        "elect": ["broker_name", "broker_id", "designated", "allow_unclean", "cause"],
        "apply-id": ["cluster_name", "broker_name", "broker_id", "register_check_code"],
        "register": ["cluster_name", "broker_name", "broker_id", "broker_address"],
        "clean": ["cluster_name", "broker_name", "broker_ids", "clean_living"],
        "beats": ["beats"],
        "closed": ["session", "brokers", "allow_unclean"],
        "leader": ["node_id", "sessions"],
        "scan": ["brokers", "masters", "allow_unclean"],
    }
    assert max(events.VERSIONS) == 3


def test_the_version_of_the_log_is_in_snapshots() -> None:
    machine, other = ControllerMachine(), ControllerMachine()
    machine.apply(1, events.encode(5, (), 1))
    other.restore(machine.snapshot())
    assert (machine.written_version, other.written_version) == (1, 1)
    machine.apply(2, events.encode(5, (), 2))
    machine.apply(3, events.encode(5, (), 1))
    other.restore(machine.snapshot())
    assert (machine.written_version, other.written_version) == (2, 2)
    other.restore(msgspec.msgpack.encode([1, 5, []]))  # as version 0.1.0 writes them
    assert other.written_version == 1
    with pytest.raises(UnreadableState, match=r"version 9, .* must be upgraded"):
        other.restore(msgspec.msgpack.encode([1, 5, [], 9]))


def test_an_event_with_fields_of_a_later_version_is_read() -> None:
    data = msgspec.msgpack.encode(
        [events.ENTRY_VERSION, 5, [["apply-id", "c", "s", 1, "h:1;1", "new field"]]]
    )
    outcomes = ControllerMachine().apply(1, data)
    assert [outcome.code for outcome in outcomes] == [0]


@pytest.mark.parametrize("data", [b"", b"\x93", msgspec.msgpack.encode([2, 0, []])])
def test_a_bad_snapshot_changes_nothing(data: bytes) -> None:
    machine = ControllerMachine()
    machine.apply(1, events.encode(1, (events.ApplyBrokerId("c", "s", 1, "h:1;1"),)))
    before = machine.snapshot()
    with pytest.raises(UnreadableState):
        machine.restore(data)
    assert machine.snapshot() == before


def test_answers_have_the_shapes_that_java_reads() -> None:
    machine = ControllerMachine()
    beat = events.Beat("c", "s", 1, "h:1", 1, 10_000, 0, 0, 0, 0)
    outcomes = machine.apply(
        1,
        events.encode(
            1_000,
            (
                events.ApplyBrokerId("c", "s", 1, "h:1;1"),
                events.Heartbeats((beat,)),
                events.ElectMaster("s", 1, False, False, "broker"),
            ),
        ),
    )
    elected = outcomes[2]
    assert elected.header is not None and elected.body is not None
    assert elected.header.to_ext() == {
        "masterBrokerId": "1",
        "masterAddress": "h:1",
        "masterEpoch": "1",
        "syncStateSetEpoch": "1",
    }
    assert msgspec.json.decode(encode(elected.body)) == {
        "syncStateSet": [1],
        "brokerMemberGroup": {"cluster": "c", "brokerName": "s", "brokerAddrs": {"1": "h:1"}},
        "cluster": "c",
        "brokerName": "s",
        "brokerAddrs": {"1": "h:1"},
    }
    data = queries.sync_state_data(machine.broker_sets, ["s", "unknown"], 1_000)
    assert isinstance(data.body, bytes) and msgspec.json.decode(data.body) == {
        "replicasInfoTable": {
            "s": {
                "masterBrokerId": 1,
                "masterAddress": "h:1",
                "masterEpoch": 1,
                "syncStateSetEpoch": 1,
                "inSyncReplicas": [{"brokerName": "s", "brokerId": 1, "brokerAddress": "h:1", "alive": True}],
                "notInSyncReplicas": [],
            }
        }
    }
    assert (
        queries.replica_info(machine.broker_sets, "unknown").code
        == ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST
    )


class FormerChannelClosed(msgspec.Struct, array_like=True, frozen=True, tag="closed"):
    """The event as builds without `cause` read and write it."""

    session: int
    brokers: tuple[tuple[str, int], ...]
    allow_unclean: bool


class FormerEntry(msgspec.Struct, array_like=True, frozen=True):
    version: int
    now_ms: int
    events: tuple[FormerChannelClosed, ...]


def led_by_1(*, forwarded: bool = False) -> ControllerMachine:
    """Broker set `a` with the living replicas 1 and 2 in sync."""
    machine = ControllerMachine()
    session = FORWARDED if forwarded else 4
    heartbeats = events.Heartbeats(
        tuple(events.Beat("c", "a", each, f"h{each}:1", session, 3_000, 1, 0, 0, 0) for each in (1, 2))
    )
    steps = (
        events.ApplyBrokerId("c", "a", 1, "h1:1;1"),
        events.ApplyBrokerId("c", "a", 2, "h2:1;1"),
        events.ElectMaster("a", 1, False, False, "broker"),
        heartbeats,
        events.AlterSyncStateSet("a", 1, 1, (1, 2), 1),
    )
    for outcome in machine.apply(1, events.encode(1_000, steps)):
        assert outcome.code == 0, outcome
    return machine


@pytest.mark.parametrize(
    ("epoch_is_right", "fence_refused", "raised"), [(True, True, 1), (True, False, 0), (False, True, 0)]
)
def test_a_refusal_raises_the_epoch_if_the_master_asks_for_it(
    epoch_is_right: bool, fence_refused: bool, raised: int
) -> None:
    """A copy of the request that arrives when the replica is alive again must not add it."""
    machine = led_by_1()
    broker_set = machine.broker_sets["a"]
    removal = events.AlterSyncStateSet("a", 1, 1, (1,), broker_set.sync_state_set_epoch)
    down = events.ChannelClosed(4, (("a", 2),), False)
    for outcome in machine.apply(2, events.encode(1_000, (down, removal))):
        assert outcome.code == 0, outcome
    epoch = broker_set.sync_state_set_epoch
    asked = events.AlterSyncStateSet("a", 1, 1, (1, 2), epoch if epoch_is_right else epoch - 1, fence_refused)
    (outcome,) = machine.apply(3, events.encode(1_000, (asked,)))
    assert outcome.code != 0
    assert broker_set.sync_state_set == (1,)
    assert broker_set.sync_state_set_epoch == epoch + raised


def test_a_silent_master_is_an_event_that_former_builds_decide_alike() -> None:
    event = events.ChannelClosed(4, (("a", 1),), False, "silent")
    entry = events.encode(2_600, (event,))
    former = msgspec.msgpack.decode(entry, type=FormerEntry)
    assert former.events == (FormerChannelClosed(4, (("a", 1),), False),)
    (read_again,) = events.decode(msgspec.msgpack.encode(former)).events
    assert read_again == events.ChannelClosed(4, (("a", 1),), False)
    machines = led_by_1(), led_by_1()
    (outcome,) = machines[0].apply(2, entry)
    machines[1].apply(2, msgspec.msgpack.encode(former))
    assert machines[0].snapshot() == machines[1].snapshot()
    assert machines[0].broker_sets["a"].master_id == 2
    (election,) = (effect for effect in outcome.effects if isinstance(effect, Election))
    assert (election.cause, election.result) == ("silent", "new-master")


@pytest.mark.parametrize("forwarded", [False, True])
def test_a_silent_master_is_down_whichever_way_its_heartbeats_came(forwarded: bool) -> None:
    machine = led_by_1(forwarded=forwarded)
    session = machine.broker_sets["a"].live[1].session
    machine.apply(2, events.encode(2_600, (events.ChannelClosed(session, (("a", 1),), False, "silent"),)))
    assert machine.broker_sets["a"].master_id == 2


def test_a_master_with_a_newer_connection_is_not_silent() -> None:
    machine = led_by_1()
    newer = events.Beat("c", "a", 1, "h1:1", 5, 3_000, 1, 0, 0, 0)
    late = events.ChannelClosed(4, (("a", 1),), False, "silent")
    machine.apply(2, events.encode(2_600, (events.Heartbeats((newer,)), late)))
    assert machine.broker_sets["a"].master_id == 1
