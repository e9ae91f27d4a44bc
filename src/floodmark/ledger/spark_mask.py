"""Leaving out dead records in Spark: a bitmap of the dead that every task has at hand, beside Spark's own reader.

The bitmap is one row with one array of 64-bit words, which Spark computes once as a scalar subquery and then holds like
a literal. There is no join: the filter finds a record's word by its offset. See docs/design/2026-11-16-fold.md.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from floodmark.engine.frames import make_frame
from floodmark.ledger.scan import Scan
from floodmark.ledger.selection import Selection
from floodmark.storage.arrays import I64

STRETCH_OFFSETS = 1 << 28
"""How many offsets one bitmap spans at most: 32 MB."""

_BITS = 64


def unmasked(selection: Selection) -> Selection:
    """What the files without dead records hold of a selection."""
    clean = tuple(f for f, dead in zip(selection.files, selection.dead_rows.tolist(), strict=True) if dead == 0)
    if not clean:
        return Selection(selection.start, selection.start, ())
    return Selection(max(selection.start, clean[0].start), min(selection.end, clean[-1].end), clean)


def masked_stretches(selection: Selection) -> list[Selection]:
    """The files with dead records, in groups that lie close enough together for one bitmap."""
    groups: list[list[int]] = []
    for i in np.flatnonzero(selection.dead_rows).tolist():
        if groups and selection.files[i].end - selection.files[groups[-1][0]].start <= STRETCH_OFFSETS:
            groups[-1].append(i)
        else:
            groups.append([i])
    stretches = []
    for group in groups:
        files = tuple(selection.files[i] for i in group)
        start, end = max(selection.start, files[0].start), min(selection.end, files[-1].end)
        stretches.append(selection.of(files, start, end))
    return stretches


def total_bytes(stretches: list[Selection]) -> int:
    """How large the bitmaps of these stretches are together."""
    return sum((s.end - s.start) // 8 for s in stretches)


def alive_filter(scan: Scan, stretch: Selection, spark: Any) -> Any:
    """The condition that keeps the living records of a stretch."""
    from pyspark.sql import functions as F  # noqa: N812  as everybody calls it

    words = make_frame(spark, pa.table({"words": _one_list(bitmap(stretch.dead, stretch.start, stretch.end))}))
    place = F.col(_quoted(scan.layout.vocab.offset)) - F.lit(stretch.start)
    word = F.get(words.scalar(), F.shiftright(place, 6).cast("int"))
    dead = F.getbit(word, place.bitwiseAND(F.lit(_BITS - 1)).cast("int"))
    return F.coalesce(dead, F.lit(0)) == F.lit(0)


def bitmap(dead: I64, start: int, end: int) -> I64:
    """The dead among [start, end) as bits: number i of the word w is the offset start + 64 · w + i."""
    bits = np.zeros(-(-(end - start) // _BITS) * _BITS, np.bool_)
    bits[dead - start] = True
    words: I64 = np.packbits(bits, bitorder="little").view("<i8").astype(np.int64, copy=False)
    return words


def _one_list(words: I64) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array([0, len(words)], pa.int32()), pa.array(words))


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
