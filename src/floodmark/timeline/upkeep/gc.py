"""Collecting the timeline's garbage: files and manifests that no root has named for a while.

What is young stays: an update that is running now names its files only when it swaps the root. So does what was named
until lately: somebody may still read it. Copies of purged records go at once.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from floodmark.storage.store import ObjectInfo
from floodmark.timeline.errors import BadManifest
from floodmark.timeline.stored import root as roots
from floodmark.timeline.stored.objects import TimelineObjects, last_name
from floodmark.timeline.stored.publish import own_files
from floodmark.timeline.stored.root import Root
from floodmark.timeline.upkeep.purged_files import files_with_purged

GRACE_NANOS = 7 * 86_400 * 10**9
"""How long what no root names stays."""

_AT_ONCE = 256
"""So many deletions between two looks at the root."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Garbage:
    """What is of no use as of a root: files, manifests, and notes of those that are gone."""

    root: Root
    objects: tuple[ObjectInfo, ...] = ()

    @property
    def keys(self) -> list[str]:
        return [o.key for o in self.objects]

    @property
    def bytes(self) -> int:
        return sum(o.size for o in self.objects)


def find(objects: TimelineObjects, now_nanos: int, grace_nanos: int = GRACE_NANOS, purged_before: int = 0) -> Garbage:
    """What can go now: what no root has named for so long, and unnamed copies of records before `purged_before`.

    A root that cannot be read names nobody knows what, so nothing goes until the next update has made it anew.
    """
    oldest = (now_nanos - grace_nanos) / 10**9
    manifests, files = list(objects.manifests()), list(objects.files())
    root = roots.load(objects)  # after the listing: what was published before it is named
    notes = {last_name(info.key): info for info in objects.replaced()}  # after the root: what it let go of has its note
    try:
        named = named_keys(objects, root)
    except BadManifest as error:
        _log.warning("no garbage of the timeline is collected: %s", error.message)
        return Garbage(root)
    loose = [info for info in files if info.key not in named]
    purged = set(files_with_purged(objects, [objects.file(info.key) for info in loose], purged_before))
    gone = [
        *(info for info in manifests if info.key not in named and _left(info, notes) < oldest),
        *(info for info in loose if objects.file(info.key) in purged or _left(info, notes) < oldest),
    ]
    staying = {last_name(info.key) for info in (*manifests, *files)} - {last_name(info.key) for info in gone}
    idle = [note for name, note in notes.items() if name not in staying and note.modified < oldest]
    return Garbage(root, (*gone, *idle))


def named_keys(objects: TimelineObjects, root: Root) -> set[str]:
    """The keys of all manifests and own files of a root; `BadManifest` when it cannot be read as a whole."""
    if root.is_damaged:
        raise BadManifest(f"the timeline's root {objects.root_key!r} is damaged", key=objects.root_key)
    manifests = {objects.manifest_key(ref.digest) for ref in root.manifests}
    return manifests | {objects.key(file) for file in own_files(roots.partitions(objects, root))}


def _left(info: ObjectInfo, notes: Mapping[str, ObjectInfo]) -> float:
    """Since when an object is not needed at the latest: it was put, or a root let go of it, whichever came later."""
    note = notes.get(last_name(info.key))
    return info.modified if note is None else max(info.modified, note.modified)


def remove(objects: TimelineObjects, garbage: Garbage) -> Garbage:
    """Delete garbage; what was deleted. It stops when the root changes: a new one may need what the old did not."""
    removed: list[ObjectInfo] = []
    for some in _portions(garbage.objects):
        if roots.load(objects).stored != garbage.root.stored:
            break
        for info in some:
            if objects.store.stat(info.key) == info:  # a put that finds its object there makes it young again
                objects.store.delete(info.key)
                removed.append(info)
    return replace(garbage, objects=tuple(removed))


def _portions(items: Sequence[ObjectInfo]) -> Iterator[Sequence[ObjectInfo]]:
    return (items[at : at + _AT_ONCE] for at in range(0, len(items), _AT_ONCE))
