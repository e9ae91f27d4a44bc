"""`floodmark new`: a project to begin with."""

from __future__ import annotations

from pathlib import Path

import click

from floodmark.cli import document
from floodmark.cli.call import Call, verb
from floodmark.cli.errors import FolderTaken
from floodmark.cli.project_files import FILES


@verb("new")
@click.argument("name", metavar="FOLDER")
def new(call: Call, name: str) -> None:
    """Make a project: a pipeline, some data, and a lake.

    \b
    floodmark new my-project
    cd my-project
    floodmark run

    The folder must not be there yet, or be empty.
    """
    from floodmark.cli.place import mark_of
    from floodmark.lake import Lake

    folder = Path(name).expanduser()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FolderTaken(
            f"{folder} is there already",
            hint="name a new folder, or use `floodmark init` to make a lake in one that you have",
            path=str(folder),
        )
    written = []
    for path, text in FILES.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text.replace("{name}", folder.resolve().name), "utf-8")
        written.append(path)
    lake = Lake(folder / "lake")
    if (mark := mark_of(lake)) is not None:
        mark.mkdir(parents=True, exist_ok=True)
    if call.as_json:
        document.emit(folder=str(folder), files=written, lake=lake.store.url)
        return
    click.echo(f"made {folder} with {', '.join(written)} and an empty lake")
    call.note(f"next: cd {name}; floodmark run")
