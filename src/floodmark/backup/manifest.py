"""The manifest of a backup: its names and datasets, and for each dataset every object with its size and hash.

The manifest is one small object that is swapped as a whole, after all objects of the backup were stored. It has the
names, and for each dataset its head and the name of its inventory. An inventory never changes. It has the contents of
the objects of a dataset that are swapped (the catalog of computed columns, the file log), and lists all others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from floodmark.chain.ids import SHA3_256, DatasetId, Multihash
from floodmark.errors import BadBackup, BadId, ObjectNotFound
from floodmark.ledger import names
from floodmark.ledger.create import dataset_objects
from floodmark.ledger.names import NameEntry
from floodmark.ledger.objects import DatasetObjects
from floodmark.storage import document
from floodmark.storage.document import DamagedDocument, Document
from floodmark.storage.pointer import Pointer
from floodmark.storage.store import Store

MANIFEST_KEY = "backup/manifest"
_INVENTORIES = "backup/inventories"
_KIND, _INVENTORY_KIND = "backup manifest", "backup inventory"
_DIGEST_BYTES = 32

T = TypeVar("T")


@dataclass(frozen=True)
class BackedObject:
    """An object of a dataset: its key below the dataset's folder, its size, and the SHA3-256 of its bytes."""

    path: str
    size: int
    digest: bytes


@dataclass(frozen=True)
class BackedSlice:
    """The file of a slice: the offsets [start, end), and the digest and size of the file."""

    start: int
    end: int
    digest: bytes
    size: int


@dataclass(frozen=True)
class InputRead:
    """An input of a derived dataset, and the blocks of the input that its positions name."""

    dataset_id: DatasetId
    blocks: tuple[bytes, ...] = ()


@dataclass(frozen=True)
class Inventory:
    """One dataset of a backup: everything that a restore of it needs."""

    dataset_id: DatasetId
    head: Multihash
    blocks: Mapping[bytes, int]  # digest → size, oldest first
    slices: tuple[BackedSlice, ...]
    purged_before: int
    files: tuple[BackedObject, ...]  # all other objects that never change
    catalog: bytes | None
    file_log: bytes | None
    reads: tuple[InputRead, ...]
    first_output: DatasetId | None = None  # of a step: of whose commits this dataset has further results
    last_offset: int | None = None
    digest: str = field(default="", compare=False)  # the name of the stored inventory

    @property
    def objects(self) -> Iterator[BackedObject]:
        """All objects that never change. The ones that a reader needs first come last."""
        yield from (_named_by_hash("data", one.digest, one.size) for one in self.slices)
        yield from self.files
        yield from (_named_by_hash("blocks", digest, size) for digest, size in self.blocks.items())

    @property
    def size(self) -> int:
        return sum(one.size for one in self.objects)

    def folder(self, store: Store) -> DatasetObjects:
        return dataset_objects(store, self.dataset_id)


def _named_by_hash(folder: str, digest: bytes, size: int) -> BackedObject:
    return BackedObject(f"{folder}/{Multihash(SHA3_256, digest).text}", size, digest)


@dataclass(frozen=True)
class DatasetRow:
    """One dataset in the manifest: its head, and the digest of its inventory."""

    head: Multihash
    inventory: str


@dataclass(frozen=True)
class Manifest:
    """The names and datasets of a backup as of one moment."""

    source: str  # the address of the lake, for people
    time: int  # nanoseconds since 1970
    names: tuple[NameEntry, ...] = ()
    datasets: Mapping[DatasetId, DatasetRow] = field(default_factory=dict)
    dropped: tuple[NameEntry, ...] = ()  # names of the backup before, which are freed at the destination


def inventory_key(digest: str) -> str:
    return f"{_INVENTORIES}/{digest}"


def read_manifest(store: Store) -> tuple[Manifest | None, bytes | None]:
    """The manifest of a backup and its bytes; (None, None) if there is none. `BadBackup` if it is damaged."""
    content = Pointer(store, MANIFEST_KEY).read()
    return (None, None) if content is None else (_decode(content, store), content)


def require_manifest(store: Store) -> Manifest:
    """The manifest of a backup, or an error that says that there is none."""
    found, _ = read_manifest(store)
    if found is None:
        raise BadBackup(
            f"{store.url} is not a finished backup: it has no {MANIFEST_KEY}",
            hint="name the folder or bucket of a backup; if the backup was stopped, run it again",
            url=store.url,
        )
    return found


def encode_manifest(manifest: Manifest) -> bytes:
    facts = {
        "source": manifest.source,
        "time": manifest.time,
        "names": [names.encode_entry(entry) for entry in manifest.names],
        "dropped": [names.encode_entry(entry) for entry in manifest.dropped],
        "datasets": [[str(one), row.head.text, row.inventory] for one, row in manifest.datasets.items()],
    }
    return document.encode(_KIND, 1, facts)


def _decode(data: bytes, store: Store) -> Manifest:
    def parse(found: Document) -> Manifest:
        facts = found.facts
        entries, dropped = ([names.decode_entry(text) for text in facts[which]] for which in ("names", "dropped"))
        rows = [(DatasetId.parse(one), DatasetRow(Multihash.parse(head), d)) for one, head, d in facts["datasets"]]
        datasets = dict(rows)
        if unlisted := [one for one in entry_ids(entries) if one not in datasets]:
            raise ValueError(f"dataset {unlisted[0]} has a name, but is not listed")
        return Manifest(facts["source"], facts["time"], tuple(entries), datasets, tuple(dropped))

    return _checked(store, MANIFEST_KEY, data, _KIND, parse)


def load_inventory(store: Store, dataset_id: DatasetId, row: DatasetRow) -> Inventory:
    """The inventory of a dataset; `BadBackup` if it is missing, damaged, or of another dataset or head."""
    key = inventory_key(row.inventory)
    try:
        data = store.get(key)
    except ObjectNotFound as error:
        raise _bad(store, key, "is missing") from error
    found = _checked(store, key, data, _INVENTORY_KIND, lambda parsed: _inventory(parsed, row.inventory))
    if document.header_digest(data) != row.inventory or (found.dataset_id, found.head) != (dataset_id, row.head):
        raise _bad(store, key, "does not match the manifest")
    return found


def encode_inventory(inventory: Inventory) -> tuple[str, bytes]:
    """The digest that names the inventory, and its bytes."""
    slices = inventory.slices
    contents = [name for name in ("catalog", "file_log") if getattr(inventory, name) is not None]
    facts = {
        "id": str(inventory.dataset_id),
        "head": inventory.head.text,
        "purged_before": inventory.purged_before,
        "last_offset": inventory.last_offset,
        "first_output": inventory.first_output and str(inventory.first_output),
        "reads": [[str(one.dataset_id), [block.hex() for block in one.blocks]] for one in inventory.reads],
        "files": [[one.path, one.size, one.digest.hex()] for one in inventory.files],
        "contents": contents,
    }
    sections: dict[str, Any] = {
        "blocks": b"".join(inventory.blocks),
        "block_sizes": np.fromiter(inventory.blocks.values(), np.int64, len(inventory.blocks)).tobytes(),
        "slices": b"".join(one.digest for one in slices),
        "slice_numbers": np.array([(s.start, s.end, s.size) for s in slices], np.int64).tobytes(),
    }
    sections |= {name: getattr(inventory, name) for name in contents}
    data = document.encode(_INVENTORY_KIND, 1, facts, sections)
    return document.header_digest(data), data


def _inventory(found: Document, digest: str) -> Inventory:
    facts = found.facts
    sizes = found.array("block_sizes", np.int64).tolist()
    numbers = found.array("slice_numbers", np.int64).reshape(-1, 3).tolist()
    blocks, files = _digests(found, "blocks"), _digests(found, "slices")
    contents = {name: bytes(found.section(name)) for name in facts["contents"]}
    reads = [
        InputRead(DatasetId.parse(one), tuple(bytes.fromhex(block) for block in blocks))
        for one, blocks in facts["reads"]
    ]
    return Inventory(
        dataset_id=DatasetId.parse(facts["id"]),
        head=Multihash.parse(facts["head"]),
        blocks=dict(zip(blocks, sizes, strict=True)),
        slices=tuple(BackedSlice(s, e, file, n) for (s, e, n), file in zip(numbers, files, strict=True)),
        purged_before=facts["purged_before"],
        files=tuple(BackedObject(path, size, bytes.fromhex(digest)) for path, size, digest in facts["files"]),
        catalog=contents.get("catalog"),
        file_log=contents.get("file_log"),
        reads=tuple(reads),
        first_output=facts["first_output"] and DatasetId.parse(facts["first_output"]),
        last_offset=facts["last_offset"],
        digest=digest,
    )


def _digests(found: Document, section: str) -> list[bytes]:
    data = bytes(found.section(section))
    return [data[at : at + _DIGEST_BYTES] for at in range(0, len(data), _DIGEST_BYTES)]


def _checked(store: Store, key: str, data: bytes, kind: str, parse: Callable[[Document], T]) -> T:
    try:
        return parse(document.decode(data, kind, key))
    except DamagedDocument as error:
        raise _bad(store, key, f"is damaged: {error.problem}") from error
    except (KeyError, TypeError, ValueError, AttributeError, BadId) as error:
        raise _bad(store, key, f"has another format ({error})") from error


def _bad(store: Store, key: str, problem: str) -> BadBackup:
    return BadBackup(
        f"{key} of the backup {store.url} {problem}",
        hint="make the backup again: objects that are there are not copied again",
        key=key,
        url=store.url,
    )


def prune_inventories(store: Store, manifest: Manifest) -> None:
    """Delete the inventories that the manifest does not name."""
    named = {inventory_key(row.inventory) for row in manifest.datasets.values()}
    for info in list(store.list(_INVENTORIES)):
        if info.key not in named:
            store.delete(info.key)


def entry_ids(entries: Iterable[NameEntry]) -> list[DatasetId]:
    """The datasets that have or will get these names, each once."""
    return list(dict.fromkeys(one for entry in entries for one in (entry.id, entry.pending) if one is not None))
