"""What a column's and a step's function have in common: a name, a version, one instance per worker, and shipping."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable
from typing import Any, ClassVar

from floodmark.engine.shipping import NotShippable, packing
from floodmark.errors import FloodmarkError

_instances: dict[tuple[str, str, str], tuple[str, Callable[..., Any]]] = {}  # of this process, with their version
_making = threading.Lock()


class UserFunction:
    """A function, or a class with ``__call__``, that tasks call in worker processes."""

    function: Callable[..., Any]
    name: str
    given_version: str | None
    _refused: ClassVar[type[FloodmarkError]]  # what `check_shippable` raises

    @functools.cached_property
    def version(self) -> str:
        """The version that was given, or else a fingerprint of the code and of the values it uses.

        It is taken when it is first needed and stays: what the function reads should not change after that.
        """
        return self._fingerprint() if self.given_version is None else self.given_version

    def _fingerprint(self) -> str:
        raise NotImplementedError

    @functools.cached_property
    def source(self) -> str:
        """The text of the function, or nothing if it is not at hand."""
        raise NotImplementedError

    @property
    def module(self) -> str:
        """Where the function is defined."""
        return str(getattr(self._definition, "__module__", None) or "")

    @property
    def qualname(self) -> str:
        """The function's name inside its module."""
        return str(getattr(self._definition, "__qualname__", None) or "")

    @property
    def _definition(self) -> Any:
        return self.function if hasattr(self.function, "__qualname__") else type(self.function)

    @property
    def is_stateful(self) -> bool:
        """Whether it is a class or an object with a state, such as a model, of which each worker process keeps one."""
        return not (inspect.isroutine(self.function) or isinstance(self.function, functools.partial))

    @property
    def _instance_version(self) -> str:
        """Tells the instances of two versions apart."""
        return self.version

    def callable(self) -> Callable[..., Any]:
        """What is called: the function, or this process's one instance of the class."""
        if not self.is_stateful:
            return self.function
        key, version = (self.name, self.module, self.qualname), self._instance_version
        with _making:
            found = _instances.get(key)
            if found is not None and found[0] == version:
                return found[1]
            _instances.pop(key, None)  # before the new one is made: two models may not fit into memory
            made: Callable[..., Any] = self.function() if isinstance(self.function, type) else self.function
            _instances[key] = (version, made)
            return made

    def check_shippable(self) -> None:
        """Refuse a function that cannot be sent to a worker, or whose version cannot be told."""
        _ = self.version  # its own error says more than that of the pickler, which needs it too
        try:
            with packing() as pack:
                pack(self)
        except NotShippable as error:
            reason = str(error.__cause__ or error.message)
            raise self._refused(
                f"the function {self.name!r} cannot be sent to a worker: {reason}",
                hint="Open files, locks and connections inside the function, or in __init__ of a class with __call__.",
                function=self.name,
                reason=reason,
            ) from error

    def __getstate__(self) -> dict[str, Any]:
        # The process that takes it may not have the files that version and source are told from.
        return {**self.__dict__, "version": self.version, "source": self.source}


def name_of(function: object) -> str:
    """What a function is called unless its user names it."""
    plain = function.func if isinstance(function, functools.partial) else function
    name = getattr(plain, "__name__", None) or type(plain).__name__
    return "lambda" if name == "<lambda>" else str(name)
