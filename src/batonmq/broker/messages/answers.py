"""The errors and codes of answers to all requests that store a message.

Codes and remarks are RocketMQ's (`AbstractSendMessageProcessor`, `SendMessageProcessor`).
"""

from __future__ import annotations

from typing import Final

from batonmq.broker.messages.appender import PutStatus
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import FAQ, MQError

CODE_OF: Final = {
    PutStatus.PUT_OK: int(ResponseCode.SUCCESS),
    PutStatus.FLUSH_DISK_TIMEOUT: int(ResponseCode.FLUSH_DISK_TIMEOUT),
    PutStatus.FLUSH_SLAVE_TIMEOUT: int(ResponseCode.FLUSH_SLAVE_TIMEOUT),
}
"""Code of the answer if the message is in the log."""


def overloaded() -> MQError:
    """Too many messages wait for their acknowledgement."""
    return MQError(ResponseCode.SYSTEM_BUSY, "[OVERLOAD]system busy, start flow control for a while")


def no_group(group: str) -> MQError:
    return MQError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {group} {FAQ}")


def sending_forbidden(broker_address: str, what: str = "message") -> MQError:
    """`brokerPermission` or another key forbids the send."""
    ip = broker_address.rpartition(":")[0]
    return MQError(ResponseCode.NO_PERMISSION, f"the broker[{ip}] sending {what} is forbidden")


def not_stored(status: PutStatus, max_message_size: int) -> MQError:
    """The answer if the message is not in the log."""
    if status is PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH:
        return MQError(ResponseCode.SYSTEM_ERROR, "in-sync replicas not enough")
    if status in (PutStatus.MESSAGE_ILLEGAL, PutStatus.PROPERTIES_SIZE_EXCEEDED):
        return MQError(
            ResponseCode.MESSAGE_ILLEGAL,
            "the message is illegal, maybe msg body or properties length not matched. "
            f"msg body length limit {max_message_size}B, msg properties length limit 32KB.",
        )
    if status is PutStatus.LMQ_CONSUME_QUEUE_NUM_EXCEEDED:
        return MQError(
            ResponseCode.LMQ_QUOTA_EXCEEDED,
            "[LMQ_CONSUME_QUEUE_NUM_EXCEEDED]the message names a new light queue, but there are as many as "
            "maxLmqConsumeQueueNum allows",
        )
    if status is PutStatus.SERVICE_NOT_AVAILABLE:
        return MQError(
            ResponseCode.SERVICE_NOT_AVAILABLE,
            "service not available now. It may be caused by one of the following reasons: "
            "the broker's disk is full, "
            "messages are put to the slave, message store has been shut down, etc.",
        )
    if status is PutStatus.CREATE_MAPPED_FILE_FAILED:
        return MQError(ResponseCode.SYSTEM_ERROR, "create mapped file failed, server is busy or broken.")
    return MQError(ResponseCode.SYSTEM_ERROR, "UNKNOWN_ERROR")
