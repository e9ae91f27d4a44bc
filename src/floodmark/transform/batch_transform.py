"""BatchTransform: a function of the keys that changed, from some datasets to others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from floodmark.functions.on_error import OnError, parse_on_error
from floodmark.transform.errors import BadStep
from floodmark.transform.functions.function import StepFunction
from floodmark.transform.lakes import LakeLike
from floodmark.transform.report import RunReport, StepStatus
from floodmark.transform.specs import InputSpec, OutputSpec, as_input, as_output, listed, names
from floodmark.transform.step import Step, checked_count, checked_kwargs, name_of

if TYPE_CHECKING:
    from floodmark.transform.plan import TransformPlan


class BatchTransform(Step):
    """Calls a function with the rows of the keys that changed, and keeps its results up to date.

    The function takes one frame per input and returns one per output: pandas, Arrow or Polars, as its annotations say.
    It gets at most `chunk_size` keys at a time. `transform_keys` are the columns whose values belong together: all rows
    of a key come in one call. By default they are what the keys of all inputs and outputs share.

    What was processed is noted per key and committed with the results. `use_offset_optimization` reads only records
    beyond the positions noted there; without it every key is compared, with the same answer. Keys are processed in the
    order of their changes, or by the transform keys that `order_by` names; `filters` keep some keys only.

    A key whose call fails has no rows and is tried again by the next run, unless `on_error` says otherwise. A changed
    function processes everything once more; `version` says when it counts as changed. `commit_every` so many keys a
    run commits, by default at its end.
    """

    def __init__(
        self,
        func: Callable[..., Any],
        inputs: Sequence[Any],
        outputs: Sequence[Any],
        transform_keys: Sequence[str] | str | None = None,
        chunk_size: int = 1000,
        use_offset_optimization: bool = True,
        *,
        order_by: Sequence[str] | str | None = None,
        filters: Any = None,
        labels: Mapping[str, str] | Sequence[tuple[str, str]] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        name: str | None = None,
        version: str | None = None,
        on_error: Any = "retry",
        commit_every: int | None = None,
    ) -> None:
        self.inputs: tuple[InputSpec, ...] = tuple(as_input(one) for one in listed(inputs))
        self.outputs: tuple[OutputSpec, ...] = tuple(as_output(one) for one in listed(outputs))
        called = name if name is not None else name_of(func)
        super().__init__(called, [one.name for one in self.inputs], [one.name for one in self.outputs], labels)
        if not self.inputs:
            raise BadStep(
                f"step {called!r} has no input", hint="name what it reads, or use BatchGenerate for a source of rows"
            )
        sizes = {"inputs": len(self.inputs), "outputs": len(self.outputs)}
        self.function = StepFunction(func, checked_kwargs(kwargs, called), called, version, **sizes)
        if "spark" in self.function.kinds:
            raise BadStep(
                f"the function of step {called!r} takes a Spark DataFrame, but it is called with a few keys at a time",
                hint="take pd.DataFrame, pa.Table or pl.DataFrame, or use DatatableTransform for whole datasets",
                step=called,
            )
        self.transform_keys: tuple[str, ...] | None = None
        if transform_keys is not None:
            self.transform_keys = names(transform_keys, f"transform keys of step {called!r}")
            if not self.transform_keys:
                raise BadStep(f"step {called!r} has no transform key", hint="leave them out, or name some", step=called)
        self.chunk_size = checked_count(chunk_size, "chunk_size", called)
        if not isinstance(use_offset_optimization, bool):
            raise BadStep(
                f"use_offset_optimization={use_offset_optimization!r} of step {called!r} is neither True nor False",
                hint="leave it out, or say which",
                step=called,
            )
        self.use_offset_optimization = use_offset_optimization
        self.order_by: tuple[str, ...] | None = None
        if order_by is not None:
            self.order_by = names(order_by, f"columns of order_by of step {called!r}")
        self.filters = filters
        self.on_error: OnError = parse_on_error(on_error)
        self.commit_every = None if commit_every is None else checked_count(commit_every, "commit_every", called)

    @property
    def _specs(self) -> Sequence[InputSpec | OutputSpec]:
        return (*self.inputs, *self.outputs)

    def looking(self, use_offset_optimization: bool) -> BatchTransform:
        """The same step with the other way of finding what changed."""
        other = copy(self)
        other.use_offset_optimization = use_offset_optimization
        return other

    def run(
        self, lake: LakeLike, *, filters: Any = None, max_records: int | None = None, commit_every: int | None = None
    ) -> RunReport:
        """Process the keys that changed since the last run, and those whose call failed.

        `filters` keep some keys only and `max_records` so many, the earliest changes first: the rest is left to later
        runs. Nothing is committed when there is nothing to do.
        """
        from floodmark.transform.run import run
        from floodmark.transform.wanted import Changed

        return run(self, self._in(lake), Changed(filters, max_records, commit_every))

    def run_changelist(self, lake: LakeLike, keys: Mapping[str, Any]) -> RunReport:
        """Process the keys of these rows, changed or not: {"images": keys}, by the name of an input.

        Keys are a frame or dicts with columns of that input, or plain values where it has one transform key.
        """
        from floodmark.transform.run import run
        from floodmark.transform.wanted import Asked

        return run(self, self._in(lake), Asked(keys))

    def retry(self, lake: LakeLike) -> RunReport:
        """Try all keys again whose call failed, also those that were skipped or had used up their attempts."""
        from floodmark.transform.run import run
        from floodmark.transform.wanted import Failed

        return run(self, self._in(lake), Failed())

    def reset(self, lake: LakeLike) -> None:
        """Forget what was processed: the next run processes everything; readers keep the outputs until then."""
        from floodmark.transform.run import reset

        reset(self, self._in(lake))

    # Looking at it

    def plan(self, lake: LakeLike) -> TransformPlan:
        """What `run` would do and why. Calls nothing and writes nothing."""
        from floodmark.transform.plan import plan

        return plan(self, self._in(lake))

    def changelist(self, lake: LakeLike, use_offset_optimization: bool | None = None) -> pa.Table:
        """The keys that `run` would process, in their order, with what is pending and why."""
        from floodmark.transform.plan import pending

        return pending(self, self._in(lake), use_offset_optimization)

    def status(self, lake: LakeLike) -> StepStatus:
        """How far the step is behind its inputs, what failed, and when it last ran. Reads no data."""
        from floodmark.transform.status import status

        return status(self, self._in(lake))

    def errors(self, lake: LakeLike) -> pa.Table:
        """The keys whose last call failed: the error, attempts, since when, and whether it is tried again."""
        from floodmark.transform.status import errors

        return errors(self, self._in(lake))

    def offsets(self, lake: LakeLike) -> pa.Table:
        """The seed's offset table: transform, input, offset, and the time at which that record was committed."""
        from floodmark.transform.status import offsets

        return offsets(self, self._in(lake))

    def meta(self, lake: LakeLike) -> pa.Table:
        """The transform meta: what is known of every key that was processed."""
        from floodmark.transform.status import meta

        return meta(self, self._in(lake))
