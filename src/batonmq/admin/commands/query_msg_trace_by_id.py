"""queryMsgTraceById: who sent and who consumed a message."""

import click

from batonmq.admin.command import command
from batonmq.admin.operations import traces
from batonmq.admin.output import Output, time_text
from batonmq.admin.session import Admin, AdminError
from batonmq.admin.times import TIME, parse_times


@command("queryMsgTraceById")
@click.option("-i", "--msgId", "message_id", required=True, help="Unique message id.")
@click.option(
    "-t", "--traceTopic", "topic", default="RMQ_SYS_TRACE_TOPIC", show_default=True, help="Trace topic."
)
@click.option("-b", "--beginTimestamp", "begin", help=f"Traces stored at or after: {TIME}.")
@click.option("-e", "--endTimestamp", "end", help=f"Traces stored at or before: {TIME}.")
@click.option(
    "-c",
    "--maxNum",
    "count",
    type=click.IntRange(1, 10_000),
    default=64,
    show_default=True,
    help="Most trace messages to read.",
)
async def main(
    admin: Admin, out: Output, message_id: str, topic: str, begin: str | None, end: str | None, count: int
) -> None:
    """Show the trace of a message.

    Clients that trace send it to the trace topic; brokers offer one with traceTopicEnable=true.

    \b
      batonmq admin queryMsgTraceById -n 127.0.0.1:9876 -i 7F00000100002A9F000000000000000A
    """
    found = await traces.of_message(admin, message_id, topic, count, parse_times(begin, end))
    if not found:
        raise AdminError(f"no trace of {message_id} in {topic}")
    rows = [
        [
            "Pub" if trace.kind == "Pub" else "Sub",
            trace.group,
            trace.client_host,
            time_text(trace.time_ms) if trace.time_ms else "",
            trace.cost_ms,
            "success" if trace.ok else "failed",
        ]
        for trace in found
    ]
    out.table(["type", "group", "clientHost", "time", "costMs", "status"], rows)
