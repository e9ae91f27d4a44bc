"""`floodmark graph`: what a pipeline reads and writes, drawn."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from floodmark.cli import document, steps
from floodmark.cli.call import Call, verb
from floodmark.cli.errors import NoLake

if TYPE_CHECKING:
    from floodmark.lake import Lake
    from floodmark.pipeline.graph import Graph
    from floodmark.pipeline.pipeline import Pipeline


@verb("graph")
@click.option(
    "--svg",
    metavar="FILE",
    type=click.Path(dir_okay=False, allow_dash=True),
    help="Draw it as a picture into this file; - is stdout.",
)
@steps.pipeline_option
def graph(call: Call, svg: str | None, file: str | None) -> None:
    """Draw what the pipeline declares: who reads what.

    \b
    floodmark graph
    floodmark graph --svg pipeline.svg
    floodmark graph --json | jq '.levels'

    Behind each step stands how far it is behind, if there is a lake. Reads no data.
    """
    from floodmark.pipeline import svg_picture, text_picture

    if svg == "-" and call.as_json:
        raise click.UsageError("--svg - and --json both write to stdout: name a file for the picture")
    pipeline = steps.load_pipeline(file)
    try:
        lake = call.lake()
    except NoLake:
        lake = None  # it can be drawn before there is one
    found = _graph(pipeline, lake)
    notes = {} if lake is None else _notes(pipeline, found, lake)
    if svg == "-":
        click.echo(svg_picture.svg(found, notes))
        return
    if svg is not None:
        Path(svg).write_text(svg_picture.svg(found, notes), "utf-8")
    if call.as_json:
        document.emit(nodes=_described(found, notes), levels=[list(level) for level in found.levels], svg=svg)
        return
    if svg is not None:
        click.echo(f"drawn into {svg}")
        return
    for line in text_picture.lines(found, notes, text_picture.strokes_for(sys.stdout.encoding)):
        click.echo(line)
    if not found.nodes:
        call.note("the pipeline has no steps")


def _graph(pipeline: Pipeline, lake: Lake | None) -> Graph:
    if lake is None:
        return pipeline.graph()
    from floodmark.pipeline.checks import checked_graph

    return checked_graph(pipeline, lake)


def _notes(pipeline: Pipeline, graph: Graph, lake: Lake) -> dict[str, str]:
    """How far each node is, in a few words; what cannot be told yet has none."""
    from floodmark.errors import FloodmarkError
    from floodmark.pipeline.standing import standing

    found = {}
    for name, node in graph.nodes.items():
        try:
            status = standing(pipeline, node, lake)
        except FloodmarkError:  # `status` says what is wrong; a picture can do without
            continue
        if not status.inputs:
            continue
        failed = status.failed + status.exhausted
        parts = [f"{status.behind:,} behind"] if status.behind else []
        parts += [f"{failed:,} failed"] if failed else []
        parts += ["all to be computed again"] if status.stale is not None else []
        found[name] = ", ".join(parts) or "up to date"
    return found


def _described(graph: Graph, notes: dict[str, str]) -> list[dict[str, object]]:
    return [
        {
            "name": name,
            "kind": node.kind,
            "what": node.what,
            "reads": list(node.reads),
            "writes": list(node.writes),
            "needs": list(graph.needs[name]),
            "labels": dict(node.labels),
            "file": None if node.place is None else node.place.file,
            "line": None if node.place is None else node.place.line,
            "note": notes.get(name),
        }
        for name, node in graph.nodes.items()
    ]
