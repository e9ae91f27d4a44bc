"""What users do with computed columns: add, alter, drop, look at them, and find their functions again."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import pyarrow as pa
from pyroaring import BitMap

from floodmark.compute.errors import BadRowErrors, ColumnExists, UnknownFunction
from floodmark.compute.functions.udf import Udf, check_shippable, known
from floodmark.compute.pinned import Pinned
from floodmark.compute.stored import define, row_errors
from floodmark.compute.stored.catalog import FIRST_FIELD_ID, FRAGMENT_ROWS, Catalog, Column, FunctionRef
from floodmark.compute.stored.define import Definition
from floodmark.compute.stored.objects import ColumnObjects

_log = logging.getLogger(__name__)

FRAGMENT_BYTES = 256 << 20
"""How many bytes of records a fragment spans at most, so that wide rows make small fragments."""

_FEWEST_ROWS = 1 << 12

_used: dict[tuple[str, str], Udf] = {}
"""The functions that columns of this process were given: a lambda has nobody else to keep it."""


@dataclass(frozen=True)
class FragmentStatus:
    """How much of a fragment is computed: current rows, those done, and those with a value of an older version."""

    number: int
    start: int
    end: int
    rows: int
    done: int
    kept: int
    errors: int


@dataclass(frozen=True)
class ColumnStatus:
    """A computed column and how much of it is there."""

    name: str
    type: pa.DataType
    nullable: bool
    inputs: tuple[str, ...]
    function: FunctionRef
    generation: int
    fragments: tuple[FragmentStatus, ...]

    @property
    def rows(self) -> int:
        return sum(f.rows for f in self.fragments)

    @property
    def done(self) -> int:
        return sum(f.done for f in self.fragments)

    @property
    def kept(self) -> int:
        return sum(f.kept for f in self.fragments)

    @property
    def errors(self) -> int:
        return sum(f.errors for f in self.fragments)


def add(
    pinned: Pinned,
    name: str,
    udf: Udf,
    inputs: Sequence[str] | None,
    fragment_rows: int | None,
    exist_ok: bool,
) -> Column:
    """Add a column to the catalog, when nothing speaks against it."""
    definition = _definition(name, udf, inputs)
    present = pinned.catalog.find(name)
    if exist_ok and present is not None:
        if present.function.is_same(definition.function) and present.inputs == definition.inputs:
            return present
        raise ColumnExists(
            f"dataset {pinned.name!r} has a computed column {name!r} with another function",
            hint=f"alter_column({name!r}, …) gives it this one",
            column=name,
        )
    check_shippable(udf)
    is_first = pinned.catalog.next_field_id == FIRST_FIELD_ID  # a dropped one settled the size of fragments, too
    rows = _usual_rows(pinned) if fragment_rows is None and is_first else fragment_rows
    return define.add(pinned.objects, definition, pinned.layout.read_schema.names, rows)


def with_inputs(udf: Udf | tuple[Udf, Sequence[str]], inputs: Sequence[str] | None) -> tuple[Udf, Sequence[str] | None]:
    """A function and its inputs, which may come as a pair."""
    if isinstance(udf, tuple) and len(udf) == 2 and inputs is None:
        return udf
    return cast("Udf", udf), inputs


def alter(pinned: Pinned, name: str, udf: Udf, inputs: Sequence[str] | None) -> Column:
    """Give a column another function."""
    column = pinned.catalog.column(name)
    definition = _definition(name, udf, column.inputs if inputs is None and udf.inputs is None else inputs)
    check_shippable(udf)
    return define.alter(pinned.objects, definition, pinned.layout.read_schema.names)


def drop(objects: ColumnObjects, name: str) -> None:
    """Take a column out of the catalog."""
    define.drop(objects, name)


def _definition(name: str, udf: Udf, inputs: Sequence[str] | None) -> Definition:
    if not isinstance(udf, Udf):
        raise _no_udf(udf)
    _used[udf.name, udf.version] = udf
    function = FunctionRef(udf.name, udf.version, udf.kind, udf.module, udf.qualname, udf.source)
    return Definition(
        name=name,
        type=udf.type,
        nullable=udf.nullable,
        inputs=udf.inputs_from(inputs),
        function=function,
        min_checkpoint_size=udf.min_checkpoint_size,
        max_checkpoint_size=udf.max_checkpoint_size,
    )


def _no_udf(given: object) -> TypeError:
    return TypeError(f"{given!r} is no udf: put @floodmark.udf(returns=…) before it")


def _usual_rows(pinned: Pinned) -> int | None:
    """Fragments of a million records, fewer when records are wide."""
    rows = sum(f.rows for f in pinned.selection.files)
    size = sum(f.size for f in pinned.selection.files)
    if rows == 0 or size / rows * FRAGMENT_ROWS <= FRAGMENT_BYTES:
        return None
    fitting = FRAGMENT_BYTES * rows // size
    return max(_FEWEST_ROWS, 1 << (fitting.bit_length() - 1))


def function_of(column: Column, given: Udf | None) -> Udf:
    """The function that computes a column: the one given, or one of this name and version that this process knows."""
    name, version = column.function.name, column.function.version
    if given is not None and not isinstance(given, Udf):
        raise _no_udf(given)
    found = given or _used.get((name, version)) or known(name, version)
    if found is None:
        where = f"{column.function.module}.{column.function.qualname}".strip(".")
        raise UnknownFunction(
            f"the function {where!r} (version {version}) of column {column.name!r} is not known here",
            hint="import the module that defines it, or give it with udf=…",
            column=column.name,
            module=column.function.module,
        )
    if (found.name, found.version) != (name, version):
        raise UnknownFunction(
            f"column {column.name!r} is computed by {name!r} (version {version}), not by {found.name!r} "
            f"(version {found.version})",
            hint=f"alter_column({column.name!r}, …) makes it the column's function; then backfill again",
            column=column.name,
            module=column.function.module,
        )
    return found


def status(pinned: Pinned) -> list[ColumnStatus]:
    """All columns, with their coverage."""
    return [_status(pinned, column) for column in pinned.catalog.columns]


def _status(pinned: Pinned, column: Column) -> ColumnStatus:
    manifest = pinned.manifest(column).under(pinned.identity(column))
    fragments = []
    for window in pinned.windows(column, None):
        found = manifest.fragment(window.number)
        skipped = _count_errors(pinned, found.errors, found.done & window.live, window.base)
        counts = (len(window.live), len(found.done & window.live), len(found.kept & window.live))
        fragments.append(FragmentStatus(window.number, window.start, window.end, *counts, skipped))
    parts = (column.name, column.type, column.nullable, column.inputs, column.function, column.generation)
    return ColumnStatus(*parts, tuple(fragments))


def errors(pinned: Pinned, name: str) -> pa.Table:
    """The errors of current rows, in offset order."""
    column = pinned.catalog.column(name)
    manifest = pinned.manifest(column)
    tables = [
        _error_rows(pinned, found.errors, (found.done | found.kept) & window.live, window.base)
        for window in pinned.windows(column, None)
        if (found := manifest.fragment(window.number)).errors is not None
    ]
    return pa.concat_tables([row_errors.EMPTY, *tables])


def _error_rows(pinned: Pinned, digest: str | None, live: BitMap, base: int) -> pa.Table:
    return row_errors.only(row_errors.load(pinned.objects, digest), live, base) if digest else row_errors.EMPTY


def _count_errors(pinned: Pinned, digest: str | None, live: BitMap, base: int) -> int:
    try:
        return int(_error_rows(pinned, digest, live, base).num_rows)
    except BadRowErrors as error:
        _log.warning("%s", error)  # the column itself can be looked at without
        return 0


def check_not_computed(catalog: Catalog, names: Sequence[str]) -> None:
    """Refuse a column of the dataset's own that has the name of a computed one."""
    computed = {column.name.lower() for column in catalog.columns}  # Spark and DuckDB do not tell capitals apart
    if taken := [name for name in names if name.lower() in computed]:
        raise ColumnExists(
            f"{taken[0]!r} is a computed column already",
            hint=f"choose another name, or drop_column({taken[0]!r}) first",
            column=taken[0],
        )
