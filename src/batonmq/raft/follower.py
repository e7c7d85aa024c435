"""A follower's log: what it does with the entries and heartbeats of its leader (3.5)."""

from __future__ import annotations

from batonmq.raft.election import Election
from batonmq.raft.messages import Append, AppendReply, Entry, Heartbeat, HeartbeatReply
from batonmq.raft.reach import Reach
from batonmq.raft.server import Server


class Follower:
    """Keeps one node's log equal to its leader's."""

    def __init__(self, server: Server, election: Election, reach: Reach) -> None:
        self._server = server
        self._election = election
        self._reach = reach

    def on_append(self, sender: str, message: Append) -> None:
        self._election.leader_contact(sender)
        server = self._server
        log, prev, commit_index = server.log, message.prev_index, server.commit_index
        if prev < commit_index:
            # All up to the commit index is known to match: skip what is already here.
            skip = commit_index - prev
            if skip > len(message.entries):
                server.outbox.send_durable(sender, AppendReply(server.term, commit_index))
                return
            prev, entries = commit_index, message.entries[skip:]
        else:
            entries = message.entries
            if log.term(prev) != message.prev_term:
                hint_index, hint_term = log.last_with_term_at_most(
                    min(prev, log.last_index), message.prev_term
                )
                rejection = AppendReply(server.term, prev, True, hint_index, hint_term)
                server.outbox.send_durable(sender, rejection)
                return
        last = prev + len(entries)
        if prev < log.last_index and entries:
            entries, prev = self._drop_known(prev, entries)
        if entries:
            log.extend(entries)
            server.memberships.record(prev + 1, entries)
        server.commit(min(message.commit, last))
        server.outbox.send_durable(sender, AppendReply(server.term, last))

    def _drop_known(self, prev: int, entries: list[Entry]) -> tuple[list[Entry], int]:
        """Skip entries that the log holds; cut the log where it disagrees (3.5)."""
        server = self._server
        log = server.log
        for place, entry in enumerate(entries):
            held = log.term(prev + 1)
            if held is None:
                return entries[place:], prev
            if held != entry.term:
                assert prev + 1 > server.commit_index, f"a committed entry would be cut at {prev + 1}"
                self._truncate(prev + 1)
                return entries[place:], prev
            prev += 1
        return [], prev

    def _truncate(self, index: int) -> None:
        server = self._server
        server.log.truncate(index)
        server.outbox.truncated(index)
        server.memberships.cut(index)

    def on_heartbeat(self, sender: str, message: Heartbeat) -> None:
        self._election.leader_contact(sender)
        server = self._server
        # The leader caps it at what this log is known to match.
        server.commit(min(message.commit, server.log.last_index))
        if message.round:
            promise_ms = server.config.lease_promise_ms
            reply = HeartbeatReply(
                server.term, message.round, message.sent_ms, promise_ms, self._reach.askers()
            )
            server.outbox.send_term(sender, reply)
