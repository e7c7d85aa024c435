"""Raft over RocketMQ remoting: one private oneway request, on a port of its own or on the RPC port.

A payload is dropped when the peer cannot be reached, reads too slowly, or the buffer before a connection
is full: Raft repeats what matters, and memory stays bounded.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import ssl
from collections.abc import Callable, Sequence
from typing import Protocol

from batonmq.common.repeated_warnings import RepeatedWarnings
from batonmq.net.client import RemotingClient
from batonmq.net.connection import Connection
from batonmq.net.dispatch import Dispatcher, Reply, Request
from batonmq.net.errors import ConnectFailed, ConnectionLost, NetError
from batonmq.net.interceptors import Interceptor
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.controller import RaftMessage
from batonmq.raft.messages import Envelope, encode
from batonmq.raft.spare_connections import SpareConnections

log = logging.getLogger(__name__)

_BACKLOG_BYTES = 4 << 20
"""Kept for a peer while the connection to it is being made."""
_REPEATED_BYTES = 16_384
"""Up to this size a payload leaves over all connections to the peer while packets get lost."""
_RETRY_S = 0.2
"""Pause after a failed connection, in which payloads for the peer are dropped."""
_LONGEST_NAME = 255
"""Bytes of a node's id: the id is stored, and no id in a configuration is longer."""
_UNKNOWN_SENDERS = 64
"""Connections kept of senders that are no members, so that they can be answered."""
_PROBE_MS = 1_000
"""How long a peer whose connection closed may take to answer."""
_PROBES = 8
_PROBE_AGAIN_S = 0.005
"""A process that ends closes one socket after the other, and a probe may still reach the last of them: hence
so many probes, with pauses that grow by so much."""


class Authenticator(Protocol):
    """Proves that a payload comes from a node that may take part."""

    def seal(self, payload: bytes) -> bytes: ...
    def unseal(self, sealed: bytes | memoryview) -> bytes | memoryview | None:
        """The payload, or None if it must be refused."""
        ...


class NoAuthentication:
    """Whoever reaches the port may take part: for trusted networks, or beside TLS client certificates."""

    def seal(self, payload: bytes) -> bytes:
        return payload

    def unseal(self, sealed: bytes | memoryview) -> bytes | memoryview | None:
        return sealed


class SharedSecret:
    """A keyed BLAKE2b digest before each payload. Replays need no defence: Raft tolerates old messages."""

    _SIZE = 16

    def __init__(self, secret: str) -> None:
        self._key = hashlib.blake2b(secret.encode(), digest_size=32).digest()

    def _digest(self, payload: bytes | memoryview) -> bytes:
        return hashlib.blake2b(payload, key=self._key, digest_size=self._SIZE).digest()

    def seal(self, payload: bytes) -> bytes:
        return self._digest(payload) + payload

    def unseal(self, sealed: bytes | memoryview) -> bytes | memoryview | None:
        view = memoryview(sealed)
        digest, payload = view[: self._SIZE], view[self._SIZE :]
        return payload if hmac.compare_digest(digest, self._digest(payload)) else None


class RemotingTransport:
    """The ``RaftTransport`` of one node.

    ``dispatcher`` is that of the port where peers reach this node (one group a port), and of ``client``, so
    that answers can use the connection of a request: this reaches nodes whose address is not known here,
    because they have just been removed or know an old membership. ``bind`` says who takes what arrives.
    """

    def __init__(
        self,
        group: str,
        node_id: str,
        client: RemotingClient,
        dispatcher: Dispatcher,
        authenticator: Authenticator | None = None,
        spares: Sequence[RemotingClient] = (),
    ) -> None:
        """``spares`` make additional connections to peers (`SpareConnections`); closed with the transport."""
        self._group = group
        self._id = node_id
        self._client = client
        self._spares = SpareConnections(spares)
        self._authenticator = authenticator or NoAuthentication()
        self._header = RaftMessage(group, node_id)
        self._receive: Callable[[str, bytes | memoryview], None] | None = None
        self._addresses: dict[str, str] = {}
        self._lost: Callable[[str], None] | None = None
        self._incoming: dict[str, Connection] = {}
        """The connection of each sender's last message."""
        self._probing: dict[str, asyncio.Task[None]] = {}
        self._backlog: dict[str, list[bytes]] = {}
        self._connecting: dict[str, asyncio.Task[None]] = {}
        self._closed = False
        self._warnings = RepeatedWarnings(log)
        dispatcher.on(RaftMessage, self._on_message)
        dispatcher.intercept(Interceptor(closed=self._connection_closed))

    def bind(
        self,
        receive: Callable[[str, bytes | memoryview], None],
        lost: Callable[[str], None] | None = None,
    ) -> None:
        """``receive`` is RaftNode.receive, ``lost`` RaftNode.peer_lost."""
        self._receive, self._lost = receive, lost

    def set_peers(self, addresses: dict[str, str]) -> None:
        for peer, address in self._addresses.items():
            if addresses.get(peer) != address and peer != self._id:
                self._client.drop(address)
                self._spares.drop(address)
        self._addresses = dict(addresses)

    def send(self, peer_id: str, payload: bytes) -> None:
        if self._closed:
            return
        address = self._addresses.get(peer_id)
        if address is None:
            connection = self._incoming.get(peer_id)
            if connection is not None and not (connection.closed or connection.congested):
                connection.oneway(self._header, self._authenticator.seal(payload))
            return
        connection = self._client.connected(address)
        if connection is not None and not self._loses(peer_id, address, connection):
            if not connection.congested:
                connection.oneway(self._header, self._authenticator.seal(payload))
            return
        ways = self._spares.ways(address)
        if connection is not None and not (connection.congested or (ways and connection.retransmitting())):
            ways.insert(0, connection)
        if ways:
            sealed = self._authenticator.seal(payload)
            for way in ways if len(payload) <= _REPEATED_BYTES else ways[:1]:
                way.oneway(self._header, sealed)
        if connection is not None:
            return
        task = self._connecting.get(peer_id)
        if task is None:
            self._backlog[peer_id] = [payload]
            loop = asyncio.get_running_loop()
            self._connecting[peer_id] = loop.create_task(self._connect(peer_id, address))
            return
        backlog = self._backlog.get(peer_id)
        if backlog is not None and sum(map(len, backlog)) + len(payload) <= _BACKLOG_BYTES:
            backlog.append(payload)

    def _loses(self, peer: str, address: str, connection: Connection) -> bool:
        """Whether packets to the peer get lost now. Spare connections are opened where that can be known."""
        spares = self._spares
        waits = connection.retransmitting()
        if waits is None:
            return False
        if not spares.keeps(address):
            spares.keep(address, self._header, self._nothing(peer))
        if waits:
            spares.loses(address)
        return spares.lossy(address)

    def _nothing(self, peer: str) -> bytes:
        """What opens a connection without a message."""
        return self._authenticator.seal(encode(Envelope(self._group, self._id, peer, [])))

    async def _connect(self, peer: str, address: str) -> None:
        """Send the backlog once connected; else drop it, and what comes in the pause."""
        seal = self._authenticator.seal
        try:
            backlog = self._backlog[peer]
            await self._client.oneway(address, self._header, seal(backlog.pop(0)))
            connection = self._client.connected(address)
            if connection is not None:
                for payload in backlog:
                    connection.oneway(self._header, seal(payload))
        except NetError as e:
            if isinstance(e.__cause__, ssl.SSLError):  # which, unlike silence, does not pass by itself
                text = f"is not believed by raft {self._group}/{self._id}: {e}"
                self._warnings.warn(address, text, int(asyncio.get_running_loop().time() * 1000))
            log.debug("raft %s/%s cannot reach %s: %s", self._group, self._id, peer, e)
            del self._backlog[peer]
            await asyncio.sleep(_RETRY_S)
        finally:
            self._backlog.pop(peer, None)
            del self._connecting[peer]

    async def close(self) -> None:
        """Give up connecting. The client and the server are closed by their owner."""
        self._closed = True
        tasks = [*self._connecting.values(), *self._probing.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._spares.close()

    def _on_message(self, request: Request, header: RaftMessage) -> Reply:
        """Nodes send these oneway; a sender that waits for an answer gets an empty one."""
        if len(header.sender) > _LONGEST_NAME:
            raise self._refuse(request, header, "has an impossible name")
        if header.group != self._group:
            raise self._refuse(request, header, f"is of another group, {header.group!r}")
        payload = self._authenticator.unseal(request.command.body)
        if payload is None:
            raise self._refuse(request, header, "does not know the group's secret")
        if self._incoming.get(header.sender) is not request.connection:
            self._remember(header.sender, request.connection)
        if self._receive is not None:
            self._receive(header.sender, payload)
        return Reply()

    def _remember(self, sender: str, connection: Connection) -> None:
        unknown = [name for name in self._incoming if name not in self._addresses]
        if sender in unknown:
            unknown.remove(sender)
        if len(unknown) >= _UNKNOWN_SENDERS and sender not in self._addresses:
            del self._incoming[unknown[0]]
        self._incoming[sender] = connection

    # ------------------------------------------------------------------ is a peer still there?

    def _connection_closed(self, connection: Connection) -> None:
        """A connection to this node's port has ended. That alone says little: networks reset connections."""
        for peer in [name for name, each in self._incoming.items() if each is connection]:
            del self._incoming[peer]
            address = self._addresses.get(peer)
            if address is not None and peer not in self._probing and not self._closed:
                loop = asyncio.get_running_loop()
                self._probing[peer] = loop.create_task(self._probe(peer, address))

    async def _probe(self, peer: str, address: str) -> None:
        """Report ``peer`` as lost if its address refuses connections: a running process accepts them."""
        try:
            if await self._is_gone(address, peer) and peer not in self._incoming and self._lost is not None:
                log.info("raft %s/%s: %s at %s is gone", self._group, self._id, peer, address)
                self._lost(peer)
        finally:
            del self._probing[peer]

    async def _is_gone(self, address: str, peer: str) -> bool:
        empty = self._nothing(peer)
        for attempt in range(_PROBES):
            try:
                await self._client.call(address, self._header, empty, timeout_ms=_PROBE_MS)
                return False
            except ConnectFailed as e:
                if isinstance(e.__cause__, ConnectionRefusedError):
                    return True
                if not isinstance(e.__cause__, ConnectionError):
                    return False  # no answer proves nothing
            except ConnectionLost:
                pass  # this connection was dead, too, or the process is just ending
            except (NetError, MQError) as e:
                log.debug("raft %s/%s: it is not known whether %s runs: %s", self._group, self._id, peer, e)
                return False
            await asyncio.sleep(_PROBE_AGAIN_S * attempt)
        return False

    def _refuse(self, request: Request, header: RaftMessage, why: str) -> MQError:
        text = f"is refused by raft {self._group}/{self._id}: node {header.sender[:_LONGEST_NAME]!r} {why}"
        now_ms = int(asyncio.get_running_loop().time() * 1000)
        self._warnings.warn(request.connection.peer, text, now_ms)
        return MQError(ResponseCode.SYSTEM_ERROR, f"node {header.sender[:_LONGEST_NAME]!r} {why}")
