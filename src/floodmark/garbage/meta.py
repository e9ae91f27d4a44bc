"""Checkpoints of commits that never were: files of transform meta and notes that a killed run left, or one that lost.

What a block of the chain names stays, as do the files that any of these consists of, though most are never read again.
The chain is walked only when something old is there that its newest checkpoint does not speak of.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain as both
from itertools import islice

from floodmark.chain.events import ExecuteTransform
from floodmark.chain.hashes import Multihash
from floodmark.chain.walk import walk_back
from floodmark.derive import notes
from floodmark.derive.notes import BadNote, NoteGone
from floodmark.garbage.sources import ChainGarbage
from floodmark.ledger.objects import DatasetObjects
from floodmark.storage.store import ObjectInfo
from floodmark.storage.sweep import Listing, Usage
from floodmark.transform.made import list_made
from floodmark.transform.meta.manifest import KIND, Damaged, decode
from floodmark.transform.output import Follows
from floodmark.transform.refresh import whole
from floodmark.transform.views import note as views


@dataclass(frozen=True)
class Meta(ChainGarbage):
    """The checkpoints of a dataset's chain and what is noted beside them; in use is what its blocks name."""

    def listed(self) -> Iterator[ObjectInfo]:
        yield from self.objects.checkpoints()
        yield from list_made(self.objects)

    def usage(self, listing: Listing[str]) -> Usage | None:
        """None where a manifest of the chain cannot be read: what it names is not known."""
        head = self.objects.read_head()
        if not listing.old or head is None:
            return None
        there = {info.name for info in listing.objects}
        try:
            newest = _needed(self.objects, islice(_named(self.objects, head), 1), there)
            if all(info.name in newest for info in listing.old):
                return None
            needed = _needed(self.objects, _named(self.objects, head), there)
        except Damaged:
            return None
        return Usage(lambda info, _: info.name in needed)


def _named(objects: DatasetObjects, head: Multihash) -> Iterator[Multihash]:
    """The checkpoints that the blocks of a chain name, the newest first."""
    for _, _, block in walk_back(objects.get_block, head):
        event = block.event
        if isinstance(event, ExecuteTransform) and event.new_checkpoint is not None:
            yield event.new_checkpoint.physical_hash


def _needed(objects: DatasetObjects, named: Iterable[Multihash], there: set[str]) -> set[str]:
    """The names of checkpoints, and of the files that those of them consist of which are there and are meta."""
    found = {digest.text: digest for digest in named}
    files = (_files(objects, digest) for name, digest in found.items() if name in there)
    return set(both(found, both.from_iterable(files)))


def _files(objects: DatasetObjects, digest: Multihash) -> set[str]:
    try:
        facts = notes.read(objects, digest)
        view = facts.read_as(views.Note)
    except NoteGone:
        return set()  # only what is noted beside it is left
    except BadNote as error:
        raise Damaged(f"it {error.problem}") from error
    if facts.kind == KIND:
        manifest = decode(facts)
        return manifest.names | {name for _, name in manifest.retired}
    if view is not None:
        return set() if view.errors is None else {view.errors}
    if facts.kind not in (Follows.KIND, whole.Note.KIND):
        raise Damaged("it is of no kind that is known here, and may name other files")
    return set()
