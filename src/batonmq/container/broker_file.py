"""Reads a broker's configuration file for a container, and checks it before anything starts.

Source: RocketMQ's `BrokerContainerStartup.createAndInitializeBroker`, `BrokerContainerProcessor.addBroker`.
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from batonmq.broker.auth_config import AuthConfig
from batonmq.broker.config import BrokerConfig
from batonmq.broker.replica.fixed_role import SLAVE
from batonmq.broker.service import VIP_PORT_DISTANCE
from batonmq.common.addresses import local_ip
from batonmq.common.config import ConfigError, keys_of
from batonmq.common.config_loader import NoConfigFile, load
from batonmq.common.metrics_config import MetricsExporterType
from batonmq.common.properties import property_lines
from batonmq.container.core import BrokerClaims, BrokerIdentity, Listener
from batonmq.ha.config import HAConfig
from batonmq.protocol.codes import MASTER_ID
from batonmq.store.config import StoreConfig

SLAVE_MEMORY_LESS: Final = 10
"""Percent of the memory that a slave leaves to the masters beside it (accessMessageInMemoryMaxRatio)."""
MAX_BYTES: Final = 1 << 20
"""Largest configuration file. A request may name any file."""


class Unreadable(ConfigError):
    """The file does not exist, or is not a configuration file."""


@dataclass(frozen=True, slots=True)
class BrokerFile:
    """A broker that is to be started."""

    path: Path
    config: BrokerConfig
    store: StoreConfig
    ha: HAConfig
    auth: AuthConfig
    claims: BrokerClaims

    @property
    def identity(self) -> BrokerIdentity:
        return self.claims.identity


def read_broker_file(path: Path, namesrv_addr: str) -> BrokerFile:
    """Load and check the file. `namesrv_addr`: the container's name servers; if empty, those in the file.

    Blocks. Raises `Unreadable`, `NoConfigFile` or another `ConfigError`; the text names the file.
    """
    _check_regular(path)
    text = _text(path)
    _check_keys(path, text)
    overrides = {"namesrvAddr": namesrv_addr} if namesrv_addr else {}
    config, store, ha, auth = load(
        path, BrokerConfig, StoreConfig, HAConfig, AuthConfig, overrides=overrides, text=text
    )
    slave = not config.enable_controller_mode and config.broker_role == SLAVE
    if not config.broker_name:
        config = replace(config, broker_name=socket.gethostname())
    if slave and config.broker_id <= MASTER_ID:
        raise ConfigError(f"{path}: brokerId={config.broker_id}: slave broker id must be > 0")
    if slave:
        ratio = max(0, store.access_message_in_memory_max_ratio - SLAVE_MEMORY_LESS)
        store = replace(store, access_message_in_memory_max_ratio=ratio)
    broker_id = config.broker_id if slave or config.enable_controller_mode else MASTER_ID
    identity = BrokerIdentity(config.broker_cluster_name, config.broker_name, max(broker_id, MASTER_ID))
    try:
        directories = _directories(store)
    except (OSError, RuntimeError, ValueError) as error:  # a loop of symbolic links, an invalid name
        raise ConfigError(f"{path}: storePathRootDir or storePathCommitLog: {error}") from None
    claims = BrokerClaims(identity, slave, tuple(_listeners(config, ha)), directories)
    return BrokerFile(path, config, store, ha, auth, claims)


def inside(path: Path, directories: Iterable[str]) -> bool:
    """Whether the file is below one of the directories, symbolic links resolved. Blocks."""
    real = path.resolve()
    return any(real.is_relative_to(Path(each).resolve()) for each in directories)


def _check_regular(path: Path) -> None:
    """Refuse anything but a regular file: reading a pipe or a device might never end."""
    try:
        found = path.stat()
    except OSError as error:
        raise Unreadable(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise Unreadable(f"{str(path)!r}: cannot be read: {error}") from None
    if not stat.S_ISREG(found.st_mode):
        raise Unreadable(f"{path}: is not a file")
    if found.st_size > MAX_BYTES:
        raise Unreadable(f"{path}: is not a configuration file: it has {found.st_size} bytes")


def _text(path: Path) -> str:
    """The contents. A file in /proc is regular and of 0 bytes to `_check_regular`, whatever it holds: it may
    be endless, and a read of /proc/kmsg waits for the system's next message. A thread that waits is lost to
    all brokers of the process."""
    data = bytearray()
    try:
        with open(path, "rb", buffering=0, opener=_without_waiting) as file:
            while len(data) <= MAX_BYTES:
                piece = file.read(MAX_BYTES + 1 - len(data))
                if piece is None:
                    raise Unreadable(f"{path}: is not a configuration file: it has no end yet")
                if not piece:
                    return data.decode()
                data += piece
    except OSError as error:
        raise Unreadable(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from None
    raise Unreadable(f"{path}: is not a configuration file: it has more than {MAX_BYTES} bytes")


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def _check_keys(path: Path, text: str) -> None:
    """A file without any key of a broker would start one with nothing but defaults."""
    try:
        keys = {line.key for line in property_lines(text)}
    except ValueError:
        return  # `load` says what is wrong
    if keys.isdisjoint(keys_of((BrokerConfig, StoreConfig, HAConfig))):
        raise NoConfigFile(f"{path}: is not a configuration file: no line sets a key that is known here")


def _listeners(config: BrokerConfig, ha: HAConfig) -> Iterable[Listener]:
    host, port = config.bind_address, config.listen_port
    yield Listener("listenPort", host, port)
    if config.vip_channel_enabled and port > VIP_PORT_DISTANCE:
        yield Listener(f"listenPort - {VIP_PORT_DISTANCE}", host, port - VIP_PORT_DISTANCE)
    if ha.ha_listen_port:
        yield Listener("haListenPort", host, ha.ha_listen_port)
    elif port:
        yield Listener("listenPort + 1", host, port + 1)
    if config.metrics_exporter_type is MetricsExporterType.PROM:
        where = config.metrics_prom_exporter_host or config.broker_ip1 or local_ip()
        yield Listener("metricsPromExporterPort", where, config.metrics_prom_exporter_port)


def _directories(store: StoreConfig) -> frozenset[str]:
    return frozenset(str(path.resolve()) for path in (store.root, store.commit_log_path))
