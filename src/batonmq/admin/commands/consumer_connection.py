"""consumerConnection: who is connected of a consumer group."""

import click

from batonmq.admin.command import command
from batonmq.admin.output import Output
from batonmq.admin.session import Admin
from batonmq.protocol.bodies.clients import ConsumerConnection
from batonmq.protocol.headers.broker import admin as wire
from batonmq.protocol.json import decode
from batonmq.protocol.names import retry_topic


@command("consumerConnection")
@click.option("-g", "--consumerGroup", "group", required=True, help="Consumer group.")
@click.option("-b", "--brokerAddr", "broker", help="Ask this broker, host:port.")
async def main(admin: Admin, out: Output, group: str, broker: str | None) -> None:
    """Show the connected clients of a group.

    And what the consumer group subscribes to.
    """
    if broker is None:
        broker = next(iter((await admin.masters_of_topic(retry_topic(group))).values()))
    answer = await admin.ask(broker, wire.GetConsumerConnectionList(consumer_group=group))
    found = decode(bytes(answer.body), ConsumerConnection)
    if out.as_json:
        out.facts(
            {
                "connections": [
                    {
                        "clientId": c.client_id,
                        "address": c.client_addr,
                        "language": c.language,
                        "version": c.version,
                    }
                    for c in found.connection_set
                ],
                "subscriptions": {t: s.sub_string for t, s in found.subscription_table.items()},
                "consumeType": found.consume_type,
                "messageModel": found.message_model,
                "consumeFromWhere": found.consume_from_where,
            }
        )
        return
    rows = [[c.client_id, c.client_addr, c.language, c.version] for c in found.connection_set]
    out.table(["clientId", "address", "language", "version"], rows)
    subscriptions = [[topic, s.sub_string] for topic, s in sorted(found.subscription_table.items())]
    out.table(["topic", "expression"], subscriptions, title="\nSubscriptions")
    out.facts(
        {
            "consumeType": found.consume_type,
            "messageModel": found.message_model,
            "consumeFromWhere": found.consume_from_where,
        },
        title="",
    )
