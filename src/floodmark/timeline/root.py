"""The root of a timeline: the applied offset, and the manifests that name the pieces.

The root is one small object that is swapped as a whole. So a reader sees one state of all partitions, and an update
that crashes has no effect: the next one starts at the same offset.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from floodmark.errors import BadManifest, ObjectNotFound
from floodmark.ledger.snapshot import Snapshot
from floodmark.storage import document
from floodmark.storage.document import DamagedDocument
from floodmark.storage.facts import Natural, build, build_row
from floodmark.timeline import manifest
from floodmark.timeline.bundles import ManifestRef
from floodmark.timeline.manifest import TimelineObjects, WeightedCache
from floodmark.timeline.pieces import Bundle, Partition

_KIND = "timeline root"

KNOWN_PIECES = 1 << 15
"""A root in memory caches the contents of manifests up to this many pieces, about 16 MiB."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LastUpdate:
    """The last change of a timeline, in figures."""

    kind: Literal["update", "fold", "purge"] = "update"
    rows: int = 0  # new records
    late_rows: int = 0  # new records that did not fit between the settled pieces
    bytes_in: int = 0  # bytes of the new records in the ledger's slices
    bytes_written: int = 0  # files, manifests and the root
    merged_rows: int = 0  # rows that were written
    partitions: int = 0  # changed partitions
    pieces: int = 0  # pieces that these have now

    @property
    def amplification(self) -> float | None:
        """The bytes written per byte that came in; None if none came in."""
        return self.bytes_written / self.bytes_in if self.bytes_in else None


def _no_bundles() -> WeightedCache[str, Bundle]:
    return WeightedCache(KNOWN_PIECES)


@dataclass(frozen=True)
class Root:
    """One state of a timeline: the records before `applied` are in the pieces that its manifests name."""

    version: Natural = 0
    applied: Natural = 0
    block: str = ""  # the data block that ends at `applied`
    settings_digest: str = ""
    manifests: tuple[ManifestRef, ...] = ()
    next_run: Natural = 0
    purged_before: Natural = 0  # no piece may hold records before this offset
    erasures: int = 0  # how many blocks had erased records when it was built: no piece may hold these records
    bytes_in: Natural = 0
    bytes_written: Natural = 0
    last: LastUpdate | None = None
    abandoned: tuple[ManifestRef, ...] = field(default=(), compare=False)  # of a root that is no longer usable
    stored: bytes | None = field(default=None, compare=False, repr=False)  # the bytes in the store
    bundles: WeightedCache[str, Bundle] = field(default_factory=_no_bundles, compare=False, repr=False)  # by digest

    @property
    def pieces(self) -> int:
        return sum(m.pieces for m in self.manifests)

    @property
    def rows(self) -> int:
        """The number of rows in its pieces, including dead ones."""
        return sum(m.rows for m in self.manifests)

    @property
    def partitions(self) -> int:
        return sum(m.partitions for m in self.manifests)

    @property
    def is_damaged(self) -> bool:
        """Whether the stored bytes are not a valid root."""
        return self.stored is not None and self.version == 0

    def emptied(self) -> Root:
        """A root with nothing applied, to rebuild from when this root is unusable. Publishing it replaces this root."""
        return Root(
            version=self.version,
            purged_before=self.purged_before,
            next_run=self.next_run,
            abandoned=(*self.abandoned, *self.manifests),
            stored=self.stored,
            bundles=self.bundles,
        )


def load(objects: TimelineObjects) -> Root:
    """The stored root; an empty one if it is missing or damaged. Read it before the ledger's head."""
    data = objects.root.read()
    if data is None:
        return Root()
    try:
        return decode(data)
    except BadManifest as error:
        _log.warning("%s; reads use the ledger until the next update rebuilds the timeline", error.message)
        return Root(stored=data)


def root_or_emptied(root: Root, snapshot: Snapshot, settings_digest: str) -> Root:
    """The root if it belongs to this chain and these settings; else an emptied root, with a warning.

    After an erasure it is emptied without a warning, since the erasure builds the timeline again.
    """
    if root.applied == 0:
        return _with_erasures(root if not root.manifests else root.emptied(), snapshot)
    if root.erasures != snapshot.erasures:
        return _with_erasures(root.emptied(), snapshot)  # it may have records that were erased since
    if root.settings_digest != settings_digest:
        problem = "has other settings than the dataset"
    elif not snapshot.block_of(root.applied - 1) == root.block != snapshot.block_of(root.applied):
        problem = f"has records up to offset {root.applied} of a block that is not on the chain"
    else:
        return root
    _log.warning("the timeline of %s %s; reads use the ledger", snapshot.objects.folder, problem)
    return _with_erasures(root.emptied(), snapshot)


def _with_erasures(root: Root, snapshot: Snapshot) -> Root:
    return root if root.erasures == snapshot.erasures else replace(root, erasures=snapshot.erasures)


def partitions(
    objects: TimelineObjects, root: Root, start: int | None = None, end: int | None = None
) -> list[Partition]:
    """The partitions that may have rows at the times [start, end), in microseconds. Reads only their manifests."""
    chosen = [ref for ref in root.manifests if ref.may_hold(start, end)]
    found = [p for ref in chosen for p in load_bundle(objects, root, ref).partitions]
    if start is None and end is None:
        return found
    return [p for p in found if (end is None or p.start < end) and (start is None or latest_time(p) >= start)]


def partitions_at(objects: TimelineObjects, root: Root, starts: Iterable[int]) -> dict[int, Partition]:
    """The existing partitions that start at these times, by start. Only their manifests are read."""
    requested = np.unique(np.fromiter(starts, np.int64))
    found: dict[int, Partition] = {}
    for ref in root.manifests:
        low, high = np.searchsorted(requested, ref.first), np.searchsorted(requested, ref.last, "right")
        if low < high:
            among = set(requested[low:high].tolist())
            found |= {p.start: p for p in load_bundle(objects, root, ref).partitions if p.start in among}
    return found


def load_bundle(objects: TimelineObjects, root: Root, ref: ManifestRef) -> Bundle:
    """The contents of a manifest, from the cache or the store. Raises `BadManifest` if it is missing or damaged."""
    known = root.bundles.get(ref.digest)
    if known is not None:
        return known
    key = objects.manifest_key(ref.digest)
    try:
        read = manifest.decode(objects.store.get(key), key)
    except ObjectNotFound as error:
        raise BadManifest(
            f"the timeline's manifest {key!r} is gone",
            hint="repeat the read if the timeline changed meanwhile; else run fold() to rebuild it",
            key=key,
        ) from error
    root.bundles.put(ref.digest, read, ref.pieces)
    return read


def latest_time(partition: Partition) -> int:
    """The latest event time in a partition."""
    return max((p.last.time for p in partition.pieces), default=partition.start)


def encode(root: Root) -> bytes:
    """A root as a document."""
    facts = {
        "version": root.version,
        "applied": root.applied,
        "block": root.block,
        "settings": root.settings_digest,
        "manifests": [list(vars(m).values()) for m in root.manifests],
        "next_run": root.next_run,
        "purged_before": root.purged_before,
        "erasures": root.erasures,
        "bytes_in": root.bytes_in,
        "bytes_written": root.bytes_written,
        "last": root.last,
    }
    return document.encode(_KIND, 1, facts)


def decode(data: bytes) -> Root:
    """A root from bytes. Raises `BadManifest` if `encode` did not write them."""
    try:
        facts = dict(document.decode(data, _KIND, "root").facts)
        with document.parsing("root"):
            facts["settings_digest"] = facts.pop("settings")
            manifests = tuple(build_row(ManifestRef, row) for row in facts["manifests"])
            return build(Root, facts, manifests=manifests, stored=data)
    except DamagedDocument as error:
        raise BadManifest(f"the timeline's root is damaged: {error.problem}") from error
