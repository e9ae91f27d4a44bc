"""Datasets as tables of Spark's catalog, errors that say one thing, and Python processes like this one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException

import floodmark as fm
from floodmark.errors import BadOption
from floodmark.spark_source.options import SourceOptions, stored_table_options, table_options, with_table_options
from floodmark.spark_source.source import FloodmarkSource


@pytest.fixture
def lake(tmp_path: Path) -> fm.Lake:
    made = fm.Lake(tmp_path / "lake")
    made.create("trips").write(pa.table({"id": [1, 2], "fare": [1.0, 2.0]}))
    return made


# What Spark passes for: create table t using floodmark options (dataset 'trips') comment 'mine' tblproperties ('a'='b')
OF_A_TABLE = {
    **{"provider": "floodmark", "owner": "me", "comment": "mine", "a": "b"},
    **{"dataset": "trips", "option.dataset": "trips"},
}


def test_options_of_a_table_are_kept_in_the_metadata_of_its_columns(lake: fm.Lake) -> None:
    source = FloodmarkSource(OF_A_TABLE)
    source.lake = lake.store.url
    columns = source.schema()
    assert columns.names == ["id", "fare"]
    assert stored_table_options(columns) == {"dataset": "trips"}
    reading = FloodmarkSource({})  # Spark passes no options when it reads a table
    reading.lake = lake.store.url
    [partition] = reading.reader(columns).partitions()
    rows = [row for batch in reading.reader(columns).read(partition) for row in batch.to_pylist()]
    assert rows == [{"id": 1, "fare": 1.0}, {"id": 2, "fare": 2.0}]


def test_frame_with_the_columns_of_a_table_reads_and_writes_the_dataset_that_it_names(lake: fm.Lake) -> None:
    lake.create("other").write(pa.table({"id": [7], "fare": [7.0]}))
    table, other, none = FloodmarkSource(OF_A_TABLE), FloodmarkSource({"path": "other"}), FloodmarkSource({})
    for source in (table, other, none):
        source.lake = lake.store.url
    columns = table.schema()
    [partition] = other.reader(columns).partitions()
    assert [row for batch in other.reader(columns).read(partition) for row in batch.to_pylist()] == [
        {"id": 7, "fare": 7.0}
    ]
    with pytest.raises(BadOption, match="into which table it inserts"):
        none.writer(columns, overwrite=False)  # they may be those of the table that is read


@pytest.mark.parametrize("given", [{"path": "trips"}, {"owner": "me"}, {"provider": "parquet", "owner": "me"}])
def test_options_of_a_frame_are_not_those_of_a_table(given: dict[str, str]) -> None:
    assert table_options(given, "floodmark") is None


def test_misspelled_option_of_a_table_is_refused(lake: fm.Lake) -> None:
    source = FloodmarkSource({**OF_A_TABLE, "sinc": "1", "option.sinc": "1"})
    source.lake = lake.store.url
    with pytest.raises(BadOption, match="'sinc' is not an option") as refused:
        source.schema()
    assert refused.value.hint == "did you mean 'since'?"


def test_dataset_is_named_once(lake: fm.Lake) -> None:
    assert SourceOptions({"dataset": "trips"}, lake.store.url).place().dataset == "trips"
    with pytest.raises(BadOption, match="two datasets"):
        SourceOptions({"dataset": "trips", "path": "other"}, lake.store.url).place()
    with pytest.raises(BadOption, match="no dataset"):
        SourceOptions({}, lake.store.url).place()


def test_other_metadata_of_columns_is_kept() -> None:
    from pyspark.sql.types import StructType

    columns = StructType().add("id", "long", True, {"comment": "mine"})
    noted = with_table_options(columns, {"dataset": "trips"})
    assert noted["id"].metadata["comment"] == "mine"
    assert stored_table_options(columns) == {}


@pytest.mark.spark
def test_table_is_read_and_errors_say_one_thing(lake: fm.Lake, spark) -> None:
    fm.register(spark, lake)
    spark.sql("create table t19 using floodmark options (dataset 'trips') comment 'mine' tblproperties ('a' = 'b')")
    try:
        assert [row["id"] for row in spark.sql("select id from t19 where fare > 1").collect()] == [2]
        rows = spark.table("t19")
        rows.where("id = 2").selectExpr("id + 1 as id", "fare").write.format("floodmark").mode("append").save("trips")
        assert spark.table("t19").count() == lake["trips"].count() == 3
        for use, message, hint in [
            (lambda: spark.sql("create table u19 using floodmark options (dataset 'trips', sinc 1)"), "sinc", "since"),
            (lambda: spark.read.format("floodmark").option("sinc", 1).load("trips"), "sinc", "since"),
            (lambda: spark.read.format("floodmark").load("tripz"), "tripz", "trips"),
            (lambda: spark.read.format("floodmark").option("as_of", 99).load("trips").count(), "99", "0 to 2"),
            (lambda: spark.sql("insert into t19 select * from t19"), "into which table", "write the frame"),
            (
                lambda: spark.table("t19").write.format("floodmark").mode("append").option("stat", "1").save("trips"),
                "stat",
                "state",
            ),
        ]:
            with pytest.raises(AnalysisException) as refused:
                use()
            text = str(refused.value)
            assert message in text
            assert hint in text
            assert "Traceback" not in text
            assert len(text.strip().splitlines()) <= 3
    finally:
        spark.sql("drop table t19")


PROGRAM = """
import sys
import floodmark as fm
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
fm.register(spark, sys.argv[1])
print("rows:", spark.read.format("floodmark").load("trips").count())
spark.stop()
"""


@pytest.mark.spark
@pytest.mark.process
@pytest.mark.slow
def test_processes_of_a_local_session_have_this_python(lake: fm.Lake, tmp_path: Path) -> None:
    """Without PYSPARK_PYTHON, Spark takes the first python3 of the PATH: here one that does nothing."""
    other = tmp_path / "bin" / "python3"
    other.parent.mkdir()
    other.write_text("#!/bin/sh\nexit 1\n")
    other.chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK", "SPARK"))}
    environment["PATH"] = f"{other.parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, lake.store.url], env=environment, capture_output=True, text=True, check=False
    )
    assert "rows: 2" in done.stdout, done.stderr[-2000:]
