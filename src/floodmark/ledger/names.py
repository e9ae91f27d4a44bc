"""Dataset names: one path segment each, the same whether in capitals or not, and where each name points.

A name is a small file that is only ever swapped, never deleted: one that stands for nothing any more says so. Deletes
are not durable, so after a crash the name of a dropped dataset could come back without its dataset.
"""

from __future__ import annotations

import difflib
import json
import logging
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from floodmark.chain.errors import BadDatasetId
from floodmark.chain.ids import DatasetId
from floodmark.ledger.errors import BadName, CommitConflict, DatasetExists, LedgerError, UnknownDataset
from floodmark.storage.pointer import Pointer
from floodmark.storage.retry import MAX_RACES, races
from floodmark.storage.store import Store

LONGEST = 100
"""How many characters a name may have."""

_NAME = re.compile(rf"[A-Za-z0-9_][A-Za-z0-9_.-]{{0,{LONGEST - 1}}}")
_FOLDER = "names"

_log = logging.getLogger(__name__)


class DamagedName(LedgerError):
    """The file behind a dataset name does not say which dataset it is."""


@dataclass(frozen=True)
class Entry:
    """A name as the user spelled it, and the dataset it stands for.

    Of a view also the dataset that is filled to replace it, and those that it has replaced.
    """

    name: str
    id: DatasetId
    pending: DatasetId | None = None
    previous: tuple[DatasetId, ...] = ()
    rows_of: str | None = None  # the view that had these rows before it was replaced

    def is_place_of(self, dataset_id: DatasetId) -> bool:
        """Whether a dataset has this name, is to have it, or had it before it was replaced."""
        return self.rows_of is None and dataset_id in (self.id, self.pending, *self.previous)


def check_name(name: str) -> str:
    """The name, if it can be one."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise BadName(
            f"{name!r} cannot name a dataset",
            hint=f"use letters, digits, '_', '-' and '.', starting with a letter, a digit or '_', at most {LONGEST}",
            name=name,
        )
    return name


def _warn(error: DamagedName) -> None:
    _log.warning("%s", error)  # one stray file must not hide all other datasets


def entries(store: Store, damaged: Callable[[DamagedName], None] = _warn) -> Iterator[Entry]:
    """All names of a lake in alphabetical order."""
    for info in store.list(_FOLDER):
        try:
            entry = _parse(info.key, Pointer(store, info.key).read())
        except DamagedName as error:
            damaged(error)
            continue
        if entry is not None:
            yield entry


def all_entries(store: Store, damaged: Callable[[DamagedName], None] = _warn) -> list[Entry]:
    """The same, read until nothing changes, so that a rename in progress hides no dataset."""
    seen = None
    for _ in races(MAX_RACES):
        now = list(entries(store, damaged))
        if now == seen:
            return now
        seen = now
    raise _lost("names")


def exists(store: Store, name: str) -> bool:
    """Whether a name stands for a dataset."""
    return look(store, name) is not None


def look(store: Store, name: str) -> Entry | None:
    """What a name stands for; None if it stands for nothing."""
    key = _key(name)
    return _parse(key, Pointer(store, key).read())


def find(store: Store, name: str) -> Entry:
    """What a name stands for, or an error that names the nearest one there is."""
    entry = look(store, name)
    if entry is not None:
        return entry
    known = [entry.name for entry in entries(store)]
    near = difflib.get_close_matches(name, known, 1)
    if near:
        hint = f"did you mean {near[0]!r}?"
    else:
        hint = f"there are: {', '.join(known)}" if known else "the lake is empty: create a dataset first"
    raise UnknownDataset(f"there is no dataset {name!r} in {store.url}", hint=hint, name=name)


def stands_for(store: Store, name: str, dataset_id: DatasetId) -> bool:
    """Whether this is a name of this dataset."""
    entry = look(store, name)
    return entry is not None and entry.id == dataset_id


def find_place(store: Store, dataset_id: DatasetId, likely: str) -> Entry | None:
    """The name that a dataset has, is to have, or had before it was replaced; the likely one is read first.

    None if there is none, though old rows may be left under a name of their own.
    """
    entry = _guess(store, likely)
    if entry is not None and entry.is_place_of(dataset_id):
        return entry
    found = [entry for entry in all_entries(store) if entry.is_place_of(dataset_id)]
    return min(found, key=lambda entry: entry.id != dataset_id, default=None)


def find_source(store: Store, dataset_id: str, alias: str) -> str | None:
    """The present name of a dataset that a query knows under an alias, or of the one that replaced it."""
    wanted = DatasetId.parse(dataset_id)
    entry = _guess(store, alias)
    if entry is None or entry.id != wanted:
        entry = find_place(store, wanted, alias)
    return None if entry is None else entry.name


def _guess(store: Store, name: str) -> Entry | None:
    try:
        return look(store, name)
    except (BadName, DamagedName):
        return None


def claim(store: Store, name: str, dataset_id: DatasetId, *, rows_of: str | None = None) -> None:
    """Give a dataset a name; exactly one of several who try gets it."""
    _claim(store, Entry(name, dataset_id, rows_of=rows_of))


def swap(store: Store, old: Entry, new: Entry | None) -> bool:
    """Replace what a name says, durably; None frees the name. False if it does not say `old` any more."""
    key = _key(old.name)
    there = Pointer(store, key).read()
    if _parse(key, there) != old:
        return False
    content = json.dumps({"name": old.name, "id": None}).encode() if new is None else _content(new)

    def happened(found: bytes) -> bool:
        now = _parse(key, found)
        return (now is None or not now.is_place_of(old.id)) if new is None else now is not None and now.id == new.id

    return Pointer(store, key).swap(there, content, happened)


def rename(store: Store, old: str, new: str) -> bool:
    """Move all that a name says to another name. In between the dataset has both names, so that it never has none.

    False if another process released the old name first.
    """
    check_name(new)
    entry, copy = find(store, old), None
    for _ in races(MAX_RACES):
        target = replace(entry, name=new)
        if _moved(store, entry, target, copy):
            return True
        changed = look(store, old)
        if changed is None:
            return False
        entry, copy = changed, target
    raise _lost(old)


def _moved(store: Store, entry: Entry, target: Entry, copy: Entry | None) -> bool:
    """One attempt to rename; False if another process changed one of the names first.

    `copy` is what the attempt before gave to the new name. Another entry of this dataset is from a rename that was cut
    short; the one that was changed since then counts.
    """
    if _key(entry.name) == _key(target.name):
        return swap(store, entry, target)
    there = look(store, target.name)
    if there is None:
        _claim(store, target)
    elif there.rows_of != entry.rows_of or {there.id, *there.previous}.isdisjoint({entry.id, *entry.previous}):
        raise _taken(store, target.name)
    else:
        is_older = there == copy or there.id in entry.previous or (there.id == entry.id and entry.pending is not None)
        if is_older and not swap(store, there, target):
            return False
    return swap(store, entry, None)


def _claim(store: Store, entry: Entry) -> None:
    key = _key(entry.name)
    there = Pointer(store, key).read()

    def happened(found: bytes) -> bool:
        now = _parse(key, found)
        return now is not None and now.id == entry.id

    if _parse(key, there) is not None or not Pointer(store, key).swap(there, _content(entry), happened):
        raise _taken(store, entry.name)


def _taken(store: Store, name: str) -> DatasetExists:
    return DatasetExists(
        f"a dataset {name!r} exists already in {store.url}",
        hint="open the one that is there, or choose another name",
        name=name,
    )


def _lost(what: str) -> CommitConflict:
    return CommitConflict(f"{what!r} kept changing: {MAX_RACES} races were lost", hint="try again")


def _key(name: str) -> str:
    return f"{_FOLDER}/{check_name(name).lower()}"


def _content(entry: Entry) -> bytes:
    said: dict[str, object] = {"name": entry.name, "id": entry.id.text}
    if entry.pending is not None:
        said["pending"] = entry.pending.text
    if entry.previous:
        said["previous"] = [one.text for one in entry.previous]
    if entry.rows_of is not None:
        said["rows_of"] = entry.rows_of
    return json.dumps(said).encode()


def _parse(key: str, data: bytes | None) -> Entry | None:
    """What a name's file says, None when there is no file or the name stands for nothing any more."""
    if data is None:
        return None
    try:
        said = json.loads(data)
        if said["id"] is None:
            return None
        pending, name = said.get("pending"), str(said["name"])
        return Entry(
            name if _key(name) == key else key.removeprefix(f"{_FOLDER}/"),  # a file that was renamed by hand
            DatasetId.parse(said["id"]),
            None if pending is None else DatasetId.parse(pending),
            tuple(map(DatasetId.parse, said.get("previous", ()))),
            said.get("rows_of"),
        )
    except (ValueError, KeyError, TypeError, AttributeError, BadDatasetId, BadName) as error:
        raise DamagedName(
            f"{key} does not name a dataset: {error}",
            hint='put back the file from a copy of the lake, or write it anew: {"name": …, "id": "did:odf:…"}',
        ) from error
