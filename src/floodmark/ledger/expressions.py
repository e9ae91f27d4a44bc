"""Arrow expressions: whether one fits some columns, and which of them it looks at."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

_MISFIT = (pa.ArrowInvalid, pa.ArrowNotImplementedError, TypeError)


def check_fits(where: pc.Expression, schema: pa.Schema) -> None:
    """Raise what Arrow says when a filter does not work on these columns."""
    schema.empty_table().filter(where)


def fits(where: pc.Expression, schema: pa.Schema) -> bool:
    """Whether a filter works on these columns."""
    try:
        check_fits(where, schema)
    except _MISFIT:
        return False
    return True


def fields_of(where: pc.Expression, schema: pa.Schema) -> list[str]:
    """The columns that a filter which fits needs, and maybe others: Arrow only shows them in the expression's text."""
    text = str(where)
    if "FieldPath(" in text:  # a column by its number: only all of them keep the numbers
        return list(schema.names)
    named = [name for name in schema.names if name in text]
    return named if fits(where, pa.schema([schema.field(name) for name in named])) else list(schema.names)
