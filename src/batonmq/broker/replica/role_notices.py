"""A controller's notice of a new master: a reason to ask the controllers at once, and no more than that.

Notices come in on the broker's own port, where anybody may send them, and RocketMQ's controllers sign none.
So what a notice says is not believed: the controllers of the broker's own configuration are asked. That costs
a true notice one exchange with a controller; a false one changes nothing, and however many come, the
controllers are asked no more than ten times a second.
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
"""Least time between two questions of which the first found nothing new."""
TRIES: Final = 20
"""Questions without any answer after which a notice is forgotten: the controllers repeat theirs, and the role
is looked at from time to time anyway."""


class RoleNotices:
    """`told` of every notice; `run` asks."""

    def __init__(self, known: Callable[[], int], ask: Callable[[int], Awaitable[bool]]) -> None:
        """`known`: the newest master epoch. `ask(epoch)`: ask the controllers for the role and take what they
        say; whether they know that epoch or a later one. It raises `NetError` or `MQError` when none answers.
        """
        self._known = known
        self._ask = ask
        self._epoch = -1
        self._wake = asyncio.Event()

    def notified(self, epoch: int) -> None:
        """Somebody says that there is a master of this epoch."""
        if epoch > self._known():
            self._epoch = max(self._epoch, epoch)
            self._wake.set()

    async def run(self) -> None:
        """Until cancelled."""
        failed = 0
        while True:
            await self._wake.wait()
            self._wake.clear()
            epoch, self._epoch = self._epoch, -1
            if epoch <= self._known():
                continue
            try:
                confirmed = await self._ask(epoch)
            except (NetError, MQError) as error:
                log.debug("told of master epoch %d, but no controller says so: %s", epoch, error)
                failed += 1
                confirmed = False
                if failed < TRIES:
                    self.notified(epoch)
                else:
                    failed = 0
            else:
                failed = 0
                if not confirmed:
                    log.debug("told of master epoch %d, which the controllers do not know", epoch)
            if not confirmed:
                await asyncio.sleep(PAUSE_S)
