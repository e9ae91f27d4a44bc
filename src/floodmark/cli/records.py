"""Commands for records and rows: `tail`, `changes`, `history`, `delete`, `sql` and `why`."""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from floodmark.cli import arguments, exit_codes, output
from floodmark.cli.command import Invocation, open_lake, verb
from floodmark.cli.output import escape_control_characters

if TYPE_CHECKING:
    import pyarrow as pa

    from floodmark.dataset import Dataset
    from floodmark.ledger.position import Position
    from floodmark.provenance.tree import TextNode
    from floodmark.provenance.why import RecordSelector


@verb("tail")
@click.argument("name")
@click.option("-n", "--number", metavar="N", type=click.IntRange(min=1), default=10, help="How many. Default: 10.")
def tail(call: Invocation, name: str, number: int) -> None:
    """Show the last records, with their offset, op and system_time.

    \b
    floodmark tail trips
    floodmark tail trips -n 1 --json | jq '.records[0].offset'
    """
    from floodmark.cli import row_output

    dataset = call.lake()[name]
    last = dataset.last_offset
    found = min(number, dataset.snapshot().records)
    if last is None or found == 0:
        if call.as_json:
            output.emit(dataset=dataset.name, records=[])
        purged = "all records are purged" if last is not None else "no records yet"
        call.note(f"{dataset.name}: {purged}")
        return
    table = dataset.changes_arrow(since=last - found, until=last)
    if call.as_json:
        output.emit(dataset=dataset.name, records=row_output.row_objects(table))
    else:
        row_output.print_rows(table)


@verb("changes")
@click.argument("name")
@click.option(
    "--since",
    metavar="N|POSITION",
    callback=arguments.parse_since,
    help="Records after offset N, or after a position. Default: from the oldest record.",
)
@click.option(
    "--until", metavar="N", type=click.IntRange(min=0), help="Records up to offset N, inclusive. Default: all."
)
@click.option("--limit", metavar="N", type=click.IntRange(min=1), help="At most N records, the oldest first.")
def changes(call: Invocation, name: str, since: int | Position | None, until: int | None, limit: int | None) -> None:
    """Show the records after an offset.

    Records are in offset order, with their offset, op and system_time.

    \b
    floodmark changes trips --since 999
    floodmark changes trips --since 999 --limit 500 --json | jq -r .position

    The JSON document has the last offset it covers as `until`, and the same with the dataset's id as `position`. Use
    the position as the next --since: it is refused if the dataset was dropped and created again. An offset beyond the
    end is refused too.
    """
    from floodmark.cli import row_output
    from floodmark.ledger.position import Position, first_after

    dataset = call.lake()[name]
    snapshot = dataset.snapshot()
    last = snapshot.next_offset - 1
    start = last - snapshot.records if since is None else first_after(snapshot, dataset.name, since) - 1
    wanted = last if until is None else min(until, last)
    end = max(start, wanted if limit is None else min(wanted, start + limit))
    at = dataset.position(end)
    if isinstance(since, Position):  # the reader goes on: it knows rows that a purge has carried meanwhile
        at = replace(at, records=since.records)
    if end == start:
        if call.as_json:
            output.emit(dataset=dataset.name, since=start, until=end, position=str(at), more=last > end, records=[])
        call.note(f"{dataset.name}: no records after offset {start}" + (f" up to {until}" if last > end else ""))
        return
    table = dataset.changes_arrow(since=since if isinstance(since, Position) else start, until=end)
    if call.as_json:
        rows = row_output.row_objects(table)
        output.emit(dataset=dataset.name, since=start, until=end, position=str(at), more=last > end, records=rows)
    elif limit is None:
        row_output.print_first_rows(call, table, "record")
    else:
        row_output.print_rows(table)
        if wanted > end:
            call.note(f"… more: --since {end}")


_OP_NAMES = ("+A", "-R", "-C", "+C")


@verb("history")
@click.argument("name")
@click.argument("given", metavar="COLUMN=VALUE...", nargs=-1, required=True)
def history(call: Invocation, name: str, given: tuple[str, ...]) -> None:
    """Show every record that a key ever had.

    \b
    floodmark history people id=7
    floodmark history prices shop=12 day=2026-11-16
    floodmark history people id=7 id=8 --json | jq '.records[].op'

    Records are in offset order. The op is +A for a new row, -R for a retracted row, and -C and +C for a row before and
    after a change. A repeated column begins the next key. If the key has more columns than you name, all rows with
    these values match.
    """
    from floodmark.cli import row_output

    wanted = arguments.parse_keys(given)
    dataset = call.lake()[name]
    typed = arguments.cast_keys(wanted, dataset)
    found = None if typed is None else _with_op_names(dataset.history(typed), dataset)
    if call.as_json:
        output.emit(dataset=dataset.name, keys=wanted, records=[] if found is None else row_output.row_objects(found))
        return
    if found is None or found.num_rows == 0:
        call.note(f"{dataset.name}: no record ever had {arguments.format_keys(wanted)}")
    else:
        row_output.print_first_rows(call, found, "record")
    if purged := dataset.snapshot().purged_before:
        call.note(f"records before offset {purged} are purged and cannot be shown")


def _with_op_names(table: pa.Table, dataset: Dataset) -> pa.Table:
    """The records with their operations as text, such as +A."""
    import pyarrow as pa

    op = dataset.snapshot().require_layout(dataset.name).vocab.op
    at = table.column_names.index(op)
    return table.set_column(at, op, pa.array(_OP_NAMES).take(table.column(op)))


@verb("delete")
@click.argument("name")
@click.argument("given", metavar="COLUMN=VALUE...", nargs=-1, required=True)
def delete(call: Invocation, name: str, given: tuple[str, ...]) -> None:
    """Retract the rows with a key; their history stays.

    \b
    floodmark delete people id=7
    floodmark delete people id=7 id=8
    floodmark delete prices shop=12            all rows of shop 12, if the key is shop and day

    Readers of the current rows no longer see them. Their records stay, for `history`, `changes` and time travel. An
    unknown key is counted and is not an error.
    """
    from floodmark.ledger.log import format_counts

    wanted = arguments.parse_keys(given)
    dataset = call.lake()[name]
    typed = arguments.cast_keys(wanted, dataset)
    commit = None if typed is None else dataset.delete(typed)
    if call.as_json:
        output.emit(
            dataset=dataset.name,
            keys=wanted,
            retracted=commit.retracted if commit is not None else 0,
            unknown=commit.unknown if commit is not None else len(wanted),
            start=None if commit is None else commit.start,
            end=None if commit is None else commit.end,
            block=dataset.head.text if commit is None else commit.block.text,
        )
    elif commit is None or commit.retracted == 0:
        click.echo(f"{dataset.name}: nothing to retract; no row has {arguments.format_keys(wanted)}")
    else:
        where = f"offsets {commit.start}–{commit.end - 1}, {output.format_bytes(commit.size)}"
        click.echo(f"{dataset.name}: {format_counts(commit)} ({where}), block {commit.block.short}")


@verb("sql")
@click.argument("query")
@click.option("--spark", is_flag=True, help="Run the query with Spark, in its dialect, instead of DuckDB.")
def sql(call: Invocation, query: str, spark: bool) -> None:
    """Run an SQL query; the tables are the datasets.

    \b
    floodmark sql "select day, sum(fare) from trips group by day"
    floodmark sql 'select * from "bike-trips" limit 5' --json | jq '.rows[]'
    floodmark sql --spark "select count(*) from trips"

    A terminal shows the first 200 rows; a pipe and --json get all of them.
    """
    from floodmark.cli import row_output

    table = _by_spark(call, query) if spark else _by_duckdb(call, query)
    if call.as_json:
        columns = [{"name": field.name, "type": str(field.type)} for field in table.schema]
        output.emit(columns=columns, rows=row_output.row_objects(table))
        return
    row_output.print_first_rows(call, table, "row")
    if table.num_rows == 0:
        call.note("no rows")


def _by_duckdb(call: Invocation, query: str) -> pa.Table:
    lake = call.lake()
    return exit_codes.run_interruptibly(lambda: lake.sql(query))


def _by_spark(call: Invocation, query: str) -> pa.Table:
    from pyspark.errors import PySparkException
    from pyspark.logger import PySparkLogger

    from floodmark.engine import spark_launch
    from floodmark.engine.spark_launch import Profile
    from floodmark.errors import BadQuery

    # PySpark would print the Java stack trace of a failed query to stderr; BadQuery has the message.
    PySparkLogger.getLogger("SQLQueryContextLogger").disabled = True
    runtime = call.runtime(Profile.SHORT)
    lake = open_lake(call.place(), runtime)
    with call.waiting("running the query with Spark"), runtime.session:
        try:
            return lake.sql_spark(query).toArrow()
        except BaseException as error:
            if exit_codes.interrupt_pressed():
                spark_launch.kill_jvm()  # stops the query; this session runs nothing else
                raise KeyboardInterrupt from error
            if not isinstance(error, PySparkException):
                raise
            # Some errors occur only when rows are computed.
            message = f"Spark cannot run the query: {str(error).strip()}"
            raise BadQuery(message, hint="the query is valid; check the data that it reads") from error


@verb("why")
@click.argument("name", metavar="DATASET")
@click.argument("given", metavar="OFFSET|COLUMN=VALUE...", nargs=-1, required=True)
@click.option("--forward", "is_forward", is_flag=True, help="Show the records derived from this record instead.")
@click.option("--rows", default=10, show_default=True, metavar="N", help="Follow at most N rows of each input.")
def why(call: Invocation, name: str, given: tuple[str, ...], is_forward: bool, rows: int) -> None:
    """Show where a record came from, row by row, back to the sources.

    \b
    floodmark why daily 17
    floodmark why features id=7
    floodmark why trips 3 --forward
    floodmark why features id=7 --json | jq '.inputs[].records[].offset'

    Name a record by its offset, or by the key of a current row. The answer is a tree: for each input of the run that
    wrote the record, the offset up to which the run read it, and the rows that the record is derived from, with their
    values at that time. The same follows for each of these rows, down to records that were written from outside, with
    their source and its state. Inputs that are purged, dropped or not recorded are marked.

    With --forward: the records of steps and views that are derived from it, and the records derived from those.
    """
    if rows < 0:
        raise click.BadParameter("give 0 or more rows.", param_hint="--rows")
    lake = call.lake()
    dataset = lake[name]
    asked = _parse_record(given, dataset)
    if is_forward:
        from floodmark.provenance.tree import build_forward_tree

        derived = lake.why_forward(dataset.name, asked)
        fields, tree = derived.to_json(), build_forward_tree(derived)
    else:
        from floodmark.provenance.tree import build_why_tree

        origin = lake.why(dataset.name, asked, rows=rows)
        fields, tree = origin.to_json(), build_why_tree(origin)
    if call.as_json:
        output.emit(**fields)
        return
    _print_tree(tree)


def _print_tree(tree: TextNode) -> None:
    """Print a tree. Lines are wrapped on a terminal, and whole in a pipe."""
    from floodmark.provenance.tree import render_lines, wrap_line

    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for line in map(escape_control_characters, render_lines(tree)):
        for part in [line] if width is None else wrap_line(line, width):
            click.echo(part)


def _parse_record(given: tuple[str, ...], dataset: Dataset) -> RecordSelector:
    if len(given) == 1 and given[0].isdigit():
        return int(given[0])
    wanted = arguments.parse_keys(given)
    if len(wanted) > 1:
        raise click.UsageError("name one record: an OFFSET, or each column of a key once.")
    typed = arguments.cast_keys(wanted, dataset)
    if typed is None:
        dataset.snapshot().require_layout(dataset.name)  # raises, because there are no columns yet
    assert typed is not None
    [row] = typed.to_pylist()
    return dict(row)
