"""Name servers: configuration, key-value pairs, and brokers that nobody may write to.

Name servers do not know each other, so every change goes to all of them.
"""

from __future__ import annotations

from collections.abc import Mapping

from batonmq.admin.session import Admin, one_key
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers import namesrv as wire
from batonmq.protocol.names import ORDER_TOPIC_CONFIG


async def configs(admin: Admin) -> dict[str, dict[str, str]]:
    """Name server's address -> configuration key -> value."""
    return await admin.configs(admin.namesrv, wire.GetNamesrvConfig())


async def change_config(admin: Admin, key: str, value: str) -> None:
    """Set a key of running name servers."""
    await admin.ask_each(admin.namesrv, wire.UpdateNamesrvConfig(), one_key(key, value))


async def value(admin: Admin, namespace: str, key: str) -> str:
    """The value of a key-value pair, as the first name server that answers has it. Raises `MQError`
    QUERY_NOT_FOUND."""
    answer = await admin.ask_namesrv(wire.GetKVConfig(namespace=namespace, key=key))
    assert isinstance(answer.header, wire.GetKVConfigResponse)
    return answer.header.value or ""


async def put_value(admin: Admin, namespace: str, key: str, value: str) -> None:
    """Set a key-value pair, e.g. of the namespace ORDER_TOPIC_CONFIG."""
    await admin.ask_each(admin.namesrv, wire.PutKVConfig(namespace=namespace, key=key, value=value))


async def delete_value(admin: Admin, namespace: str, key: str) -> None:
    """Delete a key-value pair."""
    await admin.ask_each(admin.namesrv, wire.DeleteKVConfig(namespace=namespace, key=key))


async def put_order(admin: Admin, topic: str, queues: Mapping[str, int], *, keep_others: bool) -> str:
    """Set the order configuration of a topic, `broker:queues;…`, which name servers with orderMessageEnable
    put into its route: clients then take these queues, whether or not their brokers are there. Returns it.

    Args:
        queues: broker name -> number of queues to write to.
        keep_others: other brokers' entries stay.
    """
    entries: dict[str, str] = {}
    if keep_others:
        try:
            known = await value(admin, ORDER_TOPIC_CONFIG, topic)
        except MQError as error:
            if error.code != ResponseCode.QUERY_NOT_FOUND:
                raise
        else:
            entries = {each.partition(":")[0]: each for each in known.split(";") if each}
    entries |= {name: f"{name}:{number}" for name, number in queues.items()}
    order = ";".join(entries[name] for name in sorted(entries))
    await put_value(admin, ORDER_TOPIC_CONFIG, topic, order)
    return order


async def forbid_writing(admin: Admin, broker: str) -> dict[str, int]:
    """Stop producers from writing to brokers of a name; name server's address -> number of topics changed."""
    changed: dict[str, int] = {}
    answers = await admin.ask_each(admin.namesrv, wire.WipeWritePermOfBroker(broker_name=broker))
    for address, answer in answers.items():
        assert isinstance(answer.header, wire.WipeWritePermOfBrokerResponse)
        changed[address] = answer.header.wipe_topic_count
    return changed


async def allow_writing(admin: Admin, broker: str) -> dict[str, int]:
    """Undo `forbid_writing`; name server's address -> number of topics changed."""
    changed: dict[str, int] = {}
    answers = await admin.ask_each(admin.namesrv, wire.AddWritePermOfBroker(broker_name=broker))
    for address, answer in answers.items():
        assert isinstance(answer.header, wire.AddWritePermOfBrokerResponse)
        changed[address] = answer.header.add_topic_count
    return changed
