"""Errors between two programs, as opposed to refusals that the other program answered.

    NetError
    ├── ConnectFailed      no connection could be made; the request was not sent
    ├── CallTimeout        sent, but no answer in time; it may have been carried out
    └── ConnectionLost     the connection broke; it may have been carried out

An answer that says no is an `MQError` (protocol/errors.py), never one of these.
"""

from __future__ import annotations


class NetError(Exception):
    """Talking to `address` (``host:port``) failed. `sent`: whether the peer may have seen the request."""

    sent = True

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(f"{address}: {reason}")
        self.address = address
        self.reason = reason


class ConnectFailed(NetError):
    """No connection to the address: refused, unreachable, unknown host, or not accepted in time."""

    sent = False


class CallTimeout(NetError):
    """No answer within the caller's timeout."""


class ConnectionLost(NetError):
    """The connection closed while a call was in flight, or before it could be written.

    `by_peer`: the peer closed or reset it, as a server does that refuses a connection. Which of the two is a
    matter of timing.
    """

    def __init__(self, address: str, reason: str, *, by_peer: bool = False) -> None:
        super().__init__(address, reason)
        self.by_peer = by_peer
