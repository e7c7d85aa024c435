"""Moves the broker sets of a running cluster from one group of controllers to another, ours or RocketMQ's.

Two things must never happen: that each group of controllers has a master of the same set, and that the new
ones elect a replica that the old ones had dropped from the SyncStateSet. So, set by set:

1. **Copy.** The new controllers get the replicas with their ids, a master epoch above all that the set has
   seen, and a SyncStateSet of the present master alone: from then on they can elect nobody else. No request
   does that, but each election raises the epoch by one. The elections are held before the brokers' real
   addresses are registered, so that no broker is notified of them.
2. **Slaves first.** Each gets the new `controllerAddr`. Once the old controllers count the slaves as dead,
   they too can elect nobody but the master. Replication continues.
3. **The master.** The new controllers name it master in a new epoch, and it takes its slaves back into the
   SyncStateSet. If it is no longer the master that was copied, the move stops before this step.

If the master dies between 2 and 3, its set has no master until it is back: both groups of controllers wait
for it. No acknowledged message is lost.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from batonmq.admin.operations import replication
from batonmq.admin.session import Admin, AdminError
from batonmq.net.client import RemotingClient
from batonmq.net.connection import Response
from batonmq.protocol.bodies.controller import ReplicasInfo, SyncStateSetBody
from batonmq.protocol.headers import controller as wire
from batonmq.protocol.headers.broker import admin as broker_wire
from batonmq.protocol.headers.namesrv import BrokerHeartbeat
from batonmq.protocol.json import encode
from batonmq.protocol.registry import Header

NOWHERE: Final = "0.0.0.0:1"
"""Address of all replicas while elections are held, so that no broker is notified."""
EPOCH_MARGIN: Final = 8
"""How far the epoch is raised above the known one: the old controllers may hold elections meanwhile."""
BEAT_S: Final = 0.5
BEAT_TIMEOUT_MS: Final = 5_000
POLL_S: Final = 0.25

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class BrokerSet:
    """A broker set as its controllers know it."""

    cluster: str
    name: str
    master: int | None
    master_epoch: int
    members: frozenset[int]
    """The SyncStateSet."""
    addresses: dict[int, str]
    alive: frozenset[int]


@dataclass(frozen=True, slots=True)
class Moved:
    """How the move of one set ended."""

    name: str
    master: int
    epoch_before: int
    epoch_after: int
    in_sync: tuple[int, ...]
    took_s: float


@dataclass(frozen=True, slots=True)
class Plan:
    """The remaining steps of the move of one set."""

    before: BrokerSet
    """As the old controllers have it."""
    master: int
    steps: Sequence[Callable[[], Awaitable[None]]]
    """Await them in this order. Each raises the errors of `Move.run`."""


async def look(admin: Admin, controllers: str, cluster: str, name: str) -> BrokerSet | None:
    """A broker set as these controllers know it, or None."""
    info = (await replication.replicas(admin, controllers, [name])).get(name)
    return None if info is None else _broker_set(cluster, name, info)


def _broker_set(cluster: str, name: str, info: ReplicasInfo) -> BrokerSet:
    replicas = [*info.in_sync_replicas, *info.not_in_sync_replicas]
    return BrokerSet(
        cluster,
        name,
        info.master_broker_id,
        info.master_epoch or 0,
        frozenset(each.broker_id for each in info.in_sync_replicas),
        {each.broker_id: each.broker_address for each in replicas},
        frozenset(each.broker_id for each in replicas if each.alive),
    )


def _is_copy(known: BrokerSet, original: BrokerSet) -> bool:
    """Whether the new controllers know a set because it was copied to them from the old ones."""
    if known.addresses != original.addresses or known.master_epoch <= original.master_epoch:
        return False
    return original.master is None or known.master == original.master or known.members == {original.master}


class Move:
    """The move of one broker set from the controllers `source` to `target` (``host:port;host:port``)."""

    def __init__(
        self, admin: Admin, source: str, target: str, cluster: str, name: str, *, patience_s: float, say: Say
    ) -> None:
        """`patience_s` is how long each step may take, `say` is called with a line about each.

        RocketMQ's brokers look at a changed controllerAddr every two minutes.
        """
        self._admin = admin
        self._source, self._target = source, target
        self._cluster, self._name = cluster, name
        self._patience_s = patience_s
        self._say = say

    async def run(self) -> Moved:
        """Take all three steps, or those that remain. Raises `AdminError` that says what to do."""
        began = time.monotonic()
        plan = await self.plan()
        for step in plan.steps:
            await step()
        before, master = plan.before, plan.master
        self._say(f"waiting for master {master}")
        after = await self._until("the master to rule under the new controllers", self._master_moved, before)
        return Moved(
            self._name,
            master,
            before.master_epoch,
            after.master_epoch,
            tuple(sorted(after.members)),
            time.monotonic() - began,
        )

    async def plan(self) -> Plan:
        """The remaining steps. A move that was interrupted after any of them continues with a new plan.

        Raises `AdminError` when the set cannot be moved.
        """
        leader = await self._admin.leading_controller(self._target)
        if leader == await self._admin.leading_controller(self._source):
            raise AdminError(f"these are the same controllers, led by {leader}: nothing to move")
        before, known = (
            await self._at_source(),
            await look(self._admin, self._target, self._cluster, self._name),
        )
        if known is not None and known.master in known.alive and known.addresses == before.addresses:
            self._check_not_backwards(before, known)
        copied = known is not None and _is_copy(known, before)
        if known is not None and not copied:
            raise AdminError(
                f"the new controllers know {self._name} already, with another state: if no broker of it runs "
                "under them, remove it there with cleanBrokerMetadata"
            )
        if known is not None and before.master is None:  # it has left the old controllers
            before = replace(before, master=known.master or min(known.members))
        alive = before.alive | (known.alive if known is not None else frozenset())
        master = before.master
        if master is None or master not in alive:
            raise AdminError(f"{self._name} has no living master; move it when it has one")
        if alive != before.addresses.keys():
            down = sorted(before.addresses.keys() - alive)
            raise AdminError(
                f"replicas {down} of {self._name} are down: start them, or take them out of the set with "
                "cleanBrokerMetadata, before it is moved"
            )
        steps: list[Callable[[], Awaitable[None]]] = [] if copied else [partial(self._copy, before)]
        slaves = sorted(before.addresses.keys() - {master})
        steps += [partial(self._point, before, broker_id) for broker_id in slaves]
        if master in before.alive:
            steps.append(partial(self._hand_over_master, before, master, slaves))
        return Plan(before, master, steps)

    def _check_not_backwards(self, before: BrokerSet, known: BrokerSet) -> None:
        """Raise `AdminError` if the master has not left `target`: a move from there was broken off."""
        if before.master in before.alive or known.master_epoch > before.master_epoch:
            return
        slaves = [address for number, address in sorted(known.addresses.items()) if number != known.master]
        back = [f"updateBrokerConfig -b {each} -k controllerAddr -v '{self._target}'" for each in slaves]
        forget = f"cleanBrokerMetadata -a '{self._source}' -c {self._cluster} -bn {self._name}"
        raise AdminError(
            f"{self._name} has its master under {self._target}: it was moved from there in part. The "
            f"command that began this continues with it. To give it up: {'; '.join([*back, forget])} (the "
            "last one is refused while a replica is alive there)"
        )

    # -- steps

    async def _copy(self, before: BrokerSet) -> None:
        self._say("the set is copied to the new controllers")
        leader = await self._admin.leading_controller(self._target)
        async with _Copy(leader, before, self._admin) as copy:
            await copy.run()
        # With the end of its connection the heartbeats of the copy end too.
        await self._until("the new controllers to forget the copy's heartbeats", self._nobody_there, before)
        for broker_id, address in before.addresses.items():
            await self._admin.ask(
                await self._admin.leading_controller(self._target),
                wire.RegisterBrokerToController(self._cluster, self._name, broker_id, address, _now_ms()),
            )

    async def _point(self, before: BrokerSet, broker_id: int) -> None:
        """Give one broker its new controllers."""
        address = before.addresses[broker_id]
        await self._admin.ask(
            address, broker_wire.UpdateBrokerConfig(), f"controllerAddr={self._target}\n".encode()
        )
        self._say(f"replica {broker_id} at {address} has controllerAddr={self._target}")

    async def _hand_over_master(self, before: BrokerSet, master: int, slaves: list[int]) -> None:
        self._say(f"waiting for slaves {slaves}")
        await self._until("the slaves to leave the old controllers", self._slaves_moved, before)
        await self._check_master(before)
        await self._point(before, master)

    async def _check_master(self, before: BrokerSet) -> None:
        now = await self._at_source()
        if (now.master, now.master_epoch) != (before.master, before.master_epoch):
            raise AdminError(
                f"{self._name} got another master meanwhile (was {before.master} in epoch "
                f"{before.master_epoch}, is {now.master} in {now.master_epoch}): give its slaves "
                f"controllerAddr={self._source} again, remove the set from the new controllers with "
                "cleanBrokerMetadata, and start again"
            )

    # -- conditions to wait for

    async def _nobody_there(self, before: BrokerSet) -> BrokerSet | None:
        found = await self._at_target()
        return found if not found.alive and found.master is None else None

    async def _slaves_moved(self, before: BrokerSet) -> BrokerSet | None:
        slaves = before.addresses.keys() - {before.master}
        old, new = await self._at_source(), await self._at_target()
        return new if slaves <= new.alive and not slaves & old.alive else None

    async def _master_moved(self, before: BrokerSet) -> BrokerSet | None:
        found = await self._at_target()
        return found if found.master == before.master and before.members <= found.members else None

    async def _until(
        self, what: str, reached: Callable[[BrokerSet], Awaitable[BrokerSet | None]], before: BrokerSet
    ) -> BrokerSet:
        deadline = time.monotonic() + self._patience_s
        while (found := await reached(before)) is None:
            if time.monotonic() > deadline:
                raise AdminError(
                    f"{self._name}: waited {self._patience_s:.0f} s for {what}; the same command continues "
                    "from here"
                )
            await asyncio.sleep(POLL_S)
        return found

    async def _at_source(self) -> BrokerSet:
        return await self._known(self._source)

    async def _at_target(self) -> BrokerSet:
        return await self._known(self._target)

    async def _known(self, controllers: str) -> BrokerSet:
        found = await look(self._admin, controllers, self._cluster, self._name)
        if found is None:
            raise AdminError(f"the controllers {controllers} know no broker of {self._name}")
        return found


class _Copy:
    """Registers a broker set with controllers, over its own connection."""

    def __init__(self, leader: str, wanted: BrokerSet, admin: Admin) -> None:
        assert wanted.master is not None
        self._leader = leader
        self._wanted = wanted
        self._first = wanted.master
        others = sorted(wanted.addresses.keys() - {wanted.master})
        self._partner = others[0] if others else max(wanted.addresses) + 1
        """Wins every second election: another replica, or an extra id that is removed at the end."""
        self._net = RemotingClient(tls=admin.tls, credentials=admin.credentials)
        self._beaten = 0.0
        self._master = 0
        self._epoch = 0
        self._set_epoch = 0

    async def __aenter__(self) -> _Copy:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._net.close()

    async def run(self) -> None:
        """Register ids, then hold elections until epoch and master are as wanted."""
        wanted = self._wanted
        # The first id of an unknown set is 1 (RocketMQ); an extra id is removed below.
        extra = {1, self._partner} - wanted.addresses.keys()
        for broker_id in sorted({1, self._partner, *wanted.addresses}):
            await self._ask(
                wire.ApplyBrokerId(wanted.name, broker_id, f"{NOWHERE};{_now_ms()}", wanted.cluster)
            )
            await self._ask(
                wire.RegisterBrokerToController(wanted.cluster, wanted.name, broker_id, NOWHERE, _now_ms())
            )
        await self._beat()
        await self._elect(self._first, designated=False)
        least = wanted.master_epoch + EPOCH_MARGIN
        while self._epoch < least or self._master != self._first:
            await self._beat()
            await self._widen()
            await self._elect(self._partner if self._master == self._first else self._first, designated=True)
        if extra:
            ids = ";".join(map(str, sorted(extra)))
            await self._ask(
                wire.CleanBrokerData(wanted.name, wanted.cluster, ids, is_clean_living_broker=True)
            )

    async def _elect(self, broker_id: int, *, designated: bool) -> None:
        wanted = self._wanted
        reply = (
            await self._ask(wire.ElectMaster(wanted.cluster, wanted.name, broker_id, designated, _now_ms()))
        ).header
        assert isinstance(reply, wire.ElectMasterReply)
        self._master = reply.master_broker_id or 0
        self._epoch = reply.master_epoch or 0
        self._set_epoch = reply.sync_state_set_epoch or 0
        if self._master != broker_id:
            raise AdminError(f"the new controllers elected {self._master} of {wanted.name}, not {broker_id}")

    async def _widen(self) -> None:
        body = SyncStateSetBody((self._first, self._partner), self._set_epoch)
        await self._ask(
            wire.AlterSyncStateSet(self._wanted.name, self._master, self._epoch, _now_ms()), encode(body)
        )

    async def _beat(self) -> None:
        if time.monotonic() - self._beaten < BEAT_S:
            return
        self._beaten = time.monotonic()
        for broker_id in (self._first, self._partner):
            await self._ask(
                BrokerHeartbeat(
                    self._wanted.cluster,
                    NOWHERE,
                    self._wanted.name,
                    broker_id=broker_id,
                    epoch=self._epoch,
                    max_offset=0,
                    confirm_offset=0,
                    heartbeat_timeout_mills=BEAT_TIMEOUT_MS,
                    election_priority=broker_id,
                )
            )

    async def _ask(self, header: Header, body: bytes = b"") -> Response:
        return await self._net.call(self._leader, header, body, timeout_ms=5_000)


def _now_ms() -> int:
    return int(time.time() * 1000)
