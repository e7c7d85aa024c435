"""What the commands of `batonmq spark` share: options, checks before Spark starts, errors in one line."""

from __future__ import annotations

import asyncio
import math
import os
import re
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from batonmq.spark.access import Access

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

F = TypeVar("F", bound=Callable[..., Any])
LOOK_S: Final = 1
"""How often a job that runs until it is stopped looks whether it should."""
_WATCH_S: Final = 0.2
"""How often it is looked at whether a job of Spark is to be cancelled."""
_SOURCE_OPTION = re.compile(r"(?:;|, or) set failOnDataLoss=false to read what is there")
DIRECTORY = click.Path(file_okay=False, path_type=Path)


topic_option = click.option("-t", "--topic", required=True, help="Topic to read.")


def spark_options(command: F) -> F:
    for option in (
        click.option("--conf", multiple=True, metavar="KEY=VALUE", help="Spark setting; may be repeated."),
        click.option("--master", help="Spark master; default local[*], this machine."),
    ):
        command = option(command)
    return command


def session_for(job: str, master: str | None, conf: tuple[str, ...]) -> SparkSession:
    try:
        from batonmq.spark.session import spark_session
    except ModuleNotFoundError as error:
        raise click.ClickException(f"{error}; install Spark with: pip install 'batonmq[spark]'") from None
    if "JAVA_HOME" not in os.environ and shutil.which("java") is None:
        raise click.ClickException(
            "Spark needs a Java runtime, version 17 or newer: there is no java on PATH"
        )
    settings = {}
    for item in conf:
        key, equals, value = item.partition("=")
        if not equals:
            raise click.UsageError(f"--conf {item!r}: expected KEY=VALUE")
        settings[key] = value
    return spark_session(f"batonmq {job}", master=master, settings=settings)


def check_topic(namesrv: str, topic: str, access: Access) -> None:
    """Check that the topic exists before Spark starts, which takes much longer."""
    if not topic_exists(namesrv, topic, access):
        raise click.ClickException(
            f"topic {topic!r} does not exist: name server {namesrv} knows no broker that has it"
        )


def topic_exists(namesrv: str, topic: str, access: Access) -> bool:
    """Whether a broker has the topic. Raises `ClickException` if nobody can be asked."""
    from batonmq.client.sync import QueueReader
    from batonmq.net.errors import NetError
    from batonmq.protocol.errors import MQError, TopicNotExistError

    try:
        with QueueReader(namesrv, **access.client()) as reader:
            reader.queues(topic)
    except TopicNotExistError:
        return False
    except (ValueError, NetError, MQError) as error:
        raise click.ClickException(str(error)) from None
    return True


def is_one_cluster(namesrv: str, access: Access, other: str, other_access: Access) -> bool:
    """Whether two lists of name servers know the same brokers. Addresses do not tell: a host has several
    names."""
    from batonmq.client.admin import Admin
    from batonmq.net.errors import NetError
    from batonmq.protocol.errors import MQError

    if namesrv == other:
        return True

    async def brokers(namesrv: str, access: Access) -> set[str]:
        async with Admin(namesrv, **access.client()) as admin:
            table = (await admin.cluster()).broker_addr_table
        return {address for broker_set in table.values() for address in broker_set.broker_addrs.values()}

    async def common() -> set[str]:
        return await brokers(namesrv, access) & await brokers(other, other_access)

    try:
        return bool(asyncio.run(common()))
    except (NetError, MQError) as error:
        raise click.ClickException(str(error)) from None


def time_ms(_: click.Context, parameter: click.Parameter, text: str | None) -> int | None:
    """A point in time: ms since 1970, or ISO 8601 (this machine's time zone if it has none)."""
    if text is None:
        return None
    try:
        if text.isdecimal():
            return int(text)
        return round(datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError):
        raise click.BadParameter(
            f"{text!r} is neither milliseconds since 1970 nor a time such as 2026-11-24T10:00:00+01:00"
        ) from None


def check_times(from_ms: int | None, until_ms: int | None) -> None:
    """Refuse a window in which no message can be."""
    if from_ms is not None and until_ms is not None and from_ms >= until_ms:
        raise click.UsageError("--from is not before --until: no message is stored in that time")


class Number(click.FloatRange):
    """A range of numbers: no comparison is true of ``nan``, so that it would be in any range."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is no number.", param, ctx)
        return number


def iso_date(_: click.Context, parameter: click.Parameter, text: str | None) -> str | None:
    try:
        return None if text is None else date.fromisoformat(text).isoformat()
    except ValueError:
        raise click.BadParameter(f"{text!r} is no date such as 2026-11-24") from None


def show_progress(done: int, total: int) -> None:
    share = f" ({100 * done // total} %)" if total else ""
    click.echo(f"{done:,} of {total:,} messages{share}", err=True)


@contextmanager
def stop_requests() -> Iterator[Callable[[], bool]]:
    """Within it SIGINT and SIGTERM only ask the job to stop; gives a function that says whether one came. The
    second one has its usual effect.

    An exception in a call of Spark's JVM, which is where they find the job, would leave tracebacks and no
    connection to stop the query with.
    """
    came = threading.Event()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

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
                    session.sparkContext.cancelAllJobs()

    with stop_requests() as asked:
        watcher = threading.Thread(target=watch, args=(asked,), daemon=True)
        watcher.start()
        try:
            yield
        except (Py4JError, PySparkException, OSError):
            if not asked():
                raise
            raise click.ClickException("stopped; the same command goes on") from None
        finally:
            over.set()
            watcher.join()


def ended(query: StreamingQuery, asked: Callable[[], bool]) -> bool:
    """Wait `LOOK_S` for the end of a query, which comes if `asked` says that the job should stop. Raises the
    error that ended the query."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        if query.awaitTermination(LOOK_S):
            return True
        if asked():
            query.stop()
    except (Py4JError, PySparkException):
        if not asked():  # otherwise the same signal has ended the JVM
            raise
    return asked()


def for_job(job: str | None, text: str) -> str:
    """The text of an error without the option of the source, which jobs do not have."""
    other = "; --skip-lost reads what is there" if job == "archive" else ""
    return _SOURCE_OPTION.sub(other, text)


@contextmanager
def one_line() -> Iterator[None]:
    """Report what a job's preparation raises as one line."""
    from batonmq.net.errors import NetError
    from batonmq.protocol.errors import MQError
    from batonmq.spark.options import ClearError
    from batonmq.spark.plan import DataLoss

    try:
        yield
    except (ClearError, DataLoss, NetError, MQError, OSError) as error:
        context = click.get_current_context(silent=True)
        job = None if context is None else context.info_name
        raise click.ClickException(for_job(job, str(error).splitlines()[0])) from None
