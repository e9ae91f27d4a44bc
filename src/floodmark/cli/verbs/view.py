"""`floodmark view`: declare a view, or show what views there are."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from floodmark.cli import document, views, words
from floodmark.cli.call import Call, verb
from floodmark.cli.exits import FAILED
from floodmark.cli.tables import Column, Row, print_table, visible
from floodmark.errors import FloodmarkError

if TYPE_CHECKING:
    from floodmark.lake import Lake
    from floodmark.transform.views.pinned import PinnedView
    from floodmark.view import View

_COLUMNS = [Column("view"), Column("refreshed by"), Column("made from"), Column("behind", is_number=True)]
_COLUMNS += [Column("state")]


@verb("view")
@click.argument("name", metavar="[NAME]", required=False)
@click.option("--sql", metavar="QUERY", help="Declare the view: a query over datasets of the lake, in Spark's SQL.")
@click.option("--file", type=click.Path(exists=True, dir_okay=False), help="The same, with the query in a file.")
@click.option("--errors", is_flag=True, help="Show the rows for which a function of the view failed, and why.")
def view(call: Call, name: str | None, sql: str | None, file: str | None, errors: bool) -> None:
    """Declare a view, or show what views there are.

    \b
    floodmark view daily --sql "select carrier, date, count(*) n from flights group by carrier, date"
    floodmark view daily --file daily.sql
    floodmark view daily
    floodmark view

    A view is a query whose answer is kept: `floodmark refresh` computes what changed of it. Declaring one computes
    nothing, and says what refreshes will go by. Declared again with another query, the next refresh computes everything
    once, and writes only rows that come out different. Views with Python functions are declared in Python: lake.view().

    Without a query a view is described; without a NAME all views are listed.
    """
    given = [option for option, value in (("--sql", sql), ("--file", file), ("--errors", errors)) if value]
    if len(given) > 1:
        raise click.UsageError(f"{given[0]} and {given[1]} do not go together.")
    if given and name is None:
        raise click.UsageError(f"{given[0]} needs the NAME of a view.")
    lake = call.quick_lake()
    if name is None:
        _list(call, lake)
    elif errors:
        _show_errors(call, views.open_view(lake, name))
    elif sql is not None or file is not None:
        _declare(call, lake, name, sql if sql is not None else _query_in(Path(str(file))))
    else:
        _describe(call, lake, views.open_view(lake, name))


def _query_in(file: Path) -> str:
    """The text of a file, without the mark that some editors put before it."""
    try:
        return file.read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise click.UsageError(f"{file} is no text in UTF-8 (byte {error.start}): save it as UTF-8.") from error


def _declare(call: Call, lake: Lake, name: str, sql: str) -> None:
    present = views.find_view(lake, name)
    before = None if present is None else present.definition.version
    with call.waiting("asking Spark what the query means"):
        declared = lake.view(name, sql=sql)
    done = "made" if before is None else "same" if before == declared.definition.version else "changed"
    if call.as_json:
        document.emit(lake=lake.store.url, done=done, **_fields(declared))
        return
    said = {"made": "declared", "same": "was declared so before", "changed": "declared anew"}
    click.echo(f"{declared.name}: {said[done]}; {views.described(declared)}")
    if declared.schema is None:
        call.note(f"it has no rows yet: `floodmark refresh {declared.name}` computes them")
    elif done == "changed":
        call.note(
            f"readers have the old rows until `floodmark refresh {declared.name}`, which computes everything once"
        )


def _fields(one: View) -> dict[str, Any]:
    """A view for JSON, as it is declared."""
    return {
        "view": one.name,
        "kind": one.way,
        "why": one.why,
        "by": one.by,
        "sources": one.sources,
        "key": one.strategy.key,
        "version": one.definition.version,
        "query": one.definition.shown_query,
    }


# All of them


@dataclass(frozen=True)
class Standing:
    """How far a view is behind its sources, and what that means for the next refresh."""

    behind: int
    waiting: int
    state: str

    @classmethod
    def of(cls, lake: Lake, name: str) -> Standing:
        from floodmark.transform.views.pinned import Outdated, pin_view

        pinned = pin_view(lake, name)
        if isinstance(pinned, Outdated):
            return cls(0, 0, "the columns of its sources changed")
        waiting = sum(source.waiting for source in pinned.sources)
        behind = sum(head - pinned.positions[one] for one, head in pinned.heads.items())
        return cls(behind, waiting, _state(pinned, waiting))


def _state(pinned: PinnedView, waiting: int) -> str:
    if pinned.note is None and pinned.replaces is None:
        state = "never refreshed"
    elif pinned.stale is not None:
        state = f"everything is to be computed: {pinned.stale}"
    else:
        state = "up to date" if pinned.is_up_to_date else "behind"
    return f"{state}; {words.many(waiting, 'record')} waiting for a computed column" if waiting else state


def _list(call: Call, lake: Lake) -> None:
    rows: list[Row] = []
    described: list[dict[str, Any]] = []
    found, broken = views.all_views(lake)
    for one in found:
        try:
            fields, standing = _fields(one), Standing.of(lake, one.name)
        except FloodmarkError as error:
            broken[one.name] = error
            continue
        described.append({**fields, **asdict(standing)})
        by = views.refreshed_by(one.way, one.by)
        rows.append([one.name, by, ", ".join(one.sources), f"{standing.behind:,}", standing.state])
    if call.as_json:
        document.emit(lake=lake.store.url, views=[*described, *(views.failed(*one) for one in broken.items())])
    elif rows:
        print_table(_COLUMNS, rows)
    elif not broken:
        call.note(f"no views in {lake.store.url} yet: `floodmark view NAME --sql …` declares one")
    for name, why in broken.items():
        views.say_failed(call, name, why)
    if broken:
        click.get_current_context().exit(FAILED)


# One of them


def _describe(call: Call, lake: Lake, one: View) -> None:
    standing = Standing.of(lake, one.name)
    if call.as_json:
        document.emit(lake=lake.store.url, **_fields(one), **asdict(standing))
        return
    click.echo(f"{one.name}: {views.described(one)}")
    for line in one.definition.shown_query.strip().splitlines():
        click.echo(f"  {visible(line)}")
    behind = f" ({words.many(standing.behind, 'new record')})" if standing.behind else ""
    click.echo(f"{standing.state}{behind}")


def _show_errors(call: Call, one: View) -> None:
    from floodmark.cli import records

    found = one.errors()
    if call.as_json:
        document.emit(view=one.name, errors=records.objects(found))
    elif found.num_rows:
        records.show(call, found.drop_columns([name for name in found.column_names if name == "traceback"]), "row")
    else:
        call.note(f"{one.name}: no row failed")
