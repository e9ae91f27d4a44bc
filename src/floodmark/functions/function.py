"""The base of column and step functions: name, version, one instance per worker process, and pickling."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable
from typing import Any, ClassVar

from floodmark.engine.task import NotShippable, pickle_by_value
from floodmark.errors import BadFunction, FloodmarkError

_instances: dict[tuple[str, str, str], tuple[str, Callable[..., Any]]] = {}  # of this process, with their version
_instances_lock = threading.Lock()


class UserFunction:
    """A function, or a class with ``__call__``, that tasks call in worker processes."""

    function: Callable[..., Any]
    name: str
    given_version: str | None
    _refused: ClassVar[type[FloodmarkError]]  # what `check_shippable` raises

    @functools.cached_property
    def version(self) -> str:
        """The given version, or else a fingerprint of the code and the values it uses.

        It is computed once, when it is first needed. Values that the function reads should not change after that.
        """
        return self._fingerprint() if self.given_version is None else self.given_version

    def _fingerprint(self) -> str:
        raise NotImplementedError

    @functools.cached_property
    def source(self) -> str:
        """The source text of the function; empty if it is not available."""
        raise NotImplementedError

    @property
    def module(self) -> str:
        """The module that defines the function."""
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
        """Whether it is a class or an object with state, such as a model. Each worker process keeps one instance."""
        return not (inspect.isroutine(self.function) or isinstance(self.function, functools.partial))

    @property
    def _instance_version(self) -> str:
        """The version that identifies an instance in this process."""
        return self.version

    def callable(self) -> Callable[..., Any]:
        """The callable: the function, or this process's instance of the class."""
        if not self.is_stateful:
            return self.function
        key, version = (self.name, self.module, self.qualname), self._instance_version
        with _instances_lock:
            cached = _instances.get(key)
            if cached is not None and cached[0] == version:
                return cached[1]
            _instances.pop(key, None)  # before the new instance exists: two models may not fit into memory
            instance: Callable[..., Any] = self.function() if isinstance(self.function, type) else self.function
            _instances[key] = (version, instance)
            return instance

    def check_shippable(self) -> None:
        """Refuse a function that cannot be sent to a worker, or whose version cannot be computed."""
        _ = self.version  # the pickler needs it too, but this error is more specific
        try:
            with pickle_by_value() as pack:
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
        # The receiving process may not have the files from which version and source are computed.
        return {**self.__dict__, "version": self.version, "source": self.source}


def default_function_name(function: object) -> str:
    """The name of a function unless the user gives one."""
    plain = function.func if isinstance(function, functools.partial) else function
    name = getattr(plain, "__name__", None) or type(plain).__name__
    return "lambda" if name == "<lambda>" else str(name)


def callable_of(
    name: str, function: Callable[..., Any], result: str, hint: str
) -> tuple[Callable[..., Any], inspect.Signature]:
    """The function that is called, with its parameters; for a class its ``__call__``, which takes ``self`` first.

    `BadFunction` if it cannot be called, or is async or a generator: then it does not return its `result`.
    """
    if not callable(function):
        raise BadFunction(f"{name!r} is not a function: {function!r}", function=name)
    called = _call_method(name, function) if isinstance(function, type) else function
    if inspect.iscoroutinefunction(called) or inspect.isgeneratorfunction(called) or inspect.isasyncgenfunction(called):
        raise BadFunction(
            f"the function {name!r} is async or a generator, so it does not return {result}", hint=hint, function=name
        )
    try:
        return called, inspect.signature(called)
    except (TypeError, ValueError) as error:
        raise BadFunction(
            f"cannot read the parameters of {name!r}: {error}", hint="Wrap it in a function.", function=name
        ) from error


def _call_method(name: str, function: type) -> Callable[..., Any]:
    method: Callable[..., Any] | None = getattr(function, "__call__", None)  # noqa: B004
    if not inspect.isfunction(method):
        raise BadFunction(f"the class {name!r} has no __call__", hint="Define __call__(self, …).", function=name)
    try:
        inspect.signature(function).bind()
    except TypeError as error:
        raise BadFunction(
            f"the class {name!r} cannot be created without arguments: {error}",
            hint="Give the parameters of __init__ defaults, or pass an object: Model(…).",
            function=name,
        ) from error
    return method
