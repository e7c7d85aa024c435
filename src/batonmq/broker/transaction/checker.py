"""Checks undecided half messages: asks their producers, gives them up, stores them again.

Runs on a master. A slave that acts as master hands undecided messages over to another master instead. A round
goes through all undecided messages once, in slices, so that sends and pulls continue. A message that cannot
be handled is logged and counts as checked; the round continues with the next one. Source: RocketMQ's
`TransactionalMessageCheckService` and `TransactionalMessageServiceImpl.check`.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections import deque
from typing import TYPE_CHECKING, Final

from batonmq.broker.messages.internal import put
from batonmq.broker.transaction.core import MAX_CHECKS, State
from batonmq.broker.transaction.half import (
    HALF_QUEUE,
    CheckRules,
    Verdict,
    check_body,
    checks_of,
    first_copy,
    real_place,
    to_given_up,
    to_half_again,
    verdict,
)
from batonmq.broker.transaction.term import BATCH, BATCH_BYTES, records_in, whole
from batonmq.protocol.headers.client import CheckTransactionState
from batonmq.protocol.message.errors import MessageFormatError
from batonmq.protocol.message.ids import encode_message_id, pack_address
from batonmq.protocol.message.properties import PROPERTY_PRODUCER_GROUP, PROPERTY_UNIQUE_KEY
from batonmq.protocol.names import TRANS_CHECK_MAX_TIME_TOPIC, TRANS_HALF_TOPIC
from batonmq.store.results import GetStatus

if TYPE_CHECKING:
    from batonmq.broker.context import Broker
    from batonmq.broker.tables.consumers import Member
    from batonmq.broker.transaction.term import Term
    from batonmq.protocol.message.record import MessageExt, StoredMessage
    from batonmq.store.results import GetResult, PutResult

log = logging.getLogger(__name__)

PAUSE_S: Final = 0.002
"""Pause between two slices of a round, for other work."""
ATTEMPTS: Final = 3
"""Most producers of a group that are tried for one check."""
LOGGED: Final = 10
"""Most abandoned transactions of a round that are logged one by one."""
_ROUNDS: Final = 64
GIVEN_UP_QUEUES: Final = 1


class Checker:
    """The checks of one term. The term must be ready."""

    def __init__(self, broker: Broker, term: Term) -> None:
        self._broker = broker
        self._settings = broker.settings
        self._term = term
        self._ends: deque[int] = deque(maxlen=_ROUNDS)
        """The end of the half queue when the term and the last rounds began."""
        self._times_ms: deque[int] = deque(maxlen=_ROUNDS)
        """Monotonic times of these moments."""
        self._absent: dict[str, int] = {}
        """Producer group without a reachable producer -> checks of this round that nobody received."""
        self._given_up = self._nameless = 0
        """In this round."""

    async def run(self) -> None:
        """Check every `transactionCheckInterval` until the term ends."""
        self._note_end()
        while not self._term.ended:
            await asyncio.sleep(self._settings.broker.transaction_check_interval / 1000)
            try:
                await self.round()
            except Exception:
                # A bug in here must not stop all checks until a restart (RocketMQ's issue 9500).
                log.exception("a round of checks failed; the next one follows")

    def _note_end(self) -> int:
        self._term.grow()
        self._ends.append(self._term.window.end)
        self._times_ms.append(self._broker.clock.monotonic_ms())
        return self._ends[-1]

    def _known_ms(self, offset: int) -> int:
        """The least time for which this master has known a half message."""
        at = bisect_right(self._ends, offset)
        return self._broker.clock.monotonic_ms() - self._times_ms[at] if at < len(self._ends) else 0

    async def round(self) -> None:
        """Go through all undecided messages once."""
        term = self._term
        reserved_hours = self._settings.store.file_reserved_time
        rules = CheckRules.of(self._settings.broker, reserved_hours, self._broker.store.doubted_ms)
        round_end = self._note_end()
        self._absent.clear()
        self._given_up = self._nameless = 0
        counted: dict[str, int] = {}
        sent_before, cursor = term.counts.checks, term.window.offset
        while not term.ended:
            # An op message may decide the next messages.
            while term.read_ops():
                await asyncio.sleep(0)
                if term.ended:
                    return
            term.grow()
            term.store_offsets()
            following = await self._slice(cursor, rules, round_end, counted)
            if following is None:
                break
            cursor = following
            await asyncio.sleep(PAUSE_S)
        if term.ended:
            return
        term.counts.recounted(counted)
        term.publish_checks()
        self._log(term.counts.checks - sent_before)

    async def _slice(
        self, cursor: int, rules: CheckRules, round_end: int, counted: dict[str, int]
    ) -> int | None:
        """Handle at most `BATCH` undecided messages from `cursor` on. Returns the next cursor; None at the
        end of the queue."""
        term, window = self._term, self._term.window
        found = window.next_undecided(cursor, BATCH)
        if found is None:
            return None
        offset, count = found
        result = self._broker.store.get(TRANS_HALF_TOPIC, HALF_QUEUE, offset, count, BATCH_BYTES)
        if result.status is not GetStatus.FOUND:
            return self._unreadable(offset, result)
        if result.fetch is not None:
            try:
                await asyncio.get_running_loop().run_in_executor(self._broker.readers, result.fetch)
            except OSError as error:
                log.warning("half messages from %d cannot be read now: %s", offset, error)
                return result.next_offset
        records = whole(result)
        if records is None:
            result = self._broker.store.get(TRANS_HALF_TOPIC, HALF_QUEUE, offset, 1, BATCH_BYTES)
            records = list(records_in(result))
        unread = set(range(offset, offset + result.count))
        for record in records:
            if term.ended:
                return None
            unread.discard(record.queue_offset)
            if not window.is_undecided(record.queue_offset):
                continue
            try:
                await self._look_at(record, rules, round_end, counted)
            except MessageFormatError as error:
                log.error("half message %d cannot be checked: %s", record.queue_offset, error)
                self._count_check(record.queue_offset)
        if result.count == result.next_offset - offset:  # else some are deleted; the next round finds that
            for lost in sorted(unread):
                log.error("half message %d is damaged and left out", lost)
                window.drop(lost, lost + 1)
        return result.next_offset

    def _unreadable(self, offset: int, result: GetResult) -> int | None:
        if result.status in (GetStatus.OFFSET_OVERFLOW_ONE, GetStatus.OFFSET_OVERFLOW_BADLY):
            return None  # stored, but not confirmed yet
        if result.next_offset <= offset:
            return None
        log.error("half messages %d to %d are gone", offset, result.next_offset - 1)
        self._term.window.drop(offset, result.next_offset)
        return result.next_offset

    async def _look_at(
        self, record: MessageExt, rules: CheckRules, round_end: int, counted: dict[str, int]
    ) -> None:
        term, window, offset = self._term, self._term.window, record.queue_offset
        place = real_place(record)
        topic = "" if place is None else place[0]
        first = first_copy(record)
        if first is not None:
            if first in term.commits:
                return
            if window.is_decided(first):  # by the offsets of the first copy
                rolled_back = window.state(first) in (State.ROLLED_BACK, State.ROLLED_BACK_SAFE)
                term.decide(record, State.ROLLED_BACK if rolled_back else State.COMMITTED)
                return
        here = window.checks(offset)
        now_ms = self._broker.clock.now_ms()
        what = verdict(record, here, MAX_CHECKS, now_ms, rules, known_ms=self._known_ms(offset))
        if what is Verdict.GIVE_UP and not term.acting:
            await self._give_up(record, checks_of(record, here), topic)
            return
        counted[topic] = counted.get(topic, 0) + 1
        if what is Verdict.WAIT or offset >= round_end:  # messages stored meanwhile, including copies
            return
        checks = checks_of(record, here)
        if term.acting:
            await self._escape(record, checks)
            return
        if what is Verdict.CHECK:
            if self._ask(record, checks + 1, offset, record.physical_offset):
                self._count_check(offset)
            return
        asked = checks + (what is Verdict.CHECK_AND_PUT_BACK)
        copy = await self._store(record, to_half_again(record, asked))
        if copy is None:
            return
        if not window.is_undecided(offset):
            window.remember(offset)  # decided while the copy was stored
            return
        term.move(offset)
        if what is Verdict.CHECK_AND_PUT_BACK:
            self._ask(record, asked, copy.queue_offset, copy.physical_offset)

    async def _escape(self, record: MessageExt, checks: int) -> None:
        """Hand a half message over to another master, which checks it. An acting master must not write the
        copies that checks need."""
        term, window, offset = self._term, self._term.window, record.queue_offset
        first = first_copy(record)
        original = offset if first is None else first
        before = window.state(offset)
        term.escaped.add(original)  # before the send: a commit here in the meantime would deliver it twice
        outcome = await put(self._broker.appender, to_half_again(record, checks))
        if outcome.ok:
            if not term.ended:
                term.move(offset)
            return
        term.escaped.discard(original)
        if window.is_undecided(offset):
            window.set(offset, before)

    def _count_check(self, offset: int) -> None:
        window = self._term.window
        if window.is_undecided(offset):
            window.set(offset, min(window.checks(offset) + 1, MAX_CHECKS))

    async def _give_up(self, record: MessageExt, checks: int, topic: str) -> None:
        self._broker.tables.topics.create_on_send_back(TRANS_CHECK_MAX_TIME_TOPIC, GIVEN_UP_QUEUES)
        message = to_given_up(record, checks)
        message.store_host = pack_address(self._broker.address)  # for resumeCheckHalfMessage
        stored = await self._store(record, message)
        if stored is None or not self._term.window.is_undecided(record.queue_offset):
            return
        self._term.move(record.queue_offset)
        self._term.counts.give_up(topic)
        self._given_up += 1
        if self._given_up > LOGGED:
            return
        log.warning(
            "transaction given up after %d checks topic=%s group=%s id=%s; see resumeCheckHalfMessage",
            checks,
            topic,
            record.properties.get(PROPERTY_PRODUCER_GROUP),
            record.message_id,
        )

    async def _store(self, record: MessageExt, message: StoredMessage) -> PutResult | None:
        """Append a copy of a half message; None if it was not appended."""
        outcome = await put(self._broker.appender, message, wait=False)
        if outcome.result is None:
            if not self._term.ended:
                log.warning(
                    "half message %d was not stored again: %s", record.queue_offset, outcome.status.value
                )
            return None
        return outcome.result

    def _ask(self, record: MessageExt, checks: int, queue_offset: int, physical_offset: int) -> bool:
        """Send a check to a producer of the group. False if all that were tried read too slowly; the check
        does not count then."""
        place, group = real_place(record), record.properties.get(PROPERTY_PRODUCER_GROUP)
        if place is None or group is None:
            self._nameless += 1
            return True
        member = self._producer(group, place[0])
        if member is None:
            self._absent[group] = self._absent.get(group, 0) + 1
            return True
        if member.connection.congested:
            return False
        unique_key = record.properties.get(PROPERTY_UNIQUE_KEY)
        header = CheckTransactionState(
            tran_state_table_offset=queue_offset,
            commit_log_offset=physical_offset,
            topic=TRANS_HALF_TOPIC,
            msg_id=unique_key,
            transaction_id=unique_key,
            offset_msg_id=encode_message_id(record.store_host, physical_offset),
            broker_name=self._settings.broker.broker_name,
        )
        body = check_body(record, place, checks, queue_offset=queue_offset, physical_offset=physical_offset)
        member.connection.oneway(header, body)
        self._term.counts.checks += 1
        return True

    def _producer(self, group: str, topic: str) -> Member | None:
        """A connected producer of the group whose user may send to the topic, if possible one that keeps up
        with its reads; None if there is none."""
        may_send = self._broker.may_send

        def suits(member: Member) -> bool:
            return may_send(member.user, topic, member.connection.peer)

        member = None
        for _ in range(ATTEMPTS):
            member = self._broker.tables.producers.any_member(group, suits)
            if member is None or not member.connection.congested:
                break
        return member

    def _log(self, sent: int) -> None:
        if sent:
            log.info("%d half messages checked", sent)
        if self._given_up > LOGGED:
            log.warning("%d more transactions were given up", self._given_up - LOGGED)
        if self._nameless:
            log.error("%d half messages do not name their topic or producer group", self._nameless)
        for group, count in self._absent.items():
            log.warning("no producer of group %s is connected: %d half messages stay undecided", group, count)
