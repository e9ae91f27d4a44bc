"""Garbage of a timeline: files and manifests that no root names, and notes about objects that are gone.

Objects that no root has named for a week are removed; readers of an older root are done by then. Copies of purged
records are removed at once.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from floodmark.errors import BadManifest
from floodmark.storage import sweep
from floodmark.storage.store import ObjectInfo, Store
from floodmark.storage.sweep import GRACE_NANOS, Garbage, GarbageSource, Listing, ObjectUsage
from floodmark.timeline import root as roots
from floodmark.timeline.commit import own_files
from floodmark.timeline.manifest import TimelineObjects, files_with_purged, is_own
from floodmark.timeline.root import Root

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TimelineFiles(GarbageSource[Root]):
    """The own files and manifests of a timeline, and the notes whose age is the time since no root names them."""

    objects: TimelineObjects
    purged_before: int = 0  # copies of records before this offset are purged

    @property
    def store(self) -> Store:
        return self.objects.store

    def listed(self) -> Iterator[ObjectInfo]:
        yield from self.objects.manifests()
        yield from self.objects.files()
        yield from self.objects.replaced()

    def root(self) -> Root | None:
        root = roots.load(self.objects)
        if root.is_damaged:
            _log.warning("no garbage of the timeline is collected: its root %r is damaged", self.objects.root_key)
            return None
        return root

    def usage(self, listing: Listing[Root]) -> ObjectUsage | None:
        """The usage; None if a manifest cannot be read: the next update rebuilds the timeline."""
        # Listed again, after the root was read: a new root may have released more objects.
        notes = {info.name: info.modified for info in self.objects.replaced()}
        try:
            named = _named(self.objects, listing.root)
        except BadManifest as error:
            _log.warning("no garbage of the timeline is collected: %s", error.message)
            return None
        things = {info.name: info.key for info in listing.objects if not self._is_note(info)}
        loose = [file for key in things.values() if key not in named and is_own(file := self.objects.file(key))]
        purged = {self.objects.key(file) for file in files_with_purged(self.objects, loose, self.purged_before)}

        def is_live(info: ObjectInfo, going: AbstractSet[str]) -> bool:
            if self._is_note(info):  # a note stays as long as its object
                return info.name in things and things[info.name] not in going
            return info.key in named

        released = {key: notes[name] for name, key in things.items() if name in notes}
        return ObjectUsage(is_live, released, purged)

    def _is_note(self, info: ObjectInfo) -> bool:
        return info.key == self.objects.replaced_key(info.name)


def find(
    objects: TimelineObjects, now_nanos: int, grace_nanos: int = GRACE_NANOS, purged_before: int = 0
) -> Garbage[Root]:
    """Objects to remove: those without a reference for the grace period, and unnamed copies of purged records."""
    return sweep.find(TimelineFiles(objects, purged_before), (now_nanos - grace_nanos) / 10**9)


def _named(objects: TimelineObjects, root: Root) -> set[str]:
    """The keys of all manifests and own files of a root. Raises `BadManifest` if a manifest cannot be read."""
    manifests = {objects.manifest_key(ref.digest) for ref in root.manifests}
    return manifests | {objects.key(file) for file in own_files(roots.partitions(objects, root))}
