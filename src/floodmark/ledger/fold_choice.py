"""Which folded files a reader takes in place of slices: those that hold the right rows and look whole.

What a look cannot tell, the checksum of a page tells when the page is read.
"""

from __future__ import annotations

import logging
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from floodmark.ledger.fold_manifest import FoldedFile, FoldManifest
from floodmark.ledger.objects import DatasetObjects
from floodmark.ledger.snapshot import Snapshot
from floodmark.storage.arrays import I64
from floodmark.storage.errors import StorageError
from floodmark.storage.page_headers import HEADERS_KEY, PageHeaders

_REQUESTS = 16
"""How many files of a bucket are looked at together."""

_log = logging.getLogger(__name__)


def usable(manifest: FoldManifest, snapshot: Snapshot, start: int, end: int) -> list[FoldedFile]:
    """The folded files from which the rows alive as of `end` can be read, in offset order.

    A file left out what was dead when it was folded, so it serves every state from then on and none before.
    """
    slices = snapshot.slices
    starts, ends = slices.column("start").to_numpy(), slices.column("end").to_numpy()
    blocks = slices.column("block")
    chosen = []
    for f in manifest.files:
        if start <= f.start < f.end <= f.at <= end and f.start in _Among(starts) and f.end in _Among(ends):
            place = int(np.searchsorted(ends, f.at))  # a block after this snapshot's newest one has no place
            if place < len(ends) and ends[place] == f.at and blocks[place].as_py().hex() == f.block:
                chosen.append(f)
    return _present(chosen, snapshot.objects)


@dataclass(frozen=True)
class _Among:
    """Sorted numbers, searched by halves."""

    ordered: I64

    def __contains__(self, value: int) -> bool:
        place = int(np.searchsorted(self.ordered, value))
        return place < len(self.ordered) and bool(self.ordered[place] == value)


def _present(files: list[FoldedFile], objects: DatasetObjects) -> list[FoldedFile]:
    """Those whose files are there and look whole; one listing instead of a question for each."""
    if not files:
        return []
    try:
        sizes = {info.key: info.size for info in objects.fold_files()}
    except StorageError as error:
        _log.warning("the folded files of %s cannot be listed (%s): its slices are read", objects.folder, error)
        return []
    there = [f for f in files if f.rows == 0 or sizes.get(f.key(objects)) == f.size]
    if objects.is_local or len(there) < 2:
        return [f for f in there if looks_whole(objects, f)]
    with ThreadPoolExecutor(_REQUESTS) as asking:
        whole = asking.map(partial(looks_whole, objects), there)
        return [f for f, is_whole in zip(there, whole, strict=True) if is_whole]


def looks_whole(objects: DatasetObjects, folded: FoldedFile) -> bool:
    """Whether everything but the pages themselves is as it was written; a local file's page headers are looked at too.

    In a bucket each header would be a request.
    """
    if folded.rows == 0:
        return True
    key = folded.key(objects)
    try:
        tail = objects.store.get_range(key, folded.size - folded.tail, folded.size)
        path = objects.store.local_path(key)
        if zlib.crc32(tail) == folded.tail_checksum and (path is None or _headers(tail).are_in(path)):
            return True
        problem = "it was changed or damaged"
    except (StorageError, OSError) as error:
        problem = str(error)
    _log.warning("the folded file %s is not used (%s): its slices are read, and fold() makes it anew", key, problem)
    return False


def _headers(tail: bytes) -> PageHeaders:
    return PageHeaders.decode(pq.read_metadata(pa.BufferReader(tail)).metadata[HEADERS_KEY])
