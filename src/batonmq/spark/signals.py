"""Handles SIGINT (Ctrl-C) and SIGTERM in a job: they end it with one line, or only ask it to stop."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, Final, NoReturn

import click

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

Handler = Callable[[int, FrameType | None], object]
LOOK_S: Final = 1
"""How often a job that runs until it is stopped looks whether it should."""
_WATCH_S: Final = 0.2
"""How often it is looked at whether a job of Spark is to be cancelled."""
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_JVM_S: Final = 5
"""Time for the JVM to remove its files and to leave Spark's cluster."""


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Within it the first SIGINT or SIGTERM ends this process and Spark's JVM, with one line and the exit
    code that shells expect.

    An exception would not do: most jobs are in a call of Spark's JVM then, which answers with tracebacks of
    two languages.
    """
    with _handled(_end):
        yield


def start_jvm(settings: Mapping[str, str]) -> None:
    """Start Spark's JVM, unless there is one. A signal meanwhile ends this process as soon as the JVM is
    known; a second one, at once.

    Spark's launcher does not name its JVM before that has answered, and a JVM whose launcher was interrupted
    stays for ever.
    """
    came: list[int] = []

    def remember(number: int, frame: FrameType | None) -> None:
        if came:
            os._exit(128 + number)  # the JVM ends when it finds its input closed
        came.append(number)
        _say(number)

    # In another thread: in the main one Spark takes SIGINT for itself.
    with _handled(remember), ThreadPoolExecutor(1) as starter:
        started = starter.submit(_start, settings)
        while not started.done() and not (came and _jvm()):
            wait([started], _WATCH_S)
        if came:
            _leave(came[0])
        started.result()


def _start(settings: Mapping[str, str]) -> None:
    """The JVM and its Python workers get a separate process group: a signal to this one's group (Ctrl-C)
    would end them at once, with their traces, while the job stops in order."""
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    if SparkContext._active_spark_context is None:
        conf = SparkConf().setAll([*settings.items()])
        SparkContext(conf=conf, gateway=launch_gateway(conf, {"process_group": 0}))  # type: ignore[no-untyped-call]


def _end(number: int, frame: FrameType | None) -> NoReturn:
    _say(number)
    _leave(number)


def _say(number: int) -> None:
    """Not with `click`: the signal may have come amid a write."""
    os.write(2, f"Error: stopped by {signal.Signals(number).name}\n".encode())
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # threads of Spark's Python report that the JVM has gone


def _leave(number: int) -> NoReturn:
    for each in _SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    jvm = _jvm()
    if jvm is not None:
        jvm.terminate()
        with suppress(subprocess.TimeoutExpired):
            jvm.wait(_JVM_S)
        jvm.kill()
        jvm.wait()
    os._exit(128 + number)


def _jvm() -> subprocess.Popen[bytes] | None:
    """Spark's JVM, if this process has started one."""
    if "pyspark.core.context" not in sys.modules:
        return None
    from pyspark import SparkContext

    return getattr(SparkContext._gateway, "proc", None)


@contextmanager
def _handled(handler: Handler) -> Iterator[None]:
    """Within it this is the handler of both signals."""
    before = {number: signal.signal(number, handler) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, usual in before.items():
            signal.signal(number, usual)


@contextmanager
def stop_requests() -> Iterator[Callable[[], bool]]:
    """Within it SIGINT and SIGTERM only ask the job to stop; gives a function that says whether one came. The
    second one has its usual effect.

    An exception in a call of Spark's JVM, which is where they find the job, would leave tracebacks and no
    connection to stop the query with.
    """
    came = threading.Event()
    before = {number: signal.getsignal(number) for number in _SIGNALS}

    def usual() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def ask(number: int, frame: object) -> None:
        came.set()
        usual()

    for number in before:
        signal.signal(number, ask)
    try:
        yield came.is_set
    finally:
        usual()


@contextmanager
def stops_in_order(session: SparkSession) -> Iterator[None]:
    """Within it SIGINT and SIGTERM cancel what Spark does for a job that can be continued. Raises
    `ClickException` then."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    over = threading.Event()

    def watch(asked: Callable[[], bool]) -> None:
        while not over.wait(_WATCH_S):
            if asked():
                with suppress(Py4JError, OSError):  # the same signal may have ended the JVM
                    _silence(session.sparkContext)
                    session.sparkContext.cancelAllJobs()

    with stop_requests() as asked:
        watcher = threading.Thread(target=watch, args=(asked,), daemon=True)
        watcher.start()
        try:
            yield
        except (Py4JError, PySparkException, OSError):
            if not asked():
                raise
            raise click.ClickException("stopped; the same command continues") from None
        finally:
            over.set()
            watcher.join()


def _silence(context: SparkContext | None) -> None:
    """The JVM reports each task that is cancelled, with traces."""
    if context is not None:
        context.setLogLevel("OFF")


def ended(query: StreamingQuery, asked: Callable[[], bool]) -> bool:
    """Wait `LOOK_S` for the end of a query, which comes if `asked` says that the job should stop. Raises the
    error that ended the query."""
    from py4j.protocol import Py4JError
    from pyspark import SparkContext
    from pyspark.errors import PySparkException

    try:
        if query.awaitTermination(LOOK_S):
            return True
        if asked():
            _silence(SparkContext._active_spark_context)
            query.stop()
    except (Py4JError, PySparkException, OSError):
        if not asked():  # otherwise the same signal has ended the JVM
            raise
    return asked()
