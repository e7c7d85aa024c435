"""What the commands of `batonmq spark` share; without Spark's JVM."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner
from py4j.protocol import Py4JNetworkError

from batonmq.spark.command import for_job
from batonmq.spark.signals import ended, stop_requests
from batonmq.spark.topic_commands import replay


class Query:
    """A streaming query: `wait` is what happens in each call of `awaitTermination`."""

    def __init__(self, wait: Callable[[], bool]) -> None:
        self._wait = wait
        self.stopped = False

    def awaitTermination(self, timeout_s: int) -> bool:  # Spark's name
        return self._wait()

    def stop(self) -> None:
        self.stopped = True


def signalled(number: signal.Signals) -> bool:
    os.kill(os.getpid(), number)
    return False


def lost() -> bool:
    raise Py4JNetworkError("the JVM is gone")


def refused() -> bool:
    raise ConnectionRefusedError("nobody listens there any more")


@pytest.mark.parametrize("text", ["1960-01-01", "99999999999999999999", "0001-01-01T00:00+00:00"])
def test_a_time_that_no_message_can_have_is_an_error_of_its_option(text: str) -> None:
    """Else it is one of an option of the source, which jobs do not have."""
    done = CliRunner().invoke(replay, ["-n", "h:1", "-t", "a", "--to", "b", "--state", "s", "--from", text])
    assert done.exit_code == 2
    assert f"Invalid value for '--from': {text!r} is before 1970 or beyond" in " ".join(done.stderr.split())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_the_query_and_the_second_one_is_as_usual(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    query: Any = Query(lambda: signalled(number))
    with stop_requests() as asked:
        assert not ended(Query(lambda: False), asked)  # type: ignore[arg-type]
        assert ended(query, asked) and query.stopped
        assert signal.getsignal(number) is before
    assert signal.getsignal(number) is before


def test_a_query_that_ends_by_itself_is_not_stopped() -> None:
    query: Any = Query(lambda: True)
    with stop_requests() as asked:
        assert ended(query, asked) and not query.stopped and not asked()


@pytest.mark.parametrize(("says", "error"), [(lost, Py4JNetworkError), (refused, ConnectionRefusedError)])
def test_a_jvm_that_the_same_signal_has_ended_is_not_an_error(
    says: Callable[[], bool], error: type[Exception]
) -> None:
    query: Any = Query(lambda: signalled(signal.SIGTERM) or says())
    with stop_requests() as asked:
        assert ended(query, asked)
    with stop_requests() as asked, pytest.raises(error):
        ended(Query(says), asked)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("job", "says"), [("archive", "gone; --skip-lost reads what is there"), ("mirror", "gone")]
)
def test_jobs_advise_no_option_that_they_do_not_have(job: str, says: str) -> None:
    assert for_job(job, "gone; set failOnDataLoss=false to read what is there") == says
