"""`batonmq spark replay`, `restore`, `mirror` and `dlq`: the jobs that write topics."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from batonmq.common.plural import counted
from batonmq.common.terminal import visible
from batonmq.spark import report
from batonmq.spark.access import Access
from batonmq.spark.cluster_options import cluster_options, target_options
from batonmq.spark.command import (
    DIRECTORY,
    check_times,
    check_topic,
    is_one_cluster,
    iso_date,
    no_topic,
    one_line,
    session_for,
    show_progress,
    spark_options,
    time_option,
    topic_exists,
    topic_option,
    where_option,
)
from batonmq.spark.jobs.state import MIRROR, held
from batonmq.spark.report import moment
from batonmq.spark.signals import ended, stop_requests, stops_in_order

if TYPE_CHECKING:
    from batonmq.protocol.bodies.common import MessageQueue
    from batonmq.spark.jobs.mirror import Lane, Mirror

_TRANSLATE_S = 10
"""How often a mirror translates the offsets of groups."""
_ITSELF = "--to-namesrv is the source itself: its messages would be there twice"


@click.command()
@cluster_options()
@topic_option
@click.option("--to", "target", required=True, help="Topic to write; it must exist.")
@click.option("--state", required=True, type=DIRECTORY, help="Directory that records the progress.")
@target_options(required=False)
@time_option("--from", "from_ms", "Only messages stored then or later; default: the oldest too.")
@time_option("--until", "until_ms", "Only messages stored before; default: now.")
@where_option
@click.option("--rate", type=click.IntRange(1), help="Messages read a second; default: without limit.")
@click.option("--keep-queues", is_flag=True, help="Send each message to the queue with its old number.")
@spark_options
def replay(
    namesrv: str,
    access: Access,
    topic: str,
    master: str | None,
    conf: tuple[str, ...],
    target: str,
    state: Path,
    to_namesrv: str | None,
    to_access: Access,
    from_ms: int | None,
    until_ms: int | None,
    where: str | None,
    rate: int | None,
    keep_queues: bool,
) -> None:
    """Send messages of a time window again, exactly once.

    \b
      batonmq spark replay -n 10.0.0.1:9876 -t orders --to orders-again \\
        --state /data/replay-1 --from 2026-11-24T08:00 --until 2026-11-24T09:00 \\
        --where "tags = 'paid'" --rate 5000

    Reads the messages that are stored in the window, and writes those for which --where is true into another
    topic, also of another cluster. Keys, tags, properties and sharding keys are kept. What is read is fixed
    at the first run. A second run with the same --state continues, for whatever reason the first one stopped.
    """
    from batonmq.spark.jobs import replay as job

    check_times(from_ms, until_ms)
    if to_namesrv is None and target == topic:
        raise click.UsageError("--to is the topic itself: its messages would be there twice")
    check_topic(namesrv, topic, access)
    if to_namesrv is None:
        check_topic(namesrv, target, access, writes=True)
    else:
        check_topic(to_namesrv, target, to_access, writes=True)
        if target == topic and is_one_cluster(namesrv, access, to_namesrv, to_access):
            raise click.UsageError(_ITSELF)
    wanted = job.Replay(
        namesrv=namesrv,
        topic=topic,
        target=target,
        state=state,
        target_namesrv=to_namesrv,
        from_ms=from_ms,
        until_ms=until_ms,
        where=where,
        rate=rate,
        keep_queues=keep_queues,
        access=access,
        target_access=to_access,
    )
    with one_line():
        window = job.look(wanted)
    if not window.rows:
        click.echo("no message is stored in this window")
        return
    session = session_for("replay", master, conf)
    with one_line(), stops_in_order(session):
        done = job.run(session, wanted, progress=show_progress)
    what = f"replayed {counted(done.rows, 'message')}"
    if where:  # how many were sent is not known without another reading
        what = f"read {counted(done.rows, 'message')} and sent those for which --where is true,"
    click.echo(
        f"{what} in {counted(done.chunks, 'chunk')}, {done.seconds:.1f} s; "
        f"{counted(done.skipped, 'chunk was', 'chunks were')} done before"
    )


@click.command()
@cluster_options(reads=False)
@click.option(
    "--archive", "archived", required=True, help="Directory of the archive (batonmq spark archive)."
)
@click.option("--state", required=True, type=DIRECTORY, help="Directory that records the progress.")
@click.option("-t", "--topic", help="Only this topic of the archive.")
@click.option("--to", "target", help="Topic to write; default: the one that messages came from.")
@click.option("--from-date", metavar="YYYY-MM-DD", callback=iso_date, help="First date; default: the oldest.")
@click.option("--to-date", metavar="YYYY-MM-DD", callback=iso_date, help="Last date; default: the newest.")
@spark_options
def restore(
    namesrv: str,
    access: Access,
    archived: str,
    state: Path,
    topic: str | None,
    target: str | None,
    from_date: str | None,
    to_date: str | None,
    master: str | None,
    conf: tuple[str, ...],
) -> None:
    """Write an archive back into topics, exactly once.

    \b
      batonmq spark restore -n 10.0.0.1:9876 --archive /data/orders --state /data/restore-1

    Messages of one queue keep their order: they go to the queue of the same name, or to another one if the
    topic has other queues now. The topics must exist. A second run with the same --state continues. Restore
    an archive that is not being written: what comes to a date that is done stays out.
    """
    from batonmq.client.sync import QueueReader
    from batonmq.protocol.errors import TopicNotExistError
    from batonmq.spark.jobs import restore as job

    if from_date is not None and to_date is not None and from_date > to_date:
        raise click.UsageError("--from-date is after --to-date: no date is in between")
    wanted = job.Restore(namesrv, archived, state, topic, target, from_date, to_date, access)
    with one_line():
        job.compare_state(wanted)
    if target is not None:
        check_topic(namesrv, target, access, writes=True)
    session = session_for("restore", master, conf)

    def queues(name: str) -> Sequence[MessageQueue]:
        try:
            with QueueReader(namesrv, **access.client()) as reader:
                return reader.queues(name)
        except TopicNotExistError:
            raise no_topic(namesrv, name, writes=True) from None

    def progress(name: str, day: str, rows: int) -> None:
        click.echo(f"{name} {day}: {counted(rows, 'message')}", err=True)

    with one_line(), stops_in_order(session):
        done = job.run(session, wanted, queues=queues, progress=progress)
    click.echo(
        f"restored {counted(done.rows, 'message')}; "
        f"{done.skipped:,} of {counted(done.dates, 'date was', 'dates were')} done before"
    )


@click.command()
@cluster_options()
@click.option("-g", "--group", required=True, help="Consumer group whose messages died.")
@time_option("--from", "from_ms", "Only those that died then or later.")
@time_option("--until", "until_ms", "Only those that died before.")
@where_option
@click.option("--redrive", is_flag=True, help="Send them to their topics again.")
@click.option("--state", type=DIRECTORY, help="Directory that records what was sent; for --redrive.")
@click.option(
    "--rate", type=click.IntRange(1), help="Messages read a second; for --redrive; default: without limit."
)
@click.option("--json", "as_json", is_flag=True, help="Print the dead letters as JSON.")
@spark_options
def dlq(
    namesrv: str,
    access: Access,
    group: str,
    from_ms: int | None,
    until_ms: int | None,
    where: str | None,
    redrive: bool,
    state: Path | None,
    rate: int | None,
    as_json: bool,
    master: str | None,
    conf: tuple[str, ...],
) -> None:
    """Show the dead letters of a group, and send them again.

    \b
      batonmq spark dlq -n 10.0.0.1:9876 -g billing
      batonmq spark dlq -n 10.0.0.1:9876 -g billing --where "tags = 'paid'" \\
        --redrive --state /data/redrive-1

    Counts them by topic and tag. With --redrive each one goes back to the topic that it was sent to first,
    exactly once: all groups of that topic get it. It also stays among the dead letters. One that does not
    name its topic is left out. What is sent is fixed at the first run, and a second run with the same --state
    continues. For those that died since, give another --state, and their time as --from. The exit code is 1
    if there are dead letters and --redrive is not given.
    """
    from batonmq.protocol.names import dead_letter_topic, group_error
    from batonmq.spark.jobs import dlq as job
    from batonmq.spark.jobs import replay as replays

    if redrive and state is None:
        raise click.UsageError("--redrive needs --state, a directory that remembers what was sent")
    if not redrive and (state is not None or rate is not None):
        raise click.UsageError("--state and --rate are for --redrive")
    if (problem := group_error(group)) is not None:
        raise click.BadParameter(problem, param_hint="--group")
    check_times(from_ms, until_ms)
    topic = dead_letter_topic(group)
    if not topic_exists(namesrv, topic, access):  # it is made with the first dead letter
        nothing = f"group {group} has no dead letters: topic {topic} does not exist"
        click.echo("[]" if as_json and not redrive else visible(nothing))
        return
    if redrive:
        assert state is not None
        wanted = replays.Replay(
            namesrv,
            topic,
            None,
            state,
            from_ms=from_ms,
            until_ms=until_ms,
            where=where,
            rate=rate,
            access=access,
        )
        with one_line():
            rows = replays.look(wanted).rows
        if not rows:
            click.echo(f"group {group} has no dead letters in this time")
            return
        session = session_for("dlq", master, conf)
        with one_line(), stops_in_order(session):
            done = replays.run(session, wanted, progress=show_progress)
        click.echo(
            f"{counted(done.rows, 'dead letter')} read; "
            f"{done.skipped:,} of {counted(done.chunks, 'chunk was', 'chunks were')} done before"
        )
        return
    options = {"namesrvAddr": namesrv, "subscribe": topic} | access.source_options()
    options |= {} if from_ms is None else {"startingTimestamp": str(from_ms)}
    options |= {} if until_ms is None else {"endingTimestamp": str(until_ms)}
    session = session_for("dlq", master, conf)
    letters = session.read.format("rocketmq").schema(replays.COLUMNS).options(**options).load()
    found = job.deaths(letters.where(where) if where else letters)
    if as_json:
        click.echo(json.dumps([asdict(death) for death in found]))
    else:
        lines = [
            (
                death.topic or "?",
                death.tags or "",
                f"{death.count:,}",
                str(death.most_retries),
                moment(death.first_ms),
                moment(death.last_ms),
            )
            for death in found
        ]
        columns = ("topic", "tag", "dead letters", "most retries", "first", "last")
        report.show([report.Table(f"Dead letters of {group}", columns, lines)])
    if found:
        raise SystemExit(1)


@click.command()
@cluster_options()
@target_options(required=True)
@click.option("-t", "--topic", "topics", required=True, multiple=True, help="Topic to copy; may be repeated.")
@click.option("--state", required=True, type=DIRECTORY, help="Directory for the checkpoint.")
@click.option(
    "-g", "--group", "groups", multiple=True, help="Group whose offsets are copied; may be repeated."
)
@click.option(
    "--every",
    default="1 second",
    show_default=True,
    help="Interval of the micro-batches, such as '500 milliseconds' or '1 minute'.",
)
@click.option("--once", is_flag=True, help="Copy what is there now, and end.")
@click.option(
    "--max-offsets", type=click.IntRange(1), help="Most messages in a micro-batch; default: all there are."
)
@spark_options
def mirror(
    namesrv: str,
    access: Access,
    to_namesrv: str,
    to_access: Access,
    topics: tuple[str, ...],
    state: Path,
    groups: tuple[str, ...],
    every: str,
    once: bool,
    max_offsets: int | None,
    master: str | None,
    conf: tuple[str, ...],
) -> None:
    """Copy topics into another cluster, exactly once.

    \b
      batonmq spark mirror -n 10.0.0.1:9876 --to-namesrv 10.1.0.1:9876 -t orders -g billing \\
        --state /data/mirror-1

    Works between BatonMQ and RocketMQ, in either direction. Each queue keeps its order. Topics that the
    target does not have are created. The offsets of groups follow: consumers that move to the target continue
    where they were. Nobody else may write to these topics of the target before that. A second run with the
    same --state continues.
    """
    from batonmq.spark.jobs import mirror as job

    for topic in topics:
        check_topic(namesrv, topic, access)
    if is_one_cluster(namesrv, access, to_namesrv, to_access):
        raise click.UsageError(_ITSELF)
    topics, groups = tuple(dict.fromkeys(topics)), tuple(dict.fromkeys(groups))
    wanted = job.Mirror(namesrv, to_namesrv, topics, state, groups, access, to_access)
    with one_line():
        asyncio.run(job.check_groups(wanted))
        click.get_current_context().with_resource(held(state, MIRROR))
        lanes = asyncio.run(job.prepare(wanted))
    session = session_for("mirror", master, conf)
    query = job.start(
        session, wanted, lanes, every=None if once else every, max_offsets_per_trigger=max_offsets
    )
    over, copied, looked_at = False, 0, time.monotonic()
    with stop_requests() as asked:
        while not over:
            over = ended(query, asked)
            if asked():
                click.echo("stopped; the same command continues", err=True)
                return
            if not over and time.monotonic() - looked_at < _TRANSLATE_S:
                continue
            looked_at = time.monotonic()
            with one_line():
                moved = asyncio.run(_translated(wanted, lanes))
            rows = sum(progress["numInputRows"] for progress in query.recentProgress)
            if rows != copied or moved:
                click.echo(
                    f"{counted(rows, 'message')} in the last batches; "
                    f"{counted(moved, 'offset')} of groups moved",
                    err=True,
                )
            copied = rows


async def _translated(wanted: Mirror, lanes: Sequence[Lane]) -> int:
    """How many offsets moved; an outage is one line, and the next time makes up for it. Raises `MirrorError`
    if the source has new queues."""
    from batonmq.net.errors import NetError
    from batonmq.protocol.errors import MQError
    from batonmq.spark.jobs import mirror as job

    try:
        await job.check_queues(wanted, lanes)
        return await job.translate(wanted, lanes) if wanted.groups else 0
    except (NetError, MQError) as error:
        click.echo(f"queues are not looked at, and offsets of groups stay, for now: {error}", err=True)
        return 0


COMMANDS = (replay, restore, mirror, dlq)
