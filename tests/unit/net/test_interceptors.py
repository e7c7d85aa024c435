"""Interceptors around handlers and connections, on real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from batonmq.net import (
    CallTimeout,
    Connection,
    ConnectionLost,
    Dispatcher,
    Interceptor,
    Limits,
    RemotingClient,
    RemotingServer,
    Reply,
    Request,
)
from batonmq.net.interceptors import each_answered, guard
from batonmq.protocol.codes import FLAG_ONEWAY, FLAG_RESPONSE, ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.frame import Command, encode
from batonmq.protocol.registry import Header

ECHO, LATER, ASYNC, REFUSE, FRAME, BATCH, TYPED = range(30001, 30008)
UNKNOWN = 54_321
NO_PERMISSION = int(ResponseCode.NO_PERMISSION)
SYSTEM_ERROR = int(ResponseCode.SYSTEM_ERROR)
SYSTEM_BUSY = int(ResponseCode.SYSTEM_BUSY)


class Typed(Header):
    queue_id: int


Typed.code = TYPED  # type: ignore[assignment]  # not in the registry: the code is this test's own


class Recorder:
    """An interceptor that writes down what it sees as (its name, what, request code or answer)."""

    def __init__(self, name: str, seen: list[tuple[str, str, int]]) -> None:
        self.name = name
        self.seen = seen
        self.refuses: set[int] = set()
        self.raises: set[int] = set()

    def before(self, request: Request) -> None:
        code = request.command.code
        self.seen.append((self.name, "before", code))
        if code in self.refuses:
            raise MQError(ResponseCode.NO_PERMISSION, f"{self.name} says no")
        if code in self.raises:
            raise KeyError(self.name)

    def answered(self, request: Request, code: int) -> None:
        self.seen.append((self.name, "answered", code))

    def intercept(self, dispatcher: Dispatcher) -> None:
        dispatcher.intercept(Interceptor(before=self.before, answered=self.answered))


class Rig:
    """A server whose handlers write down that they were called, and a client."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.seen: list[tuple[str, str, int]] = []
        self.held: list[Request] = []
        self.dispatcher = Dispatcher()
        for code, handler in {
            ECHO: self._echo,
            LATER: self.held.append,
            ASYNC: self._async,
            REFUSE: self._refuse,
            FRAME: self._frame,
        }.items():
            self.dispatcher.on_code(code, self._noted(handler))
        self.client = RemotingClient()
        self.server = RemotingServer(self.dispatcher, "127.0.0.1", 0, limits=limits)

    def _noted(self, handler: Callable[[Request], object]) -> Callable[[Request], Reply | None]:
        def call(request: Request) -> Reply | None:
            self.seen.append(("handler", "called", request.command.code))
            return handler(request)  # type: ignore[return-value]

        return call

    def _echo(self, request: Request) -> Reply:
        return Reply(body=bytes(request.command.body))

    async def _async(self, request: Request) -> Reply:
        await asyncio.sleep(0)
        return Reply(code=7)

    def _refuse(self, request: Request) -> Reply:
        raise MQError(ResponseCode.TOPIC_NOT_EXIST, "no such topic")

    def _frame(self, request: Request) -> None:
        command = Command(8, {}, opaque=request.command.opaque, flag=FLAG_RESPONSE)
        request.reply_frame(encode(command), 8)

    async def ask(self, code: int, *, flag: int = 0, body: bytes = b"") -> Command:
        command = Command(code, {}, body, flag=flag)
        return await self.client.invoke(f"127.0.0.1:{self.server.port}", command, timeout_ms=5000)

    async def oneway(self, code: int) -> None:
        """Send, and wait until the server has dispatched it."""
        await self.ask(ECHO)
        connection = self.client.connected(f"127.0.0.1:{self.server.port}")
        assert connection is not None
        connection._write_command(Command(code, {}, flag=FLAG_ONEWAY, opaque=77), b"")
        await self.ask(ECHO)


@asynccontextmanager
async def running(rig: Rig) -> AsyncIterator[Rig]:
    await rig.server.start()
    try:
        yield rig
    finally:
        await rig.client.close()
        await rig.server.stop()


def test_without_interceptors_handlers_are_called_directly() -> None:
    dispatcher = Dispatcher()

    def handler(request: Request) -> Reply:
        return Reply()

    def answered(request: Request, code: int) -> None: ...

    dispatcher.on_code(ECHO, handler)
    assert dispatcher.handlers[ECHO] is handler and dispatcher.answered is None
    dispatcher.intercept(Interceptor(answered=answered))
    assert dispatcher.handlers[ECHO] is handler and dispatcher.answered is answered
    assert guard(handler, [Interceptor()]) is handler and each_answered([Interceptor()]) is None


async def test_the_first_interceptor_sees_a_request_first_and_its_answer_last() -> None:
    rig = Rig()
    outer, inner = Recorder("outer", rig.seen), Recorder("inner", rig.seen)
    outer.intercept(rig.dispatcher)
    inner.intercept(rig.dispatcher)
    async with running(rig):
        answer = await rig.ask(ECHO, body=b"hello")
    assert answer.body == b"hello"
    assert rig.seen == [
        ("outer", "before", ECHO),
        ("inner", "before", ECHO),
        ("handler", "called", ECHO),
        ("inner", "answered", 0),
        ("outer", "answered", 0),
    ]


async def test_an_interceptor_applies_to_handlers_bound_before_and_after_it() -> None:
    rig = Rig()
    Recorder("one", rig.seen).intercept(rig.dispatcher)
    rig.dispatcher.on(Typed, lambda request, header: Reply(code=header.queue_id))
    async with running(rig):
        await rig.ask(ECHO)
        answer = await rig.client.invoke(
            f"127.0.0.1:{rig.server.port}", Command(TYPED, {"queueId": "5"}, binary=True)
        )
    assert answer.code == 5
    assert [each for each in rig.seen if each[1] == "before"] == [
        ("one", "before", ECHO),
        ("one", "before", TYPED),
    ]


async def test_a_refusal_is_the_answer_and_ends_the_request_there() -> None:
    rig = Rig()
    outer, middle, inner = (Recorder(name, rig.seen) for name in ("outer", "middle", "inner"))
    for each in (outer, middle, inner):
        each.intercept(rig.dispatcher)
    middle.refuses = {ECHO, UNKNOWN}
    async with running(rig):
        for code in (ECHO, UNKNOWN):
            rig.seen.clear()
            answer = await rig.ask(code)
            assert (answer.code, answer.remark) == (NO_PERMISSION, "middle says no")
            assert rig.seen == [
                ("outer", "before", code),
                ("middle", "before", code),
                ("outer", "answered", NO_PERMISSION),
            ]


def refuse_later(code: int, after: Callable[[], Awaitable[object]]) -> Callable[[Request], object]:
    async def check(request: Request) -> None:
        await after()
        raise MQError(ResponseCode.NO_PERMISSION, "asked elsewhere: no")

    return lambda request: check(request) if request.command.code == code else None


async def test_a_refusal_may_come_later_and_holds_up_no_other_request() -> None:
    rig = Rig()
    outer = Recorder("outer", rig.seen)
    outer.intercept(rig.dispatcher)
    asked, decided = asyncio.Event(), asyncio.Event()

    async def decide() -> None:
        asked.set()
        await decided.wait()

    rig.dispatcher.intercept(Interceptor(before=refuse_later(LATER, decide)))  # type: ignore[arg-type]
    inner = Recorder("inner", rig.seen)
    inner.intercept(rig.dispatcher)
    async with running(rig):
        refused = asyncio.ensure_future(rig.ask(LATER))
        await asked.wait()
        assert (await rig.ask(ECHO)).code == 0
        rig.seen.clear()
        decided.set()
        answer = await refused
        assert not next(iter(rig.server.connections)).in_flight
    assert (answer.code, answer.remark) == (NO_PERMISSION, "asked elsewhere: no")
    assert rig.seen == [("outer", "answered", NO_PERMISSION)] and not rig.held


async def test_a_request_that_was_waited_for_continues_to_its_handler() -> None:
    rig = Rig()
    one, two = Recorder("one", rig.seen), Recorder("two", rig.seen)

    async def look_up(request: Request) -> None:
        await asyncio.sleep(0.001)

    one.intercept(rig.dispatcher)
    for _ in range(2):
        rig.dispatcher.intercept(Interceptor(before=look_up))
    two.intercept(rig.dispatcher)

    async def answer_held() -> None:
        while not rig.held:
            await asyncio.sleep(0.001)
        rig.held.pop().reply(Reply(code=9))

    async with running(rig):
        for code, expected in ((ECHO, 0), (ASYNC, 7), (FRAME, 8), (LATER, 9), (REFUSE, 17)):
            rig.seen.clear()
            later = asyncio.ensure_future(answer_held()) if code == LATER else None
            assert (await rig.ask(code)).code == expected
            if later is not None:
                await later
            assert rig.seen == [
                ("one", "before", code),
                ("two", "before", code),
                ("handler", "called", code),
                ("two", "answered", expected),
                ("one", "answered", expected),
            ]


async def test_each_answer_is_seen_once_whichever_way_it_was_given() -> None:
    rig = Rig(limits=Limits(request_timeout_ms=100))
    time_ns = 100
    arrived: list[tuple[int, int, int]] = []
    rig.dispatcher.timer_ns = lambda: time_ns
    rig.dispatcher.intercept(
        Interceptor(
            answered=lambda request, code: arrived.append((request.command.code, code, request.arrived_ns))
        )
    )
    async with running(rig):
        for code in (ECHO, REFUSE, FRAME, ASYNC):
            await rig.ask(code)
        time_ns = 200
        expired = await rig.ask(LATER)
        rig.held[0].reply(Reply())  # too late: it was answered already
        unknown = await rig.ask(UNKNOWN)
    unsupported = int(ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
    assert (expired.code, unknown.code) == (SYSTEM_BUSY, unsupported)
    assert arrived == [
        (ECHO, 0, 100),
        (REFUSE, int(ResponseCode.TOPIC_NOT_EXIST), 100),
        (FRAME, 8, 100),
        (ASYNC, 7, 100),
        (LATER, SYSTEM_BUSY, 200),
        (UNKNOWN, unsupported, 200),
    ]


async def test_oneway_requests_are_checked_and_seen_where_their_handler_answers() -> None:
    rig = Rig()
    one = Recorder("one", rig.seen)
    one.intercept(rig.dispatcher)
    async with running(rig):
        await rig.oneway(LATER)  # its handler gives no answer
        assert ("one", "before", LATER) in rig.seen
        assert [each for each in rig.seen if each[1] == "answered"] == [("one", "answered", 0)] * 2
        rig.seen.clear()
        await rig.oneway(FRAME)
        assert ("one", "answered", 8) in rig.seen
        one.refuses = {ASYNC}
        rig.seen.clear()
        await rig.oneway(ASYNC)
        assert ("one", "before", ASYNC) in rig.seen and ("handler", "called", ASYNC) not in rig.seen


async def test_a_request_whose_time_is_up_while_an_interceptor_decides_never_reaches_its_handler() -> None:
    rig = Rig(limits=Limits(request_timeout_ms=100))
    decided = asyncio.Event()
    finished: list[int] = []

    async def slow(request: Request) -> None:
        await decided.wait()
        finished.append(request.command.code)

    outer, inner = Recorder("outer", rig.seen), Recorder("inner", rig.seen)
    outer.intercept(rig.dispatcher)
    rig.dispatcher.intercept(Interceptor(before=slow))
    inner.intercept(rig.dispatcher)
    async with running(rig):
        answer = await rig.ask(ECHO)
        decided.set()
        while not finished:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.001)
    assert answer.code == SYSTEM_BUSY
    assert rig.seen == [("outer", "before", ECHO), ("outer", "answered", SYSTEM_BUSY)]


async def test_an_exception_in_before_refuses_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    one = Recorder("one", rig.seen)
    one.intercept(rig.dispatcher)
    one.raises = {ECHO}

    async def fails(request: Request) -> None:
        raise ZeroDivisionError("nothing to divide by")

    rig.dispatcher.intercept(
        Interceptor(before=lambda request: fails(request) if request.command.code == ASYNC else None)
    )
    async with running(rig):
        first, second = await rig.ask(ECHO), await rig.ask(ASYNC)
    assert (first.code, first.remark) == (SYSTEM_ERROR, "KeyError: 'one'")
    assert (second.code, second.remark) == (SYSTEM_ERROR, "ZeroDivisionError: nothing to divide by")
    assert [each for each in rig.seen if each[0] == "handler"] == []
    assert caplog.text.count("Traceback") == 2


@pytest.mark.parametrize("others", [0, 1])
async def test_an_exception_in_answered_is_logged_and_hides_no_answer(
    others: int, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig()
    seen: list[int] = []
    for _ in range(others):
        rig.dispatcher.intercept(Interceptor(answered=lambda request, code: seen.append(code)))

    def fails(request: Request, code: int) -> None:
        raise ZeroDivisionError

    rig.dispatcher.intercept(Interceptor(answered=fails))
    async with running(rig):
        assert (await rig.ask(ECHO, body=b"x")).body == b"x"
        assert (await rig.ask(FRAME)).code == 8
    assert seen == [0, 8] * others
    assert caplog.text.count("interceptor failed on the answer to code=") == 2
    assert caplog.text.count("\nZeroDivisionError") == 2


async def test_connections_are_seen_when_they_open_and_when_they_end() -> None:
    rig = Rig()
    seen: list[tuple[str, str]] = []
    for name in ("outer", "inner"):
        rig.dispatcher.intercept(
            Interceptor(
                opened=lambda connection, name=name: seen.append((name, f"opened {connection.closed}")),  # type: ignore[misc]
                closed=lambda connection, name=name: seen.append((name, f"closed {connection.closed}")),  # type: ignore[misc]
            )
        )
    async with running(rig):
        await rig.ask(ECHO)
        assert seen == [("outer", "opened False"), ("inner", "opened False")]
        seen.clear()
        await rig.client.close()
        while len(seen) < 2:
            await asyncio.sleep(0.001)
    assert seen == [("inner", "closed True"), ("outer", "closed True")]


@pytest.mark.parametrize("bug", [False, True])
async def test_a_refused_connection_is_closed_and_ends_for_those_who_saw_it(
    bug: bool, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig()
    seen: list[str] = []
    refusing = True

    def gate(connection: Connection) -> None:
        if refusing:
            raise ZeroDivisionError if bug else MQError(ResponseCode.NO_PERMISSION, "members only")

    rig.dispatcher.intercept(
        Interceptor(
            opened=lambda c: seen.append("outer opened"), closed=lambda c: seen.append("outer closed")
        )
    )
    rig.dispatcher.intercept(Interceptor(opened=gate, closed=lambda c: seen.append("gate closed")))
    rig.dispatcher.intercept(
        Interceptor(
            opened=lambda c: seen.append("inner opened"), closed=lambda c: seen.append("inner closed")
        )
    )
    async with running(rig):
        for _ in range(3):
            with pytest.raises((ConnectionLost, CallTimeout)):
                await rig.ask(ECHO)
        assert not rig.server.connections
        assert seen == ["outer opened", "outer closed"] * 3
        assert ("handler", "called", ECHO) not in rig.seen
        refusing = False
        seen.clear()
        assert (await rig.ask(ECHO)).code == 0
    assert seen == ["outer opened", "inner opened", "inner closed", "gate closed", "outer closed"]
    if bug:
        assert (
            caplog.text.count("refused: interceptor failed") == caplog.text.count("\nZeroDivisionError") == 3
        )
    else:
        (line,) = caplog.messages
        assert line.startswith("127.0.0.1:") and line.endswith("refused: members only")


async def test_an_exception_in_closed_is_logged_and_the_others_are_called(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig = Rig()
    closed: list[Connection] = []

    def fails(connection: Connection) -> None:
        raise ZeroDivisionError

    rig.dispatcher.intercept(Interceptor(closed=closed.append))
    rig.dispatcher.intercept(Interceptor(closed=fails))
    async with running(rig):
        await rig.ask(ECHO)
    assert len(closed) == 1 and "interceptor failed on the end of 127.0.0.1:" in caplog.text
