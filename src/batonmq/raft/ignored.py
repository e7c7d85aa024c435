"""Messages that a role has no handler for (`RaftCore.handlers`), and why it may ignore them."""

from __future__ import annotations

from batonmq.raft.messages import (
    Append,
    AppendReply,
    Heartbeat,
    HeartbeatReply,
    InstallReply,
    InstallSnapshot,
    NotMember,
    PreVoteReply,
    ReadReply,
    TimeoutNow,
    VoteReply,
)
from batonmq.raft.state import Role

_NOT_LEADING = "only a leader counts answers; this one is late"
_NOT_ASKING = "the election it answers is over"

IGNORED: dict[tuple[Role, type], str] = {
    (Role.FOLLOWER, PreVoteReply): _NOT_ASKING,
    (Role.FOLLOWER, VoteReply): _NOT_ASKING,
    (Role.PRE_CANDIDATE, VoteReply): _NOT_ASKING,
    (Role.CANDIDATE, PreVoteReply): _NOT_ASKING,
    (Role.LEADER, PreVoteReply): _NOT_ASKING,
    (Role.LEADER, VoteReply): _NOT_ASKING,
    (Role.FOLLOWER, AppendReply): _NOT_LEADING,
    (Role.PRE_CANDIDATE, AppendReply): _NOT_LEADING,
    (Role.CANDIDATE, AppendReply): _NOT_LEADING,
    (Role.FOLLOWER, HeartbeatReply): _NOT_LEADING,
    (Role.PRE_CANDIDATE, HeartbeatReply): _NOT_LEADING,
    (Role.CANDIDATE, HeartbeatReply): _NOT_LEADING,
    (Role.FOLLOWER, InstallReply): _NOT_LEADING,
    (Role.PRE_CANDIDATE, InstallReply): _NOT_LEADING,
    (Role.CANDIDATE, InstallReply): _NOT_LEADING,
    (Role.PRE_CANDIDATE, ReadReply): "its reads were refused when it gave up on the leader",
    (Role.CANDIDATE, ReadReply): "its reads were refused when it gave up on the leader",
    (Role.LEADER, ReadReply): "its reads were refused when it gave up on the leader",
    (Role.LEADER, Append): "a term has one leader, so this cannot come from a correct peer",
    (Role.LEADER, Heartbeat): "a term has one leader, so this cannot come from a correct peer",
    (Role.LEADER, InstallSnapshot): "a term has one leader, so this cannot come from a correct peer",
    (Role.LEADER, TimeoutNow): "it already leads",
    (Role.LEADER, NotMember): "it was elected meanwhile, so it is one",
}
