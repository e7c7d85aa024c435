"""Policies: what a resource covers, which entry of several counts, and the order in which they are kept."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batonmq.broker.auth.policies import (
    NO_ACL,
    Acl,
    Action,
    Decision,
    Entry,
    Kind,
    Pattern,
    PolicyType,
    Resource,
    group,
    topic,
)

ALLOW, DENY = Decision.ALLOW, Decision.DENY
HERE = "10.1.2.3"
NAMES = st.text("ab*:", max_size=4)


def resource(key: str) -> Resource:
    found = Resource.parse(key)
    assert found is not None
    return found


def entry(text: str, decision: Decision, *actions: Action, source_ips: tuple[str, ...] = ()) -> Entry:
    return Entry(resource(text), actions or (Action.PUB,), source_ips, decision)


def acl(*entries: Entry, default: tuple[Entry, ...] = ()) -> Acl:
    custom = NO_ACL.updated([(PolicyType.CUSTOM, entries)])
    return custom.updated([(PolicyType.DEFAULT, default)]) if default else custom


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("*", Resource(Kind.ANY, "", Pattern.ANY)),
        ("Any:x", Resource(Kind.ANY, "", Pattern.ANY)),
        ("Topic:*", Resource(Kind.TOPIC, "", Pattern.ANY)),
        ("topic:Orders", Resource(Kind.TOPIC, "Orders")),
        ("GROUP:a*", Resource(Kind.GROUP, "a", Pattern.PREFIXED)),
        ("Topic:a*b*", Resource(Kind.TOPIC, "a", Pattern.PREFIXED)),
        ("Topic:**", Resource(Kind.TOPIC, "", Pattern.ANY)),
        ("Topic:a*b", Resource(Kind.TOPIC, "a*b")),
        ("Topic:a:b", Resource(Kind.TOPIC, "a:b")),
        ("Topic", Resource(Kind.TOPIC, "")),
        ("Cluster:c", Resource(Kind.CLUSTER, "c")),
        ("Queue:x", None),
        ("", None),
        (" ", None),
        (None, None),
    ],
)
def test_resources_are_read_as_rocketmq_reads_them(key: str | None, expected: Resource | None) -> None:
    assert Resource.parse(key) == expected


@given(st.sampled_from(Kind), NAMES)
def test_the_key_of_a_resource_is_read_as_the_same_resource(kind: Kind, name: str) -> None:
    read = resource(f"{kind.value}:{name}")
    assert resource(read.key) == read


@pytest.mark.parametrize(
    ("pattern", "asked", "covers"),
    [
        ("Topic:Orders", topic("Orders"), True),
        ("Topic:Orders", topic("Orders2"), False),
        ("Topic:Ord*", topic("Orders"), True),
        ("Topic:Ord*", topic("ord"), False),
        ("Topic:*", topic("Orders"), True),
        ("Topic:*", group("Orders"), False),
        ("*", group("x"), True),
        ("*", Resource(Kind.CLUSTER, "c"), True),
        ("Group:g", group("%RETRY%g"), True),
        ("Namespace:*", topic("Orders"), False),
    ],
)
def test_what_a_pattern_covers(pattern: str, asked: Resource, covers: bool) -> None:
    assert resource(pattern).covers(asked) is covers


PRECEDENCE: list[tuple[list[Entry], Decision | None]] = [
    ([], None),
    ([entry("Topic:Orders", ALLOW)], ALLOW),
    ([entry("Topic:Orders", ALLOW, Action.SUB)], None),
    ([entry("Topic:Orders", ALLOW, Action.ALL)], ALLOW),
    ([entry("Topic:Orders", DENY), entry("Topic:Ord*", ALLOW)], DENY),
    ([entry("Topic:Ord*", DENY), entry("Topic:Orders", ALLOW)], ALLOW),
    ([entry("Topic:O*", DENY), entry("Topic:Ord*", ALLOW)], ALLOW),
    ([entry("Topic:Ord*", DENY), entry("Topic:O*", ALLOW)], DENY),
    ([entry("Topic:*", DENY), entry("Topic:O*", ALLOW)], ALLOW),
    ([entry("*", DENY), entry("Topic:*", ALLOW)], ALLOW),
    ([entry("*", ALLOW), entry("Topic:*", DENY)], DENY),
    ([entry("Topic:Orders", DENY, Action.SUB), entry("*", ALLOW)], ALLOW),
    ([entry("Topic:Orders", DENY, source_ips=("10.1.0.0/16",)), entry("*", ALLOW)], DENY),
    ([entry("Topic:Orders", DENY, source_ips=("10.2.0.0/16", "::1")), entry("*", ALLOW)], ALLOW),
    ([entry("Topic:Orders", ALLOW, source_ips=("10.2.0.0/16", HERE))], ALLOW),
]


@pytest.mark.parametrize(("entries", "decision"), PRECEDENCE)
def test_the_most_exact_entry_counts(entries: list[Entry], decision: Decision | None) -> None:
    for each in (entries, entries[::-1]):
        assert acl(*each).decide(topic("Orders"), (Action.PUB,), HERE) is decision


def test_default_entries_count_where_no_custom_one_matches() -> None:
    custom = (entry("Topic:Orders", DENY), entry("Topic:Bills", ALLOW, Action.SUB))
    both = acl(*custom, default=(entry("*", ALLOW),))
    assert both.decide(topic("Orders"), (Action.PUB,), HERE) is DENY
    assert both.decide(topic("Bills"), (Action.PUB,), HERE) is ALLOW


def test_one_of_several_actions_suffices() -> None:
    found = acl(entry("Topic:Orders", ALLOW, Action.GET))
    assert found.decide(topic("Orders"), (Action.SUB, Action.GET), HERE) is ALLOW


@pytest.mark.parametrize(
    ("networks", "address", "decision"),
    [
        (("192.168.0.1/16",), "192.168.9.9", ALLOW),
        (("10.1.2.3",), "10.1.2.4", None),
        (("0.0.0.0/0",), HERE, ALLOW),
        (("0.0.0.0/0",), "::1", None),
        (("fe80::/10",), "fe80::1", ALLOW),
        (("0.0.0.0/0",), "no address", None),
    ],
)
def test_entries_hold_from_their_networks(
    networks: tuple[str, ...], address: str, decision: Decision | None
) -> None:
    found = acl(entry("*", ALLOW, source_ips=networks))
    assert found.decide(topic("Orders"), (Action.PUB,), address) is decision


def test_an_entry_for_the_same_resource_replaces_the_one_before() -> None:
    found = acl(entry("Topic:a", ALLOW), entry("Topic:b", ALLOW))
    changed = found.updated([(PolicyType.CUSTOM, [entry("Topic:a", DENY)])])
    assert [each.decision for each in changed.entries(PolicyType.CUSTOM)] == [DENY, ALLOW]
    assert changed.without(PolicyType.CUSTOM, resource("Topic:a")) == acl(entry("Topic:b", ALLOW))
    assert found.without(PolicyType.DEFAULT, resource("Topic:a")) == acl(*found.entries(PolicyType.CUSTOM))
    assert acl(entry("Topic:a", ALLOW)).without(PolicyType.CUSTOM, resource("Topic:a")).policies == ()


ENTRIES = st.builds(
    Entry,
    st.builds(lambda kind, name: resource(f"{kind}:{name}"), st.sampled_from(["Topic", "Group"]), NAMES)
    | st.just(resource("*")),
    st.lists(st.sampled_from([Action.PUB, Action.SUB, Action.ALL]), min_size=1, max_size=2).map(tuple),
    st.just(()),
    st.sampled_from(Decision),
)


@given(st.lists(ENTRIES, max_size=6), NAMES)
def test_a_decision_does_not_depend_on_the_order_and_an_exact_denial_always_counts(
    entries: list[Entry], name: str
) -> None:
    unique = list({each.resource: each for each in entries}.values())
    asked = topic(name)
    decision = acl(*unique).decide(asked, (Action.PUB,), HERE)
    assert acl(*unique[::-1]).decide(asked, (Action.PUB,), HERE) is decision
    matching = [each for each in unique if each.matches(asked, (Action.PUB,), HERE)]
    assert (decision is None) == (not matching)
    denied = acl(*unique, Entry(asked, (Action.ALL,), (), DENY))
    assert denied.decide(asked, (Action.PUB,), HERE) is DENY
