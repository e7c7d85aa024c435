"""Shared by the commands of `batonmq spark`: options, checks before Spark starts, errors in one line."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from batonmq.common.config import LONG_MAX
from batonmq.common.plural import counted
from batonmq.spark.access import Access
from batonmq.spark.signals import start_jvm

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

F = TypeVar("F", bound=Callable[..., Any])
_SOURCE_OPTION = re.compile(r"(?:;|, or) set failOnDataLoss=false to read what is there")
DIRECTORY = click.Path(file_okay=False, path_type=Path)


WHERE: Final = "batonmq.spark.where"
"""Key of a job's condition in `click.Context.meta`."""


def _remember(context: click.Context, _: click.Parameter, condition: str | None) -> str | None:
    context.meta[WHERE] = condition
    return condition


topic_option = click.option("-t", "--topic", required=True, help="Topic to read.")
where_option = click.option(
    "--where",
    callback=_remember,
    help="Only messages that match this: Spark SQL over the source's columns, e.g. \"tags = 'paid'\".",
)


def spark_options(command: F) -> F:
    for option in (
        click.option("--conf", multiple=True, metavar="KEY=VALUE", help="Spark setting; may be repeated."),
        click.option("--master", help="Spark master; default local[*], this machine."),
    ):
        command = option(command)
    return command


def session_for(job: str, master: str | None, conf: tuple[str, ...]) -> SparkSession:
    """Start Spark. A job with a condition reports itself what Spark cannot compute; Spark would log it with
    traces before, for each task."""
    from batonmq.spark.session import SparkMissing, spark_session

    if "JAVA_HOME" not in os.environ and shutil.which("java") is None:
        raise click.ClickException(
            "Spark needs a Java runtime, version 17 or newer: there is no java on PATH"
        )
    settings = {}
    if click.get_current_context().meta.get(WHERE):
        settings["spark.log.level"] = "OFF"
        logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    for item in conf:
        key, equals, value = item.partition("=")
        if not equals:
            raise click.UsageError(f"--conf {item!r}: expected KEY=VALUE")
        settings[key] = value
    try:
        return spark_session(f"batonmq {job}", master=master, settings=settings, start_jvm=start_jvm)
    except SparkMissing as error:
        raise click.ClickException(str(error)) from None


def check_topic(namesrv: str, topic: str, access: Access, *, writes: bool = False) -> None:
    """Check that the topic exists before Spark starts, which takes much longer. `writes`: the job writes it,
    so that it helps to create it."""
    if not topic_exists(namesrv, topic, access):
        raise no_topic(namesrv, topic, writes=writes)


def no_topic(namesrv: str, topic: str, *, writes: bool) -> click.ClickException:
    """As for `check_topic`."""
    create = "; create it with 'batonmq admin updateTopic'" if writes else ""
    return click.ClickException(
        f"topic {topic!r} does not exist: name server {namesrv} knows no broker that has it{create}"
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
        time = int(text) if text.isdecimal() else round(datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError):
        raise click.BadParameter(
            f"{text!r} is neither milliseconds since 1970 nor a time such as 2026-11-24T10:00:00+01:00"
        ) from None
    if not 0 <= time <= LONG_MAX:
        raise click.BadParameter(f"{text!r} is before 1970 or beyond any time that a message may have")
    return time


def time_option(name: str, parameter: str, text: str) -> Callable[[F], F]:
    """An option for a point in time."""
    form = "TIME: 2026-11-24T08:00 (local), 2026-11-24T08:00+01:00, or ms since 1970."
    return click.option(name, parameter, metavar="TIME", callback=time_ms, help=f"{text} {form}")


def check_times(from_ms: int | None, until_ms: int | None) -> None:
    """Refuse a window in which no message can be."""
    if from_ms is not None and until_ms is not None and from_ms >= until_ms:
        raise click.UsageError("--from is not before --until: no message is stored in that time")


class Number(click.FloatRange):
    """A range of numbers: no comparison is true of ``nan``, so that it would be in any range."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a number.", param, ctx)
        return number


def iso_date(_: click.Context, parameter: click.Parameter, text: str | None) -> str | None:
    try:
        return None if text is None else date.fromisoformat(text).isoformat()
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a date such as 2026-11-24") from None


def show_progress(done: int, total: int) -> None:
    share = f" ({100 * done // total} %)" if total else ""
    click.echo(f"{done:,} of {counted(total, 'message')}{share}", err=True)


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
    except ModuleNotFoundError as error:
        raise click.ClickException(f"{error}; install Spark with: pip install 'batonmq[spark]'") from None
