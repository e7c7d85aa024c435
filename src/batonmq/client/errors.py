"""Errors of the client, besides a broker's refusal (`MQError`) and a broken network (`NetError`)."""

from __future__ import annotations

from batonmq.client.message import SendResult


class ClientError(Exception):
    """The request could not be made, or not be brought to its end."""


class SendFailed(ClientError):
    """A message was not acknowledged within the send timeout.

    ``cause`` is the last failure. The message may have been stored nevertheless when ``maybe_stored``: an
    attempt was sent and its answer never came. Sending the same `Message` again keeps its id, so that a
    duplicate shows.
    """

    def __init__(self, topic: str, attempts: int, cause: Exception | None, maybe_stored: bool) -> None:
        tried = f"failed after {attempts} attempt{'s' * (attempts > 1)}" if attempts else "was not possible"
        stored = "; the message may have been stored" if maybe_stored else ""
        super().__init__(f"send to {topic} {tried}: {cause}{stored}")
        self.topic = topic
        self.attempts = attempts
        self.cause = cause
        self.maybe_stored = maybe_stored


class NotSafelyStored(ClientError):
    """The master stored the message, but not as safely as it is configured to (disk or replica timeout).

    ``result`` says where it is. It may be lost when the master fails now.
    """

    def __init__(self, result: SendResult) -> None:
        super().__init__(f"stored at {result.queue} offset {result.queue_offset}, but {result.status.value}")
        self.result = result


class ReplyTimeout(ClientError):
    """A request message was stored, but no reply came in time. It may have been handled nevertheless."""

    def __init__(self, topic: str) -> None:
        super().__init__(f"no reply to the request in {topic} within its timeout")
        self.topic = topic


class TransactionUnconfirmed(ClientError):
    """A broker did not confirm that a transaction is committed or rolled back.

    The decision is kept: when the broker asks what became of the transaction, this client answers it.
    """

    def __init__(self, transaction_id: str, decision: str, cause: Exception) -> None:
        super().__init__(f"{decision} of transaction {transaction_id} is not confirmed: {cause}")
        self.transaction_id = transaction_id
        self.cause = cause
