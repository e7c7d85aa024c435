"""dlq of a group that has no dead letters; without Spark."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from batonmq.protocol.errors import TopicNotExistError
from batonmq.spark.topic_commands import dlq


class NoTopic:
    def __init__(self, namesrv: str, **_: object) -> None:
        pass

    def __enter__(self) -> NoTopic:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def queues(self, topic: str) -> None:
        raise TopicNotExistError(topic)


@pytest.mark.parametrize(
    ("more", "said"),
    [([], "group billing has no dead letters: topic %DLQ%billing does not exist"), (["--json"], "[]")],
)
def test_a_group_that_never_had_dead_letters_is_not_an_error(
    monkeypatch: pytest.MonkeyPatch, more: list[str], said: str
) -> None:
    monkeypatch.setattr("batonmq.client.sync.QueueReader", NoTopic)
    result = CliRunner().invoke(dlq, ["-n", "127.0.0.1:1", "-g", "billing", *more])
    assert (result.exit_code, result.stdout.strip()) == (0, said)
