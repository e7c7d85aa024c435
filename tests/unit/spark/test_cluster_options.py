"""How the commands of `batonmq spark` learn of their cluster: which source counts, and what mistakes say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result
from tests.certificates import authority

from batonmq.protocol.signing import Credentials
from batonmq.spark.access import OPEN, Access
from batonmq.spark.cluster_options import cluster_options, target_options
from batonmq.spark.main import spark
from batonmq.spark.options import TlsOptions

REACHES_BROKERS = ("archive", "audit", "dlq", "lag", "mirror", "replay", "restore", "rollup", "skew")
WRITES_ELSEWHERE = ("mirror", "replay")
OPTIONS = ("--namesrv", "--credentials", "--tls", "--tls-config", "--tls-trust", "--tls-cert", "--tls-key")
OR_ARCHIVE = cluster_options(unless={"archived": "--archive"})
VARIABLES = (
    "NAMESRV_ADDR",
    "BATONMQ_ACCESS_KEY",
    "BATONMQ_CREDENTIALS",
    "BATONMQ_SECRET_KEY",
    "BATONMQ_SECURITY_TOKEN",
    "BATONMQ_TLS_CONFIG",
    "ROCKETMQ_HOME",
)


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def options_of(command: click.Command) -> set[str]:
    return {name for parameter in command.params for name in parameter.opts}


def run(
    *words: object,
    env: dict[str, str] | None = None,
    declare: Callable[[Any], Any] = OR_ARCHIVE,
) -> tuple[Result, dict[str, Any]]:
    """What a command with these options is called with."""
    got: dict[str, Any] = {}

    @click.command()
    @declare
    @click.option("--archive", "archived")
    def work(**options: Any) -> None:
        got.update(options)

    return CliRunner().invoke(work, [str(word) for word in words], env=env), got


def on_both(work: Any) -> Any:
    return cluster_options()(target_options(required=False)(work))


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


# -- every command


def test_commands_that_read_messages_can_spare_masters() -> None:
    for name in REACHES_BROKERS:
        assert ("--read-from-slaves" in options_of(spark.commands[name])) is (name != "restore"), name
    for words, expected in (((), None), (("--read-from-slaves",), "true")):
        _, got = run("-n", "h:1", *words)
        assert got["access"].source_options().get("readFromSlaves") == expected
        assert "readFromSlaves" not in got["access"].options(), "a sink would refuse it"


def test_every_command_that_reaches_brokers_takes_the_options() -> None:
    others = set(spark.commands) - set(REACHES_BROKERS)
    files_only = {"compact", "failover-report", "chaos-report", "bench-report"}
    assert others == files_only, "a new command: it reads files only, or it belongs to the list"
    for name in REACHES_BROKERS:
        assert set(OPTIONS) <= options_of(spark.commands[name]), name
        page = CliRunner().invoke(spark, [name, "--help"]).output
        for variable in ("NAMESRV_ADDR", "BATONMQ_CREDENTIALS", "BATONMQ_TLS_CONFIG"):
            assert f"[env: {variable}]" in " ".join(page.split()), name
    for name in WRITES_ELSEWHERE:
        assert {f"--to-{option[2:]}" for option in OPTIONS} <= options_of(spark.commands[name]), name


def test_no_option_takes_a_secret() -> None:
    for name, command in spark.commands.items():
        taken = [option for option in options_of(command) if "secret" in option or "password" in option]
        assert taken == [], name


@pytest.mark.parametrize(
    "words",
    [
        ["archive", "-t", "t", "--to", "x"],
        ["dlq", "-g", "g"],
        ["lag", "-t", "t"],
        ["mirror", "--to-namesrv", "b:1", "-t", "t", "--state", "s"],
        ["replay", "-t", "t", "--to", "u", "--state", "s"],
        ["restore", "--archive", "a", "--state", "s"],
        ["rollup", "-t", "t"],
        ["skew", "-t", "t"],
    ],
)
def test_without_a_name_server_a_command_says_how_to_name_one(words: list[str]) -> None:
    done = CliRunner().invoke(spark, words)
    assert done.exit_code == 2
    assert "no name server: give -n host:port or set NAMESRV_ADDR" in done.output


@pytest.mark.parametrize("words", [["-n", "nowhere"], []])
def test_a_wrong_address_is_one_line_wherever_it_comes_from(words: list[str]) -> None:
    done = CliRunner().invoke(spark, ["lag", "-t", "t", *words], env={"NAMESRV_ADDR": "nowhere"})
    assert done.exit_code == 1
    assert done.output.startswith("Error: name server address 'nowhere': expected host:port")


# -- name servers


def test_the_name_server_of_the_environment_counts_where_none_is_given() -> None:
    env = {"NAMESRV_ADDR": "10.0.0.1:9876"}
    assert run(env=env)[1]["namesrv"] == "10.0.0.1:9876"
    assert run("-n", "a:1", env=env)[1]["namesrv"] == "a:1"
    assert run("--namesrvAddr", "a:1;b:1", env=env)[1]["namesrv"] == "a:1;b:1"


def test_a_job_that_reads_an_archive_asks_no_cluster() -> None:
    env = {"NAMESRV_ADDR": "10.0.0.1:9876", "BATONMQ_CREDENTIALS": "/no/such"}
    done, got = run("--archive", "/data", env=env)
    assert done.exit_code == 0 and (got["namesrv"], got["access"]) == (None, OPEN)
    assert "or give --archive" in run()[0].output


def test_skew_takes_one_source_and_the_environment_is_not_a_choice() -> None:
    words = ["skew", "-t", "t", "--archive", "a", "--store", "s"]
    for more in ([], ["-n", "a:1"]):
        done = CliRunner().invoke(spark, [*words, *more])
        assert done.exit_code == 2 and "give one of --namesrv, --archive and --store" in done.output
    done = CliRunner().invoke(spark, [*words[:-2], "-n", "a:1"])
    assert done.exit_code == 2 and "give one of --namesrv, --archive and --store" in done.output
    done = CliRunner().invoke(spark, [*words[:-2], "--conf", "wrong"], env={"NAMESRV_ADDR": "a:1"})
    assert "expected KEY=VALUE" in done.output or "no java" in done.output, "it got past the check"


# -- credentials


def test_credentials_come_from_where_those_of_admin_come_from(tmp_path: Path) -> None:
    file = written(tmp_path / "tools.yml", "accessKey: file\nsecretKey: hidden1\nsecurityToken: hidden2\n")
    env = {"BATONMQ_ACCESS_KEY": "env", "BATONMQ_SECRET_KEY": "hidden3"}
    named = Access(credentials=Credentials("file", "hidden1", "hidden2"))
    assert run("-n", "a:1")[1]["access"] == OPEN
    assert run("-n", "a:1", "--credentials", file, env=env)[1]["access"] == named
    assert run("-n", "a:1", env={**env, "BATONMQ_CREDENTIALS": str(file)})[1]["access"] == named
    assert run("-n", "a:1", env=env)[1]["access"] == Access(credentials=Credentials("env", "hidden3"))


def test_a_wrong_file_of_credentials_is_one_line_that_shows_no_secret(tmp_path: Path) -> None:
    file = written(tmp_path / "tools.yml", "accessKey: a\nhidden99\n")
    done, got = run("-n", "a:1", "--credentials", file)
    assert done.exit_code == 1 and not got
    assert done.output.startswith("Error: ") and len(done.output.splitlines()) == 1
    assert "line 2 is not 'key: value'" in done.output and "hidden99" not in done.output


# -- TLS


def test_tls_options_become_those_of_the_source_with_whole_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ca = authority(tmp_path / "ca")
    certificate, key = ca.issue("me")
    monkeypatch.chdir(tmp_path / "ca")
    words = ["-n", "a:1", "--tls-trust", "ca.pem", "--tls-cert", certificate.name, "--tls-key", key.name]
    done, got = run(*words)
    assert done.exit_code == 0, done.output
    assert got["access"].tls == TlsOptions(
        auth_server=True, trust_cert_path=str(ca.certificate), cert_path=str(certificate), key_path=str(key)
    )
    file = written(
        tmp_path / "tls.conf", f"tls.client.trustCertPath={ca.certificate}\ntls.client.keyPassword=hidden\n"
    )
    wanted = TlsOptions(trust_cert_path=str(ca.certificate), key_password="hidden")
    assert run("-n", "a:1", "--tls-config", file)[1]["access"].tls == wanted
    assert run("-n", "a:1", env={"BATONMQ_TLS_CONFIG": str(file)})[1]["access"].tls == wanted
    assert run("-n", "a:1", "--tls")[1]["access"].tls == TlsOptions()


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--tls-config", "/no/such"], "/no/such: cannot be read"),
        (["--tls-trust", "/no/such"], "tls.client.trustCertPath=/no/such"),
        (["--tls-key", "/no/such"], "a key is of no use without its certificate"),
    ],
)
def test_a_file_of_tls_that_cannot_be_used_is_one_line_before_spark_starts(
    words: list[str], complaint: str
) -> None:
    done, got = run("-n", "a:1", *words)
    assert done.exit_code == 1 and complaint in done.output and not got
    assert len(done.output.splitlines()) == 1


# -- a second cluster


def test_the_target_gets_nothing_of_the_source(tmp_path: Path) -> None:
    file = written(tmp_path / "tools.yml", "accessKey: there\nsecretKey: hidden1\n")
    env = {"BATONMQ_ACCESS_KEY": "here", "BATONMQ_SECRET_KEY": "hidden2", "NAMESRV_ADDR": "a:1"}
    done, got = run("--to-namesrv", "b:1", "--tls", env=env, declare=on_both)
    assert done.exit_code == 0, done.output
    assert (got["namesrv"], got["to_namesrv"], got["to_access"]) == ("a:1", "b:1", OPEN)
    assert got["access"] == Access(tls=TlsOptions(), credentials=Credentials("here", "hidden2"))
    words = ["--to-namesrv", "b:1", "--to-credentials", file, "--to-tls"]
    assert run(*words, env={"NAMESRV_ADDR": "a:1"}, declare=on_both)[1] == {
        "namesrv": "a:1",
        "access": OPEN,
        "to_namesrv": "b:1",
        "to_access": Access(tls=TlsOptions(), credentials=Credentials("there", "hidden1")),
        "archived": None,
    }


@pytest.mark.parametrize("words", [["--to-tls"], ["--to-credentials", "c"], ["--to-tls-trust", "ca.pem"]])
def test_options_of_a_target_that_is_not_named_are_a_mistake(words: list[str]) -> None:
    done, got = run("-n", "a:1", *words, declare=on_both)
    assert done.exit_code == 2 and "are for the cluster of --to-namesrv" in done.output and not got


def test_a_wrong_address_of_the_target_is_one_line() -> None:
    done, _ = run("-n", "a:1", "--to-namesrv", "nowhere", declare=on_both)
    assert done.exit_code == 1 and "name server address 'nowhere'" in done.output
