"""The leader's side of replication: what each peer is sent, and what its answers say (3.5, 10.2.1)."""

from __future__ import annotations

from collections.abc import Iterable

from batonmq.raft.messages import (
    Append,
    AppendReply,
    Entry,
    Heartbeat,
    InstallReply,
    Kind,
)
from batonmq.raft.outgoing_snapshot import OutgoingSnapshot
from batonmq.raft.progress import Flow, Progress
from batonmq.raft.server import Server
from batonmq.raft.state import Role


class Replication:
    """Feeds the peers of one leader, within the limits of flow control, from its log or from a snapshot."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.snapshot = OutgoingSnapshot()
        self.notice_due_ms: int | None = None
        """When followers that get no Append are sent the commit index."""
        self.forgetful: list[tuple[str, int]] = []
        """(peer, index) of entries that a peer had acknowledged and refuses to have."""

    def begin(self) -> None:
        """This node was elected."""
        server = self._server
        server.peers = {}
        self.track_members()
        server.peers[server.id].match = server.outbox.durable_index
        self.notice_due_ms = None

    def end(self) -> None:
        """This node follows."""
        self._server.peers = {}
        self.snapshot.release()

    def append(self, entries: list[Entry]) -> None:
        """Append the leader's own entries; a membership must be the first."""
        server = self._server
        first = server.log.last_index + 1
        server.log.extend(entries)
        if entries[0].kind == Kind.MEMBERS:
            server.memberships.record(first, entries)
            self.track_members()

    def track_members(self) -> None:
        """Keep a `Progress` for each member of the membership in force, and for no other node."""
        server = self._server
        peers, members = server.peers, server.members.all()
        wanted = {*members, server.id}
        for gone in peers.keys() - wanted:
            del peers[gone]
        # In the members' order: a set's order would differ from run to run.
        for new in (*members, server.id):
            if new not in peers:
                peers[new] = Progress(next=server.log.last_index + 1, contact_ms=server.now_ms)

    # -- who answers

    def contact(self, peer: str) -> Progress | None:
        """An answer of ``peer`` arrived; its progress, or None if it is no member."""
        progress = self._server.peers.get(peer)
        if progress is not None:
            progress.contact_ms = self._server.now_ms
        return progress

    def active(self, peers: Iterable[str]) -> list[str]:
        """Those of ``peers`` that answered within an election timeout; the leader itself counts as one."""
        server = self._server
        since = server.now_ms - server.config.election_timeout_ms
        known = server.peers
        return [
            peer for peer in peers if peer == server.id or (peer in known and known[peer].contact_ms > since)
        ]

    def take_forgetful(self) -> list[tuple[str, int]]:
        """`forgetful` since the last call."""
        forgetful, self.forgetful = self.forgetful, []
        return forgetful

    def lag(self, peer: str) -> int | None:
        """How many entries ``peer`` is behind; None if it does not answer now, or this node does not lead."""
        progress = self._server.peers.get(peer)
        if progress is None or progress.match == 0 or not self.active([peer]):
            return None
        return self._server.log.last_index - progress.match

    # -- sending

    def send(self) -> None:
        """Send each peer what flow control allows now."""
        server = self._server
        last_index = server.log.last_index
        for peer, progress in server.peers.items():
            # Mostly there is nothing to send: hence no call to find that out.
            if peer != server.id and (progress.next <= last_index or progress.flow is not Flow.REPLICATE):
                self._feed(peer, progress)
        self._notify_commits()

    def _feed(self, peer: str, progress: Progress) -> None:
        server = self._server
        log, config = server.log, server.config
        if progress.flow is Flow.SNAPSHOT:
            self._feed_snapshot(peer, progress)
            return
        if progress.flow is Flow.PROBE:
            if progress.waiting_since_ms is None and self._send_append(peer, progress, progress.next):
                progress.waiting_since_ms = server.now_ms
            return
        while (
            progress.next <= log.last_index
            and progress.inflight_bytes < config.max_inflight_bytes
            and len(progress.inflight) < config.max_inflight_messages
        ):
            first = progress.next
            if not self._send_append(peer, progress, first):
                return
            last = log.fit(first, config.max_append_bytes)
            size = log.bytes_between(first - 1, last)
            progress.next = last + 1
            progress.inflight.append((last, size))
            progress.inflight_bytes += size
            if progress.waiting_since_ms is None:
                progress.waiting_since_ms = server.now_ms

    def _send_append(self, peer: str, progress: Progress, first: int) -> bool:
        server = self._server
        log = server.log
        prev_term = log.term(first - 1)
        if prev_term is None:
            progress.flow = Flow.SNAPSHOT
            progress.clear_inflight()
            progress.snapshot_offset = 0
            self._feed_snapshot(peer, progress)
            return False
        last = log.last_index
        entries = log.slice(first, log.fit(first, server.config.max_append_bytes)) if first <= last else []
        progress.sent_commit = min(server.commit_index, first - 1 + len(entries))
        server.outbox.send(peer, Append(server.term, first - 1, prev_term, server.commit_index, entries))
        return True

    def _feed_snapshot(self, peer: str, progress: Progress) -> None:
        server = self._server
        if not self.snapshot.reaches(server.log.base_index):
            progress.waiting_since_ms = None
            progress.snapshot_offset = 0
        elif progress.waiting_since_ms is None:
            progress.waiting_since_ms = server.now_ms
            size = server.config.snapshot_chunk_bytes
            server.outbox.send(peer, self.snapshot.chunk(server.term, progress.snapshot_offset, size))

    def _notify_commits(self) -> None:
        """Appends carry the commit index; followers that are sent none get it by itself after a while.

        Under load there is always a next Append, and a follower then wakes up once an entry and not twice.
        """
        server = self._server
        own_id, commit_index = server.id, server.commit_index
        behind = [
            peer
            for peer, progress in server.peers.items()
            if progress.sent_commit < commit_index
            and progress.sent_commit < progress.match
            and peer != own_id
        ]
        if not behind:
            self.notice_due_ms = None
            return
        if self.notice_due_ms is None:
            self.notice_due_ms = server.now_ms + server.config.commit_notice_ms
        if server.now_ms >= self.notice_due_ms:
            self.notice_due_ms = None
            for peer in behind:
                self.notify_commit(peer, server.peers[peer])

    def notify_commit(self, peer: str, progress: Progress) -> None:
        """Send ``peer`` the commit index, unless it has it."""
        server = self._server
        commit = server.peer_commit(progress)
        if progress.sent_commit < commit:
            progress.sent_commit = commit
            server.outbox.send(peer, Heartbeat(server.term, commit, 0, server.now_ms))

    # -- answers

    def on_append_reply(self, sender: str, message: AppendReply) -> bool:
        """Returns whether ``sender`` acknowledged entries, and this node still leads."""
        progress = self.contact(sender)
        if progress is None:
            return False
        server = self._server
        if message.rejected:
            if progress.back_up(message, server.log):
                self.forgetful.append((sender, message.index))
            return False
        index = message.index
        if index > progress.match:
            if index > server.log.last_index:
                return False  # a lie: nobody has what its leader never had
            progress.match = index
            if progress.flow is Flow.REPLICATE:
                progress.waiting_since_ms = server.now_ms
            server.advance_commit()
            if server.role is not Role.LEADER:
                return False
        if progress.acknowledged(server.log):
            self._release_snapshot()
        return True

    def on_install_reply(self, sender: str, message: InstallReply) -> None:
        progress = self.contact(sender)
        if progress is None or progress.flow is not Flow.SNAPSHOT:
            return
        if message.index != self.snapshot.index:
            return
        if message.refused:
            progress.refuse_snapshot(self._server.now_ms, self._server.config)
        else:
            progress.snapshot_offset = message.next_offset
            progress.waiting_since_ms = None

    def _release_snapshot(self) -> None:
        peers = self._server.peers.values()
        if self.snapshot.index is not None and all(p.flow is not Flow.SNAPSHOT for p in peers):
            self.snapshot.release()
