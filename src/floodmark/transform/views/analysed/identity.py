"""Tables that a query can name, and columns that tell apart the rows of a result that has no key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from floodmark.transform.views.analysed.analysis import COPY, ROW

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def register(alias: str, frame: DataFrame) -> None:
    """Make a frame a table of the queries in its session, under the name that they have for it."""
    frame.createOrReplaceTempView("`" + alias.replace("`", "``") + "`")


def with_identity(frame: DataFrame, t: Sequence[str]) -> DataFrame:
    """The rows with two more columns that, together with T, tell any two of them apart.

    One is a hash of the row, the other numbers the rows that have the same one; so it does no harm when different rows
    do, and rows that are the same are the same set of rows each time.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    columns = [frame[_quoted(name)] for name in frame.columns]
    # With a mark of its own per column: the hash skips nulls, so (null, 'a') and ('a', null) would be one.
    parts = [part for column in columns for part in (column.isNull(), column)]
    hashed = frame.withColumn(ROW, f.xxhash64(*parts))
    same = Window.partitionBy(*[hashed[_quoted(name)] for name in t], hashed[ROW]).orderBy(hashed[ROW])
    return hashed.withColumn(COPY, (f.row_number().over(same) - f.lit(1)).cast("int"))


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
