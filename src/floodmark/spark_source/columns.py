"""Which columns a Spark job gets: all there are, or those that its own schema names."""

from __future__ import annotations

import difflib
from typing import Any

import pyarrow as pa

from floodmark.ledger.spark_types import spark_schema
from floodmark.spark_source.errors import BadColumns


def named_columns(there: pa.Schema, wanted: Any, name: str) -> tuple[str, ...]:
    """The columns that a Spark schema names, each of which has to be there as the schema has it."""
    known = {field.name: field for field in spark_schema(there).fields}
    for field in wanted.fields:
        found = known.get(field.name)
        if found is None:
            near = difflib.get_close_matches(field.name, known, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(known)}"
            raise BadColumns(f"dataset {name!r} has no column {field.name!r}", hint=hint)
        is_type, asked_type = found.dataType.simpleString(), field.dataType.simpleString()
        if is_type != asked_type:
            hint = f"ask for {is_type} and cast the column afterwards"
            raise BadColumns(f"column {field.name!r} of {name!r} is {is_type}, not {asked_type}", hint=hint)
        if found.nullable and not field.nullable:
            hint = "leave out NOT NULL in the schema"
            raise BadColumns(f"column {field.name!r} of {name!r} may be null", hint=hint)
    return tuple(field.name for field in wanted.fields)
