"""Functions and tasks as bytes that another Python process can use, whether or not it has the user's files."""

from __future__ import annotations

import functools
import os
import site
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from floodmark.engine.errors import EngineError

_BY_NAME = frozenset({"floodmark", "pyspark", "py4j", "__main__", "__mp_main__"})
_registry = threading.RLock()  # cloudpickle keeps what it sends by value in one table per process


class NotShippable(EngineError):
    """A function or a task holds something that cannot be sent to another process."""


def cloudpickle() -> Any:
    """The pickler that Spark brings along: it sends functions without a module, such as lambdas, by value."""
    from pyspark import cloudpickle as theirs

    return theirs


@contextmanager
def packing() -> Iterator[Callable[[object], bytes]]:
    """A function that makes bytes of a value; what the user's own files define travels by value."""
    with _registry:
        modules = _project_modules()
        _each(cloudpickle().register_pickle_by_value, modules)
        try:
            yield functools.partial(_pack, modules=modules)
        finally:
            _each(cloudpickle().unregister_pickle_by_value, modules)


def _pack(value: object, *, modules: list[ModuleType]) -> bytes:
    pickler = cloudpickle()
    try:
        return bytes(pickler.dumps(value))
    except Exception as error:
        # A module may hold a lock or an open file beside the function: the workers may still have the module.
        by_value = error
    _each(pickler.unregister_pickle_by_value, modules)
    try:
        return bytes(pickler.dumps(value))
    except Exception:
        name = getattr(value, "__qualname__", None) or type(value).__qualname__
        raise NotShippable(
            f"{name} cannot be sent to a worker process: {by_value}",
            hint="Open files, locks and connections inside the function, not around it.",
        ) from by_value
    finally:
        _each(pickler.register_pickle_by_value, modules)


def is_project_module(name: str, module: ModuleType) -> bool:
    """Whether a module is the user's own file, which workers may not have, and not part of an installation."""
    file = vars(module).get("__file__")  # not getattr: that would load a lazy module
    return isinstance(file, str) and _is_project_file(name, file)


@functools.lru_cache(maxsize=1 << 14)  # asked of every loaded module each time something is packed
def _is_project_file(name: str, file: str) -> bool:
    return name.partition(".")[0] not in _BY_NAME and file.endswith(".py") and not file.startswith(_installed())


@functools.cache
def _installed() -> tuple[str, ...]:
    folders = {sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib", "purelib", "platlib")}
    folders |= {*site.getsitepackages(), site.getusersitepackages()}
    return tuple(f"{folder}{os.sep}" for folder in sorted(folders))


def _project_modules() -> list[ModuleType]:
    registered = cloudpickle().list_registry_pickle_by_value()
    return [
        module
        for name, module in sys.modules.copy().items()  # a copy: other threads may import meanwhile
        if isinstance(module, ModuleType)
        and vars(module).get("__name__") == name  # the name that the module's functions carry
        and name not in registered
        and is_project_module(name, module)
    ]


def _each(act: Callable[[ModuleType], None], modules: list[ModuleType]) -> None:
    for module in modules:
        act(module)
