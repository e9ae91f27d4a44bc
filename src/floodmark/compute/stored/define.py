"""Defining computed columns: adding, altering and dropping entries of the catalog, each refused before it does harm."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from floodmark.compute.checkpoints.batches import ERROR, ROWADDR
from floodmark.compute.errors import (
    BadColumn,
    BadColumnName,
    BadFragmentRows,
    ColumnExists,
    ColumnInUse,
    ColumnTypeChange,
    CyclicColumns,
    UnknownInput,
)
from floodmark.compute.stored import catalog as catalogs
from floodmark.compute.stored import manifest as manifests
from floodmark.compute.stored.catalog import FIRST_FIELD_ID, Catalog, Column, FunctionRef
from floodmark.compute.stored.objects import ColumnObjects


@dataclass(frozen=True)
class Definition:
    """What a user says about a computed column."""

    name: str
    type: pa.DataType
    nullable: bool
    inputs: tuple[str, ...]
    function: FunctionRef
    min_checkpoint_size: int = 1
    max_checkpoint_size: int | None = None


def add(
    objects: ColumnObjects,
    definition: Definition,
    records: Sequence[str],
    fragment_rows: int | None = None,
    reserved: Sequence[str] = (),
) -> Column:
    """Add a column; `records` are the names of the dataset's own columns, system columns included.

    `fragment_rows` can be chosen with the first column only. `reserved` names are nobody's, and may not be given.
    """
    check_name(definition.name, reserved)

    def added(before: Catalog) -> Catalog:
        _check_free(before, definition.name, records)
        _check_inputs(before, definition, records)
        cut = replace(before, fragment_rows=_fragment_rows(before, fragment_rows))
        origin = catalogs.origin(cut, definition.name, definition.type, definition.function, definition.inputs)
        column = Column(field_id=cut.next_field_id, origin=origin, **vars(definition))
        return replace(cut, next_field_id=cut.next_field_id + 1, columns=(*cut.columns, column))

    return catalogs.change(objects, added).column(definition.name)


def alter(objects: ColumnObjects, definition: Definition, records: Sequence[str]) -> Column:
    """Give a column another function; its values stay visible until they are computed again."""

    def altered(before: Catalog) -> Catalog:
        column = before.column(definition.name)
        if definition.type != column.type:
            raise ColumnTypeChange(
                f"column {column.name!r} has type {column.type}, and the function returns {definition.type}",
                hint=f"drop_column({column.name!r}) and add it with the new function, or give it another name",
                column=column.name,
            )
        _check_inputs(before, definition, records)
        same = definition.function.is_same(column.function)
        function = column.function if same else definition.function  # the same code, however it is written
        altered = column.altered or not same or definition.inputs != column.inputs
        return before.with_column(replace(column, **{**vars(definition), "function": function}, altered=altered))

    return catalogs.change(objects, altered).column(definition.name)


def drop(objects: ColumnObjects, name: str) -> Column:
    """Remove a column, which is returned; its files and checkpoints stay until they are collected."""
    dropped: list[Column] = []

    def without(before: Catalog) -> Catalog:
        column = before.column(name)
        if users := [c.name for c in before.dependents(name)]:
            raise ColumnInUse(
                f"column {name!r} is an input of {', '.join(map(repr, users))}",
                hint=f"drop {users[-1]!r} first",
                column=name,
                dependents=users,
            )
        dropped[:] = [column]
        spent = (column.origin,) if column.generation or column.altered or _had_errors(objects, column) else ()
        left = tuple(c for c in before.columns if c != column)
        return replace(before, columns=left, spent=tuple(dict.fromkeys((*before.spent, *spent))))

    catalogs.change(objects, without)
    return dropped[0]


def check_name(name: object, reserved: Sequence[str] = ()) -> None:
    """Refuse a name that no computed column can have; one that is taken is another matter."""
    if not isinstance(name, str):
        problem = f"{name!r} is not text"
    elif not name:
        problem = "it is empty"
    elif name.lower() in (ROWADDR, ERROR):
        problem = f"checkpoints have a column {name.lower()!r} of their own"
    elif name.lower() in [one.lower() for one in reserved]:
        problem = f"{name!r} belongs to the system columns"
    elif not _is_unicode(name):
        problem = f"{name!r} has half a character in it"
    else:
        return
    raise BadColumnName(
        f"a computed column cannot be called that: {problem}", hint="give it another name", column=str(name)
    )


def _is_unicode(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _had_errors(objects: ColumnObjects, column: Column) -> bool:
    """Whether rows of a column were skipped: what they give another time depends on the day."""
    try:
        return any(f.errors is not None for f in manifests.load(objects, column).fragments)
    except BadColumn:
        return True  # nobody can say


def _check_free(catalog: Catalog, name: str, records: Sequence[str]) -> None:
    # Spark and DuckDB do not tell capitals apart, so neither does a dataset.
    taken = [n for n in (*records, *(c.name for c in catalog.columns)) if n.lower() == name.lower()]
    if taken:
        raise ColumnExists(
            f"the dataset has a column {taken[0]!r} already",
            hint="give the computed column another name, or alter_column() to change its function",
            column=name,
        )


def _check_inputs(catalog: Catalog, definition: Definition, records: Sequence[str]) -> None:
    name = definition.name
    known = [*records, *(c.name for c in catalog.columns)]
    for wanted in definition.inputs:
        if wanted == name or wanted in {c.name for c in catalog.dependents(name)}:
            raise CyclicColumns(
                f"column {name!r} cannot be computed from {wanted!r}, which is computed from {name!r} itself",
                hint="take the inputs from columns that do not depend on it",
                column=name,
                input=wanted,
            )
        if wanted not in known:
            near = difflib.get_close_matches(wanted, known, 1)
            raise UnknownInput(
                f"the function of column {name!r} takes a column {wanted!r}, which the dataset does not have",
                hint=f"did you mean {near[0]!r}?" if near else f"the columns are {', '.join(known)}; or give inputs=",
                column=name,
                input=wanted,
            )


def _fragment_rows(catalog: Catalog, wanted: int | None) -> int:
    if wanted is None or wanted == catalog.fragment_rows:
        return catalog.fragment_rows
    if not 1 <= wanted <= 1 << 31:
        raise BadFragmentRows(f"a fragment cannot have {wanted} rows", hint="give 1 or more", fragment_rows=wanted)
    if catalog.next_field_id != FIRST_FIELD_ID:
        raise BadFragmentRows(
            f"the fragments of this dataset have {catalog.fragment_rows} rows since its first computed column",
            hint="leave fragment_rows out",
            fragment_rows=wanted,
        )
    return wanted
