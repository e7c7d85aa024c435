"""A client's session: its connections and routes, and the id that brokers know it by."""

from __future__ import annotations

import itertools
import os
import random
import ssl
from collections.abc import Iterable

from batonmq.common.addresses import local_ip
from batonmq.common.clock import Clock
from batonmq.net.client import RemotingClient
from batonmq.net.dispatch import Dispatcher
from batonmq.protocol.signing import Credentials
from batonmq.routing.session import Session

_instances = itertools.count()


class ClientSession(Session):
    """The session of one producer or consumer. ``ip``: this machine's address; found out when None."""

    def __init__(
        self,
        namesrv: str | Iterable[str],
        *,
        dispatcher: Dispatcher | None = None,
        tls: ssl.SSLContext | None = None,
        credentials: Credentials | None = None,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        poll_interval_ms: int = 30_000,
        remoting: RemotingClient | None = None,
        ip: str | None = None,
    ) -> None:
        rng = rng if rng is not None else random.Random()
        self.ip = ip if ip is not None else local_ip()
        self.client_id = f"{self.ip}@{os.getpid()}#{next(_instances)}#{rng.getrandbits(32)}"
        """Unlike any other client's; brokers and rebalance know the client by it."""
        super().__init__(
            namesrv,
            dispatcher=dispatcher,
            tls=tls,
            credentials=credentials,
            clock=clock,
            rng=rng,
            poll_interval_ms=poll_interval_ms,
            remoting=remoting,
        )
