"""A corner of the machine for one run: its own network, mounts and process ids.

The program starts itself again below `unshare`. There it is process 1: when it ends, however it ends, the
kernel kills all it started and takes its network away, so that no run leaves anything behind.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

INSIDE = "BATONMQ_CHAOS_INSIDE"
"""Set in the environment of the program below `unshare`."""

TOOLS = {
    "ip": "iproute2",
    "nft": "nftables",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
    "mount": "mount",
}
"""What is run, and the Debian package that has it."""


class CannotIsolate(RuntimeError):
    """This machine or user cannot have such a corner; the text says what to do."""


def is_inside() -> bool:
    return os.environ.get(INSIDE) == "1"


def check_tools() -> None:
    """Raises `CannotIsolate` naming the programs that are missing and their packages."""
    # ip and nft live in /usr/sbin, which an ordinary user's PATH may lack.
    os.environ["PATH"] = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        packages = " ".join(sorted({TOOLS[tool] for tool in missing}))
        raise CannotIsolate(
            f"{', '.join(missing)} not found. On Debian or Ubuntu: apt-get install {packages}"
        )


def unshare_command() -> list[str]:
    """What to put before a command to isolate it. Raises `CannotIsolate`."""
    command = ["unshare", "--net", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"]
    if os.geteuid() != 0:
        command.append("--map-root-user")  # enough where users may make namespaces
    tried = subprocess.run([*command, "true"], capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        raise CannotIsolate(
            f"no namespaces for this user ({tried.stderr.strip()}). Run it as root: sudo make chaos"
        )
    return command


def run_inside(arguments: Sequence[str], module: str = "tests.chaos") -> int:
    """Run ``python -m <module>`` with these arguments inside; returns its exit code.

    SIGINT and SIGTERM are handed on once. If we are killed, so is everything inside.
    """
    check_tools()
    child = subprocess.Popen(
        [
            *("setpriv", "--pdeathsig", "KILL"),
            *unshare_command(),
            *(sys.executable, "-m", module, *arguments),
        ],
        env={**os.environ, INSIDE: "1"},
        process_group=0,
    )

    def hand_on(number: int, frame: object) -> None:
        os.killpg(child.pid, signal.SIGINT)

    before = {number: signal.signal(number, hand_on) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        return child.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def settle_in() -> None:
    """The first steps inside: a place for named namespaces that ends with us, and a loopback."""
    run("mount", "-t", "tmpfs", "chaos", "/run")
    Path("/run/netns").mkdir()
    run("ip", "link", "set", "lo", "up")


def run(*command: str, stdin: str | None = None) -> None:
    """Run a system tool. Raises `CannotIsolate` with what it said."""
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise CannotIsolate(f"{' '.join(command)} failed: {done.stderr.strip() or done.returncode}")
