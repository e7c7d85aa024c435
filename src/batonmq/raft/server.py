"""What all parts of one node's core share: the state of figure 2 of the Raft paper, and the role changes."""

from __future__ import annotations

from abc import ABC, abstractmethod

from batonmq.raft.config import RaftConfig
from batonmq.raft.log import RaftLog
from batonmq.raft.memberships import Memberships
from batonmq.raft.messages import Members, SnapshotMeta
from batonmq.raft.outbox import Outbox
from batonmq.raft.progress import Progress
from batonmq.raft.state import HardState, Role


class Server(ABC):
    """The state of one Raft server. `RaftCore` is the only one; its parts see no more of it than this."""

    def __init__(
        self,
        node_id: str,
        config: RaftConfig,
        *,
        members: Members,
        now_ms: int,
        hard_state: HardState,
        log: RaftLog,
        snapshot: SnapshotMeta | None,
    ) -> None:
        self.id = node_id
        self.config = config
        self.now_ms = now_ms
        """Monotonic time of the last input."""
        self.term = hard_state.term
        self.voted_for = hard_state.voted_for
        self.log = log
        self.snapshot = snapshot
        """The newest that is on the disk."""
        self.commit_index = max(
            min(hard_state.commit, log.last_index), log.base_index, snapshot.index if snapshot else 0
        )
        self.memberships = (
            Memberships(snapshot.index, snapshot.members) if snapshot else Memberships(0, members)
        )
        self.memberships.record(log.first_index, log.slice(log.first_index, log.last_index))
        self.outbox = Outbox(log, self.term)

        self.role = Role.FOLLOWER
        self.leader_id: str | None = None
        self.removed_at: int | None = None
        """The index by which this node was removed, as far as it knows: it no longer asks for votes."""
        self.peers: dict[str, Progress] = {}
        """What a leader knows of each member, itself included; empty in any other role."""
        self.term_start_index = 0
        """Index of the first entry of a leader's term."""

    @property
    def members(self) -> Members:
        """The membership in force."""
        return self.memberships.newest

    @property
    def membership_index(self) -> int:
        """Where the membership in force stands in the log; not yet committed if beyond ``commit_index``."""
        return self.memberships.index

    def is_alone(self) -> bool:
        """Whether this node is the only voter."""
        return self.members.voters.keys() == {self.id}

    def commit(self, index: int) -> None:
        """A leader says, or a quorum shows, that all up to ``index`` is committed."""
        if index > self.commit_index:
            assert index <= self.log.last_index, f"commit {index} beyond the log's end {self.log.last_index}"
            self.commit_index = index

    def peer_commit(self, progress: Progress) -> int:
        """What a peer may take as committed: no further than its log is known to match."""
        return min(progress.match, self.commit_index)

    @abstractmethod
    def become_follower(self, term: int, leader_id: str | None) -> None: ...
    @abstractmethod
    def become_pre_candidate(self) -> None: ...
    @abstractmethod
    def become_candidate(self, *, transfer: bool) -> None: ...
    @abstractmethod
    def become_leader(self) -> None: ...
    @abstractmethod
    def advance_commit(self) -> None:
        """The leader's or a peer's ``match`` rose: commit what a majority holds. May end the leadership."""
