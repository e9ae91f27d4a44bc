"""Spark frames of data that is at hand, made so that the active session stays what it was.

`createDataFrame` makes its session the active one, and Spark goes by that to find data sources: after it was one of
ours, which is thrown away, `format("floodmark")` would not be found in the session that it was registered in.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


def make_frame(spark: SparkSession, data: Any, schema: Any = None) -> DataFrame:
    """`spark.createDataFrame(data, schema)`, after which the same session is active as before."""
    with _same_active(spark):
        return spark.createDataFrame(data, schema)


def make_empty_frame(spark: SparkSession, schema: StructType) -> DataFrame:
    """A frame without rows. `createDataFrame([], schema)` takes ten times as long: it makes an RDD."""
    if not hasattr(spark, "_jsparkSession"):  # Spark Connect
        return make_frame(spark, [], schema)
    from pyspark.sql.classic.dataframe import DataFrame

    session: Any = spark._jsparkSession
    no_rows = spark.sparkContext._jvm.java.util.ArrayList()  # type: ignore[union-attr]
    return DataFrame(session.createDataFrame(no_rows, session.parseDataType(schema.json())), spark)


@contextmanager
def _same_active(spark: SparkSession) -> Iterator[None]:
    if not hasattr(spark, "_jsparkSession"):  # Spark Connect has no such thing
        yield
        return
    classic: Any = type(spark)
    sessions = classic._get_j_spark_session_class(spark._jvm)
    here, there = classic._activeSession, sessions.getActiveSession()
    try:
        yield
    finally:
        classic._activeSession = here
        if there.isDefined():
            sessions.setActiveSession(there.get())
        else:
            sessions.clearActiveSession()
