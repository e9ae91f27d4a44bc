"""The function of a step: what it takes and returns, which version it is, and calling it with tables."""

from __future__ import annotations

import functools
import inspect
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from floodmark.compute.functions.fingerprint import step_fingerprint
from floodmark.compute.functions.instances import instance_of
from floodmark.compute.functions.source_text import source_or_nothing
from floodmark.engine.shipping import NotShippable, packing
from floodmark.transform.errors import BadFunction, BadResult
from floodmark.transform.functions.annotations import kinds_of
from floodmark.transform.functions.frames import Kind, Returned, from_table, to_table


@dataclass(frozen=True)
class _Made:
    """What a worker's instance is made of and found by."""

    function: Callable[..., Any]
    name: str
    module: str
    qualname: str
    version: str


@dataclass(frozen=True, eq=False, repr=False, init=False)
class StepFunction:
    """A function of frames: one per input in, one per output out, and `kwargs` by name in every call.

    Each parameter's annotation says which frame it gets: `pd.DataFrame` (also where there is none), `pa.Table`,
    `pa.RecordBatch` or `pl.DataFrame`. It may return any of them, whatever it takes; several as a tuple or list.
    No rows are a frame without rows: None is refused, since a forgotten `return` would empty the output.
    A class is made once per worker process, without arguments, and then called.
    """

    function: Callable[..., Any]
    kwargs: Mapping[str, Any]
    name: str
    given_version: str | None
    kinds: tuple[Kind, ...]
    outputs: int
    identity: str
    """Tells it from other step functions in whichever process: a pinned version may stand for code that changed."""

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
        own_name = name or _name_of(function)
        given = dict(kwargs or {})
        if version is not None and (not isinstance(version, str) or not version):
            raise BadFunction(f"the version of {own_name!r} is a text, not {version!r}", function=own_name)
        for attribute, value in {
            "function": function,
            "kwargs": given,
            "name": own_name,
            "given_version": version,
            "kinds": kinds_of(own_name, function, inputs, given),
            "outputs": outputs,
            "identity": uuid.uuid4().hex,
        }.items():
            object.__setattr__(self, attribute, value)

    def __repr__(self) -> str:
        return f"<step function {self.name}({', '.join(self.kinds)})>"

    @functools.cached_property
    def version(self) -> str:
        """The version that was given, or a fingerprint of the code, of what it uses, and of the keyword arguments.

        Neither the function's name, nor where it is defined, nor comments and annotations are part of it; which
        frames it takes is. It is taken when it is first needed and stays.
        """
        if self.given_version is not None:
            return self.given_version
        return step_fingerprint(self.function, self.kwargs, self.name, f"frames {' '.join(self.kinds)}")

    @functools.cached_property
    def source(self) -> str:
        """The text of the function, or nothing if it is not at hand."""
        return source_or_nothing(self.function)

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

    def callable(self) -> Callable[..., Any]:
        """What is called: the function, or this process's one instance of the class."""
        if inspect.isroutine(self.function) or isinstance(self.function, functools.partial):
            return self.function
        return instance_of(_Made(self.function, self.name, self.module, self.qualname, self.identity))

    def __call__(self, frames: Sequence[pa.Table]) -> tuple[pa.Table, ...]:
        """The tables that the function returns for these."""
        return tuple(each.table for each in self.returned(frames, (None,) * self.outputs))

    def returned(self, frames: Sequence[pa.Table], outputs: Sequence[str | None]) -> tuple[Returned, ...]:
        """What the function returns for these tables, one frame for each of the outputs of these names."""
        given = [from_table(table, kind) for table, kind in zip(frames, self.kinds, strict=True)]
        result = self.callable()(*given, **self.kwargs)
        several = list(result) if isinstance(result, tuple | list) else [result]
        if len(several) != self.outputs:
            wanted = "1 frame" if self.outputs == 1 else f"{self.outputs} frames"
            what = "nothing" if result is None else f"{len(several)}"
            raise BadResult(
                f"the function {self.name!r} returned {what}, not {wanted}",
                hint="Return one frame per output, in their order; one without rows if there are none.",
                function=self.name,
                output=None,
            )
        return tuple(to_table(each, self.name, output) for each, output in zip(several, outputs, strict=True))

    def check_shippable(self) -> None:
        """Refuse a function that cannot be sent to a worker, or whose version cannot be told."""
        _ = self.version  # its own error says more than that of the pickler, which needs it too
        try:
            with packing() as pack:
                pack(self)
        except NotShippable as error:
            reason = str(error.__cause__ or error.message)
            raise BadFunction(
                f"the function {self.name!r} cannot be sent to a worker: {reason}",
                hint="Open files, locks and connections inside the function, or in __init__ of a class with __call__.",
                function=self.name,
                reason=reason,
            ) from error

    def __getstate__(self) -> dict[str, Any]:
        # The process that takes it may not have the files that version and source are told from.
        return {**self.__dict__, "version": self.version, "source": self.source}


def _name_of(function: object) -> str:
    plain = function.func if isinstance(function, functools.partial) else function
    name = getattr(plain, "__name__", None) or type(plain).__name__
    return "lambda" if name == "<lambda>" else str(name)
