"""One instance per worker process of each function that has a state, such as a model that takes long to load."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol

_Call = Callable[..., Any]


class Stateful(Protocol):
    """What an instance is made of, and by what it is found again."""

    @property
    def function(self) -> _Call: ...
    @property
    def name(self) -> str: ...
    @property
    def module(self) -> str: ...
    @property
    def qualname(self) -> str: ...
    @property
    def version(self) -> str: ...


_instances: dict[tuple[str, str, str], tuple[str, _Call]] = {}
_making = threading.Lock()


def instance_of(udf: Stateful) -> _Call:
    """The instance of this version, made when first asked for; that of an earlier version is let go."""
    key = (udf.name, udf.module, udf.qualname)
    version = udf.version
    with _making:
        found = _instances.get(key)
        if found is not None and found[0] == version:
            return found[1]
        _instances.pop(key, None)  # before the new one is made: two models may not fit into memory
        made: _Call = udf.function() if isinstance(udf.function, type) else udf.function
        _instances[key] = (version, made)
        return made
