"""Which slaves follow a master that returns: what they say, and what the links show."""

from batonmq.broker.preonline.core import Answer, linked

MEMBERS = {1: "10.0.0.1:10911", 2: "10.0.0.2:10911"}
JAVA = Answer(None, "")
NOT_YET = Answer("", "")


def ours(linked_from: str) -> Answer:
    return Answer("10.0.0.9:10912", linked_from)


def test_a_slave_of_ours_says_from_where_it_is_linked() -> None:
    answers = {1: ours("10.9.9.1:4001"), 2: ours("10.9.9.2:4002")}
    assert linked(MEMBERS, answers, ["10.9.9.1:4001", "10.9.9.2:4002"]) == {1, 2}
    # The link of slave 2 is one that the master does not know to be over yet.
    assert linked(MEMBERS, answers, ["10.9.9.1:4001"]) == {1}


def test_a_slave_that_does_not_follow_yet_is_not_linked_whatever_links_there_are() -> None:
    assert linked(MEMBERS, {1: NOT_YET, 2: NOT_YET}, ["10.0.0.1:5", "10.0.0.2:6"]) == set()
    assert linked(MEMBERS, {1: NOT_YET, 2: ours("10.0.0.2:6")}, ["10.0.0.1:5", "10.0.0.2:6"]) == {2}


def test_rocketmqs_slaves_are_found_by_their_host() -> None:
    assert linked(MEMBERS, {1: JAVA, 2: JAVA}, ["10.0.0.2:40000"]) == {2}
    assert linked(MEMBERS, {1: JAVA, 2: JAVA}, ["10.0.0.2:40000", "10.0.0.1:40000"]) == {1, 2}


def test_rocketmqs_slaves_with_another_replication_address_get_the_links_that_are_left() -> None:
    assert linked(MEMBERS, {1: JAVA, 2: JAVA}, ["192.168.0.1:1", "10.0.0.2:2"]) == {1, 2}
    assert linked(MEMBERS, {1: JAVA, 2: JAVA}, ["192.168.0.1:1"]) == {1}
    assert linked(MEMBERS, {1: JAVA, 2: ours("192.168.0.1:1")}, ["192.168.0.1:1"]) == {2}


def test_behind_an_address_translation_the_number_of_links_counts() -> None:
    answers = {1: ours("172.17.0.2:33000"), 2: ours("172.17.0.2:33000")}
    assert linked(MEMBERS, answers, ["10.0.0.7:1"]) == {1}
    assert linked(MEMBERS, answers, ["10.0.0.7:1", "10.0.0.7:2"]) == {1, 2}


def test_a_slave_that_has_not_answered_is_not_linked() -> None:
    assert linked(MEMBERS, {}, ["10.0.0.1:1", "10.0.0.2:2"]) == set()


def test_without_members_nobody_is_waited_for() -> None:
    assert linked({}, {}, ["10.0.0.1:1"]) == set()
