"""What leaves a node: messages at once, or once what they promise is durable; and the units for its disk."""

from __future__ import annotations

from batonmq.raft.log import RaftLog
from batonmq.raft.messages import AppendReply, Message, Snapshot
from batonmq.raft.state import HardState, Save


class Outbox:
    """One node's outgoing messages and saves. Tracks what its disk holds of ``log``, term and vote."""

    def __init__(self, log: RaftLog, term: int) -> None:
        """Both as read from the disk."""
        self._log = log
        self._messages: list[tuple[str, Message]] = []
        self.durable_index = log.last_index
        """Up to here the log is on this disk."""
        self._unsaved_from = log.last_index + 1
        self._durable_term = term
        self._hard_dirty = False
        self._snapshot: Snapshot | None = None
        self._deferred: list[tuple[str, Message]] = []
        self._in_flight: Save | None = None

    # -- messages

    def send(self, peer: str, message: Message) -> None:
        self._messages.append((peer, message))

    def send_durable(self, peer: str, message: Message) -> None:
        """Send once everything that this node knows now is durable."""
        if self._dirty():
            waiting = self._deferred
        elif self._in_flight is not None:
            waiting = self._in_flight.messages
        else:
            self.send(peer, message)
            return
        if waiting and type(message) is AppendReply and not message.rejected:
            to, last = waiting[-1]
            if to == peer and type(last) is AppendReply and not last.rejected and last.term == message.term:
                # Only the newest of several acknowledgements says anything.
                last.index = max(last.index, message.index)
                return
        waiting.append((peer, message))

    def send_term(self, peer: str, message: Message) -> None:
        """Send once the term is durable; the log does not matter."""
        if self._hard_dirty:
            self._deferred.append((peer, message))
        elif self._in_flight is not None and self._in_flight.hard_state.term != self._durable_term:
            self._in_flight.messages.append((peer, message))
        else:
            self.send(peer, message)

    def take_messages(self) -> list[tuple[str, Message]]:
        """Those that may leave now."""
        messages, self._messages = self._messages, []
        return messages

    # -- what the disk does not hold yet

    def hard_state_changed(self) -> None:
        """Term or vote; a commit index alone is not worth a save."""
        self._hard_dirty = True

    def truncated(self, index: int) -> None:
        """The log was cut from ``index`` on."""
        self._unsaved_from = min(self._unsaved_from, index)
        self.durable_index = min(self.durable_index, index - 1)

    def installed(self, snapshot: Snapshot) -> None:
        """The log was replaced by ``snapshot``."""
        self._unsaved_from = snapshot.meta.index + 1
        self.durable_index = snapshot.meta.index
        self._snapshot = snapshot

    # -- saves

    def has_save(self) -> bool:
        return self._in_flight is None and self._dirty()

    def take_save(self, hard_state: HardState) -> Save:
        """The next unit for the disk; there must be one (`has_save`)."""
        log = self._log
        last = log.last_index
        save = Save(
            hard_state,
            self._unsaved_from,
            log.slice(self._unsaved_from, last),
            self._snapshot,
            last,
            log.last_term,
            self._deferred,
        )
        self._unsaved_from = last + 1
        self._hard_dirty = False
        self._snapshot = None
        self._deferred = []
        self._in_flight = save
        return save

    def saved(self, save: Save) -> None:
        """``save`` is durable."""
        assert save is self._in_flight, "saves complete in order"
        self._in_flight = None
        self._durable_term = save.hard_state.term
        if self._log.term(save.last_index) == save.last_term:
            self.durable_index = max(self.durable_index, save.last_index)

    def _dirty(self) -> bool:
        return self._hard_dirty or self._unsaved_from <= self._log.last_index or self._snapshot is not None
