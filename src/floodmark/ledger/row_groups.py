"""Row groups of slices: how many rows each may have, where a dataset says so."""

from __future__ import annotations

from floodmark.chain.state import ChainState
from floodmark.ledger.strategy import noted
from floodmark.storage.slices import ROW_GROUP_ROWS

ROW_GROUP_SIZE_NOTE = "row_group_size"


def row_group_size_of(state: ChainState) -> int | None:
    """The most rows that a row group of a slice may have, as the chain notes it; None where nobody cares."""
    size = noted(state, ROW_GROUP_SIZE_NOTE)
    return size if isinstance(size, int) and not isinstance(size, bool) and size >= 1 else None


def even_rows(rows: int, size: int | None) -> int:
    """How many rows each row group of a slice gets: as many as may be, and the last not much fewer than the others."""
    if size is None or rows == 0:
        return ROW_GROUP_ROWS
    return -(-rows // -(-rows // size))
