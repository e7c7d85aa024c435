"""The HTTP server that Prometheus asks. Its connections are bounded in number, and each wait for one in time:
the server of `prometheus_client` starts a thread for each, and waits for ever for what it asks."""

from __future__ import annotations

import contextlib
import logging
import socket
import sys
import time
from collections.abc import Callable
from socketserver import ThreadingMixIn
from threading import BoundedSemaphore, Thread
from typing import IO, Any, Final, cast
from wsgiref.simple_server import ServerHandler, WSGIRequestHandler, WSGIServer

log = logging.getLogger(__name__)

MAX_CONNECTIONS: Final = 16
"""More than a few Prometheus servers ask at a time; others are closed unanswered."""
TIMEOUT_S: Final = 10.0
"""Longest wait for the next bytes of a request, or for a peer to take those of an answer. Prometheus itself
waits that long by default."""
MAX_LINE: Final = 65_536
"""Bytes of a request's first line."""
CONNECTION_S: Final = 30.0
"""Longest life of a connection, for one request and its answer. A peer that sends a byte now and then would
otherwise hold its place for ever."""
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
        self._ends: dict[Any, float] = {}
        """Connection -> when it must be over."""
        super().__init__((str(address[0]), port), _Handler)
        self.app = app
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
        self._ends[request] = time.monotonic() + CONNECTION_S
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread
            self._over(request)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._over(request)

    def _over(self, request: Any) -> None:
        del self._ends[request]
        self._room.release()

    def service_actions(self) -> None:
        """Called twice a second, and after each accepted connection."""
        now = time.monotonic()
        for request, end in list(self._ends.items()):
            if now >= end:
                with contextlib.suppress(OSError):  # its thread has just closed it
                    request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        if isinstance(sys.exception(), OSError):  # the peer went away or was too slow
            log.debug("metrics: the request of %s failed", client_address, exc_info=True)
        else:
            log.exception("metrics: the request of %s failed", client_address)


class _Answer(ServerHandler):
    request_handler: WSGIRequestHandler
    """Which logs the request."""

    def handle_error(self) -> None:
        error = sys.exception()
        if isinstance(error, OSError):
            raise error  # to the server's `handle_error`; the base class prints a traceback
        super().handle_error()

    def log_exception(self, exc_info: Any) -> None:
        log.error("metrics: a request failed", exc_info=exc_info)


class _Handler(WSGIRequestHandler):
    timeout = TIMEOUT_S

    def handle(self) -> None:
        """As the base class does, which cannot be given another `ServerHandler`."""
        self.raw_requestline = self.rfile.readline(MAX_LINE + 1)
        if len(self.raw_requestline) > MAX_LINE:
            self.requestline = self.request_version = self.command = ""
            self.send_error(414)
        elif self.parse_request():
            server = cast(ScrapeServer, self.server)
            stdin, stdout = cast(IO[bytes], self.rfile), cast(IO[bytes], self.wfile)
            answer = _Answer(stdin, stdout, self.get_stderr(), self.get_environ(), multithread=False)
            answer.request_handler = self
            answer.run(server.app)

    def log_message(self, format: str, *args: Any) -> None:
        """Scrapes are not logged."""
