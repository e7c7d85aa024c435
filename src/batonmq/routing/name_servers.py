"""The name servers of a cluster. Any of them can answer; when one does not, the next one is asked."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

from batonmq.net.client import RemotingClient
from batonmq.net.connection import Response
from batonmq.net.dispatch import Body
from batonmq.net.errors import NetError
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.namesrv import GetRouteInfo
from batonmq.protocol.names import AUTO_CREATE_TOPIC
from batonmq.protocol.registry import Header

CONNECT_TIMEOUT_S = 3.0
"""How long `NameServers.connect` waits for a name server; between tries it rests `CONNECT_PAUSE_S`."""
CONNECT_PAUSE_S = 0.1
TIMEOUT_MS = 1_000
"""How long one name server may take before the next one is asked."""


class NoNameServer(NetError):
    """None of the name servers that were given answered. The text says why, for each of them."""

    sent = False

    def __init__(self, problems: Sequence[tuple[str, str]]) -> None:
        """``problems``: address and reason."""
        addresses = ";".join(address for address, _ in problems)
        super().__init__(addresses, "no answer")
        reasons = "; ".join(f"{address}: {reason}" for address, reason in problems)
        closed = any("closed" in reason for _, reason in problems)
        advice = "check the address, and that a name server runs there"
        if closed:
            advice += "; if it wants TLS, or a certificate, give tls= (Spark: tls.enable, commands: --tls)"
        self.args = (f"no name server answers ({reasons}); {advice}",)


class NameServers:
    """The name servers of one cluster. The one that answered last is asked first."""

    def __init__(self, addresses: Sequence[str], net: RemotingClient, rng: random.Random) -> None:
        """`addresses` are at least one (`name_server_addresses`); `rng` chooses the first to be asked."""
        self.addresses = list(addresses)
        self._net = net
        self._first = rng.randrange(len(self.addresses))

    async def ask(self, header: Header, body: Body = b"", *, timeout_ms: float = 3_000) -> Response:
        """Ask one after the other until one answers.

        Raises the answer's `MQError`, or `NoNameServer` when none answered.
        """
        problems: list[tuple[str, str]] = []
        for _ in range(len(self.addresses)):
            address = self.addresses[self._first]
            try:
                return await self._net.call(address, header, body, timeout_ms=min(timeout_ms, TIMEOUT_MS))
            except NetError as error:
                problems.append((address, error.reason))
                self._first = (self._first + 1) % len(self.addresses)
        raise NoNameServer(problems)

    async def connect(self) -> None:
        """Check that a name server answers, so that a wrong address shows at the start and not with the first
        message. A name server that is just starting has `CONNECT_TIMEOUT_S` to come up.

        Raises `NoNameServer`; the owner of the connections closes them then.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + CONNECT_TIMEOUT_S
        while True:
            problems = await self._problems(max(0.1, deadline - loop.time()))
            if not problems:
                return
            if loop.time() + CONNECT_PAUSE_S >= deadline:
                raise NoNameServer(problems)
            await asyncio.sleep(CONNECT_PAUSE_S)

    async def _problems(self, timeout_s: float) -> list[tuple[str, str]]:
        """Why no name server answers, for each of them; empty as soon as one does."""
        loop = asyncio.get_running_loop()
        asking = {loop.create_task(self._problem(address, timeout_s)): address for address in self.addresses}
        problems: list[tuple[str, str]] = []
        try:
            for earliest in asyncio.as_completed(asking):
                address, problem = await earliest
                if problem is None:
                    self._first = self.addresses.index(address)
                    return []
                problems.append((address, problem))
        finally:
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
        return sorted(problems, key=lambda problem: self.addresses.index(problem[0]))

    async def _problem(self, address: str, timeout_s: float) -> tuple[str, str | None]:
        try:
            await self._net.call(address, GetRouteInfo(AUTO_CREATE_TOPIC), timeout_ms=timeout_s * 1000)
        except NetError as error:
            return address, error.reason
        except MQError as error:
            if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                return address, "something listens there, but it is not a name server"
        return address, None
