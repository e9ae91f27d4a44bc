"""Functions as sources: `BatchGenerate` writes what changed in all rows, `IngestFrame` writes a returned frame."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from floodmark.derive.run import take_dataset_turn, take_turn
from floodmark.errors import BadFunction, BadResult, BadStep, CodeLocation, FloodmarkError
from floodmark.functions.frames import to_table
from floodmark.ledger.data_input import StreamData, TableData, recognise
from floodmark.sources.ingest import (
    DatasetDeclaration,
    OutputWrite,
    SourceWrites,
    Spool,
    WriteMode,
    check_has_key,
    find_output,
    has_state,
    ingest_report,
    last_state,
    open_or_create,
)
from floodmark.storage.scratch import staging_area
from floodmark.transforms.specs import InputSpec, OutputSpec, as_list, as_output
from floodmark.transforms.step import (
    RunReport,
    Step,
    StepStatus,
    check_kwargs,
    default_name,
    function_error,
    no_rows_error,
    refresh_report,
    refresh_status,
)

if TYPE_CHECKING:
    from floodmark.ledger.snapshot import Snapshot


class BatchGenerate(Step):
    """Calls a generator for all rows of its outputs, and commits new, changed and missing rows.

    The function takes `kwargs` and yields frames (pandas, Arrow, Polars). With several outputs it yields tuples of
    frames, with None for an output without rows. All frames are read before anything is written, so a generator that
    fails changes nothing. Rows are matched by the output's key; unchanged rows are not written.

    `delete_stale` retracts rows that were not yielded; without it they stay. A run that yields no rows for any output
    is refused as a mistake, unless `allow_empty` is set.
    """

    def __init__(
        self,
        func: Callable[..., Any],
        outputs: Sequence[Any],
        delete_stale: bool = True,
        *,
        labels: Mapping[str, str] | Sequence[tuple[str, str]] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        name: str | None = None,
        allow_empty: bool = False,
    ) -> None:
        self.outputs: tuple[OutputSpec, ...] = tuple(as_output(one) for one in as_list(outputs))
        if not callable(func):
            raise BadFunction(f"{func!r} is not a function", hint="give a function that yields frames")
        called = name if name is not None else default_name(func)
        super().__init__(called, (), [one.name for one in self.outputs], labels)
        self.func = func
        self.kwargs = check_kwargs(kwargs, called)
        _check_callable(called, func, self.kwargs)
        self.delete_stale = delete_stale
        self.allow_empty = allow_empty

    @property
    def shares_outputs(self) -> bool:
        return not self.delete_stale

    @property
    def _specs(self) -> Sequence[InputSpec | OutputSpec]:
        return self.outputs

    def run(self, lake: Any) -> RunReport:
        """Call the function, and commit what changed: at most one commit per output."""
        started = time.monotonic()
        self._in(lake)
        run = lake.runtime.random_bytes(16).hex()
        outputs = [find_output(lake, spec, self.name) for spec in self.outputs]
        for output in outputs:
            check_has_key(output, self.name)
        way: WriteMode = "snapshot" if self.delete_stale else "upsert"
        with ExitStack() as stack:
            # Two runs at once would undo each other's changes. An output that does not exist yet has only a name.
            other, first = f"another run of {self.name}", self.outputs[0]
            stack.enter_context(take_turn(lake.store, f"runs/{first.name.lower()}", other, lake.runtime.progress()))
            if (existing := find_output(lake, first, self.name).snapshot) is not None:
                stack.enter_context(take_dataset_turn(existing.objects, other, lake.runtime.progress()))
            folder = stack.enter_context(staging_area(lake.store))
            spools = [Spool(folder, output.name) for output in outputs]
            for spool in spools:
                stack.callback(spool.close)
            frames = self._read(spools)
            self._check_not_empty(lake, spools)
            # Others may have written meanwhile, and the merge compares with the current rows.
            now = [find_output(lake, output.spec, self.name) for output in outputs]
            results = [OutputWrite(output, spool, way).commit(lake) for output, spool in zip(now, spools, strict=True)]
        commits = [commit for commit in results if commit is not None]
        rows = sum(spool.rows for spool in spools)
        return refresh_report(self.name, run, rows, frames, commits, time.monotonic() - started)

    def status(self, lake: Any) -> StepStatus:
        """The number of rows of its outputs. A generator has no inputs that it could be behind."""
        return refresh_status(self.name, self.output_names, self._in(lake))

    def _read(self, spools: Sequence[Spool]) -> int:
        """Store every frame that the function yields; returns the number of yields."""
        count = 0
        for given in self._iterate():
            for spool, frame in zip(spools, self._frames_per_output(given), strict=True):
                if frame is not None:
                    spool.add(to_table(frame, self.name, spool.output).table)
            count += 1
        return count

    def _iterate(self) -> Iterator[Any]:
        """The values that the function yields. Its errors are raised as failures of the function."""
        count = 0
        try:
            given = self._call_function()
            while True:
                try:
                    one = next(given)
                except StopIteration:
                    return
                count += 1
                yield one
        except FloodmarkError:
            raise
        except Exception as error:
            raise function_error(self.name, error, f" after {_frames(count)}" if count else "") from error

    def _call_function(self) -> Iterator[Any]:
        given = self.func(**self.kwargs)
        if hasattr(given, "__next__"):
            return iter(given)
        if hasattr(given, "columns") or isinstance(given, tuple):  # a single frame or tuple of frames
            return iter([given])
        if isinstance(given, list):
            return iter(given)
        what = "nothing" if given is None else f"a {type(given).__qualname__}"
        raise BadResult(
            f"the function of step {self.name!r} returned {what}, not frames",
            hint="yield frames from the function",
            function=self.name,
            output=None,
        )

    def _frames_per_output(self, given: Any) -> Sequence[Any]:
        frames: Sequence[Any] = given if isinstance(given, tuple | list) else (given,)
        count = len(self.outputs)
        if len(frames) != count:
            expected = "a frame" if count == 1 else f"a tuple of {count} frames"
            raise BadResult(
                f"step {self.name!r} yielded {_frames(len(frames))} at once and writes {', '.join(self.output_names)}",
                hint=f"yield {expected} at a time",
                function=self.name,
                output=None,
            )
        return frames

    def _check_not_empty(self, lake: Any, spools: Sequence[Spool]) -> None:
        if not self.delete_stale or self.allow_empty or any(spool.rows for spool in spools):
            return
        for name in self.output_names:
            if name in lake and lake[name].count():
                raise no_rows_error(self.name, name, "the function yielded no rows")


def _check_callable(step: str, func: Callable[..., Any], kwargs: Mapping[str, Any]) -> None:
    """Refuse a function that is async or cannot be called with these arguments."""
    if inspect.iscoroutinefunction(func) or inspect.isasyncgenfunction(func):
        raise BadFunction(
            f"the function of step {step!r} is async", hint="yield frames from a plain function", function=step
        )
    try:
        inspect.signature(func).bind(**kwargs)
    except TypeError as error:
        given = f"kwargs {', '.join(kwargs)}" if kwargs else "no arguments"
        raise BadFunction(
            f"the function of step {step!r} cannot be called with {given}: {error}",
            hint="define parameters with the names of kwargs: the function gets nothing else",
            function=step,
        ) from error
    except ValueError:
        return  # some built-in functions have no signature


def _frames(count: int) -> str:
    return "1 frame" if count == 1 else f"{count} frames"


# A function that returns a frame

_CONTENT = "content:"
_RETURN = "#"
"""Separates a state from a block number, for content that was already written before that block."""


@dataclass(frozen=True)
class FrameReport(RunReport):
    """What a run of a function that returns a frame did."""

    repeated: str = ""
    """The state of a frame that was not written, because an earlier run, but not the last one, wrote this state."""

    @property
    def notes(self) -> Sequence[str]:
        """What the counts do not show."""
        if not self.repeated:
            return ()
        what = "with this content" if self.repeated.startswith(_CONTENT) else f"of state {self.repeated!r}"
        return (f"not written: an earlier run wrote the frame {what}",)


class IngestFrame(Step):
    """Calls a function and writes the frame that it returns.

    A frame with a state is written if the state is new. A frame without a state is written if its content is new. The
    content of a Spark frame is not known before it is computed, so it needs a state if the dataset has no key.
    """

    def __init__(
        self,
        name: str,
        output: str,
        func: Callable[..., Any],
        labels: Mapping[str, str] | None = None,
        declared: DatasetDeclaration | None = None,
        place: CodeLocation | None = None,
    ) -> None:
        super().__init__(name, (), [output], labels)
        self._place = place
        self.func = func
        self.declared = declared
        self._takes_state = _takes_state(name, func)

    @property
    def declared_as(self) -> str:
        return "Source"

    @property
    def shares_outputs(self) -> bool:
        return True

    def run(self, lake: Any) -> RunReport:
        """Call the function and write the frame if it is new."""
        began = time.monotonic()
        dataset = open_or_create(lake, self.output_names[0], self.declared)
        frame, state = self._call_function(dataset)
        is_keyed, writes = dataset.strategy.is_keyed, SourceWrites(dataset)
        known, repeated = 0, ""
        if frame is not None:
            data, write_state = self._with_state(frame, state, is_keyed)
            if write_state is None:
                writes.add(lambda: dataset.write(data))
            else:
                snapshot = dataset.snapshot()
                if is_keyed and state is None and has_state(snapshot, self.name, write_state):
                    write_state = self._repeated_state(snapshot, write_state)
                if has_state(snapshot, self.name, write_state):
                    known = _count_rows(data)
                    repeated = "" if last_state(snapshot, self.name) == write_state else write_state
                else:
                    writes.add(lambda: dataset.write(data, source=self.name, state=write_state))
        report = ingest_report(self.name, lake, writes, 1, time.monotonic() - began)
        facts = {**vars(report), "keys": report.keys + known, "unchanged": report.unchanged + known}
        return FrameReport(**facts, repeated=repeated)

    def _repeated_state(self, snapshot: Snapshot, content: str) -> str:
        """The state of content that was written before: the last state, or a new one if other content came since."""
        last = last_state(snapshot, self.name)
        if last is not None and last.partition(_RETURN)[0] == content:
            return last
        # A new state records this return, so that the content between the two can return as well.
        return f"{content}{_RETURN}{snapshot.head_block.sequence_number}"

    def status(self, lake: Any) -> StepStatus:
        """The number of rows of the output. A source has no inputs in the lake that it could be behind."""
        from floodmark.transforms.step import refresh_status

        return refresh_status(self.name, self.output_names, self._in(lake))

    def _call_function(self, dataset: Any) -> tuple[Any, str | None]:
        from floodmark.transforms.step import function_error

        try:
            given = self.func(last_state(dataset.snapshot(), self.name)) if self._takes_state else self.func()
        except FloodmarkError:
            raise
        except Exception as error:
            raise function_error(self.name, error, "") from error
        if isinstance(given, tuple):
            if len(given) != 2 or not isinstance(given[1], str):
                raise BadStep(
                    f"the function of source {self.name!r} returned a tuple that is not a pair of a frame and a text",
                    hint="return (frame, state), where state is a text that identifies how far the source was read",
                )
            return given
        return given, None

    def _with_state(self, frame: Any, state: str | None, is_keyed: bool) -> tuple[Any, str | None]:
        """The frame, and the state that identifies it; None if only the keys decide what is new."""
        if state is not None:
            return frame, state
        data = recognise(frame)
        if isinstance(data, StreamData):
            data = TableData(data.reader.read_all())
        if isinstance(data, TableData):
            return data.table, f"{_CONTENT}{_content(data.table)}"
        if is_keyed:
            return frame, None
        raise BadStep(
            f"source {self.name!r} returned a Spark frame without a state, and its dataset has no key, so the frame "
            "cannot be compared with earlier writes",
            hint="return (frame, state) with a text that names this batch, or give the dataset a key",
        )


def _count_rows(frame: Any) -> int:
    """The rows of a frame; 0 if they are not known without computing it."""
    data = recognise(frame)
    return int(data.table.num_rows) if isinstance(data, TableData) else 0


def _content(table: pa.Table) -> str:
    from floodmark.storage.logical_hash import logical_hash

    return str(logical_hash(table).digest.hex())


def _takes_state(step: str, func: Any) -> bool:
    if not callable(func):
        raise BadStep(f"frame={func!r} of source {step!r} is not a function", hint="give one that returns a frame")
    try:
        parameters = inspect.signature(func).parameters.values()
    except ValueError:
        return False
    needed = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if len([p for p in needed if p.default is p.empty]) > 1:
        raise BadStep(
            f"the function of source {step!r} takes {len(needed)} arguments",
            hint="define one parameter for the last state, or none",
        )
    return bool(needed)
