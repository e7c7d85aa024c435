"""What a user of Spark sees of a mistake: the text, before work starts, without the worker's traceback."""

from __future__ import annotations

import io
import os
import sys
import time
from inspect import signature
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from pyspark.errors import StreamingQueryException

pytest.importorskip("pyspark")

from pyspark.serializers import read_int
from pyspark.sql.types import StructType
from pyspark.util import handle_worker_exception

from batonmq import NoNameServer
from batonmq.spark.clear_errors import clear_errors, with_clear_errors
from batonmq.spark.main import _OURS, Jobs
from batonmq.spark.options import OptionError
from batonmq.spark.source import RocketMQSource, RocketMQStreamReader
from batonmq.spark.store.source import RocketMQStoreSource
from batonmq.store.errors import StoreError

HIDE = "SPARK_HIDE_TRACEBACK"


@pytest.fixture(autouse=True)
def _no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HIDE, "")  # so that it is put back to what it was
    monkeypatch.delenv(HIDE)


@pytest.fixture
def in_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the processes that Spark starts."""
    main = SimpleNamespace(__spec__=SimpleNamespace(name="pyspark.daemon"))
    monkeypatch.setitem(sys.modules, "__main__", main)  # type: ignore[arg-type]


def reported(error: BaseException) -> str:
    """What Spark's worker sends to the driver for an exception."""
    out = io.BytesIO()
    try:
        raise error
    except BaseException as raised:
        handle_worker_exception(raised, out)
    out.seek(0)
    assert read_int(out) < 0
    return out.read(read_int(out)).decode()


@pytest.mark.usefixtures("in_worker")
def test_a_worker_reports_the_text_alone() -> None:
    with pytest.raises(OptionError) as caught, clear_errors():
        raise OptionError("unknown option 'x'")
    assert reported(caught.value) == "batonmq.spark.options.OptionError: unknown option 'x'\n"


@pytest.mark.usefixtures("in_worker")
def test_a_bug_keeps_its_traceback() -> None:
    @with_clear_errors
    def broken() -> None:
        raise ZeroDivisionError("ours")

    with pytest.raises(ZeroDivisionError) as caught:
        broken()
    assert "Traceback" in reported(caught.value)


def test_a_program_of_the_users_is_left_as_it_is() -> None:
    with pytest.raises(OptionError), clear_errors():
        raise OptionError("x")
    assert HIDE not in os.environ


def begin(source: RocketMQSource, kind: str) -> None:
    """Make a reader; for a stream also call it: Spark does not show an error of `streamReader` itself."""
    reader = getattr(source, kind)(StructType())
    if kind == "streamReader":
        reader.getDefaultReadLimit()


def test_each_call_of_a_stream_that_cannot_begin_says_why() -> None:
    """Which one is the first depends on Spark's version, the trigger, and whether there is a checkpoint."""
    reader = RocketMQSource({"namesrvAddr": "localhost", "subscribe": "t"}).streamReader(StructType())
    calls = {name: call for name, call in vars(RocketMQStreamReader).items() if not name.startswith("_")}
    # Of the other two each follows such a call.
    for name in calls.keys() - {"reportLatestOffset", "commit"}:
        arguments = list(signature(calls[name]).parameters)[1:]
        with pytest.raises(OptionError, match="option 'namesrvAddr'"):
            getattr(reader, name)(*arguments)


@pytest.mark.usefixtures("in_worker")
@pytest.mark.parametrize("kind", ["reader", "streamReader"])
def test_a_wrong_name_server_is_reported_when_a_query_is_planned(kind: str) -> None:
    source = RocketMQSource({"namesrvAddr": "127.0.0.1:1", "subscribe": "t"})
    began = time.monotonic()
    with pytest.raises(NoNameServer) as caught:
        begin(source, kind)
    assert time.monotonic() - began < 6, "not only after pollTimeoutMs, two minutes"
    (line,) = reported(caught.value).splitlines()
    assert "no name server answers (127.0.0.1:1: Connection refused)" in line


@pytest.mark.parametrize("kind", ["reader", "streamReader"])
def test_what_is_not_an_address_is_an_option_error(kind: str) -> None:
    source = RocketMQSource({"namesrvAddr": "localhost", "subscribe": "t"})
    with pytest.raises(OptionError, match="option 'namesrvAddr': name server address 'localhost': expected"):
        begin(source, kind)


@pytest.mark.usefixtures("in_worker")
def test_a_wrong_option_of_the_offline_reader_is_reported_without_a_schema_too() -> None:
    with pytest.raises(OptionError) as caught:
        RocketMQStoreSource({"path": "/store", "tabel": "files"}).schema()
    (line,) = reported(caught.value).splitlines()
    assert "unknown option 'tabel'" in line


@pytest.mark.usefixtures("in_worker")
def test_what_the_file_system_refuses_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    link = tmp_path / "commitlog" / f"{0:020d}"
    link.symlink_to(tmp_path / "nowhere")
    source = RocketMQStoreSource({"path": str(tmp_path)})
    with pytest.raises(StoreError) as caught:
        source.reader(StructType().add("value", "binary")).partitions()
    (line,) = reported(caught.value).splitlines()
    assert f"{link}: No such file or directory" in line


@pytest.mark.parametrize(
    "text",
    [
        "[PYTHON_DATA_SOURCE_ERROR] Failed to plan Python data source read: "
        "batonmq.spark.options.OptionError: unknown option 'x'\n SQLSTATE: 38000",
        'Failed to plan: Traceback (most recent call last):\n  File "x", line 1\n'
        "batonmq.spark.options.OptionError: unknown option 'x'\n SQLSTATE: 38000",
    ],
)
def test_the_command_finds_our_text_in_sparks(text: str) -> None:
    assert _OURS.findall(text)[-1] == "unknown option 'x'"


@pytest.mark.parametrize(
    "text",
    [
        "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: Race while writing batch 0 "
        "to the file sink metadata log at file:/a: another writer already committed this batch. This means "
        "multiple concurrent streaming queries.\n=== Streaming Query ===\nIdentifier: archive t\n",
        "[CONCURRENT_STREAM_LOG_UPDATE] Concurrent update to the log. Multiple streaming jobs "
        "detected for 3.\nPlease make sure only one streaming job runs at a time. SQLSTATE: 40000",
    ],
)
def test_a_second_run_of_a_stream_is_refused_in_one_line(text: str) -> None:
    group = Jobs("spark")

    @group.command()
    def archive() -> None:
        raise StreamingQueryException(text)

    done = CliRunner().invoke(group, ["archive"])
    assert (done.exit_code, done.stderr.splitlines()) == (
        1,
        ["Error: another run writes to the same directory or checkpoint; end one of them"],
    )


def test_any_other_failure_of_a_stream_keeps_its_traceback() -> None:
    group = Jobs("spark")

    @group.command()
    def archive() -> None:
        raise StreamingQueryException("[STREAM_FAILED] Query terminated with exception: a bug")

    assert isinstance(CliRunner().invoke(group, ["archive"]).exception, StreamingQueryException)
