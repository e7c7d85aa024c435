"""Held pops whose filters have more to look at: each gets its turn, and so does the loop."""

import asyncio

from batonmq.broker.pop.looks import TURN_LOOKS, TURN_US, Looks
from batonmq.common.clock import ManualClock


async def test_groups_look_in_turn_and_the_loop_serves_others_between() -> None:
    clock = ManualClock()
    seen: list[str] = []
    left = {"a": 4, "b": 2}

    def look(topic: str, group: str) -> None:
        assert topic == "t"
        clock.advance(TURN_US // 1000)
        seen.append(group)
        left[group] -= 1
        if left[group]:
            looks.add("t", group)
            looks.add("t", group)

    looks = Looks(clock, look)
    looks.add("t", "a")
    looks.add("t", "b")
    assert seen == []
    while len(looks):
        before = len(seen)
        await asyncio.sleep(0)
        assert len(seen) <= before + 1
    assert "".join(seen) == "ababaa"


async def test_where_time_stands_still_the_looks_of_a_turn_are_counted() -> None:
    count = 0

    def look(topic: str, group: str) -> None:
        nonlocal count
        count += 1
        looks.add(topic, group)

    looks = Looks(ManualClock(), look)
    looks.add("t", "g")
    await asyncio.sleep(0)
    assert count == TURN_LOOKS
    looks.clear()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert count == TURN_LOOKS and not len(looks)


async def test_a_look_that_fails_does_not_stop_the_others() -> None:
    seen: list[str] = []
    failures: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context["exception"]))

    def look(topic: str, group: str) -> None:
        seen.append(group)
        if group == "a":
            raise OSError("the disk")

    looks = Looks(ManualClock(), look)
    for group in "ab":
        looks.add("t", group)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    looks.add("t", "c")
    await asyncio.sleep(0)
    assert seen == ["a", "b", "c"] and len(failures) == 1
