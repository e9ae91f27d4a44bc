"""What a lake says against a pipeline: datasets that are there and were made otherwise. Found before anything runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from floodmark.chain.errors import ChainError
from floodmark.chain.events import DatasetKind
from floodmark.ledger import names
from floodmark.ledger.strategy import strategy_of
from floodmark.pipeline.column_checks import computed_columns, other_types
from floodmark.pipeline.declared import Dataset
from floodmark.pipeline.errors import BadPipeline, Problem
from floodmark.pipeline.graph import Graph
from floodmark.timeline import settings as timelines

if TYPE_CHECKING:
    from floodmark.pipeline.pipeline import Pipeline
    from floodmark.transform.specs import OutputSpec
    from floodmark.transform.step import Step


def checked_graph(pipeline: Pipeline, lake: Any, wanted: Sequence[str] = ()) -> Graph:
    """The graph of a pipeline in a lake; one error for everything that is wrong with it, with file and line."""
    there = {entry.name for entry in names.entries(lake.store)}
    graph = pipeline.graph(there, wanted)
    small = {name.lower() for name in there}
    try:
        problems = [*_unfit(pipeline, graph), *_other_kind(graph, lake, small), *_changed(pipeline, graph, lake, small)]
        problems += computed_columns(pipeline, lake, small)
    except ChainError as error:
        if not (problems := list(_unreadable(pipeline, graph, lake, small))):
            raise
        raise BadPipeline.of(problems) from error
    if problems:
        raise BadPipeline.of(problems)
    return graph


def _unreadable(pipeline: Pipeline, graph: Graph, lake: Any, there: set[str]) -> Iterator[Problem]:
    """Datasets whose chain is damaged, or of a newer release; a block itself does not say whose it is."""
    places = {name: node.place for node in graph.nodes.values() for name in node.writes}
    places |= {name: declared.place for name, declared in pipeline.datasets.items()}
    for name in (one for one in places if one.lower() in there):
        try:
            lake[name].snapshot()
        except ChainError as error:
            hint = error.hint or f"`floodmark verify {name}` says more"
            yield Problem(f"dataset {name!r} cannot be read: {error.message}", hint, places[name])


def derived_outputs(graph: Graph) -> set[str]:
    """The datasets, in small letters, that steps and views compute from others."""
    return {name.lower() for node in graph.nodes.values() if node.kind in ("step", "view") for name in node.writes}


def _unfit(pipeline: Pipeline, graph: Graph) -> Iterator[Problem]:
    """Declarations that ask for what a computed dataset cannot be."""
    derived = derived_outputs(graph)
    for declared in pipeline.datasets.values():
        if declared.name.lower() not in derived:
            continue
        options = ("merge", "compare", "lookup", "partition_by")
        for option in (name for name in options if getattr(declared, name) is not None):
            said = f"dataset {declared.name!r} is declared with {option}=, but it is computed from others"
            yield Problem(said, "what a step or a view computes has a key, a schema and an event time", declared.place)


def _other_kind(graph: Graph, lake: Any, there: set[str]) -> Iterator[Problem]:
    """What was computed and is to be written from outside now, or the other way round."""
    for node in graph.nodes.values():
        for name in (one for one in node.writes if one.lower() in there):
            was_derived = lake[name].snapshot().state.dataset_kind is DatasetKind.DERIVATIVE
            if was_derived == (node.kind != "source"):
                continue
            was = "is computed from others" if was_derived else "holds data from outside"
            now = "takes data from outside" if node.kind == "source" else "computes it"
            said = f"{name!r} {was}, and {node.kind} {node.name!r} {now}"
            yield Problem(said, f"give it another name, or drop it (`floodmark drop {name}`)", node.place)


def _changed(pipeline: Pipeline, graph: Graph, lake: Any, there: set[str]) -> Iterator[Problem]:
    filled = {name.lower() for node in graph.nodes.values() if node.kind == "source" for name in node.writes}
    for declared in pipeline.datasets.values():
        if declared.name.lower() in there:
            yield from _declared_otherwise(declared, lake)
            if declared.name.lower() in filled and declared.key is None and declared.merge is None:
                yield from _without_its_key(declared, lake)
    for step in pipeline:
        for spec in _outputs(step):
            if spec.key is not None and spec.name.lower() in there and spec.name not in pipeline.datasets:
                yield from _other_key(step, spec, lake)


def _declared_otherwise(declared: Dataset, lake: Any) -> Iterator[Problem]:
    dataset = lake[declared.name]
    state = dataset.snapshot().state
    kept = strategy_of(state)
    is_derived = state.dataset_kind is DatasetKind.DERIVATIVE
    hint = f"declare it as it is, choose another name, or drop it (`floodmark drop {declared.name}`)"
    if is_derived and declared.key is not None and declared.strategy.key != kept.key:
        said = f"the key of {declared.name!r} is {_listed(declared.strategy.key)}, and was {_listed(kept.key)}"
        yield Problem(f"{said} when it was made", hint, declared.place)
    elif not is_derived and (declared.key is not None or declared.merge is not None) and declared.strategy != kept:
        yield Problem(f"dataset {declared.name!r} exists with {kept}, not {declared.strategy}", hint, declared.place)
    if declared.event_time is not None and dataset.event_time != declared.event_time:
        said = f"dataset {declared.name!r} exists with the event time {dataset.event_time!r}"
        yield Problem(f"{said}, not {declared.event_time!r}", hint, declared.place)
    yield from other_types(declared, dataset, hint)
    if (wanted := declared.settings) is not None and (present := timelines.of(state)) != wanted:
        said = f"dataset {declared.name!r} exists with {'no timeline' if present is None else present}"
        yield Problem(f"{said}, not {wanted}", hint, declared.place)


def _without_its_key(declared: Dataset, lake: Any) -> Iterator[Problem]:
    """A declaration of what is filled here says how rows are taken in, also by having no key: each is one more.

    Of what others fill it may leave out what it likes.
    """
    state = lake[declared.name].snapshot().state
    kept = strategy_of(state)
    if kept.is_keyed and state.dataset_kind is not DatasetKind.DERIVATIVE:
        said = f"dataset {declared.name!r} exists with {kept}, and is declared without a key"
        key = repr(kept.key[0]) if len(kept.key) == 1 else repr(list(kept.key))
        hint = f"declare it as it is (key={key}{'' if kept.kind == 'upsert' else f', merge={kept.kind!r}'})"
        yield Problem(said, f"{hint}, or drop it (`floodmark drop {declared.name}`)", declared.place)


def _other_key(step: Step, spec: OutputSpec, lake: Any) -> Iterator[Problem]:
    kept = strategy_of(lake[spec.name].snapshot().state)
    assert spec.key is not None
    if kept.key != tuple(spec.key):
        said = f"step {step.name!r} writes {spec.name!r} by {_listed(spec.key)}, and its key is {_listed(kept.key)}"
        hint = f"give it the key that it has, or drop it (`floodmark drop {spec.name}`): the next run makes it anew"
        yield Problem(said, hint, step.place)


def _outputs(step: Step) -> tuple[OutputSpec, ...]:
    several = getattr(step, "outputs", None)
    one = getattr(step, "output", None)
    return tuple(several) if several is not None else () if one is None else (one,)


def _listed(key: Any) -> str:
    return ", ".join(key) or "nothing"
