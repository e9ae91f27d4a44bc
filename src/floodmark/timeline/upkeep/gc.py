"""The timeline's garbage: files and manifests that no root names, and notes of those that are gone.

What no root has named for a week goes; readers of an older root are done by then. Copies of purged records go at once.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from floodmark.storage import sweep
from floodmark.storage.store import ObjectInfo, Store
from floodmark.storage.sweep import GRACE_NANOS, Garbage, GarbageSource, Listing, Usage
from floodmark.timeline.errors import BadManifest
from floodmark.timeline.stored import root as roots
from floodmark.timeline.stored.objects import TimelineObjects, is_own
from floodmark.timeline.stored.publish import own_files
from floodmark.timeline.stored.root import Root
from floodmark.timeline.upkeep.purged_files import files_with_purged

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TimelineFiles(GarbageSource[Root]):
    """The own files and manifests of a timeline, and the notes that say since when no root names one of them."""

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

    def usage(self, listing: Listing[Root]) -> Usage | None:
        """None where a manifest cannot be read, until the next update makes the timeline anew."""
        notes = {info.name: info.modified for info in self.objects.replaced()}  # again: the root let go of more
        try:
            named = _named(self.objects, listing.root)
        except BadManifest as error:
            _log.warning("no garbage of the timeline is collected: %s", error.message)
            return None
        things = {info.name: info.key for info in listing.objects if not self._is_note(info)}
        loose = [file for key in things.values() if key not in named and is_own(file := self.objects.file(key))]
        purged = {self.objects.key(file) for file in files_with_purged(self.objects, loose, self.purged_before)}

        def is_live(info: ObjectInfo, going: AbstractSet[str]) -> bool:
            if self._is_note(info):  # it stays as long as what it is about
                return info.name in things and things[info.name] not in going
            return info.key in named

        released = {key: notes[name] for name, key in things.items() if name in notes}
        return Usage(is_live, released, purged)

    def _is_note(self, info: ObjectInfo) -> bool:
        return info.key == self.objects.replaced_key(info.name)


def find(
    objects: TimelineObjects, now_nanos: int, grace_nanos: int = GRACE_NANOS, purged_before: int = 0
) -> Garbage[Root]:
    """What can go now: what no root has named for so long, and unnamed copies of records before `purged_before`."""
    return sweep.find(TimelineFiles(objects, purged_before), (now_nanos - grace_nanos) / 10**9)


def _named(objects: TimelineObjects, root: Root) -> set[str]:
    """The keys of all manifests and own files of a root; `BadManifest` when a manifest cannot be read."""
    manifests = {objects.manifest_key(ref.digest) for ref in root.manifests}
    return manifests | {objects.key(file) for file in own_files(roots.partitions(objects, root))}
