"""What changes topics or groups is answered when the change outlives this broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from batonmq.common.files import reason
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError

if TYPE_CHECKING:
    from batonmq.broker.context import Broker


async def keep_tables(broker: Broker) -> None:
    """Wait until slaves have the change, as far as they can be waited for, and this broker's disk.
    Raises `MQError` if the disk does not take it."""
    await broker.tables.known()
    try:
        await broker.tables_written()
    except OSError as error:
        raise MQError(ResponseCode.SYSTEM_ERROR, f"in force until a restart: {reason(error)}") from error
