"""The broker as a program: its ports, its timers, its start and its stop, and the change of its role.

Order of a start: store (recovery), tables, ports, role, name servers. A master without controllers takes its
role from the file at once; in controller mode `replicas.py` asks the controllers and calls `change_role`.
Order of a stop: name servers, requests under way, role, tables, store; what was acknowledged is on disk
afterwards.
"""

from __future__ import annotations

import asyncio
import logging
import random
import socket
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from batonmq.broker.acks import without_meaning
from batonmq.broker.appender import Appender
from batonmq.broker.config import MASTER_ID, BrokerConfig
from batonmq.broker.consumers import ConsumerTable
from batonmq.broker.context import Broker, BrokerRole
from batonmq.broker.delay import parse_delay_levels
from batonmq.broker.handlers import (
    admin,
    client,
    offsets,
    pull,
    query,
    replication,
    send,
    statistics,
    topics,
)
from batonmq.broker.handlers.keep import keep_tables
from batonmq.broker.held_pulls import QueueKey
from batonmq.broker.identity import IdentityFiles
from batonmq.broker.metrics import BrokerMetrics
from batonmq.broker.new_topics import NewTopics
from batonmq.broker.offsets import OffsetTable
from batonmq.broker.persist import TableFile
from batonmq.broker.producers import ProducerTable
from batonmq.broker.registration import Registration
from batonmq.broker.replicas import ReplicasManager
from batonmq.broker.schedule import DelaySchedule
from batonmq.broker.stats import SAMPLE_INTERVAL_MS, BrokerStats
from batonmq.broker.subscriptions import SubscriptionTable
from batonmq.broker.topics import TopicTable
from batonmq.common.clock import Clock, SystemClock
from batonmq.common.config import ConfigError, changed_keys
from batonmq.common.config_file import change_file
from batonmq.ha.config import HAConfig
from batonmq.ha.security import security_of
from batonmq.ha.service import HAService
from batonmq.ha.sync_state import SyncStateSet
from batonmq.net import Connection, Dispatcher, Interceptor, Limits, RemotingClient, RemotingServer
from batonmq.net.server import cannot_listen
from batonmq.net.tls import TlsConfig, client_context, server_tls
from batonmq.store.config import FlushDiskType, StoreConfig
from batonmq.store.store import MessageStore

log = logging.getLogger(__name__)

T = TypeVar("T")

DRAIN_MS: Final = 5_000
"""How long a stop waits for sends that wait for replicas or disk."""
VIP_PORT_DISTANCE: Final = 2
"""The VIP port is this much below listenPort."""
INDEX_SLICE: Final = 100
"""Records indexed before other work gets its turn: about a millisecond, most of it for pages of the index
that were written to disk since and are written to again."""
INDEX_DELAY_S: Final = 1.0
"""New messages are indexed so much later."""
INDEX_SHARE: Final = 10
"""Indexing rests this many times as long as it worked, so that it takes at most a tenth of the processor."""


def local_address() -> str:
    """Address of the interface that leads out of this host; 127.0.0.1 if none does. Sends nothing.

    The one socket that is not opened through the loop: it asks the routing table only. Under the simulator
    brokerIP1 must be given, or the answer is this machine's.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # TEST-NET-1: never assigned, always routed to the outside
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


class BrokerService:
    """One broker: ``await start()``, ``port``, ``await stop()``."""

    def __init__(
        self,
        config: BrokerConfig,
        store_config: StoreConfig,
        ha_config: HAConfig,
        *,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        tls: TlsConfig | None = None,
        limits: Limits | None = None,
        config_path: Path | None = None,
    ) -> None:
        """`config_path`: the file the configuration is from; `updateBrokerConfig` changes it as well.

        Raises `ConfigError` for values that do not fit together.
        """
        self._config_path = config_path
        if not config.broker_name:
            config = replace(config, broker_name=socket.gethostname())
        if not config.broker_ip1:
            config = replace(config, broker_ip1=local_address())
        if not config.broker_ip2:
            config = replace(config, broker_ip2=config.broker_ip1)
        if config.broker_role == "SLAVE" and not config.enable_controller_mode:
            raise ConfigError(
                "brokerRole=SLAVE: a slave needs enableControllerMode=true and controllerAddr here; "
                "fixed master and slave roles are not available"
            )
        self._config = config
        self._store_config = store_config
        self._ha_config = ha_config
        self._clock = clock if clock is not None else SystemClock()
        self._rng = rng if rng is not None else random.Random()
        self._tls = tls if tls is not None else TlsConfig()
        self._ha_security = security_of(ha_config, self._tls)
        limits = limits if limits is not None else Limits()
        frame_bytes = max(limits.max_frame_bytes, store_config.max_message_size + (1 << 20))
        self._limits = replace(limits, max_frame_bytes=frame_bytes)
        self._dispatcher = Dispatcher()
        self._dispatcher.intercept(Interceptor(closed=self._connection_closed))
        self._servers: list[RemotingServer] = []
        self._tasks: set[asyncio.Task[Any]] = set()
        self._saving: set[str] = set()
        self._saves: dict[str, tuple[Callable[[], bytes], asyncio.Task[OSError | None]]] = {}
        """What each table is encoded with, and the last write of it that was asked for."""
        self._indexing: asyncio.Task[None] | None = None
        self._index_waits = False
        """The log cannot be read for the index: said once, not with each try."""
        self._queues_dirty = False
        self._pulls: pull.PullHandlers
        self._registration: Registration
        self._replicas: ReplicasManager | None = None
        self.broker: Broker
        self.failed: asyncio.Future[BaseException]
        """Done when the broker has to be stopped, with the cause. Set when it starts."""
        self.metrics: BrokerMetrics | None = None
        """Set once the broker starts."""
        directory = store_config.root / "config"
        self._files = {
            name: TableFile(directory / f"{name}.json")
            for name in ("topics", "deletedTopics", "subscriptionGroup", "consumerOffset", "delayOffset")
        }

    @property
    def port(self) -> int:
        """The port for clients that is listened on."""
        return self._servers[0].port

    @property
    def ready_line(self) -> str:
        """What RocketMQ's broker prints when it is up; scripts wait for it."""
        config = self.broker.config
        line = f"The broker[{config.broker_name}, {self.broker.address}] boot success. serializeType=JSON"
        return f"{line} and name server is {config.namesrv_addr}" if config.namesrv_addr else line

    # -- start

    async def start(self) -> None:
        """Open the store, listen, take the role of the file (without controllers), register.

        Raises `ConfigError`, `StoreError` or `OSError`; nothing is left open then.
        """
        loop = asyncio.get_running_loop()
        self.failed = loop.create_future()
        config = self._config
        for line in without_meaning(
            controller_mode=config.enable_controller_mode,
            slave_acting_master=config.enable_slave_acting_master,
            set_keys=changed_keys(config),
            all_ack=config.all_ack_in_sync_state_set,
        ):
            log.warning("%s", line)
        store = await loop.run_in_executor(None, self._open_store)
        try:
            self._build(store)
            self.metrics = BrokerMetrics(self.broker)
            self.metrics.watch(self._dispatcher)
            await self._listen()
            await self.metrics.start()
        except BaseException:
            await self._stop_metrics()
            await self._close_ports()
            store.close()
            raise
        broker = self.broker
        self._registration = Registration(broker)
        broker.register_now = self._registration.now
        broker.start_time_ms = self._clock.now_ms()
        if self._replicas is not None:
            self._replicas.start()
        else:
            broker.role = BrokerRole[config.broker_role]
            broker.broker_id = config.broker_id
            broker.schedule.start()
            self._registration.start()
        self._spawn(self._persist_offsets())
        self._spawn(self._persist_delays())
        self._spawn(self._housekeeping())
        self._spawn(self._flush_queues())
        self._spawn(self._clean_disk())

    def _open_store(self) -> MessageStore:
        return MessageStore.open(
            self._store_config,
            self._clock,
            wait_for_confirm=self._config.enable_controller_mode,
            delays_ms=parse_delay_levels(self._config.message_delay_level),
        )

    def _build(self, store: MessageStore) -> None:
        config, clock = self._config, self._clock
        broker = self.broker = Broker(
            config=config,
            store_config=self._store_config,
            ha_config=self._ha_config,
            clock=clock,
            rng=self._rng,
            store=store,
            topics=TopicTable(config, clock),
            subscriptions=SubscriptionTable(config, clock),
            offsets=OffsetTable(clock, config.consumer_offset_update_version_step),
            consumers=ConsumerTable(),
            producers=ProducerTable(),
            stats=BrokerStats(clock.now_ms()),
            outer=RemotingClient(tls=client_context(self._tls)),
            role=BrokerRole.SLAVE,
            broker_id=-1,
        )
        broker.schedule = DelaySchedule(broker)
        broker.appender = Appender(broker, self._on_visible)
        broker.new_topics = NewTopics(partial(keep_tables, broker))
        restore: dict[str, Callable[[bytes], None]] = {
            "topics": broker.topics.restore,
            "deletedTopics": broker.topics.deleted.restore,
            "subscriptionGroup": broker.subscriptions.restore,
            "consumerOffset": broker.offsets.restore,
            "delayOffset": broker.schedule.restore,
        }
        for name, take in restore.items():
            self._files[name].load(take)
        broker.topics.on_change = lambda changed: self._topics_changed()
        broker.topics.deleted.on_change = partial(self._save, "deletedTopics", broker.topics.deleted.encode)
        broker.subscriptions.on_change = self._groups_changed
        broker.offsets.on_new = broker.tables.changed
        broker.tables_written = self._tables_written
        broker.save_config = self._save_config

    async def _listen(self) -> None:
        config, broker = self._config, self.broker
        tls = server_tls(self._tls)

        def server(port: int) -> RemotingServer:
            return RemotingServer(self._dispatcher, config.bind_address, port, tls=tls, limits=self._limits)

        first = server(config.listen_port)
        await self._start_server(first)
        broker.address = f"{config.broker_ip1}:{first.port}"
        if config.enable_controller_mode:
            broker.ha = await self._start_ha(first.port)
            identity = self._ha_config.store_path_broker_identity
            identity = identity or self._store_config.root / "brokerIdentity"
            self._replicas = ReplicasManager(self, IdentityFiles(identity))
            self._replicas.register(self._dispatcher)
            broker.ha_address = f"{config.broker_ip2}:{broker.ha.port}"
        else:
            broker.ha_address = f"{config.broker_ip2}:{self._ha_config.ha_listen_port or first.port + 1}"
        for module in (admin, client, offsets, query, replication, send, statistics, topics):
            module.register(self._dispatcher, broker)
        self._pulls = pull.register(self._dispatcher, broker)
        if config.vip_channel_enabled and config.listen_port > VIP_PORT_DISTANCE:
            await self._start_server(server(config.listen_port - VIP_PORT_DISTANCE))

    async def _start_server(self, server: RemotingServer) -> None:
        await server.start()
        self._servers.append(server)

    async def _start_ha(self, listen_port: int) -> HAService:
        store_config, ha_config = self._store_config, self._ha_config
        epoch_file = ha_config.store_path_epoch_file or store_config.root / "epochFileCheckpoint"
        port = ha_config.ha_listen_port or (listen_port + 1 if self._config.listen_port else 0)
        ha = HAService(
            self.broker.store,
            ha_config,
            self._clock,
            epoch_file=epoch_file,
            port=port,
            host=self._config.bind_address,
            file_size=store_config.mapped_file_size_commit_log,
            sync_flush=store_config.flush_disk_type is FlushDiskType.SYNC_FLUSH,
            flush_interval_ms=store_config.flush_interval_commit_log,
            security=self._ha_security,
        )
        ha.on_progress = self.broker.appender.progress
        self.broker.tables.members = ha.other_members
        try:
            await ha.start()
        except OSError as error:
            raise cannot_listen(f"replication port {port}", error) from error
        return ha

    # -- stop

    async def stop(self) -> None:
        """Leave the name servers, answer what is under way, write everything to disk, close."""
        broker = self.broker
        if self._replicas is not None:
            await self._replicas.stop()
        await self._registration.stop()
        lost = broker.store.failure is not None
        if not lost:
            await self._drain()
        broker.closing = True
        broker.new_topics.abandon()
        self._pulls.release_all()
        broker.schedule.stop()
        for server in self._servers:
            await server.stop(drain_ms=0)
        self._pulls.close()
        if broker.ha is not None:
            await broker.ha.stop()
        broker.appender.abandon()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await broker.appender.stop()
        await broker.new_topics.stop()
        await broker.outer.close()
        if not lost:
            await self._save_all()
        await self._stop_metrics()
        close = broker.store.abandon if lost else broker.store.close
        await asyncio.get_running_loop().run_in_executor(None, close)

    def end(self, cause: Exception) -> None:
        """Have the program that runs this broker stop it (`failed`)."""
        if not self.failed.done():
            self.failed.set_result(cause)

    async def _stop_metrics(self) -> None:
        if self.metrics is not None:
            await self.metrics.stop()

    async def _drain(self) -> None:
        """Give sends that wait for replicas or disk the time to be answered; new ones are still served."""
        broker, deadline = self.broker, self._clock.monotonic_ms() + DRAIN_MS
        # Looked at, not signalled: an event would cost every acknowledgement something.
        while broker.appender.backlog or broker.new_topics.held:
            if self._clock.monotonic_ms() >= deadline:
                break
            await asyncio.sleep(0.01)

    async def _close_ports(self) -> None:
        for server in self._servers:
            await server.stop()
        if hasattr(self, "broker"):
            if self.broker.ha is not None:
                await self.broker.ha.stop()
            await self.broker.outer.close()

    # -- the role

    async def become_master(self, epoch: int, sync_state_set: SyncStateSet, broker_id: int) -> None:
        """This replica was elected for `epoch`. `broker_id` is its own id at the controller.

        Writes are accepted when this returns. Raises as `HAService.become_master`; the role stays slave then.
        """
        broker = self.broker
        assert broker.ha is not None, "roles change in controller mode only"
        if not broker.role.is_master:
            self._pulls.release_all()
        broker.ha.local_id = broker_id
        await broker.ha.become_master(epoch, sync_state_set)
        broker.epoch = epoch
        for table in (broker.topics, broker.subscriptions, broker.offsets):
            table.begin_term(epoch)
        broker.tables.begin_term()
        self._heed_topics_begun_anew()
        broker.topics.rebuild(broker.store.queues())
        self._persist_tables()
        broker.role = BrokerRole.SYNC_MASTER
        broker.broker_id = MASTER_ID
        broker.master_address = broker.address
        broker.master_ha_address = broker.ha_address
        broker.schedule.start()
        self._registration.start()
        log.info("master epoch=%d", epoch)

    def _heed_topics_begun_anew(self) -> None:
        """Those that the log tells of since the former master's tables were copied last: it had these topics,
        and offsets in them that are not known here. What a master knows of its own is not out of date."""
        broker = self.broker
        if not broker.role.is_master:
            broker.topics.deleted.discard(broker.store.begun_anew)
            for topic in broker.store.begun_anew:
                broker.offsets.remove_topic(topic)
        broker.store.begun_anew.clear()

    async def become_slave(
        self, epoch: int, broker_id: int, master_id: int, master_address: str, master_ha_address: str
    ) -> None:
        """Follow the master of `epoch`; its replication address may be unknown yet (empty). Sends that were
        not acknowledged get an error; held pulls are answered."""
        broker = self.broker
        assert broker.ha is not None, "roles change in controller mode only"
        broker.role = BrokerRole.SLAVE
        broker.epoch = epoch
        broker.broker_id = broker_id
        broker.master_address = master_address
        broker.master_ha_address = master_ha_address or None
        broker.appender.abandon()
        broker.new_topics.abandon()
        broker.schedule.stop()
        self._pulls.release_all()
        broker.ha.local_id = broker_id
        await broker.ha.become_slave(master_ha_address or None, master_id, epoch)
        self._registration.start()
        log.info("slave of %s epoch=%d", master_address, epoch)

    # -- what the parts tell each other

    def _on_visible(self, grown: list[tuple[QueueKey, int]]) -> None:
        self._pulls.on_visible(grown)
        self.broker.schedule.on_visible(grown)
        self._queues_dirty = True
        if self._indexing is None:
            self._indexing = self._spawn(self._build_index())

    async def _build_index(self) -> None:
        loop, store = asyncio.get_running_loop(), self.broker.store
        pause_s = INDEX_DELAY_S
        try:
            more = True
            while more:
                await asyncio.sleep(pause_s)
                try:
                    while (reading := store.index_reading()) is not None:
                        await loop.run_in_executor(None, reading)
                except OSError as error:
                    if not self._index_waits:
                        log.error(
                            "the index waits: what comes next for it in the log cannot be read: %s", error
                        )
                    self._index_waits = True
                    pause_s = INDEX_DELAY_S
                    continue
                self._index_waits = False
                began = loop.time()
                more = store.build_index(INDEX_SLICE)
                pause_s = (loop.time() - began) * INDEX_SHARE
        finally:
            self._indexing = None

    def _connection_closed(self, connection: Connection) -> None:
        self.broker.consumers.connection_closed(connection)
        self.broker.producers.connection_closed(connection)
        self.broker.tables.closed(connection)

    def _topics_changed(self) -> None:
        self._save("topics", self.broker.topics.encode)
        self.broker.tables.changed()
        self.broker.register_now()

    def _groups_changed(self) -> None:
        self._save("subscriptionGroup", self.broker.subscriptions.encode)
        self.broker.tables.changed()

    # -- files

    def _persist_tables(self) -> None:
        self._save("topics", self.broker.topics.encode)
        self._save("subscriptionGroup", self.broker.subscriptions.encode)

    def _save(self, name: str, encode: Callable[[], bytes]) -> None:
        """Write a table soon; changes of one loop turn are written together."""
        if name not in self._saving:
            self._saving.add(name)
            self._saves[name] = encode, self._spawn(self._write(name, encode))

    async def _write(self, name: str, encode: Callable[[], bytes]) -> OSError | None:
        await asyncio.sleep(0)
        self._saving.discard(name)
        try:
            await self._files[name].save(encode)
        except OSError as error:
            log.error("%s cannot be written: %s", self._files[name].path, error)
            return error
        return None

    async def _tables_written(self) -> None:
        for name, (encode, save) in list(self._saves.items()):
            if save.done() and save.result() is not None:
                self._save(name, encode)  # the disk may take it by now
        saves = [save for _, save in self._saves.values()]
        if saves:
            await asyncio.wait(saves)  # which, unlike gather, leaves them alone when who waits is cancelled
        for save in saves:
            if (error := save.result()) is not None:
                raise error

    async def _save_config(self, changes: Mapping[str, str]) -> None:
        if self._config_path is not None:
            loop = asyncio.get_running_loop()
            # With the file gone a restart says so; from one with these keys alone it would be another broker.
            change = partial(change_file, self._config_path, changes, make=False)
            await loop.run_in_executor(None, change)

    async def _save_all(self) -> None:
        broker = self.broker
        await self._write("topics", broker.topics.encode)
        await self._write("subscriptionGroup", broker.subscriptions.encode)
        await self._write("consumerOffset", broker.offsets.encode)
        await self._write("delayOffset", broker.schedule.encode)

    async def _persist_offsets(self) -> None:
        broker = self.broker
        while True:
            await asyncio.sleep(broker.config.flush_consumer_offset_interval / 1000)
            if broker.offsets.changed:
                broker.offsets.changed = False
                await self._write("consumerOffset", broker.offsets.encode)

    async def _persist_delays(self) -> None:
        broker = self.broker
        while True:
            await asyncio.sleep(broker.config.flush_delay_offset_interval / 1000)
            if broker.schedule.changed:
                broker.schedule.changed = False
                await self._write("delayOffset", broker.schedule.encode)

    # -- timers

    def _spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a background task failed", exc_info=task.exception())

    async def _housekeeping(self) -> None:
        broker = self.broker
        while True:
            await asyncio.sleep(SAMPLE_INTERVAL_MS / 1000)
            now_ms = self._clock.now_ms()
            broker.stats.sample(now_ms)
            broker.locks.drop_expired(now_ms)
            timeout_ms = broker.config.channel_expired_timeout
            for table in (broker.consumers, broker.producers):
                for connection in table.drop_silent(now_ms, timeout_ms):
                    connection.close()
            broker.consumers.forget_old_subscriptions(now_ms, broker.config.subscription_expired_timeout)

    async def _flush_queues(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._store_config.flush_interval_consume_queue / 1000)
            if self._queues_dirty:
                self._queues_dirty = False
                try:
                    await loop.run_in_executor(None, self.broker.store.flush_queues)
                except OSError as error:
                    log.error("consume queues cannot be brought to disk: %s", error)

    async def _clean_disk(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._store_config.clean_resource_interval / 1000)
            try:
                paths = self.broker.store.delete_expired()
                if paths:
                    await loop.run_in_executor(None, _unlink, paths)
            except OSError as error:
                log.error("expired files cannot be deleted: %s", error)


def _unlink(paths: list[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)
