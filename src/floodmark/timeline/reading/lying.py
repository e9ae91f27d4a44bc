"""Pieces that lie over several spans: decoded and sorted once, and kept in memory, or on disk once that is full."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import pyarrow as pa

from floodmark.storage.arrays import I64
from floodmark.storage.errors import StorageError
from floodmark.timeline.order.pieces import Piece
from floodmark.timeline.order.spans import Span
from floodmark.timeline.reading.interleave import Rows, plain

KEPT_BYTES = 512 << 20
"""How much is kept in memory at most; what comes after that goes to disk, sorted, until it was passed."""

_log = logging.getLogger(__name__)


class LyingOver:
    """The rows of pieces that spans share, for several threads that read spans about in order.

    `room` is asked for a folder when memory is full.
    """

    def __init__(self, load: Callable[[Piece], Rows], room: Callable[[], Path]) -> None:
        self._load = load
        self._room: Callable[[], Path] | None = room
        self._most = KEPT_BYTES
        self._kept: dict[Piece, Future[Rows]] = {}
        self._weights: dict[Piece, int] = {}  # those in memory
        self._bytes = 0
        self._lock = threading.Lock()

    def rows(self, piece: Piece, span: Span) -> Rows:
        """All rows of a piece that lies over a span; another thread that reads them already is waited for."""
        if span.hi > piece.last and piece not in self._kept:
            return self._load(piece)  # no later span needs it
        with self._lock:
            found = self._kept.get(piece)
            if found is None:
                loading = self._kept[piece] = Future()
        return self._loaded(piece, span, loading) if found is None else found.result()

    def _loaded(self, piece: Piece, span: Span, loading: Future[Rows]) -> Rows:
        try:
            rows = self._load(piece)
            if not self._fits(piece, rows.nbytes, span):
                rows = self._on_disk(piece, rows)
        except BaseException as error:
            with self._lock:
                self._kept.pop(piece, None)
            loading.set_exception(error)
            raise
        loading.set_result(rows)
        return rows

    def _fits(self, piece: Piece, size: int, span: Span) -> bool:
        """Whether there is room in memory. What was passed goes first.

        All that lies over a span is needed again for the next one, so nothing else should go in its place.
        """
        with self._lock:
            if self._bytes + size > self._most:
                for passed in [p for p, rows in self._kept.items() if p.last < span.lo and rows.done()]:
                    del self._kept[passed]
                    self._bytes -= self._weights.pop(passed, 0)
            if self._bytes + size > self._most:
                return False
            self._weights[piece] = size
            self._bytes += size
            return True

    def _on_disk(self, piece: Piece, rows: Rows) -> Rows:
        """The same rows in a file; where none can be written, they are read anew for each span."""
        if self._room is not None:
            try:
                return on_disk(rows, self._room())
            except (OSError, StorageError) as error:
                self._room = None
                _log.warning("rows that do not fit into memory are read again and again: a file failed, %s", error)
        with self._lock:
            self._kept.pop(piece, None)
        return rows


def on_disk(rows: Rows, folder: Path) -> Rows:
    """Rows that lie in a file of this folder, which has no name any more and goes when they do."""
    table = plain(rows.table)  # a file has one dictionary for a column, rows may have several
    columns = [*table.columns, pa.chunked_array([rows.times]), pa.chunked_array([rows.offsets])]
    schema = pa.schema([pa.field(str(i), column.type) for i, column in enumerate(columns)])
    path = folder / f"timeline-rows-{uuid.uuid4().hex}"
    try:
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
            writer.write_table(pa.Table.from_arrays(columns, schema=schema))
        with pa.memory_map(str(path)) as source:
            *found, times, offsets = pa.ipc.open_file(source).read_all().columns
    finally:
        path.unlink(missing_ok=True)
    return Rows(pa.Table.from_arrays(found, schema=table.schema), _numbers(times), _numbers(offsets))


def _numbers(column: pa.ChunkedArray) -> I64:
    """Numbers where they lie."""
    found: I64 = column.chunk(0).to_numpy() if column.num_chunks == 1 else column.to_numpy()
    return found
