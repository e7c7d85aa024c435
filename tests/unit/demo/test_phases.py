"""What `make demo` says before each step."""

from __future__ import annotations

import io
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from rich.console import Console

from batonmq.demo.main import Demonstration

ROOT = Path(__file__).parents[3]


def test_a_phase_says_what_it_does_and_how_long_that_takes_also_where_no_terminal_is(tmp_path: Path) -> None:
    out = io.StringIO()
    demonstration = Demonstration(Console(file=out, width=80), tmp_path, None, 1, None)
    with demonstration._phase("Spark compares", "30 s"):
        assert out.getvalue() == "→ Spark compares: about 30 s\n"
    assert out.getvalue() == "→ Spark compares: about 30 s\n"


def test_make_demo_names_each_step_and_its_time() -> None:
    if shutil.which("make") is None:
        pytest.skip("there is no make")
    commands = subprocess.run(
        ["make", "-n", "-B", "demo"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    said = re.findall(r'echo "((?:installing|compiling|running) [^"]+)"', commands)
    assert [line.split()[0] for line in said] == ["installing", "installing", "compiling", "running"]
    assert all(re.search(r": (?:about \d+|\d to \d+) (?:s|min)\b", line) for line in said)
