"""Checkpoints of commits that never were: files of transform meta and notes that a killed run left, or one that lost.

What a block of the chain names stays, as do the files that any of these consists of, though most are never read again.
The chain is walked only when something old is there that its newest checkpoint does not speak of.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import chain as both

from floodmark.chain.events import ExecuteTransform
from floodmark.chain.hashes import Multihash
from floodmark.chain.walk import walk_back
from floodmark.garbage.found import last_name, remove, young
from floodmark.ledger.objects import DatasetObjects
from floodmark.storage.errors import ObjectNotFound
from floodmark.storage.store import ObjectInfo
from floodmark.transform.made import list_made
from floodmark.transform.meta.entry_file import Damaged
from floodmark.transform.meta.manifest import decode, is_manifest, is_note


def find(objects: DatasetObjects, oldest: float) -> tuple[ObjectInfo, ...]:
    """Those that can go now; none where a manifest of the chain cannot be read, which names nobody knows what."""
    listed = [*objects.checkpoints(), *list_made(objects)]  # before the head is read: it names what was listed
    old = [info for info in listed if not young(info, oldest)]
    head = objects.read_head()
    if not old or head is None:
        return ()
    there = {last_name(info) for info in listed}
    try:
        newest = _needed(objects, _newest(objects, head), there)
        if all(last_name(info) in newest for info in old):
            return ()
        needed = _needed(objects, _all(objects, head), there)
    except Damaged:
        return ()
    return tuple(info for info in old if last_name(info) not in needed)


def collect(objects: DatasetObjects, oldest: float) -> tuple[ObjectInfo, ...]:
    """Remove them while nobody commits: a run that was lost may be made again, and come to the same."""
    if not find(objects, oldest):
        return ()
    with objects.turn():
        return remove(objects.store, find(objects, oldest))


def _newest(objects: DatasetObjects, head: Multihash) -> Iterable[Multihash]:
    for _, _, block in walk_back(objects.get_block, head):
        event = block.event
        if isinstance(event, ExecuteTransform):
            newest = event.prev_checkpoint if event.new_checkpoint is None else event.new_checkpoint.physical_hash
            return [] if newest is None else [newest]
    return []


def _all(objects: DatasetObjects, head: Multihash) -> Iterable[Multihash]:
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
        data = objects.store.get(objects.checkpoint_key(digest))
    except ObjectNotFound:
        return set()  # only what is noted beside it is left
    if Multihash.sha3_256(data) != digest:
        raise Damaged("its bytes do not hash to its name")
    if is_manifest(data):
        manifest = decode(data)
        return manifest.names | {name for _, name in manifest.retired}
    if not is_note(data):
        raise Damaged("it is of no kind that is known here, and may name other files")
    errors = json.loads(data).get("errors")  # a view's note names the file of the rows that its functions failed for
    return set() if errors is None else {errors}
