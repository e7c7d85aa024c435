"""The report of cut links: what could be served, what was, and how long sends stood still."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.simulation.availability import Case, Measured, Outcome, links, outcome

IMAGE = "availability.png"


@dataclass(frozen=True)
class Result:
    """One case, as measured."""

    cut: Case
    measured: Measured
    replicas: int = 2

    @property
    def outcome(self) -> Outcome:
        return outcome(self.cut, self.replicas)

    @property
    def expected(self) -> bool:
        return bool(self.outcome.served)

    @property
    def agrees(self) -> bool:
        return self.expected == self.measured.served

    @property
    def late(self) -> bool:
        """Served, but not within the time that the rules give."""
        return self.agrees and self.expected and (self.measured.gap_s or 0.0) > self.outcome.within_s


TABLE_HEAD = """| links cut | cases | could be served | were served | differ | gap p50, s | p99 | longest |
| --- | --- | --- | --- | --- | --- | --- | --- |
"""


def table(results: Sequence[Result]) -> str:
    """A row for each number of cut links."""
    rows = []
    for size in range(max((len(each.cut) for each in results), default=0) + 1):
        those = [each for each in results if len(each.cut) == size]
        if not those:
            continue
        gaps = sorted(gap for each in those if (gap := each.measured.gap_s) and each.measured.served)
        rows.append(
            f"| {size} | {len(those)} | {sum(each.expected for each in those)} "
            f"| {sum(each.measured.served for each in those)} | {sum(not each.agrees for each in those)} "
            f"| {_of(gaps, 0.5)} | {_of(gaps, 0.99)} | {_of(gaps, 1.0)} |"
        )
    return TABLE_HEAD + "\n".join(rows) + "\n"


STEPS_HEAD = """| decided by | decision | cases | gap p50, s | longest | bound |
| --- | --- | --- | --- | --- | --- |
"""


def steps(results: Sequence[Result]) -> str:
    """A row for each way in which sends are served again."""
    ways: dict[tuple[str, str], list[Result]] = {}
    for each in results:
        if each.expected and each.measured.served:
            ways.setdefault((each.outcome.leader, each.outcome.decision), []).append(each)
    rows = []
    for (leader, decision), those in sorted(ways.items(), key=lambda way: way[1][0].outcome.within_s):
        gaps = sorted(each.measured.gap_s or 0.0 for each in those)
        rows.append(
            f"| {leader} | {decision} | {len(those)} | {_of(gaps, 0.5)} | {_of(gaps, 1.0)} "
            f"| {those[0].outcome.within_s:.1f} |"
        )
    return STEPS_HEAD + "\n".join(rows) + "\n"


def page(results: Sequence[Result]) -> str:
    """The report in Markdown. `results` must have some with two replicas."""
    two = [each for each in results if each.replicas == 2]
    three = [each for each in results if each.replicas == 3]
    wrong = [each for each in results if not each.agrees or each.late]
    differing = "\n".join(
        f"- {each.replicas} replicas, {_wrong(each)}: " + ", ".join(f"{a}–{b}" for a, b in sorted(each.cut))
        for each in wrong
    )
    agreement = f"differ in {len(wrong):,} cases"
    if not wrong:
        agreement = f"agree in all {len(results):,} cases, and no gap exceeds the bound that the rules give"
    head = f"""# Availability under cut links

Which cut links stop sends? Rules say for each set of cut links (a *case*) whether sends could be served
without risk, and within what time (`outcome` in `tests/simulation/availability.py`). The simulation cuts the
links of a running cluster and observes it for 25 s of virtual time.

Rules and simulation {agreement}.

## Time until sends are served

A *gap* is the longest time without an acknowledged send after the cut, in cases that are served. How long it
is depends on what has to be decided, and by whom (two replicas and three):

{steps(results)}
The bound comes from the timeouts of the shipped configuration (`LEADER_S`, `DECISION_S`, `FOUND_S` and
`RETURN_S` in `tests/simulation/availability.py`):

- **The leader.** A follower is elected after one to two election timeouts of 1 s. The leadership moves to a
  controller that reaches more of the others when one of them has not answered the leader for 3 s.
- **The decision.** A slave leaves the SyncStateSet when it lags 2 s. A master is replaced 1.5 to 1.8 s
  after its last sign of life if a slave reports it ([suspicion](../decisions/suspicion.md)), otherwise 3 s
  after its last heartbeat. A new leader that has received no heartbeats of the broker set waits for 3 s, too.
  If all replicas counted as down when the leadership moved, these 3 s begin with the first heartbeat that
  reaches the new leader, up to 1 s later.
- **The way to the leader.** Without a leader, a master proposes its SyncStateSet again after up to 1 s. The
  proposal then goes to the leader and, 0.3 s later each, through the other controllers. It is refused first
  if the controllers count a member as down: 0.5 s, and again up to 1 s.

## Two replicas

The cluster has three controllers, two replicas in sync that acknowledge together, one client, and a name
server that everybody reaches. {len(links(2))} links may be cut: between client and brokers, between the
brokers, between brokers and controllers, and among the controllers. These are {len(two):,} of the
{2 ** len(links(2)):,} cases.

![cases by number of cut links, and the gaps](../images/{IMAGE})

"""
    more = f"""
## Three replicas

{len(links(3))} links may be cut with three replicas that acknowledge together. These are {len(three):,}
random ones of the {2 ** len(links(3)):,} cases. Left out are cases in which the outcome depends on which of
two slaves is elected: both may be, and the client reaches one of them.

{table(three)}"""
    where = f"\n## Where they differ\n\n{differing}\n" if wrong else ""
    tail = f"""{where}
## What the rules leave out

- **Brokers do not choose the leader.** The leadership moves to a controller that reaches more controllers
  ([raft.md](../raft.md)). Which brokers it reaches does not matter: each controller passes requests on.
- **What clients reach decides nothing.** A master that its clients do not reach stays master.

`python -m tests.simulation availability --page` writes this page. `make test` runs a sample of the cases, and
some with links that are cut in one direction only.
"""
    return head + table(two) + (more if three else "") + tail


def _wrong(each: Result) -> str:
    if each.late:
        return f"served only after {each.measured.gap_s:.1f} s"
    return "not served" if each.expected else "served against the rules"


def _of(gaps: Sequence[float], share: float) -> str:
    return f"{gaps[min(len(gaps) - 1, int(share * len(gaps)))]:.1f}" if gaps else "–"


def plot(results: Sequence[Result], path: Path) -> None:
    """Cases of two replicas by number of cut links, and the distribution of their gaps."""
    results = [each for each in results if each.replicas == 2]
    import matplotlib as mpl

    from batonmq.common.plots import BLUE, GREY, RED

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    sizes = range(len(links(2)) + 1)

    def count(wanted: bool, agrees: bool) -> list[int]:
        return [
            sum(len(r.cut) == size and r.expected == wanted and r.agrees == agrees for r in results)
            for size in sizes
        ]

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 3.6), constrained_layout=True)
    bottom = [0] * len(sizes)
    for label, colour, values in (
        ("served", BLUE, count(True, True)),
        ("cannot be served", GREY, count(False, True)),
        (
            "theory and simulation differ",
            RED,
            [a + b for a, b in zip(count(True, False), count(False, False), strict=True)],
        ),
    ):
        left.bar(sizes, values, bottom=bottom, label=label, color=colour)
        bottom = [a + b for a, b in zip(bottom, values, strict=True)]
    left.set_xlabel("links cut")
    left.set_ylabel("cases")
    left.set_ylim(top=1.35 * max(bottom))
    left.legend(frameon=False, loc="upper left")
    gaps = sorted(gap for r in results if r.measured.served and (gap := r.measured.gap_s) is not None)
    right.plot(gaps, [100 * (i + 1) / len(gaps) for i in range(len(gaps))], color=BLUE)
    right.set_xlabel("longest time without an acknowledged send, s")
    right.set_ylabel("% of the served cases")
    right.set_xlim(left=0)
    right.grid(alpha=0.3)
    figure.savefig(path, dpi=110)
    plt.close(figure)
