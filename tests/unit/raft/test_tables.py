"""The protocol as tables in tests/data/raft: each block is a script, `----`, and what came of it."""

import os
from pathlib import Path

import pytest
from tests.unit.raft.tables import Script

TABLES = Path(__file__).parents[2] / "data" / "raft"


@pytest.mark.parametrize("path", sorted(TABLES.glob("*.txt")), ids=lambda path: path.stem)
def test_table(path: Path) -> None:
    script = Script()
    blocks = []
    for block in path.read_text().split("\n\n"):
        commands, _, expected = block.strip("\n").partition("\n----")
        blocks.append((commands, expected.strip("\n"), script.run(commands)))
    if os.environ.get("REWRITE_TABLES"):
        path.write_text("\n\n".join(f"{c}\n----\n{a}".rstrip("\n") for c, _, a in blocks) + "\n")
        return
    for commands, expected, actual in blocks:
        assert actual == expected, commands
