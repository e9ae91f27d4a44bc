"""A step: something that brings its outputs up to date with its inputs when it is run."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from floodmark.transform.errors import BadStep
from floodmark.transform.place import Place, here
from floodmark.transform.specs import InputSpec, OutputSpec, check_in_lake

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


class Step(ABC):
    """What all steps have: a name to call them by, labels to choose them by, inputs and outputs.

    A step holds no state: what it has done, its outputs know. So it can be renamed, moved to another file, or made
    anew in another process.
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
        self._place = here()
        check_places(self)

    def __repr__(self) -> str:
        read = f"{', '.join(self._inputs)} → " if self._inputs else ""
        return f"{type(self).__name__}({self._name!r}: {read}{', '.join(self._outputs)})"

    @property
    def name(self) -> str:
        """What the step is called, in commands and reports; another name changes nothing else."""
        return self._name

    @property
    def labels(self) -> Mapping[str, str]:
        """What it can be chosen by."""
        return dict(self._labels)

    @property
    def place(self) -> Place | None:
        """The line that declares it."""
        return self._place

    @property
    def input_names(self) -> tuple[str, ...]:
        """The datasets it reads."""
        return self._inputs

    @property
    def output_names(self) -> tuple[str, ...]:
        """The datasets it writes; nobody else writes to them, unless it `shares_outputs`."""
        return self._outputs

    @property
    def shares_outputs(self) -> bool:
        """Whether others may write to its outputs, too: it only adds and changes rows of its own."""
        return False

    def _in(self, lake: Any) -> Any:
        """The lake, if it is one that this step can run in."""
        check_in_lake(self._specs, lake, self._name)
        return lake

    @property
    def _specs(self) -> Sequence[InputSpec | OutputSpec]:
        """What it reads and writes, as declared."""
        return ()

    @abstractmethod
    def run(self, lake: Any) -> Any:
        """Bring the outputs up to date."""


def check_step_name(name: str) -> str:
    """The name, if it can be one."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise BadStep(
            f"{name!r} cannot name a step",
            hint="use letters, digits, '_', '-' and '.', starting with a letter, a digit or '_': name='features'",
            step=name,
        )
    return name


def check_places(step: Step) -> None:
    """Refuse a step that writes nowhere, writes twice to one dataset, or writes what it reads."""
    written = [name.lower() for name in step.output_names]
    if not written:
        raise BadStep(f"step {step.name!r} has no output", hint="name the dataset to write: outputs=['features']")
    for name in step.output_names:
        if written.count(name.lower()) > 1:
            raise BadStep(f"step {step.name!r} writes {name!r} twice", hint="name each output once", output=name)
        if name.lower() in (read.lower() for read in step.input_names):
            raise BadStep(
                f"step {step.name!r} reads and writes {name!r}",
                hint="a step's output is another dataset than its inputs: choose another name",
                output=name,
            )
    read = [name.lower() for name in step.input_names]
    for name in step.input_names:
        if read.count(name.lower()) > 1:
            raise BadStep(
                f"step {step.name!r} reads {name!r} twice",
                hint="name each input once; the function may use its frame as often as it likes",
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
        f"labels={given!r} of step {name!r} are none", hint="give one text by each name: labels={'stage': 'images'}"
    )


def name_of(func: Any) -> str:
    """What a step is called after its function."""
    while isinstance(func, partial):
        func = func.func
    name = getattr(func, "__name__", None) or type(func).__name__
    return "step" if name == "<lambda>" else str(name)


def checked_kwargs(given: Any, step: str) -> dict[str, Any]:
    """The keyword arguments of a step's function."""
    if given is not None and not (isinstance(given, Mapping) and all(isinstance(name, str) for name in given)):
        raise BadStep(
            f"kwargs={given!r} of step {step!r} are no keyword arguments",
            hint="give values by the names of parameters: kwargs={'size': 64}",
            step=step,
        )
    return dict(given or {})


def checked_count(given: Any, name: str, step: str) -> int:
    """A whole number from 1 on, or an error that names the option."""
    if not isinstance(given, int) or isinstance(given, bool) or given < 1:
        raise BadStep(f"{name}={given!r} of step {step!r} is no count", hint="give a whole number from 1 on", step=step)
    return given
