"""``batonmq namesrv``, ``controller``, ``broker`` and ``container``: from a file to a running service.

All have one runner: it loads the configuration, starts the services, prints that they serve, waits for
SIGTERM or SIGINT and stops them in reverse order. The exit code is 0 after a signal. It is 1, with one line
on stderr, when a service cannot start or stops itself.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import click
import uvloop

from batonmq.broker.auth_config import AuthConfig
from batonmq.broker.config import BrokerConfig
from batonmq.common import garbage
from batonmq.common.config import ConfigError, describe
from batonmq.common.config_loader import load
from batonmq.common.config_values import to_properties
from batonmq.common.files import reason
from batonmq.common.log import set_up
from batonmq.common.threads import START_PATIENCE_S, close_runner, use_threads
from batonmq.container.config import ContainerConfig
from batonmq.controller.config import ControllerConfig
from batonmq.ha.config import HAConfig
from batonmq.namesrv.config import NamesrvConfig
from batonmq.net.limits import Limits
from batonmq.net.open_files import RESERVE, raise_file_limit
from batonmq.net.tls import TlsConfig
from batonmq.raft.errors import StorageCorrupt
from batonmq.store.config import StoreConfig
from batonmq.store.errors import StoreError

log = logging.getLogger(__name__)

OPEN_FILES = 65_536
"""The limit of open files that a program gives itself, where its hard limit is not lower."""


class Service(Protocol):
    """A service as the runner sees it."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    @property
    def ready_line(self) -> str:
        """Printed once it has started; empty: nothing is."""


async def serve(services: Sequence[Service], say: Callable[[str], None]) -> BaseException | None:
    """Run `services` until a signal or until one stops itself; returns the cause of that, or None."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[BaseException | None] = loop.create_future()

    def end(cause: BaseException | None) -> None:
        if not ended.done():
            ended.set_result(cause)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end, None)
    use_threads()
    started: list[Service] = []
    try:
        for service in services:
            if not await _started(service, ended):
                return ended.result()
            started.append(service)
            failed: asyncio.Future[BaseException] | None = getattr(service, "failed", None)
            if failed is not None:
                failed.add_done_callback(lambda f: end(None if f.cancelled() else f.result()))
            if service.ready_line:
                say(service.ready_line)
        garbage.settle()
        return await ended
    finally:
        for service in reversed(started):
            await service.stop()


async def _started(service: Service, ended: asyncio.Future[BaseException | None]) -> bool:
    """Start it; whether it has started. False: a signal came, and the start was not done soon after."""
    start = asyncio.ensure_future(service.start())
    either: list[asyncio.Future[Any]] = [start, ended]
    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    if not start.done():
        await asyncio.wait({start}, timeout=START_PATIENCE_S)
    if not start.done():
        start.cancel()
        await asyncio.wait({start})
    if start.cancelled():
        return False
    start.result()
    return True


def run(program: str, config_path: Path | None, make: Callable[[], Sequence[Service]]) -> int:
    """Run `program` in this process; `make` loads the configuration and builds the services.

    Returns the exit code.
    """

    set_up()
    allow_files(program)
    try:
        services = make()
    except ConfigError as error:
        # A service judges some values itself, and does not know which file they come from.
        known = config_path is None or str(config_path) in str(error)
        return _fail(program, str(error) if known else f"{config_path}: {error}")
    runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
    try:
        cause = runner.run(serve(services, _say))
    except (ConfigError, StoreError, StorageCorrupt) as error:
        return _fail(program, str(error))
    except OSError as error:
        return _fail(program, reason(error))
    finally:
        close_runner(
            runner, f"{program}: stopped before it had recovered its store; the next start recovers it\n"
        )
        logging.shutdown()
    if cause is None:
        return 0
    return _fail(program, f"stopped itself: {reason(cause) if isinstance(cause, OSError) else cause}")


def allow_files(program: str) -> None:
    """Raise this process's limit of open files, as Java does for its programs: a broker that may open no more
    files than the usual 1024 cannot open its log once it has so many clients."""
    wanted = Limits().max_connections
    allowed = raise_file_limit(OPEN_FILES - RESERVE)
    if allowed < wanted and program != "controller":  # which has its own limit, and says so
        log.warning(
            "connections beyond about %d are refused: this process may not open more files; raise its limit "
            "(ulimit -n, LimitNOFILE) to %d",
            allowed,
            wanted + RESERVE,
        )


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _fail(program: str, reason: str) -> int:
    sys.stderr.write(f"{program}: {reason}\n")
    return 1


def _program(
    name: str, classes: Sequence[type[Any]], more: Sequence[tuple[str, str, str]] = ()
) -> Callable[[Callable[..., Any]], click.Command]:
    """The options that every program takes, as RocketMQ's start scripts spell them. `more`: further options,
    the key that each sets, and its help."""

    def decorate(function: Callable[..., Any]) -> click.Command:
        @click.command(name, help=function.__doc__, context_settings={"help_option_names": ["-h", "--help"]})
        @click.option(
            "-c",
            "config",
            type=click.Path(path_type=Path),  # `load` reports an unreadable file, in one line
            help="Configuration file in RocketMQ's format: key=value lines.",
        )
        @click.option(
            "-n",
            "namesrv_addr",
            hidden=name not in ("broker", "container"),  # RocketMQ's start scripts pass it to all programs
            help="Name servers to register with, host:port;host:port (namesrvAddr).",
        )
        @click.option(
            "-p",
            "print_config",
            is_flag=True,
            help="Print every key with its meaning and its value in force, as a file, and exit.",
        )
        def command(
            config: Path | None, namesrv_addr: str | None, print_config: bool, **keys: str | None
        ) -> None:
            given = {"namesrvAddr": namesrv_addr, **{key: keys[key.lower()] for _, key, _ in more}}
            overrides = {key: value for key, value in given.items() if value}
            if print_config:
                try:
                    click.echo(_explain(config, classes, overrides), nl=False)
                except ConfigError as error:
                    raise SystemExit(_fail(name, str(error))) from None
                return
            raise SystemExit(run(name, config, lambda: function(config, overrides)))

        for option, key, text in more:
            command.params.append(click.Option([option, key.lower()], help=f"{text} ({key})."))
        return command

    return decorate


def _explain(config: Path | None, classes: Sequence[type[Any]], overrides: dict[str, str]) -> str:
    """Every key with its value in force, below a comment with its meaning."""
    values = dict(
        line.partition("=")[::2]
        for line in to_properties(*load(config, *classes, overrides=overrides)).splitlines()
    )
    lines = []
    for key in describe(*classes):
        limits = "" if key.limits is None else f" [{key.limits}]"
        running = " [may change while running]" if key.changeable else ""
        if key.doc:
            lines.append(f"# {key.doc}{limits}{running}")
        lines.append(f"{key.key}={values.get(key.key, '')}")
    return "\n".join(lines) + "\n"


@_program("namesrv", (NamesrvConfig, TlsConfig, ControllerConfig))
def namesrv(config_path: Path | None, overrides: dict[str, str]) -> list[Service]:
    """Run a name server: brokers register here, clients ask it for routes.

    It listens at port 9876 and needs no file; run two or three, which know nothing of each other, and give
    brokers and clients all of them. With enableControllerInNamesrv=true the process also runs a controller,
    from the same file.
    """
    from batonmq.controller.service import ControllerService
    from batonmq.namesrv.service import NamesrvService

    classes = (NamesrvConfig, TlsConfig, ControllerConfig)
    config, tls, controller_config = load(config_path, *classes, overrides=overrides)
    if config_path is not None:
        config = replace(config, config_store_path=str(config_path))
    services: list[Service] = [NamesrvService(config, tls=tls)]
    if config.enable_controller_in_namesrv:
        services.append(ControllerService(keeping_changes(controller_config, config_path), tls=tls))
    return services


@_program("controller", (ControllerConfig, TlsConfig))
def controller(config_path: Path | None, overrides: dict[str, str]) -> list[Service]:
    """Run a controller: it decides which replica of each broker set is master.

    A file to begin with (-c):

    \b
      controllerDLegerGroup=controllers
      controllerDLegerPeers=n0-127.0.0.1:9877
      controllerDLegerSelfId=n0
      controllerStorePath=/var/lib/batonmq/controller

    Run one, or three or five to survive the loss of one or two of them: controllerDLegerPeers then names
    them all (n0-host:port;n1-host:port;n2-host:port) and is the same in each file, controllerDLegerSelfId
    says which of them this one is. The keys of RocketMQ's JRaft controller (jRaftInitConf) do as well.
    """
    from batonmq.controller.service import ControllerService

    config, tls = load(config_path, ControllerConfig, TlsConfig, overrides=overrides)
    return [ControllerService(keeping_changes(config, config_path), tls=tls, alone=True)]


def keeping_changes(config: ControllerConfig, path: Path | None) -> ControllerConfig:
    """Let updateControllerConfig write to the program's own file, so that a change outlives a restart."""
    if path is None or config.config_store_path:
        return config
    return replace(config, config_store_path=str(path))


@_program("broker", (BrokerConfig, StoreConfig, HAConfig, AuthConfig, TlsConfig))
def broker(config_path: Path | None, overrides: dict[str, str]) -> list[Service]:
    """Run a broker: it stores messages and serves producers and consumers.

    Alone it needs no file, only -n. Several brokers with one log are a broker set: they replicate, and the
    master role moves by itself. Each of them needs a file like this (-c):

    \b
      brokerName=broker-a
      brokerIP1=10.0.0.5
      listenPort=10911
      storePathRootDir=/var/lib/batonmq/broker
      namesrvAddr=10.0.0.1:9876
      enableControllerMode=true
      controllerAddr=10.0.0.2:9877
      allAckInSyncStateSet=true

    All brokers of a set have the same brokerName; brokerIP1 is where clients reach this one. With
    allAckInSyncStateSet a message is acknowledged when all replicas in sync have it, and survives the loss
    of the master. Besides listenPort the broker uses listenPort + 1 (replication) and listenPort - 2 (old
    clients).
    """
    from batonmq.broker.service import BrokerService

    classes = (BrokerConfig, StoreConfig, HAConfig, AuthConfig, TlsConfig)
    config, store, ha, auth, tls = load(config_path, *classes, overrides=overrides)
    return [BrokerService(config, store, ha, auth=auth, tls=tls, config_path=config_path)]


@_program(
    "container",
    (ContainerConfig, TlsConfig),
    [("-b", "brokerConfigPaths", "Files of the brokers to start with, : between them")],
)
def container(config_path: Path | None, overrides: dict[str, str]) -> list[Service]:
    """Run a broker container: several brokers in one process, or spread over a few.

    A file to begin with (-c), and one for each broker, as 'batonmq broker' takes it:

    \b
      listenPort=10811
      brokerContainerIP=10.0.0.5
      namesrvAddr=10.0.0.1:9876
      brokerConfigPaths=/etc/batonmq/broker-a.conf:/etc/batonmq/broker-b.conf

    Each broker needs ports and a storePathRootDir that no other has. 'batonmq admin addBroker' and
    'removeBroker' add and remove brokers while the container runs. With containerProcesses=2 (or more) the
    brokers run in that many processes, each on a processor.
    """
    from batonmq.container.service import ConfiguredBrokers, ContainerService

    config, tls = load(config_path, ContainerConfig, TlsConfig, overrides=overrides)
    service = ContainerService(config, tls=tls, config_path=config_path)
    return [service, ConfiguredBrokers(service, config.broker_config_paths, _say)]
