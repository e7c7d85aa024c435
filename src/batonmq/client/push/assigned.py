"""One queue that is assigned to this client: what the consumer knows of it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from batonmq.client.process_queue import ProcessQueue
from batonmq.protocol.bodies.common import MessageQueue
from batonmq.protocol.codes import MASTER_ID
from batonmq.protocol.message.record import MessageExt


@dataclass(slots=True, eq=False)
class Assigned:
    """A queue that is ours: its buffer, how far its puller is, its lock."""

    queue: MessageQueue
    buffer: ProcessQueue = field(default_factory=lambda: ProcessQueue(-1))
    dropped: bool = False
    locked_until: float = 0.0
    locked_at: str = ""
    """Name of the broker that gave the lock: a logical queue may have moved since."""
    unlocked: bool = False
    """The lock was given back, and must not be renewed."""
    last_pull_ms: int = 0
    last_consume_ms: int = 0
    replica_id: int = MASTER_ID
    provisional: bool = False
    """The place where it was begun is a slave's word: its master may know a later committed offset."""
    floor: int = 0
    """What the master had as committed when it came back: no lower offset is committed."""
    moved_back_since: float | None = None
    unreadable: int = 0
    """Answers in a row with records that could not be decoded."""
    room: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when messages are done: more may be pulled."""
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    orderly: asyncio.Queue[list[MessageExt]] = field(default_factory=asyncio.Queue)
    """What its own worker is to handle, when messages are handled in order."""
    working: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by that worker during a call, and by whoever lets go of the queue."""
