"""Spark's Python daemon with the packages loaded, so that the workers it forks need not load them again."""

from __future__ import annotations

import pandas as pd  # noqa: F401
import pyarrow.parquet  # noqa: F401
from pyspark import daemon

import floodmark.columns.task
import floodmark.spark_source.source
import floodmark.transforms.task  # noqa: F401

if __name__ == "__main__":
    daemon.manager()
