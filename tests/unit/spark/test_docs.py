"""docs/spark.md says what the code does."""

from __future__ import annotations

import re
from pathlib import Path

from batonmq.spark.decode import COLUMNS, DEFAULT_COLUMNS
from batonmq.spark.options import option_table

PAGE = (Path(__file__).parents[3] / "docs" / "spark.md").read_text()


def test_the_option_table_is_that_of_the_code():
    assert option_table() in PAGE, f"docs/spark.md wants this table:\n{option_table()}"


def test_every_column_is_listed_with_its_type():
    section = PAGE.partition("## Columns")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)`( ✓)? \| ([\w<>,]+) \|", section, re.MULTILINE)
    assert {name: kind for name, _, kind in rows} == {name: kind for name, (kind, _) in COLUMNS.items()}
    assert {name for name, default, _ in rows if default} == set(DEFAULT_COLUMNS)
