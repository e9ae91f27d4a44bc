"""Spark reads and writes datasets whose system columns have other names, and whose data has a column `offset`."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from floodmark import Lake
from floodmark.errors import BadOption
from limits import set_limit
from spark_source.worlds import load, next_batch, source, stream

VOCAB = {"offset": "_offset", "op": "_op"}


def clicks(lake: Lake) -> Lake:
    """A keyed dataset with three records, two of them current."""
    made = lake.create("clicks", key="offset", vocab=VOCAB)
    made.write(pa.table({"offset": [100, 107], "op": ["x", "y"]}))
    made.write(pa.table({"offset": [109], "op": ["z"]}))
    made.delete([100])
    return lake


def test_the_source_reads_rows_records_and_streams(tmp_path: Path) -> None:
    lake = clicks(Lake(tmp_path / "lake"))
    assert load(source(lake, "clicks")).to_pylist() == [{"offset": 107, "op": "y"}, {"offset": 109, "op": "z"}]
    system = load(source(lake, "clicks", system="true"))
    assert system.column_names == ["_offset", "_op", "system_time", "offset", "op"]
    assert load(source(lake, "clicks", since=1))["_offset"].to_pylist() == [2, 3]
    reader = stream(lake, "clicks", system="true")
    position, batch = next_batch(reader, reader.initialOffset())
    assert batch["_op"].to_pylist() == [0, 0, 0, 1]
    assert position["offset"] == 3
    records = stream(lake, "clicks")
    with pytest.raises(BadOption, match="cannot be read without '_op'"):
        next_batch(records, records.initialOffset())


@pytest.mark.spark
@pytest.mark.parametrize("way", ["native", "tasks"])
def test_frames_sql_writes_and_views_use_the_chosen_names(
    tmp_path: Path, spark: SparkSession, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "tasks":
        set_limit(monkeypatch, "spark_read.native_slices", 0)
    lake = clicks(Lake(tmp_path / "lake", spark=spark))
    rows = [(107, "y"), (109, "z")]
    assert sorted(map(tuple, lake["clicks"].read().collect())) == rows
    assert [(r["_offset"], r["offset"]) for r in lake["clicks"].changes(since=1).collect()] == [(2, 109), (3, 100)]
    assert sorted(map(tuple, lake.sql_spark("select offset, op from clicks").collect())) == rows
    log = lake.create("log", vocab=VOCAB)
    log.write(lake["clicks"].read())
    assert sorted(log.to_arrow()["offset"].to_pylist()) == [107, 109]
    for name in ("clicks", "log"):
        lake.view(f"of_{name}", sql=f"select offset as position, upper(op) as kind from {name}").refresh()
        lake[name].write(pa.table({"offset": [111], "op": ["w"]}))
        lake.view(f"of_{name}").refresh()
        found = lake[f"of_{name}"].to_arrow().to_pylist()
        assert sorted((row["position"], row["kind"]) for row in found) == [(107, "Y"), (109, "Z"), (111, "W")]
        assert lake[name].verify().problems == ()
