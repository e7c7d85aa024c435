"""Serves requests about logical queues.

Each request of a client is turned into one about the physical queue that has the part in question. That queue
is on this broker, and the request continues to the handler that serves all queues; or another broker has it
and is called. A header with ``lo=false`` says that the queue is a physical one already. Codes and remarks are
those of Apache RocketMQ 5.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

from msgspec.structs import replace

from batonmq.broker.statictopic.core import PartPull, answered_by_slave
from batonmq.broker.tables.offsets import NOT_FOUND
from batonmq.net.dispatch import InnerRequest, Outcome, RawHandler, Reply, Request
from batonmq.protocol.codes import MASTER_ID, MessageSysFlag, PullSysFlag, RequestCode, ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.frame import Command
from batonmq.protocol.headers.broker.pull import (
    GetEarliestMsgStoretime,
    GetEarliestMsgStoretimeResponse,
    GetMaxOffset,
    GetMaxOffsetResponse,
    GetMinOffset,
    GetMinOffsetResponse,
    LitePullMessage,
    PullMessage,
    PullMessageResponse,
    QueryConsumerOffset,
    QueryConsumerOffsetResponse,
    SearchOffset,
    SearchOffsetResponse,
    UpdateConsumerOffset,
)
from batonmq.protocol.headers.broker.send import SendMessage, SendMessageV2
from batonmq.routing.static_topics import (
    is_leader,
    last_part,
    part_at,
    to_logical,
    to_logical_within,
    to_physical,
)

if TYPE_CHECKING:
    from batonmq.broker.context import Broker
    from batonmq.broker.statictopic.other_brokers import OtherBrokers
    from batonmq.net.dispatch import Dispatcher
    from batonmq.protocol.bodies.static_topics import LogicQueueMappingItem, TopicQueueMappingDetail
    from batonmq.protocol.registry import Header

QueueHeader: TypeAlias = (
    QueryConsumerOffset
    | UpdateConsumerOffset
    | GetMaxOffset
    | GetMinOffset
    | SearchOffset
    | GetEarliestMsgStoretime
)
"""Headers of requests about one queue."""
Q = TypeVar("Q", bound=QueueHeader)
R = TypeVar("R", bound="Header")

SENDS: Final = (
    RequestCode.SEND_MESSAGE,
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.SEND_BATCH_MESSAGE,
    RequestCode.PREPARE_BATCH,
)
PULLS: Final = (PullMessage.code, LitePullMessage.code)
PULLED: Final = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
    }
)
"""Codes of answers that say where to pull on."""
PAUSE_S: Final = 0.2
"""Pause of a consumer at the end of a part, while the next part has no logic offset yet."""
_WIRE: Final = dict(zip(SendMessage.__struct_fields__, SendMessage.__struct_encode_fields__, strict=True))
_WIRE_V2: Final = dict(
    zip(SendMessageV2.__struct_fields__, SendMessageV2.__struct_encode_fields__, strict=True)
)


class LogicalQueues:
    """The requests of one broker that are about static topics."""

    def __init__(self, broker: Broker, others: OtherBrokers) -> None:
        self._broker = broker
        self._mappings = broker.tables.mappings
        self._others = others
        self._handlers: dict[int, RawHandler] = {}
        """The handlers for physical queues."""

    @property
    def _name(self) -> str:
        return self._broker.settings.broker.broker_name

    def register(self, dispatcher: Dispatcher) -> None:
        """Stand in front of the handlers of the requests about queues."""
        serve: dict[int, Callable[[Request, TopicQueueMappingDetail], Outcome]] = {
            **dict.fromkeys(map(int, SENDS), self._send),
            PullMessage.code: partial(self._pull, PullMessage),
            LitePullMessage.code: partial(self._pull, LitePullMessage),
            QueryConsumerOffset.code: self._query,
            UpdateConsumerOffset.code: self._commit,
            GetMaxOffset.code: self._max_offset,
            GetMinOffset.code: self._min_offset,
            SearchOffset.code: self._search,
            GetEarliestMsgStoretime.code: self._earliest,
        }
        for code, handler in serve.items():
            topic = "topic" if code not in SENDS[1:] else _WIRE_V2["topic"]
            self._handlers[code] = dispatcher.wrap(code, partial(self._serve, handler, topic))

    def _serve(
        self,
        handler: Callable[[Request, TopicQueueMappingDetail], Outcome],
        topic: str,
        request: Request,
        physical: RawHandler,
    ) -> Outcome:
        """`topic`: the topic's name in the header."""
        if not self._mappings:
            return physical(request)
        fields = request.command.ext
        mapping = self._mappings.get(fields.get(topic, ""))
        if mapping is None:
            return physical(request)
        if fields.get("lo") == "false":
            if request.command.code in PULLS and not self._broker.role.is_master:
                return self._pull_at_slave(request)
            return physical(request)
        return handler(request, mapping)

    def _parts(self, mapping: TopicQueueMappingDetail, queue_id: int) -> Sequence[LogicQueueMappingItem]:
        """The parts of a queue that this broker leads. Raises MQError for other queues."""
        items = mapping.hosted_queues.get(queue_id, ())
        if not is_leader(items, self._name):
            raise MQError(
                ResponseCode.NOT_LEADER_FOR_QUEUE,
                f"{mapping.topic}-{queue_id} does not exist in request process of current broker "
                f"{self._name}",
            )
        return items

    # -- sends

    def _send(self, request: Request, mapping: TopicQueueMappingDetail) -> Outcome:
        command = request.command
        names = _WIRE if command.code == RequestCode.SEND_MESSAGE else _WIRE_V2
        queue_id = _number(command, names["queue_id"])
        if queue_id < 0:
            # RocketMQ takes any queue as well.
            queue_id = min(mapping.hosted_queues, default=queue_id)
        part = self._parts(mapping, queue_id)[-1]
        # The offset in the answer to a half message is one of the queue of half messages.
        half = _number(command, names["sys_flag"]) & MessageSysFlag.TRANSACTION_PREPARED

        def answered(reply: Reply) -> Reply:
            fields = dict(reply.ext or {})
            if "queueOffset" in fields:
                fields["queueId"] = str(queue_id)
                if not half:
                    fields["queueOffset"] = str(to_logical_within(part, int(fields["queueOffset"])))
                reply.ext = fields
            return reply

        fields = {**command.ext, names["queue_id"]: str(part.queue_id)}
        return self._here(request, fields, answered)

    # -- pulls

    def _pull(self, kind: type[PullMessage], request: Request, mapping: TopicQueueMappingDetail) -> Outcome:
        header = kind.from_ext(request.command.ext)
        pull = PartPull.of(header, self._parts(mapping, header.queue_id))
        if pull is None:
            raise _undecided(mapping, header.queue_id)

        here = pull.part.bname == self._name

        def answered(reply: Reply) -> Reply:
            if here and not pull.is_last and not self._broker.role.is_master:
                reply = _answered_by_slave(pull.header.queue_offset, reply)
            if isinstance(reply.header, PullMessageResponse) and reply.code in PULLED:
                reply.code, reply.header = pull.answered(reply.code, reply.header)
                if not here:
                    reply.header.suggest_which_broker_id = MASTER_ID  # the id was one of another broker set
            return reply

        if here:
            outcome = self._here(request, pull.header.to_ext(), answered)
        elif request.oneway:
            return None
        else:
            outcome = _translated(
                self._others.call(pull.part.bname, header.topic, pull.header, accept=PULLED), answered
            )
        waits = header.sys_flag & PullSysFlag.SUSPEND and not pull.is_last
        return _paused(outcome) if waits else outcome

    def _pull_at_slave(self, request: Request) -> Outcome:
        """A pull of a physical queue, for the broker that leads the logical one."""
        asked = PullMessage.from_ext(request.command.ext).queue_offset
        return self._here(request, request.command.ext, partial(_answered_by_slave, asked))

    # -- offsets of groups

    def _query(self, request: Request, mapping: TopicQueueMappingDetail) -> Outcome:
        header = QueryConsumerOffset.from_ext(request.command.ext)
        items = self._parts(mapping, header.queue_id)
        if len(items) == 1 and not items[0].logic_offset:
            return self._here(request, _to(header, items[0]).to_ext(), lambda reply: reply)
        return self._last_commit(request, header, items)

    async def _last_commit(
        self, request: Request, header: QueryConsumerOffset, items: Sequence[LogicQueueMappingItem]
    ) -> Reply:
        """The commit in the last part that has one."""
        header = replace(header, set_zero_if_not_found=False)
        for part in reversed(items):
            if part.logic_offset < 0:
                continue
            try:
                reply = await self._ask(request, part, header)
            except MQError as error:
                if error.code != ResponseCode.QUERY_NOT_FOUND:
                    raise
                continue
            offset = _header_of(reply, QueryConsumerOffsetResponse).offset
            return Reply(QueryConsumerOffsetResponse(offset=to_logical(part, offset)))
        raise MQError(ResponseCode.QUERY_NOT_FOUND, "Not found, maybe this group consumer boot first")

    async def _commit(self, request: Request, mapping: TopicQueueMappingDetail) -> Reply:
        header = UpdateConsumerOffset.from_ext(request.command.ext)
        items = self._parts(mapping, header.queue_id)
        part = part_at(items, header.commit_offset)
        if part is None:
            raise _undecided(mapping, header.queue_id)
        physical = replace(header, commit_offset=to_physical(part, header.commit_offset))
        # First, so that a group continues from here even if a later part's broker is away.
        reply = await self._ask(request, part, physical)
        for later in items[items.index(part) + 1 :]:
            # A query reads the last commit: one that is further on would undo this one. RocketMQ leaves it.
            if later.logic_offset >= 0 and self._may_have_commit(header, later):
                await self._ask(request, later, replace(header, commit_offset=NOT_FOUND))
        return reply

    def _may_have_commit(self, header: UpdateConsumerOffset, part: LogicQueueMappingItem) -> bool:
        """Only this broker's own parts are known without a request."""
        committed = self._broker.tables.offsets.of(header.consumer_group, header.topic)
        return part.bname != self._name or committed.get(part.queue_id, NOT_FOUND) != NOT_FOUND

    # -- offsets of queues

    async def _max_offset(self, request: Request, mapping: TopicQueueMappingDetail) -> Reply:
        header = GetMaxOffset.from_ext(request.command.ext)
        part = last_part(self._parts(mapping, header.queue_id))
        if part is None:
            raise _undecided(mapping, header.queue_id)
        end = await self._end(request, header.topic, part)
        return Reply(GetMaxOffsetResponse(offset=to_logical(part, end)))

    async def _min_offset(self, request: Request, mapping: TopicQueueMappingDetail) -> Reply:
        header = GetMinOffset.from_ext(request.command.ext)
        part = self._first(mapping, header.queue_id)
        reply = await self._ask(request, part, header)
        first = _header_of(reply, GetMinOffsetResponse).offset
        return Reply(GetMinOffsetResponse(offset=to_logical_within(part, first)))

    async def _earliest(self, request: Request, mapping: TopicQueueMappingDetail) -> Reply:
        """Of the first part that has messages."""
        header = GetEarliestMsgStoretime.from_ext(request.command.ext)
        first = self._first(mapping, header.queue_id)
        items = self._parts(mapping, header.queue_id)
        for part in items[items.index(first) :]:
            reply = await self._ask(request, part, header)
            if _header_of(reply, GetEarliestMsgStoretimeResponse).timestamp >= 0:
                break
        return reply

    async def _search(self, request: Request, mapping: TopicQueueMappingDetail) -> Reply:
        """The first part that has a message of this time or later decides, else the last one; for the last
        message of this time or before, the last part that has one, else the first with messages."""
        header = SearchOffset.from_ext(request.command.ext)
        items = [part for part in self._parts(mapping, header.queue_id) if part.logic_offset >= 0]
        if not items:
            raise _undecided(mapping, header.queue_id)
        if (header.boundary_type or "").lower() == "upper":
            part = await self._last_begun(request, header, items)
            reply = await self._ask(request, part, header)
            found = _header_of(reply, SearchOffsetResponse).offset
            return Reply(SearchOffsetResponse(offset=to_logical(part, found)))
        for part in items:
            reply = await self._ask(request, part, header)
            found = _header_of(reply, SearchOffsetResponse).offset
            if part is items[-1] or 0 <= found < await self._end(request, header.topic, part):
                break
        return Reply(SearchOffsetResponse(offset=to_logical(part, found)))

    async def _last_begun(
        self, request: Request, header: SearchOffset, items: Sequence[LogicQueueMappingItem]
    ) -> LogicQueueMappingItem:
        """The last part whose first message is not later than the time; else the first with messages."""
        first = items[-1]
        for part in reversed(items):
            asked = GetEarliestMsgStoretime(topic=header.topic, queue_id=part.queue_id)
            answer = _header_of(await self._ask(request, part, asked), GetEarliestMsgStoretimeResponse)
            if 0 <= answer.timestamp <= header.timestamp:
                return part
            if answer.timestamp >= 0:
                first = part
        return first

    def _first(self, mapping: TopicQueueMappingDetail, queue_id: int) -> LogicQueueMappingItem:
        part = part_at(self._parts(mapping, queue_id), 0)
        if part is None:
            raise _undecided(mapping, queue_id)
        return part

    async def _end(self, request: Request, topic: str, part: LogicQueueMappingItem) -> int:
        """Max offset of the part's physical queue."""
        header = GetMaxOffset(topic=topic, queue_id=part.queue_id)
        return _header_of(await self._ask(request, part, header), GetMaxOffsetResponse).offset

    # -- physical queues

    def _here(self, request: Request, fields: dict[str, str], answered: Callable[[Reply], Reply]) -> Outcome:
        """Have this broker's handler serve the request with these fields. `answered` turns its answer into
        one about the logical queue."""
        inner = InnerRequest(
            request,
            _command(request, request.command.code, fields),
            lambda reply: request.reply(answered(reply)),
        )
        outcome = self._handlers[request.command.code](inner)
        if outcome is None:
            return None
        return answered(outcome) if isinstance(outcome, Reply) else _translated(outcome, answered)

    async def _ask(
        self,
        request: Request,
        part: LogicQueueMappingItem,
        header: QueueHeader,
    ) -> Reply:
        """The answer about a part's physical queue, here or elsewhere. Raises MQError."""
        header = _to(header, part)
        if part.bname != self._name:
            return await self._others.call(part.bname, header.topic, header)
        inner = InnerRequest(request, _command(request, header.code, header.to_ext()), request.reply)
        outcome = self._handlers[header.code](inner)
        reply = outcome if isinstance(outcome, Reply) or outcome is None else await outcome
        assert reply is not None, "requests about offsets are answered at once"
        return reply


def _to(header: Q, part: LogicQueueMappingItem) -> Q:
    """The header for the part's physical queue."""
    return replace(header, queue_id=part.queue_id, lo=False)


def _command(request: Request, code: int, fields: dict[str, str]) -> Command:
    command = request.command
    return Command(
        int(code),
        fields,
        command.body,
        flag=command.flag,
        opaque=command.opaque,
        language=command.language,
        version=command.version,
        binary=command.binary,
    )


def _number(command: Command, name: str) -> int:
    """A number of the header; 0 for one that is missing or malformed, which the handler refuses."""
    try:
        return int(command.ext.get(name, ""))
    except ValueError:
        return 0


async def _translated(outcome: Awaitable[Reply | None], answered: Callable[[Reply], Reply]) -> Reply | None:
    reply = await outcome
    return None if reply is None else answered(reply)


async def _paused(outcome: Outcome) -> Reply | None:
    """The answer to a pull that would wait for messages, but reads a part that gets no further ones."""
    reply = outcome if isinstance(outcome, Reply) or outcome is None else await outcome
    if reply is not None and reply.code == ResponseCode.PULL_NOT_FOUND:
        await asyncio.sleep(PAUSE_S)  # the consumer asks again at once
    return reply


def _answered_by_slave(asked: int, reply: Reply) -> Reply:
    if isinstance(reply.header, PullMessageResponse) and reply.code in PULLED:
        reply.code, reply.header = answered_by_slave(asked, reply.code, reply.header)
    return reply


def _header_of(reply: Reply, kind: type[R]) -> R:
    """The header of a successful answer. Raises MQError if the other broker sent none."""
    if isinstance(reply.header, kind):
        return reply.header
    raise MQError(ResponseCode.SYSTEM_ERROR, f"the answer has no {kind.__name__}")


def _undecided(mapping: TopicQueueMappingDetail, queue_id: int) -> MQError:
    return MQError(
        ResponseCode.SYSTEM_ERROR,
        f"no part of {mapping.topic}-{queue_id} has a logic offset: its remapping is not finished",
    )
