"""The catalog of a dataset's computed columns: their functions and manifests, and where their objects are stored.

The catalog is one small object that is swapped as a whole, so a column and its dependents change together.
"""

from __future__ import annotations

import base64
import hashlib
import json
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from floodmark.columns.checkpoint_store import CheckpointStore
from floodmark.derive.lost_records import Trail
from floodmark.errors import CommitConflict, CommitUnknown, SwapUnknown, UnknownColumn, UnreadableColumn, close_matches
from floodmark.ledger.objects import DerivedObjects
from floodmark.storage import document
from floodmark.storage.document import DamagedDocument
from floodmark.storage.facts import Natural, Sha3Hex, build
from floodmark.storage.pointer import Pointer, RacesLost
from floodmark.storage.store import ObjectInfo

FRAGMENT_ROWS = 1 << 20
FIRST_FIELD_ID = 1
FIELD_ID = b"PARQUET:field_id"

_KIND = "column catalog"
_MARKS = 64  # number of last swaps whose writer can be identified


@dataclass(frozen=True)
class FunctionRef:
    """The description of the function that computes a column, without its code."""

    name: str
    version: str
    kind: str
    module: str = ""
    qualname: str = ""
    source: str = ""

    def is_same(self, other: FunctionRef) -> bool:
        """Whether both compute the same values. The name counts, since two functions may be given the same version."""
        return (self.name, self.version) == (other.name, other.version)


@dataclass(frozen=True)
class ColumnDefinition:
    """A computed column: its definition, and the manifest that names its values."""

    name: str
    field_id: int
    type: pa.DataType
    nullable: bool
    inputs: tuple[str, ...]
    function: FunctionRef
    min_checkpoint_size: int = 1
    max_checkpoint_size: int | None = None
    generation: Natural = 0
    manifest: Sha3Hex | None = None
    origin: str = ""  # hash of what its values depended on when it was added
    altered: bool = False  # whether its function or inputs changed since
    reads: Trail = ()  # positions up to which the dataset was read for its values, the newest last

    @property
    def field(self) -> pa.Field:
        """The column as an Arrow field with its field id, as in its files."""
        return pa.field(self.name, self.type, self.nullable, {FIELD_ID: str(self.field_id).encode()})


@dataclass(frozen=True)
class Catalog:
    """The computed columns of one dataset, in the order they were added."""

    fragment_rows: int = FRAGMENT_ROWS
    next_field_id: Natural = FIRST_FIELD_ID
    columns: tuple[ColumnDefinition, ...] = ()
    purged_before: Natural = 0  # no file may have values of records before this offset
    spent: tuple[str, ...] = ()  # origins that no new column may have

    def find(self, name: str) -> ColumnDefinition | None:
        """The column of this name, None when there is no such column."""
        return next((c for c in self.columns if c.name == name), None)

    def column(self, name: str) -> ColumnDefinition:
        """The column of this name; `UnknownColumn` otherwise."""
        if (found := self.find(name)) is not None:
            return found
        names = [c.name for c in self.columns]
        close = close_matches(str(name), names)
        known = f"use one of {', '.join(names)}, or add it with add_column()" if names else "add it with add_column()"
        hint = f"did you mean {close[0]!r}?" if close else known
        raise UnknownColumn(f"there is no computed column {name!r}", hint=hint, column=name, columns=names)

    def dependents(self, name: str) -> tuple[ColumnDefinition, ...]:
        """The columns computed from this one, directly or indirectly, each after its inputs."""
        reached = {name}
        while grown := {c.name for c in self.columns if c.name not in reached and reached & set(c.inputs)}:
            reached |= grown
        return _in_order([c for c in self.columns if c.name in reached - {name}])

    def with_column(self, changed: ColumnDefinition) -> Catalog:
        """The catalog with the column of the same field id replaced."""
        return replace(self, columns=tuple(changed if c.field_id == changed.field_id else c for c in self.columns))


def _in_order(columns: Sequence[ColumnDefinition]) -> tuple[ColumnDefinition, ...]:
    """Columns sorted so that inputs come first. A catalog never has cycles."""
    ordered: list[ColumnDefinition] = []
    waiting = list(columns)
    while waiting:
        names = {c.name for c in waiting}
        ready = [c for c in waiting if not names & set(c.inputs)]
        ordered += ready
        waiting = [c for c in waiting if c not in ready]
    return tuple(ordered)


def hash_inputs(catalog: Catalog, dataset_id: str, column: ColumnDefinition) -> str:
    """The hash of a column's inputs in its checkpoint keys. It identifies the input values, not their files.

    It includes the type of the column: the same code gives other values when it has another return type.
    """
    return _hash(dataset_id, catalog.fragment_rows, _inputs(catalog, column.inputs), str(column.type))


def identity(catalog: Catalog, dataset_id: str, column: ColumnDefinition) -> str:
    """The hash of everything that a column's values depend on: its function and its inputs."""
    function = column.function
    return _hash(function.name, function.version, hash_inputs(catalog, dataset_id, column))


def origin(catalog: Catalog, name: str, data_type: pa.DataType, function: FunctionRef, inputs: Sequence[str]) -> str:
    """The hash of what the values of a new column depend on.

    A column that is dropped and added again starts at generation 0 and has the same origin, so columns computed from
    it find their checkpoints. An origin is spent once values under it changed or came from several functions: then
    generation 0 no longer identifies one set of values.
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
    """The current catalog, empty when no column was ever added."""
    data = objects.catalog.read()
    return Catalog() if data is None else decode(data, objects.catalog_key)


def change(objects: ColumnObjects, build: Callable[[Catalog], Catalog]) -> Catalog:
    """Replace the current catalog by what `build` returns for it. After a lost race, it is built again.

    An unchanged catalog is not written.
    """
    key = objects.catalog_key
    after = _StoredCatalog()

    def built(old: bytes | None) -> bytes | None:
        nonlocal after
        before = _StoredCatalog() if old is None else _decode(old, key)
        after = before.followed_by(build(before.catalog))
        if after.catalog == before.catalog:
            return old
        _note_replaced(objects, before.catalog, after.catalog)
        return _encode(after)

    def happened(data: bytes) -> bool | None:
        found = _decode(data, key)
        if after.marks[-1] in found.marks:
            return True
        return False if found.swaps - after.swaps < _MARKS else None  # unknown: the mark may have been dropped

    try:
        objects.catalog.change(built, happened)
    except RacesLost as error:
        raise CommitConflict(error.message, hint="try again") from error
    except SwapUnknown as error:
        hint = "check with columns(), or call it again: this is safe in both cases"
        raise CommitUnknown(error.message, hint=hint, key=key) from error
    return after.catalog


def _note_replaced(objects: ColumnObjects, before: Catalog, after: Catalog) -> None:
    """Write a note for each manifest that the catalog will no longer name.

    Current readers may need the manifest and its files for a while. The age of the note is the time since it was
    replaced; the age of the manifest itself is not.
    """
    for digest in {c.manifest for c in before.columns} - {c.manifest for c in after.columns} - {None}:
        objects.store.put_derived(f"{_replaced_folder(objects)}/{digest}", b"")


def list_replaced_manifests(objects: ColumnObjects) -> Iterator[ObjectInfo]:
    """The notes of manifests that were replaced; the last part of each key is a manifest's digest."""
    return objects.store.list(_replaced_folder(objects))


def _replaced_folder(objects: ColumnObjects) -> str:
    return f"{objects.folder}/replaced"


@dataclass(frozen=True)
class _StoredCatalog:
    """A stored catalog, with the marks of the last swaps. A writer checks by its mark whether its swap happened."""

    catalog: Catalog = Catalog()
    swaps: Natural = 0
    marks: tuple[str, ...] = ()

    def followed_by(self, catalog: Catalog) -> _StoredCatalog:
        return _StoredCatalog(catalog, self.swaps + 1, (*self.marks[1 - _MARKS :], uuid.uuid4().hex))


def _encode(written: _StoredCatalog) -> bytes:
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


def decode(data: bytes, key: str) -> Catalog:
    """The catalog in these bytes; `UnreadableColumn` if they are damaged."""
    return _decode(data, key).catalog


def descends(later: bytes | None, earlier: bytes) -> bool:
    """Whether a stored catalog contains all changes of another one. A damaged one has nothing to lose."""
    try:
        before = _decode(earlier, "")
        after = _StoredCatalog() if later is None else _decode(later, "")
    except UnreadableColumn:
        return True
    return not before.catalog.columns or before.marks[-1] in after.marks


def _decode(data: bytes, key: str) -> _StoredCatalog:
    try:
        facts = document.decode(data, _KIND, key).facts
        with document.parsing(key):
            return _stored(facts)
    except DamagedDocument as error:
        raise UnreadableColumn(
            f"the catalog of computed columns {key!r} is damaged, or has a format that this release does not support:"
            f" {error.problem}",
            hint="upgrade, or restore it from a backup; without it, computed columns must be added again",
            key=key,
        ) from error


def _stored(facts: dict[str, Any]) -> _StoredCatalog:
    columns = tuple(build(ColumnDefinition, one, type=_parsed_type(one["type"])) for one in facts["columns"])
    swaps = {name: facts[name] for name in ("swaps", "marks")}
    own = {name: value for name, value in facts.items() if name not in swaps}
    catalog = build(Catalog, own, columns=columns)
    if catalog.fragment_rows < 1:
        raise ValueError(f"a fragment has {catalog.fragment_rows} rows")
    if is_cyclic(columns) or len({column.name for column in columns}) < len(columns):
        raise ValueError("a column is computed from itself, or two have one name")
    return build(_StoredCatalog, swaps, catalog=catalog)


def is_cyclic(columns: Sequence[ColumnDefinition]) -> bool:
    """Whether a column is computed from itself, directly or indirectly."""
    waiting = {column.name: set(column.inputs) for column in columns}
    while ready := [name for name, inputs in waiting.items() if not inputs & waiting.keys()]:
        for name in ready:
            del waiting[name]
    return bool(waiting)


def _type_text(data_type: pa.DataType) -> str:
    """A type as a serialized Arrow schema, which supports every type."""
    return base64.b64encode(pa.schema([pa.field("", data_type)]).serialize()).decode()


def _parsed_type(text: str) -> pa.DataType:
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text))).field(0).type


@dataclass(frozen=True)
class ColumnObjects(DerivedObjects):
    """The object keys of a dataset's computed columns."""

    FOLDER = "columns"

    @property
    def catalog_key(self) -> str:
        """The key of the catalog, the only object that is ever replaced."""
        return f"{self.folder}/catalog"

    @property
    def catalog(self) -> Pointer:
        return Pointer(self.store, self.catalog_key)

    def file_key(self, digest: str) -> str:
        """The key of a segment file."""
        return f"{self.folder}/files/{digest}"

    def errors_key(self, digest: str) -> str:
        """The key of a file with the errors of skipped rows."""
        return f"{self.folder}/errors/{digest}"

    def turn_key(self, field_id: int) -> str:
        """The lock by which backfills of one column take turns."""
        return f"{self.folder}/turns/{field_id}"

    @property
    def checkpoints(self) -> CheckpointStore:
        return CheckpointStore(self.store, f"{self.folder}/checkpoints")

    def errors(self) -> Iterator[ObjectInfo]:
        return self.store.list(f"{self.folder}/errors")
