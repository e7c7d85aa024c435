"""The stories of `tests/integration/acting` on virtual time, without other faults than their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from batonmq.broker.service import BrokerService
from batonmq.client.consumer import Consumer
from batonmq.client.producer import Producer
from batonmq.common.config_loader import update
from batonmq.net import RemotingClient
from tests.integration.acting.group import CONSUMING, Asks
from tests.integration.acting.stories import STORIES
from tests.simulation.acting import ActingCluster
from tests.simulation.cluster import BROKER_PORT, NAMESRV_PORT, Node, SimClock
from tests.simulation.loop import SimLoop
from tests.simulation.story import play, scratch


class _Cluster(ActingCluster):
    """Right clocks, and the settings of the story."""

    def __init__(self, loop: SimLoop, root: Path, sets: str, settings: dict[str, Any]) -> None:
        super().__init__(loop, root, sets)
        self.settings = {"messageDelayLevel": "2s 4s 6s", "timerRollWindowSlot": 172_800, **settings}

    def _clock(self) -> SimClock:
        return SimClock(self.loop)

    def _make_broker(self, node: Node) -> BrokerService:
        service = super()._make_broker(node)
        settings = service._settings
        settings.broker = update(settings.broker, {key: str(value) for key, value in self.settings.items()})
        return service


class SimPairs(Asks):
    """See `Asks`."""

    def __init__(self, cluster: ActingCluster) -> None:
        self.cluster = cluster
        self.sets = cluster.sets
        self.namesrv_address = f"{cluster.namesrv.address}:{NAMESRV_PORT}"

    def _node(self, name: str, broker_id: int) -> Node:
        return self.cluster.pair(name)[broker_id]

    def address(self, name: str, broker_id: int) -> str:
        return f"{self._node(name, broker_id).address}:{BROKER_PORT}"

    def acts(self, name: str, broker_id: int = 1) -> bool:
        return self.cluster.acting(self._node(name, broker_id))

    def kill(self, name: str, broker_id: int) -> None:
        self.cluster.crash(self._node(name, broker_id))

    async def restart(self, name: str, broker_id: int) -> None:
        self.cluster.start(self._node(name, broker_id))

    def log(self, name: str, broker_id: int) -> str:
        return ""

    def now_s(self) -> float:
        return SimClock(self.cluster.loop).now_ms() / 1_000

    def producer(self) -> Producer:
        return self.cluster.producer()

    def consumer(self, group: str, *, orderly: bool) -> Consumer:
        cluster = self.cluster
        return Consumer(
            group,
            self.namesrv_address,
            orderly=orderly,
            client_ip=cluster.client_host.address,
            clock=SimClock(cluster.loop),
            rng=cluster._rng(),
            **CONSUMING,
        )


def run_story(name: str, seed: int = 0) -> None:
    """Run a story of `STORIES`; raises AssertionError."""
    story, sets, settings = STORIES[name]
    loop = SimLoop(seed)
    with scratch("acting", seed) as root:
        cluster = _Cluster(loop, root, sets, dict(settings))

        async def clients() -> None:
            pairs = SimPairs(cluster)
            pairs.client = RemotingClient()
            await pairs.ready()
            await story(pairs)
            await pairs.client.close()

        async def go() -> None:
            cluster.start_all()
            await cluster.on(cluster.client_host, clients())

        with cluster.world.in_force():
            play(loop, seed, cluster.events, go)
