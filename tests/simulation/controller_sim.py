"""One seeded story of a group of controllers: clients, faults, wrong clocks, and what must hold.

Clients ask (`controller_clients.py`), things break and operators change the group (`controller_faults.py`),
in the end everything is repaired. What must hold: the clients' history is linearizable, whether reads wait
for ReadIndex, for a lease or for a follower (`linearizability.py`, `controller_model.py`); all controllers
decide alike, and a term has one leader (`controller_truth.py`); unsafe reads show a state that there was; the
repaired group answers again, and its members are equal.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.simulation.controller_clients import BROKER_SETS, ID_SETS, PROBED, Brokers, Client, History
from tests.simulation.controller_faults import Faults
from tests.simulation.controller_group import ControllerGroup, DriftingLoop, Shape, endpoint
from tests.simulation.controller_model import ControllerModel, Ids, SetState
from tests.simulation.linearizability import NotLinearizable, check
from tests.simulation.story import Violation, play

CLIENTS, READERS = 6, 2
ANY = Shape()
START_UP_S, HEAL_S = 20.0, 30.0


@dataclass
class Story:
    """What happened."""

    seed: int
    events: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    trace: int = 0


class Scenario:
    def __init__(self, group: ControllerGroup, story: Story) -> None:
        self.group, self.story = group, story
        self.history = History(group.loop.stamp)
        network = group.loop.network
        self._hosts = [network.start(f"client{i}", f"10.0.3.{i + 2}") for i in range(CLIENTS)]
        self._addresses = [endpoint(node) for node in group.controllers]

    async def play(self) -> None:
        """Raises the first `Violation`."""
        watching = asyncio.ensure_future(self._watch())
        playing = asyncio.ensure_future(self._play())
        await asyncio.wait([watching, playing], return_when=asyncio.FIRST_COMPLETED)
        await (watching if watching.done() else playing)

    async def _play(self) -> None:
        group, host = self.group, self.group.client_host
        for node in group.controllers:
            group.start(node)
        await self._until(lambda: any(c.service.leading for c in group.controllers), START_UP_S, "a leader")
        leader = group.leader()
        assert leader is not None
        brokers = Brokers(self._addresses)
        initial = await group.on(host, brokers.register(endpoint(leader)))
        group.on(host, brokers.beat(0.5))
        clients = [self._client(i) for i in range(CLIENTS)]
        work = [group.on(each, client.work()) for each, client in zip(self._hosts, clients, strict=True)]
        prober = Client("prober", self._addresses, self.history, self._rng(), timeout_ms=1_000)
        await Faults(group, prober).run()
        group.heal()
        await self._until(group.settled, HEAL_S, "equal controllers after healing")
        for client in clients:
            client.asking = False
        await asyncio.gather(*work)
        for name in (*BROKER_SETS, PROBED):
            await self._read_at_last(prober, name)
        await self._until(group.settled, HEAL_S, "equal controllers in the end")
        self._judge(initial)

    def _rng(self) -> random.Random:
        return random.Random(self.group.random.getrandbits(64))

    def _client(self, number: int) -> Client:
        only_reads = number < READERS
        timeout_ms = 200 if only_reads else self.group.random.choice((300, 1_000, 2_500))
        name = f"client{number}"
        return Client(
            name, self._addresses, self.history, self._rng(), timeout_ms=timeout_ms, only_reads=only_reads
        )

    async def _watch(self) -> None:
        """Never ends."""
        while True:
            for node in self.group.controllers:
                if node.up:
                    self.group.truth.look(node.service)
            await asyncio.sleep(0.02)

    async def _until(self, condition: Callable[[], object], seconds: float, what: str) -> None:
        if not await self.group.within(seconds, condition):
            raise Violation(f"not within {seconds:g} s of virtual time: {what}")

    async def _read_at_last(self, client: Client, name: str) -> None:
        """Whatever happened, in the end each set is read: nothing that was acknowledged may be missing."""
        end = self.group.loop.now + HEAL_S
        while self.group.loop.now < end:
            for address in self._addresses:
                if await self.group.on(self.group.client_host, client.read(name, address)) is not None:
                    return
            await asyncio.sleep(0.1)
        raise Violation(f"{name} cannot be read within {HEAL_S:g} s of virtual time after healing")

    def _judge(self, initial: dict[str, SetState]) -> None:
        group, truth, history = self.group, self.group.truth, self.history
        leader = group.leader()
        assert leader is not None
        for node in group.members(leader):
            if node.service.machine.snapshot() != leader.service.machine.snapshot():
                raise Violation(f"{node.name} ends with another state than {leader.name}")
        for name, state, when in history.unsafe:
            since = truth.states.get(name, {}).get(state)
            if since is None or since > when:
                raise Violation(f"an unsafe read of {name} showed {state}, which there never was by then")
        first_epochs = {name: state.master_epoch for name, state in initial.items()}
        operations = history.operations + truth.unasked(history.announced, first_epochs)
        model = ControllerModel({**initial, **{Ids(name): () for name in ID_SETS}})
        try:
            steps = check(model, operations)
        except NotLinearizable as refused:
            raise Violation(str(refused)) from refused
        self.story.counts = Counter(
            operations=len(operations),
            terms=len(truth.leaders),
            entries=len(truth.entries),
            snapshots_restored=truth.restores,
            crashes=sum(node.lives - 1 for node in group.controllers),
            steps=steps,
            **{f"{kind} answered": count for kind, count in history.answers.items()},
        )


def run(seed: int, shape: Shape = ANY) -> Story:
    """Run the story of `seed`; raises `Violation` with the events before it."""
    loop, story = DriftingLoop(seed), Story(seed)
    group = ControllerGroup(loop, shape)
    story.events = group.events
    with group.in_force():
        story.trace = play(loop, seed, story.events, Scenario(group, story).play)
    return story
