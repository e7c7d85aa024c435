"""Tracks brokers that do not serve this consumer, and logs each of them now and then."""

from __future__ import annotations

import asyncio
import contextlib
import logging

from batonmq.client.push.tasks import log
from batonmq.net.errors import NetError
from batonmq.protocol.errors import MQError
from batonmq.routing.session import Session

LOG_INTERVAL_S = 10.0
"""One line for each broker and kind of failure in this time, however many queues it concerns."""
QUICK_S = 10.0
"""So long a lost master is looked for at full pace: most switches are over by then. See `RouteWatch`."""

LASTING_PAUSE_S = 1.0
"""Before a broker that is away for longer than that is tried again."""


class Outages:
    """What fails at which broker. Times are the event loop's, in seconds."""

    def __init__(self) -> None:
        self._failing: dict[str, tuple[float, float]] = {}
        """Broker → its first and its last failure since it last served."""
        self._logged: dict[tuple[str, str], tuple[float, int]] = {}
        """A line and its kind of failure → when it was last written, and how many were left out since."""

    def failed(self, broker: str, now: float) -> None:
        """A pull from this broker failed, or it has no address."""
        first, _ = self._failing.get(broker, (now, now))
        self._failing[broker] = first, now

    def worked(self, broker: str, now: float) -> None:
        """This broker serves."""
        if self._failing and self.lasts(broker):
            first, _ = self._failing[broker]
            log.info("broker %s serves again after %.0f s", broker, now - first)
        self._failing.pop(broker, None)

    def lasts(self, broker: str) -> bool:
        """Whether it has failed for longer than a switch takes."""
        first, last = self._failing.get(broker, (0.0, 0.0))
        return last - first > QUICK_S

    def tell(self, broker: str, what: str, error: Exception, now: float, level: int) -> None:
        """Log ``what: error`` unless such a line was written lately. One that repeats is a warning: by then
        the broker is away for longer than a switch takes."""
        key = what, f"{type(error).__name__} {getattr(error, 'code', '')}"
        last = self._logged.get(key)
        if last is not None and now - last[0] < LOG_INTERVAL_S:
            self._logged[key] = last[0], last[1] + 1
            return
        self._logged[key] = now, 0
        more = f" ({last[1]} more since the last such line)" if last is not None and last[1] else ""
        if last is not None and self._failing.get(broker, (now, now))[0] <= last[0]:
            level = max(level, logging.WARNING)
        log.log(level, "%s: %s%s", what, error, more)


async def pause(
    outages: Outages,
    session: Session,
    topic: str,
    broker: str,
    what: str,
    error: NetError | MQError,
    pause_s: float,
) -> None:
    """After a failure, which is noted and logged: wait, and ask for the route. `RouteWatch` asks instead once
    the broker is away for long: it does so once a second, and not for each queue."""
    now = asyncio.get_running_loop().time()
    outages.failed(broker, now)
    level = logging.WARNING if isinstance(error, MQError) else logging.INFO
    outages.tell(broker, what, error, now, level)
    if outages.lasts(broker):
        await asyncio.sleep(LASTING_PAUSE_S)
        return
    await asyncio.sleep(pause_s)
    with contextlib.suppress(NetError, MQError):  # the old route is tried again
        await session.refresh(topic)
