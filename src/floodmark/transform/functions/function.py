"""The function of a step: what it takes and returns, which version it is, and calling it with tables."""

from __future__ import annotations

import functools
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from floodmark.compute.functions.fingerprint import step_fingerprint
from floodmark.compute.functions.source_text import source_or_nothing
from floodmark.functions.function import UserFunction, name_of
from floodmark.transform.errors import BadFunction, BadResult
from floodmark.transform.functions.annotations import kinds_of
from floodmark.transform.functions.frames import Kind, Returned, from_table, to_table


@dataclass(frozen=True, eq=False, repr=False, init=False)
class StepFunction(UserFunction):
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
        own_name = name or name_of(function)
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

    def _fingerprint(self) -> str:
        """Of the code, of what it uses, and of the keyword arguments.

        Neither the function's name, nor where it is defined, nor comments and annotations are part of it; which
        frames it takes is.
        """
        return step_fingerprint(self.function, self.kwargs, self.name, f"frames {' '.join(self.kinds)}")

    @functools.cached_property
    def source(self) -> str:
        """The text of the function, or nothing if it is not at hand."""
        return source_or_nothing(self.function)

    @property
    def _instance_version(self) -> str:
        return self.identity

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
