"""Makes `spark.read.format("floodmark")` work: one call per Spark session."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from floodmark.lake import Lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession, lake: Lake | str | Path | None = None) -> None:
    """Let a Spark session read and write datasets by `format("floodmark")`.

    With `lake`, that is where datasets are looked for unless an option says otherwise.
    """
    from floodmark.spark_source.source import FloodmarkSource  # late: a class of Spark's

    if lake is None:
        spark.dataSource.register(FloodmarkSource)
    else:
        store = (lake if isinstance(lake, Lake) else Lake(lake)).store
        spark.dataSource.register(type("FloodmarkSource", (FloodmarkSource,), {"lake": store.url}))
