"""Checks of a pipeline's declarations against the datasets in the lake, done before anything runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from floodmark.chain.events import DatasetKind
from floodmark.errors import BadPipeline, ChainError, DeclarationProblem, close_matches
from floodmark.ledger import names
from floodmark.ledger.schema import declare_vocab, fields_from, vocabulary
from floodmark.ledger.strategy import strategy_of
from floodmark.pipeline.declarations import ColumnSpec, DatasetSpec
from floodmark.pipeline.graph import Graph
from floodmark.timeline import settings as timeline_settings

if TYPE_CHECKING:
    from floodmark.pipeline.pipeline import Pipeline
    from floodmark.transforms.specs import OutputSpec
    from floodmark.transforms.step import Step


def build_checked_graph(pipeline: Pipeline, lake: Any, requested_names: Sequence[str] = ()) -> Graph:
    """The graph of a pipeline in a lake. One error lists all problems, with file and line."""
    existing = {entry.name for entry in names.entries(lake.store)}
    graph = pipeline.graph(existing, requested_names)
    small = {name.lower() for name in existing}
    try:
        problems = [
            *_check_options(pipeline, graph),
            *_check_kinds(graph, lake, small),
            *_check_changes(pipeline, graph, lake, small),
        ]
        problems += check_columns(pipeline, lake, small)
    except ChainError as error:
        if not (problems := list(_check_readable(pipeline, graph, lake, small))):
            raise
        raise BadPipeline.of(problems) from error
    if problems:
        raise BadPipeline.of(problems)
    return graph


def _check_readable(pipeline: Pipeline, graph: Graph, lake: Any, existing: set[str]) -> Iterator[DeclarationProblem]:
    """Datasets whose chain is damaged or from a newer release. The block itself does not name its dataset."""
    places = {name: node.place for node in graph.nodes.values() for name in node.writes}
    places |= {name: declared.place for name, declared in pipeline.datasets.items()}
    for name in (one for one in places if one.lower() in existing):
        try:
            lake[name].snapshot()
        except ChainError as error:
            hint = error.hint or f"run `floodmark verify {name}` for details"
            yield DeclarationProblem(f"dataset {name!r} cannot be read: {error.message}", hint, places[name])


def derived_outputs(graph: Graph) -> set[str]:
    """The datasets that steps and views compute, in lower case."""
    return {name.lower() for node in graph.nodes.values() if node.kind in ("step", "view") for name in node.writes}


def _check_options(pipeline: Pipeline, graph: Graph) -> Iterator[DeclarationProblem]:
    """Declarations with options that a computed dataset cannot have."""
    derived = derived_outputs(graph)
    views = {name.lower() for node in graph.nodes.values() if node.kind == "view" for name in node.writes}
    for declared in pipeline.datasets.values():
        if declared.name.lower() not in derived:
            continue
        options = ("merge", "compare", "lookup", "partition_by")
        for option in (name for name in options if getattr(declared, name) is not None):
            message = f"dataset {declared.name!r} is declared with {option}=, but it is computed from others"
            yield DeclarationProblem(
                message, f"leave {option}= out; a key, a schema, an event time and a vocab are allowed", declared.place
            )
        if declared.vocab is not None and declared.name.lower() in views:
            message = f"dataset {declared.name!r} is declared with vocab=, but it is a view"
            yield DeclarationProblem(message, "leave vocab= out; rename columns in the query", declared.place)


def _check_kinds(graph: Graph, lake: Any, existing: set[str]) -> Iterator[DeclarationProblem]:
    """Computed datasets that are now declared for outside data, or the other way round."""
    for node in graph.nodes.values():
        for name in (one for one in node.writes if one.lower() in existing):
            was_derived = lake[name].snapshot().state.dataset_kind is DatasetKind.DERIVATIVE
            if was_derived == (node.kind != "source") or (node.kind == "step" and not was_derived):
                continue  # a step may write to a dataset that users write to, too; its run checks the key
            was = "is computed from others" if was_derived else "has data from outside"
            now = "takes data from outside" if node.kind == "source" else "computes it"
            message = f"{name!r} {was}, but {node.kind} {node.name!r} {now}"
            yield DeclarationProblem(message, f"give it another name, or drop it (`floodmark drop {name}`)", node.place)


def _check_changes(pipeline: Pipeline, graph: Graph, lake: Any, existing: set[str]) -> Iterator[DeclarationProblem]:
    filled = {name.lower() for node in graph.nodes.values() if node.kind == "source" for name in node.writes}
    for declared in pipeline.datasets.values():
        if declared.name.lower() in existing:
            yield from _check_dataset(declared, lake)
            if declared.name.lower() in filled and declared.key is None and declared.merge is None:
                yield from _check_missing_key(declared, lake)
    for step in pipeline:
        for spec in _outputs(step):
            if spec.key is not None and spec.name.lower() in existing and spec.name not in pipeline.datasets:
                yield from _check_step_key(step, spec, lake)


def _check_dataset(declared: DatasetSpec, lake: Any) -> Iterator[DeclarationProblem]:
    dataset = lake[declared.name]
    state = dataset.snapshot().state
    kept = strategy_of(state)
    is_derived = state.dataset_kind is DatasetKind.DERIVATIVE
    hint = f"declare it as it exists, choose another name, or drop it (`floodmark drop {declared.name}`)"
    if is_derived and declared.key is not None and declared.strategy.key != kept.key:
        message = f"dataset {declared.name!r} exists with the key {_listed(kept.key)}"
        yield DeclarationProblem(f"{message}, not {_listed(declared.strategy.key)}", hint, declared.place)
    elif not is_derived and (declared.key is not None or declared.merge is not None) and declared.strategy != kept:
        yield DeclarationProblem(
            f"dataset {declared.name!r} exists with {kept}, not {declared.strategy}", hint, declared.place
        )
    if declared.event_time is not None and dataset.event_time != declared.event_time:
        message = f"dataset {declared.name!r} exists with the event time {dataset.event_time!r}"
        yield DeclarationProblem(f"{message}, not {declared.event_time!r}", hint, declared.place)
    present_names = dataset.system_columns
    reserved_names = None if declared.vocab is None else vocabulary(declare_vocab(declared.vocab)).reserved
    if reserved_names is not None and reserved_names != present_names:
        message = f"dataset {declared.name!r} exists with the system columns {_listed(present_names)}"
        yield DeclarationProblem(f"{message}, not {_listed(reserved_names)}", hint, declared.place)
    yield from check_types(declared, dataset, hint)
    if (settings := declared.settings) is not None and (present := timeline_settings.read_settings(state)) != settings:
        message = f"dataset {declared.name!r} exists with {'no timeline' if present is None else present}"
        yield DeclarationProblem(f"{message}, not {settings}", hint, declared.place)


def _check_missing_key(declared: DatasetSpec, lake: Any) -> Iterator[DeclarationProblem]:
    """A declaration without a key for an existing keyed dataset that this pipeline writes.

    Without a key, each row would be a new record. A dataset that others write may be declared without its options.
    """
    state = lake[declared.name].snapshot().state
    strategy = strategy_of(state)
    if strategy.is_keyed and state.dataset_kind is not DatasetKind.DERIVATIVE:
        message = f"dataset {declared.name!r} exists with {strategy}, but is declared without a key"
        key = repr(strategy.key[0]) if len(strategy.key) == 1 else repr(list(strategy.key))
        hint = f"declare it as it exists (key={key}{'' if strategy.kind == 'upsert' else f', merge={strategy.kind!r}'})"
        yield DeclarationProblem(message, f"{hint}, or drop it (`floodmark drop {declared.name}`)", declared.place)


def _check_step_key(step: Step, spec: OutputSpec, lake: Any) -> Iterator[DeclarationProblem]:
    kept = strategy_of(lake[spec.name].snapshot().state)
    assert spec.key is not None
    if kept.key != tuple(spec.key):
        message = f"step {step.name!r} writes {spec.name!r} by {_listed(spec.key)}, but its key is {_listed(kept.key)}"
        hint = f"use its present key, or drop it (`floodmark drop {spec.name}`) so that the next run creates it again"
        yield DeclarationProblem(message, hint, step.place)


def _outputs(step: Step) -> tuple[OutputSpec, ...]:
    several = getattr(step, "outputs", None)
    one = getattr(step, "output", None)
    return tuple(several) if several is not None else () if one is None else (one,)


def _listed(key: Any) -> str:
    return ", ".join(key) or "nothing"


# Columns

_FAMILIES = ("boolean", "integer", "floating", "decimal", "temporal", "nested")


def check_columns(pipeline: Pipeline, lake: Any, existing: set[str]) -> Iterator[DeclarationProblem]:
    """Problems of computed columns with the datasets that exist in the lake."""
    declared: dict[str, set[str]] = {}
    for column in pipeline.columns.values():
        declared.setdefault(column.owner, set()).add(column.name)
    for column in pipeline.columns.values():
        if column.owner.lower() in existing and (layout := lake[column.owner].snapshot().layout) is not None:
            yield from _check_column(column, lake[column.owner], layout.read_schema.names, declared[column.owner])


def _check_column(column: ColumnSpec, dataset: Any, own: list[str], declared: set[str]) -> Iterator[DeclarationProblem]:
    called, place = column.called, column.place
    if taken := [name for name in own if name.lower() == column.name.lower()]:
        message = f"dataset {column.owner!r} already has a stored column {taken[0]!r}, so {called!r} cannot be added"
        yield DeclarationProblem(message, "give the computed column another name", place)
    known = [*own, *(one.name for one in dataset.catalog.columns), *declared]
    for name in column.taken:
        if name not in known:
            near = close_matches(name, known)
            hint = f"did you mean {near[0]!r}?" if near else "give inputs=[…], or name the parameter like the column"
            message = f"column {called!r} is computed from {name!r}, which {column.owner!r} does not have"
            yield DeclarationProblem(message, hint, place)
    present = dataset.catalog.find(column.name)
    if present is not None and present.type != column.udf.type:
        message = f"column {called!r} is declared as {column.udf.type}, but exists as {present.type}"
        hint = f"give it another name, or drop it: Lake(…)[{column.owner!r}].drop_column({column.name!r})"
        yield DeclarationProblem(message, hint, place)


def check_types(declared: DatasetSpec, dataset: Any, hint: str) -> Iterator[DeclarationProblem]:
    """Columns that are declared with another type than they have in the lake."""
    if declared.schema is None or dataset.schema is None:
        return
    present: Mapping[str, pa.DataType] = {field.name: field.type for field in dataset.schema}
    for field in fields_from(declared.schema):
        known = present.get(field.name)
        if known is not None and _family(known) != _family(field.type):
            message = f"column {field.name!r} of {declared.name!r} is declared as {field.type}, but is {known}"
            yield DeclarationProblem(message, hint, declared.place)


def _family(of: pa.DataType) -> str:
    """The family of a type. Types of one family are converted when stored, so they count as equal here."""
    for family in _FAMILIES:
        if getattr(pa.types, f"is_{family}")(of):
            return family
    return "text" if pa.types.is_string(of) or pa.types.is_large_string(of) else str(of)
