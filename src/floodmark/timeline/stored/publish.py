"""Publishing a change of a timeline: manifests of the touched partitions first, then one swap of the root."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace

from floodmark.storage.errors import ObjectNotFound, SwapUnknown
from floodmark.timeline.errors import BadManifest, PurgedMeanwhile, RootUnknown
from floodmark.timeline.order.pieces import Bundle, Partition
from floodmark.timeline.stored import manifest
from floodmark.timeline.stored.bundles import ManifestRef, Regrouped, regroup
from floodmark.timeline.stored.objects import TimelineObjects, is_own, last_name
from floodmark.timeline.stored.root import LastUpdate, Root, bundle, encode

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Change:
    """What a new root has that the one before has not."""

    applied: int
    block: str
    settings_digest: str
    partitions: tuple[Partition, ...]  # new ones and those that changed
    last: LastUpdate  # its bytes_written: of files alone
    next_run: int
    removed: tuple[int, ...] = ()  # the starts of partitions that are no more
    purged_before: int = 0  # records before this offset are not in it any more


def publish(objects: TimelineObjects, before: Root, change: Change) -> Root | None:
    """Put a change in the place of the root that it was made from; None when somebody else was first.

    All files that it names must be stored already. What no root names any more stays, with a note that says since when.
    """
    _refuse_purged(before, change)
    changes = dict.fromkeys(change.removed) | {p.start: p for p in change.partitions}
    grouped = regroup(before.manifests, changes, lambda ref: bundle(objects, before, ref))
    encoded = [manifest.encode(b) for b in grouped.written]
    written = [ref_of(b, data) for b, data in zip(grouped.written, encoded, strict=True)]
    for ref, data in zip(written, encoded, strict=True):
        objects.put(objects.manifest_key(ref.digest), data)
    refs = tuple(sorted([*grouped.kept, *written], key=lambda m: m.first))
    after, data = _followed(before, change, refs, sum(m.size for m in written))
    _note_replaced(objects, before, grouped, {m.digest for m in refs})
    if not _swap(objects, before.stored, data):
        return None
    for ref in grouped.gone:
        before.bundles.drop(ref.digest)
    for ref, known in zip(written, grouped.written, strict=True):
        before.bundles.put(ref.digest, known, ref.pieces)
    return replace(after, stored=data, bundles=before.bundles)


def _refuse_purged(before: Root, change: Change) -> None:
    purged = max(before.purged_before, change.purged_before)
    if purged == 0:
        return
    oldest = min((p.offset_min for partition in change.partitions for p in partition.pieces), default=purged)
    if oldest < purged:
        raise PurgedMeanwhile(
            f"the change of the timeline has records from offset {oldest} on, which were purged meanwhile",
            hint="nothing was changed; try again",
            purged_before=before.purged_before,
        )


def ref_of(written: Bundle, data: bytes) -> ManifestRef:
    """What a root says of a bundle that these bytes are the manifest of."""
    partitions = written.partitions
    pieces = [p for partition in partitions for p in partition.pieces]
    return ManifestRef(
        first=partitions[0].start,
        last=partitions[-1].start,
        until=max((p.last.time for p in pieces), default=partitions[-1].start),
        digest=manifest.digest_of(data),
        partitions=len(partitions),
        pieces=len(pieces),
        rows=sum([p.row_hi - p.row_lo for p in pieces]),
        size=len(data),
    )


def _followed(before: Root, change: Change, refs: tuple[ManifestRef, ...], manifests: int) -> tuple[Root, bytes]:
    """The next root and its bytes, which count themselves among those that were written."""
    size = 0
    for _ in range(2):  # the second time with its own size
        written = change.last.bytes_written + manifests + size
        after = Root(
            version=before.version + 1,
            applied=change.applied,
            block=change.block,
            settings_digest=change.settings_digest,
            manifests=refs,
            next_run=change.next_run,
            purged_before=max(before.purged_before, change.purged_before),
            bytes_in=before.bytes_in + change.last.bytes_in,
            bytes_written=before.bytes_written + written,
            last=replace(change.last, bytes_written=written),
        )
        data = encode(after)
        size = len(data)
    return after, data


def _note_replaced(objects: TimelineObjects, before: Root, grouped: Regrouped, named: set[str]) -> None:
    """Leave a note for each manifest and own file that may not be named any more.

    Whoever reads them now may need them for a while. A file that another manifest names as well has its note too
    early, which does no harm: nobody removes what is named, and the note is renewed when the last one lets go of it.
    """
    abandoned = [b for ref in before.abandoned if (b := _find(objects, ref)) is not None]
    gone = _files([*grouped.before, *abandoned]) - _files(grouped.written)
    names = {last_name(file) for file in gone if is_own(file)}
    names |= {ref.digest for ref in (*grouped.gone, *before.abandoned)} - named
    for name in sorted(names):
        objects.store.put_derived(objects.replaced_key(name), b"")


def own_files(partitions: Iterable[Partition]) -> set[str]:
    """The files among those of the pieces that are the timeline's own."""
    return {file for file in {p.file for partition in partitions for p in partition.pieces} if is_own(file)}


def _files(bundles: Iterable[Bundle]) -> set[str]:
    return {p.file for b in bundles for partition in b.partitions for p in partition.pieces}


def _find(objects: TimelineObjects, ref: ManifestRef) -> Bundle | None:
    key = objects.manifest_key(ref.digest)
    try:
        return manifest.decode(objects.store.get(key), key)
    except (BadManifest, ObjectNotFound):
        return None  # nobody can read by it any more


def _swap(objects: TimelineObjects, old: bytes | None, new: bytes) -> bool:
    """True when the root was swapped, False when somebody else was first.

    When others have gone on since, it does not matter whose swap they built upon: their root says what is applied.
    """
    try:
        return objects.root.swap(old, new, lambda _: False)
    except SwapUnknown as error:
        raise RootUnknown(
            error.message,
            hint="the records are safe in the ledger; update_timeline() goes on from either state",
            key=objects.root_key,
        ) from error
