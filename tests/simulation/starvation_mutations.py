"""Does the story of a starved machine notice? ``python -m tests.simulation.starvation_mutations`` takes what
keeps healthy masters, or finds hung ones, out of the programs, and counts the seeds that then fail."""

from __future__ import annotations

from typing import Any

from batonmq.broker.replica import controllers
from batonmq.common.running_time import RunningTime
from batonmq.controller import suspicion
from batonmq.controller.suspicion import Suspicion
from batonmq.ha.autoswitch.core import MasterSession
from batonmq.ha.autoswitch.service import HAService
from tests.simulation.mutation import Mutation, Patch, counting
from tests.simulation.starvation import run


def _pauses_count() -> list[Patch]:
    return [(RunningTime, "now_ms", lambda self: self._clock.monotonic_ms())]


def _believe_the_slave() -> list[Patch]:
    def reported(self: Suspicion, broker_name: str, reporter_id: int, master_epoch: int) -> None:
        broker_set = self._machine.broker_sets[broker_name]
        master_id = broker_set.master_id
        if master_id is not None and broker_set.master_epoch == master_epoch:
            self._count_as_down(broker_name, master_id, broker_set.live[master_id].session, reporter_id)

    return [(Suspicion, "reported", reported)]


def _no_answer_counts() -> list[Patch]:
    """The slave's word and a heartbeat that is late are enough."""

    async def ask(*_: Any) -> bool:
        return False

    return [(suspicion, "answers", ask)]


def _slaves_say_nothing() -> list[Patch]:
    return [(HAService, "_listen_for_master", lambda self, now_ms: None)]


def _silent_slaves_stay() -> list[Patch]:
    return [(MasterSession, "unusually_silent", lambda self, now_ms, max_lag_ms: False)]


def _silence_for_ever() -> list[Patch]:
    """A slave that was silent once is not taken back."""
    original = MasterSession.unusually_silent

    def unusually_silent(self: MasterSession, now_ms: int, max_lag_ms: int) -> bool:
        self.was_silent = getattr(self, "was_silent", False) or original(self, now_ms, max_lag_ms)  # type: ignore[attr-defined]
        return bool(self.was_silent)  # type: ignore[attr-defined]

    return [(MasterSession, "unusually_silent", unusually_silent)]


def _close_slow_connections() -> list[Patch]:
    """The search for the leading controller closes a connection that is silent for a second."""
    return [(controllers, "FIND_TIMEOUT_MS", 1_000)]


MUTATIONS: dict[str, Mutation[None]] = {
    "pauses-count": Mutation("a process counts its own pause as the silence of others", _pauses_count),
    "slave-alone": Mutation("the slave's word alone deposes a master", _believe_the_slave),
    "no-answer": Mutation("the leader does not ask the master", _no_answer_counts),
    "slow-closed": Mutation("a broker closes its connection to a slow controller", _close_slow_connections),
    "mute-slaves": Mutation("slaves do not report a silent master", _slaves_say_nothing),
    "silent-stay": Mutation("silent slaves stay in sync until they lag", _silent_slaves_stay),
    "silent-for-ever": Mutation("a slave that was silent is not taken back", _silence_for_ever),
}


def violation(name: str, seed: int) -> str | None:
    """What the story of `seed` says with this guard taken out; None if it does not notice."""
    return MUTATIONS[name].violation(lambda: run(seed))


main = counting(MUTATIONS, violation, seeds=8)

if __name__ == "__main__":
    main()
