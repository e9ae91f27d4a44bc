"""Files of a key index that others have replaced: commits remove them in the end, but there may be no next one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from floodmark.garbage.sources import DatasetGarbage
from floodmark.ledger.errors import BadIndex
from floodmark.ledger.keys.manifest import decode, manifest_name
from floodmark.ledger.snapshot import Snapshot
from floodmark.storage.errors import ObjectNotFound
from floodmark.storage.store import ObjectInfo
from floodmark.storage.sweep import Listing, Usage


@dataclass(frozen=True)
class KeyFiles(DatasetGarbage):
    """The manifests and files of a dataset's key index.

    In use are the newest manifest of a block on the chain, from which the index goes on, and its files. The others were
    released when the next manifest was written.
    """

    snapshot: Callable[[], Snapshot]

    def listed(self) -> Iterator[ObjectInfo]:
        yield from self.objects.key_files()
        yield from self.objects.key_manifests()

    def usage(self, listing: Listing[str]) -> Usage | None:
        """None where a manifest that is or was lately in use cannot be read."""
        if not listing.old:
            return None
        slices = self.snapshot().all_slices
        chain = {
            self.objects.key_manifest_key(manifest_name(at))
            for at in zip(*(slices.column(name).to_pylist() for name in ("sequence_number", "block")), strict=True)
        }
        on_chain = sorted((info for info in listing.objects if info.key in chain), key=lambda info: info.name)
        if not on_chain:
            return None  # the next use of the index makes it anew, and clears up
        folder = self.objects.key_manifest_key("")
        released = {info.key: info.modified for info in listing.objects if info.key.startswith(folder)}
        released |= {older.key: newer.modified for older, newer in pairwise(on_chain)}
        staying = {key for key, since in released.items() if since >= listing.oldest} | {on_chain[-1].key}
        try:
            named = {name for key in staying for name in decode(key.removeprefix(folder), self.store.get(key)).names}
        except (BadIndex, ObjectNotFound):
            return None  # damaged, or a commit went on meanwhile
        live = staying | {self.objects.key_file_key(name) for name in named}
        return Usage(lambda info, _: info.key in live, released)
