"""Finds a hung or cut-off master sooner than its heartbeats' timeout does.

Three witnesses must agree before the leading controller counts a master as silent:

- a slave in sync has received nothing from it over the replication link for unusually long
  (`ha/silence.py`), and says so with its heartbeats;
- the master has sent no heartbeat for half of its timeout;
- the master does not answer the leader, which asks it over another connection, nor has it for so long.

A new leader gives masters some time to reach it first (`liveness.grace_ms`).

All times are `RunningTime`: a leader that does not run suspects nobody meanwhile. Whether a master is deposed
rightly is a matter of availability alone: an election takes a member of the SyncStateSet in any case.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from batonmq.controller.heartbeats import LiveBroker
from batonmq.controller.liveness import grace_ms, suspect
from batonmq.controller.machine import ControllerMachine
from batonmq.controller.probe import answers
from batonmq.controller.replicas import BrokerSet
from batonmq.net.client import RemotingClient

log = logging.getLogger(__name__)

SILENT: Final = "silent"
"""The cause, in events.jsonl."""
PROBE_PART: Final = 6
"""The master has this part of its timeout to answer a probe: 0.5 s of 3 s."""
LOOK_S: Final = 0.05
"""Time between looks at whether a probe's time is over."""


class Suspicion:
    """Belongs to the leading controller: `stop` when it no longer leads. At most one probe a broker set."""

    def __init__(
        self,
        machine: ControllerMachine,
        client: RemotingClient,
        now_ms: Callable[[], int],
        led_ms: Callable[[], int],
        count_as_down: Callable[[str, int, int, int], None],
    ) -> None:
        """`now_ms`: the leader's time. `led_ms`: for how long it has led. `count_as_down` is called with the
        broker name, broker id and session of a master that is silent, and the id of who reported it."""
        self._machine = machine
        self._client = client
        self._now_ms = now_ms
        self._led_ms = led_ms
        self._count_as_down = count_as_down
        self._probes: dict[str, asyncio.Task[None]] = {}
        self._signs: dict[str, tuple[int, int]] = {}
        """Broker name -> master epoch and time of the master's last sign of life that is not in the log."""

    @property
    def pending(self) -> int:
        """Masters that are asked right now."""
        return len(self._probes)

    def reported(self, broker_name: str, reporter_id: int, master_epoch: int) -> None:
        """A replica says that the master of this epoch is silent."""
        broker_set = self._machine.broker_sets.get(broker_name)
        if broker_set is None or broker_name in self._probes:
            return
        master_id = suspect(broker_set, reporter_id, master_epoch)
        if master_id is None:
            return
        now_ms, last = self._now_ms(), broker_set.live[master_id]
        if now_ms - last.updated_ms < last.timeout_ms // PROBE_PART:
            return  # it lives, and the replica will say so again if the link stays silent
        address = broker_set.address(master_id)
        assert address is not None
        probe = self._probe(broker_set, reporter_id, master_id, address, last, now_ms)
        task = asyncio.get_running_loop().create_task(probe)
        self._probes[broker_name] = task
        task.add_done_callback(lambda done: self._ended(broker_name, done))

    def heartbeat_came(self, broker_name: str, broker_id: int, *, forwarded: bool) -> None:
        """A broker lives. Its heartbeat is not in the log yet; one that another controller forwards may never
        get there, because a direct one counts for longer."""
        if forwarded or broker_name in self._probes:
            broker_set = self._machine.broker_sets.get(broker_name)
            if broker_set is not None and broker_set.master_id == broker_id:
                self._alive(broker_name, broker_set.master_epoch)

    async def stop(self) -> None:
        """Give up all probes."""
        tasks = list(self._probes.values())
        self._probes.clear()
        self._signs.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _alive(self, broker_name: str, master_epoch: int) -> None:
        """The master has given a sign of life."""
        known = self._machine.broker_sets
        if len(self._signs) > len(known):
            self._signs = {name: answer for name, answer in self._signs.items() if name in known}
        self._signs[broker_name] = master_epoch, self._now_ms()

    def _ended(self, broker_name: str, task: asyncio.Task[None]) -> None:
        if self._probes.get(broker_name) is task:
            del self._probes[broker_name]
        if not task.cancelled() and task.exception() is not None:
            log.error("the probe of the master of %s failed", broker_name, exc_info=task.exception())

    async def _probe(
        self,
        broker_set: BrokerSet,
        reporter_id: int,
        master_id: int,
        address: str,
        last: LiveBroker,
        asked_ms: int,
    ) -> None:
        """Ask the master at `address`, whose `last` heartbeat is old, and wait."""
        broker_name, master_epoch = broker_set.broker_name, broker_set.master_epoch
        answered_epoch, before_ms = self._signs.get(broker_name, (0, None))
        if answered_epoch != master_epoch:
            before_ms = None
        asking = asyncio.get_running_loop().create_task(
            answers(self._client, broker_set, master_id, last.timeout_ms)
        )
        try:
            while True:
                await asyncio.sleep(LOOK_S)
                if asking.done() and asking.result():
                    self._alive(broker_name, master_epoch)
                    log.log(
                        logging.DEBUG if before_ms is not None else logging.INFO,
                        "replica %d of %s receives nothing from its master %d, which answers",
                        reporter_id,
                        broker_name,
                        master_id,
                    )
                    return
                epoch, alive_ms = self._signs.get(broker_name, (0, 0))
                if (
                    (epoch == master_epoch and alive_ms >= asked_ms)
                    or self._machine.broker_sets.get(broker_name) is not broker_set
                    or suspect(broker_set, reporter_id, master_epoch) != master_id
                    or broker_set.live[master_id] is not last
                ):
                    return  # a heartbeat has come, or another master
                now_ms = self._now_ms()
                silent_ms = now_ms - max(last.updated_ms, before_ms or 0)
                if (
                    now_ms - asked_ms >= last.timeout_ms // PROBE_PART
                    and silent_ms >= last.timeout_ms // 2
                    and self._led_ms() >= grace_ms(last.timeout_ms)
                ):
                    break
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
        # If the path was cut, TCP would retry on this connection only seldom once it works again.
        self._client.drop(address)
        log.warning(
            "master %d of %s is silent: its last sign of life came %d ms ago, and replica %d receives "
            "nothing from it",
            master_id,
            broker_name,
            silent_ms,
            reporter_id,
        )
        self._count_as_down(broker_name, master_id, last.session, reporter_id)
