"""Dataset names: one path segment each, case-insensitive, and the dataset that each name points to.

A name is a small file that is swapped, never deleted. A name that is no longer used keeps its file, with the id null.
Deletes are not durable, so after a crash the name of a dropped dataset could come back without its dataset.
"""

from __future__ import annotations

import json
import logging
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from floodmark.chain.ids import DatasetId
from floodmark.errors import (
    BadId,
    BadName,
    CommitConflict,
    DatasetExists,
    LedgerError,
    UnknownDataset,
    close_matches,
)
from floodmark.storage.facts import parse_json
from floodmark.storage.pointer import MAX_RACES, Pointer, RacesLost, attempt_numbers
from floodmark.storage.store import Store

MAX_NAME_LENGTH = 100
"""The longest name, in characters."""

_NAME = re.compile(rf"[A-Za-z0-9_][A-Za-z0-9_.-]{{0,{MAX_NAME_LENGTH - 1}}}")
_FOLDER = "names"

_log = logging.getLogger(__name__)


class DamagedName(LedgerError):
    """The file of a dataset name does not contain a dataset id."""


@dataclass(frozen=True)
class NameEntry:
    """A name as the user spelled it, and the dataset that it points to.

    The entry of a view also has the dataset that is being filled to replace it, and the datasets that it replaced.
    """

    name: str
    id: DatasetId
    pending: DatasetId | None = None
    previous: tuple[DatasetId, ...] = ()
    rows_of: str | None = None  # the view that owned these rows before it was replaced

    def is_name_of(self, dataset_id: DatasetId) -> bool:
        """Whether a dataset has this name, will get it, or had it before it was replaced."""
        return self.rows_of is None and dataset_id in (self.id, self.pending, *self.previous)


def check_name(name: str) -> str:
    """Return the name if it is valid, else raise `BadName`."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise BadName(
            f"{name!r} is not a valid dataset name",
            hint=f"use at most {MAX_NAME_LENGTH} letters, digits, '_', '-' and '.', "
            "and start with a letter, a digit or '_'",
            name=name,
        )
    return name


def _warn(error: DamagedName) -> None:
    _log.warning("%s", error)  # one damaged file must not hide all other datasets


def list_keys(store: Store) -> list[str]:
    """The keys of the files of all names, in alphabetical order. Names that are no longer used keep their files."""
    return [info.key for info in store.list(_FOLDER)]


def entries(
    store: Store, damaged: Callable[[DamagedName], None] = _warn, keys: Iterable[str] | None = None
) -> Iterator[NameEntry]:
    """All names of a lake, or those with some keys, in alphabetical order."""
    for key in list_keys(store) if keys is None else keys:
        try:
            entry = _parse(key, Pointer(store, key).read())
        except DamagedName as error:
            damaged(error)
            continue
        if entry is not None:
            yield entry


def all_entries(store: Store, damaged: Callable[[DamagedName], None] = _warn) -> list[NameEntry]:
    """The same, read until two reads agree, so that a rename in progress hides no dataset."""
    previous = None
    for _ in attempt_numbers(MAX_RACES):
        current = list(entries(store, damaged))
        if current == previous:
            return current
        previous = current
    raise _lost("names")


def exists(store: Store, name: str) -> bool:
    """Whether a name points to a dataset."""
    return read_entry(store, name) is not None


def read_entry(store: Store, name: str) -> NameEntry | None:
    """The entry of a name; None if no dataset has it."""
    key = _key(name)
    return _parse(key, Pointer(store, key).read())


def require_entry(store: Store, name: str) -> NameEntry:
    """The entry of a name, or an error that suggests the most similar name."""
    entry = read_entry(store, name)
    if entry is not None:
        return entry
    known = [entry.name for entry in entries(store)]
    near = close_matches(name, known)
    if near:
        hint = f"did you mean {near[0]!r}?"
    else:
        hint = f"choose one of {', '.join(known)}" if known else "the lake is empty: create a dataset first"
    raise UnknownDataset(f"there is no dataset {name!r} in {store.url}", hint=hint, name=name)


def names_dataset(store: Store, name: str, dataset_id: DatasetId) -> bool:
    """Whether a name points to this dataset."""
    entry = read_entry(store, name)
    return entry is not None and entry.id == dataset_id


def find_entry_of(store: Store, dataset_id: DatasetId, likely: str) -> NameEntry | None:
    """The entry whose name a dataset has, will get, or had before it was replaced. The likely name is read first.

    None if there is no such entry; old rows may still be kept under a separate name.
    """
    entry = _guess(store, likely)
    if entry is not None and entry.is_name_of(dataset_id):
        return entry
    matching = [entry for entry in all_entries(store) if entry.is_name_of(dataset_id)]
    return min(matching, key=lambda entry: entry.id != dataset_id, default=None)


def find_input_name(store: Store, dataset_id: str, alias: str) -> str | None:
    """The present name of a dataset that a query reads under an alias, or of the dataset that replaced it."""
    id_ = DatasetId.parse(dataset_id)
    entry = _guess(store, alias)
    if entry is None or entry.id != id_:
        entry = find_entry_of(store, id_, alias)
    return None if entry is None else entry.name


def _guess(store: Store, name: str) -> NameEntry | None:
    try:
        return read_entry(store, name)
    except (BadName, DamagedName):
        return None


def claim(store: Store, name: str, dataset_id: DatasetId, *, rows_of: str | None = None) -> None:
    """Give a dataset a name. If several processes claim one name at once, exactly one succeeds."""
    _claim(store, NameEntry(name, dataset_id, rows_of=rows_of))


def put_entry(store: Store, entry: NameEntry) -> None:
    """Let a name refer to a dataset, durably, whatever it referred to before, even if its file was damaged."""
    content = _content(entry)
    pointer = Pointer(store, _key(entry.name))
    try:
        pointer.change(lambda _: content, lambda found: found == content)
    except RacesLost as error:
        raise _lost(entry.name) from error


def swap(store: Store, old: NameEntry, new: NameEntry | None) -> bool:
    """Replace the entry of a name, durably; None frees the name. False if the entry is no longer `old`."""
    key = _key(old.name)
    present = Pointer(store, key).read()
    if _parse(key, present) != old:
        return False
    content = _encoded({"name": old.name, "id": None}) if new is None else _content(new)

    def happened(data: bytes) -> bool:
        now = _parse(key, data)
        return (now is None or not now.is_name_of(old.id)) if new is None else now is not None and now.id == new.id

    return Pointer(store, key).swap(present, content, happened)


def rename(store: Store, old: str, new: str) -> bool:
    """Move the entry of a name to another name. In between the dataset has both names, so it always has a name.

    False if another process freed the old name first.
    """
    check_name(new)
    entry, copy = require_entry(store, old), None
    for _ in attempt_numbers(MAX_RACES):
        target = replace(entry, name=new)
        if _moved(store, entry, target, copy):
            return True
        changed = read_entry(store, old)
        if changed is None:
            return False
        entry, copy = changed, target
    raise _lost(old)


def _moved(store: Store, entry: NameEntry, target: NameEntry, copy: NameEntry | None) -> bool:
    """One attempt to rename; False if another process changed one of the names first.

    `copy` is the entry that the attempt before wrote under the new name. Any other entry of this dataset there comes
    from an interrupted rename; of the two entries, the one that changed since then is kept.
    """
    if _key(entry.name) == _key(target.name):
        return swap(store, entry, target)
    present = read_entry(store, target.name)
    if present is None:
        _claim(store, target)
    elif present.rows_of != entry.rows_of or {present.id, *present.previous}.isdisjoint({entry.id, *entry.previous}):
        raise _exists_error(store, target.name)
    else:
        same = present.id == entry.id and entry.pending is not None
        is_older = present == copy or present.id in entry.previous or same
        if is_older and not swap(store, present, target):
            return False
    return swap(store, entry, None)


def _claim(store: Store, entry: NameEntry) -> None:
    key = _key(entry.name)
    present = Pointer(store, key).read()

    def happened(content: bytes) -> bool:
        now = _parse(key, content)
        return now is not None and now.id == entry.id

    if _parse(key, present) is not None or not Pointer(store, key).swap(present, _content(entry), happened):
        raise _exists_error(store, entry.name)


def _exists_error(store: Store, name: str) -> DatasetExists:
    return DatasetExists(
        f"a dataset {name!r} already exists in {store.url}",
        hint="open the existing dataset, or choose another name",
        name=name,
    )


def _lost(what: str) -> CommitConflict:
    return CommitConflict(f"{what!r} kept changing: lost {MAX_RACES} races against other writers", hint="try again")


def _key(name: str) -> str:
    return f"{_FOLDER}/{check_name(name).lower()}"


def encode_entry(entry: NameEntry) -> str:
    """The text of an entry, as the file of its name has it."""
    return _content(entry).decode()


def decode_entry(text: str) -> NameEntry:
    """The entry that `encode_entry` wrote; `DamagedName` for any other text."""
    name = parse_json(text)["name"]
    entry = _parse(_key(name), text.encode())
    if entry is None:
        raise ValueError(f"{name!r} is a free name")
    return entry


def _content(entry: NameEntry) -> bytes:
    fields: dict[str, object] = {"name": entry.name, "id": entry.id.text}
    if entry.pending is not None:
        fields["pending"] = entry.pending.text
    if entry.previous:
        fields["previous"] = [one.text for one in entry.previous]
    if entry.rows_of is not None:
        fields["rows_of"] = entry.rows_of
    return _encoded(fields)


_FIELDS = {"name", "id", "pending", "previous", "rows_of"}


def _encoded(fields: Mapping[str, object]) -> bytes:
    return json.dumps({**fields, _CHECKSUM: _checksum(fields)}).encode()


def _decoded(data: bytes) -> dict[str, Any]:
    """The fields of a name's file. A file that a user wrote may have no checksum."""
    fields: dict[str, Any] = parse_json(data)
    checksum = fields.pop(_CHECKSUM, None)
    if unknown := sorted(fields.keys() - _FIELDS):
        raise ValueError(f"it has an unknown field {unknown[0]!r}")
    try:
        is_right = checksum is None or checksum == _checksum(fields)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error
    if not is_right:
        raise ValueError("its checksum does not match")
    return fields


_CHECKSUM = "checksum"


def _checksum(fields: Mapping[str, object]) -> str:
    return f"{zlib.crc32(json.dumps(fields).encode()):08x}"


def _parse(key: str, data: bytes | None) -> NameEntry | None:
    """The entry in a name's file; None if there is no file or the name is free again."""
    if data is None:
        return None
    try:
        fields = _decoded(data)
        if fields["id"] is None:
            return None
        pending, name, rows_of = fields.get("pending"), str(fields["name"]), fields.get("rows_of")
        return NameEntry(
            name if _key(name) == key else key.removeprefix(f"{_FOLDER}/"),  # a file that was renamed by hand
            DatasetId.parse(fields["id"]),
            None if pending is None else DatasetId.parse(pending),
            tuple(map(DatasetId.parse, fields.get("previous", ()))),
            None if rows_of is None else check_name(rows_of),
        )
    except (ValueError, KeyError, TypeError, AttributeError, BadId, BadName) as error:
        raise DamagedName(
            f"{key} does not name a dataset: {error}",
            hint='restore the file from a copy of the lake, or write it again: {"name": …, "id": "did:odf:…"}',
        ) from error
