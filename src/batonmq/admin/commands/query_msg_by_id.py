"""queryMsgById: find a message by its offset id or unique id."""

import click

from batonmq.admin.command import command, not_needed
from batonmq.admin.operations import messages
from batonmq.admin.output import Output, time_text
from batonmq.admin.session import Admin, AdminError
from batonmq.protocol.message.errors import MessageFormatError
from batonmq.protocol.message.record import MessageExt


@command("queryMsgById")
@click.option("-i", "--msgId", "message_ids", required=True, help="Offset message ids, commas between.")
@click.option("-g", "--consumerGroup", "group", help="Have a client of this group handle them; with -d.")
@click.option("-d", "--clientId", "client_id", help="The client; consumerConnection shows its id.")
@not_needed("-t", "--topic")
@not_needed("-f", "--bodyFormat")
@not_needed("-c", "--cluster")
async def main(admin: Admin, out: Output, message_ids: str, group: str | None, client_id: str | None) -> None:
    """Show messages by their offset ids.

    An offset id says host, port and commit log offset; sendMessage and queryMsgByKey show it. With -g and -d
    a connected push consumer handles them now, whether or not it has before, and no offset moves.
    """
    check_direct(group, client_id)
    found = []
    for message_id in message_ids.split(","):
        try:
            found.append(await messages.by_offset_id(admin, message_id.strip()))
        except MessageFormatError as error:
            raise AdminError(f"{error}; for a unique id use queryMsgByUniqueKey") from None
    if group and client_id:
        await consume_directly(admin, out, found, group, client_id)
        return
    show(out, found)


def check_direct(group: str | None, client_id: str | None) -> None:
    """Raises `AdminError` for one of -g and -d without the other."""
    if (group is None) != (client_id is None):
        raise AdminError("-g and -d belong together")


async def consume_directly(
    admin: Admin, out: Output, found: list[MessageExt], group: str, client_id: str
) -> None:
    """Have a client handle messages, and show what became of each."""
    rows: list[list[object]] = []
    for message in found:
        done = await messages.consume_directly(admin, group, client_id, message)
        result = done.consume_result.value if done.consume_result else ""
        rows.append([message.message_id, result, done.remark or "", done.spent_time_mills])
    out.table(["msgId", "result", "remark", "ms"], rows)


def show(out: Output, messages: list[MessageExt]) -> None:
    """Messages as a table, one by one when there are few."""
    columns = ["topic", "queueId", "queueOffset", "stored", "tags", "keys", "body", "msgId"]
    if len(messages) == 1 and not out.as_json:
        out.facts(facts_of(messages[0]))
        return
    out.table(
        columns,
        [
            [
                m.topic,
                m.queue_id,
                m.queue_offset,
                time_text(m.store_timestamp),
                m.tags or "",
                " ".join(m.keys),
                body_text(m.body, None if out.as_json else 60),
                m.message_id,
            ]
            for m in messages
        ],
    )


def facts_of(message: MessageExt) -> dict[str, object]:
    """All there is to say about one message."""
    return {
        "msgId": message.message_id,
        "offsetMsgId": message.offset_message_id,
        "topic": message.topic,
        "tags": message.tags,
        "keys": " ".join(message.keys),
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "commitLogOffset": message.physical_offset,
        "reconsumeTimes": message.reconsume_times,
        "born": time_text(message.born_timestamp),
        "stored": time_text(message.store_timestamp),
        "bornHost": "{}:{}".format(*message.born_address),
        "storeHost": "{}:{}".format(*message.store_address),
        "sysFlag": message.sys_flag,
        "properties": message.properties,
        "bodySize": len(message.body),
        "body": body_text(message.body, 1_000),
    }


def body_text(body: bytes, limit: int | None) -> str:
    """A body as text, escapes for what is none; cut at `limit` characters."""
    text = body.decode("utf-8", "backslashreplace")
    return text if limit is None or len(text) <= limit else text[: limit - 1] + "…"
