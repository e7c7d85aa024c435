"""The table of users: its file, which table of two is newer, and the decisions that it remembers."""

from __future__ import annotations

import pytest

from batonmq.broker.auth.core import MAX_DECISIONS, AccessTable, Need, User
from batonmq.broker.auth.policies import Action, topic
from batonmq.protocol.bodies.auth import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo
from batonmq.protocol.errors import MQError
from batonmq.protocol.signing import Credentials
from batonmq.protocol.versions import V4_9_3

ALICE = Credentials("alice", "secret")
NEED = Need(topic("T"), (Action.PUB,))
LIST = AclInfo(
    subject="User:alice",
    policies=[
        PolicyInfo(entries=[PolicyEntryInfo(resource="Topic:T", actions=["Pub"], decision="Allow")]),
        PolicyInfo(
            policy_type="default",
            entries=[
                PolicyEntryInfo(
                    resource="*", actions=["All"], source_ips=["10.0.0.0/8", "::1"], decision="Deny"
                )
            ],
        ),
    ],
)


def table() -> AccessTable:
    made = AccessTable()
    made.create_user("alice", UserInfo(password="secret"))
    made.update_acl(None, LIST)
    made.changed(7, 3)
    return made


def test_a_table_is_read_as_it_was_written() -> None:
    read, written = AccessTable(), table()
    read.restore(written.encode())
    assert read.encode() == written.encode()
    assert read.acls() == [LIST_AS_SHOWN]
    read.authorize("alice", [NEED], "10.1.1.1")


LIST_AS_SHOWN = AclInfo(
    subject="User:alice",
    policies=[
        PolicyInfo("Custom", [PolicyEntryInfo("Topic:T", ["Pub"], None, "Allow")]),
        PolicyInfo("Default", [PolicyEntryInfo("*", ["All"], ["10.0.0.0/8", "::1"], "Deny")]),
    ],
)


@pytest.mark.parametrize(
    "data",
    [
        b"x",
        b"[]",
        b'{"users":[{"username":"a"}]}',
        b'{"users":[{"username":"a","password":"b"},{"username":"a","password":"b"}]}',
        b'{"acls":[{"subject":"User:none","policies":[]}]}',
        b'{"users":[{"username":"a","password":"b"}],"acls":[{"subject":"User:a","policies":[{"entries":[{}]}]}]}',
    ],
)
def test_a_broken_file_changes_nothing(data: bytes) -> None:
    kept = table()
    with pytest.raises(ValueError, match=r"."):
        kept.restore(data)
    assert kept.encode() == table().encode()


def test_a_slave_takes_what_differs_and_a_master_that_returns_what_is_newer() -> None:
    master, slave = table(), AccessTable()
    assert slave.replace(master.encode()) and not slave.replace(master.encode())
    assert not master.take_back(slave.encode())
    slave.delete_user("alice")
    slave.changed(8, 3)
    assert master.take_back(slave.encode()) and master.user("alice") is None
    assert not master.take_back(table().encode())


def test_a_decision_is_forgotten_with_every_change() -> None:
    kept = table()
    changes = [
        lambda: kept.delete_acl("User:alice", None, None),
        lambda: kept.update_acl(None, LIST),
        lambda: kept.delete_acl("User:alice", None, "Topic:T"),
    ]
    allowed = [False, True, False]
    kept.authorize("alice", [NEED], "10.1.1.1")
    for change, allows in zip(changes, allowed, strict=True):
        change()
        if allows:
            kept.authorize("alice", [NEED], "10.1.1.1")
        else:
            with pytest.raises(MQError):
                kept.authorize("alice", [NEED], "10.1.1.1")


def test_remembered_decisions_are_bounded() -> None:
    kept = table()
    for number in range(MAX_DECISIONS + 5):
        with pytest.raises(MQError):
            kept.authorize("alice", [Need(topic(str(number)), (Action.PUB,))], "10.1.1.1")
    assert len(kept._decisions) <= MAX_DECISIONS


def test_a_deleted_user_that_is_recreated_has_no_list() -> None:
    kept = table()
    kept.delete_user("alice")
    kept.create_user("alice", UserInfo(password="secret"))
    with pytest.raises(MQError, match="no matched policies"):
        kept.authorize("alice", [NEED], "10.1.1.1")


def test_a_disabled_user_has_no_rights() -> None:
    kept = table()
    kept.update_user("alice", UserInfo(user_status="DISABLE"))
    with pytest.raises(MQError, match="is disabled"):
        kept.authorize("alice", [NEED], "10.1.1.1")


@pytest.mark.parametrize(("version", "right"), [(V4_9_3, True), (V4_9_3 + 1, False)])
def test_old_clients_set_a_field_of_queries_after_they_sign(version: int, right: bool) -> None:
    ext = {**ALICE.sign({"topic": "T"}, b""), "_UNIQUE_KEY_QUERY": "true"}
    if right:
        table().authenticate(ext, b"", version)
    else:
        with pytest.raises(MQError, match="check signature failed"):
            table().authenticate(ext, b"", version)


def test_passwords_are_not_shown() -> None:
    assert "secret" not in repr(User("alice", "secret")) + repr(UserInfo("alice", "secret"))


def test_decisions_on_names_that_no_topic_has_are_not_remembered() -> None:
    one = table()
    for length in (255, 256, 1 << 20):
        with pytest.raises(MQError, match="has no permission"):
            one.authorize("alice", [Need(topic("x" * length), (Action.PUB,))], "127.0.0.1")
    assert len(one._decisions) == 1
