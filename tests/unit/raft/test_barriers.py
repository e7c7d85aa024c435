"""Reads on their way: asked together, held until their index is applied, refused when all is given up."""

from __future__ import annotations

import asyncio

from batonmq.raft.barriers import Barriers


def futures(barriers: Barriers, count: int) -> list[asyncio.Future[None]]:
    made = [asyncio.get_running_loop().create_future() for _ in range(count)]
    for each in made:
        barriers.add(each)
    return made


async def test_those_of_one_turn_share_a_question() -> None:
    barriers = Barriers(7)
    assert barriers.ask() is None
    first = futures(barriers, 2)
    assert barriers.ask() == 8 and barriers.ask() is None
    second = futures(barriers, 1)
    assert barriers.ask() == 9
    assert barriers.answered(9) == second and barriers.answered(8) == first


async def test_they_wait_until_their_index_is_applied() -> None:
    barriers = Barriers(0)
    early, late = futures(barriers, 1), futures(barriers, 2)
    barriers.hold(1, 5, early)
    barriers.hold(2, 6, late)
    late[0].cancel()
    barriers.applied(4)
    assert not early[0].done()
    barriers.applied(5)
    assert early[0].done() and not late[1].done()
    barriers.applied(6)
    assert late[1].done() and late[0].cancelled()


async def test_an_answer_that_comes_too_late_finds_nobody() -> None:
    barriers = Barriers(0)
    asked = futures(barriers, 1)
    number = barriers.ask()
    assert number is not None and barriers.expire(number) == asked and barriers.expire(number) == []
    assert barriers.answered(number) == []


async def test_a_read_whose_index_is_not_applied_in_time_expires_alone() -> None:
    barriers = Barriers(0)
    early, late = futures(barriers, 1), futures(barriers, 1)
    barriers.hold(1, 5, early)
    barriers.hold(2, 5, late)
    assert barriers.expire(1) == early and barriers.expire(1) == []
    barriers.applied(5)
    assert late[0].done() and not early[0].done()


async def test_all_waiting_reads_are_returned_when_all_is_given_up() -> None:
    barriers = Barriers(0)
    asked = futures(barriers, 1)
    barriers.ask()
    held = futures(barriers, 1)
    number = barriers.ask()
    assert number is not None
    barriers.hold(number, 9, barriers.answered(number))
    unasked = futures(barriers, 1)
    assert barriers.give_up() == unasked + asked + held
    assert barriers.give_up() == [] and barriers.ask() is None
