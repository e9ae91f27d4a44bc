"""Which modules are the project's own: their code counts in a version, while libraries count by name."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
from dataclasses import dataclass
from typing import Any, Self

from floodmark.compute.functions.source_text import SourceMissing
from floodmark.engine.shipping import is_project_module

_MAIN = ("__main__", "__mp_main__")


@dataclass(frozen=True)
class Project:
    """What belongs together with one function."""

    package: str
    """The function's own package: it is the project's even if it is installed."""

    @classmethod
    def of(cls, function: Any) -> Self:
        """The project of a function, a class or an object."""
        package = top_package(module_of(function))
        return cls("" if package in sys.stdlib_module_names else package)

    def has(self, module: str | None) -> bool:
        """Whether a module is the project's own: not installed, or installed together with the function."""
        return not module or module in _MAIN or top_package(module) == self.package or _is_project(module)


def module_of(value: Any) -> str:
    """The name of the module whose globals a function sees, or in which a class or an object's class is defined."""
    if isinstance(value, types.FunctionType):
        return str(value.__globals__.get("__name__") or "")  # __module__ may be that of a function it wraps
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
    except (ImportError, ValueError):  # there is no such module, or no telling
        return False
    if spec is None or spec.origin is None:
        return False
    unloaded = types.ModuleType(name)
    unloaded.__file__ = spec.origin
    return is_project_module(name, unloaded)


def load(name: str, path: str) -> types.ModuleType:
    """A module of the project, which a function would import; `path` says in errors how it was come by."""
    try:
        return importlib.import_module(name)
    except Exception as error:
        raise SourceMissing(f"{path}: {name} cannot be imported ({type(error).__name__}: {error})") from error
