"""Storing messages: sending, giving back, ending a transaction."""

from __future__ import annotations

from batonmq.protocol.codes import RequestCode
from batonmq.protocol.registry import I32, I64, BrokerHeader, Header, field, request


class SendMessageResponse(Header):
    """Where a message was stored.

    Also comes with FLUSH_DISK_TIMEOUT, FLUSH_SLAVE_TIMEOUT and SLAVE_NOT_AVAILABLE.
    """

    msg_id: str
    queue_id: I32
    queue_offset: I64
    transaction_id: str | None = None
    batch_uniq_id: str | None = None
    recall_handle: str | None = None


@request(RequestCode.SEND_MESSAGE, response=SendMessageResponse)
class SendMessage(Header):
    """Send one message; the body is the message's body."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: I32
    queue_id: I32
    sys_flag: I32
    born_timestamp: I64
    flag: I32
    properties: str | None = None
    reconsume_times: I32 | None = None
    unit_mode: bool | None = None
    batch: bool | None = None
    max_reconsume_times: I32 | None = None


@request(RequestCode.SEND_MESSAGE_V2, response=SendMessageResponse)
class SendMessageV2(Header):
    """`SendMessage` with one-letter keys, which is what clients send today."""

    producer_group: str = field("a")
    topic: str = field("b")
    default_topic: str = field("c")
    default_topic_queue_nums: I32 = field("d")
    queue_id: I32 = field("e")
    sys_flag: I32 = field("f")
    born_timestamp: I64 = field("g")
    flag: I32 = field("h")
    properties: str | None = field("i", None)
    reconsume_times: I32 | None = field("j", None)
    unit_mode: bool | None = field("k", None)
    max_reconsume_times: I32 | None = field("l", None)
    batch: bool | None = field("m", None)
    broker_name: str | None = field("n", None)


@request(RequestCode.SEND_BATCH_MESSAGE, response=SendMessageResponse)
class SendBatchMessage(SendMessageV2):
    """Send a batch in one body (`message/batch.py`); the header is that of `SendMessageV2`."""


@request(RequestCode.SEND_REPLY_MESSAGE, response=SendMessageResponse)
class SendReplyMessage(SendMessage):
    """The reply to a request message: the broker pushes it to the requester (`ReplyMessage`)."""


@request(RequestCode.SEND_REPLY_MESSAGE_V2, response=SendMessageResponse)
class SendReplyMessageV2(SendMessageV2):
    """`SendReplyMessage` under short names."""


@request(RequestCode.CONSUMER_SEND_MSG_BACK)
class ConsumerSendMsgBack(BrokerHeader):
    """A consumer could not handle a message: store it again for its group, delayed, or as dead letter."""

    offset: I64
    group: str
    delay_level: I32
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: I32 | None = None


class RecallMessageResponse(Header):
    """Unique id of the message that was recalled."""

    msg_id: str


@request(RequestCode.RECALL_MESSAGE, response=RecallMessageResponse)
class RecallMessage(BrokerHeader):
    """Take back a timed message before it is delivered. `recall_handle`: from the answer to its send."""

    topic: str
    recall_handle: str
    producer_group: str | None = None


@request(RequestCode.END_TRANSACTION)
class EndTransaction(BrokerHeader):
    """Commit or roll back a half message."""

    producer_group: str
    tran_state_table_offset: I64
    commit_log_offset: I64
    commit_or_rollback: I32
    msg_id: str
    topic: str | None = None
    from_transaction_check: bool = False
    transaction_id: str | None = None


@request(RequestCode.PREPARE_BATCH, response=SendMessageResponse)
class PrepareBatch(SendMessageV2):
    """Store a batch as one half message; it becomes as many messages when it is committed."""


@request(RequestCode.END_TRANSACTIONS)
class EndTransactions(Header):
    """Commit or roll back many half messages of one group, in order; body `TransactionEnds`.

    Those of one request are appended together. A commit that is repeated delivers nothing again.
    """

    producer_group: str
    commit_or_rollback: I32


@request(RequestCode.RESUME_CHECK_HALF_MESSAGE)
class ResumeCheckHalfMessage(Header):
    """Have a half message checked again that was given up on."""

    topic: str | None = None
    msg_id: str | None = None
