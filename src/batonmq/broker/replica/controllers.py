"""A broker's controllers: their addresses, their leader, and calls to the leader.

A leader that does not answer is *suspected*: perhaps only the link to it is cut. Meanwhile calls and
heartbeats go through another controller (`routing/through.py`), and heartbeats also try the direct link.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Container, Coroutine, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from batonmq.common.addresses import split_addresses
from batonmq.common.racing import Abandoned, first_result, unless
from batonmq.net.connection import Response
from batonmq.net.errors import CallTimeout, ConnectFailed, ConnectionLost, NetError
from batonmq.protocol.bodies import controller as bodies
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError, NotLeaderError
from batonmq.protocol.headers import controller as wire
from batonmq.protocol.json import decode
from batonmq.protocol.registry import Header
from batonmq.routing.through import NotPassedOn, call_through

if TYPE_CHECKING:
    from batonmq.broker.context import Broker

log = logging.getLogger(__name__)

CALL_TIMEOUT_MS: Final = 3_000
FIND_TIMEOUT_MS: Final = 900
"""Below one second so that the client keeps the connection: a controller counts a broker as down when the
connection closes, and may only be slow. `Controllers.unanswered` gives up a connection that stays silent."""
IN_A_ROW_S: Final = 2.0
"""Longest time between calls that time out in a row: heartbeats are sent every second."""
LATE_S: Final = 0.3
"""Without an answer from the leader by then, a call or heartbeat also goes through another controller. If the
links to leader and slaves are cut together, the heartbeat must arrive before the leader counts this broker as
silent, 1.5 s after the last one (docs/decisions/suspicion.md)."""
RETRY_S: Final = (0.1, 1.0)
"""First and longest pause of a caller between failed attempts; the pause doubles each time."""


class NoLeader(NotLeaderError):
    """No known controller leads. `connections_ended`: one of them closed or reset the connection."""

    def __init__(self, failures: Iterable[NetError | MQError]) -> None:
        reasons = set()
        self.connections_ended = False
        for failure in failures:
            self.connections_ended |= ended_by_peer(failure)
            reasons.add(failure.remark if isinstance(failure, MQError) else in_words(failure))
        super().__init__(
            ResponseCode.CONTROLLER_NOT_LEADER,
            f"no controller of controllerAddr leads ({'; '.join(sorted(reasons))})",
        )


def ended_by_peer(error: Exception) -> bool:
    """Whether a controller closed or reset the connection."""
    return isinstance(error, ConnectionLost) and error.by_peer


def in_words(error: Exception) -> str:
    """The error for a log line. A controller that refuses a connection closes or resets it, as it happens:
    the same words for both, so that they are one failure."""
    if isinstance(error, ConnectionLost) and error.by_peer:
        return f"{error.address}: connection closed"
    return str(error)


class Controllers:
    """The configured controllers and those that joined later. Each of them may become leader."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._controller_addr = broker.settings.broker.controller_addr
        self._known = self._configured
        self._leader: str | None = None
        self._finding: asyncio.Task[str] | None = None
        self._suspected: str | None = None
        self._suspicion = asyncio.Event()
        """Set while a leader is suspected: pending calls to it are abandoned."""
        self._answering: str | None = None
        """The leader, if its last answer to a heartbeat came directly."""
        self._through: str | None = None
        """The controller that reached the leader last."""
        self._silent: dict[str, tuple[float, float]] = {}
        """Controller address -> loop times of the first and the last of the calls in a row that it left
        unanswered."""
        self._not_forwarding: set[str] = set()
        """Controllers that do not forward: RocketMQ's."""

    async def stop(self) -> None:
        """Cancel the search for the leader."""
        if self._finding is not None:
            self._finding.cancel()
            await asyncio.gather(self._finding, return_exceptions=True)

    @property
    def addresses(self) -> list[str]:
        """Addresses of all known controllers."""
        self._follow_configuration()
        return self._known

    @property
    def _configured(self) -> list[str]:
        return split_addresses(self._controller_addr)

    def _follow_configuration(self) -> None:
        """Apply a change of controllerAddr: everything learned from the former controllers is dropped."""
        configured = self._broker.settings.broker.controller_addr
        if configured != self._controller_addr:
            self._controller_addr = configured
            self._known = self._configured
            self._silent.clear()
            self._leader = self._finding = None
            self._trust()

    def _require_unchanged(self, asked: str) -> None:
        """Raises `NotLeaderError` if controllerAddr is no longer `asked`."""
        self._follow_configuration()
        if self._controller_addr != asked:
            raise NotLeaderError(ResponseCode.CONTROLLER_NOT_LEADER, "there are other controllers now")

    async def _find_leader(self) -> str:
        """Ask all controllers for the leader and use the first answer. Raises `MQError` if none knows it."""
        self._follow_configuration()
        asked = self._controller_addr
        leader = await self._first_leader(asked)
        self._require_unchanged(asked)
        if leader != self._leader:
            log.info("leading controller is %s", leader)
            self._leader = leader
        if self._suspected is not None and self._suspected != leader:
            self._trust()
        return leader

    # -- whether the leader can be reached

    @property
    def leader(self) -> str | None:
        """Address of the leading controller; None while unknown."""
        return self._leader

    @property
    def leader_answers(self) -> bool:
        """Whether the leader is known and answered the last heartbeat."""
        return self._leader is not None and self._leader == self._answering

    def may_forward(self, address: str) -> bool:
        """Whether the controller at `address` may forward requests."""
        return address not in self._not_forwarding

    async def seek(self) -> None:
        """The former leader answered that it is no longer leader: find the new one. Raises `MQError` if none
        is known."""
        self._leader = None
        await self._leader_address()

    def suspect(self, address: str) -> bool:
        """The leader at `address` did not answer. Returns whether the suspicion is new."""
        if address == self._suspected or address != self._leader or len(self._known) < 2:
            return False
        log.info("leading controller %s does not answer: it is asked through another controller", address)
        self._suspected, self._answering = address, None
        self._suspicion.set()
        return True

    def unanswered(self, address: str) -> None:
        """A call to the controller at `address` timed out. Once it has been silent for as long as controllers
        wait for a broker's heartbeat, its connection is closed: TCP would notice late that a path that was
        cut works again."""
        now_s = asyncio.get_running_loop().time()
        since_s, last_s = self._silent.get(address, (now_s, now_s))
        if now_s - last_s > IN_A_ROW_S:
            since_s = now_s
        self._silent[address] = since_s, now_s
        if now_s - since_s >= self._broker.settings.broker.controller_heart_beat_timeout_mills / 1000:
            log.debug("controller %s is silent: closing the connection", address)
            del self._silent[address]
            self._broker.client.drop(address)

    def answered(self, address: str) -> None:
        """The leader at `address` answered a heartbeat."""
        self._silent.pop(address, None)
        self._answering = address
        if address == self._suspected:
            log.info("leading controller %s answers again", address)
            self._trust()

    def _trust(self) -> None:
        self._suspected = self._through = None
        self._suspicion.clear()

    async def _first_leader(self, asked: str) -> str:
        async def ask(address: str) -> str:
            try:
                response = await self._broker.client.call(
                    address, wire.GetMetadata(), timeout_ms=FIND_TIMEOUT_MS
                )
            except CallTimeout:
                self.unanswered(address)
                raise
            except MQError as error:
                if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                    raise MQError(
                        error.code, f"{address} is not a controller; is it a name server or a broker?"
                    ) from error
                raise
            self._silent.pop(address, None)
            header = response.header
            self._require_unchanged(asked)
            if not isinstance(header, wire.GetMetadataReply) or not header.controller_leader_address:
                raise NotLeaderError(ResponseCode.CONTROLLER_NOT_LEADER, f"{address} knows no leader")
            self._update_controllers(header)
            return header.controller_leader_address

        asking = [asyncio.ensure_future(ask(address)) for address in self._known]
        failures: list[NetError | MQError] = []
        try:
            for earliest in asyncio.as_completed(asking):
                try:
                    return await earliest
                except (NetError, MQError) as error:
                    failures.append(error)
        finally:
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
        raise NoLeader(failures)

    def _update_controllers(self, metadata: wire.GetMetadataReply) -> None:
        """Controllers may be added and replaced while brokers run; each needs the brokers' heartbeats.

        The configured addresses stay in the list: such a controller may return under the same address.
        """
        known = list(dict.fromkeys([*self._configured, *members_of(metadata)]))
        if known != self._known:
            log.info("controllers are now %s", ", ".join(known))
            self._known = known

    async def _leader_address(self) -> str:
        self._follow_configuration()
        if self._leader is None:
            if self._finding is None or self._finding.done():
                self._finding = asyncio.get_running_loop().create_task(self._find_leader())
            return await asyncio.shield(self._finding)
        return self._leader

    async def call(
        self,
        header: Header,
        body: bytes = b"",
        *,
        accept: Container[int] = (ResponseCode.SUCCESS,),
        in_turn: bool = False,
        once: bool = False,
    ) -> Response:
        """Call the leading controller. If it does not answer soon, the request also goes through the others;
        it may arrive several times. With `in_turn` it goes another way only after one has failed, with `once`
        only if no controller got it.

        Raises `NetError`, `MQError`; the next call searches again. `ConnectFailed` only if no controller got
        the request.
        """
        leader = await self._leader_address()
        others = [address for address in self._known if address != leader and self.may_forward(address)]
        others.sort(key=lambda address: address != self._through)
        if not others:
            self._trust()

        async def outcome(answer: Coroutine[Any, Any, Response]) -> Response | MQError:
            try:
                return await answer
            except NotLeaderError:
                raise
            except MQError as error:
                return error

        async def directly() -> Response | MQError:
            try:
                return await outcome(self._call_directly(leader, header, body, accept))
            except (NetError, NotLeaderError):
                self._forget(leader)  # also if another way succeeds: there may be a new leader
                raise

        def through(address: str) -> Coroutine[Any, Any, Response | MQError]:
            return outcome(
                self.call_through(address, header, body, timeout_ms=CALL_TIMEOUT_MS, accept=accept)
            )

        ways: list[Callable[[], Coroutine[Any, Any, Response | MQError]]]
        ways = [partial(through, address) for address in others]
        if leader != self._suspected:
            ways.insert(0, directly)
        pause_s = None if in_turn or once else LATE_S
        failures = (ConnectFailed,) if once else (NetError, NotLeaderError)
        try:
            answer = await first_result(ways, pause_s, failures)
        except ExceptionGroup as group:
            self._forget(leader)
            raise _decisive(group.exceptions) from group
        except (NetError, NotLeaderError):
            self._forget(leader)
            raise
        if isinstance(answer, MQError):
            raise answer
        return answer

    async def _call_directly(
        self, leader: str, header: Header, body: bytes, accept: Container[int]
    ) -> Response:
        """Raises `NetError`: `CallTimeout` as soon as the leader is suspected."""
        call = self._broker.client.call(leader, header, body, timeout_ms=CALL_TIMEOUT_MS, accept=accept)
        try:
            return await unless(self._suspicion, call)
        except Abandoned:
            raise CallTimeout(
                leader, "it does not answer heartbeats; this request may have been carried out"
            ) from None
        except NetError:
            self.suspect(leader)
            raise

    def _forget(self, leader: str) -> None:
        """The next call searches for the leader."""
        if self._leader == leader:
            self._leader = None

    async def call_through(
        self,
        address: str,
        header: Header,
        body: bytes = b"",
        *,
        timeout_ms: float,
        accept: Container[int] = (ResponseCode.SUCCESS,),
    ) -> Response:
        """Call the leader through the controller at `address`. Raises as `routing.through.call_through`."""
        try:
            response = await call_through(
                self._broker.client, address, header, body, timeout_ms=timeout_ms, accept=accept
            )
        except NotPassedOn as error:
            if error.refused_as == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                self._not_forwarding.add(address)
            raise
        self._through = address
        return response

    async def watch(self) -> None:
        """Ask for the leader every `syncControllerMetadataPeriod`."""
        while True:
            await asyncio.sleep(self._broker.settings.broker.sync_controller_metadata_period / 1000)
            try:
                await self._find_leader()
            except (NetError, MQError) as error:
                log.debug("no leading controller: %s", error)

    async def broker_set(self) -> bodies.ReplicasInfo:
        """All replicas of this broker set. Raises `NetError`, `MQError`, ValueError."""
        name = self._broker.settings.broker.broker_name
        response = await self.call(wire.GetSyncStateData(), msgspec.json.encode([name]))
        table = decode(bytes(response.body), bodies.BrokerReplicasInfo).replicas_info_table
        return table.get(name, bodies.ReplicasInfo([], []))


def _decisive(failures: Sequence[Exception]) -> Exception:
    """The first failure after which the request may have been carried out; without one, the first."""
    return next((error for error in failures if not isinstance(error, ConnectFailed)), failures[0])


def members_of(metadata: wire.GetMetadataReply) -> list[str]:
    """The addresses at which the controllers serve brokers; empty if the leader's address is not among them:
    RocketMQ's jRaft controllers report their Raft ports, which do not serve brokers."""
    peers = [peer.split(":") for peer in metadata.peers.split(";")]
    addresses = [":".join(parts[-2:]) for parts in peers if len(parts) >= 2]
    return addresses if metadata.controller_leader_address in addresses else []
