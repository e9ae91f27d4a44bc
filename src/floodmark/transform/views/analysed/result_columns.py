"""The columns of a view's result: as a dataset keeps them, or refused where it cannot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from floodmark.ledger.errors import DuplicateColumns, UnsupportedType
from floodmark.ledger.layout import check_column_name
from floodmark.ledger.spark_types import arrow_schema
from floodmark.ledger.types import canonical, check_supported
from floodmark.storage.slices import Vocabulary
from floodmark.transform.views.analysed.analysis import RESERVED_PREFIX, SourceSchema
from floodmark.transform.views.defined.definition import UdfColumn
from floodmark.transform.views.errors import BadView


def result_columns(struct: Any) -> pa.Schema:
    """The columns of a Spark frame as a dataset keeps them; `UnsupportedType` names one that it cannot keep."""
    fields = []
    for field in arrow_schema(struct):
        if pa.types.is_null(field.type):
            raise UnsupportedType(
                f"column {field.name!r} is always null, and so has no type",
                hint="say which: cast(null as string), cast(null as int), …",
                column=field.name,
                data_type=str(field.type),
            )
        kept = canonical(field.type, field.name)
        check_supported(kept, field.name)
        fields.append(pa.field(field.name, kept))
    return pa.schema(fields)


def udf_field(column: UdfColumn) -> pa.Field:
    """The column that a function computes, as a dataset keeps it."""
    return pa.field(column.name, canonical(column.type, column.name))


def check_names(names: Sequence[str], sources: Mapping[str, SourceSchema]) -> None:
    """Refuse names that are there twice, or belong to somebody else."""
    _check_distinct(names, sources)
    for name in names:
        check_column_name(name, Vocabulary())
        if name.lower().startswith(RESERVED_PREFIX):
            raise BadView(
                f"column name {name!r} belongs to Floodmark",
                hint=f"rename it: names that begin with {RESERVED_PREFIX!r} are taken",
                column=name,
            )


def _check_distinct(names: Sequence[str], sources: Mapping[str, SourceSchema]) -> None:
    seen: dict[str, str] = {}
    for name in names:
        if (other := seen.get(name.lower())) is None:
            seen[name.lower()] = name
            continue
        having = [alias for alias, source in sources.items() if name.lower() in map(str.lower, source.schema.names)]
        where = f": {' and '.join(map(repr, having))} have one each" if len(having) > 1 else ""
        spelled = repr(name) if other == name else f"{other!r} and {name!r} (capitals do not count)"
        raise DuplicateColumns(
            f"its result has two columns {spelled}{where}",
            hint="name the columns instead of *, and one of these otherwise (… as other_name)",
            columns=[other, name],
            sources=having,
        )
