"""Which values of a view's grouping, join or key columns have records since the last refresh, in any source.

Together these columns are called T. Whatever a record did (added, corrected, retracted), its values of T are touched;
corrections and retractions repeat the old values, so a row that moves from one group to another touches both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from floodmark.derive.positions import NOTHING
from floodmark.engine.rounds import Runner
from floodmark.storage.arrays import I64, Hashes
from floodmark.transform.changed.changes import ChangedKeys, changed_keys, distinct
from floodmark.transform.changed.shape import InputShape, Shape
from floodmark.transform.views.analysed.analysis import Analysis
from floodmark.transform.views.reading.found import read_rows
from floodmark.transform.views.reading.sources import PinnedSource


@dataclass(frozen=True)
class TouchedBy:
    """What one source has to do with it: how many new records, and how many values of T these have."""

    source: str
    records: int
    keys: int


@dataclass(frozen=True)
class Touched:
    """The values of T that have to be derived again, each once."""

    keys: pa.Table  # under the names and types that they have in the view
    hashes: Hashes
    sources: tuple[TouchedBy, ...]
    since: Mapping[str, int]  # by dataset id the position from which on records were looked at

    def __len__(self) -> int:
        return len(self.hashes)

    @property
    def records(self) -> int:
        """How many new records all sources have."""
        return sum(by.records for by in self.sources)


def touched(
    sources: Sequence[PinnedSource], analysis: Analysis, positions: Mapping[str, int], runner: Runner
) -> Touched:
    """The values of T of all records after the positions (by dataset id; a source without one is new as a whole)."""
    shape = shape_of(sources, analysis)
    since = {s.dataset_id: positions.get(s.dataset_id, NOTHING) for s in sources}
    changed = [_changed(source, shape, n, since[source.dataset_id], runner) for n, source in enumerate(sources)]
    keys, hashes = changed[0].keys, changed[0].hashes
    if len(changed) > 1:
        together = pa.concat_tables([c.keys for c in changed])
        keys, hashes = distinct(together, Hashes.joined([c.hashes for c in changed]))
    said = [
        TouchedBy(source.name, len(_records(source, since[source.dataset_id])), len(c))
        for source, c in zip(sources, changed, strict=True)
    ]
    return Touched(keys, hashes, tuple(said), since)


def keys_at(source: PinnedSource, analysis: Analysis, offsets: I64) -> pa.Table:
    """The values of T of the current rows at these offsets, which are sorted."""
    shape = shape_of([source], analysis)
    selection = source.given.current_rows()
    return shape.part_of(0, read_rows(source.given, offsets, shape.inputs[0].own, selection).rows)


def shape_of(sources: Sequence[PinnedSource], analysis: Analysis) -> Shape:
    """What each source has of T: all of it, under its own names."""
    known = pa.schema([*analysis.columns, *analysis.hidden])
    keys = pa.schema([pa.field(name, known.field(name).type) for name in analysis.t])
    return Shape(keys, tuple(_input(source, keys) for source in sources), "keyed")


def _input(source: PinnedSource, keys: pa.Schema) -> InputShape:
    own, strategy = dict(source.use.keys), source.given.strategy
    columns = pa.schema([]) if source.given.layout is None else source.given.layout.data
    return InputShape(
        name=source.name,
        dataset_id=source.dataset_id,
        keys={name: own[name] for name in keys.names},
        key=strategy.key,
        lookup=strategy.lookup,
        columns=columns,
        required=False,
        is_full=True,
    )


def is_by_offset(source: PinnedSource) -> bool:
    """Whether T is the offset of the source: each of its records is its own row, for good."""
    layout = source.given.layout
    return layout is not None and [column for _, column in source.use.keys] == [layout.vocab.offset]


def _records(source: PinnedSource, since: int) -> range:
    return range(max(since + 1, source.purged_before), max(source.given.end, since + 1, source.purged_before))


def _changed(source: PinnedSource, shape: Shape, number: int, since: int, runner: Runner) -> ChangedKeys:
    if not is_by_offset(source):
        return changed_keys(source.given, shape, number, since, runner)
    new = _records(source, since)
    offsets = np.arange(new.start, new.stop)
    keys = pa.table([pa.array(offsets)], schema=shape.keys)
    return ChangedKeys(keys, shape.hash_keys(keys), offsets, offsets)
