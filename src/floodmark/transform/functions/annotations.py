"""Which frames a function takes, told by its annotations, also those whose imports are for type checkers only."""

from __future__ import annotations

import ast
import builtins
import functools
import inspect
import linecache
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any, ForwardRef, NoReturn

from floodmark.transform.errors import BadFunction
from floodmark.transform.functions.frames import FRAMES, Kind, bases

_LIBRARIES = {"pd": "pandas", "pl": "polars", "pa": "pyarrow"}  # as everybody imports them
_NO_FRAMES = ("builtins", "pandas", "polars", "pyarrow", "pyspark", "numpy")
_NAMES = {name for _, name in FRAMES} | {"LazyFrame"}
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_NOBODY = ("", "")
_HINT = "Annotate it pd.DataFrame, pa.Table, pa.RecordBatch or pl.DataFrame"


def kinds_of(name: str, function: Callable[..., Any], inputs: int, kwargs: Mapping[str, Any]) -> tuple[Kind, ...]:
    """The frames that a function takes, one per input, by its annotations; pandas where it has none.

    `BadFunction` if it cannot be called with so many frames and these keyword arguments.
    """
    called = _called(name, function)
    if inspect.iscoroutinefunction(called) or inspect.isgeneratorfunction(called) or inspect.isasyncgenfunction(called):
        raise BadFunction(
            f"the function {name!r} is async or a generator, which returns no frame",
            hint="Return frames from a plain function: asyncio.run(…), pd.concat(…).",
            function=name,
        )
    try:
        signature = inspect.signature(called)
    except (TypeError, ValueError) as error:
        raise BadFunction(
            f"the parameters of {name!r} cannot be told: {error}", hint="Wrap it in a function.", function=name
        ) from error
    own = [None] if isinstance(function, type) else []  # self
    try:
        signature.bind(*own, *[None] * inputs, **kwargs)
    except TypeError as error:
        given = "1 frame" if inputs == 1 else f"{inputs} frames"
        named = f" and kwargs {', '.join(kwargs)}" if kwargs else ""
        raise BadFunction(
            f"the function {name!r} cannot be called with {given}{named}: {error}",
            hint="It gets one frame per input, in their order, and kwargs by name.",
            function=name,
        ) from error
    parameters = list(signature.parameters.values())
    frames = [p for p in parameters if p.kind in _POSITIONAL][len(own) :]
    rest = [p for p in parameters if p.kind is p.VAR_POSITIONAL]
    chosen = (frames + rest * inputs)[:inputs]
    names = _Names(_definition(called))
    return tuple(_frame_kind(name, p, names) for p in chosen)


def _called(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    if not callable(function):
        raise BadFunction(f"{name!r} is not a function: {function!r}", function=name)
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
            hint="Give the parameters of __init__ defaults, or give an object: Model(…).",
            function=name,
        ) from error
    return call


def _definition(function: Any) -> FunctionType | None:
    """The function whose annotations are seen through decorators, methods, partials and objects that are called."""
    for _ in range(100):  # a wrapper that wraps itself is not our concern
        if isinstance(function, functools.partial):
            function = function.func
        elif inspect.ismethod(function):
            function = function.__func__
        elif hasattr(function, "__wrapped__"):
            function = function.__wrapped__
        elif isinstance(function, FunctionType):
            return function
        else:
            function = getattr(type(function), "__call__", None)  # noqa: B004
    return None


def _frame_kind(name: str, parameter: inspect.Parameter, names: _Names) -> Kind:
    """The frame that a parameter's annotation asks for; one that says nothing of frames means pandas."""
    meant = [names.meaning(p) if isinstance(p, str) else _named(p) for p in _parts(parameter.annotation)]
    for library, written in meant:
        if (library, written) in FRAMES:
            return FRAMES[library, written]
    for library, written in meant:
        if library in _NO_FRAMES and written not in ("object", "NoneType"):
            what = f"is a {library}.{written}".replace("builtins.", "")
            _refuse(name, parameter, f"{what}, which is no frame", f"{_HINT}.")
        if written in _NAMES:
            what = f"is a {library}.{written}, which is no frame that a step can give" if library else ""
            _refuse(
                name,
                parameter,
                what or f"is annotated {written!r}, and whose {written} that is cannot be told",
                f"{_HINT}; or import {written} where the function is defined, not for type checkers only.",
            )
    return "pandas"


def _refuse(name: str, parameter: inspect.Parameter, what: str, hint: str) -> NoReturn:
    raise BadFunction(f"the parameter {parameter.name!r} of {name!r} {what}", hint=hint, function=name)


def _parts(annotation: Any) -> Sequence[Any]:
    """An annotation and what stands inside it: unions, Annotated, Optional; texts are cut into names."""
    if annotation is inspect.Parameter.empty:
        return ()
    if isinstance(annotation, ForwardRef):
        annotation = annotation.__forward_arg__
    if isinstance(annotation, str):  # by `from __future__ import annotations`
        return [part for part in re.split(r"[|\[\],\s'\"]+", annotation) if part]
    inner = (getattr(annotation, "__origin__", None), *getattr(annotation, "__args__", ()))
    parts = [annotation]
    for one in inner:
        parts += _parts(one) if isinstance(one, str | ForwardRef) else [one]
    return parts


def _named(value: object) -> tuple[str, str]:
    """The library and name of a class; those of a frame if it derives from one."""
    if not isinstance(value, type):
        return _NOBODY
    names = bases(value)
    return next((name for name in names if name in FRAMES), names[0])


@dataclass(frozen=True)
class _Names:
    """What names mean where a function is defined."""

    function: FunctionType | None

    def meaning(self, written: str) -> tuple[str, str]:
        """The library and the name of the class that is meant; no library if that cannot be told."""
        first, *members = written.split(".")
        if first in self._scope:
            value = self._scope[first]
            for member in members:
                value = getattr(value, member, None)
            return _named(value)
        if (imported := self._imported(first)) is not None:
            library, *inside = [*imported.split("."), *members]
            return library, inside[-1] if inside else ""
        if members:
            library = _LIBRARIES.get(first, first)
            return (library if library in _NO_FRAMES else ""), members[-1]
        return "", written

    @functools.cached_property
    def _scope(self) -> Mapping[str, Any]:
        if self.function is None:
            return vars(builtins)
        nonlocals = inspect.getclosurevars(self.function).nonlocals
        return {**vars(builtins), **self.function.__globals__, **nonlocals}

    def _imported(self, name: str) -> str | None:
        """What a name is imported from in the source around the function; None if nowhere, or from several places."""
        for scope in reversed(self._imports):
            if name in scope:
                return next(iter(scope[name])) if len(scope[name]) == 1 else None
        return None

    @functools.cached_property
    def _imports(self) -> list[dict[str, set[str]]]:
        """The imports of the file, and then of each function around this one, going inwards."""
        if self.function is None:
            return []
        code = self.function.__code__
        text = "".join(linecache.getlines(code.co_filename, self.function.__globals__))
        try:
            around: list[ast.AST] = [ast.parse(text)]
        except (SyntaxError, ValueError):
            return []
        scopes = []
        while around:
            found: dict[str, set[str]] = {}
            within: list[ast.AST] = []
            for node in _statements(around.pop()):
                if isinstance(node, ast.Import | ast.ImportFrom):
                    for bound, source in _bound(node):
                        found.setdefault(bound, set()).add(source)
                elif node.lineno <= code.co_firstlineno <= (node.end_lineno or node.lineno):
                    within.append(node)
            scopes.append(found)
            around += within[:1]
        return scopes


_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def _statements(node: ast.AST) -> Iterator[ast.Import | ast.ImportFrom | _Definition]:
    """Imports and definitions in the body of a node, under whatever condition, but not those inside definitions."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom | _Definition):
            yield child
        else:
            yield from _statements(child)


def _bound(node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, str]]:
    for alias in node.names:
        if isinstance(node, ast.ImportFrom):
            yield alias.asname or alias.name, f"{'.' if node.level else node.module}.{alias.name}"
        elif alias.asname:
            yield alias.asname, alias.name
        else:
            top = alias.name.partition(".")[0]
            yield top, top
