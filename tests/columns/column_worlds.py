"""What the tests of column files build their worlds from: a store, a column or two, and manifests by hand."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from floodmark.columns import catalog as catalogs
from floodmark.columns import commit, row_errors
from floodmark.columns import definition as define
from floodmark.columns import manifest as manifests
from floodmark.columns.catalog import Catalog, ColumnDefinition, ColumnObjects, FunctionRef
from floodmark.columns.checkpoint_batch import ERROR_TYPE
from floodmark.columns.column_file import read_values, write_segment
from floodmark.columns.definition import ColumnDraft
from floodmark.columns.manifest import ColumnManifest, ColumnSegment, Fragment
from floodmark.ledger.objects import DatasetObjects
from floodmark.storage.local import LocalStore
from floodmark.storage.memory import MemoryStore
from floodmark.storage.store import Store

DATASET = "did:odf:abc"
RECORDS = ("offset", "op", "system_time", "event_time", "pixels", "Title")
ROWS = 8
"""Rows of a fragment."""


def objects_in(store: Store) -> ColumnObjects:
    return ColumnObjects(DatasetObjects(store, "d"))


def objects_at(kind: str, path: Path) -> ColumnObjects:
    """The columns of a dataset in a local folder, or in what stands for a bucket."""
    return objects_in(LocalStore(path / "lake") if kind == "folder" else MemoryStore())


def definition(
    name: str, inputs: Sequence[str] = ("pixels",), version: str = "v1", data_type: pa.DataType | None = None
) -> ColumnDraft:
    function = FunctionRef(f"make_{name}", version, "array", "m", f"m.make_{name}", "def …")
    return ColumnDraft(name, pa.float64() if data_type is None else data_type, True, tuple(inputs), function)


def add(
    objects: ColumnObjects, name: str, inputs: Sequence[str] = ("pixels",), version: str = "v1"
) -> ColumnDefinition:
    return define.add(objects, definition(name, inputs, version), RECORDS, ROWS)


def column(objects: ColumnObjects, name: str) -> ColumnDefinition:
    return catalogs.load(objects).column(name)


def manifest(objects: ColumnObjects, name: str) -> ColumnManifest:
    return manifests.load(objects, column(objects, name))


def segment(
    objects: ColumnObjects, owner: ColumnDefinition, start: int, values: Iterable[float | None]
) -> ColumnSegment:
    return write_segment(objects, owner.field, start, [pa.array(list(values), owner.type)])


def fill(
    objects: ColumnObjects, name: str, start: int, values: Sequence[float | None], changed: Iterable[int] = ()
) -> Catalog:
    """Install values from an offset on as what the column's present function gave; `changed` are addresses.

    They take the place of the fragment's segments that they overlap.
    """
    owner, catalog = column(objects, name), catalogs.load(objects)
    base = manifests.load(objects, owner)
    identity = catalogs.identity(catalog, DATASET, owner)
    number = start // catalog.fragment_rows
    before = base.with_identity(identity).fragment(number)
    made = segment(objects, owner, start, values)
    others = [s for s in before.segments if s.end <= made.start or made.end <= s.start]
    at = start - number * catalog.fragment_rows
    rows = BitMap(range(at, at + len(values)))
    new = Fragment(
        number,
        tuple(sorted([*others, made], key=lambda s: s.start)),
        before.done | rows,
        before.kept - rows,
        before.hidden - rows,
        before.errors,
    )
    return commit.commit_fragments(objects, DATASET, owner, base, [new], {number: BitMap(changed)}, identity)


def values_of(objects: ColumnObjects, name: str) -> dict[int, object]:
    """Offset → value of everything that lies in a column's files and is not hidden."""
    owner = column(objects, name)
    found: dict[int, object] = {}
    rows = catalogs.load(objects).fragment_rows
    for fragment in manifests.load(objects, owner).fragments:
        for part in fragment.segments:
            values = read_values(objects, part, owner.field, part.start, part.end).to_pylist()
            found |= dict(zip(range(part.start, part.end), values, strict=True))
        found = {o: v for o, v in found.items() if o // rows != fragment.number or o % rows not in fragment.hidden}
    return found


def with_errors(objects: ColumnObjects, name: str, offsets: Sequence[int], number: int = 0) -> None:
    """Say of some rows that they were skipped."""
    detail = {"type": "ValueError", "message": "m", "traceback": "t", "attempts": 1}
    table = row_errors.error_table(np.array(offsets), pa.array([detail] * len(offsets), ERROR_TYPE))
    rewrite(objects, name, replace(manifest(objects, name).fragment(number), errors=row_errors.put(objects, table)))


def rewrite(objects: ColumnObjects, name: str, fragment: Fragment) -> None:
    """Install a fragment as it is given, right or wrong."""
    owner = column(objects, name)
    identity = catalogs.identity(catalogs.load(objects), DATASET, owner)
    commit.commit_fragments(objects, DATASET, owner, manifests.load(objects, owner), [fragment], {}, identity)


def keys(objects: ColumnObjects, folder: str) -> set[str]:
    return {info.key for info in objects.store.list(f"{objects.folder}/{folder}")}
