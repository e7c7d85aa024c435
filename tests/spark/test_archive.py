"""Archives: decoded bodies, and their days in few files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmarks.kafka import Artifact, CannotFetch, fetch
from google.protobuf import timestamp_pb2
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

from batonmq import Message
from batonmq.spark.jobs import archive, compact, restore
from batonmq.spark.jobs.compact import CompactError
from batonmq.spark.jobs.values import SchemaError, ValueSchema

from .test_cli import in_this_process, one_error
from .test_cli_jobs import FAST, ran

pytestmark = pytest.mark.timeout(240)
AVRO = "spark-avro_2.13"
DDL = "id BIGINT, name STRING"
ROWS = "value binary, topic string, broker string, queueId int, queueOffset bigint"


@pytest.fixture
def archived(session, tmp_path):
    """An archive of two topics and two days in many small files, and a function that adds rows to it."""
    path = str(tmp_path / "archive")

    def add(topic: str, date: str, first: int, count: int, files: int) -> None:
        rows = [(b"%d" % n, topic, "b", n % 4, n // 4) for n in range(first, first + count)]
        frame = session.createDataFrame(rows, ROWS).selectExpr("*", f"date'{date}' as date")
        frame.repartition(files).write.mode("append").partitionBy("topic", "date").parquet(path)

    add("007", "2026-11-23", 0, 400, 8)
    add("007", "2026-11-24", 400, 100, 5)
    add("orders", "2026-11-23", 0, 40, 4)
    return path, add


def rows_of(session, path: str) -> list[tuple[object, ...]]:
    read = archive.read(session, path).select("topic", "date", "queueId", "queueOffset", "value")
    return sorted((topic, str(date), *rest) for topic, date, *rest in read.collect())


def files_below(path: Path) -> list[Path]:
    return sorted(path.glob("topic=*/date=*/*.parquet"))


def places(session, file: Path) -> list[tuple[int, int]]:
    return [(row.queueId, row.queueOffset) for row in session.read.parquet(str(file)).collect()]


def test_a_day_becomes_one_file_in_the_order_of_its_queues(session, archived, tmp_path):
    path, _ = archived
    table = tmp_path / "table"
    done = compact.run(session, path, str(table))
    assert (done.rows, done.days, done.files_before, done.files_after) == (540, 3, 17, 3)
    assert rows_of(session, str(table)) == rows_of(session, path)
    assert len(files_below(table)) == 3
    (one,) = table.glob("topic=007/date=2026-11-23/*.parquet")
    found = places(session, one)
    assert found == sorted(found) and len(found) == 400


def test_a_large_day_becomes_files_of_about_one_size(session, archived, tmp_path):
    path, _ = archived
    table = tmp_path / "table"
    compact.run(session, path, str(table), topic="007", until="2026-11-23", file_bytes=2_000)
    files = files_below(table)
    assert len(files) > 2
    parts = sorted(places(session, file) for file in files)
    assert [place for part in parts for place in part] == sorted(place for part in parts for place in part)
    assert sum(map(len, parts)) == 400


def test_a_second_run_writes_what_has_changed(session, archived, tmp_path):
    path, add = archived
    table = str(tmp_path / "table")
    compact.run(session, path, table, until="2026-11-23")
    again = compact.run(session, path, table, until="2026-11-23")
    assert (again.rows, again.done_before) == (0, 2)
    untouched = [file for file in files_below(tmp_path / "table") if "orders" in str(file)]
    add("007", "2026-11-23", 1000, 20, 3)
    changed = compact.run(session, path, table)
    assert (changed.rows, changed.days, changed.done_before) == (520, 2, 1)
    assert rows_of(session, table) == rows_of(session, path)
    assert untouched == [file for file in files_below(tmp_path / "table") if "orders" in str(file)]


def test_an_interrupted_run_leaves_days_whole(session, archived, tmp_path):
    path, _ = archived
    table = str(tmp_path / "table")

    class Interrupted(Exception):
        pass

    def stop(day: compact.Day, files: int) -> None:
        raise Interrupted

    with pytest.raises(Interrupted):
        compact.run(session, path, table, progress=stop)
    assert {row[:2] for row in rows_of(session, table)} == {("007", "2026-11-23")}
    assert len(rows_of(session, table)) == 400
    rest = compact.run(session, path, table)
    assert (rest.days, rest.done_before) == (2, 1)
    assert rows_of(session, table) == rows_of(session, path)


def test_columns_that_came_later_are_kept(session, archived, tmp_path):
    path, _ = archived
    rows = [(b"1", "007", "b", 0, 900, (7, "x"))]
    frame = session.createDataFrame(rows, f"{ROWS}, decoded struct<id: bigint, name: string>")
    frame = frame.selectExpr("*", "date'2026-11-25' as date")
    frame.write.mode("append").partitionBy("topic", "date").parquet(path)
    compact.run(session, path, str(tmp_path / "table"))
    read = session.read.option("mergeSchema", "true").parquet(str(tmp_path / "table"))
    assert [row.decoded.name for row in read.where("decoded is not null").collect()] == ["x"]
    assert read.count() == 541


def test_what_cannot_be_compacted_is_an_error(session, archived, tmp_path):
    path, _ = archived
    with pytest.raises(CompactError, match="must differ"):
        compact.run(session, path, path + "/")
    session.range(3).write.parquet(str(tmp_path / "other"))
    with pytest.raises(CompactError, match="is not an archive: it has no column"):
        compact.run(session, str(tmp_path / "other"), str(tmp_path / "table"))


def test_a_table_that_is_not_an_archive_is_named(session, archived, topics, tmp_path):
    """Read with an archive's columns, it would have nulls in their place."""
    path, _ = archived
    with pytest.raises(archive.ArchiveError, match=r"007 is not an archive: it has no column 'topic'"):
        archive.read(session, f"{path}/topic=007")
    (tmp_path / "empty" / "_spark_metadata").mkdir(parents=True)  # of a topic without messages
    empty = str(tmp_path / "empty")
    assert archive.read(session, empty).count() == 0
    assert compact.run(session, empty, str(tmp_path / "table")).days == 0


def test_a_topic_that_an_archive_does_not_have_is_named(session, archived, topics, tmp_path):
    path, _ = archived
    with pytest.raises(CompactError, match="archive has no topic 'order'"):
        compact.run(session, path, str(tmp_path / "table"), topic="order")
    wanted = restore.Restore(topics.namesrv, path, tmp_path / "state", topic="order")
    with pytest.raises(restore.RestoreError, match="archive has no topic 'order'"):
        restore.run(session, wanted, queues=lambda topic: [])
    assert compact.run(session, path, str(tmp_path / "table"), topic="orders", until="2026-11-01").days == 0


@pytest.mark.parametrize("job", ["compact", "restore"])
def test_an_archive_that_is_not_there_is_one_line(job, topics, tmp_path):
    rest = {"compact": ("--to", tmp_path / "t"), "restore": ("-n", topics.namesrv, "--state", tmp_path / "s")}
    done = ran(job, "--archive", tmp_path / "none", *rest[job], *FAST, code=1)
    errors = [line for line in done.stderr.splitlines() if line.startswith("Error:")]
    assert errors == [f"Error: [PATH_NOT_FOUND] Path does not exist: file:{tmp_path}/none"]


def test_an_archive_continues_with_its_own_checkpoint_only(session, topics, tmp_path):
    """Spark would write nothing for batches whose numbers the archive has already."""
    one, two = topics.make(), topics.make()
    for topic in (one, two):
        topics.fill(topic, {0: [b"%d" % n for n in range(30)]})

    def run(topic, checkpoint):
        query = archive.start(
            session,
            namesrv=topics.namesrv,
            topic=topic,
            target=tmp_path / "archive",
            checkpoint=tmp_path / checkpoint,
            max_offsets_per_trigger=10,
        )
        return archive.finish(query).rows

    assert run(one, "first") == 30
    with pytest.raises(archive.ArchiveError, match="has 3 batches of another checkpoint than"):
        run(two, "second")
    topics.fill(one, {0: [b"c"] * 3})
    assert run(one, "first") == 3
    assert archive.read(session, str(tmp_path / "archive")).count() == 33
    (tmp_path / "archive").rename(tmp_path / "elsewhere")
    with pytest.raises(archive.ArchiveError, match="has written 4 batches to another directory than"):
        run(one, "first")
    (tmp_path / "elsewhere").rename(tmp_path / "archive")
    assert run(one, "first") == 0


def test_an_archive_continues_behind_lost_messages_if_it_may(session, topics, tmp_path):
    topic = topics.make(queues=1)
    topics.fill(topic, {0: [b"%d" % n for n in range(9)]})
    command = ("archive", "-n", topics.namesrv, "-t", topic, "--to", tmp_path / "archive")
    assert "archived 9 messages" in in_this_process(*command).output
    topics.delete(topic)
    topics.make(topic, queues=1)
    topics.fill(topic, {0: [b"new"] * 4})
    said = one_error(in_this_process(*command))
    assert "ends at 4 (was the topic recreated?)" in said and said.endswith(
        "; --skip-lost reads what is there"
    )
    assert "archived 4 messages" in in_this_process(*command, "--skip-lost").output
    assert archive.read(session, str(tmp_path / "archive")).count() == 13


def test_json_bodies_are_decoded_and_kept(session, topics, tmp_path):
    topic = topics.make()
    bodies = [b'{"id": 1, "name": "a"}', b'{"id": 2}', b"no json", b'{"id": "x", "name": "b"}']
    topics.fill(topic, {0: [Message(topic, body) for body in bodies]})
    (tmp_path / "orders.ddl").write_text(DDL)
    options = ("--values", "json", "--schema", tmp_path / "orders.ddl")
    target = tmp_path / "archive"
    ran("archive", "-n", topics.namesrv, "-t", topic, "--to", target, *options, *FAST)
    rows = session.read.parquet(str(target)).select("value", "decoded").collect()
    found = {bytes(row.value): row.decoded and tuple(row.decoded) for row in rows}
    assert found == {bodies[0]: (1, "a"), bodies[1]: (2, None), bodies[2]: None, bodies[3]: (None, "b")}
    done = ran("compact", "--archive", target, "--to", tmp_path / "table", "--until", "2999-01-01", *FAST)
    assert "compacted 4 messages of 1 day up to 2999-01-01" in done.stdout
    table = session.read.parquet(str(tmp_path / "table"))
    assert {bytes(row.value) for row in table.where("decoded.id is not null").collect()} == set(bodies[:2])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (json.dumps({"type": "struct", "fields": []}), "it names no column"),
        ("{", "Expecting property name"),
        ("id BIGNT", 'Unsupported data type "BIGNT"'),
        ("", "it names no column"),
    ],
)
def test_a_schema_that_cannot_be_read_is_named(session, text, reason):
    from pyspark.sql import functions as F

    with pytest.raises(SchemaError, match=rf"schema orders\.ddl: neither columns such as.*{reason}"):
        ValueSchema("json", text, "orders.ddl").column(session, F.col("value"))


def test_a_schema_as_spark_writes_it(session):
    from pyspark.sql import functions as F

    frame = session.createDataFrame([(b'{"id": 5}',)], "value binary")
    text = session.createDataFrame([], DDL).schema.json()
    (row,) = frame.select(ValueSchema("json", text).column(session, F.col("value")).alias("d")).collect()
    assert (row.d.id, row.d.name) == (5, None)


def test_avro_bodies_are_decoded(session, topics, tmp_path):
    try:
        # The newest one of the registry; PySpark 4.2 and 4.3 both run it.
        (jar,) = fetch("spark-avro-4.2.0", [Artifact("org.apache.spark", AVRO, "4.2.0")], [AVRO])
    except CannotFetch as error:
        pytest.skip(f"Spark's package for Avro: {error}")
    fields = [{"name": "id", "type": "long"}, {"name": "name", "type": "string"}]
    schema = tmp_path / "orders.avsc"
    schema.write_text(json.dumps({"type": "record", "name": "Order", "fields": fields}))
    topic, good, bad = topics.make(), b"\x0e\x06abc", b"\xff\xff\xff"
    topics.fill(topic, {0: [Message(topic, good), Message(topic, bad)]})
    options = ("--values", "avro", "--schema", schema, "--conf", f"spark.jars={jar}")
    ran("archive", "-n", topics.namesrv, "-t", topic, "--to", tmp_path / "archive", *options, *FAST)
    rows = session.read.parquet(str(tmp_path / "archive")).select("value", "decoded").collect()
    assert {bytes(row.value): row.decoded for row in rows} == {good: (7, "abc"), bad: None}


def test_protobuf_bodies_are_decoded(session, topics, tmp_path):
    file = FileDescriptorProto(name="orders.proto", package="shop", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    order = file.message_type.add(name="Order")
    order.field.add(name="id", number=1, type=3, label=1)
    order.field.add(name="names", number=2, type=9, label=3)
    order.field.add(name="at", number=3, type=11, label=1, type_name=".google.protobuf.Timestamp")
    descriptors = FileDescriptorSet()
    timestamp_pb2.DESCRIPTOR.CopyToProto(descriptors.file.add())
    descriptors.file.append(file)
    schema = tmp_path / "orders.desc"
    schema.write_bytes(descriptors.SerializeToString())
    good, bad = b"\x08\x07\x12\x01a\x12\x01b\x1a\x02\x08\x05", b"\xff"
    topic = topics.make()
    topics.fill(topic, {0: [Message(topic, good), Message(topic, bad)]})
    options = ("--values", "protobuf", "--schema", schema, "--message", "shop.Order")
    done = ran("archive", "-n", topics.namesrv, "-t", topic, "--to", tmp_path / "archive", *options, *FAST)
    assert "UserWarning" not in done.stderr
    read = session.read.parquet(str(tmp_path / "archive"))
    rows = read.selectExpr("value", "decoded.id", "decoded.names", "unix_seconds(decoded.at) as at").collect()
    found = {bytes(row.value): (row.id, row.names, row["at"]) for row in rows}
    assert found == {good: (7, ["a", "b"], 5), bad: (None, None, None)}
    done = ran(
        "archive", "-n", topics.namesrv, "-t", topic, "--to", tmp_path / "x", *options[:-1], "Order", code=1
    )
    assert done.stderr.strip().endswith("no message 'Order'; give its package too, as in 'shop.Order'")


def test_avro_names_the_package_that_it_needs(session):
    from pyspark.sql import functions as F

    with pytest.raises(SchemaError) as raised:
        ValueSchema("avro", "{}").column(session, F.col("value"))
    said, version = str(raised.value), session.version
    assert f"--conf spark.jars.packages=org.apache.spark:spark-avro_2.13:{version}," in said
    assert f"copy spark-avro_2.13-{version}.jar to this machine and give --conf spark.jars=PATH" in said
