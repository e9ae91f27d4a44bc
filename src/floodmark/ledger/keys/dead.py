"""Dead offsets: records that are no longer current, each with the record that ended it, and a bitmap of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap64

from floodmark.ledger.errors import bad_index
from floodmark.ledger.keys.records import Records
from floodmark.storage import document
from floodmark.storage.arrays import I64
from floodmark.storage.document import Damaged, Document

_KIND = "dead offsets"
_LIVE_OPS = (0, 3)
_SAMPLE = 4096


@dataclass(frozen=True)
class Kills:
    """Offsets that ended, in ascending order, and for each the offset of the record that ended it."""

    offset: I64
    killed_by: I64

    def __len__(self) -> int:
        return len(self.offset)

    def before(self, end: int) -> I64:
        """The offsets below `end` that records below `end` ended."""
        upto = int(np.searchsorted(self.offset, end))
        result: I64 = self.offset[:upto][self.killed_by[:upto] < end]
        return result


@dataclass(frozen=True)
class DeadFile:
    """A file of kills as the manifest names it."""

    name: str
    kills: int
    size: int


@dataclass
class Dead:
    """An opened file of kills."""

    file: DeadFile
    _document: Document = field(repr=False)

    def kills(self) -> Kills:
        offset, killed_by = (np.frombuffer(self._section(name), np.int64) for name in ("offset", "killed_by"))
        return Kills(offset, killed_by)

    def bitmap(self) -> BitMap64:
        return BitMap64.deserialize(bytes(self._section("bitmap")))

    def check(self) -> None:
        """Read all of it; `BadIndex` when it is damaged."""
        for name in self._document.sections:
            self._section(name)

    def _section(self, name: str) -> memoryview:
        try:
            return self._document.section(name)
        except Damaged as error:
            raise bad_index(self.file.name, error.problem) from error


def is_live(op: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
    """Which records bring a row (an addition, or the new value of a correction)."""
    result: npt.NDArray[np.bool_] = (op == _LIVE_OPS[0]) | (op == _LIVE_OPS[1])
    return result


def kills_of(records: Records, order: I64, first: npt.NDArray[np.bool_]) -> Kills:
    """What these records end, given the order that groups them by key and where groups begin.

    A record ends the one before it in its group, if that brought a row; the first of a group ends the row that was
    current before the batch; a record that brings no row is never current.
    """
    offset, live = records.start + order, is_live(records.op)[order]
    old = records.old[order]
    ends_previous = np.flatnonzero(~first[1:] & live[:-1]) + 1
    ends_old = np.flatnonzero(first & (old >= 0))
    never = offset[~live]
    ended = np.concatenate([offset[ends_previous - 1], old[ends_old], never])
    ended_by = np.concatenate([offset[ends_previous], offset[ends_old], never])
    return _sorted(ended, ended_by)


def write_dead(folder: Path, start: int, end: int, kills: Kills) -> DeadFile:
    """Write kills (at least one) by the records [start, end) into a folder."""
    sections = {"bitmap": bitmap_of(kills).serialize(), "offset": kills.offset, "killed_by": kills.killed_by}
    data = document.encode(_KIND, 1, {"kills": len(kills)}, sections)
    name = f"{start:012d}-{end:012d}-{document.header_digest(data)}.dead"
    (folder / name).write_bytes(data)
    return DeadFile(name, len(kills), len(data))


def open_dead(file: DeadFile, data: memoryview) -> Dead:
    """Kills from the bytes of their file; `BadIndex` when its header is not the one that the name says."""
    try:
        return Dead(file, document.decode_named(data, _KIND, file.name))
    except Damaged as error:
        raise bad_index(file.name, error.problem) from error


def bitmap_of(kills: Kills) -> BitMap64:
    return BitMap64(kills.offset.astype(np.uint64).data)


def offsets_of(bitmap: BitMap64) -> I64:
    """The offsets in a bitmap, ascending."""
    return np.array(bitmap.to_array(), np.uint64).astype(np.int64)


def merged(parts: Sequence[Kills], limit: int) -> Iterator[Kills]:
    """All kills in ascending order, about `limit` at a time."""
    cuts: list[int] = []
    if sum(map(len, parts)) > limit:
        step = max(1, limit // _SAMPLE)
        cuts = np.sort(np.concatenate([p.offset[::_SAMPLE] for p in parts]))[step::step].tolist()
    low = [0] * len(parts)
    for cut in [*cuts, None]:
        high = [len(p) if cut is None else int(np.searchsorted(p.offset, cut)) for p in parts]
        together = [(p.offset[a:b], p.killed_by[a:b]) for p, a, b in zip(parts, low, high, strict=True)]
        low = high
        chunk = _sorted(np.concatenate([o for o, _ in together]), np.concatenate([k for _, k in together]))
        if len(chunk):
            yield chunk


def _sorted(ended: I64, ended_by: I64) -> Kills:
    order = np.argsort(ended, kind="stable")
    return Kills(ended[order], ended_by[order])
