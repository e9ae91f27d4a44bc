"""BatchGenerate: a function that yields all rows of its outputs, of which only what changed is written."""

from __future__ import annotations

import inspect
import sysconfig
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from floodmark.derive.turns import take_dataset_turn, take_turn
from floodmark.errors import FloodmarkError
from floodmark.ledger.commit import Commit
from floodmark.storage.scratch import staging_area
from floodmark.transform.errors import BadFunction, BadResult, FunctionFailed, NothingCame
from floodmark.transform.functions.frames import to_table
from floodmark.transform.refresh.root_output import Refresh, Way, check_has_key, find_output
from floodmark.transform.refresh.spool import Spool
from floodmark.transform.report import RunReport, StepStatus
from floodmark.transform.specs import InputSpec, OutputSpec, as_output, listed
from floodmark.transform.step import Step, checked_kwargs, name_of


class BatchGenerate(Step):
    """Calls a generator for all rows of its outputs, and commits what is new, what changed and what is gone.

    The function takes `kwargs` and yields frames (pandas, Arrow, Polars), with several outputs tuples of them, None
    where there are no rows. All of it is read before anything is written, so a generator that fails half way changes
    nothing. Rows are matched by the output's key; identical ones are not written.

    `delete_stale` retracts rows that did not come; without it they stay. A run that yields no rows for any output is
    taken for an accident and deletes nothing, unless `allow_empty`.
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
        self.outputs: tuple[OutputSpec, ...] = tuple(as_output(one) for one in listed(outputs))
        if not callable(func):
            raise BadFunction(f"{func!r} is not a function", hint="give a function that yields frames")
        called = name if name is not None else name_of(func)
        super().__init__(called, (), [one.name for one in self.outputs], labels)
        self.func = func
        self.kwargs = checked_kwargs(kwargs, called)
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
        found = [find_output(lake, spec, self.name) for spec in self.outputs]
        for output in found:
            check_has_key(output, self.name)
        way: Way = "snapshot" if self.delete_stale else "upsert"
        with ExitStack() as held:
            # Two runs at once would undo each other's work. An output that does not exist yet has only its name.
            other, first = f"another run of {self.name}", self.outputs[0]
            held.enter_context(take_turn(lake.store, f"runs/{first.name.lower()}", other, lake.runtime.progress()))
            if (there := find_output(lake, first, self.name).snapshot) is not None:
                held.enter_context(take_dataset_turn(there.objects, other, lake.runtime.progress()))
            folder = held.enter_context(staging_area(lake.store))
            spools = [Spool(folder, output.name) for output in found]
            for spool in spools:
                held.callback(spool.close)
            frames = self._read(spools)
            self._check_not_empty(lake, spools)
            # Others may have written meanwhile, and the merge compares with what is there.
            now = [find_output(lake, output.spec, self.name) for output in found]
            commits = [Refresh(output, spool, way).commit(lake) for output, spool in zip(now, spools, strict=True)]
        made = [commit for commit in commits if commit is not None]
        rows = sum(spool.rows for spool in spools)
        return report(self.name, run, rows, frames, made, time.monotonic() - started)

    def status(self, lake: Any) -> StepStatus:
        """How many rows its outputs have; there is nothing that it could be behind."""
        return status(self.name, self.output_names, self._in(lake))

    def _read(self, spools: Sequence[Spool]) -> int:
        """Keep every frame that the function yields; how many times it did."""
        count = 0
        for given in self._yielded():
            for spool, frame in zip(spools, self._per_output(given), strict=True):
                if frame is not None:
                    spool.add(to_table(frame, self.name, spool.output).table)
            count += 1
        return count

    def _yielded(self) -> Iterator[Any]:
        """What the function yields; its own errors say that they are the function's."""
        count = 0
        try:
            given = self._called()
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
            raise function_failed(self.name, error, f" after {_frames(count)}" if count else "") from error

    def _called(self) -> Iterator[Any]:
        given = self.func(**self.kwargs)
        if hasattr(given, "__next__"):
            return iter(given)
        if hasattr(given, "columns") or isinstance(given, tuple):  # all at once
            return iter([given])
        if isinstance(given, list):
            return iter(given)
        what = "nothing" if given is None else f"a {type(given).__qualname__}"
        raise BadResult(
            f"the function of step {self.name!r} returned {what}, not frames",
            hint="yield frames from it",
            function=self.name,
            output=None,
        )

    def _per_output(self, given: Any) -> Sequence[Any]:
        frames: Sequence[Any] = given if isinstance(given, tuple | list) else (given,)
        count = len(self.outputs)
        if len(frames) != count:
            wanted = "a frame" if count == 1 else f"a tuple of {count} frames"
            raise BadResult(
                f"step {self.name!r} yielded {_frames(len(frames))} at once and writes {', '.join(self.output_names)}",
                hint=f"yield {wanted} at a time",
                function=self.name,
                output=None,
            )
        return frames

    def _check_not_empty(self, lake: Any, spools: Sequence[Spool]) -> None:
        if not self.delete_stale or self.allow_empty or any(spool.rows for spool in spools):
            return
        for name in self.output_names:
            if name in lake and lake[name].count():
                raise nothing_came(self.name, name, "the function yielded no rows")


def _check_callable(step: str, func: Callable[..., Any], kwargs: Mapping[str, Any]) -> None:
    """Refuse a function that cannot be called with these arguments, or that has to be awaited."""
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
            hint="it gets kwargs by name, and nothing else",
            function=step,
        ) from error
    except ValueError:
        return  # some built-in ones do not say what they take


def report(step: str, run: str, rows: int, calls: int, commits: Sequence[Commit], seconds: float) -> RunReport:
    """What a run that brought rows in has done; its rows are what `keys` counts."""
    return RunReport(
        step=step,
        run=run,
        keys=rows,
        called=calls,
        commits=len(commits),
        new=sum(commit.new for commit in commits),
        changed=sum(commit.changed for commit in commits),
        retracted=sum(commit.retracted for commit in commits),
        seconds=seconds,
    )


def status(step: str, outputs: Sequence[str], lake: Any) -> StepStatus:
    """Where a step stands that has no inputs in the lake."""
    rows = sum(lake[name].count() for name in outputs if name in lake)
    return StepStatus(step, (), rows, 0, 0, 0, "", None, None)


def nothing_came(step: str, output: str, what: str) -> NothingCame:
    """Why a full refresh without rows was not believed."""
    return NothingCame(
        f"step {step!r}: {what}, which would delete all of {output!r}; nothing was written",
        hint="if there really are none any more, give the step allow_empty=True",
        step=step,
        output=output,
    )


def function_failed(step: str, error: Exception, when: str) -> FunctionFailed:
    """An error of a user's function, with the line of the user's that it came from."""
    said = traceback.format_exception_only(error)[-1].strip()
    own = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(_NOT_THEIRS)]
    where = f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""
    return FunctionFailed(
        f"the function of step {step!r} failed{when}: {said}{where}", hint="nothing was written", step=step
    )


_NOT_THEIRS = (str(Path(__file__).parent.parent), *(sysconfig.get_path(kind) for kind in ("stdlib", "purelib")))


def _frames(count: int) -> str:
    return "1 frame" if count == 1 else f"{count} frames"
