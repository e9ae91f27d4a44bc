"""The fingerprint of a function: it changes when what the function computes may change, and only then.

It covers the function's code, defaults and closure, the globals it reads, and in the same way every function and class
of the project that it uses. Of installed libraries only the names count. Module names of the project do not, so a
script and a module that is imported have the same functions.
"""

from __future__ import annotations

import ast
import builtins
import copy
import enum
import functools
import importlib
import importlib.util
import inspect
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from floodmark.compute.errors import NoCanonicalForm, NoSource, NoVersion
from floodmark.compute.functions.canonical import CannotEncode, Encoder
from floodmark.compute.functions.forms import Form, Ref, leaf, ordered, settle, settle_all, unordered
from floodmark.compute.functions.project import Project, load, module_of, top_package
from floodmark.compute.functions.references import Imported, Outer, Reference, references
from floodmark.compute.functions.source_text import (
    Source,
    SourceMissing,
    class_namespace,
    class_source,
    function_source,
    own_methods,
)
from floodmark.compute.functions.syntax import digest

_FORMAT = "floodmark function 1"
_HINT = "Give the function a version of your own, and change it with the code: udf(version=…)."
_STEP_HINT = "Give the step a version of your own, and change it with the code: version=…"
_ITSELF = "<itself>"


class Versioned:
    """A function with a version: where another function uses it, a given version stands for its code."""

    function: Callable[..., Any]
    given_version: str | None


def fingerprint(function: Callable[..., Any], name: str, kind: str) -> str:
    """32 hexadecimal digits for a function that is called as `kind`; `name` is for errors."""
    graph = _Graph(Project.of(function))
    return _told(graph, lambda: graph.encode(function, name), name, kind, _HINT)


def step_fingerprint(function: Callable[..., Any], kwargs: Mapping[str, Any], name: str, kind: str) -> str:
    """The fingerprint of a function and of the keyword arguments it is called with, whatever the function's name."""
    graph = _Graph(Project.of(function), unnamed=_definitions(function))

    def encode() -> Form:
        return ordered("step", [graph.encode(function, name), graph.encode(dict(kwargs), f"{name} kwargs")])

    return _told(graph, encode, name, kind, _STEP_HINT)


def _told(graph: _Graph, encode: Callable[[], Form], name: str, kind: str, hint: str) -> str:
    try:
        root = encode()
        graph.complete()
    except SourceMissing as missing:
        raise NoSource(f"the version of {name!r} cannot be told: {missing}", hint=hint, function=name) from missing
    except CannotEncode as error:
        why = f" ({error.why})" if error.why else ""
        raise NoCanonicalForm(
            f"the version of {name!r} cannot be told: it uses {error.path}, a {error.value_type}{why}",
            hint=hint,
            function=name,
            value_type=error.value_type,
            path=error.path,
        ) from error
    except RecursionError as error:
        raise NoVersion(
            f"the version of {name!r} cannot be told: its code or a value is nested too deeply",
            hint=hint,
            function=name,
        ) from error
    digests = settle_all(graph.contents)
    return leaf(_FORMAT, kind, settle(root, digests), *sorted(set(digests))).hex()[:32]


@dataclass
class _Graph:
    """The functions and classes that a function uses, each with what it consists of."""

    project: Project
    unnamed: tuple[Any, ...] = ()
    """Definitions whose own name means nothing."""
    contents: list[Form] = field(default_factory=list)
    _found: list[tuple[Any, str]] = field(default_factory=list)
    _numbers: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._encoder = Encoder(self._other)
        self.encode = self._encoder.encode

    def complete(self) -> None:
        """Look into every definition found, and into those found by that."""
        while len(self.contents) < len(self._found):
            definition, path = self._found[len(self.contents)]
            look = self._class if isinstance(definition, type) else self._function
            self.contents.append(look(definition, path))

    def _other(self, value: Any, path: str) -> Form:
        """The form of what is not a plain value."""
        match value:
            case Versioned(given_version=str() as version):
                return leaf("version", version)
            case Versioned():
                return self.encode(value.function, path)
            case types.FunctionType() if self.project.has(value.__globals__.get("__name__")):
                return self._ref(value, path)
            case type() if self.project.has(value.__module__):
                return self._ref(value, path)
            case types.MethodType():
                return ordered("method", [self.encode(value.__self__, path), self.encode(value.__func__, path)])
            case functools.partial():
                return self._encoder.items("partial", (value.func, value.args, value.keywords), path)
            case types.BuiltinFunctionType(__self__=owner) if not isinstance(owner, types.ModuleType | None):
                return ordered("method", [self.encode(owner, path), leaf("name", value.__name__)])
            case types.ModuleType():
                return self._module(value, path)
            case type() | np.ufunc():
                return _library(value)
            case enum.Enum():
                return ordered("member", [self.encode(type(value), path), leaf("name", value.name)])
        if self.project.has(type(value).__module__):
            return self._object(value, path)
        if typing.get_origin(value) is not None:
            return self._encoder.items("generic", (typing.get_origin(value), typing.get_args(value)), path)
        if type(value).__module__ == "typing":  # such as a type variable: it means nothing when the code runs
            return leaf("typing", repr(value))
        wrapped = getattr(value, "__wrapped__", None) or getattr(value, "py_func", None)
        if wrapped is not None:
            others = getattr(value, "registry", None)  # of functools.singledispatch
            return ordered("wrapped", [_wrapper(value), self.encode(wrapped, path), self.encode(others, path)])
        if inspect.isroutine(value):
            return _library(value)
        raise CannotEncode(value, path)

    def _ref(self, definition: Any, path: str) -> Ref:
        number = self._numbers.get(id(definition))
        if number is None:
            number = self._numbers[id(definition)] = len(self._found)
            self._found.append((definition, path))
        return Ref(number)

    def _function(self, function: types.FunctionType, path: str) -> Form:
        source = _located(function_source, function, path)
        source, around = self._nameless(function, source, _closure(function), function.__globals__)
        return ordered(
            "function",
            [
                digest(source.node),
                self.encode(function.__defaults__, path),
                self.encode(function.__kwdefaults__, path),
                self._references(source, function.__globals__, around, path),
            ],
        )

    def _class(self, cls: type, path: str) -> Form:
        source = _located(class_source, cls, path)
        methods = own_methods(cls)
        around = {name: value for method in methods for name, value in _closure(method).items() if value is not cls}
        source, around = self._nameless(cls, source, around, class_namespace(cls))
        made = {name: value for name, value in vars(cls).items() if _is_data(cls, name, value)}
        defaults = [(method.__name__, method.__defaults__, method.__kwdefaults__) for method in methods]
        return ordered(
            "class",
            [
                digest(source.node),
                self._encoder.items("bases", [type(cls), *cls.__bases__], path),
                self._encoder.pairs("members", made, path),
                self._encoder.items("defaults", defaults, path),
                self._references(source, class_namespace(cls), around, path),
            ],
        )

    def _nameless(
        self, definition: Any, source: Source, around: dict[str, Any], namespace: Mapping[str, Any]
    ) -> tuple[Source, dict[str, Any]]:
        """The source without its own name, if that means nothing; where the code calls itself, it still does."""
        old = getattr(source.node, "name", None)
        if old is None or not any(definition is other for other in self.unnamed):
            return source, around
        node = copy.deepcopy(source.node)
        assert not isinstance(node, ast.Lambda)
        node.name = _ITSELF
        # A variable of the same name is none of the definition's own name.
        uses = any(isinstance(reference, Outer) and reference.name == old for reference in references(node))
        if uses and {**namespace, **around}.get(old) is definition:
            for inner in ast.walk(node):
                if isinstance(inner, ast.Name) and inner.id == old:
                    inner.id = _ITSELF
            around = {**around, _ITSELF: definition}
        return Source(node, source.text), around

    def _references(self, source: Source, namespace: Mapping[str, Any], around: Mapping[str, Any], path: str) -> Form:
        forms = []
        for reference in references(source.node):
            name = ".".join((reference.name if isinstance(reference, Outer) else reference.module, *reference.members))
            form = self._reference(reference, namespace, around, f"{path} → {name}")
            forms.append(ordered("reference", [leaf("name", name), form]))
        return unordered("references", forms)

    def _reference(
        self, reference: Reference, namespace: Mapping[str, Any], around: Mapping[str, Any], path: str
    ) -> Form:
        if isinstance(reference, Imported):
            return self._imported(reference, namespace, path)
        for scope in (around, namespace):
            if reference.name in scope:
                return self._member(scope[reference.name], reference.members, path)
        return leaf("builtin" if hasattr(builtins, reference.name) else "missing")

    def _member(self, value: Any, members: tuple[str, ...], path: str) -> Form:
        """What is taken of a module of the project; of anything else, all of it counts."""
        while members and isinstance(value, types.ModuleType) and self.project.has(value.__name__):
            first, *rest = members
            if not hasattr(value, first) and importlib.util.find_spec(f"{value.__name__}.{first}") is not None:
                load(f"{value.__name__}.{first}", path)  # a submodule is no member of its package until then
            if not hasattr(value, first):
                return leaf("missing")
            value, members = getattr(value, first), tuple(rest)
        return self.encode(value, path)

    def _imported(self, reference: Imported, namespace: Mapping[str, Any], path: str) -> Form:
        """What an import inside the function gives; a library is not loaded for this."""
        name = reference.module
        if reference.level:
            package = namespace.get("__package__") or str(namespace.get("__name__", "")).rpartition(".")[0]
            name = importlib.util.resolve_name("." * reference.level + reference.module, package)
        if not self.project.has(name):
            return leaf("library", name)
        return self._member(load(name, path), reference.members, path)

    def _module(self, module: types.ModuleType, path: str) -> Form:
        if self.project.has(module.__name__):
            raise CannotEncode(module, path, "a module of the project as a value: what is used of it cannot be told")
        return leaf("library", module.__name__)

    def _object(self, value: Any, path: str) -> Form:
        """An object of a class of the project: its class, its state, and what it holds if it is a container."""
        content: Form = leaf("none")
        plain: Any
        for plain in (dict, list, tuple, set, frozenset, str, bytes, int, float):
            if isinstance(value, plain):
                content = self.encode(plain(value), path)
                break
        state = value.__getstate__()
        return ordered("object", [self.encode(type(value), path), content, self._state(state, path)])

    def _state(self, state: Any, path: str) -> Form:
        if isinstance(state, dict):
            parts = [
                ordered("pair", [leaf("name", str(name)), self.encode(value, f"{path}.{name}")])
                for name, value in state.items()
                if name not in functools.WRAPPER_ASSIGNMENTS  # what a decorator copies for show
            ]
            return unordered("state", parts)
        if isinstance(state, tuple) and len(state) == 2:  # what the object has, and what is in its slots
            return ordered("states", [self._state(part, path) for part in state])
        return self.encode(state, path)


def _definitions(function: Any) -> tuple[Any, ...]:
    """The function or class that is called in the end, and those around it: partial, bound, decorated."""
    found: list[Any] = []
    waiting = [function]
    while waiting:
        value = waiting.pop()
        if any(value is other for other in found):
            continue
        found.append(value)
        inner = [getattr(value, name, None) for name in ("func", "__func__", "__wrapped__")]
        waiting += [each for each in inner if callable(each)]
        if not isinstance(value, type) and not inspect.isroutine(value):
            waiting.append(type(value))
    return tuple(found)


def _located(find: Callable[[Any], Source], definition: Any, path: str) -> Source:
    try:
        return find(definition)
    except SourceMissing as missing:
        raise SourceMissing(f"{path}: {missing}") from missing


def _closure(function: types.FunctionType) -> dict[str, Any]:
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return {name: cell.cell_contents for name, cell in cells if not _is_empty(cell)}


def _is_empty(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return True
    return False


def _is_data(cls: type, name: str, value: object) -> bool:
    """Whether a member of a class is a value: not a method, a slot, an enum's own member, or a note of Python's."""
    if name.startswith("_") and (name.endswith("_") or name.startswith("_abc_")):
        return False
    return not hasattr(type(value), "__get__") and not isinstance(value, enum.Enum | cls)


def _wrapper(value: Any) -> bytes:
    """What a library has put around a function: it bears the function's own name, so that says nothing."""
    if isinstance(value, types.FunctionType):
        return leaf("library", top_package(module_of(value)).lstrip("_"), value.__code__.co_qualname)
    return _library(type(value))


def _library(value: Any) -> bytes:
    """A thing of a library, by name; where inside the library it is defined differs between releases."""
    named = value if hasattr(value, "__name__") else type(value)
    return leaf("library", top_package(module_of(named)).lstrip("_"), getattr(named, "__qualname__", named.__name__))
