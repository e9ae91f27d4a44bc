"""The catalog: which computed columns a dataset has, what computes them, and the manifest of each.

It is one small object that is swapped as a whole, so that a column and everything that depends on it change together.
"""

from __future__ import annotations

import base64
import difflib
import hashlib
import json
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from floodmark.compute.errors import BadCatalog, UnknownColumn
from floodmark.compute.stored.objects import ColumnObjects
from floodmark.ledger.errors import CommitConflict, CommitUnknown
from floodmark.storage import document
from floodmark.storage.document import Damaged
from floodmark.storage.errors import SwapUnknown
from floodmark.storage.pointer import LostRaces
from floodmark.storage.store import ObjectInfo

FRAGMENT_ROWS = 1 << 20
FIRST_FIELD_ID = 1
FIELD_ID = b"PARQUET:field_id"

_KIND = "column catalog"
_MARKS = 64  # of so many last swaps it is known whose they were


@dataclass(frozen=True)
class FunctionRef:
    """What is known of the function that computes a column, without the function itself."""

    name: str
    version: str
    kind: str
    module: str = ""
    qualname: str = ""
    source: str = ""

    def is_same(self, other: FunctionRef) -> bool:
        """Whether it computes the same values; a version given by hand says so only of functions of one name."""
        return (self.name, self.version) == (other.name, other.version)


@dataclass(frozen=True)
class Column:
    """A computed column: what it is made of, and which manifest names its values."""

    name: str
    field_id: int
    type: pa.DataType
    nullable: bool
    inputs: tuple[str, ...]
    function: FunctionRef
    min_checkpoint_size: int = 1
    max_checkpoint_size: int | None = None
    generation: int = 0
    manifest: str | None = None
    origin: str = ""  # what its values depended on when it was added
    altered: bool = False  # whether it had another function since

    @property
    def field(self) -> pa.Field:
        """The column as its files have it, with its field id."""
        return pa.field(self.name, self.type, self.nullable, {FIELD_ID: str(self.field_id).encode()})


@dataclass(frozen=True)
class Catalog:
    """The computed columns of one dataset, in the order in which they were added."""

    fragment_rows: int = FRAGMENT_ROWS
    next_field_id: int = FIRST_FIELD_ID
    columns: tuple[Column, ...] = ()
    purged_before: int = 0  # no file may hold values of records before this offset
    spent: tuple[str, ...] = ()  # origins that no column may have again

    def find(self, name: str) -> Column | None:
        """The column of this name, if there is one."""
        return next((c for c in self.columns if c.name == name), None)

    def column(self, name: str) -> Column:
        """The column of this name; `UnknownColumn` otherwise."""
        if (found := self.find(name)) is not None:
            return found
        names = [c.name for c in self.columns]
        close = difflib.get_close_matches(str(name), names, 1)
        known = f"the computed columns are {', '.join(names)}" if names else "there are no computed columns yet"
        hint = f"did you mean {close[0]!r}?" if close else f"{known}; add_column() adds one"
        raise UnknownColumn(f"there is no computed column {name!r}", hint=hint, column=name, columns=names)

    def dependents(self, name: str) -> tuple[Column, ...]:
        """The columns computed from this one, directly or not, each after those that it is computed from."""
        reached = {name}
        while grown := {c.name for c in self.columns if c.name not in reached and reached & set(c.inputs)}:
            reached |= grown
        return _in_order([c for c in self.columns if c.name in reached - {name}])

    def with_column(self, changed: Column) -> Catalog:
        """The catalog with another column in the place of the one that has its field id."""
        return replace(self, columns=tuple(changed if c.field_id == changed.field_id else c for c in self.columns))


def _in_order(columns: Sequence[Column]) -> tuple[Column, ...]:
    """Columns sorted so that inputs come first; the catalog holds no cycles."""
    ordered: list[Column] = []
    waiting = list(columns)
    while waiting:
        names = {c.name for c in waiting}
        ready = [c for c in waiting if not names & set(c.inputs)]
        ordered += ready
        waiting = [c for c in waiting if c not in ready]
    return tuple(ordered)


def srcfiles(catalog: Catalog, dataset_id: str, column: Column) -> str:
    """What stands for a column's inputs in the keys of its checkpoints: which values they are, not where they lie.

    The type that its values are given is part of it: the same code gives others when it is told to return another one.
    """
    return _hash(dataset_id, catalog.fragment_rows, _inputs(catalog, column.inputs), str(column.type))


def identity(catalog: Catalog, dataset_id: str, column: Column) -> str:
    """Everything that a column's values depend on: the function and its inputs."""
    function = column.function
    return _hash(function.name, function.version, srcfiles(catalog, dataset_id, column))


def origin(catalog: Catalog, name: str, data_type: pa.DataType, function: FunctionRef, inputs: Sequence[str]) -> str:
    """What the values of a column depend on that is added now.

    A column that is dropped and added again begins at generation 0 anew and has the same origin, so that those which
    are computed from it find their checkpoints. But an origin under which values have changed, or came from several
    functions, is spent: generation 0 of it would not say which values are meant.
    """
    made_by = (function.name, function.version, str(data_type))
    found = _hash(name, made_by, catalog.fragment_rows, _inputs(catalog, inputs))
    return _hash(found, catalog.next_field_id) if found in catalog.spent else found


def _inputs(catalog: Catalog, names: Sequence[str]) -> list[list[str | int]]:
    computed = {c.name: (c.origin, c.generation) for c in catalog.columns}
    return [[name, *computed.get(name, ())] for name in names]


def _hash(*parts: object) -> str:
    return hashlib.md5(json.dumps(parts, separators=(",", ":")).encode(), usedforsecurity=False).hexdigest()


def load(objects: ColumnObjects) -> Catalog:
    """The present catalog; an empty one when no column was ever added."""
    data = objects.catalog.read()
    return Catalog() if data is None else _decode(data, objects.catalog_key).catalog


def change(objects: ColumnObjects, build: Callable[[Catalog], Catalog]) -> Catalog:
    """Swap in what `build` makes of the present catalog; a lost race builds again, and no change swaps nothing."""
    key = objects.catalog_key
    after = _Written()

    def built(old: bytes | None) -> bytes | None:
        nonlocal after
        before = _Written() if old is None else _decode(old, key)
        after = before.followed_by(build(before.catalog))
        if after.catalog == before.catalog:
            return old
        _note_replaced(objects, before.catalog, after.catalog)
        return _encode(after)

    def happened(data: bytes) -> bool | None:
        found = _decode(data, key)
        if after.marks[-1] in found.marks:
            return True
        return False if found.swaps - after.swaps < _MARKS else None  # so many swaps later nobody can tell

    try:
        objects.catalog.change(built, happened)
    except LostRaces as error:
        raise CommitConflict(error.message, hint="try again") from error
    except SwapUnknown as error:
        hint = "look at columns() to see; doing it again is safe either way"
        raise CommitUnknown(error.message, hint=hint, key=key) from error
    return after.catalog


def _note_replaced(objects: ColumnObjects, before: Catalog, after: Catalog) -> None:
    """Leave a note for each manifest that will not be named any more.

    Whoever reads it now may need it and its files for a while. How long ago that was the note's age tells; the
    manifest's own does not.
    """
    for digest in {c.manifest for c in before.columns} - {c.manifest for c in after.columns} - {None}:
        objects.store.put_derived(f"{_replaced_folder(objects)}/{digest}", b"")


def replaced(objects: ColumnObjects) -> Iterator[ObjectInfo]:
    """The notes of manifests that were replaced; the last part of each key is a manifest's digest."""
    return objects.store.list(_replaced_folder(objects))


def _replaced_folder(objects: ColumnObjects) -> str:
    return f"{objects.folder}/replaced"


@dataclass(frozen=True)
class _Written:
    """A catalog as it is stored: with the marks of the last swaps, by which a swapper finds its own again."""

    catalog: Catalog = Catalog()
    swaps: int = 0
    marks: tuple[str, ...] = ()

    def followed_by(self, catalog: Catalog) -> _Written:
        return _Written(catalog, self.swaps + 1, (*self.marks[1 - _MARKS :], uuid.uuid4().hex))


def _encode(written: _Written) -> bytes:
    """A catalog as a document."""
    catalog = written.catalog
    columns = [{**vars(c), "function": vars(c.function), "type": _type_text(c.type)} for c in catalog.columns]
    facts = {
        "fragment_rows": catalog.fragment_rows,
        "next_field_id": catalog.next_field_id,
        "columns": columns,
        "purged_before": catalog.purged_before,
        "spent": catalog.spent,
        "swaps": written.swaps,
        "marks": written.marks,
    }
    return document.encode(_KIND, 1, facts)


def _decode(data: bytes, key: str) -> _Written:
    try:
        facts = document.decode(data, _KIND, key).facts
    except Damaged as error:
        raise BadCatalog(
            f"the catalog of computed columns {key!r} is damaged, or of a format that this release does not know:"
            f" {error.problem}",
            hint="upgrade, or restore it from a copy; without it, computed columns must be added again",
            key=key,
        ) from error
    columns = tuple(map(_column, facts["columns"]))
    catalog = Catalog(
        fragment_rows=facts["fragment_rows"],
        next_field_id=facts["next_field_id"],
        columns=columns,
        purged_before=facts["purged_before"],
        spent=tuple(facts["spent"]),
    )
    return _Written(catalog, facts["swaps"], tuple(facts["marks"]))


def _column(entry: dict[str, Any]) -> Column:
    function = FunctionRef(**entry["function"])
    return Column(
        **{**entry, "type": _parsed_type(entry["type"]), "inputs": tuple(entry["inputs"]), "function": function}
    )


def _type_text(data_type: pa.DataType) -> str:
    """A type in Arrow's own form, which has a place for every one of them."""
    return base64.b64encode(pa.schema([pa.field("", data_type)]).serialize()).decode()


def _parsed_type(text: str) -> pa.DataType:
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text))).field(0).type
