"""Which brokers send their heartbeats over which connection.

Every controller keeps this for the connections made to it, leading or not: brokers send heartbeats to all
controllers, so that a new leader knows at once whose closing means a broker's death.
"""

from __future__ import annotations

from typing import Generic, TypeVar

C = TypeVar("C")


class Session:
    """One connection; `brokers` are (broker name, broker id)."""

    __slots__ = ("brokers", "id")

    def __init__(self, session_id: int) -> None:
        self.id = session_id
        self.brokers: set[tuple[str, int]] = set()


class Sessions(Generic[C]):
    """Numbers connections; a number is never used again in this process, and never is 0 (unknown)."""

    def __init__(self) -> None:
        self._sessions: dict[C, Session] = {}
        self._last_id = 0

    def of(self, connection: C) -> Session:
        session = self._sessions.get(connection)
        if session is None:
            self._last_id += 1
            session = self._sessions[connection] = Session(self._last_id)
        return session

    def closed(self, connection: C) -> Session | None:
        """Forgets the connection; returns its session if heartbeats of any broker came over it."""
        return self._sessions.pop(connection, None)

    def known(self) -> tuple[tuple[str, int, int], ...]:
        """(broker name, broker id, session) of all; for a broker on several connections the latest counts."""
        latest: dict[tuple[str, int], int] = {}
        for session in self._sessions.values():
            for broker in session.brokers:
                latest[broker] = max(session.id, latest.get(broker, 0))
        return tuple((name, broker_id, session) for (name, broker_id), session in sorted(latest.items()))
