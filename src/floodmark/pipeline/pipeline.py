"""A pipeline: steps by name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from floodmark.pipeline.errors import UnknownStep
from floodmark.transform.errors import BadStep
from floodmark.transform.step import Step


class Pipeline:
    """The steps of a project, in the order in which they were declared; each has a name of its own."""

    def __init__(self, steps: Iterable[Step]) -> None:
        self._steps: dict[str, Step] = {}
        for number, step in enumerate(_listed(steps), 1):
            checked = _checked(step, number)
            if checked.name in self._steps:
                raise BadStep(
                    f"two steps of the pipeline are named {checked.name!r}",
                    hint="give one of them another name: name=… (without it a step is named after its function)",
                    name=checked.name,
                )
            _check_outputs(checked, self._steps.values())
            self._steps[checked.name] = checked

    def __repr__(self) -> str:
        return f"Pipeline([{', '.join(self._steps)}])"

    @property
    def names(self) -> list[str]:
        """The names of the steps."""
        return list(self._steps)

    def __iter__(self) -> Iterator[Step]:
        return iter(self._steps.values())

    def __len__(self) -> int:
        return len(self._steps)

    def __contains__(self, name: object) -> bool:
        return name in self._steps

    def __getitem__(self, name: str) -> Step:
        if name in self._steps:
            return self._steps[name]
        near = difflib.get_close_matches(str(name), self._steps, 1)
        there = f"its steps are {', '.join(self._steps)}" if self._steps else "it has no steps"
        raise UnknownStep(
            f"the pipeline has no step {name!r}", hint=f"did you mean {near[0]!r}?" if near else there, name=name
        )

    def labelled(self, labels: Mapping[str, str]) -> Pipeline:
        """The steps that have all of these labels, as a pipeline; without labels, all of them."""
        return Pipeline(step for step in self if labels.items() <= dict(step.labels).items())


def _listed(steps: Any) -> Iterable[Any]:
    if isinstance(steps, Step):
        raise BadStep("a pipeline takes a list of steps, not one step", hint="put it in brackets: Pipeline([step])")
    if not isinstance(steps, Iterable) or isinstance(steps, str | bytes | Mapping):
        raise BadStep(f"a pipeline takes a list of steps, not {steps!r}", hint="write Pipeline([step, …])")
    return steps


def _checked(step: Any, number: int) -> Step:
    if isinstance(step, Step):
        return step
    if isinstance(step, type) and issubclass(step, Step):
        hint = f"make one: {step.__name__}(…)"
    elif callable(step):
        hint = "a function becomes a step by BatchTransform(function, inputs=[…], outputs=[…])"
    elif isinstance(step, Iterable) and not isinstance(step, str | bytes):
        hint = "put a * before it if it is a list of steps"
    else:
        hint = "give BatchTransform, BatchGenerate, UpdateExternalTable or DatatableTransform steps"
    raise BadStep(f"number {number} of the pipeline is no step: {_shortly(step)}", hint=hint, number=number)


def _check_outputs(step: Step, others: Iterable[Step]) -> None:
    """Refuse a step that writes what another one does: they would undo each other's work at every run."""
    written = {name.lower() for name in step.output_names}
    for other in others:
        both = [name for name in other.output_names if name.lower() in written]
        if both and not (step.shares_outputs and other.shares_outputs):
            raise BadStep(
                f"the steps {other.name!r} and {step.name!r} of the pipeline both write {both[0]!r}",
                hint="give each an output of its own; generators that only add rows have delete_stale=False",
                output=both[0],
            )


def _shortly(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:79]}…"
