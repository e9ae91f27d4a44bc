"""Pieces that lie over several spans: decoded and sorted once, and kept as long as there is room."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future

from floodmark.timeline.interleave import Rows
from floodmark.timeline.pieces import Piece
from floodmark.timeline.spans import Span

KEPT_BYTES = 512 << 20
"""How much is kept at most; what does not fit is read again for each span."""


class LyingOver:
    """The rows of pieces that spans share, for several threads that read spans about in order."""

    def __init__(self, load: Callable[[Piece], Rows]) -> None:
        self._load = load
        self._most = KEPT_BYTES
        self._kept: dict[Piece, Future[Rows]] = {}
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
        except BaseException as error:
            with self._lock:
                del self._kept[piece]
            loading.set_exception(error)
            raise
        loading.set_result(rows)
        self._make_room(piece, rows.nbytes, span)
        return rows

    def _make_room(self, piece: Piece, size: int, span: Span) -> None:
        """Let go of what was passed, or else of what came last.

        All that lies over a span is needed again for the next one, so whatever went in its place would be read again
        before it is.
        """
        with self._lock:
            self._bytes += size
            if self._bytes > self._most:
                for passed in [p for p, rows in self._kept.items() if p.last < span.lo and rows.done()]:
                    self._bytes -= self._kept.pop(passed).result().nbytes
            if self._bytes > self._most and piece in self._kept:
                del self._kept[piece]
                self._bytes -= size
