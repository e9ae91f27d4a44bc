"""A pipeline: what a project declares, by name."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from floodmark.pipeline.declared import Column, Dataset, DeclaredInput, DeclaredOutput, Source, View
from floodmark.pipeline.errors import BadDeclaration, UnknownStep
from floodmark.pipeline.given import Declaration, check_outputs, checked, listed, other_one
from floodmark.pipeline.graph import Graph, Kind, Node, build
from floodmark.transform.errors import BadStep
from floodmark.transform.place import Place
from floodmark.transform.specs import OutputSpec
from floodmark.transform.step import Step

if TYPE_CHECKING:
    from floodmark.pipeline.running import Ran

F = TypeVar("F", bound=Callable[..., Any])


class Pipeline:
    """What a project declares: datasets, sources, steps, columns and views, in any order.

    Names of steps, sources, columns (`dataset.column`) and views differ. What reads what is told from the datasets that
    they name; `run` works in that order. Iterating gives the steps, sources among them, as declared.
    """

    def __init__(self, declarations: Iterable[Declaration] = ()) -> None:
        self._declarations: list[Declaration] = []
        self._datasets: dict[str, Dataset] = {}
        self._steps: dict[str, Step] = {}
        self._sources: set[str] = set()
        self._columns: dict[str, Column] = {}
        self._views: dict[str, View] = {}
        for number, declaration in enumerate(listed(declarations), 1):
            self._add(checked(declaration, number))

    def __repr__(self) -> str:
        return f"Pipeline([{', '.join([*self._steps, *self._columns, *self._views])}])"

    # What is in it

    @property
    def names(self) -> list[str]:
        """The names of the steps."""
        return list(self._steps)

    def __iter__(self) -> Iterator[Step]:
        return map(self._completed, self._steps.values())

    def __len__(self) -> int:
        return len(self._steps)

    def __contains__(self, name: object) -> bool:
        return name in self._steps

    def __getitem__(self, name: str) -> Step:
        if name in self._steps:
            return self._completed(self._steps[name])
        raise self.unknown(name, self._steps)

    @property
    def datasets(self) -> Mapping[str, Dataset]:
        """The datasets that are declared."""
        return dict(self._datasets)

    @property
    def columns(self) -> Mapping[str, Column]:
        """The columns, by `dataset.column`."""
        return dict(self._columns)

    @property
    def views(self) -> Mapping[str, View]:
        """The views."""
        return dict(self._views)

    @property
    def declarations(self) -> Sequence[Declaration]:
        """All of it, as declared."""
        return tuple(self._declarations)

    @property
    def nodes(self) -> list[Node]:
        """All that can be run, as declared: steps, columns and views."""
        return [node for one in self._declarations if (node := self._node(one)) is not None]

    def graph(self, known: Iterable[str] | None = None, wanted: Sequence[str] = ()) -> Graph:
        """What comes before what. `BadPipeline` if it makes no sense: circles, two writers of one dataset.

        With `known`, the datasets that a lake has, also if something reads what nobody knows: anything, or what is
        `wanted`.
        """
        return build(self.nodes, None if known is None else {*self._datasets, *known}, wanted)

    def labelled(self, labels: Mapping[str, str]) -> Pipeline:
        """What has all of these labels, as a pipeline; without labels, all of it."""
        return Pipeline(one for one in self._declarations if labels.items() <= _labels(one).items())

    def unknown(self, name: Any, there: Iterable[str]) -> UnknownStep:
        """The error for a name that is none of those that are there."""
        names = list(there)
        near = difflib.get_close_matches(str(name), names, 1)
        listed = f"its steps are {', '.join(names)}" if names else "it has no steps"
        return UnknownStep(
            f"the pipeline has no step {name!r}", hint=f"did you mean {near[0]!r}?" if near else listed, name=name
        )

    def run(self, lake: Any, names: Sequence[str] = (), *, workers: int | None = None, full: bool = False) -> Ran:
        """Bring everything up to date, or exactly what is named, each after what it reads; says what was done.

        What does not depend on each other runs at the same time. What fails does not stop what does not need it: the
        report says so, and nothing is raised for it. `BadPipeline` before anything runs, `Busy` if somebody else runs.
        With `full`, everything is computed once more, though nothing has moved; only what differs is written.
        """
        from floodmark.pipeline.running import run
        from floodmark.pipeline.work import Asked

        return run(self, lake, names, workers=workers, asked=Asked(full=full))

    # Declaring with decorators, which give the function back as it is

    def transform(self, inputs: Sequence[Any], outputs: Sequence[Any], **options: Any) -> Callable[[F], F]:
        """Make a function a BatchTransform: `@pipeline.transform(["orders"], ["prices"])`. Options are its own."""
        from floodmark.transform.batch_transform import BatchTransform

        return self._decorator(lambda function: BatchTransform(function, inputs, outputs, **options))

    def table(self, inputs: Sequence[Any], outputs: Sequence[Any], **options: Any) -> Callable[[F], F]:
        """Make a function a DatatableTransform, which gets whole datasets. Options are its own."""
        from floodmark.transform.refresh.datatable import DatatableTransform

        return self._decorator(lambda function: DatatableTransform(function, inputs, outputs, **options))

    def source(self, dataset: Dataset | str, **options: Any) -> Callable[[F], F]:
        """Make a function that gives a frame a source of a dataset. Options are those of Source."""
        return self._decorator(lambda function: Source(dataset, frame=function, **options))

    def column(
        self,
        dataset: Dataset | str,
        name: str | None = None,
        *,
        returns: Any,
        where: str | None = None,
        labels: Mapping[str, str] | None = None,
        **options: Any,
    ) -> Callable[[F], F]:
        """Make a function a computed column of a dataset, named like it. Options are those of `udf`."""
        from floodmark.compute.functions.udf import udf

        def declared(function: Any) -> Column:
            called = name if name is not None else str(function.__name__)
            return Column(dataset, called, udf(returns=returns, **options)(function), where=where, labels=labels)

        return self._decorator(declared)

    def view(
        self, name: str | None = None, *, source: Dataset | str | None = None, labels: Mapping[str, str] | None = None
    ) -> Callable[[F], F]:
        """Make a function that gives SQL a view, named like it; with `source`, one that gives the columns to select."""

        def declared(function: Any) -> View:
            called = name if name is not None else str(function.__name__)
            given = function()
            if source is not None:
                return View(called, source=source, select=given, labels=labels)
            if not isinstance(given, str):
                raise BadDeclaration(
                    f"the function of view {called!r} gave {given!r}, not SQL", hint="return 'select … from …'"
                )
            return View(called, sql=given, labels=labels)

        return self._decorator(declared)

    def _decorator(self, declared: Callable[[Any], Declaration]) -> Callable[[F], F]:
        def decorate(function: F) -> F:
            self._add(declared(function))
            return function

        return decorate

    # Taking declarations

    def _add(self, declaration: Declaration) -> None:
        match declaration:
            case Dataset():
                self._add_dataset(declaration)
            case Source():
                if declaration.declared is not None:
                    self._add_dataset(declaration.declared)
                step = declaration.step()
                self._sources.add(step.name)
                self._add_step(step)
            case Column():
                self._refuse_taken(declaration.called, declaration.place)
                if isinstance(declaration.dataset, Dataset):
                    self._add_dataset(declaration.dataset)
                self._columns[declaration.called] = declaration
            case View():
                self._refuse_taken(declaration.name, declaration.place)
                if isinstance(declaration.source, Dataset):
                    self._add_dataset(declaration.source)
                self._views[declaration.name] = declaration
            case _:
                self._add_step(declaration)
        self._declarations.append(declaration)

    def _add_dataset(self, declared: Dataset) -> None:
        before = self._datasets.get(declared.name)
        if before is not None and before != declared:
            raise BadDeclaration(
                f"dataset {declared.name!r} is declared twice, and not alike{other_one(before.place)}",
                hint="declare it once",
                place=declared.place,
            )
        self._datasets[declared.name] = declared

    def _add_step(self, step: Step) -> None:
        self._refuse_taken(step.name, step.place)
        check_outputs(step, self._steps.values())
        for spec in step._specs:
            if isinstance(spec, DeclaredInput | DeclaredOutput) and spec.declared is not None:
                self._add_dataset(spec.declared)
        self._steps[step.name] = step

    def _refuse_taken(self, name: str, place: Place | None) -> None:
        other = self._steps.get(name) or self._columns.get(name) or self._views.get(name)
        if other is not None:
            raise BadStep(
                f"two steps of the pipeline are named {name!r}{other_one(other.place)}",
                hint="give one of them another name: name=… (without it a step is named after its function)",
                name=name,
                place=place,
            )

    # What it comes to

    def _completed(self, step: Step) -> Step:
        """A step with what is declared of the datasets that it writes."""
        specs = getattr(step, "outputs", None)
        if specs is None or not any(spec.name in self._datasets for spec in specs):
            return step
        made: Any = copy(step)
        made.outputs = tuple(self._declared_output(spec) for spec in specs)
        return made  # type: ignore[no-any-return]

    def _declared_output(self, spec: OutputSpec) -> OutputSpec:
        """What an output lacks, its declaration says."""
        if (declared := self._datasets.get(spec.name)) is None:
            return spec
        said = declared.as_output()
        return OutputSpec(
            spec.dataset,
            said.key if spec.key is None else spec.key,
            said.schema if spec.schema is None else spec.schema,
            said.event_time if spec.event_time is None else spec.event_time,
        )

    def _node(self, one: Declaration) -> Node | None:
        match one:
            case Dataset():
                return None
            case Column():
                declared = {column.name for column in self._columns.values() if column.owner == one.owner}
                inputs = [f"{one.owner}:{taken}" for taken in one.taken if taken in declared and taken != one.name]
                reads, writes = (one.owner, *inputs), (f"{one.owner}:{one.name}",)
                made = Node(one.called, "column", reads, writes, _labels(one), one.place, what="Column")
                return replace(made, beside=one.owner)
            case View():
                return Node(one.name, "view", one.reads, (one.name,), _labels(one), one.place, what="View")
            case Source():
                return self._step_node(self._steps[one.called], one)
            case _:
                return self._step_node(one, one)

    def _step_node(self, step: Step, one: Source | Step) -> Node:
        kind: Kind = "step" if step.input_names else "source"
        known: dict[str, Any] = {"labels": step.labels, "place": one.place, "shares": step.shares_outputs}
        return Node(step.name, kind, step.input_names, step.output_names, **known, what=type(step).__name__)


def _labels(one: Declaration) -> dict[str, str]:
    return {} if isinstance(one, Dataset) else dict(one.labels or {})
