"""Writes op messages, which name decided half messages, several in one message.

Source: RocketMQ's `TransactionalOpBatchService`. An op message does not wait for replicas: until it is
confirmed, its half messages count as unfinished (`core.py`), and a new master checks them.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from batonmq.broker.messages.internal import put
from batonmq.broker.transaction.half import HALF_QUEUE, OP_TAG, op_body
from batonmq.protocol.message.ids import pack_address
from batonmq.protocol.message.properties import PROPERTY_TAGS, PROPERTY_TRANSACTION_MOVED, encode_properties
from batonmq.protocol.message.record import StoredMessage
from batonmq.protocol.names import TRANS_OP_HALF_TOPIC

if TYPE_CHECKING:
    from batonmq.broker.context import Broker
    from batonmq.broker.messages.internal import PutOutcome

log = logging.getLogger(__name__)

_DECIDED: Final = encode_properties({PROPERTY_TAGS: OP_TAG})
_MOVED: Final = encode_properties({PROPERTY_TAGS: OP_TAG, PROPERTY_TRANSACTION_MOVED: "true"})
_RETRY_S: Final = 1.0


class OpWriter:
    """Collects the decisions of one term of this master."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._settings = broker.settings
        self._host = pack_address(broker.address)
        self._offsets: dict[bool, list[int]] = {False: [], True: []}
        """Collected half offsets: of decided messages (False), and of messages stored again or given up
        (True)."""
        self._size = 0
        """Bytes of the op messages that name them."""
        self._timer: asyncio.TimerHandle | None = None
        self._running = True

    @property
    def collected(self) -> int:
        """Number of half offsets that are in no op message yet."""
        return sum(map(len, self._offsets.values()))

    def stop(self) -> None:
        """The term ends: drop the collected decisions. The next master checks these messages."""
        self._running = False
        self._cancel()
        for offsets in self._offsets.values():
            offsets.clear()
        self._size = 0

    def add(self, offset: int, *, moved: bool = False) -> None:
        """Name a half message in the next op message."""
        if not self._running:
            return
        self._offsets[moved].append(offset)
        self._size += len(str(offset)) + 1
        config = self._settings.broker
        if self._size >= config.transaction_op_msg_max_size:
            self.flush()
        elif self._timer is None:
            self._arm(config.transaction_op_batch_interval / 1000)

    def flush(self) -> None:
        """Write the collected decisions."""
        self._cancel()
        self._size = 0
        max_size = self._settings.broker.transaction_op_msg_max_size
        for moved, offsets in self._offsets.items():
            collected = list(offsets)
            offsets.clear()
            if collected:
                step = max(1, max_size // (len(str(max(collected))) + 1))
                for at in range(0, len(collected), step):
                    self._write(collected[at : at + step], moved)

    def _write(self, offsets: list[int], moved: bool) -> None:
        message = StoredMessage(
            topic=TRANS_OP_HALF_TOPIC,
            queue_id=HALF_QUEUE,
            body=op_body(offsets),
            properties=_MOVED if moved else _DECIDED,
            born_timestamp=self._broker.clock.now_ms(),
            born_host=self._host,
            store_host=self._host,
        )
        outcome = put(self._broker.appender, message, wait=False)
        outcome.add_done_callback(lambda done: self._written(done.result(), offsets, moved))

    def _written(self, outcome: PutOutcome, offsets: list[int], moved: bool) -> None:
        if outcome.result is not None or not self._running:
            return
        log.warning("op message for %d transactions was not stored: %s", len(offsets), outcome.status.value)
        self._offsets[moved][:0] = offsets
        self._size += sum(len(str(offset)) + 1 for offset in offsets)
        if self._timer is None:
            self._arm(_RETRY_S)

    def _arm(self, delay_s: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(delay_s, self.flush)

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
