"""Commands for steps: `errors`, `retry`, `reset` and `offsets`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from floodmark.cli import output, step_output, targets
from floodmark.cli.command import Invocation, verb
from floodmark.cli.exit_codes import FAILED, CommandError
from floodmark.cli.output import TableColumn, escape_control_characters, format_value, print_table
from floodmark.cli.removal import Removal, list_readers, removal_options

if TYPE_CHECKING:
    import pyarrow as pa

    from floodmark.lake import Lake
    from floodmark.pipeline.graph import PipelineNode
    from floodmark.pipeline.pipeline import Pipeline
    from floodmark.transforms.batch_transform import BatchTransform


_COLUMNS_AFTER_KEY = 9
"""Number of columns after the transform keys. Located by position, because a key may have the same name."""


@verb("errors")
@click.argument("name", metavar="[STEP]", required=False)
@click.option("--traceback", is_flag=True, help="Show the traceback of each failed call.")
@click.option(
    "--limit", metavar="N", type=click.IntRange(min=1), default=100, show_default=True, help="At most N keys."
)
@targets.pipeline_option
def errors(call: Invocation, name: str | None, traceback: bool, limit: int, file: str | None) -> None:
    """Show the keys of a step that failed, and why.

    \b
    floodmark errors
    floodmark errors features
    floodmark errors features --traceback --limit 1
    floodmark errors features --json | jq '.errors[] | {key, message}'

    A failed key keeps the rows of its last success, if it had one: `rows` says whether they are older or none. Attempts
    are the runs in which it failed. By state: `retry` keys are retried by the next run, or by the first run after they
    are due; `skipped` and `exhausted` keys wait for a change of their rows or for `floodmark retry`. Skipped keys have
    no rows.
    """
    pipeline = targets.load_pipeline(file)
    chosen = targets.keyed_steps(pipeline) if name is None else [targets.keyed_step(pipeline[name], "errors")]
    lake = call.lake()
    found = [_FailedKeys.of(step, lake, limit) for step in chosen]
    if call.as_json:
        described = [one.fields(traceback) for one in found]
        output.emit(lake=lake.store.url, **({"steps": described} if name is None else described[0]))
        return
    failing = [one for one in found if one.failed]
    if not failing:
        call.note(f"no key of {name} failed" if name is not None else "no key of any step failed")
    for number, one in enumerate(failing):
        if name is None:
            click.echo(f"{chr(10) if number else ''}{one.step}: {output.format_count(one.failed, 'key')} failed")
        one.show(traceback)


@dataclass(frozen=True)
class _FailedKeys:
    """The failed keys of a step: their number, and the first of them."""

    step: str
    failed: int
    first: list[dict[str, Any]]

    @classmethod
    def of(cls, step: BatchTransform, lake: Lake, limit: int) -> _FailedKeys:
        from floodmark.errors import UnknownDataset

        try:
            table = step.errors(lake)
        except UnknownDataset:  # an input does not exist yet, so no key can have failed
            return cls(step.name, 0, [])
        return cls(step.name, table.num_rows, _failure_rows(table.slice(0, limit)))

    def fields(self, traceback: bool) -> dict[str, Any]:
        """The failed keys for JSON."""
        shown = self.first if traceback else [{k: v for k, v in one.items() if k != "traceback"} for one in self.first]
        return {"step": self.step, "failed": self.failed, "errors": shown}

    def show(self, traceback: bool) -> None:
        """Print the failed keys."""
        if traceback:
            _print_tracebacks(self.first)
        else:
            _print_table(self.first)
        if left := self.failed - len(self.first):
            click.echo(f"… and {output.format_count(left, 'more key')}")


def _failure_rows(table: pa.Table) -> list[dict[str, Any]]:
    """One dict per failed key. The key is a nested dict, because a key column may be called `type` too."""
    width = table.num_columns - _COLUMNS_AFTER_KEY
    names = table.column_names
    columns = [column.to_pylist() for column in table.columns]
    return [
        {
            "key": dict(zip(names[:width], row[:width], strict=True)),
            **dict(zip(names[width:], row[width:], strict=True)),
        }
        for row in zip(*columns, strict=True)
    ]


def _print_table(found: list[dict[str, Any]]) -> None:
    columns = [
        *(TableColumn(name) for name in found[0]["key"]),
        TableColumn("error"),
        TableColumn("attempts", is_number=True),
    ]
    columns += [TableColumn("since"), TableColumn("state"), TableColumn("rows")]
    rows = [
        [
            *map(format_value, one["key"].values()),
            _error_text(one),
            *_attempt_cells(one),
            "older" if one["stale"] else "none",
        ]
        for one in found
    ]
    print_table(columns, rows)


def _attempt_cells(one: dict[str, Any]) -> list[str]:
    due = "" if one["due"] is None else f", due {output.format_time(one['due'])}"
    return [f"{one['attempts']:,}", output.format_time(one["since"]), f"{one['state']}{due}"]


def _print_tracebacks(found: list[dict[str, Any]]) -> None:
    for number, one in enumerate(found):
        if number:
            click.echo("")
        key = ", ".join(f"{name}={format_value(value) or 'null'}" for name, value in one["key"].items())
        attempts, since, state = _attempt_cells(one)
        click.echo(
            escape_control_characters(
                f"{key}: {attempts} {'attempt' if one['attempts'] == 1 else 'attempts'} failed since {since}, {state}"
            )
        )
        for line in one["traceback"].rstrip().splitlines():
            click.echo(f"  {escape_control_characters(line)}")


def _error_text(one: dict[str, Any]) -> str:
    return f"{one['type']}: {one['message']}" if one["message"] else one["type"]


@verb("retry")
@click.argument("name", metavar="[STEP]", required=False)
@click.option("--strict", is_flag=True, help="Exit with 1 if keys fail again.")
@targets.pipeline_option
def retry(call: Invocation, name: str | None, strict: bool, file: str | None) -> None:
    """Retry all failed keys of a step.

    \b
    floodmark retry features
    floodmark retry

    This includes keys that were skipped, are exhausted, or are not due yet. Without a STEP it retries all steps, in
    dependency order. Other changes are left to `floodmark run`.
    """
    pipeline = targets.load_pipeline(file)
    chosen = targets.keyed_steps(pipeline) if name is None else [targets.keyed_step(pipeline[name], "retry")]
    lake = call.lake()
    reports = []
    for step in chosen:
        if name is None and not all(read in lake for read in step.input_names):
            continue  # it has not run yet
        with step_output.step_running(call, step):
            report = step.retry(lake)
        step_output.print_report(call, lake, step, report)
        reports.append(report)
    if call.as_json:
        described = [step_output.report_fields(report) for report in reports]
        output.emit(lake=lake.store.url, **({"runs": described} if name is None else {"run": described[0]}))
    elif not reports:
        call.note("no step with single keys has run yet")
    if strict and any(report.failed for report in reports):
        click.get_current_context().exit(FAILED)


@verb("reset")
@click.argument("name", metavar="STEP")
@targets.pipeline_option
@removal_options
def reset(call: Invocation, name: str, file: str | None, yes: bool, dry_run: bool) -> None:
    """Make the next run of a step process everything.

    \b
    floodmark reset features --yes
    floodmark run features

    Clears which keys are processed, which failed, and the stored results of a stopped run. The outputs stay unchanged
    until the next run commits, and that run writes only rows that differ. A changed function needs no reset. It also
    works for a column (DATASET.COLUMN) and a view.
    """
    pipeline = targets.load_pipeline(file)
    (node,) = targets.select_nodes(pipeline, [name], {})
    if node.kind in ("column", "view"):
        _reset_other(call, pipeline, node, yes, dry_run)
        return
    step: Any = pipeline[name]
    if not hasattr(step, "reset"):
        from floodmark.pipeline.nodes import continues_source

        again = f"`floodmark run {step.name} --full`: it reads everything again"
        always = f"`floodmark run {step.name}`: it always computes everything"
        raise CommandError(
            f"step {step.name!r} is {output.with_article(step.declared_as)}, which has no state to reset",
            hint=f"run {again if continues_source(step) else always}",
            step=step.name,
        )
    lake = call.lake()
    keys, outputs = _processed_keys(step, lake), ", ".join(step.output_names)
    made = [name for name in step.output_names if name in lake]
    facts = {"lake": lake.store.url, "step": step.name, "keys": keys, "outputs": list(step.output_names)}
    what = f"reset {step.name}: the next run {_next_run_text(step, keys)}"
    readers = [reader for output_name in made for reader in list_readers(lake, output_name)]
    if not Removal(what, facts, readers).is_confirmed(call, yes or not made, dry_run):
        return
    step.reset(lake)
    if call.as_json:
        output.emit(**facts)
        return
    if not made:
        click.echo(f"{step.name}: nothing to reset, because it has not run yet")
        return
    click.echo(
        f"{step.name}: reset; the next run {_next_run_text(step, keys)}, readers of {outputs} see no change until then"
    )


def _reset_other(call: Invocation, pipeline: Pipeline, node: PipelineNode, yes: bool, dry_run: bool) -> None:
    """Reset a column or a view, which is then computed completely."""
    from floodmark.pipeline.nodes import reset_node

    lake = call.lake()
    dataset = node.beside or node.name
    facts = {"lake": lake.store.url, "step": node.name, "keys": None, "outputs": [dataset]}
    readers = list_readers(lake, dataset) if dataset in lake else []
    what = f"reset {node.name}: the next run computes everything again"
    if not Removal(what, facts, readers).is_confirmed(call, yes, dry_run):
        return
    reset_node(pipeline, node.name, lake)
    if call.as_json:
        output.emit(**facts)
        return
    click.echo(
        f"{node.name}: reset; the next run computes everything again, readers of {dataset} see no change until then"
    )


def _processed_keys(step: Any, lake: Lake) -> int | None:
    """Number of processed keys; None if the meta of the step cannot be read."""
    from floodmark.errors import BadMeta

    try:
        keys: int = step.status(lake).keys
    except BadMeta:
        return None
    return keys


def _next_run_text(step: Any, keys: int | None) -> str:
    from floodmark.transforms.batch_transform import BatchTransform

    if isinstance(step, BatchTransform):
        return "processes all keys again" if keys is None else f"processes all keys again ({keys:,} so far)"
    if step.input_names:
        return "computes everything again"
    return "reads the whole table again"


_COLUMNS = [TableColumn("transform"), TableColumn("input"), TableColumn("offset", is_number=True), TableColumn("time")]


@verb("offsets")
@click.argument("names", metavar="[STEP]...", nargs=-1)
@targets.pipeline_option
def offsets(call: Invocation, names: tuple[str, ...], file: str | None) -> None:
    """Show up to which record steps have processed their inputs.

    \b
    floodmark offsets
    floodmark offsets features --json

    All records up to the offset are processed; the time is the commit time of that record. Keys after it may be
    processed too, because a run with a filter does not move the offset. Failed keys do not hold the offset back.
    """
    found = targets.select_steps(targets.load_pipeline(file), names)
    lake = call.lake()
    rows = [row for step in found for row in _offset_rows(step, lake)]
    if call.as_json:
        output.emit(lake=lake.store.url, offsets=rows)
    elif rows:
        print_table(
            _COLUMNS,
            [
                [
                    row["transform"],
                    row["input"],
                    "-" if row["offset"] is None else str(row["offset"]),
                    "-" if row["time"] is None else output.format_time(row["time"]),
                ]
                for row in rows
            ],
        )
    else:
        call.note("no step reads a dataset")


def _offset_rows(step: Any, lake: Lake) -> list[dict[str, Any]]:
    """The offsets of a step; None for every input while an input does not exist."""
    from floodmark.errors import UnknownDataset

    try:
        found: list[dict[str, Any]] = step.offsets(lake).to_pylist() if step.input_names else []
        return found
    except UnknownDataset:
        return [{"transform": step.name, "input": name, "offset": None, "time": None} for name in step.input_names]
