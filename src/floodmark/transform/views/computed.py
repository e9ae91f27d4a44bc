"""The columns of a view that functions compute: values by the offsets of the source, through checkpoints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from floodmark.compute.functions.udf import Udf
from floodmark.compute.kept_values import Values
from floodmark.compute.options import Options
from floodmark.compute.stored.objects import ColumnObjects
from floodmark.compute.values import values
from floodmark.engine import Progress
from floodmark.engine.rounds import Runner
from floodmark.ledger.incoming import Batches, Frame, SparkFrame
from floodmark.ledger.layout import Layout
from floodmark.ledger.objects import DatasetObjects
from floodmark.ledger.parts import Part
from floodmark.ledger.runtime import Runtime
from floodmark.ledger.stage import incoming_schema, stage
from floodmark.storage.arrays import I64
from floodmark.storage.slices import Vocabulary
from floodmark.transform.views.analysed.analysis import OFFSET
from floodmark.transform.views.defined.definition import UdfColumn
from floodmark.transform.views.reading.sources import PinnedSource


@dataclass(frozen=True)
class Computed:
    """An answer with the columns of functions, and what these columns took."""

    answer: Frame | Batches
    offsets: I64  # of the source's rows, sorted, each once
    values: Mapping[str, Values]

    @property
    def called(self) -> int:
        return sum(v.called for v in self.values.values())

    @property
    def reused(self) -> int:
        return sum(v.reused for v in self.values.values())

    @property
    def failed(self) -> int:
        """Values that are missing because of an error, of now or before."""
        return sum(errors.num_rows for errors in self.errors.values())

    @property
    def errors(self) -> dict[str, pa.Table]:
        """The errors of the rows, by column."""
        return {column: v.errors for column, v in self.values.items()}


@dataclass(frozen=True)
class Computing:
    """Computes the columns of functions for rows of one source."""

    source: PinnedSource
    functions: Sequence[tuple[UdfColumn, Udf]]
    kept_in: DatasetObjects  # of the view
    options: Options
    runner: Runner
    runtime: Runtime
    folder: Path  # for unfinished files
    progress: Progress

    def complete(self, answer: Frame | SparkFrame) -> Computed:
        """The rows of an answer with their values; what does not fit into memory is staged and becomes a stream."""
        if isinstance(answer, Frame):
            offsets = np.unique(answer.table.column(OFFSET).to_numpy())
            found = self._values(offsets)
            return Computed(Frame(_with_values(answer.table, found)), offsets, found)
        parts = self._staged(answer)
        nothing = np.empty(0, np.int64)
        offsets = np.unique(np.concatenate([nothing, *[part.load().column(OFFSET).to_numpy() for part in parts]]))
        found = self._values(offsets)
        schema = _with_values(incoming_schema(answer).empty_table(), found).schema
        batches = pa.RecordBatchReader.from_batches(schema, _completed(parts, found, schema))
        return Computed(Batches(batches), offsets, found)

    def _staged(self, answer: SparkFrame) -> Sequence[Part]:
        """What Spark computes, once, in files: functions are called for it only when it is known what is wanted."""
        layout = Layout(Vocabulary(), None, incoming_schema(answer))
        return stage(answer, layout, self.folder, self.kept_in, self.runtime).parts

    def _values(self, offsets: I64) -> dict[str, Values]:
        if not len(offsets):
            return {}
        pinned = self.source.for_values
        kept_in = ColumnObjects(self.kept_in)
        with self.source.given.steady():
            return {
                column.name: values(
                    pinned,
                    column.field,
                    udf,
                    column.inputs,
                    offsets,
                    kept_in,
                    self.options,
                    self.runner,
                    self.progress,
                )
                for column, udf in self.functions
            }


def _completed(parts: Sequence[Part], found: Mapping[str, Values], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    for part in parts:
        yield from _with_values(part.load(), found).select(schema.names).cast(schema).to_batches()


def _with_values(table: pa.Table, found: Mapping[str, Values]) -> pa.Table:
    offsets = table.column(OFFSET).to_numpy()
    for name, column in found.items():
        table = table.append_column(pa.field(name, column.column.type), column.take(offsets))
    return table
