"""Broker containers: adding and removing the brokers of one."""

from __future__ import annotations

from batonmq.admin.session import Admin, AdminError
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker import replication as wire
from batonmq.protocol.registry import Header


async def add(admin: Admin, container: str, config_path: str) -> None:
    """Start the broker of a file on the container's disk."""
    await _ask(admin, container, wire.AddBroker(config_path=config_path))


async def remove(admin: Admin, container: str, cluster: str, name: str, broker_id: int) -> None:
    """Stop a broker of the container."""
    header = wire.RemoveBroker(broker_name=name, broker_cluster_name=cluster, broker_id=broker_id)
    await _ask(admin, container, header)


async def _ask(admin: Admin, container: str, header: Header) -> None:
    """Raises `AdminError` if something else listens there."""
    try:
        await admin.ask(container, header)
    except MQError as error:
        if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise
        raise AdminError(
            f"{container} is not a broker container: -c takes the container's listenPort, usually 10811"
        ) from None
