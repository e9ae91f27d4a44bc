"""`writeStream.format("floodmark")`: a batch is known by its query and number, and written once."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructField, StructType

from floodmark import Lake
from floodmark.errors import BadOption, StreamLost
from spark_source.worlds import numbers, source

N = StructType([StructField("n", LongType())])


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    lake = Lake(tmp_path / "lake")
    lake.create("copy", schema={"n": pa.int64()})
    return lake


def checkpoint(folder: Path, query: str) -> str:
    """What Spark makes first of a query."""
    folder.mkdir(exist_ok=True)
    (folder / "metadata").write_text(json.dumps({"id": query}))
    return str(folder)


def write(lake: Lake, location: str, batch_id: int, rows: pa.Table) -> list[int]:
    writer = source(lake, "copy", checkpointLocation=location).streamWriter(N, overwrite=False)
    writer.commit([writer.write(iter(rows.to_batches()))], batch_id)
    return lake["copy"].to_arrow().column("n").to_pylist()


def test_a_batch_tried_again_is_not_written_again(lake: Lake, tmp_path: Path):
    one = checkpoint(tmp_path / "one", "a")
    assert write(lake, one, 0, numbers(0, 2)) == [0, 1]
    assert write(lake, one, 0, numbers(0, 2)) == [0, 1]
    assert write(lake, f"file:{one}", 0, numbers(0, 2)) == [0, 1]
    assert write(lake, f"file://{one}", 1, numbers(2, 3)) == [0, 1, 2]


def test_a_new_checkpoint_is_a_new_query_also_in_the_same_place(lake: Lake, tmp_path: Path):
    assert write(lake, checkpoint(tmp_path / "one", "a"), 0, numbers(0, 1)) == [0]
    assert write(lake, checkpoint(tmp_path / "one", "b"), 0, numbers(0, 1)) == [0, 0]


@pytest.mark.parametrize("metadata", [None, "{}", "no json"])
def test_nothing_is_written_where_the_query_is_not_known(lake: Lake, tmp_path: Path, metadata: str | None):
    (tmp_path / "one").mkdir()
    if metadata is not None:
        (tmp_path / "one/metadata").write_text(metadata)
    with pytest.raises(StreamLost, match="cannot read the query id"):
        write(lake, str(tmp_path / "one"), 0, numbers(0, 1))
    assert lake["copy"].count() == 0


def test_a_checkpoint_has_to_be_given(lake: Lake):
    with pytest.raises(BadOption, match="no checkpointLocation"):
        source(lake, "copy").streamWriter(N, overwrite=False)


def test_the_complete_mode_would_overwrite_and_is_refused(lake: Lake):
    with pytest.raises(BadOption, match="cannot be overwritten"):
        source(lake, "copy", checkpointLocation="/c").streamWriter(N, overwrite=True)
