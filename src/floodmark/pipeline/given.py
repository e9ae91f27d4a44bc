"""What a pipeline may be given: a list of declarations, no two of which write the same dataset."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from floodmark.pipeline.declared import Column, Dataset, Source, View
from floodmark.transform.errors import BadStep
from floodmark.transform.place import Place
from floodmark.transform.step import Step

Declaration = Dataset | Source | Column | View | Step


def listed(declarations: Any) -> Iterable[Any]:
    """What was given, if it is a list."""
    if isinstance(declarations, Declaration):
        raise BadStep("a pipeline takes a list of steps, not one step", hint="put it in brackets: Pipeline([step])")
    if not isinstance(declarations, Iterable) or isinstance(declarations, str | bytes | Mapping):
        raise BadStep(f"a pipeline takes a list of steps, not {declarations!r}", hint="write Pipeline([step, …])")
    return declarations


def checked(given: Any, number: int) -> Declaration:
    """What was given, if it is a declaration; else what to do with it."""
    if isinstance(given, Declaration):
        return given
    if isinstance(given, type) and issubclass(given, Declaration):
        hint = f"make one: {given.__name__}(…)"
    elif callable(given):
        hint = "a function becomes a step by BatchTransform(function, inputs=[…], outputs=[…])"
    elif isinstance(given, Iterable) and not isinstance(given, str | bytes):
        hint = "put a * before it if it is a list of steps"
    else:
        hint = "give BatchTransform, BatchGenerate, UpdateExternalTable or DatatableTransform steps, or declarations"
    raise BadStep(f"number {number} of the pipeline is no step: {_shortly(given)}", hint=hint, number=number)


def check_outputs(step: Step, others: Iterable[Step]) -> None:
    """Refuse a step that writes what another one does: they would undo each other's work at every run."""
    written = {name.lower() for name in step.output_names}
    for other in others:
        both = [name for name in other.output_names if name.lower() in written]
        if both and not (step.shares_outputs and other.shares_outputs):
            raise BadStep(
                f"the steps {other.name!r} and {step.name!r} of the pipeline both write {both[0]!r}"
                f"{other_one(other.place)}",
                hint="give each an output of its own; generators that only add rows have delete_stale=False",
                output=both[0],
                place=step.place,
            )


def other_one(place: Place | None) -> str:
    """Where the other of two is that do not go together, as the end of a sentence."""
    return "" if place is None else f" (the other one: {place})"


def _shortly(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:79]}…"
