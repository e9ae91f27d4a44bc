"""The front door stays open while views, which have sessions of their own, are refreshed beside it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import floodmark as fm


@pytest.mark.spark
def test_source_is_found_after_a_view_was_refreshed(tmp_path: Path, spark):
    lake = fm.Lake(tmp_path / "lake")
    lake.create("orders", key="id").write(pa.table({"id": [1, 2], "price": [3.0, 4.0]}))
    lake.create("copies")
    fm.register(spark, lake)
    frame = spark.createDataFrame([(1,)], "n int")
    lake.view("total", sql="select count(*) n, sum(price) price from orders").refresh()

    frame.write.format("floodmark").mode("append").save("copies")

    assert lake["copies"].to_arrow()["n"].to_pylist() == [1]
