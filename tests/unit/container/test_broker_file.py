"""A broker's file as a container reads it, and what is no such file."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path

import pytest

from batonmq.common.config import ConfigError
from batonmq.common.config_loader import NoConfigFile
from batonmq.container import broker_file
from batonmq.container.broker_file import BrokerFile, Unreadable, inside, read_broker_file
from batonmq.container.core import BrokerIdentity


def read(tmp_path: Path, text: str, namesrv: str = "") -> BrokerFile:
    path = tmp_path / "b.conf"
    path.write_text(text)
    return read_broker_file(path, namesrv)


def test_a_master_has_id_0_whatever_its_file_says(tmp_path: Path) -> None:
    file = read(tmp_path, "brokerName=a\nbrokerId=3\nbrokerRole=SYNC_MASTER\nlistenPort=10911\n")
    assert file.identity == BrokerIdentity("DefaultCluster", "a", 0) and not file.claims.slave


def test_a_slave_keeps_its_id_and_leaves_memory_to_the_masters(tmp_path: Path) -> None:
    file = read(tmp_path, "brokerName=a\nbrokerId=2\nbrokerRole=SLAVE\nbrokerClusterName=c\n")
    assert file.identity.canonical_name == "c_a_2" and file.claims.slave
    assert file.store.access_message_in_memory_max_ratio == 30
    file = read(tmp_path, "brokerName=a\nbrokerId=2\nbrokerRole=SLAVE\naccessMessageInMemoryMaxRatio=5\n")
    assert file.store.access_message_in_memory_max_ratio == 0


def test_in_controller_mode_the_id_is_that_of_the_file(tmp_path: Path) -> None:
    text = "brokerName=a\nenableControllerMode=true\ncontrollerAddr=127.0.0.1:9877\nbrokerId="
    assert [read(tmp_path, f"{text}{n}\n").identity.broker_id for n in (-1, 0, 2)] == [0, 0, 2]
    assert not read(tmp_path, f"{text}2\nbrokerRole=SLAVE\n").claims.slave


def test_a_broker_without_a_name_has_the_hosts(tmp_path: Path) -> None:
    file = read(tmp_path, "listenPort=10911\n")
    assert file.identity.name == file.config.broker_name == socket.gethostname()


def test_the_containers_name_servers_take_the_place_of_the_files(tmp_path: Path) -> None:
    text = "brokerName=a\nnamesrvAddr=10.0.0.1:9876\n"
    assert read(tmp_path, text).config.namesrv_addr == "10.0.0.1:9876"
    assert read(tmp_path, text, "10.0.0.2:9876").config.namesrv_addr == "10.0.0.2:9876"


def test_all_ports_of_a_broker_are_known(tmp_path: Path) -> None:
    def ports(more: str) -> dict[str, int]:
        file = read(tmp_path, f"brokerName=a\nbrokerIP1=127.0.0.1\nlistenPort=10911\n{more}")
        return {each.key: each.port for each in file.claims.listeners}

    assert ports("") == {"listenPort": 10_911, "listenPort - 2": 10_909, "listenPort + 1": 10_912}
    assert ports("haListenPort=20000\nvipChannelEnabled=false\nmetricsExporterType=PROM\n") == {
        "listenPort": 10_911,
        "haListenPort": 20_000,
        "metricsPromExporterPort": 5557,
    }


def test_stores_are_known_by_where_they_are(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    direct = read(tmp_path, f"brokerName=a\nstorePathRootDir={tmp_path}/real\n").claims
    linked = read(tmp_path, f"brokerName=b\nstorePathRootDir={tmp_path}/x/../link\n").claims
    assert direct.directories == linked.directories
    log = read(
        tmp_path,
        f"brokerName=c\nstorePathRootDir={tmp_path}/c\nstorePathCommitLog={tmp_path}/link/commitlog\n",
    )
    assert direct.directories & log.claims.directories


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("brokerName=a\nbrokerRole=SLAVE\n", "brokerId=0: slave broker id must be > 0"),
        ("brokerName=a\nbrokerRole=NONE\n", "brokerRole=NONE"),
        ("brokerName=a\nlistenPort=70000\n", "listenPort=70000: must be at most 65535"),
        (
            "brokerName=a\ninSyncReplicas=3\ntotalReplicas=2\n",
            "inSyncReplicas=3: must not be above totalReplicas=2",
        ),
    ],
)
def test_values_that_do_not_fit_are_named_with_their_file(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text)
    assert str(caught.value).startswith(f"{tmp_path}/b.conf: ") and said in str(caught.value)


def test_what_is_not_a_file_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large").write_bytes(b"#" * (1 << 20) + b"\n")
    for name, said in {
        "missing": "No such file",
        "pipe": "is not a file",
        ".": "is not a file",
        "large": "1048577 bytes",
        "nul\0": "embedded null byte",
        "x" * 300: "File name too long",
    }.items():
        with pytest.raises(Unreadable, match=said):
            read_broker_file(tmp_path / name, "")


@pytest.mark.skipif(not os.path.exists("/proc/kallsyms"), reason="Linux shows its symbols there")
def test_a_file_that_hides_its_size_is_not_read_to_its_end() -> None:
    with pytest.raises(Unreadable, match="more than 1048576 bytes"):
        read_broker_file(Path("/proc/kallsyms"), "")


def test_a_file_without_an_end_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Like /proc/kmsg, which is regular."""
    endless = tmp_path / "endless"
    os.mkfifo(endless)
    writer = os.open(endless, os.O_RDWR)
    monkeypatch.setattr(broker_file, "_check_regular", lambda path: None)
    errors: list[Exception] = []

    def run() -> None:
        try:
            read_broker_file(endless, "")
        except Exception as error:
            errors.append(error)

    reader = threading.Thread(target=run, daemon=True)
    reader.start()
    reader.join(5)
    os.close(writer)
    (error,) = errors
    assert isinstance(error, Unreadable) and "it has no end yet" in str(error)


def test_other_text_is_not_a_configuration(tmp_path: Path) -> None:
    with pytest.raises(NoConfigFile, match="is not a configuration file"):
        read(tmp_path, "root:x:0:0:root:/root:/bin/bash\nsecret words of another file\n")


def test_a_path_is_judged_by_where_it_leads(tmp_path: Path) -> None:
    allowed, other = tmp_path / "allowed", tmp_path / "other"
    allowed.mkdir()
    other.mkdir()
    (allowed / "out.conf").symlink_to(other / "b.conf")
    (tmp_path / "in").symlink_to(allowed)
    assert inside(allowed / "b.conf", [str(allowed)]) and inside(tmp_path / "in" / "b.conf", [str(allowed)])
    assert inside(other / "b.conf", [str(allowed), str(other)])
    for path in (other / "b.conf", allowed / ".." / "other" / "b.conf", allowed / "out.conf"):
        assert not inside(path, [str(allowed)])
    assert not inside(Path(f"{allowed}-too/b.conf"), [str(allowed)])
