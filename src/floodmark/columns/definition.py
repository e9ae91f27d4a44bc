"""Add, alter and drop computed columns in the catalog. Invalid definitions are refused before anything is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from floodmark.columns import catalog as catalogs
from floodmark.columns import manifest as manifests
from floodmark.columns.catalog import FIRST_FIELD_ID, Catalog, ColumnDefinition, ColumnObjects, FunctionRef
from floodmark.columns.checkpoint_batch import ERROR, ROWADDR
from floodmark.engine.progress import is_encodable
from floodmark.errors import (
    BadName,
    BadOption,
    ColumnExists,
    DerivationError,
    TypeMismatch,
    UnknownColumn,
    UnreadableColumn,
    close_matches,
)


@dataclass(frozen=True)
class ColumnDraft:
    """A computed column as the user defines it."""

    name: str
    type: pa.DataType
    nullable: bool
    inputs: tuple[str, ...]
    function: FunctionRef
    min_checkpoint_size: int = 1
    max_checkpoint_size: int | None = None


def add(
    objects: ColumnObjects,
    definition: ColumnDraft,
    records: Sequence[str],
    fragment_rows: int | None = None,
    reserved: Sequence[str] = (),
) -> ColumnDefinition:
    """Add a column to the catalog.

    `records` are the names of the columns of the ledger, system columns included. `fragment_rows` can be chosen with
    the first computed column only. No column may have one of the `reserved` names.
    """
    check_name(definition.name, reserved)

    def added(before: Catalog) -> Catalog:
        _check_free(before, definition.name, records)
        _check_inputs(before, definition, records)
        cut = replace(before, fragment_rows=_fragment_rows(before, fragment_rows))
        origin = catalogs.origin(cut, definition.name, definition.type, definition.function, definition.inputs)
        column = ColumnDefinition(field_id=cut.next_field_id, origin=origin, **vars(definition))
        return replace(cut, next_field_id=cut.next_field_id + 1, columns=(*cut.columns, column))

    return catalogs.change(objects, added).column(definition.name)


def alter(objects: ColumnObjects, definition: ColumnDraft, records: Sequence[str]) -> ColumnDefinition:
    """Replace the function of a column. Its values stay visible until they are computed again."""

    def altered(before: Catalog) -> Catalog:
        column = before.column(definition.name)
        if definition.type != column.type:
            raise TypeMismatch(
                f"column {column.name!r} has type {column.type}, and the function returns {definition.type}",
                hint=f"drop_column({column.name!r}) and add it with the new function, or give it another name",
                column=column.name,
            )
        _check_inputs(before, definition, records)
        same = definition.function.is_same(column.function)
        function = column.function if same else definition.function  # the source text may differ, the code is the same
        altered = column.altered or not same or definition.inputs != column.inputs
        return before.with_column(replace(column, **{**vars(definition), "function": function}, altered=altered))

    return catalogs.change(objects, altered).column(definition.name)


def drop(objects: ColumnObjects, name: str) -> ColumnDefinition:
    """Remove a column from the catalog and return it. Garbage collection removes its files and checkpoints later."""
    dropped: list[ColumnDefinition] = []

    def without(before: Catalog) -> Catalog:
        column = before.column(name)
        if users := [c.name for c in before.dependents(name)]:
            raise DerivationError(
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
    """Refuse a name that no computed column can have. Whether another column has the name is not checked here."""
    if not isinstance(name, str):
        problem = f"{name!r} is not text"
    elif not name:
        problem = "it is empty"
    elif name.lower() in (ROWADDR, ERROR):
        problem = f"checkpoints use a column {name.lower()!r}"
    elif name.lower() in [one.lower() for one in reserved]:
        problem = f"{name!r} belongs to the system columns"
    elif not is_encodable(name, "utf-8"):
        problem = f"{name!r} contains half a surrogate pair"
    else:
        return
    raise BadName(f"a computed column cannot have this name: {problem}", hint="choose another name", column=str(name))


def _had_errors(objects: ColumnObjects, column: ColumnDefinition) -> bool:
    """Whether rows of a column were skipped. A function that failed once may succeed the next time."""
    try:
        return any(f.errors is not None for f in manifests.load(objects, column).fragments)
    except UnreadableColumn:
        return True  # unknown, so assume errors


def _check_free(catalog: Catalog, name: str, records: Sequence[str]) -> None:
    # Spark and DuckDB ignore case in column names, so datasets do, too.
    clashing = [n for n in (*records, *(c.name for c in catalog.columns)) if n.lower() == name.lower()]
    if clashing:
        raise ColumnExists(
            f"the dataset already has a column {clashing[0]!r}",
            hint="choose another name for the computed column, or call alter_column() to change its function",
            column=name,
        )


def _check_inputs(catalog: Catalog, definition: ColumnDraft, records: Sequence[str]) -> None:
    name = definition.name
    known = [*records, *(c.name for c in catalog.columns)]
    for input_name in definition.inputs:
        if input_name == name or input_name in {c.name for c in catalog.dependents(name)}:
            raise DerivationError(
                f"column {name!r} cannot be computed from {input_name!r}, which is computed from {name!r} itself",
                hint="choose inputs that do not depend on it",
                column=name,
                input=input_name,
            )
        if input_name not in known:
            near = close_matches(input_name, known)
            raise UnknownColumn(
                f"the function of column {name!r} takes a column {input_name!r}, which the dataset does not have",
                hint=f"did you mean {near[0]!r}?" if near else f"pass inputs= with some of {', '.join(known)}",
                column=name,
                input=input_name,
            )


def _fragment_rows(catalog: Catalog, chosen: int | None) -> int:
    if chosen is None or chosen == catalog.fragment_rows:
        return catalog.fragment_rows
    if not 1 <= chosen <= 1 << 31:
        raise BadOption(f"a fragment cannot have {chosen} rows", hint="choose 1 to 2147483648", fragment_rows=chosen)
    if catalog.next_field_id != FIRST_FIELD_ID:
        raise BadOption(
            f"the first computed column of this dataset set its fragments to {catalog.fragment_rows} rows",
            hint="leave fragment_rows out",
            fragment_rows=chosen,
        )
    return chosen
