"""What a lake says against the columns that a pipeline declares: other types, and names that are taken or missing."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from floodmark.ledger.layout import fields_from
from floodmark.pipeline.declared import Column, Dataset
from floodmark.pipeline.errors import Problem

if TYPE_CHECKING:
    from floodmark.pipeline.pipeline import Pipeline

_FAMILIES = ("boolean", "integer", "floating", "decimal", "temporal", "nested")


def computed_columns(pipeline: Pipeline, lake: Any, there: set[str]) -> Iterator[Problem]:
    """Computed columns that their datasets, as they are in the lake, cannot have."""
    declared: dict[str, set[str]] = {}
    for column in pipeline.columns.values():
        declared.setdefault(column.owner, set()).add(column.name)
    for column in pipeline.columns.values():
        if column.owner.lower() in there and (layout := lake[column.owner].snapshot().layout) is not None:
            yield from _computed(column, lake[column.owner], layout.read_schema.names, declared[column.owner])


def _computed(column: Column, dataset: Any, own: list[str], declared: set[str]) -> Iterator[Problem]:
    called, place = column.called, column.place
    if taken := [name for name in own if name.lower() == column.name.lower()]:
        said = f"dataset {column.owner!r} has a column {taken[0]!r} of its own, so {called!r} cannot be computed"
        yield Problem(said, "give the computed column another name", place)
    known = [*own, *(one.name for one in dataset.catalog.columns), *declared]
    for name in column.taken:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]!r}?" if near else "give inputs=[…], or call the parameter like the column"
            said = f"column {called!r} is computed from {name!r}, which {column.owner!r} does not have"
            yield Problem(said, hint, place)
    present = dataset.catalog.find(column.name)
    if present is not None and present.type != column.udf.type:
        said = f"column {called!r} is declared as {column.udf.type}, and was made as {present.type}"
        hint = f"give it another name, or drop it: Lake(…)[{column.owner!r}].drop_column({column.name!r})"
        yield Problem(said, hint, place)


def other_types(declared: Dataset, dataset: Any, hint: str) -> Iterator[Problem]:
    """Columns that are declared with another type than they have."""
    if declared.schema is None or dataset.schema is None:
        return
    present: Mapping[str, pa.DataType] = {field.name: field.type for field in dataset.schema}
    for field in fields_from(declared.schema):
        known = present.get(field.name)
        if known is not None and _family(known) != _family(field.type):
            said = f"column {field.name!r} of {declared.name!r} is declared as {field.type}, and is {known}"
            yield Problem(said, hint, declared.place)


def _family(of: pa.DataType) -> str:
    """Types of one family are turned into each other when they are stored, so they do not differ here."""
    for family in _FAMILIES:
        if getattr(pa.types, f"is_{family}")(of):
            return family
    return "text" if pa.types.is_string(of) or pa.types.is_large_string(of) else str(of)
