"""How RocketMQ has lost acknowledged messages, as named tests; each fails without the guard it is for.

The tests are beside what they test; those that had no better place are here. `GUARDED` names them all, and
the guard of each is taken out of the programs (`tests/guards.py`) to see it fail.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import until

ROOT = Path(__file__).parents[3]
HERE = "tests/unit/ha"
SWITCHES = "tests/integration/ha/test_failover.py"

GUARDED = {
    # guard: tests that fail without it
    "confirm-agreed": [
        f"{HERE}/test_sync_state.py::test_expanding_counts_the_new_member_before_the_controller_answers_5663"
    ],
    "confirm-lost": [
        f"{HERE}/test_sync_state.py::test_a_member_without_a_link_holds_the_confirm_offset_6662"
    ],
    "shrink-alone": [
        f"{HERE}/test_members.py"
        "::test_without_the_controllers_word_a_lost_slave_holds_the_confirm_offset_7017"
    ],
    "offsets-twice": [
        f"{HERE}/test_known_losses.py::test_queue_offsets_continue_behind_what_was_not_confirmed_7689"
    ],
    "links-kept": [f"{HERE}/test_terms.py::test_a_new_term_of_the_same_master_reaches_slaves_9689"],
    "forged-ack": [
        f"{HERE}/test_core.py::test_forged_frames_from_a_slave_3015",
        f"{HERE}/test_links.py::test_a_forged_ack_confirms_nothing_3015",
    ],
    "unregistered-count": [
        f"{HERE}/test_sync_state.py::test_acks_of_unregistered_ids_move_nothing_3015",
        f"{HERE}/test_security.py::test_links_of_unregistered_slaves_make_room_for_replicas",
    ],
    "dispatch-all": [
        f"{HERE}/test_known_losses.py::test_consumers_read_up_to_the_confirm_offset_and_no_further"
    ],
    "confirm-forgotten": [f"{HERE}/test_known_losses.py::test_the_confirm_offset_outlives_a_restart"],
    "confirm-unflushed": [
        f"{HERE}/test_copying.py"
        "::test_with_sync_flush_nothing_is_confirmed_before_the_masters_own_disk_has_it"
    ],
    "torn-tail": [f"{HERE}/test_terms.py::test_a_torn_record_is_cut_before_a_new_term"],
    "no-truncation": [
        f"{HERE}/test_core.py::test_a_tail_that_nobody_else_has_is_cut_even_below_the_masters_end"
    ],
    "tables-late": [f"{SWITCHES}::test_what_was_created_is_on_the_slave_when_that_is_answered"],
    "tables-lost": [f"{SWITCHES}::test_tables_follow_a_switch_right_after_they_changed"],
    "topics-lost": [f"{SWITCHES}::test_topics_that_only_the_log_knows_are_recreated"],
}
CASES = [(guard, test) for guard, tests in GUARDED.items() for test in tests]


@pytest.mark.parametrize(
    ("guard", "test"), CASES, ids=[f"{guard}-{test.rpartition('::')[2]}" for guard, test in CASES]
)
def test_it_fails_without_its_guard(guard: str, test: str) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-x",
            "-p",
            "tests.without_guard",
            "-p",
            "no:cacheprovider",
            test,
        ],
        cwd=ROOT,
        env={**os.environ, "WITHOUT_GUARD": guard},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    # 1: tests ran and failed; 4 and 5 would be a test that is not there.
    assert done.returncode == 1, done.stdout[-3000:] + done.stderr[-1000:]


async def test_queue_offsets_continue_behind_what_was_not_confirmed_7689(replicas):
    """A replica restarts with more in its log than is confirmed, and as master cannot confirm it yet."""
    master, slave = await replicas(2)
    await master.lead(1)
    await slave.follow(master, 1)
    master.put(b"confirmed")
    await until(lambda: slave.bodies() == [b"confirmed"])
    confirmed = slave.store.confirm_offset
    end = master.put(b"known to both", b"but not that it is")
    await until(lambda: slave.store.max_offset == end)
    await slave.restart(crash=True)
    slave.store.confirm_offset = min(confirmed, slave.store.confirm_offset)
    slave.agreeable = False  # the former master counts until the controller says otherwise
    await slave.lead(2, 1, 2)
    slave.put(b"new")
    assert slave.store.confirm_offset <= confirmed
    slave.agreeable = True
    await master.follow(slave, 2)
    bodies = [b"confirmed", b"known to both", b"but not that it is", b"new"]
    await until(lambda: slave.bodies() == bodies and master.bodies() == bodies)


async def test_consumers_read_up_to_the_confirm_offset_and_no_further(replicas):
    """On the master, on the slave, after a restart, and by offset as well as by queue."""
    master, slave = await replicas(2)
    await master.lead(1)
    await slave.follow(master, 1)
    await until(lambda: master.ha.tracker.agreed.members == {1, 2})
    confirmed = master.put(b"on both")
    await until(lambda: slave.store.confirm_offset == confirmed)
    master.agreeable = False
    await slave.ha.become_slave(None, 1, 1)  # without a link
    master.put(b"here only")
    assert master.store.confirm_offset == confirmed
    for replica in (master, slave):
        assert replica.bodies() == [b"on both"]
        assert replica.store.queue_bounds("T", 0).max_offset == 1
        assert replica.store.message_at(confirmed) is None
    await master.restart()
    assert master.store.confirm_offset == confirmed
    assert master.bodies() == [b"on both"]
    assert master.store.message_at(confirmed) is None


async def test_the_confirm_offset_outlives_a_restart(replicas):
    """What consumers could read they can read again, before any master or controller is known."""
    master, slave = await replicas(2)
    await master.lead(1)
    await slave.follow(master, 1)
    end = master.put(b"one", b"two")
    await until(lambda: slave.store.confirm_offset == end)
    for replica in (master, slave):
        await replica.restart()
        assert replica.store.confirm_offset == end
        assert replica.bodies() == [b"one", b"two"]
