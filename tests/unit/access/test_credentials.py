"""Where `batonmq admin` finds its credentials, which win, and what wrong ones are answered with."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from batonmq.access.credentials import find_credentials
from batonmq.admin.main import admin
from batonmq.common.config import ConfigError
from batonmq.protocol.signing import Credentials

TOOLS = "accessKey: mqadmin\nsecretKey: hidden99\n"


def home(tmp_path: Path, text: str = TOOLS) -> dict[str, str]:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "tools.yml").write_text(text)
    return {"ROCKETMQ_HOME": str(tmp_path)}


def test_without_any_source_requests_are_not_signed(tmp_path: Path) -> None:
    assert find_credentials(None, {}) is None
    assert find_credentials(None, {"ROCKETMQ_HOME": str(tmp_path)}) is None


def test_mqadmin_s_file_is_the_last_resort(tmp_path: Path) -> None:
    assert find_credentials(None, home(tmp_path)) == Credentials("mqadmin", "hidden99")


def test_the_environment_wins_over_mqadmin_s_file_and_a_named_file_over_both(tmp_path: Path) -> None:
    environment = {
        **home(tmp_path),
        "BATONMQ_ACCESS_KEY": "env",
        "BATONMQ_SECRET_KEY": "hidden11",
        "BATONMQ_SECURITY_TOKEN": "token",
    }
    assert find_credentials(None, environment) == Credentials("env", "hidden11", "token")
    named = tmp_path / "mine.yml"
    named.write_text("accessKey: mine\nsecretKey: hidden22\n")
    assert find_credentials(named, environment) == Credentials("mine", "hidden22")


@pytest.mark.parametrize(
    "text",
    [
        "# a comment\n---\naccessKey:   a b \nsecretKey: 'it: is # so' # not this\n\nother: 1\n",
        'accessKey: "a b"\nsecretKey: "it: is # so"\n',
    ],
)
def test_the_file_is_read_as_yaml(tmp_path: Path, text: str) -> None:
    file = tmp_path / "tools.yml"
    file.write_text(text)
    assert find_credentials(file, {}) == Credentials("a b", "it: is # so")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("accessKey: a\n", "secretKey missing or empty"),
        ("", "accessKey and secretKey missing or empty"),
        ("accessKey: a\nhidden99\n", "line 2 is not 'key: value'"),
        ("accessKey: a\nsecretKey: ' '\n", "secret_key is empty"),
    ],
)
def test_a_wrong_file_is_one_line_that_shows_no_secret(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "tools.yml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        find_credentials(file, {})
    assert words in str(caught.value) and "hidden99" not in str(caught.value)


def test_half_of_the_environment_variables_is_an_error() -> None:
    with pytest.raises(ConfigError, match="must both be set"):
        find_credentials(None, {"BATONMQ_SECRET_KEY": "hidden99"})


def test_a_file_that_is_missing_is_one_line(tmp_path: Path) -> None:
    words = ["topicList", "-n", "127.0.0.1:1", "--credentials", str(tmp_path / "none.yml")]
    done = CliRunner().invoke(admin, words)
    assert done.exit_code == 1
    assert done.output.startswith("Error: ") and "none.yml: cannot be read" in done.output
