"""What `restore` and `replay` say of a topic that is to be written and does not exist; without Spark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import pytest
from click.testing import CliRunner

from batonmq.protocol.errors import TopicNotExistError
from batonmq.spark.main import spark

SAID = (
    "Error: topic 'again' does not exist: name server 127.0.0.1:1 knows no broker that has it; create it "
    "with 'batonmq admin updateTopic'\n"
)


class OneTopic:
    """A cluster that has the topic ``orders`` only."""

    def __init__(self, namesrv: str, **_: object) -> None:
        pass

    def __enter__(self) -> OneTopic:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def queues(self, topic: str) -> None:
        if topic != "orders":
            raise TopicNotExistError(topic)


@pytest.mark.parametrize("job", [("restore", "--archive", "a"), ("replay", "-t", "orders")])
def test_it_says_how_to_create_the_topic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job: tuple[str, ...]
) -> None:
    monkeypatch.setattr("batonmq.client.sync.QueueReader", OneTopic)
    given = ["-n", "127.0.0.1:1", "--to", "again", "--state", str(tmp_path / "state")]
    done = CliRunner().invoke(spark, [*job, *given])
    assert (done.exit_code, done.stderr) == (1, SAID)


def test_it_says_so_too_where_the_archive_names_the_topic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(*_: object, queues: Callable[[str], object], **__: object) -> NoReturn:
        queues("again")
        raise AssertionError("the topic does not exist")

    monkeypatch.setattr("batonmq.client.sync.QueueReader", OneTopic)
    monkeypatch.setattr("batonmq.spark.jobs.restore.run", run)
    monkeypatch.setattr("batonmq.spark.topic_commands.session_for", lambda *_: SimpleNamespace())
    job = ["restore", "-n", "127.0.0.1:1", "--archive", "a", "--state", str(tmp_path / "state")]
    done = CliRunner().invoke(spark, job)
    assert (done.exit_code, done.stderr) == (1, SAID)
