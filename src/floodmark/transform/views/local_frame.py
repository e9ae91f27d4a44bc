"""Handing data of this process to Spark: a table as a frame, without a job and without a file."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from floodmark.engine.frames import make_frame
from floodmark.ledger.spark_types import spark_ready, spark_schema


def local_frame(table: pa.Table, spark: Any) -> Any:
    """A table as a Spark frame."""
    # In one batch: Spark takes the first batch without rows for the end, and what comes after it would be lost.
    ready = table.cast(spark_ready(table.schema)).combine_chunks()
    return make_frame(spark, ready, spark_schema(table.schema))
