"""What only a real kernel shows: the switch drops what it should, and nothing outlives a run.

Run with ``pytest -m chaos``; needs what `make chaos` needs.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.chaos.isolate import INSIDE, CannotIsolate, check_tools, unshare_command

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(180)]
ROOT = Path(__file__).parents[2]

NETWORK = """
import socket, subprocess, sys, time
from tests.chaos.isolate import settle_in
from tests.chaos.network import CLIENTS, Network, links

ECHO = '''
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(("0.0.0.0", 5000))
while True:
    data, who = s.recvfrom(100); s.sendto(data, who)
'''
ASK = '''
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(0.02); answers = 0
for _ in range(200):
    s.sendto(b"x", (sys.argv[1], 5000))
    try:
        s.recvfrom(100); answers += 1
    except TimeoutError:
        pass
print(answers)
'''
settle_in()
network = Network(["a", "b"])
network.open()
echo = subprocess.Popen([*network.place("a").enter, sys.executable, "-c", ECHO])
time.sleep(0.5)

def answers(host):
    enter = () if host == CLIENTS else network.place(host).enter
    command = [*enter, sys.executable, "-c", ASK, network.address("a")]
    done = subprocess.run(command, capture_output=True, text=True)
    return int(done.stdout)

def both():
    return answers("b"), answers(CLIENTS)

print("free", *both())
network.apply(links(("a",), ("b",)), {})
print("cut", *both())
network.apply(frozenset(), dict.fromkeys(links(("a",), ("b", CLIENTS)), 80))
print("loss", *both())
network.apply(frozenset(), {})
print("healed", *both())
network.close()
network.open()
"""


@pytest.fixture(autouse=True)
def able() -> None:
    try:
        check_tools()
        unshare_command()
    except CannotIsolate as error:
        pytest.skip(str(error))


def test_cuts_and_losses_are_between_pairs_of_hosts() -> None:
    done = subprocess.run(
        [*unshare_command(), sys.executable, "-c", NETWORK],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, INSIDE: "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines()]
    received = {name: (int(first), int(second)) for name, first, second in rows}
    assert received["free"] == received["healed"] == (200, 200)
    assert received["cut"] == (0, 200)
    # 20 % there and 20 % of those back: 4 % of 200 are 8 on average.
    assert all(0 < answers < 30 for answers in received["loss"])


def descendants(pid: int) -> list[int]:
    found = []
    for child in subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False
    ).stdout.split():
        found += [int(child), *descendants(int(child))]
    return found


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_nothing_outlives_a_run(how: signal.Signals, tmp_path: Path) -> None:
    log = tmp_path / "out" / "ours-2" / "broker-1.log"

    def is_up() -> bool:
        return log.exists() and b"boot success" in log.read_bytes()

    command = ["tests.chaos", "--quick", "kill", "--out", str(tmp_path / "out")]
    # setpriv becomes unshare, our program, and seven of the cluster
    ends_with_all(command, how, is_up, 7, tmp_path)
    assert not (tmp_path / "out" / "report.html").exists()  # nobody waits for Spark then


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_nothing_outlives_a_soak_of_spark(how: signal.Signals, tmp_path: Path) -> None:
    if shutil.which("java") is None:
        pytest.skip("Spark needs a JRE >= 17, and there is no java on PATH")

    def is_up() -> bool:
        return bool(list(tmp_path.glob("spark-soak-*/checkpoint/commits/0")))

    # the driver, its JVM and a Python worker more
    ends_with_all(["tests.spark.soak", "--quick", "--scenarios", "hang"], how, is_up, 10, tmp_path)


def ends_with_all(
    command: list[str], how: signal.Signals, is_up: Callable[[], bool], least: int, directory: Path
) -> None:
    """Run a module, and end it when it is up: then none of its processes, more than `least`, may be left."""
    bridges = Path("/sys/class/net")
    before = sorted(path.name for path in bridges.iterdir())
    run = subprocess.Popen(
        [sys.executable, "-m", *command],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "TMPDIR": str(directory)},
    )
    try:
        deadline = time.monotonic() + 90
        while not is_up():
            assert run.poll() is None, "ended before all was up"
            assert time.monotonic() < deadline
            time.sleep(0.1)
        started = descendants(run.pid)
        assert len(started) > least
        run.send_signal(how)
        assert run.wait(30) != 0
    finally:
        run.kill()
        run.wait()
    deadline = time.monotonic() + 10
    while alive := [pid for pid in started if is_alive(pid)]:
        assert time.monotonic() < deadline, f"still there: {alive}"
        time.sleep(0.1)
    assert sorted(path.name for path in bridges.iterdir()) == before


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"
