"""The settings of one Raft node. The programs derive them from their own keys (jRaftElectionTimeoutMs, …)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftConfig:
    election_timeout_ms: int = 1_000
    """Silence of the leader after which a follower asks for votes; each wait is random in [1, 2) of it."""
    heartbeat_interval_ms: int = 0
    """How often an idle leader sends heartbeats; 0 means a tenth of the election timeout."""
    commit_notice_ms: int = 10
    """How long a leader waits for a next entry to carry the commit index, before it sends that alone."""
    max_append_bytes: int = 1 << 20
    """Payload of one Append message; one entry may be larger."""
    max_inflight_bytes: int = 2 << 20
    """Unacknowledged payload a leader keeps under way to one follower; less than a connection buffers."""
    max_inflight_messages: int = 256
    """Unacknowledged Append messages under way to one follower."""
    max_proposal_bytes: int = 4 << 20
    """A larger proposal is refused."""
    max_uncommitted_bytes: int = 64 << 20
    """Proposals beyond this much uncommitted payload are refused with Overloaded."""
    snapshot_chunk_bytes: int = 1 << 20
    """Payload of one InstallSnapshot message."""
    max_snapshot_bytes: int = 1 << 30
    """A follower refuses to take in a larger snapshot."""
    snapshot_entries: int = 100_000
    """Take a snapshot after this many applied entries; 0 never."""
    snapshot_bytes: int = 64 << 20
    """Take a snapshot after this many applied bytes; 0 never."""
    snapshot_interval_ms: int = 3_600_000
    """Take a snapshot when the last is this old and something was applied since; 0 never."""
    trailing_entries: int = 5_000
    """Entries kept in memory behind a snapshot so that a slightly slow follower needs no snapshot."""
    segment_bytes: int = 16 << 20
    """A log file of this size is closed and the next begun."""
    lease_read: bool = False
    """Answer read barriers from the leader's lease: no message round, but safe only if clocks run at nearly
    the same speed. Followers must have it, too: a follower without it votes as soon as it has restarted or
    lost its leader, so its answers extend no lease."""
    max_clock_drift: float = 0.1
    """Share by which the speeds of two clocks may differ; shortens the lease."""
    max_read_lag: int = 0
    """A follower further behind (entries) refuses a read barrier; 0 lets it wait until it has caught up."""
    read_timeout_ms: int = 3_000
    """How long a read barrier may take before ReadUnavailable."""

    def __post_init__(self) -> None:
        if self.heartbeat_interval_ms == 0:
            object.__setattr__(self, "heartbeat_interval_ms", max(1, self.election_timeout_ms // 10))
        if self.election_timeout_ms < 3 * self.heartbeat_interval_ms:
            raise ValueError(
                f"election timeout ({self.election_timeout_ms} ms) must be at least three heartbeats "
                f"({self.heartbeat_interval_ms} ms): one lost heartbeat must not end a term"
            )
        if not 0 <= self.max_clock_drift < 1:
            raise ValueError(f"max_clock_drift must be in [0, 1), not {self.max_clock_drift}")

    @property
    def lease_promise_ms(self) -> int:
        """How long after each message of its leader a follower gives no vote whatever happens; 0: no leases.

        Long enough that a lease survives a lost heartbeat, short so that a leader that died is soon replaced.
        """
        return 3 * self.heartbeat_interval_ms if self.lease_read else 0

    @property
    def refused_snapshot_ms(self) -> int:
        """How long a leader waits before it sends a snapshot again that a peer refused. The peer may take it
        once it runs another version; meanwhile each attempt costs both of them a whole transfer."""
        return 10 * self.election_timeout_ms

    @property
    def retransmit_ms(self) -> int:
        """Silence about entries under way after which a leader sends them again."""
        return self.election_timeout_ms // 2
