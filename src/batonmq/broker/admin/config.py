"""GET_BROKER_CONFIG and UPDATE_BROKER_CONFIG: reading and changing the configuration of a running broker."""

from __future__ import annotations

import logging
from typing import Final

from batonmq.broker.auth_config import AuthConfig
from batonmq.broker.config import BrokerConfig
from batonmq.broker.context import Broker
from batonmq.common.access_control import SWITCHES
from batonmq.common.config import ConfigError, changeable_keys, did_you_mean, keys_of, parse_properties
from batonmq.common.config_values import to_properties
from batonmq.net.dispatch import Dispatcher, Reply, Request
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker import admin as wire
from batonmq.protocol.json import encode

log = logging.getLogger(__name__)

READ_ONLY_KEYS: Final = frozenset({"brokerConfigPath", "rocketmqHome", "configBlackList"})
"""Keys that no request may change (RocketMQ's black list)."""


def register(dispatcher: Dispatcher, broker: Broker) -> None:
    """Bind the requests of this module."""
    handlers = _ConfigHandlers(broker)
    dispatcher.on(wire.GetBrokerConfig, handlers.get)
    dispatcher.on(wire.UpdateBrokerConfig, handlers.update)


class _ConfigHandlers:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def get(self, request: Request, header: wire.GetBrokerConfig) -> Reply:
        broker = self._broker
        text = to_properties(broker.settings.broker, broker.settings.store, broker.settings.ha)
        version = encode(broker.settings.version).decode()
        return Reply(wire.GetBrokerConfigResponse(version=version), text.encode())

    async def update(self, request: Request, header: wire.UpdateBrokerConfig) -> Reply:
        """Change keys in memory and in the configuration file; if one is refused, none is changed."""
        broker = self._broker
        try:
            changes = parse_properties(bytes(request.command.body).decode())
        except (UnicodeDecodeError, ConfigError) as error:
            raise MQError(ResponseCode.SYSTEM_ERROR, f"the body is not properties text: {error}") from None
        if not READ_ONLY_KEYS.isdisjoint(changes):
            raise MQError(ResponseCode.NO_PERMISSION, "Can not update config in black list.")
        self._check_changeable(changes)
        log.info("configuration changed by client=%s changes=%s", request.connection.peer, changes)
        try:
            await broker.settings.change(changes, broker.clock.now_ms(), broker.role.epoch)
        except ConfigError as error:
            raise MQError(ResponseCode.SYSTEM_ERROR, str(error)) from None
        except (OSError, UnicodeDecodeError) as error:
            log.error("the configuration file cannot be written, a restart undoes the change: %s", error)
            raise MQError(
                ResponseCode.SYSTEM_ERROR,
                f"in force until a restart: the configuration file cannot be written: {error}",
            ) from error
        return Reply()

    def _check_changeable(self, changes: dict[str, str]) -> None:
        broker = self._broker
        classes = (BrokerConfig, type(broker.settings.store), type(broker.settings.ha))
        known, changeable = keys_of(classes), changeable_keys(*classes)
        access_control = keys_of((AuthConfig,)) | SWITCHES.keys()
        for key in changes:
            if key in access_control:
                raise MQError(
                    ResponseCode.SYSTEM_ERROR,
                    f"{key} cannot be set: access control is a matter of the broker's file",
                )
            if key not in known:
                raise MQError(ResponseCode.SYSTEM_ERROR, f"unknown key {key}{did_you_mean(key, known)}")
            if key not in changeable:
                raise MQError(
                    ResponseCode.SYSTEM_ERROR,
                    f"{key} cannot change while the broker runs; set it in its file and restart",
                )
