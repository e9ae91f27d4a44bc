"""Which streaming query a batch belongs to: what makes writing it again the same delivery."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from floodmark.spark_source.errors import UnknownQuery
from floodmark.spark_source.options import Delivery
from floodmark.storage.errors import StorageError
from floodmark.storage.opening import open_store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_QUERY_ID = "sql.streaming.queryId"
"""The local property in which Spark tells the jobs of a streaming query whose they are."""

_METADATA = "metadata"
"""The file of a query's checkpoint that has its id, from the moment the query first starts."""


def batch_delivery(query: str, batch_id: int) -> Delivery:
    """One batch of one query. Its id is the checkpoint's: with a new checkpoint, batches are counted from 0 again."""
    return Delivery(f"spark query {query}", f"batch {batch_id}")


def query_of_batch(batch: DataFrame) -> str:
    """The id of the query that calls `foreachBatch`."""
    from pyspark.sql import SparkSession

    session = batch.sparkSession
    # A session of Spark Connect is another class, and has no context to ask.
    query = session.sparkContext.getLocalProperty(_QUERY_ID) if type(session) is SparkSession else None
    if query is None:
        raise UnknownQuery(
            "which streaming query this batch belongs to cannot be found out here",
            hint="call it from foreachBatch; with Spark Connect, name the stream: sink(lake, dataset, source=…)",
        )
    return query


def query_of_checkpoint(location: str) -> str:
    """The id of the query that has its checkpoint here."""
    # Hadoop writes file:/folder where others write file:///folder.
    folder = location.removeprefix("file:") if location.startswith("file:/") else location
    try:
        query = json.loads(open_store(folder).get(_METADATA))["id"]
    except (StorageError, ValueError, KeyError) as error:
        raise UnknownQuery(
            f"the checkpoint {location!r} does not say which query it belongs to: {error}",
            hint="give checkpointLocation as a whole path, or write by foreachBatch(floodmark.sink(lake, dataset))",
        ) from error
    return str(query)
