"""Messages between a container and its workers."""

from __future__ import annotations

import asyncio

import pytest

from batonmq.container import control
from batonmq.container.core import BrokerIdentity
from batonmq.net.tls import TlsConfig

IDENTITY = BrokerIdentity("DefaultCluster", "broker-ä", 1)


def reader_of(data: bytes) -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    reader.feed_data(data)
    reader.feed_eof()
    return reader


@pytest.mark.parametrize(
    "order",
    [
        control.Hello(2, TlsConfig(server_key_password="secret")),
        control.Start(1, "/etc/b.conf", "10.0.0.1:9876", IDENTITY),
        control.Stop(2, IDENTITY),
        control.NameServers(3, ""),
        control.Close(4),
        control.Ping(9),
    ],
)
async def test_orders_arrive_as_they_were_sent(order: control.Order) -> None:
    reader = reader_of(control.frame(order) * 2)
    assert [await control.read_order(reader) for _ in range(3)] == [order, order, None]


@pytest.mark.parametrize(
    "report", [control.Answer(1), control.Answer(2, "why not"), control.Ended(IDENTITY, "disk")]
)
async def test_reports_arrive_as_they_were_sent(report: control.Report) -> None:
    assert await control.read_report(reader_of(control.frame(report))) == report


async def test_half_a_message_is_none() -> None:
    data = control.frame(control.Close(4))
    for length in range(len(data)):
        assert await control.read_order(reader_of(data[:length])) is None


@pytest.mark.parametrize(
    "data", [b"\xff\xff\xff\xff", b"\0\0\0\2{}", b"\0\0\0\2\xff\xff", control.frame(control.Answer(1))]
)
async def test_anything_else_is_an_error(data: bytes) -> None:
    with pytest.raises(ValueError):
        await control.read_order(reader_of(data))
