"""`Step`, the base of all steps, and what runs and status calls return: `RunReport` and `StepStatus`."""

from __future__ import annotations

import re
import sys
import sysconfig
import time
import traceback
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from floodmark.errors import BadStep, CodeLocation, NothingCame, RunFailed, StepFailed
from floodmark.ledger.commit import Commit
from floodmark.transforms.specs import InputSpec, OutputSpec, check_in_lake

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


class Step(ABC):
    """The base of all steps: a name, labels to select steps by, inputs and outputs.

    A step has no state: its outputs store which keys were processed. So a step can be renamed, moved to another file,
    or created again in another process.
    """

    def __init__(
        self,
        name: str,
        inputs: Sequence[str],
        outputs: Sequence[str],
        labels: Mapping[str, str] | Sequence[tuple[str, str]] | None = None,
    ) -> None:
        self._name = check_step_name(name)
        self._inputs = tuple(inputs)
        self._outputs = tuple(outputs)
        self._labels = _labels(labels, name)
        self._place = find_caller()
        check_dataset_names(self)

    def __repr__(self) -> str:
        read = f"{', '.join(self._inputs)} → " if self._inputs else ""
        return f"{type(self).__name__}({self._name!r}: {read}{', '.join(self._outputs)})"

    @property
    def name(self) -> str:
        """The name of the step in commands and reports. It can be changed without other effects."""
        return self._name

    @property
    def declared_as(self) -> str:
        """The name in the public API under which the step is declared, such as BatchTransform."""
        return type(self).__name__

    @property
    def labels(self) -> Mapping[str, str]:
        """The labels that the step can be selected by."""
        return dict(self._labels)

    @property
    def place(self) -> CodeLocation | None:
        """The file and line that declare the step."""
        return self._place

    @property
    def input_names(self) -> tuple[str, ...]:
        """The names of the datasets that it reads."""
        return self._inputs

    @property
    def output_names(self) -> tuple[str, ...]:
        """The names of the datasets that it writes. No other step writes to them, unless it `shares_outputs`."""
        return self._outputs

    @property
    def may_read_outputs(self) -> bool:
        """Whether it may read a dataset that it writes to."""
        return False

    @property
    def shares_outputs(self) -> bool:
        """Whether other steps may write to its outputs: it adds and changes only its own rows."""
        return False

    def _in(self, lake: Any) -> Any:
        """The lake, after a check that this step can run in it."""
        check_in_lake(self._specs, lake, self._name)
        return lake

    @property
    def _specs(self) -> Sequence[InputSpec | OutputSpec]:
        """The declared inputs and outputs."""
        return ()

    @abstractmethod
    def run(self, lake: Any) -> Any:
        """Bring the outputs up to date."""


def check_step_name(name: str) -> str:
    """The name, after a check that it is valid."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise BadStep(
            f"{name!r} cannot name a step",
            hint="use letters, digits, '_', '-' and '.', starting with a letter, a digit or '_': name='features'",
            step=name,
        )
    return name


def check_dataset_names(step: Step) -> None:
    """Refuse a step that writes no dataset, writes or reads a dataset twice, or writes a dataset that it reads."""
    written = [name.lower() for name in step.output_names]
    if not written:
        raise BadStep(f"step {step.name!r} has no output", hint="name the dataset to write: outputs=['features']")
    for name in step.output_names:
        if written.count(name.lower()) > 1:
            raise BadStep(f"step {step.name!r} writes {name!r} twice", hint="name each output once", output=name)
        if not step.may_read_outputs and name.lower() in (read.lower() for read in step.input_names):
            raise BadStep(
                f"step {step.name!r} reads and writes {name!r}",
                hint="choose another name for the output: a step cannot write to its inputs",
                output=name,
            )
    read = [name.lower() for name in step.input_names]
    for name in step.input_names:
        if read.count(name.lower()) > 1:
            raise BadStep(
                f"step {step.name!r} reads {name!r} twice",
                hint="name each input once; the function may use its frame several times",
                input=name,
            )


def _labels(given: Mapping[str, str] | Sequence[tuple[str, str]] | None, name: str) -> dict[str, str]:
    try:
        pairs = dict(given or {})
    except (TypeError, ValueError) as error:
        raise _bad_labels(given, name) from error
    if not all(isinstance(key, str) and isinstance(value, str) for key, value in pairs.items()):
        raise _bad_labels(given, name)
    if "" in pairs or (given is not None and len(given) > len(pairs)):
        raise _bad_labels(given, name)
    return pairs


def _bad_labels(given: Any, name: str) -> BadStep:
    return BadStep(
        f"labels={given!r} of step {name!r} are not labels",
        hint="give one text for each name: labels={'stage': 'images'}",
    )


def default_name(func: Any) -> str:
    """The default name of a step: the name of its function."""
    while isinstance(func, partial):
        func = func.func
    name = getattr(func, "__name__", None) or type(func).__name__
    return "step" if name == "<lambda>" else str(name)


def check_kwargs(given: Any, step: str) -> dict[str, Any]:
    """The keyword arguments of a step's function, after a check that they are a mapping."""
    if given is not None and not (isinstance(given, Mapping) and all(isinstance(name, str) for name in given)):
        raise BadStep(
            f"kwargs={given!r} of step {step!r} are not keyword arguments",
            hint="give values by parameter names: kwargs={'size': 64}",
            step=step,
        )
    return dict(given or {})


def check_count(given: Any, name: str, step: str) -> int:
    """A count, after a check that it is a whole number from 1 on."""
    if not isinstance(given, int) or isinstance(given, bool) or given < 1:
        raise BadStep(
            f"{name}={given!r} of step {step!r} is not a positive integer",
            hint="give a whole number from 1 on",
            step=step,
        )
    return given


# Reports and status


@dataclass(frozen=True)
class RunReport:
    """What a run did.

    `keys` is the number of processed keys, and `failed` of them have an error. The function was called for `called`
    keys (repeated calls count once), `reused` keys had stored results of an earlier run, and the other keys are gone
    from the inputs. `unchanged` keys were not processed: their new records differ only in columns that the step does
    not read. Steps without transform keys count rows as `keys`, and frames or calls as `called`; then `unchanged` rows
    were there before, and `duplicates` were replaced by a later row of the same batch and key. `new`, `changed` and
    `retracted` count rows of all outputs. `positions` has the offset up to which each input is processed, by its name;
    -1 for none.

    A failed key keeps the rows of its last success; `skipped` of the failed keys have no rows, because `on_error`
    skips them. If too many newly tried keys failed, `problem` says so: then the run has failed, and committed only the
    failures.

    `column_changes` says which columns of an output are new, and which ones this version does not return. `restored`
    says which inputs were replaced by another copy of it since the last run, and what was processed again.
    """

    step: str
    run: str = ""
    keys: int = 0
    failed: int = 0
    called: int = 0
    reused: int = 0
    commits: int = 0
    new: int = 0
    changed: int = 0
    retracted: int = 0
    unchanged: int = 0
    duplicates: int = 0
    positions: Mapping[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    skipped: int = 0
    problem: str = ""
    column_changes: tuple[str, ...] = ()
    restored: tuple[str, ...] = ()

    @property
    def nothing(self) -> bool:
        """Whether nothing was committed, because there was nothing to do."""
        return self.commits == 0

    @property
    def notes(self) -> Sequence[str]:
        """What the counts do not show, in sentences."""
        return (*self.restored, *self.column_changes)


@dataclass
class RunTally:
    """Counts the work of a run over all its attempts and waves."""

    run: str
    began: float  # by the monotonic clock
    counts: Counter[str] = field(default_factory=Counter)
    problem: str = ""
    column_changes: dict[str, None] = field(default_factory=dict)  # in the order of their first commit
    restored: dict[str, None] = field(default_factory=dict)  # what is reported about inputs that lost records

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    def add(self, commits: Sequence[Commit]) -> None:
        """Count the commits of one wave to all outputs."""
        rows = {name: sum(getattr(c, name) for c in commits) for name in ("new", "changed", "retracted")}
        self.counts.update(commits=1, **rows)

    def add_keys(self, keys: int, failed: int, skipped: int, called: int, reused: int) -> None:
        self.counts.update(keys=keys, failed=failed, skipped=skipped, called=called, reused=reused)

    def set_unchanged(self, keys: int) -> None:
        """Count the keys that the newest plan skips, because no column that the step reads has changed."""
        if keys:
            self.counts["unchanged"] = keys

    def report(self, step: str, positions: Mapping[str, int]) -> RunReport:
        counts: dict[str, int] = dict(self.counts)
        return RunReport(
            step,
            self.run,
            positions=positions,
            seconds=self.seconds,
            problem=self.problem,
            column_changes=tuple(self.column_changes),
            restored=tuple(self.restored),
            **counts,
        )


@dataclass(frozen=True)
class InputStatus:
    """How far a step has read an input: up to offset `position` of `head`, so it is `behind` that many records."""

    name: str
    position: int
    head: int
    behind: int


@dataclass(frozen=True)
class LastRun:
    """The newest run that committed. `problem` says why it failed: then it committed only the failures."""

    id: str
    started: datetime
    keys: int
    failed: int
    seconds: float
    problem: str = ""


@dataclass(frozen=True)
class StepStatus:
    """How far a step is behind its inputs, its failed keys, and its last run.

    `failed` keys are processed again by the first run after they are due. `skipped` keys, and `exhausted` keys with no
    attempts left, wait for `retry` or a change of their inputs. `showing_older` of the failed and exhausted keys still
    have the rows of their last success; skipped keys have none. `stale` is the reason if everything must be computed
    again.
    """

    step: str
    inputs: tuple[InputStatus, ...]
    keys: int
    failed: int
    skipped: int
    exhausted: int
    version: str
    stale: str | None
    last_run: LastRun | None
    showing_older: int = 0
    restored: tuple[str, ...] = ()
    """For each input that was replaced by another copy of it since the last run, which records are lost."""

    @property
    def behind(self) -> int:
        """The number of records of all inputs that are not processed yet."""
        return sum(one.behind for one in self.inputs)


def raise_if_failed(report: RunReport, check: bool) -> RunReport:
    """The report of a run; `RunFailed` if the run failed, unless the caller checks the report itself."""
    if check and report.problem:
        raise RunFailed(
            f"step {report.step!r} failed: {report.problem}",
            hint=f"rows and positions stay as they were; `floodmark errors {report.step} --traceback` shows why",
            report=report,
        )
    return report


# The line of declaration

_FLOODMARK = str(Path(__file__).parent.parent)


def find_caller() -> CodeLocation | None:
    """The line outside of Floodmark that the current call came from; None if there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        # The generated __init__ of a dataclass has the file "<string>".
        if not file.startswith((_FLOODMARK, "<")):
            return CodeLocation(file, frame.f_lineno)
        frame = frame.f_back
    return None


def refresh_report(step: str, run: str, rows: int, calls: int, commits: Sequence[Commit], seconds: float) -> RunReport:
    """The report of a run that ingested rows; `keys` counts the rows."""
    return RunReport(
        step=step,
        run=run,
        keys=rows,
        called=calls,
        commits=len(commits),
        new=sum(commit.new for commit in commits),
        changed=sum(commit.changed for commit in commits),
        retracted=sum(commit.retracted for commit in commits),
        unchanged=sum(commit.unchanged for commit in commits),
        duplicates=sum(commit.duplicates for commit in commits),
        seconds=seconds,
    )


def refresh_status(step: str, outputs: Sequence[str], lake: Any) -> StepStatus:
    """The status of a step without inputs in the lake."""
    rows = sum(lake[name].count() for name in outputs if name in lake)
    return StepStatus(step, (), rows, 0, 0, 0, "", None, None)


def no_rows_error(step: str, output: str, what: str) -> NothingCame:
    """The error of a full refresh without rows, which would delete all rows."""
    return NothingCame(
        f"step {step!r}: {what}, which would delete all rows of {output!r}; nothing was written",
        hint="if the source is really empty, give the step allow_empty=True",
        step=step,
        output=output,
    )


def function_error(step: str, error: Exception, when: str) -> StepFailed:
    """The error for an exception of a user's function, with the line of the user's code that raised it."""
    problem = traceback.format_exception_only(error)[-1].strip()
    own = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(_LIBRARY_FOLDERS)]
    where = f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""
    return StepFailed(
        f"the function of step {step!r} failed{when}: {problem}{where}", hint="nothing was written", step=step
    )


_LIBRARY_FOLDERS = (str(Path(__file__).parent.parent), *(sysconfig.get_path(kind) for kind in ("stdlib", "purelib")))
