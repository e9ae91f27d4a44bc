"""A sink for `foreachBatch`: every micro-batch is written once, however often it is tried."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from floodmark.engine import Session
from floodmark.lake import Lake
from floodmark.ledger.errors import NothingToWrite
from floodmark.spark_source.queries import batch_delivery, query_of_batch
from floodmark.storage.store import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class Sink:
    """A function of a micro-batch and its number that writes it to a dataset."""

    lake: Lake
    dataset: str
    source: str | None

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        runtime = replace(self.lake.runtime, session=Session(batch.sparkSession))
        query = query_of_batch(batch) if self.source is None else self.source
        delivery = batch_delivery(query, batch_id)
        # An empty batch leaves nothing to find again, and tried once more it is as empty.
        with contextlib.suppress(NothingToWrite):
            dataset = Lake(self.lake.store, runtime=runtime)[self.dataset]
            dataset.write(batch, source=delivery.source, state=delivery.state)

    def __reduce__(self) -> tuple[Any, ...]:
        # Spark Connect calls it in another process, where this one's clock and session are not.
        return _elsewhere, (self.lake.store, self.dataset, self.source)


def _elsewhere(store: Store, dataset: str, source: str | None) -> Sink:
    return Sink(Lake(store), dataset, source)


def sink(lake: Lake | str | Path, dataset: str, *, source: str | None = None) -> Sink:
    """What to give to `df.writeStream.foreachBatch`: it writes each micro-batch to a dataset, exactly once.

    Which batch of which query was written is part of its commit, so a batch that Spark tries again after a crash is not
    written again. A query is known by its id, which its checkpoint keeps. Name a `source` only where that cannot be
    found out (Spark Connect), and another one with each new checkpoint: its batches are numbered from 0 again.
    """
    opened = lake if isinstance(lake, Lake) else Lake(lake)
    return Sink(opened, opened[dataset].name, source)
