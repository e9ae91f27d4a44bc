"""The functions of views: found again by name and version when a view is refreshed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from floodmark.compute.errors import UnknownFunction
from floodmark.compute.functions.udf import Udf, known

if TYPE_CHECKING:
    from floodmark.transform.views.defined.definition import UdfColumn

_declared: dict[tuple[str, str], Udf] = {}
"""The functions that views of this process were declared with: a lambda has nobody else to keep it."""


def remember(udf: Udf) -> None:
    """Keep a function for refreshes in this process."""
    _declared[udf.name, udf.version] = udf


def function_of(view: str, column: UdfColumn, given: Sequence[Udf]) -> Udf:
    """The function of a view's column: among those given, or one of its name and version that this process knows."""
    for udf in given:
        if not isinstance(udf, Udf):
            raise TypeError(f"{udf!r} is no udf: put @floodmark.udf(returns=…) before it")
    wanted = column.function.name, column.function.version
    for udf in given:
        if (udf.name, udf.version) == wanted:
            return udf
    found = _declared.get(wanted) or known(*wanted)
    if found is not None:
        return found
    where = f"{column.function.module}.{column.function.qualname}".strip(".")
    others = [udf.version for udf in given if udf.name == column.function.name]
    raise UnknownFunction(
        f"the function {where!r} (version {wanted[1]}) of column {column.name!r} of view {view!r} is not known here"
        + (f"; the one given has version {others[0]}" if others else ""),
        hint="declare the view again with the function as it is now: lake.view(…, select=…)"
        if others
        else "import the module that defines it, or give it: refresh(udfs=[…])",
        column=column.name,
        module=column.function.module,
    )
