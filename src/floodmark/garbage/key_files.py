"""Files of a key index that others have replaced: commits remove them in the end, but there may be no next one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

from floodmark.garbage.found import last_name, young
from floodmark.ledger.errors import BadIndex
from floodmark.ledger.keys.manifest import Manifest, decode, manifest_name
from floodmark.ledger.objects import DatasetObjects
from floodmark.ledger.snapshot import Snapshot
from floodmark.storage.errors import ObjectNotFound
from floodmark.storage.store import ObjectInfo


@dataclass(frozen=True)
class Shelf:
    """What lies in the folder of a key index: manifests of blocks on the chain, oldest first, other ones, files."""

    manifests: tuple[ObjectInfo, ...]
    strays: tuple[ObjectInfo, ...]
    files: tuple[ObjectInfo, ...]

    def staying(self, oldest: float) -> tuple[ObjectInfo, ...]:
        """The newest manifest, from which the index goes on, and those that were in use since a moment."""
        after = [*(newer for _, newer in pairwise(self.manifests)), None]
        return (
            *(m for m, newer in zip(self.manifests, after, strict=True) if newer is None or young(newer, oldest)),
            *(m for m in self.strays if young(m, oldest)),
        )


def find(snapshot: Snapshot, oldest: float) -> tuple[ObjectInfo, ...]:
    """Manifests and files that can go now; none where the manifests that stay cannot all be read."""
    objects = snapshot.objects
    files = tuple(objects.key_files())
    listed = sorted(objects.key_manifests(), key=last_name)
    if not files and not listed:
        return ()
    columns = [snapshot.all_slices.column(name).to_pylist() for name in ("sequence_number", "block")]
    chain = {manifest_name(at) for at in zip(*columns, strict=True)}
    on_chain = tuple(m for m in listed if last_name(m) in chain)
    shelf = Shelf(on_chain, tuple(m for m in listed if last_name(m) not in chain), files)
    if not on_chain:
        return ()  # whoever needs the index next makes it anew, and clears up
    try:
        return plan(shelf, _read(objects, shelf.staying(oldest)), oldest)
    except (BadIndex, ObjectNotFound):
        return ()  # damaged, or a commit went on meanwhile


def plan(shelf: Shelf, staying: Mapping[str, Manifest], oldest: float) -> tuple[ObjectInfo, ...]:
    """What can go, given the manifests that stay, by their keys."""
    named = {name for manifest in staying.values() for name in manifest.names}
    manifests = [m for m in (*shelf.manifests, *shelf.strays) if m.key not in staying]
    files = [f for f in shelf.files if last_name(f) not in named]
    return tuple(info for info in (*manifests, *files) if not young(info, oldest))


def _read(objects: DatasetObjects, infos: Iterable[ObjectInfo]) -> dict[str, Manifest]:
    return {info.key: decode(last_name(info), objects.store.get(info.key)) for info in infos}
