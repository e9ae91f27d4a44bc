"""What the footer of a Parquet file says of its row groups."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow.parquet as pq


@dataclass(frozen=True)
class RowGroup:
    """What a file says of one of its row groups."""

    rows: int
    size: int  # bytes in the file


def row_groups_of(metadata: pq.FileMetaData) -> list[RowGroup]:
    """The row groups that a footer tells of."""
    groups = (metadata.row_group(i) for i in range(metadata.num_row_groups))
    return [RowGroup(g.num_rows, sum(g.column(i).total_compressed_size for i in range(g.num_columns))) for g in groups]
