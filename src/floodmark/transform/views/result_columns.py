"""The columns of a view's result: as a dataset keeps them, or refused where it cannot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from floodmark.ledger.layout import check_column_name, check_distinct
from floodmark.ledger.spark_types import arrow_schema
from floodmark.ledger.types import canonical, check_supported
from floodmark.storage.slices import Vocabulary
from floodmark.transform.views.analysis import RESERVED_PREFIX
from floodmark.transform.views.definition import UdfColumn
from floodmark.transform.views.errors import BadView


def result_columns(struct: Any) -> pa.Schema:
    """The columns of a Spark frame as a dataset keeps them; `UnsupportedType` names one that it cannot keep."""
    fields = []
    for field in arrow_schema(struct):
        kept = canonical(field.type, field.name)
        check_supported(kept, field.name)
        fields.append(pa.field(field.name, kept))
    return pa.schema(fields)


def udf_field(column: UdfColumn) -> pa.Field:
    """The column that a function computes, as a dataset keeps it."""
    return pa.field(column.name, canonical(column.type, column.name))


def check_names(names: Sequence[str]) -> None:
    """Refuse names that are there twice, or belong to somebody else."""
    check_distinct(list(names))
    for name in names:
        check_column_name(name, Vocabulary())
        if name.lower().startswith(RESERVED_PREFIX):
            raise BadView(
                f"column name {name!r} belongs to Floodmark",
                hint=f"rename it: names that begin with {RESERVED_PREFIX!r} are taken",
                column=name,
            )
