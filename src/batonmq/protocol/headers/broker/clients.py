"""Clients: heartbeats, members of groups, locks, assignments."""

from __future__ import annotations

from batonmq.protocol.codes import RequestCode
from batonmq.protocol.registry import Header, field, request


class HeartbeatResponse(Header):
    """Whether the broker takes heartbeats V2, and whether the client has to send its subscriptions again."""

    is_support_heart_beat_v2: bool | None = field("IS_SUPPORT_HEART_BEAT_V2", None)
    is_sub_change: bool | None = field("IS_SUB_CHANGE", None)


@request(RequestCode.HEART_BEAT, response=HeartbeatResponse)
class Heartbeat(Header):
    """A client's groups and subscriptions; body `HeartbeatData`."""


@request(RequestCode.UNREGISTER_CLIENT)
class UnregisterClient(Header):
    """A client leaves a group."""

    client_id: str = field("clientID")
    producer_group: str | None = None
    consumer_group: str | None = None


@request(RequestCode.CHECK_CLIENT_CONFIG)
class CheckClientConfig(Header):
    """Would this subscription be accepted? Body `CheckClientRequestBody`."""


@request(RequestCode.GET_CONSUMER_LIST_BY_GROUP)
class GetConsumerListByGroup(Header):
    """Client ids of a group; body `ConsumerIdList`."""

    consumer_group: str


@request(RequestCode.LOCK_BATCH_MQ)
class LockBatchMq(Header):
    """Lock queues for ordered consumption: `LockBatchRequestBody` to `LockBatchResponseBody`."""


@request(RequestCode.UNLOCK_BATCH_MQ)
class UnlockBatchMq(Header):
    """Give locked queues back; body `UnlockBatchRequestBody`."""


@request(RequestCode.UNDO_QUEUE_LOCKS)
class UndoQueueLocks(Header):
    """Take back what one LOCK_BATCH_MQ did; body `LockAttemptBody`."""


@request(RequestCode.QUERY_ASSIGNMENT)
class QueryAssignment(Header):
    """Ask the broker which queues a client has; body `QueryAssignmentRequestBody`."""


@request(RequestCode.SET_MESSAGE_REQUEST_MODE)
class SetMessageRequestMode(Header):
    """Pull or pop for a group on a topic; body `SetMessageRequestModeRequestBody`."""


@request(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)
class GetAllMessageRequestMode(Header):
    """All settings of `SetMessageRequestMode`."""
