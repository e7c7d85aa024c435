"""What a controller does while it leads: its timers, its own events in the log, and notices to brokers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeAlias, cast

from batonmq.common.clock import Clock
from batonmq.common.running_time import RunningTime
from batonmq.controller import events, roll_call
from batonmq.controller.config import ControllerConfig
from batonmq.controller.effects import Election, Outcome, ReplicaUp
from batonmq.controller.eventlog import EventSink
from batonmq.controller.liveness import grace_ms, sets_to_elect, silent_brokers
from batonmq.controller.machine import ControllerMachine
from batonmq.controller.notices import RoleChangeNotices
from batonmq.controller.proposer import Proposer
from batonmq.controller.replicas import BrokerSet
from batonmq.controller.sessions import Sessions
from batonmq.controller.suspicion import SILENT, Suspicion
from batonmq.net.client import RemotingClient
from batonmq.net.connection import Connection
from batonmq.protocol.codes import ResponseCode
from batonmq.raft.state import Role

log = logging.getLogger(__name__)

FAILED_AGAIN_MS = 60_000
"""Time after which the same failed election is logged again."""
FIRST_SCAN_MS = 2_000
"""When a new leader first scans for silent brokers (Java waits as long)."""


FACTS_BYTES = 1_400_000
"""Of each kind of facts about brokers in a leader's first event. Without room for all, one that does not fit
into an entry would keep every controller from leading: 16,384 brokers with names of 90 bytes are enough."""

Fact: TypeAlias = tuple[str, int, int]
"""Broker name, broker id, and what is known of that broker."""


def _fitting(facts: tuple[Fact, ...]) -> tuple[Fact, ...]:
    """The first ones, as many as there is room for. Of the others nothing is known: they have their whole
    timeout to send a heartbeat."""
    room = FACTS_BYTES
    for number, (name, _, _) in enumerate(facts):
        room -= len(name.encode()) + 24  # two numbers and the headers
        if room < 0:
            log.warning(
                "of %d of %d brokers nothing is known: all names together are too long",
                len(facts) - number,
                len(facts),
            )
            return facts[:number]
    return facts


class Leadership:
    """One controller's. `leading` means that the state machine knows this leader, its clock and connections.

    `elected` is called with each election that was decided while this node leads.
    """

    def __init__(
        self,
        config: ControllerConfig,
        own_id: str,
        clock: Clock,
        running: RunningTime,
        machine: ControllerMachine,
        sessions: Sessions[Connection],
        elected: Callable[[Election], None],
    ) -> None:
        self.leading = False
        self.elections = 0
        """New masters that were elected while this node led."""
        self._config = config
        self._own_id = own_id
        self._clock = clock
        self._running = running
        self._machine = machine
        self._sessions = sessions
        self._elected = elected
        self._proposer: Proposer
        self._notices: RoleChangeNotices
        self._suspicion: Suspicion
        self._client: RemotingClient
        self._events: EventSink
        self._term = 0
        """The Raft term in which this node leads; 0: it does not."""
        self._began_wall_ms = 0
        self._began_monotonic_ms = 0
        self._began_running_ms = 0
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = False
        self._failed: dict[str, tuple[object, int]] = {}
        """Broker name -> facts of its last failed election that was logged, and when (monotonic, ms)."""

    def start(
        self,
        proposer: Proposer,
        notices: RoleChangeNotices,
        suspicion: Suspicion,
        client: RemotingClient,
        event_sink: EventSink,
    ) -> None:
        """What a leader works with; to be called before the Raft node starts. `client` calls brokers."""
        self._client = client
        self._proposer, self._notices, self._events = proposer, notices, event_sink
        self._suspicion = suspicion

    def retire(self) -> None:
        """The controller stops: from now on it does not begin to lead, and may hand over."""
        self._stopping = True

    async def close(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- beginning and end ---------------------------------------------------------------------------------

    def now_ms(self) -> int:
        """The leader's time: the wall clock as of when it was elected, and steady from there on. It stands
        still while this process does (`RunningTime`): heartbeats wait unread in a pause, so it must not count
        as silence."""
        return self.leader_ms(self._running.now_ms())

    def leader_ms(self, running_ms: int) -> int:
        """The leader's time at a reading of `RunningTime`."""
        return self._began_wall_ms + running_ms - self._began_running_ms

    def led_ms(self) -> int:
        """For how long it has led, without pauses of this process."""
        return self._running.now_ms() - self._began_running_ms

    def _wall_ms(self) -> int:
        """Time for events.jsonl, pauses included."""
        return self._began_wall_ms + self._clock.monotonic_ms() - self._began_monotonic_ms

    def role_changed(self, role: Role, term: int) -> None:
        """The Raft node's role or term changed."""
        leads = role is Role.LEADER and not self._stopping
        if leads and term != self._term:
            self.end()
            self._term = term
            self._began_wall_ms = self._clock.now_ms()
            self._began_monotonic_ms = self._clock.monotonic_ms()
            self._began_running_ms = self._running.now_ms()
            self._begin(term)
        elif not leads and self._term:
            self.end()

    def _begin(self, term: int) -> None:
        """First of all the state machine must know the new leader, its clock and its connections."""

        def begun(outcome: Outcome) -> None:
            if self._term != term or self._stopping:
                return
            if outcome.code:
                log.warning("the leadership in term %d has not begun yet: %s", term, outcome.remark)
                self._at("begin", 100, lambda: self._begin(term))
                return
            self.leading = True
            log.info("controller %s leads in term %d", self._own_id, term)
            self.decided(outcome)
            if self._config.notify_broker_role_changed:
                self._notices.remind_all()
            # Heartbeats that arrived meanwhile did not count: the scans wait as much longer.
            lost_ms = self._running.now_ms() - asked_ms
            first_ms = min(FIRST_SCAN_MS, self._config.scan_not_active_broker_interval)
            self._at("brokers", lost_ms + first_ms, self._scan_brokers)
            self._at("masters", lost_ms + self._config.scan_inactive_master_interval, self._scan_masters)

        asked_ms = self._running.now_ms()
        known, silent = _fitting(self._sessions.known()), _fitting(self._silent(asked_ms))
        started = events.LeaderStarted(self._own_id, known, silent)
        self._proposer.submit(started, begun, urgent=True)

    def _silent(self, now_ms: int) -> tuple[tuple[str, int, int], ...]:
        """(broker name, broker id, ms since its last heartbeat came here); `grace_ms` is left to each."""
        found, broker_sets = [], self._machine.broker_sets
        for name, broker_id, silent_ms in self._sessions.silent(now_ms):
            broker_set = broker_sets.get(name)
            live = None if broker_set is None else broker_set.live.get(broker_id)
            if live is not None:
                silent_ms = min(silent_ms, live.timeout_ms - grace_ms(live.timeout_ms))
            found.append((name, broker_id, silent_ms))
        return tuple(found)

    def end(self) -> None:
        """This node does not lead, or has failed."""
        self._term = 0
        self.leading = False
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        if not self._stopping:
            self._spawn(self._notices.stop())
            self._spawn(self._suspicion.stop())

    def configure(self, config: ControllerConfig) -> None:
        """Another configuration is in force."""
        self._config = config
        if self.leading:
            for timer in self._timers.values():
                timer.cancel()
            self._at("brokers", config.scan_not_active_broker_interval, self._scan_brokers)
            self._at("masters", config.scan_inactive_master_interval, self._scan_masters)

    # -- timers and connections ----------------------------------------------------------------------------

    def _at(self, name: str, delay_ms: int, call: Callable[[], None]) -> None:
        self._timers[name] = asyncio.get_running_loop().call_later(delay_ms / 1000, call)

    def _scan_brokers(self) -> None:
        self._at("brokers", self._config.scan_not_active_broker_interval, self._scan_brokers)
        silent = silent_brokers(self._machine.broker_sets, self.now_ms())
        if silent:  # only to spare the log an entry: the event itself looks again when it is applied
            for broker_set, broker_id in silent:
                log.warning("replica %d of %s is silent", broker_id, broker_set.broker_name)
            headless = [each for each, broker_id in silent if broker_id == each.master_id]
            self._replace(headless, events.Scan(True, False, self._config.enable_elect_unclean_master))

    def _scan_masters(self) -> None:
        self._at("masters", self._config.scan_inactive_master_interval, self._scan_masters)
        unclean = self._config.enable_elect_unclean_master
        headless = sets_to_elect(self._machine.broker_sets, self.now_ms(), allow_unclean=unclean)
        if headless:
            self._replace(headless, events.Scan(False, True, unclean))

    def connection_closed(self, connection: Connection) -> None:
        """If heartbeats came over it, its brokers are down. Every controller forgets the session."""
        session = self._sessions.closed(connection)
        if session is None or not session.brokers or not self._term or self._stopping:
            return
        brokers = tuple(sorted(session.brokers))
        log.info("connection %s of brokers %s closed", connection.peer, brokers)
        event = events.ChannelClosed(session.id, brokers, self._config.enable_elect_unclean_master)
        self._replace(self._led_by(brokers), event)

    def reported_silent(self, broker_name: str, reporter_id: int, master_epoch: int) -> None:
        """A replica says that its master is silent."""
        if self.leading:
            self._suspicion.reported(broker_name, reporter_id, master_epoch)

    def found_silent(self, broker_name: str, broker_id: int, session: int, reporter_id: int) -> None:
        """A master is silent before its heartbeats' timeout is over; the slave that reported it lives."""
        if self.leading:
            brokers = ((broker_name, broker_id),)
            unclean = self._config.enable_elect_unclean_master
            # It is not tried again: if the master remains silent, the replica reports it again.
            once = self._config.elect_master_max_retry_count
            event = events.ChannelClosed(session, brokers, unclean, SILENT)
            self._replace(self._led_by(brokers), event, once, reporter_id)

    def _led_by(self, brokers: Iterable[tuple[str, int]]) -> list[BrokerSet]:
        """The sets whose master is among these (broker name, broker id)."""
        sets = self._machine.broker_sets
        return [
            sets[name] for name, broker_id in brokers if name in sets and sets[name].master_id == broker_id
        ]

    # -- decisions -----------------------------------------------------------------------------------------

    def _replace(
        self,
        headless: list[BrokerSet],
        event: events.AnyEvent,
        attempt: int = 0,
        reporter_id: int = events.NO_BROKER,
    ) -> None:
        """Decide an event by which these sets need another master. Slaves that failed with it are counted as
        down first; `reporter_id` is one that lives."""
        asked = [broker_set for broker_set in headless if roll_call.needed(broker_set)]
        if asked:
            self._spawn(self._replace_after_roll_call(asked, event, attempt, reporter_id))
        else:
            self._decide(event, attempt)

    async def _replace_after_roll_call(
        self, asked: list[BrokerSet], event: events.AnyEvent, attempt: int, reporter_id: int
    ) -> None:
        term = self._term
        absent = await roll_call.absent(self._client, asked, reporter_id, self.now_ms)
        if self._term != term or self._stopping:
            return  # the next leader has its own timers and connections
        unclean, once = self._config.enable_elect_unclean_master, self._config.elect_master_max_retry_count
        for broker_set, broker_id, session in absent:
            brokers = ((broker_set.broker_name, broker_id),)
            self._decide(events.ChannelClosed(session, brokers, unclean, SILENT), once)
        self._decide(event, attempt)

    def _decide(self, event: events.AnyEvent, attempt: int = 0) -> None:
        """Put an event of the controller itself into the log; try again while this node leads."""
        term = self._term

        def answer(outcome: Outcome) -> None:
            if outcome.code == 0:
                self.decided(outcome)
            elif outcome.code == ResponseCode.CONTROLLER_NOT_LEADER or term != self._term:
                log.info("%s was not decided here: %s", type(event).__name__, outcome.remark)
            elif attempt < self._config.elect_master_max_retry_count:
                log.warning("%s was not decided, trying again: %s", type(event).__name__, outcome.remark)
                self._decide(event, attempt + 1)
            else:
                log.error("%s was not decided: %s", type(event).__name__, outcome.remark)

        self._proposer.submit(event, answer, urgent=True)

    def decided(self, outcome: Outcome) -> None:
        """Act on what the state machine decided while this node leads."""
        self._events.write(self._wall_ms(), self._own_id, outcome.effects)
        for effect in outcome.effects:
            if isinstance(effect, Election):
                self._on_election(effect)
            elif isinstance(effect, ReplicaUp) and self._config.notify_broker_role_changed and self.leading:
                broker_set = self._machine.broker_sets.get(effect.broker_name)
                if broker_set is not None:  # a later event of the same entry may have removed it
                    self._notices.remind(broker_set, effect.broker_id)

    def decided_late(self, result: object) -> None:
        """An entry of this leader was decided after `requestTimeoutMs`: the callers have their answers, but
        its elections must be announced all the same. `result` is what `ControllerMachine.apply` returned."""
        for outcome in cast("list[Outcome] | None", result) or ():
            if outcome.effects:
                self.decided(outcome)

    def _on_election(self, election: Election) -> None:
        log.log(
            self._level(election),
            "election in %s by %s: %s, master %s -> %s epoch=%d from %s alive %s",
            election.broker_name,
            election.cause,
            election.result,
            election.old_master,
            election.new_master,
            election.master_epoch,
            election.candidates,
            election.alive,
        )
        self._elected(election)
        if election.result != "new-master":
            return
        self.elections += 1
        broker_set = self._machine.broker_sets.get(election.broker_name)
        if broker_set is not None and self._config.notify_broker_role_changed and self._term:
            self._notices.announce(broker_set)

    def _level(self, election: Election) -> int:
        """Of its log line. Brokers of a set that cannot elect ask every second: a failure is a warning once a
        minute, and when anything about it changes."""
        name = election.broker_name
        if election.result == "new-master":
            self._failed.pop(name, None)
            return logging.INFO
        facts = (election.result, election.old_master, election.candidates, election.alive)
        now_ms = self._clock.monotonic_ms()
        logged = self._failed.get(name)
        if logged is not None and logged[0] == facts and now_ms - logged[1] < FAILED_AGAIN_MS:
            return logging.DEBUG
        self._failed[name] = facts, now_ms
        return logging.WARNING

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a task of the leader failed", exc_info=task.exception())
