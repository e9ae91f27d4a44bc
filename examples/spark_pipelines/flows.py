"""Definitions for `spark-pipelines`: a view and a streaming table of a dataset, and a flow into another one."""

from __future__ import annotations

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

import floodmark as fm

LAKE = os.environ["LAKE"]  # definitions are imported by Spark: arguments cannot be given to them
spark = SparkSession.active()
fm.register(spark, LAKE)


@dp.materialized_view
def expensive() -> DataFrame:
    """Made anew by each run."""
    return spark.read.format("floodmark").load("trips").where("fare > 10")


@dp.table
def copied() -> DataFrame:
    """A streaming table: a run appends the records that are new."""
    return spark.readStream.format("floodmark").load("trips")


dp.create_sink("back", "floodmark", {"lake": LAKE, "path": "large"})


@dp.append_flow(target="back")
def into_floodmark() -> DataFrame:
    """Into a dataset: each record once, by the flow's own checkpoint."""
    return spark.readStream.format("floodmark").load("trips").where("fare > 10").select("id", "fare")
