"""Restore datasets from a backup, into an empty lake or over an existing one.

All objects are copied and compared with their hashes first. Then each dataset is put in place by one swap of its head.
A restore that was stopped left each dataset old or new; the same restore again finishes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from floodmark.backup.copying import Copy, copy_all, find_missing, list_datasets
from floodmark.backup.install import (
    Change,
    Direction,
    entries_to_free,
    install_datasets,
    install_names,
)
from floodmark.backup.inventory import Required
from floodmark.backup.manifest import Inventory, Manifest, entry_ids, load_inventory, require_manifest
from floodmark.backup.snapshot import in_threads
from floodmark.chain.events import AddData, ExecuteTransform
from floodmark.chain.ids import DatasetId, parse_head
from floodmark.chain.walk import walk_back
from floodmark.columns import catalog as catalogs
from floodmark.columns.catalog import ColumnObjects
from floodmark.errors import BadBackup, ChainError, NewerData, ObjectNotFound, UnknownDataset, close_matches
from floodmark.ledger import names
from floodmark.ledger.block_attributes import erasure_of
from floodmark.ledger.names import NameEntry
from floodmark.ledger.objects import DatasetObjects
from floodmark.ledger.readers import find_all_readers
from floodmark.storage.pointer import Pointer
from floodmark.storage.store import Store


@dataclass(frozen=True)
class RestoredDataset:
    """What a restore does to one dataset.

    `direction` is "new" if the lake does not have it, "same" if it has the same blocks, "forward" if the backup has
    more, and "back" if blocks of the lake go. The records and the erasures of keys in these are counted; None: some of
    them cannot be read.
    """

    name: str
    id: DatasetId
    direction: Direction
    records: int
    lost_records: int | None = 0
    lost_erasures: int | None = 0
    replaces_columns: bool = False
    replaces_dataset: DatasetId | None = None  # the dataset that has the name in the lake

    @property
    def replaces(self) -> bool:
        """Whether something that the lake has, and the backup does not have, goes."""
        return self.direction == "back" or self.replaces_columns or self.replaces_dataset is not None


@dataclass(frozen=True)
class RestorePlan:
    """What a restore would do: the datasets, those that stay, and the readers that must process changes."""

    backup: str
    time: int
    datasets: tuple[RestoredDataset, ...]
    objects: int
    bytes: int
    unaffected: tuple[str, ...] = ()  # datasets of the lake that are not restored
    readers: tuple[str, ...] = ()  # of these: those that are computed from restored datasets

    @property
    def replaces(self) -> tuple[RestoredDataset, ...]:
        """The datasets of the lake from which something goes that the backup does not have."""
        return tuple(one for one in self.datasets if one.replaces)


@dataclass(frozen=True)
class _Chosen:
    """The part of a backup to restore."""

    manifest: Manifest
    entries: tuple[NameEntry, ...]
    inventories: Mapping[DatasetId, Inventory]


def plan_restore(lake: Store, backup: Store, wanted: Sequence[str]) -> RestorePlan:
    """What `restore_backup` would do. `BadBackup` if the backup is incomplete."""
    return _plan(lake, backup, _choose(backup, wanted))[0]


def restore_backup(lake: Store, backup: Store, wanted: Sequence[str], *, replace_newer: bool = False) -> RestorePlan:
    """Restore a backup, or some of its datasets. `NewerData` if it would replace data that only the lake has."""
    chosen = _choose(backup, wanted)
    plan, changes = _plan(lake, backup, chosen)
    if plan.replaces and not replace_newer:
        raise _refusal(plan)
    for inventory in chosen.inventories.values():
        folder = inventory.folder(lake).folder
        tasks = [Copy(folder, Required(one.path, one.size, one.digest)) for one in inventory.objects]
        try:
            for _ in copy_all(backup, lake, tasks):
                pass
        except ObjectNotFound as error:
            raise _incomplete(backup, error.key) from error
    freed = entries_to_free(names.entries(lake, lambda _: None), chosen.entries, set(chosen.inventories))
    install_datasets(lake, changes)
    install_names(lake, chosen.entries, freed)
    return plan


def _refusal(plan: RestorePlan) -> NewerData:
    what = ", ".join(describe_loss(one) for one in plan.replaces)
    return NewerData(
        f"nothing was restored, because the lake has data that the backup {plan.backup} does not have: {what}",
        hint="plan_restore() and --dry-run show more; to replace it, give replace=True or --yes",
        datasets=[one.name for one in plan.replaces],
    )


def describe_loss(one: RestoredDataset) -> str:
    """What a restore of a dataset removes from the lake."""
    if one.replaces_dataset is not None:
        return f"{one.name} is another dataset there ({one.replaces_dataset})"
    if one.direction != "back":
        return f"computed columns of {one.name}"
    if one.lost_records is None:
        return f"{one.name}, whose newest blocks cannot be read"
    return f"{one.lost_records:,} newer record{'' if one.lost_records == 1 else 's'} of {one.name}"


def _choose(backup: Store, wanted: Sequence[str]) -> _Chosen:
    manifest = require_manifest(backup)
    by_name = {entry.name.lower(): entry for entry in manifest.names}
    for name in wanted:
        if name.lower() not in by_name:
            near = close_matches(name, [entry.name for entry in manifest.names])
            has = ", ".join(entry.name for entry in manifest.names) or "no datasets"
            hint = f"did you mean {near[0]!r}?" if near else f"it has {has}"
            raise UnknownDataset(f"the backup {backup.url} has no dataset {name!r}", hint=hint, name=name)
    entries = [by_name[name] for name in dict.fromkeys(map(str.lower, wanted))] if wanted else manifest.names
    ids = entry_ids(entries)
    inventories = in_threads(lambda one: load_inventory(backup, one, manifest.datasets[one]), ids)
    present = list_datasets(backup)
    for inventory in inventories:
        if (missing := find_missing(backup, inventory, present)) is not None:
            raise _incomplete(backup, missing)
    return _Chosen(manifest, tuple(entries), dict(zip(ids, inventories, strict=True)))


def _incomplete(backup: Store, key: str) -> BadBackup:
    return BadBackup(
        f"{key} of the backup {backup.url} is missing or incomplete, so nothing was replaced",
        hint="make the backup again, if the lake still has it; or restore other datasets by name",
        key=key,
        url=backup.url,
    )


def _plan(lake: Store, backup: Store, chosen: _Chosen) -> tuple[RestorePlan, list[Change]]:
    present = {entry.name.lower(): entry for entry in names.entries(lake, lambda _: None)}
    ids = list(chosen.inventories)
    changes = [Change(one, one.folder(lake).head.read()) for one in chosen.inventories.values()]
    compared = dict(zip(ids, in_threads(lambda change: _compare(lake, change), changes), strict=True))
    datasets = []
    for entry in chosen.entries:
        now = present.get(entry.name.lower())
        other = None if now is None or now.id in (entry.id, *entry.previous) else now.id
        datasets.append(replace(compared[entry.id], name=entry.name, replaces_dataset=other))
        if entry.pending is not None:
            datasets.append(replace(compared[entry.pending], name=entry.name))
    restored = {entry.name.lower() for entry in chosen.entries}
    unaffected = [e for e in present.values() if e.name.lower() not in restored and e.id not in chosen.inventories]
    moved = {one.id for one in datasets if one.direction in ("back", "forward")}
    reading = find_all_readers(lake, moved) if moved else ()
    plan = RestorePlan(
        backup=backup.url,
        time=chosen.manifest.time,
        datasets=tuple(datasets),
        objects=sum(1 for one in chosen.inventories.values() for _ in one.objects),
        bytes=sum(one.size for one in chosen.inventories.values()),
        unaffected=tuple(entry.name for entry in unaffected),
        readers=tuple(entry.name for entry in unaffected if entry.name in reading),
    )
    return plan, changes


def _compare(lake: Store, change: Change) -> RestoredDataset:
    """How the lake's chain and columns of a dataset differ from those of the backup."""
    inventory = change.inventory
    objects = inventory.folder(lake)
    records = 0 if inventory.last_offset is None else inventory.last_offset + 1
    lost, erasures = _count_lost(objects, change) if change.direction == "back" else (0, 0)
    columns = Pointer(lake, ColumnObjects(objects).catalog_key).read()
    replaced = columns is not None and not catalogs.descends(inventory.catalog, columns)
    return RestoredDataset("", inventory.dataset_id, change.direction, records, lost, erasures, replaced)


def _count_lost(objects: DatasetObjects, change: Change) -> tuple[int | None, int | None]:
    """The records and erasures in the blocks that only the lake has; None if they cannot be read."""
    records = erasures = 0
    try:
        assert change.before is not None
        for block_hash, _, block in walk_back(objects.get_block, parse_head(change.before)):
            if block_hash.digest in change.inventory.blocks:
                break
            event = block.event
            if isinstance(event, AddData | ExecuteTransform) and event.new_data is not None:
                records += event.new_data.rows
            erasures += erasure_of(event) is not None
    except (ChainError, ObjectNotFound):
        return None, None
    return records, erasures
