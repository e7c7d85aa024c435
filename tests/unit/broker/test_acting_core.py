"""When a slave acts as master, and what several name servers say of the members."""

from __future__ import annotations

from batonmq.broker.acting.core import ALONE_GRACE_MS, LINKED_GRACE_MS, ActingRule, MemberViews
from batonmq.broker.members import MemberGroup

MASTER, FIRST, SECOND = "m:1", "s:1", "s:2"
BOTH = {0: MASTER, 1: FIRST}


class TestViews:
    def test_nothing_is_known_before_a_name_server_answers(self):
        views = MemberViews()
        assert views.members() is None
        views.failed("a")
        assert views.members() is None

    def test_a_member_is_alive_while_any_name_server_lists_it(self):
        views = MemberViews()
        views.answered("a", {1: FIRST})
        views.answered("b", BOTH)
        assert views.members() == BOTH
        views.answered("b", {1: FIRST})
        assert views.members() == {1: FIRST}

    def test_a_name_server_that_fails_or_knows_no_member_has_no_say(self):
        views = MemberViews()
        views.answered("a", {1: FIRST})
        for forget in (lambda: views.failed("b"), lambda: views.answered("b", {})):
            views.answered("b", BOTH)
            forget()
            assert views.members() == {1: FIRST}

    def test_a_name_server_that_left_the_configuration_has_no_say(self):
        views = MemberViews()
        views.answered("a", BOTH)
        views.keep(frozenset({"b"}))
        assert views.members() is None


class TestRule:
    def wait(self, rule, members, *, me=1, address=FIRST, linked=False, now_ms=0):
        return rule.wait_ms(members, me, address, linked=linked, now_ms=now_ms)

    def test_no_slave_acts_while_a_master_is_alive(self):
        assert self.wait(ActingRule(), BOTH) is None

    def test_the_slave_with_the_lowest_id_acts_at_once(self):
        members = {1: FIRST, 2: SECOND}
        assert self.wait(ActingRule(), members) == 0
        assert self.wait(ActingRule(), members, me=2, address=SECOND) is None

    def test_a_slave_that_starts_alone_gives_a_master_time_to_start(self):
        rule = ActingRule()
        assert self.wait(rule, {1: FIRST}, now_ms=5_000) == ALONE_GRACE_MS
        assert self.wait(rule, {1: FIRST}, now_ms=5_400) == ALONE_GRACE_MS - 400
        assert self.wait(rule, BOTH, now_ms=5_500) is None
        assert self.wait(rule, {1: FIRST}, now_ms=6_000) == 0, "it has known the master since"

    def test_a_slave_that_no_name_server_lists_does_not_act(self):
        assert self.wait(ActingRule(), {}) is None
        assert self.wait(ActingRule(), {2: SECOND}) is None

    def test_a_slave_whose_id_another_address_holds_does_not_act(self):
        assert self.wait(ActingRule(), {1: SECOND}) is None

    def test_a_linked_master_has_time_to_register_again(self):
        rule = ActingRule()
        assert self.wait(rule, BOTH) is None
        assert self.wait(rule, {1: FIRST}, linked=True, now_ms=1_000) == LINKED_GRACE_MS
        assert self.wait(rule, {1: FIRST}, linked=True, now_ms=1_500) == LINKED_GRACE_MS - 500
        assert self.wait(rule, {1: FIRST}, linked=False, now_ms=1_600) == 0
        assert self.wait(rule, {1: FIRST}, linked=True, now_ms=1_000 + LINKED_GRACE_MS) == 0
        # It came back, and is missing again: the time begins again.
        assert self.wait(rule, BOTH, linked=True, now_ms=9_000) is None
        assert self.wait(rule, {1: FIRST}, linked=True, now_ms=9_000) == LINKED_GRACE_MS

    def test_a_master_that_a_name_server_saw_leave_gets_no_time(self):
        rule = ActingRule()
        self.wait(rule, BOTH)
        rule.reported_offline(MASTER)
        assert self.wait(rule, {1: FIRST}, linked=True) == 0

    def test_a_report_of_another_broker_or_an_earlier_loss_takes_no_time_away(self):
        rule = ActingRule()
        self.wait(rule, BOTH)
        for address in (SECOND, None, ""):
            rule.reported_offline(address)
            assert self.wait(rule, {1: FIRST}, linked=True) == LINKED_GRACE_MS
        rule.reported_offline(MASTER)
        assert self.wait(rule, BOTH, linked=True) is None
        assert self.wait(rule, {1: FIRST}, linked=True) == LINKED_GRACE_MS


def test_listeners_are_called_for_changes_only():
    group, calls = MemberGroup(), []
    group.listeners.append(lambda members: calls.append(dict(members.addresses)))
    assert group.update(BOTH)
    assert not group.update(dict(BOTH))
    assert group.update({1: FIRST})
    assert calls == [BOTH, {1: FIRST}]
    assert (group.min_id, group.master_alive, group.others(1)) == (1, False, {})
