"""`floodmark reset`: have everything processed once more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from floodmark.cli import document, steps
from floodmark.cli.call import Call, verb
from floodmark.cli.errors import OtherStep

if TYPE_CHECKING:
    from floodmark.lake import Lake
    from floodmark.pipeline.graph import Node
    from floodmark.pipeline.pipeline import Pipeline


@verb("reset")
@click.argument("name", metavar="STEP")
@steps.pipeline_option
def reset(call: Call, name: str, file: str | None) -> None:
    """Have the next run of a step process everything.

    \b
    floodmark reset features
    floodmark run features

    Forgets which keys are processed, which failed, and what a stopped run has stored. Nothing is deleted from the
    outputs: readers keep them until the next run commits, and only rows that come out different are written then. A
    changed function needs no reset. Of a column (DATASET.COLUMN) or a view everything is computed again, too.
    """
    pipeline = steps.load_pipeline(file)
    (node,) = steps.nodes(pipeline, [name], {})
    if node.kind in ("column", "view"):
        _reset_other(call, pipeline, node)
        return
    step: Any = pipeline[name]
    if not hasattr(step, "reset"):
        raise OtherStep(
            f"step {step.name!r} is a {type(step).__name__}: it has nothing to reset",
            hint=f"every `floodmark run {step.name}` computes everything",
            step=step.name,
        )
    lake = call.lake()
    keys, outputs = _keys(step, lake), ", ".join(step.output_names)
    step.reset(lake)
    if call.as_json:
        document.emit(lake=lake.store.url, step=step.name, keys=keys, outputs=list(step.output_names))
        return
    if not any(output in lake for output in step.output_names):
        click.echo(f"{step.name}: nothing to reset, for it has not been run")
        return
    click.echo(
        f"{step.name}: reset; the next run {_meaning(step, keys)}, readers of {outputs} see no change until then"
    )


def _reset_other(call: Call, pipeline: Pipeline, node: Node) -> None:
    """A column or a view: they are computed anew as a whole."""
    from floodmark.pipeline.work import forget

    lake = call.lake()
    dataset = node.beside or node.name
    forget(pipeline, node.name, lake)
    if call.as_json:
        document.emit(lake=lake.store.url, step=node.name, keys=None, outputs=[dataset])
        return
    click.echo(
        f"{node.name}: reset; the next run computes everything again, readers of {dataset} see no change until then"
    )


def _keys(step: Any, lake: Lake) -> int | None:
    """How many keys are processed; None where that is what cannot be read any more."""
    from floodmark.transform.errors import BadMeta

    try:
        keys: int = step.status(lake).keys
    except BadMeta:
        return None
    return keys


def _meaning(step: Any, keys: int | None) -> str:
    from floodmark.transform.batch_transform import BatchTransform

    if isinstance(step, BatchTransform):
        return "processes all keys again" if keys is None else f"processes all keys again ({keys:,} so far)"
    if step.input_names:
        return "computes everything again"
    return "reads the whole table again"
