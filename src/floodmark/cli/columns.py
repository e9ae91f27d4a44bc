"""`floodmark columns` and `floodmark backfill`: show and compute computed columns."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from floodmark.cli import arguments, exit_codes, output
from floodmark.cli.command import Invocation, marker_folder, verb
from floodmark.cli.exit_codes import Stopped
from floodmark.cli.output import TableColumn, TableRow, escape_control_characters, print_table
from floodmark.engine.progress import is_encodable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from floodmark.columns.backfill import BackfillReport
    from floodmark.columns.columns import ColumnStatus
    from floodmark.columns.survey import BackfillPlan, MissingRange
    from floodmark.dataset import Dataset


_COLUMNS = [
    TableColumn("column"),
    TableColumn("type"),
    TableColumn("inputs"),
    TableColumn("function"),
    TableColumn("version"),
    TableColumn("rows", is_number=True),
    TableColumn("done", is_number=True),
    TableColumn("errors", is_number=True),
]
_CARRIED = TableColumn("carried over", is_number=True)
"""Shown if a column has rows that took over the value of the row that they replaced."""


@verb("columns")
@click.argument("name")
@click.option("--errors", metavar="COLUMN", help="Show the failed rows of this column, and why they failed.")
def columns(call: Invocation, name: str, errors: str | None) -> None:
    """Show computed columns, and how much is computed.

    \b
    floodmark columns images
    floodmark columns images --errors brightness
    floodmark columns images --json | jq '.columns[] | {name, rows, done}'

    The bars show the fragments in order; a fragment is a fixed range of offsets. Only current rows count. A row that is
    not computed yet reads as null; `floodmark backfill` computes it.
    """
    dataset = call.lake()[name]
    if errors is not None:
        _show_errors(call, dataset, errors)
        return
    found = dataset.columns()
    if call.as_json:
        output.emit(dataset=dataset.name, columns=[_fields(status) for status in found])
    elif not found:
        call.note(f"{dataset.name} has no computed columns: add one in Python with add_column()")
    else:
        carried = [[f"{status.carried:,}"] if any(s.carried for s in found) else [] for status in found]
        rows = [[*_row(status), *more] for status, more in zip(found, carried, strict=True)]
        print_table([*_COLUMNS, _CARRIED][: len(rows[0])], rows)
        _print_bars(found)


def _fields(status: ColumnStatus) -> dict[str, Any]:
    function = asdict(status.function)
    function.pop("source")
    return {
        "name": status.name,
        "type": str(status.type),
        "nullable": status.nullable,
        "inputs": status.inputs,
        "function": function,
        "generation": status.generation,
        "rows": status.rows,
        "done": status.done,
        "kept": status.kept,
        "errors": status.errors,
        "carried": status.carried,
        "fragments": [asdict(fragment) for fragment in status.fragments],
    }


def _row(status: ColumnStatus) -> TableRow:
    function = status.function
    place = f"{function.module}.{function.qualname}" if function.module else function.name
    counts = (f"{status.rows:,}", percent(status.done, status.rows), f"{status.errors:,}")
    return [
        status.name,
        str(status.type),
        ", ".join(status.inputs),
        place,
        output.shorten_version(function.version),
        *counts,
    ]


def _print_bars(found: Sequence[ColumnStatus]) -> None:
    """Print a bar per column, as wide as the terminal: beside its name, or below if the name is long."""
    from rich.cells import cell_len

    fragments = len(found[0].fragments)  # the same for all columns
    if not fragments:
        return
    width = shutil.get_terminal_size().columns
    marks = marks_for(sys.stdout.encoding)
    names = [escape_control_characters(status.name) for status in found]
    beside = max(map(cell_len, names)) + 2
    below = beside > width // 3
    room = max(1, width - (2 if below else beside) - 1)  # some terminals wrap a line of full width
    lines = [draw_bar([BarPart(f.rows, f.done, f.kept) for f in status.fragments], room, marks) for status in found]
    click.echo()
    for name, line in zip(names, lines, strict=True):
        click.echo(f"{name}\n  {line}" if below else f"{name}{' ' * (beside - cell_len(name))}{line}")
    together = fragments_per_mark(fragments, room)
    scale = f", {together} to a character" if together > 1 else ""
    click.echo(f"{output.format_count(fragments, 'fragment')}{scale}: {marks.legend(lines)}")


def _show_errors(call: Invocation, dataset: Dataset, column: str) -> None:
    from floodmark.cli import row_output

    found = dataset.column_errors(column)
    if call.as_json:
        output.emit(dataset=dataset.name, column=column, errors=row_output.row_objects(found))
    elif found.num_rows:
        row_output.print_first_rows(call, found.drop_columns(["traceback"]), "row")
    else:
        call.note(f"{dataset.name}.{column}: no row failed")


SHOWN_RANGES = 10

_COUNT = click.IntRange(min=1)
_RANGES = [TableColumn("offsets"), TableColumn("rows", is_number=True), TableColumn("why")]


@verb("backfill")
@click.argument("name")
@click.argument("column")
@click.option("--where", metavar="SQL", help="Compute only rows that meet this condition.")
@click.option("--plan", "plan_only", is_flag=True, help="Show what would be computed, and why; compute nothing.")
@click.option(
    "--udf",
    metavar="MODULE:NAME",
    callback=arguments.check_function_name,
    help="Import the function from here. Default: the module where it was defined.",
)
@click.option("--retry-errors", is_flag=True, help="Also retry rows that failed and were skipped.")
@click.option("--checkpoint-size", metavar="ROWS", type=_COUNT, help="At most this many rows per checkpoint.")
@click.option(
    "--min-checkpoint-size",
    metavar="ROWS",
    type=_COUNT,
    help="At least this many. Overrides the function's setting.",
)
@click.option(
    "--max-checkpoint-size", metavar="ROWS", type=_COUNT, help="At most this many. Overrides the function's setting."
)
@click.option("--task-size", metavar="ROWS", type=_COUNT, help="Rows per task. Default: adapted to the measured speed.")
@click.option(
    "--commit-granularity",
    metavar="FRAGMENTS",
    type=_COUNT,
    default=64,
    show_default=True,
    help="Fragments per commit.",
)
def backfill(
    call: Invocation,
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
    """Compute missing values of a column.

    \b
    floodmark backfill images brightness --plan
    floodmark backfill images brightness
    floodmark backfill images brightness --where "taken_at >= '2026-11-01'"

    Values that are computed already are not computed again. The function is imported from its module: run this in a
    folder from which Python can import it, or name it with --udf.

    Results are stored in checkpoints about every ten seconds. After Ctrl-C, a crash or an error, run the same command
    again: it continues from the checkpoints. Values become visible in whole fragments.
    """
    from floodmark.errors import FunctionFailed

    lake = call.lake()
    dataset = lake[name]
    if plan_only:
        _show_plan(call, dataset, dataset.plan_backfill(column, where, retry_errors=retry_errors), where)
        return
    function = arguments.find_function(_function_lookup(dataset, column), udf, marker_folder(lake))
    exit_codes.raise_if_interrupted()
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
        call.note(error.traceback.rstrip())
        raise
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) or exit_codes.interrupt_pressed():
            raise Stopped("interrupted: results are stored; run the same command again to continue") from error
        raise
    _show_report(call, dataset, done, where)


def _function_lookup(dataset: Dataset, name: str) -> arguments.FunctionLookup:
    def hint(function: str) -> str:
        altered = f"lake[{dataset.name!r}].alter_column({name!r}, {function})"
        return f"to use the new function, run in Python: {altered}"

    return arguments.FunctionLookup(name, dataset.column(name).function, hint)


def _show_plan(call: Invocation, dataset: Dataset, plan: BackfillPlan, where: str | None) -> None:
    counts = {"rows": plan.rows, "wanted": plan.wanted, "done": plan.done, "reusable": plan.reused}
    counts |= {"carried": plan.carried, "missing": plan.missing, "waiting": plan.waiting}
    if call.as_json:
        output.emit(dataset=dataset.name, column=plan.column, where=where, **counts, ranges=map(asdict, plan.ranges))
        return
    subject = f"{dataset.name}.{plan.column}"
    parts = [f"{plan.missing:,} missing", f"{plan.reused:,} reusable", f"{plan.done:,} done"]
    if plan.carried:
        parts.insert(1, f"{plan.carried:,} carried over")
    if plan.waiting:
        parts.append(f"{plan.waiting:,} waiting")
    of = (
        f"{output.format_count(plan.wanted, 'row')} that --where keeps"
        if where is not None
        else output.format_count(plan.rows, "row")
    )
    click.echo(f"{subject}: {', '.join(parts)}, of {of}")
    ranges = list(_join_ranges(plan.ranges))
    if ranges:
        print_table(_RANGES, [_backfill_row(r) for r in ranges[:SHOWN_RANGES]])
    if left := ranges[SHOWN_RANGES:]:
        click.echo(
            f"… and {output.format_count(len(left), 'more range')} "
            f"({output.format_count(sum(r.rows for r in left), 'row')})"
        )
    if plan.waiting:
        call.note(_waiting_text(dataset, plan.column, plan.waiting))


def _backfill_row(found: MissingRange) -> list[str]:
    return [f"{found.start}–{found.end - 1}", f"{found.rows:,}", found.why]


def _join_ranges(ranges: Sequence[MissingRange]) -> Iterator[MissingRange]:
    """Join ranges that are adjacent and have the same reason, such as at the border of a fragment."""
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


def _show_report(call: Invocation, dataset: Dataset, done: BackfillReport, where: str | None) -> None:
    if call.as_json:
        output.emit(dataset=dataset.name, where=where, **asdict(done))
        return
    subject = f"{dataset.name}.{done.column}"
    before = f"{output.format_count(done.done, 'row')} done before"
    if not (done.computed or done.failed or done.reused or done.carried):
        click.echo(f"{subject}: nothing to compute ({before})")
    else:
        parts = [f"{output.format_count(done.computed, 'row')} computed"]
        if done.reused:
            parts.append(f"{done.reused:,} reused from {output.format_count(done.checkpoints_reused, 'checkpoint')}")
        if done.carried:
            parts.append(f"{done.carried:,} carried over")
        if done.failed:
            parts.append(f"{done.failed:,} failed")
        click.echo(f"{subject}: {', '.join(parts)} ({before})")
    if done.failed:
        call.note(f"rows that failed read as null: `floodmark columns {dataset.name} --errors {done.column}` shows why")
    if done.waiting:
        call.note(_waiting_text(dataset, done.column, done.waiting))


def _waiting_text(dataset: Dataset, column: str, rows: int) -> str:
    """Which columns must be computed before these rows."""
    computed = {status.name: status for status in dataset.columns()}
    inputs = [i for i in computed[column].inputs if i in computed and computed[i].done < computed[i].rows]
    first = f"`floodmark backfill {dataset.name} {inputs[0]}` first" if inputs else "backfill its inputs first"
    return f"{output.format_count(rows, 'row')} cannot be computed yet, because inputs are missing: {first}"


_MIN_WIDTH = 4
"""A fragment gets its own bar if it has at least this many characters."""

_MAX_WIDTH = 40
"""Most characters of the bar of a fragment."""


@dataclass(frozen=True)
class BarPart:
    """Row counts of a fragment: all, computed, and with a value of an older function."""

    rows: int
    done: int
    kept: int

    def __add__(self, other: BarPart) -> BarPart:
        return BarPart(self.rows + other.rows, self.done + other.done, self.kept + other.kept)


@dataclass(frozen=True)
class BarMarks:
    """The characters of a bar."""

    done: str
    partly: str
    kept: str
    nothing: str
    border: str

    def legend(self, bars: Sequence[str]) -> str:
        """The meaning of the characters that occur in the bars."""
        meanings = [
            (self.done, "computed"),
            (self.partly, "partly computed"),
            (self.kept, "an older value"),
            (self.nothing, "not computed"),
        ]
        return ", ".join(f"{mark} {meaning}" for mark, meaning in meanings if any(mark in bar for bar in bars))


BLOCK_BAR_MARKS = BarMarks("█", "▒", "░", "·", "│")
ASCII_BAR_MARKS = BarMarks("#", "+", "o", ".", "|")


def marks_for(encoding: str | None) -> BarMarks:
    """Block characters, or ASCII if the encoding has none."""
    return BLOCK_BAR_MARKS if is_encodable("".join(vars(BLOCK_BAR_MARKS).values()), encoding) else ASCII_BAR_MARKS


def fragments_per_mark(parts: int, width: int) -> int:
    """How many fragments one character stands for; 0 if each fragment has several characters."""
    return 0 if parts * (_MIN_WIDTH + 1) - 1 <= width else -(-parts // width)


def draw_bar(parts: Sequence[BarPart], width: int, marks: BarMarks) -> str:
    """Draw each fragment as its own bar or as one character, or several fragments as one character.

    The mark for "computed" stands only for complete parts, and the mark for "not computed" only for empty parts.
    """
    if not parts:
        return ""
    together = fragments_per_mark(len(parts), width)
    if together:
        groups = [parts[at : at + together] for at in range(0, len(parts), together)]
        return "".join(_fragment_mark(sum(group, BarPart(0, 0, 0)), marks) for group in groups)
    each = min(_MAX_WIDTH, (width - len(parts) + 1) // len(parts))
    return marks.border.join(_fragment_bar(part, each, marks) for part in parts)


def _fragment_mark(part: BarPart, marks: BarMarks) -> str:
    if part.done == part.rows:
        return marks.done
    return marks.partly if part.done else marks.kept if part.kept else marks.nothing


def _fragment_bar(part: BarPart, width: int, marks: BarMarks) -> str:
    if part.done == part.rows:
        return marks.done * width
    done = part.done * width // part.rows
    partly = 1 if part.done * width % part.rows else 0
    kept = min(width - done - partly, -(-part.kept * width // part.rows))
    return (
        marks.done * done + marks.partly * partly + marks.kept * kept + marks.nothing * (width - done - partly - kept)
    )


def percent(done: int, rows: int) -> str:
    """``83.3 %``, rounded down. Only complete is 100 %, and only nothing is 0 %."""
    if done == rows:
        return "100 %"
    if done == 0:
        return "0 %"
    tenths = 1000 * done // rows
    return f"{tenths // 10}.{tenths % 10} %" if tenths else "<0.1 %"
