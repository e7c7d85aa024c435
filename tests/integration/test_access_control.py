"""A broker with access control: who is let in, what users may do, and how users are changed."""

from __future__ import annotations

import json
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.integration.access import CLUSTER, INNER, NO, ROOT, Starter, acl, starting
from tests.integration.broker.rig import v2

from batonmq.broker.auth.needs import OPEN, RULES, SUPER_ONLY
from batonmq.net import RemotingClient
from batonmq.protocol.bodies.auth import UserInfo
from batonmq.protocol.codes import RequestCode, ResponseCode
from batonmq.protocol.frame import Command
from batonmq.protocol.headers.broker import auth as wire
from batonmq.protocol.headers.broker.admin import GetBrokerConfig, GetBrokerRuntimeInfo, UpdateBrokerConfig
from batonmq.protocol.headers.broker.pull import GetMaxOffset
from batonmq.protocol.headers.broker.replication import NotifyMinBrokerIdChange, WatchTables
from batonmq.protocol.json import encode
from batonmq.protocol.registry import Header
from batonmq.protocol.signing import Credentials


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Starter]:
    async with starting(tmp_path / "store") as starter:
        yield starter


async def test_only_signed_requests_of_enabled_users_are_answered(start: Starter) -> None:
    rig = await start(authorization_enabled=False)
    alice = await rig.user("alice")
    assert (await rig.ask(v2(), b"x", by=alice)).code == 0
    assert await rig.refused(v2(), b"x", by=None) == (NO, "username cannot be null.")
    assert await rig.refused(v2(), b"x", by=Credentials("nobody", "s")) == (NO, "User:nobody is not found.")
    assert await rig.refused(v2(), b"x", by=Credentials("alice", "s")) == (NO, "check signature failed.")
    await rig.ask(wire.UpdateUser("alice"), encode(UserInfo(user_status="disable")))
    assert await rig.refused(v2(), b"x", by=alice) == (NO, "User:alice is disabled.")
    await rig.ask(wire.UpdateUser("alice"), encode(UserInfo(user_status="enable", password="new")))
    assert await rig.refused(v2(), b"x", by=alice) == (NO, "check signature failed.")
    assert (await rig.ask(v2(), b"x", by=Credentials("alice", "new"))).code == 0
    await rig.ask(wire.DeleteUser("alice"))
    assert await rig.refused(v2(), by=Credentials("alice", "new")) == (NO, "User:alice is not found.")


async def test_a_request_that_was_changed_on_its_way_is_refused(start: Starter) -> None:
    rig = await start(authorization_enabled=False)
    signed = ROOT.sign(v2().to_ext(), b"body")
    client = RemotingClient()
    try:
        for ext, body, code in (
            (signed, b"body", 0),
            (signed, b"bodx", NO),
            ({**signed, "b": "Other"}, b"body", NO),
            ({key: value for key, value in signed.items() if key != "Signature"}, b"body", NO),
            ({**signed, "Signature": ""}, b"body", NO),
        ):
            for binary in (False, True):
                command = Command(int(RequestCode.SEND_MESSAGE_V2), dict(ext), body, binary=binary)
                assert (await client.invoke(rig.address, command)).code == code
    finally:
        await client.close()


async def test_a_listed_code_needs_no_signature(start: Starter) -> None:
    code = int(RequestCode.GET_BROKER_RUNTIME_INFO)
    rig = await start(authentication_whitelist=f"{code}, 9999", authorization_whitelist=str(code))
    assert (await rig.ask(GetBrokerRuntimeInfo(), by=None)).code == 0
    assert (await rig.refused(GetBrokerConfig(), by=None))[0] == NO


async def test_notices_that_only_make_a_broker_ask_need_no_signature(start: Starter) -> None:
    rig = await start()
    notice = NotifyMinBrokerIdChange(broker_name="b", min_broker_id=0, min_broker_addr="127.0.0.1:1")
    assert (await rig.ask(notice, by=None)).code == 0


async def test_users_need_rights_and_super_users_do_not(start: Starter) -> None:
    rig = await start()
    alice = await rig.user("alice")
    code, remark = await rig.refused(v2("Orders"), b"x", by=alice)
    assert code == NO
    assert (
        remark == "User:alice has no permission to access Topic:Orders from 127.0.0.1, no matched policies."
    )
    assert (await rig.ask(v2("Orders"), b"x", by=ROOT)).code == 0
    await rig.allow(alice, "Topic:Ord*", "Pub")
    assert (await rig.ask(v2("Orders"), b"x", by=alice)).code == 0
    assert (await rig.refused(GetMaxOffset("Orders", 0), by=alice))[0] == NO
    await rig.allow(alice, "Topic:Orders", "Pub", decision="Deny")
    assert (await rig.refused(v2("Orders"), b"x", by=alice))[1].endswith("the decision is deny.")
    await rig.ask(wire.DeleteAcl("User:alice", resource="Topic:Orders"))
    assert (await rig.ask(v2("Orders"), b"x", by=alice)).code == 0


async def test_requests_between_brokers_are_for_super_users(start: Starter) -> None:
    rig = await start()
    bob = await rig.user("bob")
    await rig.allow(bob, "*", "All")
    assert (await rig.ask(GetBrokerRuntimeInfo(), by=bob)).code == 0
    assert (await rig.ask(wire.GetAllAccessControl(), by=INNER)).code == 0
    for header in (wire.GetAllAccessControl(), WatchTables(copied=0), wire.PassAccessChange(3003, 1, "root")):
        code, remark = await rig.refused(header, by=bob)
        assert code == NO and "is not a super user" in remark


async def test_only_super_users_change_super_users(start: Starter) -> None:
    rig = await start()
    clerk = await rig.user("clerk")
    await rig.allow(clerk, f"Cluster:{CLUSTER}", "Update", "Get")
    await rig.user("alice", by=clerk)
    error = int(ResponseCode.SYSTEM_ERROR)
    body = encode(UserInfo(password="x", user_type="super"))
    assert await rig.refused(wire.CreateUser("eve"), body, by=clerk) == (
        error,
        "The super user can only be create by super user",
    )
    assert await rig.refused(wire.UpdateUser("clerk"), body, by=clerk) == (
        error,
        "The super user can only be update by super user",
    )
    for header in (wire.UpdateUser("root"), wire.DeleteUser("root")):
        assert await rig.refused(header, encode(UserInfo(password="mine")), by=clerk) == (
            NO,
            "The super user can only be update by super user",
        )
    assert (await rig.ask(wire.GetUser("root"), by=ROOT)).code == 0


BAD: list[tuple[Header, bytes, int, str]] = [
    (wire.CreateUser(), b"{}", 29, "The username is blank"),
    (wire.CreateUser(" "), b"{}", 29, "The username is blank"),
    (wire.CreateUser("u"), b"", 1, "needs a body"),
    (wire.CreateUser("u"), b"[]", 1, "UserInfo"),
    (wire.CreateUser("u"), b"{}", 16, "password can not be blank"),
    (wire.CreateUser("u"), b'{"password":"  "}', 16, "password can not be blank"),
    (wire.CreateUser("root"), b'{"password":"x"}', 16, "The user is existed"),
    (wire.CreateUser("u" * 2_000), b'{"password":"x"}', 29, "more than"),
    (wire.UpdateUser(), b"{}", 29, "The username is blank"),
    (wire.UpdateUser("none"), b"{}", 16, "The user is not exist"),
    (wire.UpdateUser("root"), b"", 1, "needs a body"),
    (wire.DeleteUser(), b"", 16, "username can not be blank"),
    (wire.GetUser(), b"", 29, "The username is blank"),
    (wire.CreateAcl("User:root"), b"", 1, "needs a body"),
    (wire.CreateAcl("User:root"), b"{}", 1, "The body of acl is null"),
    (wire.CreateAcl("User:root"), b'{"policies":[{}]}', 16, "The policies is empty."),
    (
        wire.CreateAcl("Team:x"),
        acl(ROOT, "*", "Pub").replace(b"User:root", b"Team:x"),
        1,
        "must be User:name",
    ),
    (wire.CreateAcl(), acl(ROOT, "*", "Pub").replace(b"User:root", b""), 1, "must be User:name"),
    (
        wire.CreateAcl(),
        acl(Credentials("none", "s"), "*", "Pub"),
        16,
        "The subject of User:none is not exist.",
    ),
    (wire.CreateAcl(), acl(ROOT, "", "Pub"), 16, "The resource is null."),
    (wire.CreateAcl(), acl(ROOT, "Queue:x", "Pub"), 16, "The resource is null."),
    (wire.CreateAcl(), acl(ROOT, "Topic:x"), 16, "The actions is empty."),
    (wire.CreateAcl(), acl(ROOT, "Topic:x", "Publish"), 16, "The actions is empty."),
    (wire.CreateAcl(), acl(ROOT, "Topic:x", "Any"), 16, "The actions can not be Any."),
    (wire.CreateAcl(), acl(ROOT, "Topic:x", "Pub", decision="Maybe"), 16, "The decision is null or illegal."),
    (
        wire.UpdateAcl(),
        acl(ROOT, "Topic:x", "Pub").replace(b'"decision"', b'"sourceIps":["10.0.0"],"decision"'),
        16,
        "The source ip is invalid.",
    ),
    (
        wire.UpdateAcl(),
        acl(ROOT, "Topic:x", "Pub").replace(b'"decision"', b'"sourceIps":[" "],"decision"'),
        16,
        "The source ip is empty.",
    ),
    (wire.DeleteAcl("User:none"), b"", 16, "The subject is not exist."),
    (wire.DeleteAcl("User:root"), b"", 16, "The acl is not exist."),
    (wire.DeleteAcl(), b"", 1, "must be User:name"),
    (wire.GetAcl("User:none"), b"", 16, "The subject is not exist."),
    (wire.GetAcl("root"), b"", 1, "must be User:name"),
    (wire.PassAccessChange(10, 1, "root"), b"", 29, "changes no users"),
]


async def test_bad_requests_about_users_get_rocketmq_s_codes_and_change_nothing(start: Starter) -> None:
    rig = await start()
    before = (await rig.ask(wire.GetAllAccessControl())).body
    for header, body, code, words in BAD:
        found, remark = await rig.refused(header, body)
        assert found == code and words in remark and "\n" not in remark, (header, body, found, remark)
    assert bytes((await rig.ask(wire.GetAllAccessControl())).body) == bytes(before)


async def test_users_and_lists_are_shown_as_rocketmq_shows_them(start: Starter) -> None:
    rig = await start()
    alice = await rig.user("alice", type_name="NORMAL")
    await rig.allow(alice, "Group:*", "sub")
    await rig.allow(alice, "Topic:a*", "Pub", "SUB", decision="DENY")
    shown = json.loads(bytes((await rig.ask(wire.GetUser("alice"))).body))
    assert shown == {
        "username": "alice",
        "password": "alice-secret",
        "userType": "Normal",
        "userStatus": "enable",
    }
    users = json.loads(bytes((await rig.ask(wire.ListUsers("o"))).body))
    assert [user["username"] for user in users] == ["root"]
    assert users[0]["userType"] == "Super"
    assert not (await rig.ask(wire.ListUsers("xyz"))).body
    assert not (await rig.ask(wire.GetUser("none"))).body
    assert not (await rig.ask(wire.GetAcl("User:root"))).body
    entries = [
        {"resource": "Group:*", "actions": ["Sub"], "decision": "Allow"},
        {"resource": "Topic:a*", "actions": ["Pub", "Sub"], "decision": "Deny"},
    ]
    expected = {"subject": "User:alice", "policies": [{"policyType": "Custom", "entries": entries}]}
    assert json.loads(bytes((await rig.ask(wire.GetAcl("User:alice"))).body)) == expected
    assert json.loads(bytes((await rig.ask(wire.ListAcls())).body)) == [expected]
    listed = json.loads(bytes((await rig.ask(wire.ListAcls("ali", "Topic"))).body))
    assert listed[0]["policies"][0]["entries"] == entries[1:]
    assert not (await rig.ask(wire.ListAcls("bob"))).body


async def test_users_outlive_a_restart_in_a_file_for_the_owner_only(start: Starter, tmp_path: Path) -> None:
    rig = await start()
    alice = await rig.user("alice")
    await rig.allow(alice, "Topic:T", "Pub")
    file = tmp_path / "store" / "config" / "accessControl.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    await rig.close()
    rig = await start(init_authentication_user='{"username":"root","password":"other"}')
    assert (await rig.ask(v2(), b"x", by=alice)).code == 0
    assert (await rig.ask(GetBrokerConfig(), by=ROOT)).code == 0, "an existing user keeps its password"


async def test_secrets_are_in_no_configuration_that_a_request_shows(start: Starter) -> None:
    rig = await start()
    shown = bytes((await rig.ask(GetBrokerConfig())).body)
    assert b"root-secret" not in shown and b"initAuthenticationUser" not in shown
    code, remark = await rig.refused(UpdateBrokerConfig(), b"authenticationEnabled=false")
    assert code == ResponseCode.SYSTEM_ERROR and "broker's file" in remark


async def test_users_can_be_made_before_access_control_is_switched_on(start: Starter) -> None:
    rig = await start(authentication_enabled=False, authorization_enabled=False)
    await rig.user("alice", by=None)
    assert (await rig.ask(v2(), b"x", by=None)).code == 0
    await rig.close()
    rig = await start()
    assert (await rig.ask(GetBrokerConfig(), by=ROOT)).code == 0
    assert (await rig.refused(v2(), b"x", by=Credentials("alice", "wrong")))[0] == NO


async def test_refusals_are_logged_without_secrets(start: Starter, caplog: pytest.LogCaptureFixture) -> None:
    rig = await start()
    await rig.refused(v2(), b"x", by=Credentials("mal\nory", "a-secret"))
    text = caplog.text
    assert "code=310 refused" in text and "mal\\nory" in text
    assert "secret" not in text


async def test_every_request_that_a_broker_answers_has_a_rule(start: Starter) -> None:
    """One that was forgotten would be for super users only."""
    rig = await start()
    ruled = {*RULES, *OPEN, *SUPER_ONLY}
    forgotten = [RequestCode(code).name for code in rig.service._dispatcher.handlers if code not in ruled]
    assert not forgotten, f"broker/auth/needs.py has no rule for {forgotten}"
