"""topicRoute: where a topic is."""

from batonmq.admin.command import command, topic_option
from batonmq.admin.output import Output
from batonmq.admin.session import Admin


@command("topicRoute")
@topic_option
async def main(admin: Admin, out: Output, topic: str) -> None:
    """Show brokers, queues and permissions of a topic.

    As the name server gives them to clients.
    """
    route = await admin.route(topic)
    addresses = {group.broker_name: group for group in route.broker_datas}
    rows = []
    for queues in sorted(route.queue_datas, key=lambda q: q.broker_name):
        group = addresses.get(queues.broker_name)
        where = ", ".join(f"{i}={a}" for i, a in sorted(group.broker_addrs.items())) if group else ""
        rows.append(
            [
                group.cluster if group else "",
                queues.broker_name,
                queues.read_queue_nums,
                queues.write_queue_nums,
                queues.perm,
                where,
            ]
        )
    out.table(["cluster", "broker", "readQueues", "writeQueues", "perm", "addresses"], rows)
