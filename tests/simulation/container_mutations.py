"""Guards of containers that the simulation has to miss when they are gone.

``python -m tests.simulation.container_mutations`` counts the seeds that notice.
"""

from __future__ import annotations

import asyncio
from typing import Any

from batonmq.broker.escape.bridge import EscapeBridge
from batonmq.broker.messages.appender import PutStatus
from batonmq.broker.service import BrokerService
from batonmq.container.container import Container
from batonmq.container.core import BrokerState, BrokerTable
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError
from tests.simulation.acting_mutations import MUTATIONS as ACTING
from tests.simulation.containers import run
from tests.simulation.mutation import Mutation, Patch, counting


def _closes_the_shared_client() -> list[Patch]:
    release = BrokerService._release

    async def release_all(self: Any) -> None:
        self._own_client = True
        await release(self)

    return [(BrokerService, "_release", release_all)]


def _removes_while_it_starts() -> list[Patch]:
    async def remove(self: Any, identity: Any) -> None:
        entry = self.table.get(identity)
        if entry is None:
            raise MQError(ResponseCode.BROKER_NOT_EXIST, "Broker not exist")
        entry.state = BrokerState.STOPPING
        await asyncio.shield(self._run(self._stop(entry)))

    return [(Container, "remove", remove)]


def _stays_in_the_table() -> list[Patch]:
    return [(BrokerTable, "leave", lambda self, entry: None)]


def _neighbour_that_is_gone() -> list[Patch]:
    """Messages go to a broker of this process that was removed, and count as stored."""
    known: dict[int, Any] = {}
    local = EscapeBridge._neighbour

    def neighbour(self: Any, topic: str | None) -> Any:
        found = local(self, topic)
        if found is not None:
            known[id(self)] = found
        return known.get(id(self))

    async def put_local(self: Any, other: Any, message: Any) -> PutStatus:
        if not other.role.is_master or other.role.stopping:
            return PutStatus.PUT_OK
        return await _put_local(self, other, message)

    _put_local = EscapeBridge._put_local
    return [(EscapeBridge, "_neighbour", neighbour), (EscapeBridge, "_put_local", put_local)]


MUTATIONS: dict[str, tuple[Mutation[None], tuple[int, ...]]] = {
    "shared-client": (
        Mutation("a broker that is removed closes the client of its process", _closes_the_shared_client),
        (3, 7),
    ),
    "removed-early": (Mutation("a broker is removed while it starts", _removes_while_it_starts), (11, 12)),
    "left-in-table": (
        Mutation("a broker that was removed keeps its ports and directories", _stays_in_the_table),
        (4, 6),
    ),
    "neighbour-gone": (
        Mutation("what a removed neighbour was given counts as stored", _neighbour_that_is_gone),
        (110, 117, 131),
    ),
    "own-log": (ACTING["own-log"][0], (7,)),
}
"""Name -> the guard taken out, and seeds of which one at least must notice."""


def _violation(name: str, seed: int) -> str | None:
    return MUTATIONS[name][0].violation(lambda: run(seed))


main = counting({name: mutation for name, (mutation, _) in MUTATIONS.items()}, _violation, seeds=24)

if __name__ == "__main__":
    main()
