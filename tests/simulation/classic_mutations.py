"""Guards of groups without controllers that the simulation has to miss when they are gone."""

from __future__ import annotations

from typing import Any

from batonmq.ha.classic.copies import Held
from batonmq.ha.classic.core import MasterSession
from batonmq.ha.classic.master_link import MasterLink
from batonmq.ha.classic.slave_link import SlaveLink
from tests.simulation.mutation import Mutation, Patch


def _no_comparison() -> list[Patch]:
    return [(SlaveLink, "_compare", lambda self, effect: None)]


def _first_report_counts() -> list[Patch]:
    return [(MasterLink, "ack_offset", property(lambda self: self.session.ack_offset))]


def _every_link_counts() -> list[Patch]:
    return [(MasterLink, "held", property(lambda self: Held(self.ack_offset)))]


def _acknowledges_what_is_not_on_disk() -> list[Patch]:
    def acknowledge(self: Any) -> None:
        if self.following:
            local = self._local
            self._write(self.session.report(local.store.max_offset, local.clock.monotonic_ms()))

    return [(SlaveLink, "acknowledge", acknowledge)]


def _longer_logs_are_taken() -> list[Patch]:
    begin = MasterSession._begin

    def any_end(self: Any, offset: int, log: Any) -> None:
        begin(self, min(offset, log.max_offset), log)

    return [(MasterSession, "_begin", any_end), *_no_comparison()]


MUTATIONS: dict[str, tuple[Mutation[str], tuple[int, ...]]] = {
    "no-comparison": (Mutation("a slave compares nothing", _no_comparison), (13, 29, 7, 45)),
    "first-report": (
        Mutation("a slave's first report is an acknowledgement", _first_report_counts),
        (13, 29),
    ),
    "every-link": (Mutation("each link counts as a replica", _every_link_counts, "two links"), (2, 6)),
    "not-on-disk": (
        Mutation("with SYNC_FLUSH a slave acknowledges before its fsync", _acknowledges_what_is_not_on_disk),
        (4, 5, 6),
    ),
    "longer-log": (
        Mutation("the master takes slaves with a longer log", _longer_logs_are_taken),
        (13, 29, 7, 45),
    ),
}
"""Name -> the guard taken out, with the plot of its stories if any, and seeds of which one at least must
notice."""
