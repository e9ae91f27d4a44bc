"""Functions that compute a column: what they take, what they return, and which version they are."""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from floodmark.compute.errors import BadCheckpointSize, BadFunction, NoVersion, UnpicklableFunction
from floodmark.compute.functions.fingerprint import Versioned, fingerprint
from floodmark.compute.functions.parameters import Kind, Parameters, parameters_of
from floodmark.compute.functions.source_text import source_or_nothing
from floodmark.functions.function import UserFunction, name_of
from floodmark.functions.on_error import Handler, Retry, Skip
from floodmark.ledger.errors import UnsupportedType
from floodmark.ledger.types import canonical, check_supported

_defined: dict[str, list[weakref.ref[Udf]]] = {}  # by name, the newest last
_defining = threading.Lock()


@dataclass(frozen=True, eq=False, repr=False)
class Udf(UserFunction, Versioned):
    """A function of columns. It can be called like the function it was made of."""

    function: Callable[..., Any]
    name: str
    inputs: tuple[str, ...] | None
    """The columns it takes; None if only the one who adds the column can say."""
    type: pa.DataType
    nullable: bool
    parameters: Parameters
    min_checkpoint_size: int
    max_checkpoint_size: int | None
    on_error: tuple[Handler, ...]
    given_version: str | None

    _refused = UnpicklableFunction

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.callable()(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<udf {self.name}({', '.join(self.inputs or ('…',))}) → {self.type}>"

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        return self.function

    @property
    def kind(self) -> Kind:
        """What one call takes: the values of one row, one array per column, or a record batch."""
        return self.parameters.kind

    def _fingerprint(self) -> str:
        return fingerprint(self.function, self.name, self.kind)

    @functools.cached_property
    def source(self) -> str:
        """The text of the function, or nothing if it is not at hand."""
        return source_or_nothing(self.function)

    def inputs_from(self, given: Iterable[str] | None) -> tuple[str, ...]:
        """The columns it is called with: those given, or else its own; refused if they do not fit its parameters."""
        if isinstance(given, str):
            raise BadFunction(f"the inputs of {self.name!r} are a list of columns, not {given!r}", function=self.name)
        inputs = self.inputs if given is None else tuple(given)
        if inputs is None:
            raise BadFunction(
                f"the function {self.name!r} does not say which columns it takes",
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
    """Make a function, or a class with ``__call__``, the function of a computed column.

    The parameters are columns of the same names. Annotated ``pa.Array`` they are whole columns and the function
    returns an array of the same length; one parameter annotated ``pa.RecordBatch`` takes all its inputs at once;
    with any other annotation the function is called for each row. A class is made once per worker process.
    """
    if function is not None:  # @udf without its brackets
        raise _no_returns(name_of(function))

    def define(function: Callable[..., Any]) -> Udf:
        if isinstance(function, Udf):
            raise BadFunction(f"{function.name!r} is a udf already", function=function.name)
        own_name = name or name_of(function)
        data_type, may_be_null = _result(own_name, returns)
        may_be_null = may_be_null and nullable
        parameters = parameters_of(own_name, function)
        made = Udf(
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
        if made.inputs is not None:
            parameters.check(own_name, made.inputs)
        _check_sizes(made)
        with _defining:
            around = [other for other in _defined.get(own_name, ()) if other() is not None]
            _defined[own_name] = [*around, weakref.ref(made)]
        return made

    return define


def known(name: str, version: str) -> Udf | None:
    """The newest udf of this name and version that was defined in this process and is still around."""
    with _defining:
        defined = _defined.get(name, [])
    for reference in reversed(defined):
        candidate = reference()
        try:
            if candidate is not None and candidate.version == version:
                return candidate
        except NoVersion:  # it has no version, so it is not this one
            continue
    return None


def _result(name: str, returns: object) -> tuple[pa.DataType, bool]:
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
                f"{returns!r}, which {name!r} returns, is not the name of a type",
                hint='Use names like "float64", "string", "timestamp[us]", or a type: returns=pa.list_(pa.float32()).',
                function=name,
            ) from None
    if not isinstance(returns, pa.DataType):
        raise BadFunction(f"{name!r} returns an Arrow type or the name of one, not {returns!r}", function=name)
    try:
        data_type = canonical(returns, name)
        check_supported(data_type, name)
    except UnsupportedType as error:
        raise BadFunction(
            f"{name!r} returns {returns}, which a dataset cannot hold", hint=error.hint, function=name
        ) from error
    return data_type, may_be_null


def _no_returns(name: str) -> BadFunction:
    return BadFunction(
        f"the udf {name!r} does not say what it returns", hint='Say it: @udf(returns="float64").', function=name
    )


def _version(name: str, version: object) -> str | None:
    if version is not None and (not isinstance(version, str) or not version):
        raise BadFunction(f"the version of {name!r} is a text, not {version!r}", function=name)
    return version


def _columns(name: str, inputs: Iterable[str]) -> tuple[str, ...]:
    if isinstance(inputs, str):
        raise BadFunction(f"the inputs of {name!r} are a list of columns, not {inputs!r}", function=name)
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
                f"{name!r} skips rows that fail, which leaves nulls, but nullable=False allows none",
                hint="Leave out Skip, or allow nulls.",
                function=name,
            )
    return handlers


def _check_sizes(made: Udf) -> None:
    low, high = made.min_checkpoint_size, made.max_checkpoint_size
    for size in (low, high):
        if size is not None and (not isinstance(size, int) or isinstance(size, bool) or size < 1):
            raise _bad_size(made, f"takes whole numbers of rows from 1 on, not {size!r}")
    if high is not None and low > high:
        raise _bad_size(made, f"has min_checkpoint_size {low} above max_checkpoint_size {high}")


def _bad_size(made: Udf, what: str) -> BadCheckpointSize:
    return BadCheckpointSize(
        f"the udf {made.name!r} {what}", minimum=made.min_checkpoint_size, maximum=made.max_checkpoint_size
    )
