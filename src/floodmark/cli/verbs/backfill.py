"""`floodmark backfill`: compute what is missing of a column."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

import click

from floodmark.cli import document, functions, interrupts, words
from floodmark.cli.call import Call, verb
from floodmark.cli.errors import Stopped
from floodmark.cli.place import mark_of
from floodmark.cli.tables import Column, print_table

if TYPE_CHECKING:
    from floodmark.compute.backfill import Backfill
    from floodmark.compute.survey import BackfillPlan, MissingRange
    from floodmark.dataset import Dataset

SHOWN_RANGES = 10

_SIZE = click.IntRange(min=1)
_RANGES = [Column("offsets"), Column("rows", is_number=True), Column("why")]


@verb("backfill")
@click.argument("name")
@click.argument("column")
@click.option(
    "--where", metavar="SQL", help="Only the rows for which this condition holds; the others stay as they are."
)
@click.option("--plan", "plan_only", is_flag=True, help="Show what would be computed, and why; compute nothing.")
@click.option(
    "--udf",
    metavar="MODULE:NAME",
    callback=functions.check_name,
    help="Where the column's function is now. Default: where it was when the column was added.",
)
@click.option("--retry-errors", is_flag=True, help="Also try rows again that failed and were skipped.")
@click.option("--checkpoint-size", metavar="ROWS", type=_SIZE, help="A checkpoint has at most so many rows.")
@click.option(
    "--min-checkpoint-size", metavar="ROWS", type=_SIZE, help="At least so many. Wins over the function's own."
)
@click.option(
    "--max-checkpoint-size", metavar="ROWS", type=_SIZE, help="At most so many. Wins over the function's own."
)
@click.option("--task-size", metavar="ROWS", type=_SIZE, help="How many rows one task gets. Default: as measured.")
@click.option(
    "--commit-granularity",
    metavar="FRAGMENTS",
    type=_SIZE,
    default=64,
    show_default=True,
    help="So many fragments become visible together.",
)
def backfill(
    call: Call,
    name: str,
    column: str,
    where: str | None,
    plan_only: bool,
    udf: str | None,
    retry_errors: bool,
    checkpoint_size: int | None,
    min_checkpoint_size: int | None,
    max_checkpoint_size: int | None,
    task_size: int | None,
    commit_granularity: int,
) -> None:
    """Compute what is missing of a column.

    \b
    floodmark backfill images brightness --plan
    floodmark backfill images brightness
    floodmark backfill images brightness --where "taken_at >= '2026-11-01'"

    What is computed is not computed again. The column's function is imported from its module: run this in the folder
    from which Python would find it, or name it with --udf.

    Results are stored as they come, in checkpoints of about ten seconds each: after Ctrl-C, a crash or an error the
    same command goes on from there. They become visible by whole fragments.
    """
    from floodmark.compute.errors import FunctionFailed

    lake = call.lake()
    dataset = lake[name]
    if plan_only:
        _show_plan(call, dataset, dataset.plan_backfill(column, where, retry_errors=retry_errors), where)
        return
    function = functions.find_function(_sought(dataset, column), udf, mark_of(lake))
    interrupts.stop_if_pressed()
    try:
        done = dataset.backfill(
            column,
            where,
            udf=function,
            checkpoint_size=checkpoint_size,
            min_checkpoint_size=min_checkpoint_size,
            max_checkpoint_size=max_checkpoint_size,
            task_size=task_size,
            commit_granularity=commit_granularity,
            retry_errors=retry_errors,
        )
    except FunctionFailed as error:
        call.note(error.traceback.rstrip())  # the function is the user's: its traceback is what helps
        raise
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) or interrupts.pressed():
            raise Stopped(
                "interrupted: what is computed is stored, and the same command again goes on from there"
            ) from error
        raise
    _show_done(call, dataset, done, where)


def _sought(dataset: Dataset, name: str) -> functions.Sought:
    def retake(function: str) -> str:
        altered = f"lake[{dataset.name!r}].alter_column({name!r}, {function})"
        return f"to compute the column with it from now on, in Python: {altered}"

    return functions.Sought(name, dataset.column(name).function, retake)


def _show_plan(call: Call, dataset: Dataset, plan: BackfillPlan, where: str | None) -> None:
    counts = {"rows": plan.rows, "wanted": plan.wanted, "done": plan.done, "reusable": plan.reused}
    counts |= {"missing": plan.missing, "waiting": plan.waiting}
    if call.as_json:
        document.emit(dataset=dataset.name, column=plan.column, where=where, **counts, ranges=map(asdict, plan.ranges))
        return
    subject = f"{dataset.name}.{plan.column}"
    parts = [f"{plan.missing:,} missing", f"{plan.reused:,} reusable", f"{plan.done:,} done"]
    if plan.waiting:
        parts.append(f"{plan.waiting:,} waiting")
    of = f"{words.many(plan.wanted, 'row')} that --where keeps" if where is not None else words.many(plan.rows, "row")
    click.echo(f"{subject}: {', '.join(parts)}, of {of}")
    ranges = list(_joined(plan.ranges))
    if ranges:
        print_table(_RANGES, [_row(r) for r in ranges[:SHOWN_RANGES]])
    if left := ranges[SHOWN_RANGES:]:
        click.echo(f"… and {words.many(len(left), 'more range')} ({words.many(sum(r.rows for r in left), 'row')})")
    if plan.waiting:
        call.note(_waiting(dataset, plan.column, plan.waiting))


def _row(found: MissingRange) -> list[str]:
    return [f"{found.start}–{found.end - 1}", f"{found.rows:,}", found.why]


def _joined(ranges: Sequence[MissingRange]) -> Iterator[MissingRange]:
    """Ranges that only the border of a fragment parts, as one."""
    held: MissingRange | None = None
    for found in ranges:
        if held is not None and (held.end, held.why) == (found.start, found.why):
            held = replace(held, end=found.end, rows=held.rows + found.rows)
            continue
        if held is not None:
            yield held
        held = found
    if held is not None:
        yield held


def _show_done(call: Call, dataset: Dataset, done: Backfill, where: str | None) -> None:
    if call.as_json:
        document.emit(dataset=dataset.name, where=where, **asdict(done))
        return
    subject = f"{dataset.name}.{done.column}"
    before = f"{words.many(done.done, 'row')} done before"
    if not (done.computed or done.failed or done.reused):
        click.echo(f"{subject}: nothing to compute ({before})")
    else:
        parts = [f"{words.many(done.computed, 'row')} computed"]
        if done.reused:
            parts.append(f"{done.reused:,} reused from {words.many(done.checkpoints_reused, 'checkpoint')}")
        if done.failed:
            parts.append(f"{done.failed:,} failed")
        click.echo(f"{subject}: {', '.join(parts)} ({before})")
    if done.failed:
        call.note(f"rows that failed read as null: `floodmark columns {dataset.name} --errors {done.column}` says why")
    if done.waiting:
        call.note(_waiting(dataset, done.column, done.waiting))


def _waiting(dataset: Dataset, column: str, rows: int) -> str:
    """Which columns have to be computed before so many rows can be."""
    computed = {status.name: status for status in dataset.columns()}
    inputs = [i for i in computed[column].inputs if i in computed and computed[i].done < computed[i].rows]
    first = f"`floodmark backfill {dataset.name} {inputs[0]}` first" if inputs else "backfill its inputs first"
    return f"{words.many(rows, 'row')} cannot be computed yet, for want of inputs: {first}"
