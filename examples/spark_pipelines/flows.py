"""Definitions for `spark-pipelines`: a materialized view, a streaming table, and a flow into a dataset."""

from __future__ import annotations

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

import floodmark as fm

LAKE = os.environ["LAKE"]  # Spark imports this file, so it takes no arguments
spark = SparkSession.active()
fm.register(spark, LAKE)


@dp.materialized_view
def expensive() -> DataFrame:
    """Computed again by each run."""
    return spark.read.format("floodmark").load("trips").where("fare > 10")


@dp.table
def copied() -> DataFrame:
    """A streaming table: each run appends the new records."""
    return spark.readStream.format("floodmark").load("trips")


dp.create_sink("back", "floodmark", {"lake": LAKE, "path": "large"})


@dp.append_flow(target="back")
def into_floodmark() -> DataFrame:
    """Write to a dataset, each record once: Spark keeps a checkpoint of the flow."""
    return spark.readStream.format("floodmark").load("trips").where("fare > 10").select("id", "fare")
