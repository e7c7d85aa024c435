"""What a caller can get besides an answer that says no (`MQError`) and a broken network (`NetError`)."""

from __future__ import annotations

from collections.abc import Sequence

from batonmq.client.message import SendResult
from batonmq.net.errors import NetError


class ClientError(Exception):
    """The request could not be made, or not be brought to its end."""


class NoNameServer(NetError):
    """None of the name servers that were given answered. The text says why, for each of them."""

    sent = False

    def __init__(self, problems: Sequence[tuple[str, str]]) -> None:
        """``problems``: address and reason."""
        addresses = ";".join(address for address, _ in problems)
        super().__init__(addresses, "no answer")
        reasons = "; ".join(f"{address}: {reason}" for address, reason in problems)
        closed = any("closed" in reason for _, reason in problems)
        advice = "check the address, and that a name server runs there"
        if closed:
            advice += "; if it wants TLS, or a certificate, give tls="
        self.args = (f"no name server answers ({reasons}); {advice}",)


class SendFailed(ClientError):
    """A message was not acknowledged within the send timeout.

    ``cause`` is the last failure. The message may have been stored nevertheless when ``maybe_stored``: an
    attempt was sent and its answer never came. Sending the same `Message` again keeps its id, so that a
    duplicate shows.
    """

    def __init__(self, topic: str, attempts: int, cause: Exception | None, maybe_stored: bool) -> None:
        tried = f"failed after {attempts} attempts" if attempts else "was not possible"
        super().__init__(f"send to {topic} {tried}: {cause}")
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
