"""The function of a computed column: `udf`, `Udf`, its options, and the kind of its parameters."""

from __future__ import annotations

import builtins
import functools
import inspect
import re
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import pyarrow as pa

from floodmark.errors import BadFunction, BadOption, NoVersion, UnsupportedType
from floodmark.functions.fingerprint import VersionedFunction, compute_fingerprint
from floodmark.functions.function import UserFunction, callable_of, default_function_name
from floodmark.functions.on_error import Handler, Retry, Skip
from floodmark.functions.source_text import find_source_text
from floodmark.ledger.types import canonical_type, check_supported

_defined: dict[str, list[weakref.ref[Udf]]] = {}  # by name, the newest last
_defined_lock = threading.Lock()


@dataclass(frozen=True, eq=False, repr=False)
class Udf(UserFunction, VersionedFunction):
    """A function of columns. It can be called like the function that it wraps."""

    function: Callable[..., Any]
    name: str
    inputs: tuple[str, ...] | None
    """The columns that it takes; None if they are given when a column is added."""
    type: pa.DataType
    nullable: bool
    parameters: Parameters
    min_checkpoint_size: int
    max_checkpoint_size: int | None
    on_error: tuple[Handler, ...]
    given_version: str | None

    _refused = BadFunction

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.callable()(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<udf {self.name}({', '.join(self.inputs or ('…',))}) → {self.type}>"

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        return self.function

    @property
    def kind(self) -> CallKind:
        """The arguments of one call: the values of one row, one array per column, or a record batch."""
        return self.parameters.kind

    def _fingerprint(self) -> str:
        return compute_fingerprint(self.function, self.name, self.kind)

    @functools.cached_property
    def source(self) -> str:
        """The source text of the function; empty if it is not available."""
        return find_source_text(self.function)

    def inputs_from(self, given: Iterable[str] | None) -> tuple[str, ...]:
        """The columns of a call: the given ones, or else its own. Refused if they do not fit its parameters."""
        if isinstance(given, str):
            raise BadFunction(
                f"the inputs of {self.name!r} must be a list of columns, not {given!r}", function=self.name
            )
        inputs = self.inputs if given is None else tuple(given)
        if inputs is None:
            raise BadFunction(
                f"the function {self.name!r} does not name the columns it takes",
                hint='Name them: add_column(…, inputs=["…"]) or udf(inputs=["…"]).',
                function=self.name,
            )
        self.parameters.check(self.name, inputs)
        return inputs


def udf(
    function: Callable[..., Any] | None = None,
    /,
    *,
    returns: str | pa.DataType | pa.Field | None = None,
    inputs: Iterable[str] | None = None,
    name: str | None = None,
    version: str | None = None,
    nullable: bool = True,
    min_checkpoint_size: int = 1,
    max_checkpoint_size: int | None = None,
    on_error: Handler | Iterable[Handler] = (),
) -> Callable[[Callable[..., Any]], Udf]:
    """Declare a function, or a class with ``__call__``, as the function of a computed column.

    Each parameter takes the column of the same name. With parameters annotated ``pa.Array`` the function takes whole
    columns and returns an array of the same length. One parameter annotated ``pa.RecordBatch`` takes all inputs at
    once. With any other annotation the function is called for each row. A class is created once per worker process.
    """
    if function is not None:  # @udf without parentheses
        raise _no_returns(default_function_name(function))

    def define(function: Callable[..., Any]) -> Udf:
        if isinstance(function, Udf):
            raise BadFunction(f"{function.name!r} is a udf already", function=function.name)
        own_name = name or default_function_name(function)
        data_type, may_be_null = _result_type(own_name, returns)
        may_be_null = may_be_null and nullable
        parameters = parameters_of(own_name, function)
        defined = Udf(
            function=function,
            name=own_name,
            inputs=parameters.names if inputs is None else _columns(own_name, inputs),
            type=data_type,
            nullable=may_be_null,
            parameters=parameters,
            min_checkpoint_size=min_checkpoint_size,
            max_checkpoint_size=max_checkpoint_size,
            on_error=_handlers(own_name, on_error, may_be_null),
            given_version=_version(own_name, version),
        )
        if defined.inputs is not None:
            parameters.check(own_name, defined.inputs)
        _check_sizes(defined)
        with _defined_lock:
            existing = [other for other in _defined.get(own_name, ()) if other() is not None]
            _defined[own_name] = [*existing, weakref.ref(defined)]
        return defined

    return define


def find_udf(name: str, version: str) -> Udf | None:
    """The newest udf of this name and version that was defined in this process and still exists."""
    with _defined_lock:
        defined = _defined.get(name, [])
    for reference in reversed(defined):
        candidate = reference()
        try:
            if candidate is not None and candidate.version == version:
                return candidate
        except NoVersion:  # a udf without a version does not match
            continue
    return None


def _result_type(name: str, returns: object) -> tuple[pa.DataType, bool]:
    if returns is None:
        raise _no_returns(name)
    may_be_null = True
    if isinstance(returns, pa.Field):
        field: pa.Field = returns
        returns, may_be_null = field.type, field.nullable
    if isinstance(returns, str):
        try:
            returns = pa.type_for_alias(returns)
        except ValueError:
            raise BadFunction(
                f"returns={returns!r} of {name!r} is not the name of a type",
                hint='Use names like "float64", "string", "timestamp[us]", or a type: returns=pa.list_(pa.float32()).',
                function=name,
            ) from None
    if not isinstance(returns, pa.DataType):
        raise BadFunction(f"returns of {name!r} must be an Arrow type or its name, not {returns!r}", function=name)
    try:
        data_type = canonical_type(returns, name)
        check_supported(data_type, name)
    except UnsupportedType as error:
        raise BadFunction(
            f"{name!r} returns {returns}, which a dataset cannot hold", hint=error.hint, function=name
        ) from error
    return data_type, may_be_null


def _no_returns(name: str) -> BadFunction:
    return BadFunction(f"the udf {name!r} has no return type", hint='Add it: @udf(returns="float64").', function=name)


def _version(name: str, version: object) -> str | None:
    if version is not None and (not isinstance(version, str) or not version):
        raise BadFunction(f"the version of {name!r} must be a text, not {version!r}", function=name)
    return version


def _columns(name: str, inputs: Iterable[str]) -> tuple[str, ...]:
    if isinstance(inputs, str):
        raise BadFunction(f"the inputs of {name!r} must be a list of columns, not {inputs!r}", function=name)
    return tuple(inputs)


def _handlers(name: str, on_error: Handler | Iterable[Handler], nullable: bool) -> tuple[Handler, ...]:
    handlers = (on_error,) if isinstance(on_error, Retry | Skip) else tuple(on_error)
    for handler in handlers:
        if not isinstance(handler, Retry | Skip):
            raise BadFunction(
                f"on_error of {name!r} takes Retry(…) and Skip(…), not {handler!r}",
                hint="For example on_error=[Retry(TimeoutError), Skip(ValueError)].",
                function=name,
            )
        if isinstance(handler, Skip) and not nullable:
            raise BadFunction(
                f"{name!r} skips rows that fail, which leaves nulls, but has nullable=False",
                hint="Leave out Skip, or allow nulls.",
                function=name,
            )
    return handlers


def _check_sizes(function: Udf) -> None:
    low, high = function.min_checkpoint_size, function.max_checkpoint_size
    for size in (low, high):
        if size is not None and (not isinstance(size, int) or isinstance(size, bool) or size < 1):
            raise _bad_size(function, f"takes checkpoint sizes of at least 1 row, not {size!r}")
    if high is not None and low > high:
        raise _bad_size(function, f"has min_checkpoint_size {low} above max_checkpoint_size {high}")


def _bad_size(function: Udf, what: str) -> BadOption:
    return BadOption(
        f"the udf {function.name!r} {what}", minimum=function.min_checkpoint_size, maximum=function.max_checkpoint_size
    )


# Parameters

CallKind: TypeAlias = Literal["scalar", "array", "batch"]

_KINDS_BY_NAME: dict[str, CallKind] = {"Array": "array", "ChunkedArray": "array", "RecordBatch": "batch"}
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@dataclass(frozen=True)
class Parameters:
    """The parameters of a function: their kind, and the number of columns it takes."""

    kind: CallKind
    names: tuple[str, ...] | None
    """The columns that the parameters name; None for a record batch or ``*columns``."""
    least: int
    most: int | None

    def check(self, function: str, inputs: tuple[str, ...]) -> None:
        """Refuse columns with which the function cannot be called."""
        if not inputs:
            raise BadFunction(f"the function {function!r} takes no column", function=function)
        if not all(isinstance(name, str) for name in inputs):
            raise BadFunction(f"the inputs of {function!r} must be column names, not {inputs!r}", function=function)
        if len(set(inputs)) < len(inputs) and self.kind == "batch":
            raise BadFunction(f"the function {function!r} gets a column twice: {inputs}", function=function)
        if len(inputs) < self.least or (self.most is not None and len(inputs) > self.most):
            count = f"{self.least}" if self.least == self.most else f"{self.least} to {self.most or 'any number'}"
            raise BadFunction(
                f"the function {function!r} takes {count} columns, not {len(inputs)}: {', '.join(inputs)}",
                function=function,
            )


def parameters_of(name: str, function: Callable[..., Any]) -> Parameters:
    """The parameters of a function, class or object."""
    hint = "Return the values from a plain function: asyncio.run(…), list(…)."
    called, signature = callable_of(name, function, "values", hint)
    parameters = list(signature.parameters.values())
    if isinstance(function, type):
        parameters = parameters[1:]  # self
    columns = [p for p in parameters if p.kind in _POSITIONAL and p.default is p.empty]
    rest = [p for p in parameters if p.kind is p.VAR_POSITIONAL]
    for p in parameters:
        if p.kind is p.KEYWORD_ONLY and p.default is p.empty:
            raise BadFunction(
                f"the parameter {p.name!r} of {name!r} is keyword-only, but columns are passed by position",
                hint="Move the parameter before the *.",
                function=name,
            )
    kinds = {_kind(p.annotation, called) for p in (*columns, *rest)}
    if not kinds:
        raise BadFunction(
            f"the function {name!r} takes no column",
            hint="Add a parameter without a default for each column.",
            function=name,
        )
    if len(kinds) > 1 or (kinds == {"batch"} and len(columns) + len(rest) > 1):
        raise BadFunction(
            f"the parameters of {name!r} are of different kinds",
            hint="Annotate all of them with pa.Array, or a single one with pa.RecordBatch, or none.",
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


def _kind(annotation: object, function: Callable[..., Any]) -> CallKind:
    if isinstance(annotation, str):
        # Text, by `from __future__ import annotations`. The name may be imported for type checkers only.
        kinds = {_kind_of_name(part, function) for part in re.split(r"[|\[\],\s]+", annotation.strip("'\"")) if part}
    else:
        kinds = {_kind_of_class(part) for part in (annotation, *getattr(annotation, "__args__", ()))}
    return next((kind for kind in ("batch", "array") if kind in kinds), "scalar")


def _kind_of_name(written: str, function: Callable[..., Any]) -> CallKind:
    first, *members = written.split(".")
    scope = annotation_scope(function)
    if first in scope:
        value = scope[first]
        for member in members:
            value = getattr(value, member, None)
        return _kind_of_class(value)
    is_ours = first in ("pa", "pyarrow") if members else True
    return _KINDS_BY_NAME.get((members or [first])[-1], "scalar") if is_ours else "scalar"


def _kind_of_class(value: object) -> CallKind:
    if not isinstance(value, type):
        return "scalar"
    if issubclass(value, pa.Array | pa.ChunkedArray):
        return "array"
    return "batch" if issubclass(value, pa.RecordBatch) else "scalar"


def annotation_scope(function: Callable[..., Any]) -> Mapping[str, Any]:
    """The names to which a function's text annotations can refer."""
    plain: Any = inspect.unwrap(function)
    plain = getattr(plain, "func", plain)
    plain = getattr(plain, "__func__", plain)
    if not inspect.isfunction(plain):
        plain = getattr(type(plain), "__call__", None)  # noqa: B004
    if not inspect.isfunction(plain):
        return {}
    return {**vars(builtins), **plain.__globals__, **inspect.getclosurevars(plain).nonlocals}
