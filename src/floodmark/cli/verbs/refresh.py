"""`floodmark refresh`: bring views up to date."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from floodmark.cli import document, functions, interrupts, views, words
from floodmark.cli.call import Call, verb
from floodmark.cli.errors import Stopped
from floodmark.cli.exits import FAILED
from floodmark.errors import FloodmarkError

if TYPE_CHECKING:
    from floodmark.compute.functions.udf import Udf
    from floodmark.transform.views.report import Refreshed
    from floodmark.view import View

_LITTLE = 256 << 20
"""Up to so many bytes of sources a Spark that starts faster, but works slower, is done sooner."""


@verb("refresh")
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="All views of the lake.")
@click.option("--retry-errors", is_flag=True, help="Also try rows again whose function failed and was skipped.")
@click.option("--strict", is_flag=True, help="Exit with 1 when a function failed for some rows.")
@click.option(
    "--udf",
    "udfs",
    metavar="MODULE:NAME",
    multiple=True,
    callback=functions.check_names,
    help="Where a function is now. Default: where it was when the view was declared.",
)
def refresh(
    call: Call, names: tuple[str, ...], everything: bool, retry_errors: bool, strict: bool, udfs: tuple[str, ...]
) -> None:
    """Bring views up to date.

    \b
    floodmark refresh daily
    floodmark refresh --all
    floodmark refresh bright --retry-errors

    Each view comes after those that it is made from, whatever the order given. Only the records, groups or join keys
    that changed are computed; a view that cannot be refreshed so is computed in full, says why, and only rows that come
    out different are written. Readers see the view as it was until all of it is done.

    A view that fails does not stop the others: it is named on stderr (with --json it has an `error`), and the exit code
    is 1. Functions are imported from their modules: run this in the folder from which Python would find them.
    """
    if bool(names) == everything:
        raise click.UsageError("Name the views, or give --all." if not names else "Name views or give --all, not both.")
    lake = call.quick_lake()
    chosen, broken = views.all_views(lake) if everything else ([views.open_view(lake, name) for name in names], {})
    if views.size_of_sources(lake, chosen) > _LITTLE:
        lake = call.lake()
        chosen = [views.open_view(lake, view.name) for view in chosen]
    if not chosen and not broken:
        call.note(f"no views in {lake.store.url} yet: `floodmark view NAME --sql …` declares one")
    for name, why in broken.items():
        views.say_failed(call, name, why)
    views.check_places(chosen, udfs)
    done: list[Refreshed] = []
    for view in views.in_order(chosen):
        try:
            report = _refresh(call, view, views.find_functions(lake, view, udfs), retry_errors)
        except FloodmarkError as error:
            if len(names) == 1:
                raise
            broken[view.name] = error
            views.say_failed(call, view.name, error)
            continue
        done.append(report)
        _show(call, report)
    if call.as_json:
        failed = [views.failed(*one) for one in broken.items()]
        document.emit(lake=lake.store.url, refreshes=[*map(asdict, done), *failed])
    if broken or (strict and any(report.failed for report in done)):
        click.get_current_context().exit(FAILED)


def _refresh(call: Call, view: View, udfs: Sequence[Udf], retry_errors: bool) -> Refreshed:
    """Refresh one view; the traceback of a function that may not fail is shown, and Ctrl-C says what is kept."""
    from floodmark.compute.errors import FunctionFailed

    try:
        return view.refresh(retry_errors=retry_errors, udfs=udfs)
    except FunctionFailed as error:
        call.note(error.traceback.rstrip())
        raise
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) or interrupts.pressed():
            kept = "what its functions computed is stored, and " if view.definition.udfs else ""
            raise Stopped(f"interrupted: {view.name} is as it was; {kept}the same command goes on") from error
        raise


def _show(call: Call, report: Refreshed) -> None:
    if call.as_json:
        return
    click.echo(f"{report.view}: {said(report)}")
    if report.failed:
        call.note(
            f"rows that failed have null: `floodmark view {report.view} --errors` says why,"
            f" `floodmark refresh {report.view} --retry-errors` tries again"
        )


def said(report: Refreshed) -> str:
    """What a refresh came to, as people say it."""
    waiting = f"; {_waiting(report.waiting)}" if report.waiting else ""
    if report.nothing:
        return f"nothing to do{waiting}"
    parts = [f"everything was computed, because {report.stale or report.why}" if report.is_whole else _touched(report)]
    parts += [_calls(report)] if report.called or report.reused or report.failed else []
    counts = {"new": report.new, "changed": report.changed, "retracted": report.retracted}
    rows = [f"{count:,} {what}" for what, count in counts.items() if count]
    kept = f"; the old rows are in {report.kept_as}" if report.kept_as is not None else ""
    return f"{'; '.join(parts)}; rows: {', '.join(rows) or 'nothing changed'}{kept}{waiting} ({report.seconds:.1f} s)"


def _touched(report: Refreshed) -> str:
    records = words.many(report.records, "new record") if report.records else "no new records"
    match report.kind:
        case "groups":
            return f"{records} in {words.many(report.keys, 'group')}"
        case "join":
            return f"{records} with {words.many(report.keys, 'join key')}"
        case _:
            return records


def _calls(report: Refreshed) -> str:
    parts = [f"functions called for {words.many(report.called, 'row')}"]
    parts += [f"{report.reused:,} found computed"] if report.reused else []
    parts += [f"{report.failed:,} failed"] if report.failed else []
    return ", ".join(parts)


def _waiting(records: int) -> str:
    return f"{words.many(records, 'record')} {'waits' if records == 1 else 'wait'} for a computed column"
