"""`BatchTransform`: a step that calls a function with the rows of changed keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from floodmark.derive.inputs import LakeLike
from floodmark.errors import BadStep
from floodmark.functions.on_error import OnError, parse_max_failed, parse_on_error
from floodmark.functions.step_function import StepFunction
from floodmark.transforms.specs import (
    InputSpec,
    OutputSpec,
    as_input,
    as_list,
    as_output,
    check_repeated_inputs,
    parse_column_names,
)
from floodmark.transforms.step import (
    RunReport,
    Step,
    StepStatus,
    check_count,
    check_kwargs,
    default_name,
    raise_if_failed,
)

if TYPE_CHECKING:
    from floodmark.transforms.plan import RunPlan


class BatchTransform(Step):
    """Calls a function with the rows of the keys that changed, and keeps its results up to date.

    The function takes one frame per input and returns one per output: pandas, Arrow or Polars, by its annotations. One
    call gets at most `chunk_size` keys. All rows with the same values of the `transform_keys` columns come in one call.
    By default, the transform keys are the columns that the keys of all inputs and outputs share. One dataset may be
    several inputs, with different `keys` each.

    Each commit of results also has the processed keys and a position in each input. With `use_offset_optimization`, a
    run reads only records beyond these positions; without it, a run compares every key and processes the same keys.
    Keys are processed in the order of their changes, or by the transform keys in `order_by`. Keys that `filters` do not
    keep are never processed.

    A key whose call fails keeps the rows of its last success, and the next run tries it again; `on_error` changes
    this. If the function changes, the next run processes everything again; with `version`, only a new version counts
    as a change. A run commits at its end, or after every `commit_every` keys.

    A run fails if all of its newly tried keys fail, or more than the share `max_failed` of them (0.05 is 5 %): then it
    commits the failures, but neither rows nor positions. Earlier commits of the run stay. Keys that had failed before
    do not count. With `max_failed=1`, failures never fail a run.
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
        max_failed: float | None = None,
    ) -> None:
        self.inputs: tuple[InputSpec, ...] = tuple(as_input(one) for one in as_list(inputs))
        self.outputs: tuple[OutputSpec, ...] = tuple(as_output(one) for one in as_list(outputs))
        called = name if name is not None else default_name(func)
        read = list(dict.fromkeys(one.name for one in self.inputs))
        super().__init__(called, read, [one.name for one in self.outputs], labels)
        check_repeated_inputs(self.inputs, called)
        if not self.inputs:
            raise BadStep(
                f"step {called!r} has no input",
                hint="name the datasets to read: inputs=['images']; or use BatchGenerate, which needs none",
            )
        sizes = {"inputs": len(self.inputs), "outputs": len(self.outputs)}
        self.function = StepFunction(func, check_kwargs(kwargs, called), called, version, **sizes)
        if "spark" in self.function.kinds:
            raise BadStep(
                f"the function of step {called!r} takes a Spark DataFrame, but gets only a few keys per call",
                hint="annotate it with pd.DataFrame, pa.Table or pl.DataFrame, or use DatatableTransform",
                step=called,
            )
        self.transform_keys: tuple[str, ...] | None = None
        if transform_keys is not None:
            self.transform_keys = parse_column_names(transform_keys, f"transform keys of step {called!r}")
            if not self.transform_keys:
                raise BadStep(
                    f"transform_keys= of step {called!r} is empty",
                    hint="leave transform_keys= out, or name at least one column",
                    step=called,
                )
        self.chunk_size = check_count(chunk_size, "chunk_size", called)
        if not isinstance(use_offset_optimization, bool):
            raise BadStep(
                f"use_offset_optimization={use_offset_optimization!r} of step {called!r} is neither True nor False",
                hint="give True or False, or leave it out",
                step=called,
            )
        self.use_offset_optimization = use_offset_optimization
        self.order_by: tuple[str, ...] | None = None
        if order_by is not None:
            self.order_by = parse_column_names(order_by, f"columns of order_by of step {called!r}")
        self.filters = filters
        self.on_error: OnError = parse_on_error(on_error)
        self.commit_every = None if commit_every is None else check_count(commit_every, "commit_every", called)
        self.max_failed = parse_max_failed(max_failed, f"step {called!r}")

    @property
    def _specs(self) -> Sequence[InputSpec | OutputSpec]:
        return (*self.inputs, *self.outputs)

    @property
    def may_read_outputs(self) -> bool:
        return True

    def looking(self, use_offset_optimization: bool) -> BatchTransform:
        """A copy of the step with or without the offset optimization."""
        other = copy(self)
        other.use_offset_optimization = use_offset_optimization
        return other

    def run(
        self,
        lake: LakeLike,
        *,
        filters: Any = None,
        max_records: int | None = None,
        commit_every: int | None = None,
        check: bool = True,
    ) -> RunReport:
        """Process the keys that changed since the last run, and failed keys that are due.

        This run processes only keys that `filters` keep, and at most `max_records` keys, earliest changes first; later
        runs process the others. Filters by columns that are not transform keys keep the keys that have a row with the
        value. If there is nothing to do, it commits nothing. Raises `RunFailed` if too many keys failed; with
        check=False it returns the report, whose `problem` says so.
        """
        from floodmark.transforms.run import run
        from floodmark.transforms.run_scope import ChangedScope

        return raise_if_failed(run(self, self._in(lake), ChangedScope(filters, max_records, commit_every)), check)

    def run_changelist(self, lake: LakeLike, keys: Mapping[str, Any], *, check: bool = True) -> RunReport:
        """Process the keys of these rows, changed or not. `keys` maps names of inputs to rows: {"images": rows}.

        Rows are a frame or dicts with columns of that input, or plain values if it has one transform key. Raises
        `RunFailed` if too many keys failed, as `run` does.
        """
        from floodmark.transforms.run import run
        from floodmark.transforms.run_scope import RequestedScope

        return raise_if_failed(run(self, self._in(lake), RequestedScope(keys)), check)

    def retry(self, lake: LakeLike) -> RunReport:
        """Process all failed keys again, also skipped ones and those with no attempts left."""
        from floodmark.transforms.run import run
        from floodmark.transforms.run_scope import FailedScope

        return run(self, self._in(lake), FailedScope())

    def reset(self, lake: LakeLike) -> None:
        """Forget which keys were processed: the next run processes everything. The outputs stay until then."""
        from floodmark.transforms.run import reset

        reset(self, self._in(lake))

    # Inspection

    def plan(self, lake: LakeLike) -> RunPlan:
        """What `run` would do, and why. Does not call the function and writes nothing."""
        from floodmark.transforms.plan import plan

        return plan(self, self._in(lake))

    def changelist(self, lake: LakeLike, use_offset_optimization: bool | None = None) -> pa.Table:
        """The keys that `run` would process, in order, with their pending records and the reason."""
        from floodmark.transforms.plan import pending

        return pending(self, self._in(lake), use_offset_optimization)

    def status(self, lake: LakeLike) -> StepStatus:
        """How far the step is behind its inputs, how many keys failed, and its last run. Reads no data."""
        from floodmark.transforms.plan import status

        return status(self, self._in(lake))

    def errors(self, lake: LakeLike) -> pa.Table:
        """The keys whose last call failed, with the error, the attempts, and when the next attempt is due."""
        from floodmark.transforms.plan import errors

        return errors(self, self._in(lake))

    def offsets(self, lake: LakeLike) -> pa.Table:
        """The position in each input: columns transform, input, offset, and the commit time of that record."""
        from floodmark.transforms.plan import offsets

        return offsets(self, self._in(lake))

    def meta(self, lake: LakeLike) -> pa.Table:
        """The transform meta: one row per processed key, with time, success, run and error. Reads all records.

        A key is null if all records with it were purged.
        """
        from floodmark.transforms.plan import meta

        return meta(self, self._in(lake))
