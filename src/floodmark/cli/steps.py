"""Finding steps: the pipeline that this folder belongs to, and the steps, or views, that a command names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from floodmark.cli import interrupts
from floodmark.cli.errors import OtherStep

if TYPE_CHECKING:
    from floodmark.lake import Lake
    from floodmark.pipeline.graph import Node
    from floodmark.pipeline.pipeline import Pipeline
    from floodmark.transform.batch_transform import BatchTransform
    from floodmark.transform.step import Step

_EXAMPLE = """\
write a pipeline.py here and name it in floodmark.toml (pipeline = "pipeline.py"), or name one with --pipeline FILE:

    from floodmark import BatchTransform, Pipeline

    def lengths(texts):
        return texts[["id"]].assign(length=texts["text"].str.len())

    pipeline = Pipeline([BatchTransform(lengths, inputs=["texts"], outputs=["lengths"])])
"""


def pipeline_option(function: Callable[..., None]) -> Callable[..., None]:
    """Give a verb the option that names a pipeline file."""
    return click.option(
        "--pipeline",
        "file",
        metavar="FILE",
        help="The Python file that declares the steps. Default: the one floodmark.toml names, else pipeline.py.",
    )(function)


def load_pipeline(file: str | None) -> Pipeline:
    """The pipeline that --pipeline names, else that of this folder; the lake has no say in what code is run."""
    from floodmark.pipeline import loading
    from floodmark.pipeline.errors import NoPipeline

    try:
        pipeline = loading.load(Path.cwd() if file is None else file)
    except NoPipeline as error:
        if file is not None or Path(error.path).suffix == ".py":  # somebody has said which
            raise
        raise NoPipeline(error.message, hint=_EXAMPLE.rstrip(), path=error.path) from error
    interrupts.stop_if_pressed()
    return pipeline


def nodes(pipeline: Pipeline, names: Sequence[str], labels: Mapping[str, str]) -> list[Node]:
    """The nodes of a pipeline that are named, in the order given, or all, of those that have the labels."""
    there = {node.name: node for node in pipeline.nodes}
    for name in names:
        if name not in there:
            raise pipeline.unknown(name, there)
    wanted = dict.fromkeys(names or there)
    return [there[name] for name in wanted if labels.items() <= dict(there[name].labels).items()]


def chosen(pipeline: Pipeline, names: Sequence[str]) -> list[Any]:
    """The named steps in the order given, each once, all where none is named. Kinds differ in what they can do."""
    return [pipeline[name] for name in dict.fromkeys(names)] if names else list(pipeline)


def chosen_with_views(lake: Lake, file: str | None, names: Sequence[str]) -> list[Any]:
    """The named views and steps in the order given, each once; where none is named, all steps and then all views.

    A pipeline is loaded only for names that are no views: who has views alone needs none.
    """
    from floodmark.cli import views
    from floodmark.pipeline.errors import NoPipeline

    if names:
        found = {name: views.find_view(lake, name) for name in dict.fromkeys(names)}
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
    """Steps by name; a name that is none may be meant for a view."""
    from floodmark.cli import views
    from floodmark.pipeline.errors import NoPipeline, UnknownStep

    if not names:
        return {}
    try:
        pipeline = load_pipeline(file)
    except NoPipeline:
        if file is None and lake.views():
            views.open_view(lake, names[0])  # there are no steps, so the error that helps is that of an unknown view
        raise
    try:
        return {name: pipeline[name] for name in names}
    except UnknownStep as error:
        near = views.nearest(error.name, [*pipeline.names, *(view.name for view in lake.views())])
        if near is None or near in pipeline:
            raise
        message = f"there is no step and no view {error.name!r}"
        raise UnknownStep(message, hint=f"did you mean {near!r}?", name=error.name) from error


def keyed_steps(pipeline: Pipeline) -> list[BatchTransform]:
    """All steps that work key by key, each after what it reads."""
    from floodmark.transform.batch_transform import BatchTransform

    order = pipeline.graph().order
    return [step for name in order if name in pipeline and isinstance(step := pipeline[name], BatchTransform)]


def keyed_step(step: Step, verb: str) -> BatchTransform:
    """The step, if it works key by key, as what `verb` is about needs."""
    from floodmark.transform.batch_transform import BatchTransform

    if isinstance(step, BatchTransform):
        return step
    raise OtherStep(
        f"`floodmark {verb}` works on a BatchTransform, and step {step.name!r} is a {type(step).__name__}",
        hint=f"it knows no single keys: it fails or succeeds as a whole, and `floodmark run {step.name}` tries again",
        step=step.name,
    )


def labels(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """Labels given as NAME=VALUE."""
    found = {}
    for value in values:
        name, equals, text = value.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{value!r} is no NAME=VALUE, such as stage=images.")
        found[name] = text
    return found
