"""Which of the timeline's own files hold purged records, whether pieces still show them or not."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pyarrow as pa
import pyarrow.parquet as pq

from floodmark.storage.errors import ObjectNotFound
from floodmark.timeline.stored.objects import TimelineObjects

_REQUESTS = 8
"""So many footers are read together."""


def files_with_purged(objects: TimelineObjects, files: Sequence[str], purged_before: int) -> list[str]:
    """Those of some own files that hold records before an offset; only their footers are read.

    One that cannot be read may hold some, so it counts; one that is gone does not.
    """
    if not files or purged_before <= 0:
        return []
    with ThreadPoolExecutor(min(_REQUESTS, len(files))) as reading:
        oldest = reading.map(partial(_oldest, objects), files)
        return [
            file for file, offset in zip(files, oldest, strict=True) if offset is not None and offset < purged_before
        ]


def _oldest(objects: TimelineObjects, file: str) -> int | None:
    """The smallest offset in a file, None when there is no such file. The offset is the first column of all."""
    try:
        with objects.store.open(objects.key(file)) as source:
            metadata = pq.read_metadata(source)
    except (ObjectNotFound, FileNotFoundError):
        return None
    except (OSError, pa.ArrowException):
        return -1
    found = [metadata.row_group(i).column(0).statistics for i in range(metadata.num_row_groups)]
    return min((int(s.min) if s is not None and s.has_min_max else -1 for s in found), default=None)
