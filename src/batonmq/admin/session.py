"""The connections of an administrator, and who is asked: name servers, brokers of a cluster, controllers."""

from __future__ import annotations

import ssl
from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from batonmq.common.addresses import split_addresses
from batonmq.common.config import ConfigError, parse_properties
from batonmq.net.client import RemotingClient
from batonmq.net.connection import SUCCESS_ONLY, Response
from batonmq.net.dispatch import Body
from batonmq.net.errors import ConnectFailed, ConnectionLost, NetError
from batonmq.protocol.bodies.routes import BrokerData, ClusterInfo, TopicRouteData
from batonmq.protocol.codes import MASTER_ID, ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers import broker as broker_wire
from batonmq.protocol.headers import controller as controller_wire
from batonmq.protocol.headers import namesrv as namesrv_wire
from batonmq.protocol.headers.broker.admin import GetBrokerRuntimeInfo
from batonmq.protocol.json import decode
from batonmq.protocol.names import is_light
from batonmq.protocol.registry import Header
from batonmq.protocol.signing import Credentials
from batonmq.routing.routes import TopicRoute, light_route, parse_route

TIMEOUT_MS = 5_000

_WANTS_TLS = "if it speaks TLS only (tls.server.mode=enforcing), give --tls"
_WANTS_CERTIFICATE = (
    "if it asks for a certificate (tls.server.need.client.auth), give --tls-cert and --tls-key"
)
"""Why a program may close a connection instead of answering the first request."""


class AdminError(Exception):
    """The request cannot be carried out; the message says why in one line."""


class NobodyListens(AdminError):
    """Every address refuses connections, and none has answered before: probably they are wrong."""


def one_key(key: str, value: str) -> bytes:
    """The body of a request that changes one key of a configuration. Raises `AdminError` for a key or a value
    that would change another one, or none."""
    line = f"{key}={value}"
    try:
        keys = list(parse_properties(line))
    except ConfigError as error:
        raise AdminError(f"{line!r}: {error}") from None
    if "\n" in line or "\r" in line or keys != [key]:
        raise AdminError(f"{line!r} is not one key with a value of one line")
    return f"{line}\n".encode()


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of program: which option names it, and a request that it alone answers."""

    name: str
    option: str
    addresses: str
    known_by: Header


_NAME_SERVER = _Kind(
    "name server", "-n", "name servers, usually at port 9876", namesrv_wire.GetNamesrvConfig()
)
_KINDS: Mapping[str, _Kind] = {
    namesrv_wire.__name__: _NAME_SERVER,
    controller_wire.__name__: _Kind(
        "controller", "-a", "controllers, as in controllerAddr of the brokers", controller_wire.GetMetadata()
    ),
    broker_wire.__name__: _Kind("broker", "-b", "a broker, as clusterList shows it", GetBrokerRuntimeInfo()),
}
"""By the module or package that declares the requests of that kind of program."""


def _kind_of_request(header: Header) -> _Kind | None:
    """Which kind of program serves this request; None for one that clients serve."""
    module = type(header).__module__
    return next((kind for home, kind in _KINDS.items() if f"{module}.".startswith(f"{home}.")), None)


def _is_refusal(error: NetError) -> bool:
    """Whether the host or the network says at once that nobody can be reached there."""
    cause = error.__cause__
    return (
        isinstance(error, ConnectFailed)
        and isinstance(cause, OSError)
        and not isinstance(cause, TimeoutError)
    )


@contextmanager
def naming(done: Collection[object]) -> Iterator[None]:
    """Adds to an error what was carried out before it, as a note: a change stops halfway at a refusal, and
    who gave the command must know where it is in force."""
    try:
        yield
    except (MQError, NetError, AdminError) as error:
        if done:
            error.add_note(f"already done: {', '.join(map(str, done))}")
        raise


class Admin:
    """An administrator's connections; an async context manager.

    Calls raise `MQError` for a refusal, `NetError` when a program cannot be reached, or `AdminError`.
    """

    def __init__(
        self,
        namesrv: str | None,
        timeout_ms: int = TIMEOUT_MS,
        *,
        tls: ssl.SSLContext | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        self._namesrv = split_addresses(namesrv or "")
        self.timeout_ms = timeout_ms
        """How long each request may take, and a send with all its attempts."""
        self.tls = tls
        """For connections beside those of this session; None: plain text."""
        self.credentials = credentials
        """As `tls`; None: requests are not signed."""
        self._net = RemotingClient(tls=tls, credentials=credentials)
        self._answered: set[str] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._net.close()

    @property
    def namesrv(self) -> list[str]:
        """Addresses of the name servers. Raises `AdminError` when none was given."""
        if not self._namesrv:
            raise AdminError("no name server: give -n host:port or set NAMESRV_ADDR")
        return self._namesrv

    async def ask(
        self, address: str, header: Header, body: Body = b"", *, accept: Container[int] = SUCCESS_ONLY
    ) -> Response:
        """One request to one address. Raises `AdminError` when a program of another kind listens there."""
        try:
            answer = await self._net.call(address, header, body, timeout_ms=self.timeout_ms, accept=accept)
        except ConnectFailed as error:
            if _kind_of_request(header) is _NAME_SERVER and address not in self._answered:
                error.add_note("check the address (-n), and that a name server runs there")
            raise
        except ConnectionLost as error:
            if address in self._answered:
                raise
            hint = _WANTS_TLS if self.tls is None else _WANTS_CERTIFICATE
            raise ConnectionLost(address, f"{error.reason}; {hint}") from error
        except MQError as error:
            self._answered.add(address)
            if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise
            wanted, found = _kind_of_request(header), await self._kind_of(address)
            if wanted is None or found is None or found is wanted:
                raise
            raise AdminError(
                f"{address} is a {found.name}, not a {wanted.name}: {wanted.option} takes {wanted.addresses}"
            ) from None
        self._answered.add(address)
        return answer

    async def configs(self, addresses: Iterable[str], request: Header) -> dict[str, dict[str, str]]:
        """Address -> configuration key -> value, as each program answers `request`."""
        found: dict[str, dict[str, str]] = {}
        for address in addresses:
            answer = await self.ask(address, request)
            found[address] = parse_properties(bytes(answer.body).decode())
        return found

    async def ask_each(
        self, addresses: Iterable[str], header: Header, body: Body = b""
    ) -> dict[str, Response]:
        """The same request to several addresses in turn. The first failure ends it, with a note of those that
        carried it out (`naming`)."""
        answers: dict[str, Response] = {}
        with naming(answers):
            for address in addresses:
                answers[address] = await self.ask(address, header, body)
        return answers

    async def _kind_of(self, address: str) -> _Kind | None:
        """Which kind of program listens there, found by the requests it knows; None if that stays unknown."""
        for kind in _KINDS.values():
            try:
                await self._net.call(address, kind.known_by, timeout_ms=self.timeout_ms)
            except MQError:
                continue
            except NetError:
                return None
            return kind
        return None

    async def ask_namesrv(self, header: Header, body: Body = b"") -> Response:
        """Ask the first name server that can be reached."""
        failed: NetError | None = None
        for address in self.namesrv:
            try:
                return await self.ask(address, header, body)
            except NetError as error:
                failed = error
        assert failed is not None
        raise failed

    # -- brokers

    async def cluster(self) -> ClusterInfo:
        """All clusters and broker sets that the name server knows."""
        return decode(bytes((await self.ask_namesrv(namesrv_wire.GetBrokerClusterInfo())).body), ClusterInfo)

    async def route(self, topic: str) -> TopicRouteData:
        """Brokers and queues of a topic; all brokers for a light queue. Raises `MQError` TOPIC_NOT_EXIST."""
        if is_light(topic):
            return light_route(await self.cluster())
        answer = await self.ask_namesrv(namesrv_wire.GetRouteInfo(topic=topic))
        return decode(bytes(answer.body), TopicRouteData)

    async def queues(self, topic: str) -> TopicRoute:
        """The queues of a topic as clients see them: of a static topic the logical ones."""
        return parse_route(topic, await self.route(topic))

    async def groups(self, cluster: str | None = None) -> list[BrokerData]:
        """Broker sets of one cluster, or of all, by name. Raises `AdminError` for an unknown cluster."""
        info = await self.cluster()
        if cluster is None:
            names: Iterable[str] = info.broker_addr_table
        elif cluster in info.cluster_addr_table:
            names = info.cluster_addr_table[cluster]
        else:
            known = ", ".join(sorted(info.cluster_addr_table)) or "none"
            raise AdminError(f"no cluster {cluster}; the name server knows: {known}")
        return [info.broker_addr_table[name] for name in sorted(names) if name in info.broker_addr_table]

    async def masters(self, cluster: str | None = None) -> dict[str, str]:
        """Broker name -> address of its master; sets without a master are left out."""
        return {
            group.broker_name: group.broker_addrs[MASTER_ID]
            for group in await self.groups(cluster)
            if MASTER_ID in group.broker_addrs
        }

    async def without_master(self, cluster: str) -> list[str]:
        """Names of a cluster's broker sets that have only slaves now."""
        groups = await self.groups(cluster)
        return [group.broker_name for group in groups if MASTER_ID not in group.broker_addrs]

    async def replicas(self, cluster: str | None = None) -> list[tuple[str, int, str]]:
        """(broker name, broker id, address) of every live broker."""
        return [
            (group.broker_name, broker_id, address)
            for group in await self.groups(cluster)
            for broker_id, address in sorted(group.broker_addrs.items())
        ]

    async def addresses(self, cluster: str, *, slaves: bool = False) -> list[str]:
        """Addresses of a cluster's masters, or of all its brokers. Raises `AdminError` if there is none."""
        if slaves:
            found = [address for _, _, address in await self.replicas(cluster)]
        else:
            found = list((await self.masters(cluster)).values())
        if found:
            return found
        living = ", ".join(
            f"{name} has only {address} with id {number}"
            for name, number, address in ([] if slaves else await self.replicas(cluster))
        )
        if living:
            raise AdminError(f"no broker set in cluster {cluster} has a master now: {living}")
        raise AdminError(f"no live broker in cluster {cluster}")

    async def masters_of_topic(self, topic: str) -> dict[str, str]:
        """Broker name -> address of the master of each broker set that has the topic.

        A set without a master has the address of its slave with the lowest id instead.
        """
        route = await self.route(topic)
        return {
            group.broker_name: group.broker_addrs[min(group.broker_addrs)]
            for group in route.broker_datas
            if group.broker_addrs
        }

    async def a_broker_of(self, topic: str) -> str:
        """Address of one broker that has the topic. Raises `AdminError` if none is alive."""
        for address in (await self.masters_of_topic(topic)).values():
            return address
        raise AdminError(f"no broker of topic {topic} is alive")

    # -- controllers

    async def ask_controller(self, addresses: str, header: Header) -> Response:
        """Ask the first controller of ``host:port;host:port`` that can be reached. Raises `NobodyListens` or
        another `AdminError`."""
        problems: list[NetError] = []
        for address in split_addresses(addresses):
            try:
                return await self.ask(address, header)
            except NetError as error:
                problems.append(error)
        if not problems:
            raise AdminError("-a names no controller")
        listens = any(error.address in self._answered or not _is_refusal(error) for error in problems)
        raise (AdminError if listens else NobodyListens)("; ".join(map(str, problems)))

    async def leading_controller(self, addresses: str) -> str:
        """The leader among `host:port;host:port`. Raises `AdminError` when nobody knows one."""
        problems: list[str] = []
        for address in split_addresses(addresses):
            try:
                answer = await self.ask(address, controller_wire.GetMetadata())
            except NetError as error:
                problems.append(str(error))
                continue
            assert isinstance(answer.header, controller_wire.GetMetadataReply)
            if answer.header.controller_leader_address:
                return answer.header.controller_leader_address
            problems.append(f"{address}: knows no leader")
        raise AdminError("no leading controller: " + ("; ".join(problems) or "-a names none"))
