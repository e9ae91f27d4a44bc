"""Hidden columns that tell apart the rows of a result that has no key."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from floodmark.views.analysis import COPY_COLUMN, ROW_COLUMN
from floodmark.views.spark_sql import with_identity

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_identity_tells_all_rows_apart_and_is_the_same_each_time(spark: SparkSession) -> None:
    values = "(1, null, 'a'), (1, 'a', null), (1, 'a', null), (2, 'a', null), (null, null, null), (null, null, null)"
    frame = spark.sql(f"select * from values {values} as v(`g g`, x, y)")
    rows = [row.asDict() for row in with_identity(frame, ["g g"]).collect()]
    again = [row.asDict() for row in with_identity(frame.repartition(3), ["g g"]).collect()]
    assert sorted(map(repr, rows)) == sorted(map(repr, again))
    assert list(rows[0]) == ["g g", "x", "y", ROW_COLUMN, COPY_COLUMN]
    assert len({(row["g g"], row[ROW_COLUMN], row[COPY_COLUMN]) for row in rows}) == len(rows)
    hashes = {(row["g g"], row["x"], row["y"]): row[ROW_COLUMN] for row in rows}
    assert len(set(hashes.values())) == len(hashes) == 4  # nulls have their places
    assert sorted(row[COPY_COLUMN] for row in rows) == [0, 0, 0, 0, 1, 1]


def test_identity_takes_every_type_that_a_dataset_has(spark: SparkSession) -> None:
    sql = (
        "select cast(null as decimal(5, 2)) a, array(1, null) b, struct(1 as x) c, date'2020-01-01' d, x'00' e, 0.5D f"
    )
    made = with_identity(spark.sql(sql), [])
    assert made.toArrow().schema.field(COPY_COLUMN).type == pa.int32()
