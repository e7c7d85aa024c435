"""Transactions: half messages that were given up."""

from __future__ import annotations

from batonmq.admin.session import Admin
from batonmq.protocol.headers.broker.send import ResumeCheckHalfMessage
from batonmq.protocol.message.ids import decode_message_id


async def resume_check(
    admin: Admin, message_id: str, topic: str | None = None, *, address: str | None = None
) -> str:
    """Have a half message checked again; `message_id` is its offset id in TRANS_CHECK_MAX_TIME_TOPIC.

    `address`: the master, ``host:port``, if another one than the id names is master now. Returns the address
    that was used. Raises `MessageFormatError` if it is not an offset id.
    """
    ip, port, _ = decode_message_id(message_id)
    if address is None:
        address = f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"
    await admin.ask(address, ResumeCheckHalfMessage(topic=topic, msg_id=message_id))
    return address
