"""The HTTP server that Prometheus asks. Its connections are bounded in number, and each wait for one in time:
the server of `prometheus_client` starts a thread for each, and waits for ever for what it asks."""

from __future__ import annotations

import logging
import socket
import sys
import time
from collections.abc import Callable
from socketserver import ThreadingMixIn
from threading import BoundedSemaphore, Thread
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

log = logging.getLogger(__name__)

MAX_CONNECTIONS: Final = 16
"""More than a few Prometheus servers ask at a time; others are closed unanswered."""
TIMEOUT_S: Final = 10.0
"""Longest wait for the next bytes of a request, or for a peer to take those of an answer. Prometheus itself
waits that long by default."""
PAUSE_S: Final = 0.2
"""After a connection that could not be accepted."""


class ScrapeServer(ThreadingMixIn, WSGIServer):
    """Answers in a thread for each connection until `close`."""

    daemon_threads = True

    def __init__(self, host: str, port: int, app: Callable[..., Any]) -> None:
        """Listens at once. Raises `OSError`. `app`: WSGI, called by several threads."""
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family, _, _, _, address = found[0]
        self._room = BoundedSemaphore(MAX_CONNECTIONS)
        super().__init__((str(address[0]), port), _Handler)
        self.set_app(app)
        self._thread = Thread(target=self.serve_forever, name="batonmq-scrapes", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Accept no more connections. Blocks for up to half a second."""
        self.shutdown()
        self.server_close()
        self._thread.join()

    def get_request(self) -> tuple[socket.socket, Any]:
        try:
            return super().get_request()
        except OSError:
            # Too many open files: the connection waits, and the caller would try again at once, for ever.
            time.sleep(PAUSE_S)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._room.acquire(blocking=False):
            log.debug("metrics: too many connections, closing that of %s", client_address)
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread
            self._room.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        if isinstance(sys.exception(), OSError):  # the peer went away or was too slow
            log.debug("metrics: the request of %s failed", client_address, exc_info=True)
        else:
            log.exception("metrics: the request of %s failed", client_address)


class _Handler(WSGIRequestHandler):
    timeout = TIMEOUT_S

    def log_message(self, format: str, *args: Any) -> None:
        """Scrapes are not logged."""
