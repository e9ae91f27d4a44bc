"""Trimming checkpoints: an earlier run's hold what is used now and nothing else, and all have the same columns."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from floodmark.ledger.keys.records import Hashes
from floodmark.ledger.merge.buckets import BUCKETS, FileBucket, SortedFile
from floodmark.ledger.merge.results import result_batch
from floodmark.transform.functions.returned import OutputShape
from floodmark.transform.meta.failed import failed_hashes
from floodmark.transform.tasks.checkpoints import ChunkStore
from floodmark.transform.tasks.columns import in_layout
from floodmark.transform.tasks.reuse import Mask, Places, find, identity
from floodmark.transform.tasks.stored import Entries, Fresh, Rows, Stored, strategy_of


def divided(
    store: ChunkStore, outputs: Sequence[OutputShape], share: tuple[Stored, Hashes]
) -> tuple[list[Stored], list[Stored]]:
    """A found checkpoint as what is used of it and what is not; it is cut in two where there is some of both.

    `share` has the identities of the results that are used. Keys that were gone are in neither: they may have come back
    since, and every run finds out by itself.
    """
    stored, used = share
    if not len(used):
        return [], [stored]
    if len(used) == stored.keys:
        return [conformed(store, stored.without_gone(), outputs)], []
    entries = store.entries(stored)
    mine = Places.of(used).find(identity(entries.hashes, entries.signature)) >= 0
    parts = [_rewritten(store, stored, outputs, entries, chosen, Hashes.joined([])) for chosen in (mine, ~mine)]
    store.discard([stored])  # after both: a crash in between leaves results twice, never not at all
    return [parts[0]], [parts[1]]


def conformed(store: ChunkStore, stored: Stored, outputs: Sequence[OutputShape]) -> Stored:
    """A checkpoint whose rows have the columns of the outputs."""
    pairs = zip(stored.outputs, stored.layouts, outputs, strict=True)
    if all(file is None or layout == shape.layout for file, layout, shape in pairs):
        return stored
    entries = store.entries(stored)
    gone = Hashes.joined([]) if stored.gone is None else stored.gone.read()
    again = _rewritten(store, stored, outputs, entries, np.ones(len(entries), np.bool_), gone)
    store.discard([stored])
    return again


def _rewritten(
    store: ChunkStore, stored: Stored, outputs: Sequence[OutputShape], entries: Entries, chosen: Mask, gone: Hashes
) -> Stored:
    """A new checkpoint with the chosen keys of another one."""
    keys = Places.of(entries.hashes.take(chosen)).sorted
    failed = stored.failed_table()
    if failed is not None:
        failed = failed.filter(pa.array(find(keys, failed_hashes(failed)) >= 0))
    pairs = zip(stored.outputs, outputs, strict=True)
    rows = tuple(None if file is None else _rows_of(file, keys, shape) for file, shape in pairs)
    return store.put(stored.task, outputs, Fresh(rows, entries.take(chosen), gone, failed))


def _rows_of(file: SortedFile, keys: Hashes, shape: OutputShape) -> Rows:
    """The rows of some keys, with the columns of the output; a row's key is hashed anew, for its type may differ."""
    batch = FileBucket((file,), 0, BUCKETS).load()
    table = batch.table.filter(pa.array(find(keys, batch.place) >= 0))
    assert shape.layout is not None  # there are rows
    fitting = result_batch(in_layout(table, shape.layout, shape.name), shape.layout, strategy_of(shape))
    return Rows(fitting.table, fitting.key, fitting.place)
