"""Plans for static topics: who gets which logical queue, through any sequence of growth and moves."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from batonmq.admin.logical_offsets import group_offsets, topic_offsets
from batonmq.admin.static_plans import (
    BLOCK,
    Configs,
    check,
    complete,
    create,
    decide,
    detail_of,
    led_parts,
    logic_offset_after,
    logical_queues_of,
    remap,
    resumed,
    undecided,
)
from batonmq.protocol.bodies.common import MessageQueue
from batonmq.protocol.bodies.statistics import OffsetWrapper, TopicOffset
from batonmq.protocol.bodies.topics import TopicConfigAndQueueMapping, TopicRemappingDetailWrapper
from batonmq.protocol.json import decode, encode

NAMES = [f"b{number}" for number in range(6)]
TARGETS = st.sets(st.sampled_from(NAMES), min_size=1)
STEPS = st.lists(st.tuples(st.sampled_from(["grow", "move"]), TARGETS, st.integers(1, 9)), max_size=6)


def leaders(configs: Configs) -> dict[int, str]:
    return {queue_id: items[-1].bname for queue_id, items in logical_queues_of("t", configs).items()}


def moved(configs: Configs, targets: set[str], now_ms: int, end: int = 100) -> TopicRemappingDetailWrapper:
    """A remapping in which each part that ends has so many messages."""
    plan = remap("t", targets, configs, now_ms)
    return decide(plan, dict.fromkeys(undecided(plan), end))


@given(TARGETS, st.integers(1, 20), STEPS, st.integers(0, 3 * BLOCK))
def test_any_sequence_of_plans_keeps_every_queue_led_once(
    first: set[str], queues: int, steps: list[tuple[str, set[str], int]], end: int
) -> None:
    plan = create("t", queues, first, {}, 1)
    for kind, targets, number in steps:
        old = plan.broker_config_map
        text = encode(old)
        if kind == "grow":
            queues += number
            plan = create("t", queues, targets, old, 1)
        else:
            plan = moved(old, targets, 1, end)
        assert encode(old) == text, "a plan changes nothing of what it starts from"
        assert decode(encode(plan), TopicRemappingDetailWrapper) == plan
        now, before = leaders(plan.broker_config_map), leaders(old)
        if kind == "grow":
            assert now | before == now, "queues that exist stay where they are"
        else:
            counts = [Counter(now.values())[name] for name in targets]
            assert set(now.values()) <= targets and max(counts) - min(counts) <= 1
            assert not set(plan.broker_to_map_in) & set(plan.broker_to_map_out)
            most = Counter(now.values())
            least = sum(max(0, n - most[name]) for name, n in Counter(before.values()).items())
            assert sum(now[each] != before[each] for each in now) == least, "no more than needed move"
        assert sorted(now) == list(range(queues))
        places = [
            (item.bname, item.queue_id)
            for items in led_parts(plan.broker_config_map).values()
            for item in items
        ]
        assert len(set(places)) == len(places), "no physical queue is used twice"
        for items in led_parts(plan.broker_config_map).values():
            offsets = [item.logic_offset for item in items]
            assert offsets == sorted(set(offsets)) and offsets[0] == 0
        assert plan.epoch >= max(detail_of(*each).epoch for each in old.items()) + 1000 or not old


@given(TARGETS, st.integers(1, 30))
def test_a_new_topic_is_spread_over_its_brokers(targets: set[str], queues: int) -> None:
    counts = Counter(leaders(create("t", queues, targets, {}, 1).broker_config_map).values())
    numbers = [counts[name] for name in targets]
    assert max(numbers) - min(numbers) <= 1


def test_new_leaders_begin_at_a_block_of_their_own() -> None:
    ends = [0, 1, BLOCK // 2 - 1, BLOCK // 2, BLOCK - 1, BLOCK, BLOCK + 1]
    assert [logic_offset_after(end) // BLOCK for end in ends] == [1, 1, 1, 2, 2, 2, 2]
    plan = remap("t", {"b"}, create("t", 2, {"a"}, {}, 1).broker_config_map, 1)
    assert {queue_id: part.bname for queue_id, part in undecided(plan).items()} == {0: "a", 1: "a"}
    decided = decide(plan, {0: 7, 1: BLOCK})
    begins = [items[-1].logic_offset for items in led_parts(decided.broker_config_map).values()]
    assert begins == [BLOCK, 2 * BLOCK]
    assert [items[-1].logic_offset for items in led_parts(plan.broker_config_map).values()] == [-1, -1]
    assert decide(decided, {}) == decided, "what is decided stays"
    with pytest.raises(ValueError, match="ends at -1, before its part"):
        decide(plan, {0: -1, 1: 0})


def test_the_other_brokers_of_a_cluster_know_the_topic_and_have_no_queue() -> None:
    plan = complete(create("t", 2, {"a"}, {}, 5), ["a", "b"])
    other = plan.broker_config_map["b"]
    assert (other.write_queue_nums, other.read_queue_nums) == (0, 0)
    assert other.mapping_detail is not None and other.mapping_detail.total_queues == 2
    assert leaders(plan.broker_config_map) == {0: "a", 1: "a"}
    check(plan, "t")


def configs_of(queues: int = 2) -> dict[str, TopicConfigAndQueueMapping]:
    return dict(create("t", queues, {"a", "b"}, {}, 1).broker_config_map)


def test_what_contradicts_itself_is_refused() -> None:
    configs = configs_of()
    with pytest.raises(ValueError, match="has 2 logical queues already"):
        create("t", 2, {"a"}, configs, 1)
    with pytest.raises(ValueError, match="cannot shrink"):
        create("t", 1, {"a"}, configs, 1)
    with pytest.raises(ValueError, match="no broker knows topic t"):
        remap("t", {"a"}, {}, 1)
    with pytest.raises(ValueError, match="no broker is given"):
        remap("t", set(), configs, 1)
    with pytest.raises(ValueError, match="t is an ordinary topic at c"):
        create("t", 4, {"a"}, {**configs, "c": TopicConfigAndQueueMapping("t")}, 1)
    with pytest.raises(ValueError, match="one of topic t at a"):
        logical_queues_of("other", configs)
    later = replace(configs["b"], mapping_detail=replace(detail_of("b", configs["b"]), epoch=9))
    with pytest.raises(ValueError, match=r"do not agree .* apply the last map file again"):
        logical_queues_of("t", {**configs, "b": later})
    with pytest.raises(ValueError, match=r"none of a leads logical queues \[1\] of topic t"):
        logical_queues_of("t", {"a": configs["a"]})
    fewer = {
        name: replace(each, mapping_detail=replace(detail_of(name, each), total_queues=1))
        for name, each in configs.items()
    }
    with pytest.raises(ValueError, match=r"has 1 logical queues, and brokers lead \[0, 1\]"):
        logical_queues_of("t", fewer)
    with pytest.raises(ValueError, match="logical queue 0 has a part at a, which is down"):
        logical_queues_of("t", {"b": moved(configs, {"b"}, 1).broker_config_map["b"]})
    dirty = replace(configs["b"], mapping_detail=replace(detail_of("b", configs["b"]), dirty=True))
    with pytest.raises(ValueError, match="dirty"):
        logical_queues_of("t", {**configs, "b": dirty})
    with pytest.raises(ValueError, match=r"b cannot serve queue 0 .* it has 0 queues to write and 1 to read"):
        logical_queues_of("t", {**configs, "b": replace(configs["b"], write_queue_nums=0)})
    with pytest.raises(ValueError, match="it has no entry for c"):
        check(TopicRemappingDetailWrapper("t", "", 1, configs, ["c"]), "t")


def test_two_leaders_of_a_queue_are_refused_and_the_newer_one_is_read() -> None:
    old = configs_of()
    new = moved(old, {"b"}, 1)
    mixed = {"a": old["a"], "b": new.broker_config_map["b"]}
    with pytest.raises(ValueError, match="two leaders"):
        led_parts(mixed)
    assert {items[-1].bname for items in led_parts(mixed, newest=True).values()} == {"b"}


def test_offsets_of_logical_queues_come_from_their_parts() -> None:
    configs = moved(configs_of(1), {"b"}, 1, 40).broker_config_map
    parts = led_parts(configs)
    old, new = MessageQueue("t", "a", 0), MessageQueue("t", "b", 0)
    logical = MessageQueue("t", "__syslo__global__", 0)
    offsets = {old: TopicOffset(5, 40, 1), new: TopicOffset(0, 3, 2)}
    assert topic_offsets("t", parts, offsets) == {logical: TopicOffset(5, BLOCK + 3, 2)}
    assert topic_offsets("t", parts, {new: offsets[new]}) == {}
    behind = {old: OffsetWrapper(40, 30, 35, 9), new: OffsetWrapper(3, -1, -1, 0)}
    assert group_offsets("t", parts, behind) == {logical: OffsetWrapper(BLOCK + 3, 30, 35, 9)}
    moved_on = {**behind, new: OffsetWrapper(3, 2, 3, 10)}
    assert group_offsets("t", parts, moved_on) == {
        logical: OffsetWrapper(BLOCK + 3, BLOCK + 2, BLOCK + 3, 10)
    }
    assert group_offsets("t", parts, {new: behind[new]}) == {}


def test_a_plan_that_was_carried_out_before_keeps_the_offsets_that_were_decided() -> None:
    plan = remap("t", {"b"}, create("t", 2, {"a"}, {}, 1).broker_config_map, 1)
    decided = decide(plan, {0: 7, 1: BLOCK})
    assert resumed(plan, decided.broker_config_map) == decided
    assert resumed(plan, plan.broker_config_map) == resumed(plan, {}) == plan
    later = moved(decided.broker_config_map, {"c"}, 1)
    assert resumed(plan, later.broker_config_map) == plan, "the offsets of other parts are others"


def test_a_queue_whose_move_is_not_finished_neither_moves_nor_gets_neighbours() -> None:
    """After a growth the plan of the move would be an older one, and refused."""
    configs = remap("t", {"b"}, create("t", 1, {"a"}, {}, 1).broker_config_map, 1).broker_config_map
    with pytest.raises(ValueError, match="the move of logical queue 0 is not finished: carry out its plan"):
        remap("t", {"a"}, configs, 1)
    with pytest.raises(ValueError, match="the move of logical queue 0 is not finished: carry out its plan"):
        create("t", 2, {"a"}, configs, 1)
    again = decide(remap("t", {"b"}, configs, 1), {0: 7})  # without the old plan's file
    assert led_parts(again.broker_config_map)[0][-1].logic_offset == BLOCK
