"""The configuration loader: properties text, conversion, and what it says about mistakes."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

import pytest

from batonmq.common.clock import ManualClock, SystemClock
from batonmq.common.config import ConfigError, describe, parse_properties, require
from batonmq.common.config_loader import load, update
from batonmq.common.config_values import convert, to_properties


class Flush(Enum):
    SYNC = "SYNC_FLUSH"
    ASYNC = "ASYNC_FLUSH"


@dataclass(frozen=True, slots=True, kw_only=True)
class Net:
    listen_port: int = 10911
    """Port that clients connect to."""
    broker_ip1: str | None = field(default=None, metadata={"key": "brokerIP1"})
    """Address that clients get.

    Guessed when absent.
    """
    flush_disk_type: Flush = Flush.ASYNC
    ratio: float = 0.5
    auto_create_topic_enable: bool = True

    def __post_init__(self) -> None:
        require(0 <= self.listen_port < 65536, f"listenPort={self.listen_port} is not a port")


@dataclass(frozen=True)
class Store:
    listen_port: int = 10911
    store_path_root_dir: Path = Path("store")
    names: tuple[str, ...] = ()


PROPERTIES = [
    ("a=b", {"a": "b"}),
    ("a = b c ", {"a": "b c "}),
    ("a:b", {"a": "b"}),
    ("a b", {"a": "b"}),
    ("# note\n! note\n\na=b", {"a": "b"}),
    ("a=x=y", {"a": "x=y"}),
    ("a=", {"a": ""}),
    ("a", {"a": ""}),
    ("a=b\\\n   c", {"a": "bc"}),
    ("a=b\\\\", {"a": "b\\"}),
    ("a=tab\\tend", {"a": "tab\tend"}),
    ("a=\\u00fc", {"a": "ü"}),
    ("a\\ b=c", {"a b": "c"}),
    ("a=1\na=2", {"a": "2"}),
    ("a=http://x:1", {"a": "http://x:1"}),
]


@pytest.mark.parametrize(("text", "expected"), PROPERTIES)
def test_properties(text: str, expected: dict[str, str]) -> None:
    assert parse_properties(text) == expected


CONVERT = [
    (" 7 ", int, 7),
    ("-1", int, -1),
    ("2.5", float, 2.5),
    ("true", bool, True),
    ("FALSE", bool, False),
    ("", str | None, None),
    ("x", str | None, "x"),
    ("sync_flush", Flush, Flush.SYNC),
    ("ASYNC", Flush, Flush.ASYNC),
    ("a;b, c", tuple[str, ...], ("a", "b", "c")),
    ("", tuple[str, ...], ()),
]


@pytest.mark.parametrize(("text", "kind", "expected"), CONVERT)
def test_convert(text: str, kind: object, expected: object) -> None:
    assert convert(text, kind) == expected


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "broker.conf"
    path.write_text(text)
    return path


def test_file_then_command_line(tmp_path: Path) -> None:
    path = write(
        tmp_path, "listenPort=1\nbrokerIP1=10.0.0.1\nflushDiskType=SYNC_FLUSH\nstorePathRootDir=/x\n"
    )
    net, store = load(path, Net, Store, overrides={"listenPort": "2", "names": "a;b"})
    assert net == Net(listen_port=2, broker_ip1="10.0.0.1", flush_disk_type=Flush.SYNC)
    assert store == Store(2, Path("/x"), ("a", "b"))


def test_defaults_without_a_file() -> None:
    assert load(None, Net) == (Net(),)


BAD = [
    ("listenPort=abc", ["broker.conf", "listenPort=abc", "whole number"]),
    ("autoCreateTopicEnable=maybe", ["autoCreateTopicEnable=maybe", "true or false"]),
    ("flushDiskType=FAST", ["flushDiskType=FAST", "SYNC_FLUSH", "ASYNC_FLUSH"]),
    ("ratio=x", ["ratio=x", "number"]),
    ("listenPort=70000", ["broker.conf", "listenPort=70000 is not a port"]),
    ("a=\\uzzzz", ["broker.conf", "\\u"]),
]


@pytest.mark.parametrize(("text", "parts"), BAD)
def test_a_bad_value_names_file_key_and_value(tmp_path: Path, text: str, parts: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        load(write(tmp_path, text), Net)
    for part in parts:
        assert part in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_bad_override_names_the_command_line() -> None:
    with pytest.raises(ConfigError, match="command line: listenPort=x"):
        load(None, Net, overrides={"listenPort": "x"})


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nothing\.conf"):
        load(tmp_path / "nothing.conf", Net)
    path = tmp_path / "latin.conf"
    path.write_bytes(b"a=\xff")
    with pytest.raises(ConfigError, match=r"latin\.conf"):
        load(path, Net)


NO_PROPERTIES = [
    "This is a note.\nIt has no keys in it.\n",
    "Dear all, please set listenPort to 5\n",
    '{\n  "listenPort": 9876\n}\n',
    "<server><listenPort>1</listenPort></server>\n",
    "#!/bin/sh\nexec true\n",
    "broker:\n  - listenPort 1\n",
]


@pytest.mark.parametrize("text", NO_PROPERTIES)
def test_a_file_of_something_else_is_refused_in_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load(write(tmp_path, text), Net)
    assert "broker.conf: is not a configuration file: line" in str(caught.value)
    assert "is not key=value" in str(caught.value) and "\n" not in str(caught.value)
    assert not caplog.records


def test_a_file_for_others_is_accepted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Java's name server has additional keys, and a key may stand before its value without a sign."""
    assert load(write(tmp_path, "serverWorkerThreads=8\n"), Net) == (Net(),)
    assert len(caplog.records) == 1
    assert load(write(tmp_path, "listenPort 7\n"), Net) == (Net(listen_port=7),)
    assert load(write(tmp_path, "# nothing yet\n"), Net) == (Net(),)


def test_unknown_keys_warn_and_name_the_nearest(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        load(write(tmp_path, "listenPrt=1\nzzz=2\n"), Net)
    first, second = (record.getMessage() for record in caplog.records)
    assert "listenPrt" in first and "did you mean listenPort?" in first and "broker.conf" in first
    assert "zzz" in second and "mean" not in second


SWITCHES = ["aclEnable", "authenticationEnabled", "authorizationEnabled", "migrateAuthFromV1Enabled"]


@pytest.mark.parametrize("key", SWITCHES)
def test_a_file_that_asks_for_access_control_is_refused_in_one_line(tmp_path: Path, key: str) -> None:
    """Without it the program would be open to everyone, unnoticed."""
    with pytest.raises(ConfigError) as caught:
        load(write(tmp_path, f"listenPort=7\n{key}=true\n"), Net)
    line = str(caught.value)
    assert f"broker.conf: {key}=true: " in line and "\n" not in line
    with pytest.raises(ConfigError, match=f"x: {key}=True: "):
        update(Net(), {key: "True"}, source="x")
    with pytest.raises(ConfigError, match=f"{key}=yes: expected true or false"):
        load(write(tmp_path, f"{key}=yes\n"), Net)


def test_access_control_that_is_off_is_no_news(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    text = "".join(f"{key}=false\n" for key in SWITCHES)
    assert load(write(tmp_path, f"listenPort=7\n{text}"), Net) == (Net(listen_port=7),)
    assert not caplog.records


def test_describe() -> None:
    infos = {info.key: info for info in describe(Net)}
    assert list(infos) == ["listenPort", "brokerIP1", "flushDiskType", "ratio", "autoCreateTopicEnable"]
    assert infos["listenPort"].doc == "Port that clients connect to."
    assert infos["brokerIP1"].doc == "Address that clients get. Guessed when absent."
    assert infos["flushDiskType"].type_name == "SYNC_FLUSH|ASYNC_FLUSH"
    assert infos["brokerIP1"].type_name == "str"
    assert infos["ratio"].default == 0.5


def test_to_properties_is_read_back(tmp_path: Path) -> None:
    net = Net(listen_port=5, broker_ip1="h", flush_disk_type=Flush.SYNC, auto_create_topic_enable=False)
    store = Store(5, Path("/y"), ("a", "b"))
    text = to_properties(net, store)
    assert text.count("listenPort=5\n") == 1
    assert load(write(tmp_path, text), Net, Store) == (net, store)


def test_update() -> None:
    net = update(Net(), {"listenPort": "7", "unknown": "x"})
    assert net == Net(listen_port=7)
    with pytest.raises(ConfigError, match="listenPort=x"):
        update(Net(), {"listenPort": "x"})


def test_clocks() -> None:
    clock = ManualClock(1000)
    clock.advance(5)
    assert (clock.now_ms(), clock.monotonic_ms()) == (1005, 5)
    with pytest.raises(ValueError, match="back"):
        clock.advance(-1)
    system = SystemClock()
    assert system.now_ms() > 1_700_000_000_000
    assert system.monotonic_ms() <= system.monotonic_ms()
