"""The function of a step: its frames, its version, and calls with Arrow tables."""

from __future__ import annotations

import ast
import builtins
import functools
import inspect
import linecache
import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any, ForwardRef, NoReturn

import pyarrow as pa

from floodmark.errors import BadFunction, BadResult
from floodmark.functions.fingerprint import compute_step_fingerprint
from floodmark.functions.frames import FRAMES, FrameKind, ReturnedFrame, base_names, from_table, to_table
from floodmark.functions.function import UserFunction, callable_of, default_function_name
from floodmark.functions.source_text import find_source_text


@dataclass(frozen=True, eq=False, repr=False, init=False)
class StepFunction(UserFunction):
    """A function that takes one frame per input, plus `kwargs` by name, and returns one frame per output.

    Each parameter's annotation decides which frame it gets: `pd.DataFrame` (also the default), `pa.Table`,
    `pa.RecordBatch` or `pl.DataFrame`. The function may return any of them, several as a tuple or list. If there are
    no rows it returns a frame without rows: None is refused, because a forgotten `return` would empty the output.
    A class is created once per worker process, without arguments, and then called.
    """

    function: Callable[..., Any]
    kwargs: Mapping[str, Any]
    name: str
    given_version: str | None
    kinds: tuple[FrameKind, ...]
    outputs: int
    identity: str
    """Identifies the function in every process. A given version cannot, because the code may change under it."""

    _refused = BadFunction

    def __init__(
        self,
        function: Callable[..., Any],
        kwargs: Mapping[str, Any] | None = None,
        name: str | None = None,
        version: str | None = None,
        *,
        inputs: int,
        outputs: int,
    ) -> None:
        own_name = name or default_function_name(function)
        given = dict(kwargs or {})
        if version is not None and (not isinstance(version, str) or not version):
            raise BadFunction(f"the version of {own_name!r} must be a text, not {version!r}", function=own_name)
        for attribute, value in {
            "function": function,
            "kwargs": given,
            "name": own_name,
            "given_version": version,
            "kinds": read_frame_kinds(own_name, function, inputs, given),
            "outputs": outputs,
            "identity": uuid.uuid4().hex,
        }.items():
            object.__setattr__(self, attribute, value)

    def __repr__(self) -> str:
        return f"<step function {self.name}({', '.join(self.kinds)})>"

    def _fingerprint(self) -> str:
        """The fingerprint of the code, of everything that it uses, of the keyword arguments and of the frame kinds.

        The function's name, its module, comments and annotations do not count.
        """
        return compute_step_fingerprint(self.function, self.kwargs, self.name, f"frames {' '.join(self.kinds)}")

    @functools.cached_property
    def source(self) -> str:
        """The source text of the function; empty if it is not available."""
        return find_source_text(self.function)

    @property
    def _instance_version(self) -> str:
        return self.identity

    def __call__(self, frames: Sequence[pa.Table]) -> tuple[pa.Table, ...]:
        """Call the function with tables and return its tables."""
        return tuple(each.table for each in self.call_frames(frames, (None,) * self.outputs))

    def call_frames(self, frames: Sequence[pa.Table], outputs: Sequence[str | None]) -> tuple[ReturnedFrame, ...]:
        """Call the function with tables and return one frame for each of these outputs."""
        given = [from_table(table, kind) for table, kind in zip(frames, self.kinds, strict=True)]
        result = self.callable()(*given, **self.kwargs)
        several = list(result) if isinstance(result, tuple | list) else [result]
        if len(several) != self.outputs:
            expected = "1 frame" if self.outputs == 1 else f"{self.outputs} frames"
            what = "nothing" if result is None else f"{len(several)}"
            raise BadResult(
                f"the function {self.name!r} returned {what}, not {expected}",
                hint="Return one frame per output, in order of the outputs; a frame without rows if there are none.",
                function=self.name,
                output=None,
            )
        return tuple(to_table(each, self.name, output) for each, output in zip(several, outputs, strict=True))


# Frame kinds from annotations

_LIBRARIES = {"pd": "pandas", "pl": "polars", "pa": "pyarrow"}  # the usual import names
_KNOWN_LIBRARIES = ("builtins", "pandas", "polars", "pyarrow", "pyspark", "numpy")
_FRAME_NAMES = {name for _, name in FRAMES} | {"LazyFrame"}
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_UNKNOWN = ("", "")
_HINT = "Annotate it pd.DataFrame, pa.Table, pa.RecordBatch or pl.DataFrame"


def read_frame_kinds(
    name: str, function: Callable[..., Any], inputs: int, kwargs: Mapping[str, Any]
) -> tuple[FrameKind, ...]:
    """The frames that a function takes, one per input, from its annotations; pandas without an annotation.

    `BadFunction` if it cannot be called with this number of frames and these keyword arguments.
    """
    hint = "Return frames from a plain function: asyncio.run(…), pd.concat(…)."
    called, signature = callable_of(name, function, "a frame", hint)
    own = [None] if isinstance(function, type) else []  # self
    try:
        signature.bind(*own, *[None] * inputs, **kwargs)
    except TypeError as error:
        given = "1 frame" if inputs == 1 else f"{inputs} frames"
        named = f" and kwargs {', '.join(kwargs)}" if kwargs else ""
        raise BadFunction(
            f"the function {name!r} cannot be called with {given}{named}: {error}",
            hint="Define one parameter per input, in the order of the inputs, and take kwargs by name.",
            function=name,
        ) from error
    parameters = list(signature.parameters.values())
    frames = [p for p in parameters if p.kind in _POSITIONAL][len(own) :]
    rest = [p for p in parameters if p.kind is p.VAR_POSITIONAL]
    chosen = (frames + rest * inputs)[:inputs]
    names = _Scope(_definition(called))
    return tuple(_frame_kind(name, p, names) for p in chosen)


def _definition(function: Any) -> FunctionType | None:
    """The function that has the annotations, inside decorators, methods, partials and callable objects."""
    for _ in range(100):  # a limit for wrappers that wrap themselves
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


def _frame_kind(name: str, parameter: inspect.Parameter, names: _Scope) -> FrameKind:
    """The frame that a parameter's annotation names; pandas if it names no frame."""
    classes = [
        names.meaning(p) if isinstance(p, str) else _class_name(p) for p in _split_annotation(parameter.annotation)
    ]
    for library, written in classes:
        if (library, written) in FRAMES:
            return FRAMES[library, written]
    for library, written in classes:
        if library in _KNOWN_LIBRARIES and written not in ("object", "NoneType"):
            what = f"is a {library}.{written}".replace("builtins.", "")
            _refuse(name, parameter, f"{what}, which is not a frame", f"{_HINT}.")
        if written in _FRAME_NAMES:
            what = f"is a {library}.{written}, which steps do not support" if library else ""
            _refuse(
                name,
                parameter,
                what or f"is annotated {written!r}, but the library of this {written} is unknown",
                f"{_HINT}; or import {written} at run time in the function's module.",
            )
    return "pandas"


def _refuse(name: str, parameter: inspect.Parameter, what: str, hint: str) -> NoReturn:
    raise BadFunction(f"the parameter {parameter.name!r} of {name!r} {what}", hint=hint, function=name)


def _split_annotation(annotation: Any) -> Sequence[Any]:
    """An annotation and the parts inside it: unions, Annotated, Optional. Texts are split into names."""
    if annotation is inspect.Parameter.empty:
        return ()
    if isinstance(annotation, ForwardRef):
        annotation = annotation.__forward_arg__
    if isinstance(annotation, str):  # by `from __future__ import annotations`
        return [part for part in re.split(r"[|\[\],\s'\"]+", annotation) if part]
    inner = (getattr(annotation, "__origin__", None), *getattr(annotation, "__args__", ()))
    parts = [annotation]
    for one in inner:
        parts += _split_annotation(one) if isinstance(one, str | ForwardRef) else [one]
    return parts


def _class_name(value: object) -> tuple[str, str]:
    """The library and name of a class, or of the frame class that it derives from."""
    if not isinstance(value, type):
        return _UNKNOWN
    names = base_names(value)
    return next((name for name in names if name in FRAMES), names[0])


@dataclass(frozen=True)
class _Scope:
    """The meaning of names in the scope of a function's definition."""

    function: FunctionType | None

    def meaning(self, written: str) -> tuple[str, str]:
        """The library and name of the class that a written name refers to; an empty library if that is unknown."""
        first, *members = written.split(".")
        if first in self._scope:
            value = self._scope[first]
            for member in members:
                value = getattr(value, member, None)
            return _class_name(value)
        if (imported := self._imported(first)) is not None:
            library, *inside = [*imported.split("."), *members]
            return library, inside[-1] if inside else ""
        if members:
            library = _LIBRARIES.get(first, first)
            return (library if library in _KNOWN_LIBRARIES else ""), members[-1]
        return "", written

    @functools.cached_property
    def _scope(self) -> Mapping[str, Any]:
        if self.function is None:
            return vars(builtins)
        nonlocals = inspect.getclosurevars(self.function).nonlocals
        return {**vars(builtins), **self.function.__globals__, **nonlocals}

    def _imported(self, name: str) -> str | None:
        """The full name of an import in the source around the function; None if there is none or more than one."""
        for scope in reversed(self._imports):
            if name in scope:
                return next(iter(scope[name])) if len(scope[name]) == 1 else None
        return None

    @functools.cached_property
    def _imports(self) -> list[dict[str, set[str]]]:
        """The imports of the file, then of each enclosing function from the outside in."""
        if self.function is None:
            return []
        code = self.function.__code__
        text = "".join(linecache.getlines(code.co_filename, self.function.__globals__))
        try:
            enclosing: list[ast.AST] = [ast.parse(text)]
        except (SyntaxError, ValueError):
            return []
        scopes = []
        while enclosing:
            imports: dict[str, set[str]] = {}
            within: list[ast.AST] = []
            for node in _statements(enclosing.pop()):
                if isinstance(node, ast.Import | ast.ImportFrom):
                    for bound, source in _imported_names(node):
                        imports.setdefault(bound, set()).add(source)
                elif node.lineno <= code.co_firstlineno <= (node.end_lineno or node.lineno):
                    within.append(node)
            scopes.append(imports)
            enclosing += within[:1]
        return scopes


_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def _statements(node: ast.AST) -> Iterator[ast.Import | ast.ImportFrom | _Definition]:
    """The imports and definitions in the body of a node, also inside `if` and `try`, but not inside definitions."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom | _Definition):
            yield child
        else:
            yield from _statements(child)


def _imported_names(node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, str]]:
    for alias in node.names:
        if isinstance(node, ast.ImportFrom):
            yield alias.asname or alias.name, f"{'.' if node.level else node.module}.{alias.name}"
        elif alias.asname:
            yield alias.asname, alias.name
        else:
            top = alias.name.partition(".")[0]
            yield top, top
