"""`floodmark view` and `floodmark refresh`: declare, show and refresh views."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from floodmark.cli import arguments, exit_codes, output, targets
from floodmark.cli.command import Invocation, verb
from floodmark.cli.exit_codes import FAILED, Stopped
from floodmark.cli.output import TableColumn, TableRow, escape_control_characters, print_table
from floodmark.errors import FloodmarkError

if TYPE_CHECKING:
    from floodmark.functions.udf import Udf
    from floodmark.lake import Lake
    from floodmark.view import View
    from floodmark.views.plan import RefreshReport
    from floodmark.views.snapshot import ViewSnapshot


_COLUMNS = [
    TableColumn("view"),
    TableColumn("refreshed by"),
    TableColumn("made from"),
    TableColumn("behind", is_number=True),
]
_COLUMNS += [TableColumn("state")]


@verb("view")
@click.argument("name", metavar="[NAME]", required=False)
@click.option("--sql", metavar="QUERY", help="Declare the view: a query over datasets of the lake, in Spark's SQL.")
@click.option(
    "--file", type=click.Path(exists=True, dir_okay=False), help="Declare the view by the query in this file."
)
@click.option("--incremental", is_flag=True, help="Refuse a query whose refreshes would compute everything.")
@click.option("--errors", is_flag=True, help="Show the rows for which a function of the view failed, and why.")
def view(
    call: Invocation, name: str | None, sql: str | None, file: str | None, incremental: bool, errors: bool
) -> None:
    """Declare a view, or show views.

    \b
    floodmark view daily --sql "select carrier, date, count(*) n from flights group by carrier, date"
    floodmark view daily --file daily.sql --incremental
    floodmark view daily
    floodmark view

    A view stores the result of a query; `floodmark refresh` computes what changed. Declaring a view computes nothing,
    and prints how refreshes will work. If you declare it again with another query, the next refresh computes everything
    once, and writes only rows that differ. Declare views with Python functions in Python, with lake.view().

    The first lines of a file may be comments with options, such as `-- refresh: incremental`.

    Without a query this shows the view: its query as a tree, how each operator is maintained, and what the last refresh
    read and computed there. Without a NAME it lists all views.
    """
    given = [option for option, value in (("--sql", sql), ("--file", file), ("--errors", errors)) if value]
    if len(given) > 1:
        raise click.UsageError(f"{given[0]} and {given[1]} cannot be combined.")
    if given and name is None:
        raise click.UsageError(f"{given[0]} needs the NAME of a view.")
    if incremental and sql is None and file is None:
        raise click.UsageError("--incremental needs a query: add --sql or --file.")
    lake = call.quick_lake()
    if name is None:
        _list(call, lake)
    elif errors:
        _show_errors(call, targets.open_view(lake, name))
    elif sql is not None or file is not None:
        options = {"sql": sql} if file is None else _read_file(Path(file))
        _declare(call, lake, name, {**options, "refresh": "incremental"} if incremental else options)
    else:
        _describe(call, lake, targets.open_view(lake, name))


def _read_file(file: Path) -> dict[str, Any]:
    """The query of a file, and the options in the comments at its top."""
    from floodmark.errors import BadPipelineFile
    from floodmark.pipeline.sql_files import read_sql_file

    try:
        found = read_sql_file(file)
    except BadPipelineFile as error:
        raise click.UsageError(f"{error.message}: {error.hint}.") from error
    # Labels choose nodes of a pipeline, and this view is in none.
    return {"sql": found.query, **{name: value for name, value in found.options.items() if name != "labels"}}


def _declare(call: Invocation, lake: Lake, name: str, options: dict[str, Any]) -> None:
    present = targets.find_view(lake, name)
    before = None if present is None else present.definition.version
    with call.waiting("analysing the query with Spark"):
        declared = lake.view(name, **options)
    done = "made" if before is None else "same" if before == declared.definition.version else "changed"
    if call.as_json:
        output.emit(lake=lake.store.url, done=done, **_view_fields(declared))
        return
    said = {"made": "declared", "same": "unchanged", "changed": "redefined"}
    click.echo(f"{declared.name}: {said[done]}; {targets.describe_refresh(declared)}")
    if declared.schema is None:
        call.note(f"it has no rows yet: `floodmark refresh {declared.name}` computes them")
    elif done == "changed":
        call.note(f"readers see the old rows until `floodmark refresh {declared.name}`, which computes everything once")


def _view_fields(one: View) -> dict[str, Any]:
    """The declaration of a view, for JSON."""
    return {
        "view": one.name,
        "kind": one.refresh_kind,
        "why": one.whole_reason,
        "by": one.refresh_keys,
        "sources": one.inputs,
        "key": one.strategy.key,
        "version": one.definition.version,
        "refresh": one.definition.refresh,
        "description": one.definition.description,
        "query": one.definition.shown_query,
    }


# All of them


@dataclass(frozen=True)
class ViewState:
    """How far a view is behind its inputs, and its state as text."""

    behind: int
    waiting: int
    state: str

    @classmethod
    def of(cls, lake: Lake, name: str) -> ViewState:
        from floodmark.views.snapshot import OutdatedView, take_view_snapshot

        view_snapshot = take_view_snapshot(lake, name)
        if isinstance(view_snapshot, OutdatedView):
            return cls(0, 0, "the columns of its inputs changed")
        waiting = sum(source.waiting for source in view_snapshot.sources)
        behind = sum(head - view_snapshot.positions[one] for one, head in view_snapshot.last_offsets.items())
        return cls(behind, waiting, _state_text(view_snapshot, waiting))


def _state_text(view_snapshot: ViewSnapshot, waiting: int) -> str:
    if view_snapshot.note is None and view_snapshot.replaces is None:
        state = "never refreshed"
    elif view_snapshot.stale is not None:
        state = f"must compute everything: {view_snapshot.stale}"
    else:
        state = "up to date" if view_snapshot.is_up_to_date else "behind"
    return f"{state}; {output.format_count(waiting, 'record')} waiting for a computed column" if waiting else state


def _list(call: Invocation, lake: Lake) -> None:
    rows: list[TableRow] = []
    described: list[dict[str, Any]] = []
    found, broken = targets.all_views(lake)
    for one in found:
        try:
            fields, standing = _view_fields(one), ViewState.of(lake, one.name)
        except FloodmarkError as error:
            broken[one.name] = error
            continue
        described.append({**fields, **asdict(standing)})
        by = targets.refresh_unit(one.refresh_kind, one.refresh_keys)
        rows.append([one.name, by, ", ".join(one.inputs), f"{standing.behind:,}", standing.state])
    if call.as_json:
        output.emit(lake=lake.store.url, views=[*described, *(targets.error_fields(*one) for one in broken.items())])
    elif rows:
        print_table(_COLUMNS, rows)
    elif not broken:
        call.note(f"no views in {lake.store.url} yet: `floodmark view NAME --sql …` declares one")
    for name, why in broken.items():
        targets.print_view_error(call, name, why)
    if broken:
        click.get_current_context().exit(FAILED)


# One of them


def _describe(call: Invocation, lake: Lake, one: View) -> None:
    standing = ViewState.of(lake, one.name)
    if call.as_json:
        output.emit(lake=lake.store.url, **_view_fields(one), **asdict(standing), explained=one.explain().to_json())
        return
    click.echo(escape_control_characters(f"{one.name}: {targets.describe_refresh(one)}"))
    if one.definition.description is not None:
        click.echo(escape_control_characters(one.definition.description))
    for line in one.definition.shown_query.strip().splitlines():
        click.echo(f"  {escape_control_characters(line)}")
    for line in one.explain().lines():
        click.echo(escape_control_characters(line))
    behind = f" ({output.format_count(standing.behind, 'new record')})" if standing.behind else ""
    click.echo(escape_control_characters(f"{standing.state}{behind}"))


def _show_errors(call: Invocation, one: View) -> None:
    from floodmark.cli import row_output

    found = one.errors()
    if call.as_json:
        output.emit(view=one.name, errors=row_output.row_objects(found))
    elif found.num_rows:
        row_output.print_first_rows(
            call, found.drop_columns([name for name in found.column_names if name == "traceback"]), "row"
        )
    else:
        call.note(f"{one.name}: no row failed")


_SMALL_INPUTS = 256 << 20
"""Up to this many bytes of inputs, Spark runs with settings that start faster but compute slower."""


@verb("refresh")
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="All views of the lake.")
@click.option("--retry-errors", is_flag=True, help="Also retry rows whose function failed and was skipped.")
@click.option("--strict", is_flag=True, help="Exit with 1 if a function failed for some rows.")
@click.option(
    "--udf",
    "udfs",
    metavar="MODULE:NAME",
    multiple=True,
    callback=arguments.check_function_names,
    help="Import a function from here. Default: the module where it was defined.",
)
def refresh(
    call: Invocation, names: tuple[str, ...], everything: bool, retry_errors: bool, strict: bool, udfs: tuple[str, ...]
) -> None:
    """Bring views up to date.

    \b
    floodmark refresh daily
    floodmark refresh --all
    floodmark refresh bright --retry-errors

    Views are refreshed in dependency order. Only the changed records, groups or join keys are computed. If a view
    cannot be refreshed in parts, everything is computed and the reason is printed. Only rows that differ are written.
    Readers see the old rows until the commit.

    If a view fails, the others are still refreshed: the error is on stderr (with --json an `error`), and the exit code
    is 1. Functions are imported from their modules: run this in a folder from which Python can import them.
    """
    if bool(names) == everything:
        raise click.UsageError("Name the views, or add --all." if not names else "Name views or use --all, not both.")
    lake = call.quick_lake()
    chosen, broken = targets.all_views(lake) if everything else ([targets.open_view(lake, name) for name in names], {})
    if targets.total_input_size(lake, chosen) > _SMALL_INPUTS:
        lake = call.lake()
        chosen = [targets.open_view(lake, view.name) for view in chosen]
    if not chosen and not broken:
        call.note(f"no views in {lake.store.url} yet: `floodmark view NAME --sql …` declares one")
    for name, why in broken.items():
        targets.print_view_error(call, name, why)
    targets.check_udf_options(chosen, udfs)
    done: list[RefreshReport] = []
    for view in targets.sort_by_dependency(chosen):
        try:
            report = _refresh(call, view, targets.find_functions(lake, view, udfs), retry_errors)
        except FloodmarkError as error:
            if len(names) == 1:
                raise
            broken[view.name] = error
            targets.print_view_error(call, view.name, error)
            continue
        done.append(report)
        _print_report(call, report)
    if call.as_json:
        failed = [targets.error_fields(*one) for one in broken.items()]
        output.emit(lake=lake.store.url, refreshes=[*map(asdict, done), *failed])
    if broken or (strict and any(report.failed for report in done)):
        click.get_current_context().exit(FAILED)


def _refresh(call: Invocation, view: View, udfs: Sequence[Udf], retry_errors: bool) -> RefreshReport:
    """Refresh one view. A failed function prints its traceback, and Ctrl-C raises Stopped with what is kept."""
    from floodmark.errors import FunctionFailed

    try:
        return view.refresh(retry_errors=retry_errors, udfs=udfs)
    except FunctionFailed as error:
        call.note(error.traceback.rstrip())
        raise
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) or exit_codes.interrupt_pressed():
            kept = "; results of its functions are stored" if view.definition.udfs else ""
            raise Stopped(f"interrupted: {view.name} is unchanged{kept}; run the same command again") from error
        raise


def _print_report(call: Invocation, report: RefreshReport) -> None:
    if call.as_json:
        return
    click.echo(f"{report.view}: {format_report(report)}")
    if report.failed:
        call.note(
            f"rows that failed have null: `floodmark view {report.view} --errors` shows why,"
            f" `floodmark refresh {report.view} --retry-errors` retries"
        )


def format_report(report: RefreshReport) -> str:
    """What a refresh did, in one line."""
    waiting = f"; {_waiting_text(report.waiting)}" if report.waiting else ""
    if report.nothing:
        return f"nothing to do{waiting}"
    parts = [f"everything was computed, because {report.stale or report.why}" if report.is_whole else _changes(report)]
    parts += [_calls_text(report)] if report.called or report.reused or report.carried or report.failed else []
    counts = {"new": report.new, "changed": report.changed, "retracted": report.retracted}
    rows = [f"{count:,} {what}" for what, count in counts.items() if count]
    kept = f"; the old rows are in {report.kept_as}" if report.kept_as is not None else ""
    return f"{'; '.join(parts)}; rows: {', '.join(rows) or 'nothing changed'}{kept}{waiting} ({report.seconds:.1f} s)"


def _changes(report: RefreshReport) -> str:
    records = output.format_count(report.records, "new record") if report.records else "no new records"
    match report.kind:
        case "groups":
            return f"{records} in {output.format_count(report.keys, 'group')}"
        case "join":
            return f"{records} with {output.format_count(report.keys, 'join key')}"
        case "changes":
            return f"{records} carried through the query"
        case _:
            return records


def _calls_text(report: RefreshReport) -> str:
    parts = [f"functions called for {output.format_count(report.called, 'row')}"]
    parts += [f"{report.reused:,} reused"] if report.reused else []
    parts += [f"{report.carried:,} carried over"] if report.carried else []
    parts += [f"{report.failed:,} failed"] if report.failed else []
    return ", ".join(parts)


def _waiting_text(records: int) -> str:
    return f"{output.format_count(records, 'record')} {'waits' if records == 1 else 'wait'} for a computed column"
