"""Which brokers send their heartbeats over which connection.

Every controller keeps this for the connections made to it, leading or not: brokers send heartbeats to all
controllers, so that a new leader knows at once which connections are those of brokers.
"""

from __future__ import annotations

from typing import Generic, TypeVar

C = TypeVar("C")


class Session:
    """One connection; `brokers` are (broker name, broker id), and when the last heartbeat of each came over
    it: ms of this node's monotonic clock."""

    __slots__ = ("brokers", "id")

    def __init__(self, session_id: int) -> None:
        self.id = session_id
        self.brokers: dict[tuple[str, int], int] = {}


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

    def renew(self, session: Session) -> int:
        """Gives it the newest number, which is returned."""
        self._last_id += 1
        session.id = self._last_id
        return session.id

    def closed(self, connection: C) -> Session | None:
        """Forgets the connection; returns its session if heartbeats of any broker came over it."""
        return self._sessions.pop(connection, None)

    def known(self) -> tuple[tuple[str, int, int], ...]:
        """(broker name, broker id, session) of all; for a broker on several connections the latest counts."""
        return tuple((name, broker_id, session.id) for (name, broker_id), session in self._latest())

    def silent(self, now_ms: int) -> tuple[tuple[str, int, int], ...]:
        """(broker name, broker id, ms since its last heartbeat came here) of the same."""
        return tuple(
            (name, broker_id, now_ms - session.brokers[name, broker_id])
            for (name, broker_id), session in self._latest()
        )

    def _latest(self) -> list[tuple[tuple[str, int], Session]]:
        latest: dict[tuple[str, int], Session] = {}
        for session in self._sessions.values():
            for broker in session.brokers:
                known = latest.get(broker)
                if known is None or known.id < session.id:
                    latest[broker] = session
        return sorted(latest.items(), key=lambda item: item[0])
