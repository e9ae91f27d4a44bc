"""The root of a timeline: up to which offset records are in it, and which manifests name its pieces.

It is one small object that is swapped as a whole, so a reader has one state of all partitions, and an update that
crashed has not happened: the next one begins at the same offset again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from floodmark.ledger.snapshot import Snapshot
from floodmark.storage import document
from floodmark.storage.document import Damaged
from floodmark.storage.errors import ObjectNotFound
from floodmark.timeline.errors import BadManifest
from floodmark.timeline.order.pieces import Bundle, Partition
from floodmark.timeline.stored import manifest
from floodmark.timeline.stored.bundles import ManifestRef
from floodmark.timeline.stored.objects import TimelineObjects
from floodmark.timeline.stored.recent import Recent

_KIND = "timeline root"

KNOWN_PIECES = 1 << 15
"""What is in manifests is kept with a root that stays in memory, up to so many pieces: about 16 MiB."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LastUpdate:
    """What the last change of a timeline did."""

    kind: Literal["update", "fold", "purge"] = "update"
    rows: int = 0  # records that came in
    late_rows: int = 0  # those of them that lay before what was there
    bytes_in: int = 0  # of those records in the ledger's slices
    bytes_written: int = 0  # files, manifests and the root
    merged_rows: int = 0  # rows that were written
    partitions: int = 0  # how many were touched
    pieces: int = 0  # how many pieces they have now

    @property
    def amplification(self) -> float | None:
        """How many bytes were written for each one that came in, None when none did."""
        return self.bytes_written / self.bytes_in if self.bytes_in else None


def _no_bundles() -> Recent[str, Bundle]:
    return Recent(KNOWN_PIECES)


@dataclass(frozen=True)
class Root:
    """One state of a timeline: the records before `applied` are in the pieces that its manifests name."""

    version: int = 0
    applied: int = 0
    block: str = ""  # the data block that ends there
    settings_digest: str = ""
    manifests: tuple[ManifestRef, ...] = ()
    next_run: int = 0
    purged_before: int = 0  # no piece may hold records before this offset
    bytes_in: int = 0
    bytes_written: int = 0
    last: LastUpdate | None = None
    abandoned: tuple[ManifestRef, ...] = field(default=(), compare=False)  # of a root that is of no use any more
    stored: bytes | None = field(default=None, compare=False, repr=False)  # what lies in the store
    bundles: Recent[str, Bundle] = field(default_factory=_no_bundles, compare=False, repr=False)  # by digest

    @property
    def pieces(self) -> int:
        return sum(m.pieces for m in self.manifests)

    @property
    def rows(self) -> int:
        """How many rows its pieces hold, dead ones included."""
        return sum(m.rows for m in self.manifests)

    @property
    def partitions(self) -> int:
        return sum(m.partitions for m in self.manifests)

    @property
    def is_damaged(self) -> bool:
        """Whether what lies in the store is no root."""
        return self.stored is not None and self.version == 0

    def emptied(self) -> Root:
        """Nothing applied: for a root that is of no use. Published upon, it is replaced."""
        return Root(
            version=self.version,
            purged_before=self.purged_before,
            next_run=self.next_run,
            abandoned=(*self.abandoned, *self.manifests),
            stored=self.stored,
            bundles=self.bundles,
        )


EMPTY = Root()


def load(objects: TimelineObjects) -> Root:
    """The root as it is stored; an empty one when there is none or it is damaged. Read it before the ledger's head."""
    data = objects.root.read()
    if data is None:
        return Root()
    try:
        return decode(data)
    except BadManifest as error:
        _log.warning("%s; the ledger is read instead until the next update makes the timeline anew", error.message)
        return Root(stored=data)


def fitting(root: Root, snapshot: Snapshot, settings_digest: str) -> Root:
    """The root if it belongs to this chain and these settings; else the same emptied, with a warning."""
    if root.applied == 0:
        return root if not root.manifests else root.emptied()
    if root.settings_digest != settings_digest:
        problem = "was made with other settings"
    elif not snapshot.block_of(root.applied - 1) == root.block != snapshot.block_of(root.applied):
        problem = f"has records up to offset {root.applied} of a block that is not on the chain"
    else:
        return root
    _log.warning("the timeline of %s %s; the ledger is read instead", snapshot.objects.folder, problem)
    return root.emptied()


def partitions(
    objects: TimelineObjects, root: Root, start: int | None = None, end: int | None = None
) -> list[Partition]:
    """The partitions that can have rows of the times [start, end) in microseconds; others' manifests are not read."""
    chosen = [ref for ref in root.manifests if ref.may_hold(start, end)]
    found = [p for ref in chosen for p in bundle(objects, root, ref).partitions]
    if start is None and end is None:
        return found
    return [p for p in found if (end is None or p.start < end) and (start is None or until(p) >= start)]


def partitions_at(objects: TimelineObjects, root: Root, starts: Iterable[int]) -> dict[int, Partition]:
    """The partitions that start at these times, as far as they exist; only their manifests are read."""
    wanted = np.unique(np.fromiter(starts, np.int64))
    found: dict[int, Partition] = {}
    for ref in root.manifests:
        low, high = np.searchsorted(wanted, ref.first), np.searchsorted(wanted, ref.last, "right")
        if low < high:
            among = set(wanted[low:high].tolist())
            found |= {p.start: p for p in bundle(objects, root, ref).partitions if p.start in among}
    return found


def bundle(objects: TimelineObjects, root: Root, ref: ManifestRef) -> Bundle:
    """What a manifest holds, read unless it is known; `BadManifest` when it is gone or damaged."""
    known = root.bundles.get(ref.digest)
    if known is not None:
        return known
    key = objects.manifest_key(ref.digest)
    try:
        read = manifest.decode(objects.store.get(key), key)
    except ObjectNotFound as error:
        raise BadManifest(
            f"the timeline's manifest {key!r} is gone",
            hint="read again if the timeline changed meanwhile; else fold() makes it anew",
            key=key,
        ) from error
    root.bundles.put(ref.digest, read, ref.pieces)
    return read


def until(partition: Partition) -> int:
    """The greatest time in a partition."""
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
        "bytes_in": root.bytes_in,
        "bytes_written": root.bytes_written,
        "last": root.last,
    }
    return document.encode(_KIND, 1, facts)


def decode(data: bytes) -> Root:
    """A root from bytes; `BadManifest` for any that `encode` did not make."""
    try:
        facts = document.decode(data, _KIND, "root").facts
    except Damaged as error:
        raise BadManifest(f"the timeline's root is damaged: {error.problem}") from error
    last = facts["last"]
    return Root(
        version=facts["version"],
        applied=facts["applied"],
        block=facts["block"],
        settings_digest=facts["settings"],
        manifests=tuple(ManifestRef(*m) for m in facts["manifests"]),
        next_run=facts["next_run"],
        purged_before=facts["purged_before"],
        bytes_in=facts["bytes_in"],
        bytes_written=facts["bytes_written"],
        last=None if last is None else LastUpdate(**last),
        stored=data,
    )
