"""The pipeline, steps and views that a command names."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from floodmark.cli import arguments, exit_codes, output
from floodmark.cli.command import Invocation, marker_folder
from floodmark.cli.exit_codes import CommandError
from floodmark.errors import FloodmarkError, UnknownDataset, close_matches

if TYPE_CHECKING:
    from floodmark.functions.udf import Udf
    from floodmark.lake import Lake
    from floodmark.pipeline.graph import PipelineNode
    from floodmark.pipeline.pipeline import Pipeline
    from floodmark.transforms.batch_transform import BatchTransform
    from floodmark.transforms.step import Step
    from floodmark.view import View
    from floodmark.views.analysis import RefreshKind


_EXAMPLE_PIPELINE = """\
create pipeline.py in this folder, or name a file with --pipeline FILE or in floodmark.toml (pipeline = "pipeline.py"):

    from floodmark import BatchTransform, Pipeline

    def lengths(texts):
        return texts[["id"]].assign(length=texts["text"].str.len())

    pipeline = Pipeline([BatchTransform(lengths, inputs=["texts"], outputs=["lengths"])])
"""


def pipeline_option(function: Callable[..., None]) -> Callable[..., None]:
    """Add the option --pipeline to a command."""
    return click.option(
        "--pipeline",
        "file",
        metavar="FILE",
        help="The Python file of the pipeline. Default: `pipeline` of floodmark.toml, else pipeline.py.",
    )(function)


def label_option(function: Callable[..., None]) -> Callable[..., None]:
    """Add the option --label to a command."""
    return click.option(
        "--label",
        "labels",
        metavar="NAME=VALUE",
        multiple=True,
        callback=_parse_labels,
        help="Only steps with this label.",
    )(function)


def load_pipeline(file: str | None) -> Pipeline:
    """Load the pipeline of --pipeline, else of this folder. The lake never determines which code runs."""
    from floodmark.errors import NoPipeline
    from floodmark.pipeline import project

    try:
        pipeline = project.load_pipeline(Path.cwd() if file is None else file)
    except NoPipeline as error:
        if file is not None or Path(error.path).suffix == ".py":  # the user named a file
            raise
        raise NoPipeline(error.message, hint=_EXAMPLE_PIPELINE.rstrip(), path=error.path) from error
    exit_codes.raise_if_interrupted()
    return pipeline


def select_nodes(pipeline: Pipeline, names: Sequence[str], labels: Mapping[str, str]) -> list[PipelineNode]:
    """The named nodes in the given order, or all nodes; only those with the labels."""
    there = {node.name: node for node in pipeline.nodes}
    for name in names:
        if name not in there:
            raise pipeline.unknown(name, there)
    wanted = dict.fromkeys(names or there)
    return [there[name] for name in wanted if labels.items() <= dict(there[name].labels).items()]


def select_steps(pipeline: Pipeline, names: Sequence[str]) -> list[Any]:
    """The named steps in the given order, each once, or all steps. They may be of any kind."""
    return [pipeline[name] for name in dict.fromkeys(names)] if names else list(pipeline)


def select_steps_and_views(lake: Lake, file: str | None, names: Sequence[str]) -> list[Any]:
    """The named views and steps in the given order, each once, or all steps and then all views.

    The pipeline is loaded only if a name is not a view, so a lake with only views needs no pipeline.
    """
    from floodmark.errors import NoPipeline

    if names:
        found = {name: find_view(lake, name) for name in dict.fromkeys(names)}
        steps = _steps_of(lake, file, [name for name, view in found.items() if view is None])
        return [steps.get(name, view) for name, view in found.items()]
    there = lake.views()
    try:
        return [*load_pipeline(file), *there]
    except NoPipeline:
        if file is not None or not there:
            raise
        return there


def _steps_of(lake: Lake, file: str | None, names: Sequence[str]) -> dict[str, Step]:
    """Steps by name. If a name is unknown, the error may suggest a view."""
    from floodmark.errors import NoPipeline, UnknownStep

    if not names:
        return {}
    try:
        pipeline = load_pipeline(file)
    except NoPipeline:
        if file is None and lake.views():
            open_view(lake, names[0])  # there are no steps, so raise the error of an unknown view
        raise
    try:
        return {name: pipeline[name] for name in names}
    except UnknownStep as error:
        near = closest_name(error.name, [*pipeline.names, *(view.name for view in lake.views())])
        if near is None or near in pipeline:
            raise
        message = f"there is no step or view {error.name!r}"
        raise UnknownStep(message, hint=f"did you mean {near!r}?", name=error.name) from error


def keyed_steps(pipeline: Pipeline) -> list[BatchTransform]:
    """All steps that process single keys, in dependency order."""
    from floodmark.transforms.batch_transform import BatchTransform

    order = pipeline.graph().order
    return [step for name in order if name in pipeline and isinstance(step := pipeline[name], BatchTransform)]


def keyed_step(step: Step, verb: str) -> BatchTransform:
    """The step, if it processes single keys, which the command `verb` needs."""
    from floodmark.transforms.batch_transform import BatchTransform

    if isinstance(step, BatchTransform):
        return step
    raise CommandError(
        f"`floodmark {verb}` needs a BatchTransform, but step {step.name!r} is {output.with_article(step.declared_as)}",
        hint=f"it succeeds or fails as a whole: run `floodmark run {step.name}` to try again",
        step=step.name,
    )


def _parse_labels(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """Labels given as NAME=VALUE."""
    found = {}
    for value in values:
        name, equals, text = value.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{value!r} is not NAME=VALUE, such as stage=images.")
        found[name] = text
    return found


def find_view(lake: Lake, name: str) -> View | None:
    """The view of this name, or None."""
    from floodmark.errors import NotAView

    try:
        return lake.view(name) if name in lake else None
    except NotAView:
        return None


def open_view(lake: Lake, name: str) -> View:
    """The view of this name. The error suggests the view with the most similar name, or how to declare one."""
    from floodmark.errors import NotAView

    there = [] if (found := find_view(lake, name)) is not None else [view.name for view in all_views(lake)[0]]
    if found is not None:
        return found
    declares = f"`floodmark view {name if name not in lake else 'NAME'} --sql …` declares"
    if (near := closest_name(name, there)) is not None:
        hint = f"did you mean {near!r}?"
    else:
        hint = f"the views are {', '.join(there)}; {declares} another" if there else f"{declares} one"
    if name in lake:
        raise NotAView(f"{name!r} is a dataset, not a view", hint=hint, view=name)
    raise UnknownDataset(f"there is no view {name!r} in {lake.store.url}", hint=hint, name=name)


def all_views(lake: Lake) -> tuple[list[View], dict[str, FloodmarkError]]:
    """All views in alphabetical order, and the errors of datasets that cannot be read, by name."""
    found: list[View] = []
    broken: dict[str, FloodmarkError] = {}
    for dataset in lake:
        try:
            found += [] if (view := find_view(lake, dataset.name)) is None else [view]
        except FloodmarkError as error:
            broken[dataset.name] = error
    return found, broken


def error_fields(name: str, error: FloodmarkError) -> dict[str, Any]:
    """The error of a view, for JSON."""
    return {"view": name, "error": {"type": type(error).__name__, "message": error.message, "hint": error.hint}}


def print_view_error(call: Invocation, name: str, error: FloodmarkError) -> None:
    """Print the error of a view to stderr."""
    call.note(f"error: {name}: {error.message}" + (f"\n  {error.hint}" if error.hint else ""))


def closest_name(name: str, names: Sequence[str]) -> str | None:
    """The most similar of the names, or None."""
    return next(iter(close_matches(name, names)), None)


def sort_by_dependency(views: Sequence[View]) -> list[View]:
    """The views, each once and after the views that it reads; otherwise in the given order."""
    named = {view.name: view for view in views}
    seen: set[str] = set()
    ordered: list[View] = []

    def add(view: View) -> None:
        if view.name in seen:
            return
        seen.add(view.name)
        for source in view.inputs:
            if source in named:
                add(named[source])
        ordered.append(view)

    for view in named.values():
        add(view)
    return ordered


def total_input_size(lake: Lake, views: Sequence[View]) -> int:
    """Total bytes of the inputs of views. Inputs that cannot be read are not counted."""
    size = 0
    for name in {source for view in views for source in view.inputs}:
        with contextlib.suppress(FloodmarkError):
            size += lake[name].snapshot().size
    return size


def find_functions(lake: Lake, view: View, places: Sequence[str]) -> list[Udf]:
    """Import the functions of a view's columns, from where each was defined or from `places`.

    A place is MODULE:NAME, and applies to columns whose function has this name.
    """
    named = {_function_name(place): place for place in places}
    sought = [
        arguments.FunctionLookup(column.name, column.function, _redeclare_hint(view)) for column in view.definition.udfs
    ]
    found = [arguments.find_function(one, named.get(one.function.name), marker_folder(lake)) for one in sought]
    exit_codes.raise_if_interrupted()
    return found


def check_udf_options(views: Sequence[View], places: Sequence[str]) -> None:
    """Refuse a place whose name is not a function of these views."""
    there = sorted({column.function.name for view in views for column in view.definition.udfs})
    for place in places:
        if _function_name(place) not in there:
            has = f"their functions are {', '.join(there)}" if there else "they have no functions"
            raise click.UsageError(f"--udf {place} is not a function of the views: {has}.")


def _function_name(place: str) -> str:
    return place.rpartition(":")[2].rpartition(".")[2]


def _redeclare_hint(view: View) -> Callable[[str], str]:
    def hint(function: str) -> str:
        declared = f"lake.view({view.name!r}, …) with {function} in it"
        return f"to use the new function, declare the view again in Python: {declared}"

    return hint


def describe_refresh(view: View) -> str:
    """How a view is refreshed, as the end of a sentence."""
    if view.refresh_kind == "whole":
        return f"a refresh computes everything, because {view.whole_reason}"
    if view.refresh_kind == "changes":
        return f"a refresh carries the changes of {', '.join(view.inputs)} through the query"
    unit = refresh_unit(view.refresh_kind, view.refresh_keys)
    return f"a refresh computes changed {unit} of {', '.join(view.inputs)}"


def refresh_unit(kind: RefreshKind, by: Sequence[str]) -> str:
    """The units that refreshes of a view compute. `by` are the columns of groups or join keys."""
    match kind:
        case "rows":
            return "records"
        case "groups":
            return f"groups ({', '.join(by)})"
        case "join":
            return f"join keys ({', '.join(by)})"
        case "changes":
            return "changes"
        case _:
            return "everything"
