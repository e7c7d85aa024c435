"""Server and client that speak the remoting protocol over asyncio; `dispatch.py` says what handlers
are, `interceptors.py` what is done around them."""

from batonmq.net.client import RemotingClient
from batonmq.net.connection import Connection, Response
from batonmq.net.dispatch import Dispatcher, Reply, Request
from batonmq.net.errors import CallTimeout, ConnectFailed, ConnectionLost, NetError
from batonmq.net.interceptors import Interceptor
from batonmq.net.limits import Limits
from batonmq.net.server import RemotingServer

__all__ = [
    "CallTimeout",
    "ConnectFailed",
    "Connection",
    "ConnectionLost",
    "Dispatcher",
    "Interceptor",
    "Limits",
    "NetError",
    "RemotingClient",
    "RemotingServer",
    "Reply",
    "Request",
    "Response",
]
