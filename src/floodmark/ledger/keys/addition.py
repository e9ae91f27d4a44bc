"""Additions to the index: the files of a batch of records, written by the task that has them, put in place later."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from floodmark.ledger.keys.dead import DeadFile, is_live, kills_of, write_dead
from floodmark.ledger.keys.entries import Entries, order_columns, run_spec
from floodmark.ledger.keys.records import NOT_THERE, Records
from floodmark.ledger.objects import DatasetObjects
from floodmark.storage.arrays import Hashes, stable_order, starts_of_groups
from floodmark.storage.sorted_runs import RunFile, write_run


@dataclass(frozen=True)
class Addition:
    """The files of the records [start, end), and the folder they wait in; None once they are in their store."""

    start: int
    end: int
    run: RunFile | None
    dead: DeadFile | None
    folder: Path | None

    @property
    def names(self) -> list[str]:
        return [file.name for file in (self.run, self.dead) if file is not None]


def write_addition(folder: Path, records: Records) -> Addition:
    """Write the entries of these records and what they end into a folder."""
    if len(records) == 0:
        return Addition(records.start, records.end, None, None, folder)
    columns = order_columns(records.key, records.lookup)
    order = stable_order(columns)
    first = starts_of_groups([c[order] for c in columns])
    last = np.append(first[1:], np.True_)
    kills = kills_of(records, order, first)
    stem, spec = f"{records.start:012d}-{records.end:012d}", run_spec(records.lookup is not None)
    run = write_run(folder, spec, stem, _entries(records, order[last]).columns)
    dead = write_dead(folder, records.start, records.end, kills) if len(kills) else None
    return Addition(records.start, records.end, run, dead, folder)


def install(objects: DatasetObjects, addition: Addition) -> Addition:
    """Put the files of an addition into the store: for tasks whose folder the driver does not see."""
    if addition.folder is not None:
        for name in addition.names:
            objects.store.put_derived_file(objects.key_file_key(name), addition.folder / name)
    return replace(addition, folder=None)


def _entries(records: Records, at: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Entries:
    """The records at these positions as entries: those that bring no row are marks that the key has none."""
    live = is_live(records.op[at])
    row = records.row.take(at)
    nothing = np.uint64(0)
    return Entries(
        key=records.key.take(at),
        row=Hashes(np.where(live, row.high, nothing), np.where(live, row.low, nothing)),
        offset=np.where(live, records.start + at, NOT_THERE).astype(np.int64),
        lookup=None if records.lookup is None else records.lookup.take(at),
    )
