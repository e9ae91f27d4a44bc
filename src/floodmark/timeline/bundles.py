"""Bundles: which neighbouring partitions share a manifest. A limit of pieces per bundle keeps commits small."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow.parquet as pq

from floodmark.storage.facts import Natural, Sha3Hex
from floodmark.timeline.pieces import Bundle, Partition

BUNDLE_PIECES = 512
"""A bundle holds neighbouring partitions with up to this many pieces. A partition is never split over bundles."""

_Changes = dict[int, Partition | None]


@dataclass(frozen=True)
class ManifestRef:
    """A reference to a manifest, with a summary of its contents."""

    first: int  # the start of its first partition
    last: int  # and of its last one
    until: int  # the greatest time among its rows
    digest: Sha3Hex
    partitions: Natural
    pieces: Natural
    rows: Natural
    size: Natural  # bytes of the manifest itself

    def may_hold(self, start: int | None, end: int | None) -> bool:
        """Whether it may contain rows with event times in [start, end)."""
        return (end is None or self.first < end) and (start is None or self.until >= start)


@dataclass(frozen=True)
class RegroupedBundles:
    """The manifests after a change: those that stay, the new bundles, and those that the root no longer names."""

    kept: tuple[ManifestRef, ...] = ()
    written: tuple[Bundle, ...] = ()
    gone: tuple[ManifestRef, ...] = ()
    before: tuple[Bundle, ...] = ()  # the contents of `gone`


@dataclass
class _Stretch:
    """Neighbouring bundles that are rewritten together."""

    refs: list[ManifestRef] = field(default_factory=list)
    changes: dict[int, Partition | None] = field(default_factory=dict)


def regroup(
    refs: Sequence[ManifestRef], changes: Mapping[int, Partition | None], read: Callable[[ManifestRef], Bundle]
) -> RegroupedBundles:
    """Put changed partitions into their bundles; None removes a partition. Only the affected bundles are read."""
    kept, written, gone, before = [], [], [], []
    for item in _stretches(refs, changes):
        if isinstance(item, ManifestRef):
            kept.append(item)
            continue
        old = [read(ref) for ref in item.refs]
        merged: _Changes = {p.start: p for bundle in old for p in bundle.partitions}
        merged.update(item.changes)
        written += cut([p for _, p in sorted(merged.items()) if p is not None])
        gone += item.refs
        before += old
    return RegroupedBundles(tuple(kept), tuple(written), tuple(gone), tuple(before))


def _stretches(
    refs: Sequence[ManifestRef], changes: Mapping[int, Partition | None]
) -> Iterable[ManifestRef | _Stretch]:
    """Bundles that stay and stretches that change, in time order."""
    within, between = _assign_changes(refs, changes)
    touched = [bool(w) for w in within]
    for i, ref in enumerate(refs):
        if touched[i] and ref.pieces <= BUNDLE_PIECES // 4:  # a small bundle is merged with small neighbours
            for j in (i - 1, i + 1):
                if 0 <= j < len(refs) and refs[j].pieces <= BUNDLE_PIECES // 2:
                    touched[j] = True
    found: list[ManifestRef | _Stretch] = []
    for i in range(len(refs) + 1):
        if between[i]:
            _open_stretch(found).changes.update(between[i])
        if i < len(refs) and touched[i]:
            stretch = _open_stretch(found)
            stretch.refs.append(refs[i])
            stretch.changes.update(within[i])
        elif i < len(refs):
            found.append(refs[i])
    return found


def _open_stretch(found: list[ManifestRef | _Stretch]) -> _Stretch:
    if not found or isinstance(found[-1], ManifestRef):
        found.append(_Stretch())
    last = found[-1]
    assert isinstance(last, _Stretch)
    return last


def _assign_changes(
    refs: Sequence[ManifestRef], changes: Mapping[int, Partition | None]
) -> tuple[list[_Changes], list[_Changes]]:
    """The changes inside each bundle, and the changes in each gap before, between and after the bundles.

    A new partition joins the previous bundle, else the next one, if there is space.
    """
    within: list[_Changes] = [{} for _ in refs]
    between: list[_Changes] = [{} for _ in range(len(refs) + 1)]
    room = [BUNDLE_PIECES - ref.pieces for ref in refs]
    firsts = [ref.first for ref in refs]
    for start, partition in sorted(changes.items()):
        at = bisect_right(firsts, start) - 1
        if at >= 0 and start <= refs[at].last:
            within[at][start] = partition
        elif partition is not None:
            weight = _weight(partition)
            joined = next((i for i in (at, at + 1) if 0 <= i < len(refs) and room[i] >= weight), None)
            if joined is None:
                between[at + 1][start] = partition
            else:
                within[joined][start] = partition
    return within, between


def cut(partitions: Sequence[Partition]) -> list[Bundle]:
    """Split partitions, which are in order, into bundles of about equal size."""
    weights = [_weight(p) for p in partitions]
    count = -(-sum(weights) // BUNDLE_PIECES)
    bundles: list[list[Partition]] = []
    filled = BUNDLE_PIECES
    for partition, weight in zip(partitions, weights, strict=True):
        if filled + weight > BUNDLE_PIECES or filled * count >= sum(weights):
            bundles.append([])
            filled = 0
        bundles[-1].append(partition)
        filled += weight
    return [Bundle(tuple(b)) for b in bundles]


def _weight(partition: Partition) -> int:
    return max(1, len(partition.pieces))


# Row groups of files


@dataclass(frozen=True)
class RowGroup:
    """The size of a file's row group, from the footer."""

    rows: int
    size: int  # bytes in the file


def row_groups_of(metadata: pq.FileMetaData) -> list[RowGroup]:
    """The row groups that a footer lists."""
    groups = (metadata.row_group(i) for i in range(metadata.num_row_groups))
    return [RowGroup(g.num_rows, sum(g.column(i).total_compressed_size for i in range(g.num_columns))) for g in groups]
