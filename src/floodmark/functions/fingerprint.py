"""The fingerprint of a function: it changes only if the result of the function may change.

It covers the function's code, defaults and closure, the globals it reads, and in the same way every function and class
of the project that it uses. Installed libraries count by name only. Module names of the project do not count, so a
function has the same fingerprint in a script and in an imported module.
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
import sys
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from floodmark.engine.task import is_project_module
from floodmark.errors import NoVersion
from floodmark.functions.code_digest import ImportedName, OuterName, Reference, digest_code, find_references
from floodmark.functions.source_text import (
    DefinitionSource,
    SourceMissing,
    class_namespace,
    class_source,
    function_source,
    own_methods,
)
from floodmark.functions.value_digest import (
    CannotEncode,
    DefinitionRef,
    Encoder,
    Form,
    leaf,
    ordered_form,
    resolve_definitions,
    resolve_form,
    unordered_form,
)

_FORMAT = "floodmark function 1"
_HINT = "Set a version, and change it whenever the code changes: udf(version=…)."
_STEP_HINT = "Set a version on the step, and change it whenever the code changes: version=…"
_ITSELF = "<itself>"


class VersionedFunction:
    """A function with a version. If another function uses it, a given version replaces its code in the fingerprint."""

    function: Callable[..., Any]
    given_version: str | None


def compute_fingerprint(function: Callable[..., Any], name: str, kind: str) -> str:
    """32 hexadecimal digits for a function that is called as `kind`; `name` is for errors."""
    graph = _Graph(FunctionProject.of(function))
    return _graph_digest(graph, lambda: graph.encode(function, name), name, kind, _HINT)


def compute_step_fingerprint(function: Callable[..., Any], kwargs: Mapping[str, Any], name: str, kind: str) -> str:
    """The fingerprint of a function and its keyword arguments. The function's own name does not count."""
    graph = _Graph(FunctionProject.of(function), unnamed=_wrapped_definitions(function))

    def encode() -> Form:
        return ordered_form("step", [graph.encode(function, name), graph.encode(dict(kwargs), f"{name} kwargs")])

    return _graph_digest(graph, encode, name, kind, _STEP_HINT)


def _graph_digest(graph: _Graph, encode: Callable[[], Form], name: str, kind: str, hint: str) -> str:
    try:
        root = encode()
        graph.complete()
    except SourceMissing as missing:
        raise NoVersion(f"cannot compute the version of {name!r}: {missing}", hint=hint, function=name) from missing
    except CannotEncode as error:
        why = f" ({error.why})" if error.why else ""
        raise NoVersion(
            f"cannot compute the version of {name!r}: it uses {error.path}, a {error.value_type}{why}",
            hint=hint,
            function=name,
            value_type=error.value_type,
            path=error.path,
        ) from error
    except RecursionError as error:
        raise NoVersion(
            f"cannot compute the version of {name!r}: its code or a value is nested too deeply",
            hint=hint,
            function=name,
        ) from error
    digests = resolve_definitions(graph.contents)
    return leaf(_FORMAT, kind, resolve_form(root, digests), *sorted(set(digests))).hex()[:32]


@dataclass
class _Graph:
    """The functions and classes that a function uses, each with the form of its content."""

    project: FunctionProject
    unnamed: tuple[Any, ...] = ()
    """Definitions whose own name does not count."""
    contents: list[Form] = field(default_factory=list)
    _referenced: list[tuple[Any, str]] = field(default_factory=list)
    _numbers: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._encoder = Encoder(self._encode_other)
        self.encode = self._encoder.encode

    def complete(self) -> None:
        """Encode every definition that was referenced, and those that they reference."""
        while len(self.contents) < len(self._referenced):
            definition, path = self._referenced[len(self.contents)]
            encode = self._class if isinstance(definition, type) else self._function
            self.contents.append(encode(definition, path))

    def _encode_other(self, value: Any, path: str) -> Form:
        """The form of a value that is not plain."""
        match value:
            case VersionedFunction(given_version=str() as version):
                return leaf("version", version)
            case VersionedFunction():
                return self.encode(value.function, path)
            case types.FunctionType() if self.project.has(value.__globals__.get("__name__")):
                return self._ref(value, path)
            case type() if self.project.has(value.__module__):
                return self._ref(value, path)
            case types.MethodType():
                return ordered_form("method", [self.encode(value.__self__, path), self.encode(value.__func__, path)])
            case functools.partial():
                return self._encoder.items("partial", (value.func, value.args, value.keywords), path)
            case types.BuiltinFunctionType(__self__=owner) if not isinstance(owner, types.ModuleType | None):
                return ordered_form("method", [self.encode(owner, path), leaf("name", value.__name__)])
            case types.ModuleType():
                return self._module(value, path)
            case type() | np.ufunc():
                return _library(value)
            case enum.Enum():
                return ordered_form("member", [self.encode(type(value), path), leaf("name", value.name)])
        if self.project.has(type(value).__module__):
            return self._object(value, path)
        if typing.get_origin(value) is not None:
            return self._encoder.items("generic", (typing.get_origin(value), typing.get_args(value)), path)
        if type(value).__module__ == "typing":  # such as a type variable, which has no effect at run time
            return leaf("typing", repr(value))
        wrapped = getattr(value, "__wrapped__", None) or getattr(value, "py_func", None)
        if wrapped is not None:
            others = getattr(value, "registry", None)  # of functools.singledispatch
            return ordered_form("wrapped", [_wrapper(value), self.encode(wrapped, path), self.encode(others, path)])
        if inspect.isroutine(value):
            return _library(value)
        raise CannotEncode(value, path)

    def _ref(self, definition: Any, path: str) -> DefinitionRef:
        number = self._numbers.get(id(definition))
        if number is None:
            number = self._numbers[id(definition)] = len(self._referenced)
            self._referenced.append((definition, path))
        return DefinitionRef(number)

    def _function(self, function: types.FunctionType, path: str) -> Form:
        source = _find_source(function_source, function, path)
        source, closure = self._without_name(function, source, _closure(function), function.__globals__)
        return ordered_form(
            "function",
            [
                digest_code(source.node),
                self.encode(function.__defaults__, path),
                self.encode(function.__kwdefaults__, path),
                self._references(source, function.__globals__, closure, path),
            ],
        )

    def _class(self, cls: type, path: str) -> Form:
        source = _find_source(class_source, cls, path)
        methods = own_methods(cls)
        closure = {name: value for method in methods for name, value in _closure(method).items() if value is not cls}
        source, closure = self._without_name(cls, source, closure, class_namespace(cls))
        members = {name: value for name, value in vars(cls).items() if _is_data(cls, name, value)}
        defaults = [(method.__name__, method.__defaults__, method.__kwdefaults__) for method in methods]
        return ordered_form(
            "class",
            [
                digest_code(source.node),
                self._encoder.items("bases", [type(cls), *cls.__bases__], path),
                self._encoder.pairs("members", members, path),
                self._encoder.items("defaults", defaults, path),
                self._references(source, class_namespace(cls), closure, path),
            ],
        )

    def _without_name(
        self, definition: Any, source: DefinitionSource, closure: dict[str, Any], namespace: Mapping[str, Any]
    ) -> tuple[DefinitionSource, dict[str, Any]]:
        """The source without its own name, if that does not count. Recursive calls still refer to the definition."""
        old = getattr(source.node, "name", None)
        if old is None or not any(definition is other for other in self.unnamed):
            return source, closure
        node = copy.deepcopy(source.node)
        assert not isinstance(node, ast.Lambda)
        node.name = _ITSELF
        # A variable with the same name may refer to another value.
        uses = any(isinstance(reference, OuterName) and reference.name == old for reference in find_references(node))
        if uses and {**namespace, **closure}.get(old) is definition:
            for inner in ast.walk(node):
                if isinstance(inner, ast.Name) and inner.id == old:
                    inner.id = _ITSELF
            closure = {**closure, _ITSELF: definition}
        return DefinitionSource(node, source.text), closure

    def _references(
        self, source: DefinitionSource, namespace: Mapping[str, Any], closure: Mapping[str, Any], path: str
    ) -> Form:
        forms = []
        for reference in find_references(source.node):
            name = ".".join(
                (reference.name if isinstance(reference, OuterName) else reference.module, *reference.members)
            )
            form = self._reference(reference, namespace, closure, f"{path} → {name}")
            forms.append(ordered_form("reference", [leaf("name", name), form]))
        return unordered_form("references", forms)

    def _reference(
        self, reference: Reference, namespace: Mapping[str, Any], closure: Mapping[str, Any], path: str
    ) -> Form:
        if isinstance(reference, ImportedName):
            return self._imported(reference, namespace, path)
        for scope in (closure, namespace):
            if reference.name in scope:
                return self._member(scope[reference.name], reference.members, path)
        return leaf("builtin" if hasattr(builtins, reference.name) else "missing")

    def _member(self, value: Any, members: tuple[str, ...], path: str) -> Form:
        """The form of a member of a project module. Of any other value, the whole value counts."""
        while members and isinstance(value, types.ModuleType) and self.project.has(value.__name__):
            first, *rest = members
            if not hasattr(value, first) and importlib.util.find_spec(f"{value.__name__}.{first}") is not None:
                import_project_module(
                    f"{value.__name__}.{first}", path
                )  # a submodule becomes a member of its package by the import
            if not hasattr(value, first):
                return leaf("missing")
            value, members = getattr(value, first), tuple(rest)
        return self.encode(value, path)

    def _imported(self, reference: ImportedName, namespace: Mapping[str, Any], path: str) -> Form:
        """The form of an import inside the function. Libraries are not loaded for this."""
        name = reference.module
        if reference.level:
            package = namespace.get("__package__") or str(namespace.get("__name__", "")).rpartition(".")[0]
            name = importlib.util.resolve_name("." * reference.level + reference.module, package)
        if not self.project.has(name):
            return leaf("library", name)
        return self._member(import_project_module(name, path), reference.members, path)

    def _module(self, module: types.ModuleType, path: str) -> Form:
        if self.project.has(module.__name__):
            raise CannotEncode(module, path, "a project module as a value: its used members are not known")
        return leaf("library", module.__name__)

    def _object(self, value: Any, path: str) -> Form:
        """An object of a project class: its class, its state, and its items if it is a container."""
        content: Form = leaf("none")
        plain: Any
        for plain in (dict, list, tuple, set, frozenset, str, bytes, int, float):
            if isinstance(value, plain):
                content = self.encode(plain(value), path)
                break
        state = value.__getstate__()
        return ordered_form("object", [self.encode(type(value), path), content, self._state(state, path)])

    def _state(self, state: Any, path: str) -> Form:
        if isinstance(state, dict):
            parts = [
                ordered_form("pair", [leaf("name", str(name)), self.encode(value, f"{path}.{name}")])
                for name, value in state.items()
                if name not in functools.WRAPPER_ASSIGNMENTS  # metadata that decorators copy
            ]
            return unordered_form("state", parts)
        if isinstance(state, tuple) and len(state) == 2:  # the object's __dict__ and its slots
            return ordered_form("states", [self._state(part, path) for part in state])
        return self.encode(state, path)


def _wrapped_definitions(function: Any) -> tuple[Any, ...]:
    """The function or class that is finally called, and the ones that wrap it: partial, bound, decorated."""
    definitions: list[Any] = []
    waiting = [function]
    while waiting:
        value = waiting.pop()
        if any(value is other for other in definitions):
            continue
        definitions.append(value)
        inner = [getattr(value, name, None) for name in ("func", "__func__", "__wrapped__")]
        waiting += [each for each in inner if callable(each)]
        if not isinstance(value, type) and not inspect.isroutine(value):
            waiting.append(type(value))
    return tuple(definitions)


def _find_source(find: Callable[[Any], DefinitionSource], definition: Any, path: str) -> DefinitionSource:
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
    """Whether a member of a class is a value: not a method, a slot, an enum member or an attribute set by Python."""
    if name.startswith("_") and (name.endswith("_") or name.startswith("_abc_")):
        return False
    return not hasattr(type(value), "__get__") and not isinstance(value, enum.Enum | cls)


def _wrapper(value: Any) -> bytes:
    """A wrapper of a library around a function. Its name does not count, because it is copied from the function."""
    if isinstance(value, types.FunctionType):
        return leaf("library", top_package(module_name_of(value)).lstrip("_"), value.__code__.co_qualname)
    return _library(type(value))


def _library(value: Any) -> bytes:
    """A library object by name. The module inside the library does not count, because it differs between releases."""
    named = value if hasattr(value, "__name__") else type(value)
    return leaf(
        "library", top_package(module_name_of(named)).lstrip("_"), getattr(named, "__qualname__", named.__name__)
    )


# Project modules

_MAIN = ("__main__", "__mp_main__")


@dataclass(frozen=True)
class FunctionProject:
    """The project of a function: the modules whose code counts."""

    package: str
    """The function's own package, which belongs to the project even if it is installed."""

    @classmethod
    def of(cls, function: Any) -> Self:
        """The project of a function, a class or an object."""
        package = top_package(module_name_of(function))
        return cls("" if package in sys.stdlib_module_names else package)

    def has(self, module: str | None) -> bool:
        """Whether a module belongs to the project: it is not installed, or is in the function's package."""
        return not module or module in _MAIN or top_package(module) == self.package or _is_project(module)


def module_name_of(value: Any) -> str:
    """The module whose globals a function uses, or that defines a class or an object's class."""
    if isinstance(value, types.FunctionType):
        return str(value.__globals__.get("__name__") or "")  # a decorator may copy __module__ of another function
    return str(getattr(value, "__module__", None) or getattr(type(value), "__module__", None) or "")


def top_package(module: str) -> str:
    """The first part of a module's name."""
    return module.partition(".")[0]


def _is_project(name: str) -> bool:
    loaded = sys.modules.get(name)
    if loaded is not None:
        return is_project_module(name, loaded)
    try:
        spec = importlib.util.find_spec(top_package(name))
        if spec is not None and spec.origin is None:  # a folder without __init__.py
            spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):  # the module does not exist or has no spec
        return False
    if spec is None or spec.origin is None:
        return False
    unloaded = types.ModuleType(name)
    unloaded.__file__ = spec.origin
    return is_project_module(name, unloaded)


def import_project_module(name: str, path: str) -> types.ModuleType:
    """Import a project module that a function would import; `path` is shown in errors."""
    try:
        return importlib.import_module(name)
    except Exception as error:
        raise SourceMissing(f"{path}: {name} cannot be imported ({type(error).__name__}: {error})") from error
