"""What replicas have in their stores."""

from __future__ import annotations

from batonmq.store.store import MessageStore


def log_bytes(store: MessageStore, begin: int | None = None) -> bytes:
    """The commit log from `begin`, or else from its first byte on."""
    offset, parts = store.min_offset if begin is None else begin, []
    while offset < store.max_offset:
        view = store.read(offset, 1 << 20)
        parts.append(bytes(view))
        offset += len(view)
    return b"".join(parts)


def bodies_of(store: MessageStore, topic: str, begin: int = 0) -> list[bytes]:
    """What a consumer sees of queue 0 from queue offset `begin` on."""
    found: list[bytes] = []
    while True:
        result = store.get(topic, 0, begin + len(found), 32, 1 << 20)
        if not result.count:
            return found
        for view in result.buffers:
            while len(view):
                size = int.from_bytes(view[:4], "big")
                body = int.from_bytes(view[84:88], "big")  # V1 record, IPv4 hosts
                found.append(bytes(view[88 : 88 + body]))
                view = view[size:]
