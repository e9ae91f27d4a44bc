"""`Pipeline`: the declarations of a project by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from floodmark.errors import BadStep, CodeLocation, UnknownStep, close_matches
from floodmark.pipeline.declarations import ColumnSpec, DatasetSpec, DeclaredInput, DeclaredOutput, Source, ViewSpec
from floodmark.pipeline.graph import Graph, NodeKind, PipelineNode, build_graph
from floodmark.transforms.specs import OutputSpec
from floodmark.transforms.step import Step, find_caller

if TYPE_CHECKING:
    from floodmark.pipeline.removed_nodes import RemovedNode
    from floodmark.pipeline.run import PipelineReport
    from floodmark.views.definition import RefreshPolicy


F = TypeVar("F", bound=Callable[..., Any])


class Pipeline:
    """The declarations of a project: datasets, sources, steps, columns and views, in any order.

    The names of steps, sources, columns (`dataset.column`) and views must be distinct. The order of running follows
    from the datasets that they read and write. Iterating gives the steps, including sources, as declared.
    """

    def __init__(self, declarations: Iterable[Declaration] = ()) -> None:
        self._declarations: list[Declaration] = []
        self._datasets: dict[str, DatasetSpec] = {}
        self._steps: dict[str, Step] = {}
        self._sources: set[str] = set()
        self._columns: dict[str, ColumnSpec] = {}
        self._views: dict[str, ViewSpec] = {}
        self._place = find_caller()
        for number, declaration in enumerate(check_list(declarations), 1):
            self._add(check_declaration(declaration, number))

    def __repr__(self) -> str:
        return f"Pipeline([{', '.join([*self._steps, *self._columns, *self._views])}])"

    # Contents

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
    def datasets(self) -> Mapping[str, DatasetSpec]:
        """The declared datasets."""
        return dict(self._datasets)

    @property
    def columns(self) -> Mapping[str, ColumnSpec]:
        """The columns, by `dataset.column`."""
        return dict(self._columns)

    @property
    def views(self) -> Mapping[str, ViewSpec]:
        """The views."""
        return dict(self._views)

    @property
    def declarations(self) -> Sequence[Declaration]:
        """All declarations, in their order."""
        return tuple(self._declarations)

    @property
    def nodes(self) -> list[PipelineNode]:
        """All nodes that can be run: steps, columns and views, in the order of declaration."""
        return [node for one in self._declarations if (node := self._node(one)) is not None]

    def graph(self, known: Iterable[str] | None = None, requested_names: Sequence[str] = ()) -> Graph:
        """The graph of all nodes. `BadPipeline` if it has a cycle or two writers of one dataset.

        `known` are the names of the datasets in a lake. With it, reading an unknown dataset is an error too, for all
        nodes or for those in `requested_names`.
        """
        return build_graph(self.nodes, None if known is None else {*self._datasets, *known}, requested_names)

    def labelled(self, labels: Mapping[str, str]) -> Pipeline:
        """A pipeline of the declarations that have all of these labels."""
        chosen = Pipeline(one for one in self._declarations if labels.items() <= _labels(one).items())
        chosen._place = None  # the declarations without these labels were not removed
        return chosen

    @property
    def place(self) -> CodeLocation | None:
        """The file and line that create the pipeline."""
        return self._place

    def removed(self, lake: Any) -> tuple[RemovedNode, ...]:
        """What earlier runs of this pipeline's file wrote, and no node of it writes any more. It stays in the lake."""
        from floodmark.pipeline.removed_nodes import find_removed_nodes

        return find_removed_nodes(self.nodes, self._place, lake.store)

    def unknown(self, name: Any, there: Iterable[str]) -> UnknownStep:
        """The error for a name that is not in `there`."""
        names = list(there)
        near = close_matches(str(name), names)
        listed = f"its steps are {', '.join(names)}" if names else "it has no steps"
        return UnknownStep(
            f"the pipeline has no step {name!r}", hint=f"did you mean {near[0]!r}?" if near else listed, name=name
        )

    def run(
        self,
        lake: Any,
        names: Sequence[str] = (),
        *,
        workers: int | None = None,
        full: bool = False,
        check: bool = True,
    ) -> PipelineReport:
        """Run all nodes, or exactly the named ones, each after the nodes it reads from; returns a report.

        Independent nodes run at the same time. If a node fails, the nodes that do not need it still run; then
        `RunFailed` is raised, whose `report` has every outcome. With check=False the report is returned instead.
        `BadPipeline` is raised before anything runs, and `Busy` if another run is active. With `full`, everything is
        computed again; only differences are written.
        """
        from floodmark.pipeline.nodes import PipelineOptions
        from floodmark.pipeline.run import raise_if_failed, run

        report = run(self, lake, names, workers=workers, options=PipelineOptions(full=full))
        if check:
            raise_if_failed(report)
        return report

    # Decorators, which return the function unchanged

    def transform(self, inputs: Sequence[Any], outputs: Sequence[Any], **options: Any) -> Callable[[F], F]:
        """Declare a BatchTransform: `@pipeline.transform(["orders"], ["prices"])`. Options as in BatchTransform."""
        from floodmark.transforms.batch_transform import BatchTransform

        return self._decorator(lambda function: BatchTransform(function, inputs, outputs, **options))

    def table(self, inputs: Sequence[Any], outputs: Sequence[Any], **options: Any) -> Callable[[F], F]:
        """Declare a DatatableTransform, whose function gets whole datasets. Options as in DatatableTransform."""
        from floodmark.transforms.datatable_transform import DatatableTransform

        return self._decorator(lambda function: DatatableTransform(function, inputs, outputs, **options))

    def source(self, dataset: DatasetSpec | str, **options: Any) -> Callable[[F], F]:
        """Declare a source whose function returns a frame. Options as in Source."""
        return self._decorator(lambda function: Source(dataset, frame=function, **options))

    def column(
        self,
        dataset: DatasetSpec | str,
        name: str | None = None,
        *,
        returns: Any,
        where: str | None = None,
        labels: Mapping[str, str] | None = None,
        **options: Any,
    ) -> Callable[[F], F]:
        """Declare a computed column; its default name is the function's name. Options as in `udf`."""
        from floodmark.functions.udf import udf

        def declared(function: Any) -> ColumnSpec:
            called = name if name is not None else str(function.__name__)
            return ColumnSpec(dataset, called, udf(returns=returns, **options)(function), where=where, labels=labels)

        return self._decorator(declared)

    def view(
        self,
        name: str | None = None,
        *,
        source: DatasetSpec | str | None = None,
        labels: Mapping[str, str] | None = None,
        refresh: RefreshPolicy | None = None,
    ) -> Callable[[F], F]:
        """Declare a view whose function returns SQL, or with `source` the columns to select.

        The default name is the function's name.
        """

        def declared(function: Any) -> ViewSpec:
            called = name if name is not None else str(function.__name__)
            given = function()
            if source is not None:
                return ViewSpec(called, source=source, select=given, labels=labels, refresh=refresh)
            if not isinstance(given, str):
                raise BadStep(
                    f"the function of view {called!r} returned {given!r}, not SQL", hint="return 'select … from …'"
                )
            return ViewSpec(called, sql=given, labels=labels, refresh=refresh)

        return self._decorator(declared)

    def _decorator(self, declared: Callable[[Any], Declaration]) -> Callable[[F], F]:
        def decorate(function: F) -> F:
            self._add(declared(function))
            return function

        return decorate

    # Registration

    def _add(self, declaration: Declaration) -> None:
        match declaration:
            case DatasetSpec():
                self._add_dataset(declaration)
            case Source():
                if declaration.declared is not None:
                    self._add_dataset(declaration.declared)
                step = declaration.step()
                self._sources.add(step.name)
                self._add_step(step)
            case ColumnSpec():
                self._check_name_free(declaration.called, declaration.place)
                if isinstance(declaration.dataset, DatasetSpec):
                    self._add_dataset(declaration.dataset)
                self._columns[declaration.called] = declaration
            case ViewSpec():
                self._check_name_free(declaration.name, declaration.place)
                if isinstance(declaration.source, DatasetSpec):
                    self._add_dataset(declaration.source)
                self._views[declaration.name] = declaration
            case _:
                self._add_step(declaration)
        self._declarations.append(declaration)

    def _add_dataset(self, declared: DatasetSpec) -> None:
        before = self._datasets.get(declared.name)
        if before is not None and before != declared:
            raise BadStep(
                f"dataset {declared.name!r} is declared twice, with different options{other_location(before.place)}",
                hint="declare it once",
                place=declared.place,
            )
        self._datasets[declared.name] = declared

    def _add_step(self, step: Step) -> None:
        self._check_name_free(step.name, step.place)
        check_outputs(step, self._steps.values())
        for spec in step._specs:
            if isinstance(spec, DeclaredInput | DeclaredOutput) and spec.declared is not None:
                self._add_dataset(spec.declared)
        self._steps[step.name] = step

    def _check_name_free(self, name: str, place: CodeLocation | None) -> None:
        other = self._steps.get(name) or self._columns.get(name) or self._views.get(name)
        if other is not None:
            raise BadStep(
                f"two steps of the pipeline are named {name!r}{other_location(other.place)}",
                hint="give one of them another name: name=… (the default is the name of its function)",
                name=name,
                place=place,
            )

    # Nodes

    def _completed(self, step: Step) -> Step:
        """A step with the declared options of its output datasets."""
        specs = getattr(step, "outputs", None)
        if specs is None or not any(spec.name in self._datasets for spec in specs):
            return step
        completed: Any = copy(step)
        completed.outputs = tuple(self._complete_output(spec) for spec in specs)
        return completed  # type: ignore[no-any-return]

    def _complete_output(self, spec: OutputSpec) -> OutputSpec:
        """An output, with missing options taken from the spec of its dataset."""
        if (declared := self._datasets.get(spec.name)) is None:
            return spec
        default = declared.as_output()
        return OutputSpec(
            spec.dataset,
            default.key if spec.key is None else spec.key,
            default.schema if spec.schema is None else spec.schema,
            default.event_time if spec.event_time is None else spec.event_time,
            default.vocab if spec.vocab is None else spec.vocab,
        )

    def _node(self, one: Declaration) -> PipelineNode | None:
        match one:
            case DatasetSpec():
                return None
            case ColumnSpec():
                declared = {column.name for column in self._columns.values() if column.owner == one.owner}
                inputs = [f"{one.owner}:{taken}" for taken in one.taken if taken in declared and taken != one.name]
                reads, writes = (one.owner, *inputs), (f"{one.owner}:{one.name}",)
                node = PipelineNode(one.called, "column", reads, writes, _labels(one), one.place, what="Column")
                return replace(node, beside=one.owner)
            case ViewSpec():
                return PipelineNode(one.name, "view", one.reads, (one.name,), _labels(one), one.place, what="View")
            case Source():
                return self._step_node(self._steps[one.called], one)
            case _:
                return self._step_node(one, one)

    def _step_node(self, step: Step, one: Source | Step) -> PipelineNode:
        kind: NodeKind = "step" if step.input_names else "source"
        known: dict[str, Any] = {"labels": step.labels, "place": one.place, "shares": step.shares_outputs}
        return PipelineNode(step.name, kind, step.input_names, step.output_names, **known, what=step.declared_as)


def _labels(one: Declaration) -> dict[str, str]:
    return {} if isinstance(one, DatasetSpec) else dict(one.labels or {})


Declaration = DatasetSpec | Source | ColumnSpec | ViewSpec | Step


def check_list(declarations: Any) -> Iterable[Any]:
    """The argument of `Pipeline`, if it is a list of declarations."""
    if isinstance(declarations, Declaration):
        raise BadStep("a pipeline takes a list of steps, not one step", hint="put it in a list: Pipeline([step])")
    if not isinstance(declarations, Iterable) or isinstance(declarations, str | bytes | Mapping):
        raise BadStep(f"a pipeline takes a list of steps, not {declarations!r}", hint="write Pipeline([step, …])")
    return declarations


def check_declaration(given: Any, number: int) -> Declaration:
    """The given value, if it is a declaration; otherwise an error with a hint."""
    if isinstance(given, Declaration):
        return given
    if isinstance(given, type) and issubclass(given, Declaration):
        hint = f"create an instance: {given.__name__}(…)"
    elif callable(given):
        hint = "make the function a step: BatchTransform(function, inputs=[…], outputs=[…])"
    elif isinstance(given, Iterable) and not isinstance(given, str | bytes):
        hint = "unpack a list of steps with *"
    else:
        hint = "give BatchTransform, BatchGenerate, UpdateExternalTable or DatatableTransform steps, or declarations"
    raise BadStep(f"item {number} of the pipeline is not a step: {_shortly(given)}", hint=hint, number=number)


def check_outputs(step: Step, others: Iterable[Step]) -> None:
    """Refuse two steps with the same output, because each run would undo the other's work."""
    written = {name.lower() for name in step.output_names}
    for other in others:
        both = [name for name in other.output_names if name.lower() in written]
        if both and not (step.shares_outputs and other.shares_outputs):
            raise BadStep(
                f"the steps {other.name!r} and {step.name!r} of the pipeline both write {both[0]!r}"
                f"{other_location(other.place)}",
                hint="give each a separate output; for generators that only add rows, set delete_stale=False",
                output=both[0],
                place=step.place,
            )


def other_location(place: CodeLocation | None) -> str:
    """The end of an error message with the location of the other declaration."""
    return "" if place is None else f" (the other: {place})"


def _shortly(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:79]}…"
