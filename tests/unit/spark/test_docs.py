"""docs/spark.md says what the code does."""

from __future__ import annotations

import re
from pathlib import Path

from batonmq.spark.columns import COLUMNS, DEFAULT_COLUMNS
from batonmq.spark.options import option_table
from batonmq.spark.sink.encode import SINK_COLUMNS
from batonmq.spark.sink.options import sink_option_table
from batonmq.spark.store.columns import TABLE_COLUMNS
from batonmq.spark.store.options import store_option_table

PAGE = (Path(__file__).parents[3] / "docs" / "spark.md").read_text()


def test_the_option_table_is_that_of_the_code():
    assert option_table() in PAGE, f"docs/spark.md wants this table:\n{option_table()}"


def test_the_tables_of_sink_and_store_options_are_those_of_the_code():
    for table in (sink_option_table(), store_option_table()):
        assert table in PAGE, f"docs/spark.md wants this table:\n{table}"


def test_the_sink_s_columns_are_listed_with_their_types():
    section = PAGE.partition("## Writing")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \| ([\w<>, ]+) \|", section, re.MULTILINE))
    assert {n: rows[n] for n in SINK_COLUMNS} == {n: " or ".join(kinds) for n, kinds in SINK_COLUMNS.items()}


def test_the_store_s_tables_are_listed_with_their_columns():
    section = PAGE.partition("## Stores without a broker")[2].partition("\n## ")[0]
    for table, columns in TABLE_COLUMNS.items():
        (row,) = re.findall(rf"^\| `{table}` \| (.+) \|$", section, re.MULTILINE)
        assert re.findall(r"`(\w+)`", row) == list(columns)


def test_every_column_is_listed_with_its_type():
    section = PAGE.partition("## Columns")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)`( ✓)? \| ([\w<>,]+) \|", section, re.MULTILINE)
    assert {name: kind for name, _, kind in rows} == {name: kind for name, (kind, _) in COLUMNS.items()}
    assert {name for name, default, _ in rows if default} == set(DEFAULT_COLUMNS)


def test_the_page_names_the_save_mode_and_the_error_of_every_other_one():
    """Spark raises it before the sink can say anything clearer."""
    section = PAGE.partition("## Writing")[2].partition("\n## ")[0]
    assert '`mode("append")` is needed' in section
    assert "UNSUPPORTED_DATA_SOURCE_SAVE_MODE" in section
