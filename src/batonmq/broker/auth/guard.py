"""The interceptor that lets a request pass only if its signature and its user's rights are right."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NoReturn

from batonmq.broker.auth.needs import needs_of, to_send
from batonmq.net.interceptors import Interceptor
from batonmq.protocol.codes import RequestCode, ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.signing import ACCESS_KEY

if TYPE_CHECKING:
    from batonmq.broker.auth.core import AccessTable
    from batonmq.broker.auth.needs import Known
    from batonmq.broker.auth_config import AuthConfig
    from batonmq.net.dispatch import Request

SHOWN: Final = 200
"""Most characters of a remark in a log line; it may hold a name that an unknown peer sent."""
HINTS: Final = frozenset(
    {int(RequestCode.NOTIFY_BROKER_ROLE_CHANGED), int(RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE)}
)
"""Controllers and name servers do not sign their notices, which only make a broker ask them."""


class Guard:
    """Authentication and, if it is switched on, authorisation."""

    def __init__(self, table: AccessTable, config: AuthConfig, known: Known) -> None:
        self._table = table
        self._known = known
        self._unsigned = config.unsigned_codes | HINTS
        self._free = config.free_codes | HINTS
        self._authorizes = config.authorization_enabled
        self._knows_producers = self._authorizes and int(RequestCode.HEART_BEAT) not in self._unsigned
        self.interceptor: Final = Interceptor(before=self._before)

    def _before(self, request: Request) -> None:
        command = request.command
        try:
            if command.code not in self._unsigned:
                self._table.authenticate(command.ext, command.body, command.version)
            if self._authorizes and command.code not in self._free:
                self._authorize(request)
        except MQError as error:
            request.connection.warn(f"request code={command.code} refused: {error.remark[:SHOWN]!r}")
            raise

    def may_send(self, user: str | None, topic: str, peer: str) -> bool:
        """See `Broker.may_send`."""
        if not self._knows_producers:
            return True
        try:
            self._table.authorize(user, [to_send(topic)], _address(peer))
        except MQError:
            return False
        return True

    def _authorize(self, request: Request) -> None:
        name = request.command.ext.get(ACCESS_KEY)
        user = self._table.user(name or "")
        if user is not None and user.is_super and user.enabled:
            return
        source_ip = _address(request.connection.peer)
        needs = needs_of(request.command, self._known)
        if needs is None:
            _refuse(f"User:{name} is not a super user, as request code={request.command.code} needs")
        self._table.authorize(name, needs, source_ip)


def _address(peer: str) -> str:
    return peer.rpartition(":")[0]


def _refuse(remark: str) -> NoReturn:
    raise MQError(ResponseCode.NO_PERMISSION, remark)
