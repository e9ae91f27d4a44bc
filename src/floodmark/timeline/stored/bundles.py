"""Which partitions share a manifest: neighbours, up to so many pieces, so that a commit rewrites little."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from floodmark.timeline.order.pieces import Bundle, Partition

BUNDLE_PIECES = 512
"""A bundle has several neighbouring partitions up to so many pieces; one partition is never cut."""

_Changes = dict[int, Partition | None]


@dataclass(frozen=True)
class ManifestRef:
    """A manifest and what can be found in it."""

    first: int  # the start of its first partition
    last: int  # and of its last one
    until: int  # the greatest time among its rows
    digest: str
    partitions: int
    pieces: int
    rows: int
    size: int  # bytes of the manifest itself

    def may_hold(self, start: int | None, end: int | None) -> bool:
        """Whether rows of the times [start, end) can be in it."""
        return (end is None or self.first < end) and (start is None or self.until >= start)


@dataclass(frozen=True)
class Regrouped:
    """The manifests after a change: those that stay, and new bundles; `gone` are those that are named no more."""

    kept: tuple[ManifestRef, ...] = ()
    written: tuple[Bundle, ...] = ()
    gone: tuple[ManifestRef, ...] = ()
    before: tuple[Bundle, ...] = ()  # what was in those


@dataclass
class _Stretch:
    """Neighbouring bundles that are rewritten together."""

    refs: list[ManifestRef] = field(default_factory=list)
    changes: dict[int, Partition | None] = field(default_factory=dict)


def regroup(
    refs: Sequence[ManifestRef], changes: Mapping[int, Partition | None], read: Callable[[ManifestRef], Bundle]
) -> Regrouped:
    """Put changed partitions (None: removed ones) into the bundles that they belong to; only those are read."""
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
    return Regrouped(tuple(kept), tuple(written), tuple(gone), tuple(before))


def _stretches(
    refs: Sequence[ManifestRef], changes: Mapping[int, Partition | None]
) -> Iterable[ManifestRef | _Stretch]:
    """Bundles that stay and stretches that change, in order of time."""
    within, between = _places(refs, changes)
    touched = [bool(w) for w in within]
    for i, ref in enumerate(refs):
        if touched[i] and ref.pieces <= BUNDLE_PIECES // 4:  # small ones are put together with small neighbours
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


def _places(
    refs: Sequence[ManifestRef], changes: Mapping[int, Partition | None]
) -> tuple[list[_Changes], list[_Changes]]:
    """For each bundle the changes that go into it, and for each gap before, between and after those that do not.

    A new partition joins the bundle before it, else the one after it, if there is room.
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
    """Partitions in order as bundles that are about evenly filled."""
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
