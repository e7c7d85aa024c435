"""Python's garbage collector, set for programs that serve for a long time."""

from __future__ import annotations

import gc


def settle() -> None:
    """Make garbage collection rare. Called once a program serves, and after a change of what it serves.

    The objects that exist then stay, and reference counts free nearly all later ones. A search for cycles
    after every 700 objects, Python's default, costs a few percent of a send.
    """
    gc.unfreeze()  # what an earlier call froze may have become garbage
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
