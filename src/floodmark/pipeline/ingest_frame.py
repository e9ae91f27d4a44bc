"""A function that gives a frame as a source: what it gave before is not taken in again."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from floodmark.errors import FloodmarkError
from floodmark.ledger.incoming import Batches, Frame, recognise
from floodmark.pipeline.errors import BadDeclaration
from floodmark.pipeline.source_state import has_state, last_state
from floodmark.pipeline.taking_in import opened, report, written
from floodmark.transform.place import Place
from floodmark.transform.report import RunReport, StepStatus
from floodmark.transform.step import Step

if TYPE_CHECKING:
    from floodmark.ledger.commit import Commit
    from floodmark.ledger.snapshot import Snapshot
    from floodmark.pipeline.declared import Dataset

_RETURN = "#"
"""Stands before the block after which content that was there before came again."""


class IngestFrame(Step):
    """Calls a function, and writes the frame it gives.

    A frame that comes with a state is written if that state is new; one that comes alone, if its content is. What a
    Spark frame holds is not known before it is computed: in a dataset without a key it needs a state.
    """

    def __init__(
        self,
        name: str,
        output: str,
        func: Callable[..., Any],
        labels: Mapping[str, str] | None = None,
        declared: Dataset | None = None,
        place: Place | None = None,
    ) -> None:
        super().__init__(name, (), [output], labels)
        self._place = place
        self.func = func
        self.declared = declared
        self._takes_state = _takes_state(name, func)

    @property
    def shares_outputs(self) -> bool:
        return True

    def run(self, lake: Any) -> RunReport:
        """Call the function, and write what is new."""
        began = time.monotonic()
        dataset = opened(lake, self.output_names[0], self.declared)
        frame, state = self._called(dataset)
        is_keyed = dataset.strategy.is_keyed
        commits: list[Commit] = []
        if frame is not None:
            data, told = self._with_state(frame, state, is_keyed)
            if told is None:
                commits = written(dataset, data) or []
            else:
                snapshot = dataset.snapshot()
                if is_keyed and state is None and has_state(snapshot, self.name, told):
                    told = self._once_more(snapshot, told)
                if not has_state(snapshot, self.name, told):
                    commits = written(dataset, data, source=self.name, state=told) or []
        return report(self.name, lake, commits, 1, is_keyed, time.monotonic() - began)

    def _once_more(self, snapshot: Snapshot, told: str) -> str:
        """The state of content that was there before: the last one, or a new one if it was another since then."""
        last = last_state(snapshot, self.name)
        if last is not None and last.partition(_RETURN)[0] == told:
            return last
        # Without a state of its own the return would not count, and what was there before it could not come again.
        return f"{told}{_RETURN}{snapshot.head_block.sequence_number}"

    def status(self, lake: Any) -> StepStatus:
        """How many rows there are; there is nothing in the lake that it could be behind."""
        from floodmark.transform.refresh.generate import status

        return status(self.name, self.output_names, self._in(lake))

    def _called(self, dataset: Any) -> tuple[Any, str | None]:
        from floodmark.transform.refresh.generate import function_failed

        try:
            given = self.func(last_state(dataset.snapshot(), self.name)) if self._takes_state else self.func()
        except FloodmarkError:
            raise
        except Exception as error:
            raise function_failed(self.name, error, "") from error
        if isinstance(given, tuple):
            if len(given) != 2 or not isinstance(given[1], str):
                raise BadDeclaration(
                    f"the function of source {self.name!r} gave a tuple that is no pair of a frame and a text",
                    hint="return (frame, state), where state is a text that says how far the source was read",
                )
            return given
        return given, None

    def _with_state(self, frame: Any, state: str | None, is_keyed: bool) -> tuple[Any, str | None]:
        """The frame, and what says whether it was written before; None where the keys alone decide."""
        if state is not None:
            return frame, state
        data = recognise(frame)
        if isinstance(data, Batches):
            data = Frame(data.reader.read_all())
        if isinstance(data, Frame):
            return data.table, f"content:{_content(data.table)}"
        if is_keyed:
            return frame, None
        raise BadDeclaration(
            f"source {self.name!r} gave a Spark frame without a state, and its dataset has no key: nobody could tell "
            "whether its rows are there already",
            hint="return (frame, state) with a text that names this batch, or give the dataset a key",
        )


def _content(table: pa.Table) -> str:
    from floodmark.storage.logical_hash import logical_hash

    return str(logical_hash(table).digest.hex())


def _takes_state(step: str, func: Any) -> bool:
    if not callable(func):
        raise BadDeclaration(f"frame={func!r} of source {step!r} is no function", hint="give one that returns a frame")
    try:
        parameters = inspect.signature(func).parameters.values()
    except ValueError:
        return False
    needed = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if len([p for p in needed if p.default is p.empty]) > 1:
        raise BadDeclaration(
            f"the function of source {step!r} takes {len(needed)} arguments",
            hint="it gets the state of the last time, or nothing",
        )
    return bool(needed)
