"""Commit a change of a timeline: write the manifests of the changed partitions, then swap the root."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace

from floodmark.errors import BadManifest, CommitUnknown, LostRace, ObjectNotFound, SwapUnknown
from floodmark.timeline import manifest
from floodmark.timeline.bundles import ManifestRef, RegroupedBundles, regroup
from floodmark.timeline.manifest import TimelineObjects, is_own, last_name
from floodmark.timeline.pieces import Bundle, Partition
from floodmark.timeline.root import LastUpdate, Root, encode, load_bundle

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RootChange:
    """The difference between a new root and the previous one."""

    applied: int
    block: str
    settings_digest: str
    partitions: tuple[Partition, ...]  # new and changed ones
    last: LastUpdate  # its bytes_written counts only files
    next_run: int
    removed: tuple[int, ...] = ()  # the starts of removed partitions
    purged_before: int = 0  # records before this offset are no longer in it


def publish(objects: TimelineObjects, before: Root, change: RootChange) -> Root | None:
    """Replace the root `before` with the changed one; None if another writer swapped the root first.

    All files that the change names must be stored already. Objects that the root no longer names stay in the store,
    each with a note whose age is the time since then.
    """
    _refuse_purged(before, change)
    changes = dict.fromkeys(change.removed) | {p.start: p for p in change.partitions}
    grouped = regroup(before.manifests, changes, lambda ref: load_bundle(objects, before, ref))
    encoded = [manifest.encode(b) for b in grouped.written]
    written = [ref_of(b, data) for b, data in zip(grouped.written, encoded, strict=True)]
    for ref, data in zip(written, encoded, strict=True):
        objects.put(objects.manifest_key(ref.digest), data)
    refs = tuple(sorted([*grouped.kept, *written], key=lambda m: m.first))
    after, data = _next_root(before, change, refs, sum(m.size for m in written))
    _note_replaced(objects, before, grouped, {m.digest for m in refs})
    if not _swap(objects, before.stored, data):
        return None
    for ref in grouped.gone:
        before.bundles.drop(ref.digest)
    for ref, known in zip(written, grouped.written, strict=True):
        before.bundles.put(ref.digest, known, ref.pieces)
    return replace(after, stored=data, bundles=before.bundles)


def _refuse_purged(before: Root, change: RootChange) -> None:
    purged = max(before.purged_before, change.purged_before)
    if purged == 0:
        return
    oldest = min((p.offset_min for partition in change.partitions for p in partition.pieces), default=purged)
    if oldest < purged:
        raise LostRace(
            f"the timeline change contains records from offset {oldest} on, but records before {purged} were purged",
            hint="nothing was changed; try again",
            purged_before=before.purged_before,
        )


def ref_of(written: Bundle, data: bytes) -> ManifestRef:
    """The reference to a bundle whose manifest has these bytes."""
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


def _next_root(before: Root, change: RootChange, refs: tuple[ManifestRef, ...], manifests: int) -> tuple[Root, bytes]:
    """The next root and its bytes. Its `bytes_written` includes the size of the root itself."""
    size = 0
    for _ in range(2):  # the second round knows the root's own size
        written = change.last.bytes_written + manifests + size
        after = Root(
            version=before.version + 1,
            applied=change.applied,
            block=change.block,
            settings_digest=change.settings_digest,
            manifests=refs,
            next_run=change.next_run,
            purged_before=max(before.purged_before, change.purged_before),
            erasures=before.erasures,
            bytes_in=before.bytes_in + change.last.bytes_in,
            bytes_written=before.bytes_written + written,
            last=replace(change.last, bytes_written=written),
        )
        data = encode(after)
        size = len(data)
    return after, data


def _note_replaced(objects: TimelineObjects, before: Root, grouped: RegroupedBundles, named: set[str]) -> None:
    """Write a note for each manifest and own file that the root may no longer name.

    Current readers may need them for a while. A file that another manifest still names gets its note too early. This is
    harmless: files that are named are never removed, and the note is renewed when the last reference goes.
    """
    abandoned = [b for ref in before.abandoned if (b := _load_or_none(objects, ref)) is not None]
    gone = _files([*grouped.before, *abandoned]) - _files(grouped.written)
    names = {last_name(file) for file in gone if is_own(file)}
    names |= {ref.digest for ref in (*grouped.gone, *before.abandoned)} - named
    for name in sorted(names):
        objects.store.put_derived(objects.replaced_key(name), b"")


def own_files(partitions: Iterable[Partition]) -> set[str]:
    """The timeline's own files among the files of these partitions."""
    return {file for file in {p.file for partition in partitions for p in partition.pieces} if is_own(file)}


def _files(bundles: Iterable[Bundle]) -> set[str]:
    return {p.file for b in bundles for partition in b.partitions for p in partition.pieces}


def _load_or_none(objects: TimelineObjects, ref: ManifestRef) -> Bundle | None:
    key = objects.manifest_key(ref.digest)
    try:
        return manifest.decode(objects.store.get(key), key)
    except (BadManifest, ObjectNotFound):
        return None  # no reader can use it any more


def _swap(objects: TimelineObjects, old: bytes | None, new: bytes) -> bool:
    """True if the root was swapped, False if another writer swapped it first.

    If the answer was lost and the store has a third root by then, this counts as not swapped: the caller retries from
    that root, which records what is applied.
    """
    try:
        return objects.root.swap(old, new, lambda _: False)
    except SwapUnknown as error:
        raise CommitUnknown(
            error.message,
            hint="the records are safe in the ledger; update_timeline() continues from either state",
            key=objects.root_key,
        ) from error
