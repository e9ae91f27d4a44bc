"""What a function takes, told from its parameters: values of one row, arrays, or record batches."""

from __future__ import annotations

import builtins
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import pyarrow as pa

from floodmark.compute.errors import BadFunction

Kind: TypeAlias = Literal["scalar", "array", "batch"]

_WRITTEN: dict[str, Kind] = {"Array": "array", "ChunkedArray": "array", "RecordBatch": "batch"}
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@dataclass(frozen=True)
class Parameters:
    """How a function is called: its kind, and how many columns it takes."""

    kind: Kind
    names: tuple[str, ...] | None
    """The columns that its parameters name; None if they name none (a record batch, or ``*columns``)."""
    least: int
    most: int | None

    def check(self, function: str, inputs: tuple[str, ...]) -> None:
        """Refuse columns that the function cannot be called with."""
        if not inputs:
            raise BadFunction(f"the function {function!r} takes no column", function=function)
        if not all(isinstance(name, str) for name in inputs):
            raise BadFunction(f"the inputs of {function!r} are names of columns, not {inputs!r}", function=function)
        if len(set(inputs)) < len(inputs) and self.kind == "batch":
            raise BadFunction(f"the function {function!r} is given a column twice: {inputs}", function=function)
        if len(inputs) < self.least or (self.most is not None and len(inputs) > self.most):
            wanted = f"{self.least}" if self.least == self.most else f"{self.least} to {self.most or 'any number'}"
            raise BadFunction(
                f"the function {function!r} takes {wanted} columns, not {len(inputs)}: {', '.join(inputs)}",
                function=function,
            )


def parameters_of(name: str, function: Callable[..., Any]) -> Parameters:
    """How this function, class or object is called with rows."""
    if not callable(function):
        raise BadFunction(f"{name!r} is not a function: {function!r}", function=name)
    called = _called(name, function)
    if inspect.iscoroutinefunction(called) or inspect.isgeneratorfunction(called) or inspect.isasyncgenfunction(called):
        raise BadFunction(
            f"the function {name!r} is async or a generator, which returns no values",
            hint="Return the values from a plain function: asyncio.run(…), list(…).",
            function=name,
        )
    try:
        signature = inspect.signature(called)
    except (TypeError, ValueError) as error:
        raise BadFunction(
            f"the parameters of {name!r} cannot be told: {error}", hint="Wrap it in a function.", function=name
        ) from error
    parameters = list(signature.parameters.values())
    if isinstance(function, type):
        parameters = parameters[1:]  # self
    columns = [p for p in parameters if p.kind in _POSITIONAL and p.default is p.empty]
    rest = [p for p in parameters if p.kind is p.VAR_POSITIONAL]
    for p in parameters:
        if p.kind is p.KEYWORD_ONLY and p.default is p.empty:
            raise BadFunction(
                f"the parameter {p.name!r} of {name!r} can only be given by name",
                hint="Columns are given by position: move it before the *.",
                function=name,
            )
    kinds = {_kind(p.annotation, called) for p in (*columns, *rest)}
    if not kinds:
        raise BadFunction(
            f"the function {name!r} takes no column",
            hint="Its parameters without a default are the columns it takes.",
            function=name,
        )
    if len(kinds) > 1 or (kinds == {"batch"} and len(columns) + len(rest) > 1):
        raise BadFunction(
            f"the parameters of {name!r} are of different kinds",
            hint="Annotate all with pa.Array, or one alone with pa.RecordBatch, or none.",
            function=name,
        )
    kind = kinds.pop()
    if kind == "batch":
        return Parameters(kind, None, least=1, most=None)
    return Parameters(
        kind,
        names=None if rest else tuple(p.name for p in columns),
        least=max(1, len(columns)),
        most=None if rest else sum(p.kind in _POSITIONAL for p in parameters),
    )


def _called(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    if not isinstance(function, type):
        return function
    call: Callable[..., Any] | None = getattr(function, "__call__", None)  # noqa: B004
    if not inspect.isfunction(call):
        raise BadFunction(f"the class {name!r} has no __call__", hint="Define __call__(self, …).", function=name)
    try:
        inspect.signature(function).bind()
    except TypeError as error:
        raise BadFunction(
            f"the class {name!r} cannot be made without arguments: {error}",
            hint="Give the parameters of __init__ defaults, or make the object: udf(…)(Model(…)).",
            function=name,
        ) from error
    return call


def _kind(annotation: object, function: Callable[..., Any]) -> Kind:
    if isinstance(annotation, str):
        # Text, by `from __future__ import annotations`; what it names may be imported for type checkers only.
        kinds = {_kind_of_name(part, function) for part in re.split(r"[|\[\],\s]+", annotation.strip("'\"")) if part}
    else:
        kinds = {_kind_of_class(part) for part in (annotation, *getattr(annotation, "__args__", ()))}
    return next((kind for kind in ("batch", "array") if kind in kinds), "scalar")


def _kind_of_name(written: str, function: Callable[..., Any]) -> Kind:
    first, *members = written.split(".")
    scope = scope_of(function)
    if first in scope:
        value = scope[first]
        for member in members:
            value = getattr(value, member, None)
        return _kind_of_class(value)
    is_ours = first in ("pa", "pyarrow") if members else True
    return _WRITTEN.get((members or [first])[-1], "scalar") if is_ours else "scalar"


def _kind_of_class(value: object) -> Kind:
    if not isinstance(value, type):
        return "scalar"
    if issubclass(value, pa.Array | pa.ChunkedArray):
        return "array"
    return "batch" if issubclass(value, pa.RecordBatch) else "scalar"


def scope_of(function: Callable[..., Any]) -> Mapping[str, Any]:
    """The names that a function's annotations can mean, where they are text."""
    plain: Any = inspect.unwrap(function)
    plain = getattr(plain, "func", plain)
    plain = getattr(plain, "__func__", plain)
    if not inspect.isfunction(plain):
        plain = getattr(type(plain), "__call__", None)  # noqa: B004
    if not inspect.isfunction(plain):
        return {}
    return {**vars(builtins), **plain.__globals__, **inspect.getclosurevars(plain).nonlocals}
