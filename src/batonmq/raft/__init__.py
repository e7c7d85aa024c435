"""Raft: a replicated, durable log and the state machine on top of it.

``core`` decides and does no I/O; ``log``, ``quorum`` and ``messages`` are its nouns; ``storage`` is the disk,
``node`` the asyncio shell, ``transport`` the way to the other peers. Source: D. Ongaro, "Consensus: Bridging
Theory and Practice", chapters 3, 4, 6, 9 and 10. ``docs/raft.md`` explains what is promised and how.
"""
