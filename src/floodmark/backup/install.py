"""Put datasets of a backup in place, after their objects were copied: heads, catalogs, file logs and names.

A dataset is as before, or as in the backup: its head decides, and it is swapped. If the dataset goes back, what belongs
to the head goes back before it, and what was derived from the lost records is deleted, because other records will have
their offsets. If it goes forward, what belongs to the head follows it. So a dataset is never behind what belongs to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from floodmark.backup.manifest import Inventory
from floodmark.backup.snapshot import read_order
from floodmark.chain.ids import DatasetId, parse_head
from floodmark.columns import catalog as catalogs
from floodmark.columns.catalog import Catalog, ColumnObjects
from floodmark.errors import BadId, CommitConflict
from floodmark.ledger import names
from floodmark.ledger.names import NameEntry
from floodmark.ledger.objects import DatasetObjects
from floodmark.ledger.witness import Witness, write_witness
from floodmark.sources.file_log import file_log_pointer
from floodmark.storage.pointer import Pointer
from floodmark.storage.store import Store

Direction = Literal["new", "same", "forward", "back"]

_DERIVED = ("info/keys", "info/fold", "info/timeline", "info/transform/chunks", "columns/checkpoints")
"""Derived files that name records by their offsets. They are rebuilt, or computed again."""


@dataclass(frozen=True)
class Change:
    """A dataset to put in place, and the content that its head has now."""

    inventory: Inventory
    before: bytes | None

    @property
    def after(self) -> bytes:
        return self.inventory.head.text.encode()

    @property
    def direction(self) -> Direction:
        """Back: the present chain has blocks that the backup does not have, or its head is damaged."""
        if self.before is None:
            return "new"
        if self.before == self.after:
            return "same"
        try:
            return "forward" if parse_head(self.before).digest in self.inventory.blocks else "back"
        except BadId:
            return "back"


def install_datasets(store: Store, changes: Sequence[Change]) -> None:
    """Put datasets in place: those that go back before their inputs, then all others after their inputs."""
    by_id = {change.inventory.dataset_id: change for change in changes}
    order = [one for level in read_order({one: change.inventory for one, change in by_id.items()}) for one in level]
    back = [by_id[one] for one in order if by_id[one].direction == "back"]
    others = [by_id[one] for one in reversed(order) if by_id[one].direction != "back"]
    for change in (*back, *others):
        _install(store, change)


def _install(store: Store, change: Change) -> None:
    inventory = change.inventory
    objects = inventory.folder(store)
    with objects.turn():
        if objects.head.read() != change.before:
            raise _moved(objects)
        if change.direction == "back":
            _delete_derived(objects)
            _put_side_objects(objects, inventory)
        if change.direction != "same":
            if not objects.head.swap(change.before, change.after, lambda _: None):
                raise _moved(objects)
        else:
            objects.head.make_durable()
        if change.direction != "back":
            _put_side_objects(objects, inventory)
    write_witness(objects, Witness(len(inventory.blocks) - 1, inventory.head))


def _moved(objects: DatasetObjects) -> CommitConflict:
    return CommitConflict(
        f"{objects.folder} in {objects.store.url} was changed meanwhile, so it was not replaced",
        hint="stop its writers, then run the command again: it finishes what is left",
    )


def _delete_derived(objects: DatasetObjects) -> None:
    for folder in _DERIVED:
        for info in list(objects.store.list(f"{objects.folder}/{folder}")):
            objects.store.delete(info.key)


def _put_side_objects(objects: DatasetObjects, inventory: Inventory) -> None:
    """Swap the file log and the catalog. Without a catalog in the backup, the dataset has no computed columns."""
    log = file_log_pointer(objects)
    if inventory.file_log is not None or log.read() is not None:
        _put(log, inventory.file_log or b"")  # an empty log is read from the chain again
    columns = ColumnObjects(objects)
    if inventory.catalog is not None:
        _put(columns.catalog, inventory.catalog)
    elif columns.catalog.read() is not None:
        catalogs.change(columns, _without_columns)


def _without_columns(catalog: Catalog) -> Catalog:
    return replace(catalog, columns=())


def _put(pointer: Pointer, content: bytes) -> None:
    pointer.change(lambda _: content, lambda found: found == content)


def install_names(store: Store, entries: Iterable[NameEntry], freed: Iterable[NameEntry]) -> None:
    """Let names refer to datasets, whatever they referred to before, then free others if nothing changed them."""
    for entry in entries:
        names.put_entry(store, entry)
    for entry in freed:
        names.swap(store, entry, None)


def entries_to_free(present: Iterable[NameEntry], entries: Sequence[NameEntry], ids: set[DatasetId]) -> list[NameEntry]:
    """The names that datasets have now, but that they do not have in the backup."""
    kept = {entry.name.lower() for entry in entries}
    return [entry for entry in present if entry.id in ids and entry.name.lower() not in kept]
