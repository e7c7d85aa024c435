"""A broker with access control, and a client for each of its users."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.integration.broker.rig import configs

from batonmq.broker.auth_config import AuthConfig
from batonmq.broker.service import BrokerService
from batonmq.net import RemotingClient
from batonmq.net.connection import Response
from batonmq.protocol.bodies.auth import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker import auth as wire
from batonmq.protocol.json import encode
from batonmq.protocol.registry import Header
from batonmq.protocol.signing import Credentials

ROOT = Credentials("root", "root-secret")
INNER = Credentials("inner", "inner-secret")
AUTH: dict[str, Any] = {
    "authentication_enabled": True,
    "authorization_enabled": True,
    "init_authentication_user": '{"username":"root","password":"root-secret"}',
    "inner_client_authentication_credentials": '{"accessKey":"inner","secretKey":"inner-secret"}',
}
CLUSTER = "DefaultCluster"


class Rig:
    """One broker, and a client for each user."""

    def __init__(self, service: BrokerService) -> None:
        self.service = service
        self._clients: dict[Credentials | None, RemotingClient] = {}

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.service.port}"

    async def ask(
        self,
        header: Header,
        body: bytes = b"",
        *,
        by: Credentials | None = ROOT,
        address: str = "",
        accept: Sequence[int] = (0,),
    ) -> Response:
        client = self._clients.get(by)
        if client is None:
            client = self._clients[by] = RemotingClient(credentials=by)
        return await client.call(address or self.address, header, body, accept=accept)

    async def refused(
        self, header: Header, body: bytes = b"", *, by: Credentials | None = ROOT
    ) -> tuple[int, str]:
        """Code and remark."""
        with pytest.raises(MQError) as caught:
            await self.ask(header, body, by=by)
        return caught.value.code, caught.value.remark

    async def user(
        self, name: str, *, type_name: str | None = None, by: Credentials | None = ROOT
    ) -> Credentials:
        secret = f"{name}-secret"
        await self.ask(wire.CreateUser(name), encode(UserInfo(password=secret, user_type=type_name)), by=by)
        return Credentials(name, secret)

    async def allow(self, user: Credentials, resource: str, *actions: str, decision: str = "Allow") -> None:
        await self.ask(
            wire.CreateAcl(f"User:{user.access_key}"), acl(user, resource, *actions, decision=decision)
        )

    async def close(self) -> None:
        for client in self._clients.values():
            await client.close()
        if not self.service.broker.role.stopping:
            await self.service.stop()


def acl(user: Credentials, resource: str, *actions: str, decision: str = "Allow") -> bytes:
    entry = PolicyEntryInfo(resource=resource, actions=list(actions), decision=decision)
    return encode(AclInfo(subject=f"User:{user.access_key}", policies=[PolicyInfo(entries=[entry])]))


NO_KEYS: Mapping[str, Any] = {}
Starter = Callable[..., Awaitable[Rig]]


@asynccontextmanager
async def starting(root: Path) -> AsyncIterator[Starter]:
    """Starts brokers whose store is in `root`, with these keys of `BrokerConfig` and `AuthConfig`; stops them
    in the end."""
    running: list[Rig] = []

    async def starter(*, broker: Mapping[str, Any] = NO_KEYS, **auth: Any) -> Rig:
        service = BrokerService(*configs(root, **broker), auth=AuthConfig(**{**AUTH, **auth}))
        await service.start()
        running.append(Rig(service))
        return running[-1]

    yield starter
    for rig in running:
        await rig.close()


NO = int(ResponseCode.NO_PERMISSION)
