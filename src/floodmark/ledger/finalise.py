"""Finalising: a part gets its offsets, its system columns and its hashes, and becomes the file of a slice."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path

import numpy as np
import pyarrow as pa

from floodmark.ledger.conform import conform
from floodmark.ledger.layout import Layout, even_rows
from floodmark.ledger.objects import DatasetObjects
from floodmark.ledger.parts import Part, SlicePart
from floodmark.storage.scratch import explained
from floodmark.storage.slices import SYSTEM_TIME_TYPE, SliceFile, write_slice


@dataclass(frozen=True)
class FinaliseTask:
    """Everything a task needs to turn one part into a slice, wherever it runs."""

    part: Part
    start: int
    system_time_ms: int
    layout: Layout
    folder: Path
    objects: DatasetObjects
    row_group_size: int | None = None


def plan(
    parts: Sequence[Part],
    start: int,
    system_time_ms: int,
    layout: Layout,
    folder: Path,
    objects: DatasetObjects,
    row_group_size: int | None,
) -> list[FinaliseTask]:
    """One task per part, with dense offsets from `start` on."""
    starts = accumulate((part.rows for part in parts), initial=start)
    return [
        FinaliseTask(part, at, system_time_ms, layout, folder, objects, row_group_size)
        for part, at in zip(parts, starts, strict=False)
    ]


def finalise(task: FinaliseTask) -> SliceFile:
    """Write the slice of one part; on a remote store it is uploaded at once, since nobody else can reach this file."""
    part, layout = task.part, task.layout
    if isinstance(part, SlicePart):
        data, digests = part.load(), part.digests
    else:
        data, digests = conform(part.load(), layout, part.where), {}
    data = with_event_time(data, layout, task.system_time_ms)
    folder = task.folder if task.objects.is_local else task.objects.store.staging()
    path = folder / f"slice-{uuid.uuid4().hex}"
    try:
        with explained(f"a slice of {part.rows:,} rows", folder):
            slice_file = write_slice(
                path,
                data,
                vocab=layout.vocab,
                start=task.start,
                system_time_ms=task.system_time_ms,
                known_digests=digests,
                row_group_rows=even_rows(data.num_rows, task.row_group_size),
            )
        if task.objects.is_local:
            return slice_file
        task.objects.store.put_file(task.objects.data_key(slice_file.physical_hash), path)
        return replace(slice_file, path=None)
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def with_event_time(data: pa.Table, layout: Layout, system_time_ms: int) -> pa.Table:
    """The data columns with an event time first: the records' own, or the system time where they have none."""
    if layout.event_time is not None:
        return data
    times = pa.array(np.full(data.num_rows, system_time_ms, dtype=np.int64)).cast(SYSTEM_TIME_TYPE)
    return data.add_column(0, layout.payload_schema.field(0), times)


def again(slice_files: Sequence[SliceFile], layout: Layout, parts: Sequence[Part]) -> list[Part]:
    """The parts for another try after a lost race: finished slices with their digests, where they are at hand."""
    columns = [name for name in layout.payload_schema.names if name in layout.data.names]
    return [
        part
        if done.path is None or not done.path.exists()  # uploaded, or moved into the store before the race was lost
        else SlicePart(done.rows, done.path, tuple(columns), {name: done.digests[name] for name in columns})
        for done, part in zip(slice_files, parts, strict=True)
    ]
