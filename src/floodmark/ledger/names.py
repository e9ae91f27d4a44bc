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
from dataclasses import dataclass

from floodmark.chain.errors import BadDatasetId
from floodmark.chain.ids import DatasetId
from floodmark.ledger.errors import BadName, DatasetExists, LedgerError, UnknownDataset
from floodmark.storage.pointer import Pointer
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
    """A name as the user spelled it, and the dataset it stands for."""

    name: str
    id: DatasetId


def check_name(name: str) -> str:
    """The name, if it can be one."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise BadName(
            f"{name!r} cannot name a dataset",
            hint=f"use letters, digits, '_', '-' and '.', starting with a letter, a digit or '_', at most {LONGEST}",
            name=name,
        )
    return name


def entries(store: Store) -> Iterator[Entry]:
    """All names of a lake in alphabetical order."""
    for info in store.list(_FOLDER):
        try:
            entry = _parse(info.key, Pointer(store, info.key).read())
        except DamagedName as error:
            _log.warning("%s", error)  # one stray file must not hide all other datasets
            continue
        if entry is not None:
            yield entry


def exists(store: Store, name: str) -> bool:
    """Whether a name stands for a dataset."""
    key = _key(name)
    return _parse(key, Pointer(store, key).read()) is not None


def find(store: Store, name: str) -> Entry:
    """What a name stands for, or an error that names the nearest one there is."""
    entry = _parse(_key(name), Pointer(store, _key(name)).read())
    if entry is not None:
        return entry
    known = [entry.name for entry in entries(store)]
    near = difflib.get_close_matches(name, known, 1)
    if near:
        hint = f"did you mean {near[0]!r}?"
    else:
        hint = f"there are: {', '.join(known)}" if known else "the lake is empty: create a dataset first"
    raise UnknownDataset(f"there is no dataset {name!r} in {store.url}", hint=hint, name=name)


def claim(store: Store, name: str, dataset_id: DatasetId) -> None:
    """Give a dataset a name; exactly one of several who try gets it."""
    key = _key(name)
    there = Pointer(store, key).read()
    content = _content(name, dataset_id)
    if _parse(key, there) is not None or not Pointer(store, key).swap(there, content, _stands(key, dataset_id)):
        raise DatasetExists(
            f"a dataset {name!r} exists already in {store.url}",
            hint="open the one that is there, or choose another name",
            name=name,
        )


def respell(store: Store, name: str, dataset_id: DatasetId) -> bool:
    """Change the capitals of a dataset's name; False if the name has come to stand for something else."""
    return _swap(store, name, dataset_id, _content(name, dataset_id))


def release(store: Store, name: str, dataset_id: DatasetId) -> bool:
    """Take a dataset's name away, durably; False if the name has come to stand for something else."""
    return _swap(store, name, dataset_id, _content(name, None))


def give(store: Store, name: str, old: DatasetId, new: DatasetId) -> bool:
    """Let a name stand for another dataset than it did, in one move; False if it stands for neither."""
    key = _key(name)
    there = Pointer(store, key).read()
    entry = _parse(key, there)
    if entry is None or entry.id not in (old, new):
        return False
    # Also when it stands for the new one already: what another has done is made durable.
    return Pointer(store, key).swap(there, _content(entry.name, new), _stands(key, new))


def stands_for(store: Store, name: str, dataset_id: DatasetId) -> bool:
    """Whether this is a name of this dataset."""
    entry = _parse(_key(name), Pointer(store, _key(name)).read())
    return entry is not None and entry.id == dataset_id


def _swap(store: Store, name: str, dataset_id: DatasetId, content: bytes) -> bool:
    key = _key(name)
    there = Pointer(store, key).read()
    entry = _parse(key, there)
    if entry is None or entry.id != dataset_id:
        return False
    stands = _stands(key, dataset_id)
    is_release = _parse(key, content) is None
    return Pointer(store, key).swap(there, content, lambda found: stands(found) != is_release)


def _stands(key: str, dataset_id: DatasetId) -> Callable[[bytes], bool]:
    """Whether what a name's file says is that it stands for this dataset."""

    def stands(found: bytes) -> bool:
        entry = _parse(key, found)
        return entry is not None and entry.id == dataset_id

    return stands


def _content(name: str, dataset_id: DatasetId | None) -> bytes:
    return json.dumps({"name": name, "id": None if dataset_id is None else dataset_id.text}).encode()


def _key(name: str) -> str:
    return f"{_FOLDER}/{check_name(name).lower()}"


def _parse(key: str, data: bytes | None) -> Entry | None:
    """What a name's file says, None when there is no file or the name stands for nothing any more."""
    if data is None:
        return None
    try:
        content = json.loads(data)
        if content["id"] is None:
            return None
        return Entry(str(content["name"]), DatasetId.parse(content["id"]))
    except (ValueError, KeyError, TypeError, BadDatasetId) as error:
        raise DamagedName(
            f"{key} does not name a dataset: {error}",
            hint='put back the file from a copy of the lake, or write it anew: {"name": …, "id": "did:odf:…"}',
        ) from error
