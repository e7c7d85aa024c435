"""A controller's notice of a new master only makes the broker ask its controllers at once.

Notices arrive on the broker's port, where any client may send them, and RocketMQ's controllers do not sign
them. So the broker does not trust their content and asks the controllers of its configuration. A true notice
costs one exchange with a controller. A false one changes nothing, and the broker asks at most ten times a
second.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from batonmq.net.errors import NetError
from batonmq.protocol.errors import MQError

log = logging.getLogger(__name__)

PAUSE_S: Final = 0.1
"""Least time between two queries if the first one found nothing new."""
TRIES: Final = 20
"""Unanswered queries after which a notice is dropped: the controllers repeat theirs, and the broker refreshes
its role periodically anyway."""


class RoleNotices:
    """`notified` records every notice; `run` queries the controllers."""

    def __init__(self, newest_epoch: Callable[[], int], query: Callable[[int], Awaitable[bool]]) -> None:
        """`newest_epoch`: the newest known master epoch. `query(epoch)`: ask the controllers for the role and
        apply their answers; returns whether one of them knows `epoch` or a later one. Raises `NetError` or
        `MQError` if no controller answers."""
        self._newest_epoch = newest_epoch
        self._query = query
        self._epoch = -1
        self._wake = asyncio.Event()

    def notified(self, epoch: int) -> None:
        """A notice names a master of this epoch."""
        if epoch > self._newest_epoch():
            self._epoch = max(self._epoch, epoch)
            self._wake.set()

    async def run(self) -> None:
        """Until cancelled."""
        failed = 0
        while True:
            await self._wake.wait()
            self._wake.clear()
            epoch, self._epoch = self._epoch, -1
            if epoch <= self._newest_epoch():
                continue
            try:
                confirmed = await self._query(epoch)
            except (NetError, MQError) as error:
                log.debug("notice of master epoch %d, but no controller answers: %s", epoch, error)
                failed += 1
                confirmed = False
                if failed < TRIES:
                    self.notified(epoch)
                else:
                    failed = 0
            else:
                failed = 0
                if not confirmed:
                    log.debug("notice of master epoch %d, which the controllers do not know", epoch)
            if not confirmed:
                await asyncio.sleep(PAUSE_S)
