"""Verify that a backup is complete: its manifest, every object that it lists, and what it put in place.

Blocks, slices, checkpoints and computed columns are checked byte by byte with their datasets, all other objects here.
"""

from __future__ import annotations

from collections.abc import Iterator

from floodmark.backup.copying import digest_of, list_datasets
from floodmark.backup.manifest import MANIFEST_KEY, Inventory, Manifest, load_inventory, read_manifest
from floodmark.columns.catalog import ColumnObjects
from floodmark.errors import BadBackup, ObjectNotFound
from floodmark.ledger import names
from floodmark.ledger.verify import VerifyProblem
from floodmark.sources.file_log import file_log_pointer
from floodmark.storage.store import Store

_ONLY_HERE = ("info/",)


def find_backup_problems(store: Store) -> list[VerifyProblem]:
    """What is wrong with a store as a backup; nothing if it is not one."""
    try:
        manifest, _ = read_manifest(store)
        return [] if manifest is None else list(_problems(store, manifest))
    except BadBackup as error:
        return [VerifyProblem("backup", MANIFEST_KEY, error.message)]


def _problems(store: Store, manifest: Manifest) -> Iterator[VerifyProblem]:
    present = list_datasets(store)
    for dataset_id, row in manifest.datasets.items():
        try:
            inventory = load_inventory(store, dataset_id, row)
        except BadBackup as error:
            yield VerifyProblem("backup", row.inventory, error.message)
            continue
        folder = inventory.folder(store).folder
        there = present.get(folder, {})
        for one in inventory.objects:
            key = f"{folder}/{one.path}"
            info = there.get(key)
            if info is None:
                yield VerifyProblem("backup", key, "the object is missing")
            elif info.size != one.size:
                yield VerifyProblem("backup", key, f"the object has {info.size} bytes, should have {one.size}")
            elif one.path.startswith(_ONLY_HERE) and _digest(store, key) != one.digest:
                yield VerifyProblem("backup", key, "the content of the object does not match its hash")
        yield from _differences(store, inventory)
    for entry in manifest.names:
        if names.read_entry(store, entry.name) != entry:
            yield _differs(f"names/{entry.name.lower()}")


def _differences(store: Store, inventory: Inventory) -> Iterator[VerifyProblem]:
    objects = inventory.folder(store)
    if objects.head.read() != inventory.head.text.encode():
        yield _differs(objects.head_key)
    catalog = ColumnObjects(objects).catalog
    if inventory.catalog is not None and catalog.read() != inventory.catalog:
        yield _differs(catalog.key)
    log = file_log_pointer(objects)
    if inventory.file_log is not None and log.read() != inventory.file_log:
        yield _differs(log.key)


def _differs(key: str) -> VerifyProblem:
    return VerifyProblem(
        "backup",
        key,
        "it is not as in the backup: the last backup was stopped, or something was written here. To finish, run it "
        f"again; to keep what was written, use the folder as a lake and delete {MANIFEST_KEY}",
    )


def _digest(store: Store, key: str) -> bytes | None:
    try:
        return digest_of(store, key)
    except ObjectNotFound:
        return None
