"""Runs brokers in this process, on this event loop: they share only a client and threads."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import random
from collections.abc import Coroutine, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from batonmq.broker.context import Broker
from batonmq.broker.service import BrokerService
from batonmq.common import garbage
from batonmq.common import log as logs
from batonmq.common.clock import Clock, SystemClock
from batonmq.common.config import ConfigError
from batonmq.common.files import reason
from batonmq.common.tasks import Tasks
from batonmq.common.threads import Threads
from batonmq.container.broker_file import BrokerFile
from batonmq.container.core import BrokerIdentity
from batonmq.container.place import Ended, StartFailed, StopFailed
from batonmq.net import RemotingClient
from batonmq.net.tls import TlsConfig, client_tls
from batonmq.store.errors import StoreError

log = logging.getLogger(__name__)

T = TypeVar("T")

SETTLE_AFTER_S: Final = 1.0
READERS: Final = 8
"""Threads for pulls that read from disk, for all brokers together."""
WRITERS: Final = 512
"""Most threads that open stores, write and flush; they start when they are needed. asyncio's default is four
more than there are processors: as many brokers that recover their logs, or a single one whose disk hangs,
would keep all others from their disks."""


class InProcess:
    """A `Place`."""

    def __init__(
        self, tls: TlsConfig, ended: Ended, clock: Clock | None = None, rng: random.Random | None = None
    ) -> None:
        """Raises `ConfigError` for TLS files that cannot be used."""
        self._tls = tls
        self._ended = ended
        self._clock = clock if clock is not None else SystemClock()
        self._rng = rng if rng is not None else random.Random()
        self._client = RemotingClient(tls=client_tls(tls))
        self._readers = Threads(READERS, "batonmq-read")
        self._running: dict[BrokerIdentity, BrokerService] = {}
        self._stopping: dict[BrokerIdentity, asyncio.Task[None]] = {}
        self._tasks = Tasks()
        self._settling: asyncio.TimerHandle | None = None

    async def open(self) -> None:
        """See `WRITERS`."""
        writers = Threads(WRITERS, "batonmq-write")
        writers.begin()
        asyncio.get_running_loop().set_default_executor(writers)

    async def start(self, file: BrokerFile) -> None:
        identity = file.identity
        try:
            service = BrokerService(
                file.config,
                file.store,
                file.ha,
                auth=file.auth,
                clock=self._clock,
                rng=random.Random(self._rng.getrandbits(64)),
                tls=self._tls,
                config_path=file.path,
                # A controller detects a dead broker when its connection closes, so each broker needs its own.
                # So does one that signs its requests.
                client=self._client if _shares_client(file) else None,
                readers=self._readers,
                neighbours=partial(self._neighbours, identity),
                log_identity=identity.canonical_name,
            )
            await service.start()
        except (ConfigError, StoreError) as error:
            raise StartFailed(str(error)) from error
        except OSError as error:
            raise StartFailed(reason(error)) from error
        except Exception as error:
            # A value that nothing checks before it is used, such as a host name that cannot be one, or a bug.
            # In the container's start it would end the other brokers, too.
            log.exception("%s cannot start", identity.canonical_name)
            raise StartFailed(f"{type(error).__name__}: {error}") from error
        self._running[identity] = service
        service.failed.add_done_callback(partial(self._failed, identity, service))
        self._settle()

    async def stop(self, identity: BrokerIdentity) -> None:
        service = self._running.pop(identity, None)
        if service is None:
            # The broker stops itself, or has just done so.
            if (stopping := self._stopping.get(identity)) is not None:
                await asyncio.wait([stopping])
            return
        stopping = self._stopping[identity] = self._as_broker(identity, service.stop())
        try:
            await stopping
        except (OSError, StoreError) as error:
            raise StopFailed(reason(error) if isinstance(error, OSError) else str(error)) from error
        except Exception as error:  # a bug; at the container's stop it must not end the stop of the others
            log.exception("%s cannot stop", identity.canonical_name)
            raise StopFailed(f"{type(error).__name__}: {error}") from error
        finally:
            del self._stopping[identity]
            self._settle()

    async def set_name_servers(self, addresses: str) -> None:
        change, now_ms = {"namesrvAddr": addresses}, self._clock.now_ms()
        brokers = [service.broker for service in self._running.values()]
        # At the same time: a change of one broker's keys may still wait for its disk.
        await asyncio.gather(
            *(each.settings.change(change, now_ms, each.role.epoch, keep=False) for each in brokers)
        )

    async def close(self) -> None:
        """Slaves first: one that acts as master may still have messages for another master in this
        process."""
        slaves = [each for each, service in self._running.items() if not service.broker.role.is_master]
        await asyncio.gather(*map(self._close_one, slaves))
        await asyncio.gather(*map(self._close_one, list(self._running)))
        if self._settling is not None:
            self._settling.cancel()
        await self._tasks.cancel()
        await self._client.close()
        self._readers.shutdown(wait=False)

    async def _close_one(self, identity: BrokerIdentity) -> None:
        try:
            await self.stop(identity)
        except StopFailed as error:
            log.error("%s did not stop in order: %s", identity.canonical_name, error)

    def _neighbours(self, identity: BrokerIdentity) -> Sequence[Broker]:
        return [service.broker for other, service in self._running.items() if other != identity]

    def _failed(
        self, identity: BrokerIdentity, service: BrokerService, failed: asyncio.Future[BaseException]
    ) -> None:
        if not failed.cancelled() and self._running.get(identity) is service:
            self._tasks.spawn(self._end(identity, failed.result()))

    async def _end(self, identity: BrokerIdentity, cause: BaseException) -> None:
        """The broker asked to be stopped."""
        text = reason(cause) if isinstance(cause, OSError) else str(cause)
        try:
            await self.stop(identity)
        except StopFailed as error:
            log.error("%s did not stop in order: %s", identity.canonical_name, error)
        finally:
            self._ended(identity, text)

    @staticmethod
    def _as_broker(identity: BrokerIdentity, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run `work` so that its log lines name the broker."""
        context = contextvars.copy_context()
        context.run(logs.log_identity.set, identity.canonical_name)
        return asyncio.get_running_loop().create_task(work, context=context)

    def _settle(self) -> None:
        """Run it a little later, and once for many brokers that start or stop together: it takes some 50
        ms."""
        if self._settling is not None:
            self._settling.cancel()
        self._settling = asyncio.get_running_loop().call_later(SETTLE_AFTER_S, garbage.settle)


def _shares_client(file: BrokerFile) -> bool:
    return not file.config.enable_controller_mode and file.auth.inner_credentials is None
