"""Flip one bit in the middle of a column of a data file, as a bad disk would."""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow.parquet as pq


def main(lake: Path, column: str) -> None:
    """Damage the largest data file of a lake. Use only on a copy."""
    path = max(lake.glob("datasets/*/data/*"), key=lambda p: p.stat().st_size)
    group = pq.ParquetFile(path).metadata.row_group(0)
    chunk = next(c for c in map(group.column, range(group.num_columns)) if c.path_in_schema == column)
    at = chunk.data_page_offset + chunk.total_compressed_size // 2
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)
    print(f"flipped one bit of byte {at} in column {column!r} of {path.relative_to(lake)}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
