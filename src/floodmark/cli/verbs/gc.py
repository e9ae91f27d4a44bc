"""`floodmark gc`: remove what nobody needs any more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from floodmark.cli import document, words
from floodmark.cli.call import Call, verb
from floodmark.cli.exits import FAILED
from floodmark.cli.tables import visible

if TYPE_CHECKING:
    from floodmark.garbage.collect import Found


@verb("gc")
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option("--dry-run", is_flag=True, help="Say what would go; remove nothing.")
def gc(call: Call, names: tuple[str, ...], dry_run: bool) -> None:
    """Remove what nobody needs any more: of the datasets named, or of all of the lake.

    \b
    floodmark gc --dry-run
    floodmark gc
    floodmark gc images --json

    No record goes, and nothing reads otherwise afterwards. What goes: checkpoints and files of computed columns, views
    and timelines that are not in use; folded files, files of key indexes and copies of rows that others have replaced;
    slices and blocks of writes that were killed or lost a race, and what such runs left beside outputs; unfinished
    files; datasets that were left without a name and without a record, or were to replace a view and never did.

    Whatever is younger than a week stays (a day for unfinished files of a folder, a month for results of stopped
    runs), since somebody may be using it. A dataset that
    has records and no name goes only if its id is given: `doctor` shows it.
    """
    from floodmark.garbage import collect, unnamed
    from floodmark.garbage.collect import Failed, Found

    lake = call.lake()
    found: list[Found] = []
    failed: list[Failed] = []
    for one in (collect.find if dry_run else collect.collect)(lake, names):
        if isinstance(one, Found):
            found.append(one)
            if not call.as_json:
                _print(one, "would remove" if dry_run else "removed")
        else:
            failed.append(one)
            call.note(f"error: {one.dataset or lake.store.url}: {visible(one.error)}\n  {visible(one.hint)}")
    for name in names:
        if unnamed.is_id(name) and all(one.dataset != name for one in found):
            call.note(f"{name} stays: it has a name, is younger than a week, or is not there")
    size = sum(one.bytes for one in found)
    if call.as_json:
        document.emit(
            lake=lake.store.url,
            dry_run=dry_run,
            size=size,
            collected=[_fields(one) for one in found],
            failed=[vars(one) for one in failed],
        )
    elif not found:
        call.note("nothing to remove")
    else:
        count = words.many(sum(len(one.objects) for one in found), "object")
        call.note(f"{'would free' if dry_run else 'freed'} {words.size(size)} in {count}")
    if failed:
        click.get_current_context().exit(FAILED)


def _print(one: Found, did: str) -> None:
    where = f"{one.dataset}: " if one.dataset else ""
    objects = words.many(len(one.objects), "object")
    click.echo(visible(f"{where}{did} {objects} of {one.kind} ({words.size(one.bytes)})"))


def _fields(one: Found) -> dict[str, Any]:
    return {
        "dataset": one.dataset,
        "kind": one.kind,
        "objects": len(one.objects),
        "size": one.bytes,
        "keys": [info.key for info in one.objects],
    }
