"""The Raft simulation with compiled modules, for long searches: `python -m tests.simulation raft --compiled`.

What Raft groups run (core, storage and simulation) is compiled with mypyc, in a folder that git ignores, and
runs there; again only after a source has changed. A seed gives the same result as in pure Python.

Mutations replace functions, which compiled modules do not notice: they, and the tests, run pure Python. So do
the other kinds of stories, whose faults (full disks) and observers replace functions of the programs as well.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "pyproject.toml"
FOLDER = ROOT / ".cache" / "simulation"
BUILT = FOLDER / "built.json"
"""Source file → CRC-32 of what was compiled."""

SETUP = """
from setuptools import setup
from mypyc.build import mypycify
setup(name="simulation", packages=[], ext_modules=mypycify({arguments!r}, group_name="simulation",
      multi_file=True, debug_level="0", target_dir="c"))
"""

RAFT = (
    *(
        "config",
        "core",
        "election",
        "election_timer",
        "follower",
        "heartbeats",
        "log",
        "memberships",
        "outbox",
    ),
    *("outgoing_snapshot", "pending_reads", "progress", "quorum", "reach", "read_index", "replication"),
    *("server", "snapshot_receiver", "state", "storage", "transfer"),
)
"""Not among them: msgspec's structs (`messages.py`, `layout.py`), whose fields would lose their types."""
SIMULATION = ("memory_disk", "raft_checks", "raft_node", "raft_sim")


def modules() -> list[str]:
    return [
        *(f"batonmq/raft/{name}.py" for name in RAFT),
        *(f"tests/simulation/{name}.py" for name in SIMULATION),
    ]


def sources() -> dict[str, Path]:
    """Every source that the build copies, by its place there."""
    return {
        str(path.relative_to(top)): path
        for top, package in ((ROOT / "src", "batonmq"), (ROOT, "tests"))
        for path in sorted((top / package).rglob("*.py"))
    }


def checksums() -> dict[str, int]:
    read = {**sources(), CONFIG.name: CONFIG}
    return {place: zlib.crc32(path.read_bytes()) for place, path in read.items()}


def build() -> None:
    """Copy the sources and compile, unless the folder was built from the same ones."""
    wanted = checksums()
    if BUILT.exists() and json.loads(BUILT.read_text()) == wanted:
        return
    print("compiling the Raft simulation", file=sys.stderr)
    shutil.rmtree(FOLDER, ignore_errors=True)
    for place, path in sources().items():
        (FOLDER / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, FOLDER / place)
    arguments = [
        f"--config-file={CONFIG}",
        "--follow-imports=silent",
        "--no-warn-unused-ignores",
        *modules(),
    ]
    (FOLDER / "setup.py").write_text(SETUP.format(arguments=arguments))
    command = [sys.executable, "setup.py", "build_ext", "--inplace", f"-j{os.cpu_count() or 1}"]
    done = subprocess.run(
        command, cwd=FOLDER, env=environment(), text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    if done.returncode:
        sys.exit(f"the compilation failed:\n{done.stdout}")
    # Without it the product takes its compiled modules for what an interrupted build left (`_compiled.py`).
    package = {
        place.removeprefix("batonmq/"): crc for place, crc in wanted.items() if place.startswith("batonmq/")
    }
    (FOLDER / "batonmq" / "compiled.json").write_text(json.dumps(package))
    BUILT.write_text(json.dumps(wanted))


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(FOLDER), "BATONMQ_PURE": "0"}


def run_compiled(arguments: Sequence[str]) -> NoReturn:
    """`python -m tests.simulation` with `arguments` in the place of this process."""
    build()
    # -P: not the sources of the current directory.
    command = [sys.executable, "-P", "-m", "tests.simulation", *arguments]
    os.execve(sys.executable, command, environment())
