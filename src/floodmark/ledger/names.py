"""Dataset names: one path segment each, the same whether in capitals or not, and where each name points."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

from floodmark.chain.errors import BadDatasetId
from floodmark.chain.ids import DatasetId
from floodmark.ledger.errors import BadName, DatasetExists, LedgerError, UnknownDataset
from floodmark.storage.errors import ObjectNotFound
from floodmark.storage.store import Store

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_FOLDER = "names"


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
            hint="use letters, digits, '_', '-' and '.', starting with a letter, a digit or '_', at most 100",
            name=name,
        )
    return name


def entries(store: Store) -> Iterator[Entry]:
    """All names of a lake in alphabetical order."""
    for info in store.list(_FOLDER):
        try:
            yield _parse(info.key, store.get(info.key))
        except ObjectNotFound:
            continue  # dropped while we were listing


def find(store: Store, name: str) -> Entry:
    """What a name stands for, or an error that names the nearest one there is."""
    try:
        return _parse(_key(name), store.get(_key(name)))
    except ObjectNotFound:
        pass
    known = [entry.name for entry in entries(store)]
    near = difflib.get_close_matches(name, known, 1)
    if near:
        hint = f"did you mean {near[0]!r}?"
    else:
        hint = f"there are: {', '.join(known)}" if known else "the lake is empty: create a dataset first"
    raise UnknownDataset(f"there is no dataset {name!r} in {store.url}", hint=hint, name=name)


def claim(store: Store, name: str, dataset_id: DatasetId) -> None:
    """Give a dataset a name; exactly one of several who try gets it."""
    content = json.dumps({"name": name, "id": dataset_id.text}).encode()
    if not store.put_if_absent(_key(name), content):
        raise DatasetExists(
            f"a dataset {name!r} exists already in {store.url}",
            hint="open it with lake[name], or create with exist_ok=True",
            name=name,
        )


def release(store: Store, name: str) -> None:
    """Take a name away."""
    store.delete(_key(name))


def _key(name: str) -> str:
    return f"{_FOLDER}/{check_name(name).lower()}"


def _parse(key: str, data: bytes) -> Entry:
    try:
        content = json.loads(data)
        return Entry(str(content["name"]), DatasetId.parse(content["id"]))
    except (ValueError, KeyError, TypeError, BadDatasetId) as error:
        raise DamagedName(
            f"{key} does not name a dataset: {error}",
            hint='put back the file from a copy of the lake, or write it anew: {"name": …, "id": "did:odf:…"}',
        ) from error
