"""The commands as a user meets them: each loads and explains itself, and what goes wrong is one line."""

from __future__ import annotations

import json
import time
import unicodedata
from collections.abc import Callable

import pytest
from click.testing import CliRunner

from batonmq.admin.command import repeatable
from batonmq.admin.commands.query_msg_by_id import body_text
from batonmq.admin.main import COMMANDS, SECTIONS, admin
from batonmq.admin.output import Output, time_text
from batonmq.admin.session import Admin, AdminError
from batonmq.admin.times import parse_time, parse_times
from batonmq.net.connection import Response
from batonmq.protocol.bodies.routes import BrokerData, TopicRouteData
from batonmq.protocol.bodies.topics import TopicConfig
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker.topics import GetTopicConfig
from batonmq.protocol.json import encode
from batonmq.protocol.message.ids import UniqueIds


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_explains_itself(name: str) -> None:
    result = CliRunner().invoke(admin, [name, "--help"])
    assert result.exit_code == 0, result.output
    for shared in (
        "--namesrvAddr",
        "--json",
        "--timeout",
        "--credentials",
        "--tls-config",
        "--tls-trust",
        "--tls-cert",
        "--tls-key",
    ):
        assert shared in result.output
    first = result.output.splitlines()[2].strip()
    assert first and first[0].isupper(), "the help begins with a sentence"


def test_the_list_shows_every_command_with_its_sentence() -> None:
    output = CliRunner().invoke(admin, ["--help"]).output
    assert all(name in output for name in COMMANDS)
    assert output.count("...") == 1, "each first sentence fits its line; the usage line alone has dots"
    assert len(COMMANDS) == sum(len(section) for section in SECTIONS.values())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["topicStatuss"], "did you mean topicStatus?"),
        (
            ["updateTopic", "-t", "%LMQ%a", "-b", "127.0.0.1:1"],
            "%LMQ%a is a light queue, which has no config",
        ),
        (["updateTopicPerm", "-t", "%LMQ%a", "-p", "4", "-b", "127.0.0.1:1"], "%LMQ%a is a light queue"),
        (["updateSubGroup", "-g", "%LMQ%g", "-b", "127.0.0.1:1"], "%LMQ%g exists without being created"),
        (["updateStaticTopic", "-t", "%LMQ%a", "-qn", "1", "-b", "a"], "%LMQ%a is a light queue"),
        (["updateStaticTopic", "-t", "T", "-b", "a", "-n", "127.0.0.1:1"], "give -qn with the number of"),
        (["updateStaticTopic", "-t", "T", "-qn", "0", "-b", "a"], "0 is not in the range"),
        (["updateStaticTopic", "-t", "T", "-qn", "2", "-n", "127.0.0.1:1"], "give -b with names of brokers"),
        (["remappingStaticTopic", "-t", "T", "-n", "127.0.0.1:1"], "give -b with names of brokers"),
        (["remappingStaticTopic", "-t", "T", "-mf", __file__], "test_commands.py is not a map file: "),
        (["remappingStaticTopic", "-t", "T", "-mf", "/no/such"], "'/no/such' does not exist"),
        (["topicList"], "no name server: give -n host:port or set NAMESRV_ADDR"),
        (
            ["topicList", "-n", "127.0.0.1:1"],
            "127.0.0.1:1: Connection refused; check the address (-n), and that a name server runs there",
        ),
        (["brokerStatus", "-n", "127.0.0.1:1"], "give -b with a broker's host:port or -c"),
        (["getSyncStateSet", "-a", "127.0.0.1:1", "-b", "x"], "no leading controller: 127.0.0.1:1"),
        (["getBrokerEpoch", "-n", "127.0.0.1:1"], "give -b with a broker's name or -c"),
        (["sendMessage", "-t", "t", "-p", "x", "-b", "a"], "-b and -i belong together"),
        (["consumeMessage", "-t", "t", "-i", "1"], "-i needs -b"),
        (["queryMsgById", "-i", "zz"], "for a unique id use queryMsgByUniqueKey"),
        (
            ["queryMsgById", "-i", UniqueIds("10.0.0.1", 7, 1).next(0)],
            "for a unique id use queryMsgByUniqueKey",
        ),
        (["cleanBrokerMetadata", "-a", "x:1", "-bn", "b"], "-c with the cluster's name is needed"),
        (
            ["cleanBrokerMetadata", "-a", "x:1", "-bn", "b", "-c", "c", "-b", "one"],
            "'one' is not a list of broker ids",
        ),
        (["resetOffsetByTime", "-g", "g", "-t", "t", "-s", "soon"], "'soon' is not a time; write"),
        (["resetOffsetByTime", "-g", "g", "-t", "t", "-s", "0", "-q", "1"], "need -b"),
        (
            ["resetOffsetByTime", "-g", "g", "-t", "t", "-s", "now", "-b", "127.0.0.1:1", "-o", "1"],
            "-o needs -q with the queue's id",
        ),
        (["resetOffsetByTime", "-g", "g", "-t", "t", "-s", "٣"], "'٣' is not a time"),
        (["resetOffsetByTime", "-g", "g", "-t", "t", "-s", "9" * 40], "9' is not a time"),
        (["printMsg", "-t", "t", "-b", "0001-01-01", "-n", "127.0.0.1:1"], "0001-01-01"),
        (["queryMsgByKey", "-t", "t", "-k", "k", "-m", "0"], "0 is not in the range"),
        (["topicList", "-n", "localhost"], "localhost: not an address of the form host:port"),
        (["topicList", "-n", "localhost:٣"], "not an address of the form host:port"),
        (["topicList", "-n", "é" * 70 + "..b:1"], "is not a host name"),
        (["topicList", "-n", "127.0.0.1:1", "--timeout", "9" * 400], "is not in the range"),
        (["sendMessage", "-n", "x", "-t", "T", "-p", "b"], "x: not an address of the form host:port"),
        (["transferControllerLeader", "-a", "1", "-i", "n0"], "1: not an address of the form host:port"),
        (
            ["addController", "-a", "127.0.0.1:1", "-i", "n3", "-r", "10.0.0.4"],
            "10.0.0.4: not an address of the form host:port",
        ),
        (
            ["addController", "-a", "127.0.0.1:1", "-i", "n3", "-r", "127.0.0.1:2", "-p", "9877"],
            "9877: not an address of the form host:port",
        ),
        (["topicList", "-n", ";;"], "no name server: give -n"),
        (["getSyncStateSet", "-a", ";", "-b", "x"], "-a names none"),
        (["getControllerMetaData", "-a", "127.0.0.1:1"], "127.0.0.1:1"),
        (["topicList", "--tls-config", "/no/such"], "/no/such: cannot be read: No such file or directory"),
        (
            ["topicList", "--tls-trust", "/no/such"],
            "tls.client.trustCertPath=/no/such: [Errno 2] No such file",
        ),
        (["topicList", "--tls-cert", __file__], f"tls.client.certPath={__file__}"),
        (["topicList", "--tls-key", "/no/such"], "a key is of no use without its certificate, --tls-cert"),
    ],
)
def test_what_goes_wrong_is_one_line_and_exit_code_not_zero(arguments: list[str], words: str) -> None:
    result = CliRunner().invoke(admin, arguments, env={"NAMESRV_ADDR": ""})
    assert result.exit_code != 0
    assert words in result.output
    assert "Traceback" not in result.output and not isinstance(result.exception, ValueError)


@pytest.mark.parametrize(
    ("text", "ms"), [("now", -1), ("0", 0), ("1700000000000", 1_700_000_000_000), ("-1", -1)]
)
def test_times(text: str, ms: int) -> None:
    assert parse_time(text) == ms


def test_now_is_an_end_of_a_stretch_of_time() -> None:
    before = time.time_ns() // 1_000_000
    first, last = parse_times("now", "now")
    assert before <= first <= last <= time.time_ns() // 1_000_000
    assert parse_times("5", None)[0] == 5 and parse_times(None, "7")[1] == 7


def test_a_date_is_taken_in_local_time(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse_time("2024-01-02#00:00:01:500") - parse_time("2024-01-02#00:00:00:000") == 1_500
    with pytest.raises(AdminError):
        parse_time("2024-13-01")


@pytest.mark.parametrize(
    "command", ["updateBrokerConfig -b", "updateControllerConfig -a", "updateNamesrvConfig -n"]
)
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("fileReservedTime", "48\nbrokerPermission=4"),
        ("fileReservedTime", "48\r"),
        ("fileReservedTime=48\nbrokerPermission", "4"),
        ("fileReservedTime=48", "4"),
        ("#fileReservedTime", "48"),
        ("fileReservedTime", "\\uxy"),
    ],
)
def test_a_change_is_of_one_key(command: str, key: str, value: str) -> None:
    refused = CliRunner().invoke(admin, [*command.split(), "127.0.0.1:1", "-k", key, "-v", value])
    assert refused.exit_code != 0 and repr(f"{key}={value}") in refused.output


def test_time_text() -> None:
    assert time_text(0) == "" and time_text(-1) == ""
    assert time_text(1_700_000_000_123) == "2023-11-14 22:13:20.123"


@pytest.mark.parametrize("ms", [2**63 - 1, 10**18, 253_402_300_800_000])
def test_a_time_beyond_the_calendar_is_shown_as_its_number(ms: int) -> None:
    assert time_text(ms) == str(ms)


def test_body_text() -> None:
    assert body_text(b"hello", 60) == "hello"
    assert body_text(b"\xff\x00", None) == "\\xff\x00"
    assert body_text(b"x" * 100, 10) == "x" * 9 + "…"


def test_tables_as_json_keep_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    Output(as_json=True).table(["name", "count"], [["a", 1], ["b", 2]])
    assert json.loads(capsys.readouterr().out) == [{"name": "a", "count": 1}, {"name": "b", "count": 2}]


def test_a_table_a_little_too_wide_for_the_terminal_gives_up_spaces_before_it_folds_cells(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    columns = ["cluster", "broker", "address"]
    row = ["DefaultCluster", "broker-a", "127.0.0.1:10911"]
    for width, between in ((41, "  "), (40, " "), (39, " ")):
        monkeypatch.setenv("COLUMNS", str(width))
        Output(as_json=False).table(columns, [row])
        assert capsys.readouterr().out.splitlines()[1].rstrip() == between.join(row)


def test_tables_fit_the_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    Output(as_json=False).table(["name", "value"], [["x" * 30, "y" * 30], ["[bold]z", None]])
    printed = capsys.readouterr().out
    assert all(len(line) <= 40 for line in printed.splitlines())
    assert "[bold]z" in printed, "what a broker says is never read as markup"


SENT = ":tada: [bold] \x1b[31mred\x07\x9b2J\tone\ntwo\r"
"""What a message may carry: rich's emoji and markup, and commands for the terminal."""
SHOWN = ":tada: [bold] \\x1b[31mred\\x07\\x9b2J"


@pytest.mark.parametrize(
    "show",
    [
        lambda out: out.table(["body"], [[SENT]]),
        lambda out: out.table([SENT], [["a"]]),
        lambda out: out.table(["body"], [["a" * 80]], title=SENT),
        lambda out: out.facts({"body": SENT}),
        lambda out: out.facts({SENT: 1}),
        lambda out: out.facts({}, title=SENT),
        lambda out: out.done(SENT),
        lambda out: out.note(SENT),
    ],
)
def test_words_of_others_do_not_command_the_terminal(
    capsys: pytest.CaptureFixture[str], show: Callable[[Output], None]
) -> None:
    show(Output(as_json=False))
    printed = "".join(capsys.readouterr())
    assert SHOWN in printed
    assert not [char for char in printed if unicodedata.category(char) == "Cc" and char not in "\t\n"]


def test_a_refusal_does_not_command_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(_: Admin) -> list[str]:
        raise MQError(ResponseCode.SYSTEM_ERROR, "\x1b[2Jall is well")

    monkeypatch.setattr("batonmq.admin.operations.topics.names", refuse)
    said = CliRunner().invoke(admin, ["topicList", "-n", "127.0.0.1:1"])
    assert "\\x1b[2Jall is well" in said.stderr and "\x1b" not in said.stderr


def test_a_title_is_a_line_whatever_the_width_of_its_table(capsys: pytest.CaptureFixture[str]) -> None:
    Output(as_json=False).table(["user"], [["admin"]], title="copied from 127.0.0.1:10911 to 127.0.0.1:10921")
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["copied from 127.0.0.1:10911 to 127.0.0.1:10921", "user ", "admin"]


def test_an_unsigned_request_is_answered_with_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(_: Admin) -> list[str]:
        raise MQError(ResponseCode.NO_PERMISSION, "username cannot be null.")

    monkeypatch.setattr("batonmq.admin.operations.topics.names", refuse)
    said = CliRunner().invoke(admin, ["topicList", "-n", "127.0.0.1:1"])
    assert said.stderr.rstrip().endswith("null. The request is not signed: give --credentials")


def test_an_empty_table_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    Output(as_json=False).table(["name"], [])
    assert "(nothing)" in capsys.readouterr().out


def test_a_topic_without_a_broker_is_listed_as_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    async def names(_: Admin) -> list[str]:
        return ["Orphan"]

    async def route(_: Admin, topic: str) -> TopicRouteData:
        raise MQError(ResponseCode.TOPIC_NOT_EXIST, f"no route of {topic}")

    monkeypatch.setattr("batonmq.admin.operations.topics.names", names)
    monkeypatch.setattr(Admin, "route", route)
    listed = CliRunner().invoke(admin, ["topicList", "-c", "--json", "-n", "127.0.0.1:1"])
    assert json.loads(listed.output) == [{"cluster": "", "topic": "Orphan", "consumerGroup": ""}]


TWO = {"a": "127.0.0.1:1", "b": "127.0.0.1:2", "c": "127.0.0.1:3"}


@pytest.fixture
def second_refuses(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A cluster of three masters, the second of which refuses; who was asked to change something."""
    asked: list[str] = []

    async def masters(_: Admin, __: object = None) -> dict[str, str]:
        return TWO

    async def groups(_: Admin, __: object = None) -> list[BrokerData]:
        return [BrokerData("c", name, {0: address}) for name, address in TWO.items()]

    async def ask(_: Admin, address: str, header: object, body: bytes = b"") -> Response:
        if isinstance(header, GetTopicConfig):
            return Response(None, encode(TopicConfig("T")), ResponseCode.SUCCESS, None)
        asked.append(address)
        if address == TWO["b"]:
            raise MQError(ResponseCode.SYSTEM_ERROR, "no")
        return Response(None, b'{"offsetTable":{}}', ResponseCode.SUCCESS, None)

    monkeypatch.setattr(Admin, "masters", masters)
    monkeypatch.setattr(Admin, "masters_of_topic", masters)
    monkeypatch.setattr(Admin, "groups", groups)
    monkeypatch.setattr(Admin, "ask", ask)
    return asked


@pytest.mark.parametrize(
    "command",
    [
        "createUser -c c -u u -p p",
        "updateUser -c c -u u -s disable",
        "deleteUser -c c -u u",
        "createAcl -c c -s User:u -r Topic:t -a Pub -d Allow",
        "deleteAcl -c c -s User:u",
        "updateTopic -c c -t T",
        "updateTopicPerm -c c -t T -p 4",
        "updateSubGroup -c c -g G",
        "deleteSubGroup -c c -g G",
        "setConsumeMode -c c -t T -g G -m POP",
        "updateBrokerConfig -c c -k traceOn -v true",
        "cleanUnusedTopic -c c",
        "resetOffsetByTime -g G -t T -s now",
        "skipAccumulatedMessage -g G -t T",
        "cloneGroupOffset -s G -d H",
    ],
)
def test_a_refusal_says_where_the_change_is_in_force(second_refuses: list[str], command: str) -> None:
    refused = CliRunner().invoke(admin, [*command.split(), "-n", "127.0.0.1:9"])
    assert second_refuses == ["127.0.0.1:1", "127.0.0.1:2"]
    (line,) = refused.stderr.splitlines()
    assert line.endswith("SYSTEM_ERROR (1): no; already done: 127.0.0.1:1")


@pytest.mark.parametrize("name", ["createAcl", "updateAcl"])
def test_an_action_that_does_not_exist_is_refused_and_nothing_is_changed(
    second_refuses: list[str], name: str
) -> None:
    """Brokers leave out actions that they do not know: a denial would deny less than was meant."""
    words = ["-c", "c", "-s", "User:u", "-r", "Topic:t", "-d", "Deny", "-n", "127.0.0.1:9", "-a"]
    refused = CliRunner().invoke(admin, [name, *words, "pub,Subb"])
    assert refused.exit_code == 2 and "no action 'Subb'; did you mean Sub?" in refused.stderr
    assert second_refuses == []


SETS = {"here": {0: "127.0.0.1:1", 1: "127.0.0.1:3", 2: "127.0.0.1:2"}, "alone": {0: "127.0.0.1:1"}, "": {}}
UNCHANGED = {
    "here": "Only 127.0.0.1:1 changed; the other replicas of its broker set keep their traceOn: "
    "127.0.0.1:2, 127.0.0.1:3. One of them",
    "alone": "",
    "": "Only 127.0.0.1:1 changed; other replicas of its broker set, if there are any, keep their traceOn. "
    "The name server does not know 127.0.0.1:1.",
}


@pytest.mark.parametrize("members", SETS)
def test_a_change_of_one_broker_names_the_replicas_that_keep_their_value(
    monkeypatch: pytest.MonkeyPatch, members: str
) -> None:
    """On stderr: scripts read what mqadmin prints on stdout."""

    async def changed(_: Admin, addresses: list[str], key: str, value: str) -> None:
        assert addresses == ["127.0.0.1:1"]

    async def groups(_: Admin, cluster: str | None = None) -> list[BrokerData]:
        return [BrokerData("c", "other", {0: "127.0.0.1:9"}), BrokerData("c", "set", SETS[members])]

    monkeypatch.setattr("batonmq.admin.operations.brokers.change_config", changed)
    monkeypatch.setattr(Admin, "groups", groups)
    change = ["updateBrokerConfig", "-b", "127.0.0.1:1", "-k", "traceOn", "-v", "true"]
    done = CliRunner().invoke(admin, [*change, "-n", "127.0.0.1:1"])
    assert done.exit_code == 0 and done.stdout == "traceOn=true at 127.0.0.1:1\n"
    assert done.stderr.startswith(UNCHANGED[members]) and bool(done.stderr) is bool(UNCHANGED[members])


def test_a_change_of_one_broker_needs_no_name_server(monkeypatch: pytest.MonkeyPatch) -> None:
    async def changed(_: Admin, addresses: list[str], key: str, value: str) -> None:
        pass

    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    monkeypatch.setattr("batonmq.admin.operations.brokers.change_config", changed)
    change = ["updateBrokerConfig", "-b", "127.0.0.1:1", "-k", "traceOn", "-v", "true"]
    done = CliRunner().invoke(admin, change)
    assert done.exit_code == 0 and "They cannot be listed: no name server" in done.stderr


async def test_a_command_repeats_itself_until_it_is_interrupted() -> None:
    shown: list[str] = []

    async def work(admin: Admin, out: Output, *, name: str) -> None:
        shown.append(name)
        if len(shown) == 3:
            raise AdminError("enough")

    with pytest.raises(AdminError, match="enough"):
        await repeatable(work)(Admin(None), Output(False), interval_s=0.001, name="x")
    assert shown == ["x", "x", "x"]
    await repeatable(work)(Admin(None), Output(False), interval_s=None, name="y")
    assert shown[3:] == ["y"]


@pytest.mark.parametrize("name", ["clusterList", "haStatus", "getBrokerEpoch", "getSyncStateSet"])
def test_commands_that_mqadmin_repeats_repeat_here(name: str) -> None:
    assert "--interval" in CliRunner().invoke(admin, [name, "--help"]).output
