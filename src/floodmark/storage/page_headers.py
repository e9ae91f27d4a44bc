"""Page headers of a Parquet file: the few bytes before each page that no page checksum covers, and a checksum of them.

A damaged header can say another encoding or fewer values, and the page then decodes to other rows without a word.
"""

from __future__ import annotations

import os
import zlib
from base64 import b64decode, b64encode
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

HEADERS_KEY = b"floodmark.page-headers"
"""Where a file's footer keeps them, beside the other facts about it."""

_CHECKSUM_BYTES = 4


@dataclass(frozen=True)
class PageHeaders:
    """Where the headers of a file are, and the CRC-32 of all of them in order."""

    bounds: npt.NDArray[np.int64]  # start, end, start, end, …
    checksum: int

    def encode(self) -> bytes:
        """As text that a footer can hold: the gaps are small numbers, which compress well."""
        gaps = np.diff(self.bounds, prepend=0).astype("<u4")
        return b64encode(self.checksum.to_bytes(_CHECKSUM_BYTES, "little") + zlib.compress(gaps.tobytes()))

    @staticmethod
    def decode(text: bytes) -> PageHeaders:
        data = b64decode(text)
        gaps = np.frombuffer(zlib.decompress(data[_CHECKSUM_BYTES:]), "<u4")
        return PageHeaders(np.cumsum(gaps, dtype=np.int64), int.from_bytes(data[:_CHECKSUM_BYTES], "little"))

    def are_in(self, path: Path) -> bool:
        """Whether the file has these headers. It reads nothing else of it."""
        found = 0
        with path.open("rb", buffering=0) as file:
            number = file.fileno()
            for start, end in self.bounds.reshape(-1, 2).tolist():
                found = zlib.crc32(os.pread(number, end - start, start), found)
        return found == self.checksum
