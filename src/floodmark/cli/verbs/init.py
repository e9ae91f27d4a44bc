"""`floodmark init`: make a lake."""

from __future__ import annotations

import json
from pathlib import Path

import click

from floodmark.cli import document
from floodmark.cli.call import Call, verb
from floodmark.cli.errors import BadToml, NoLake
from floodmark.cli.place import TOML, lake_of, mark_of


@verb("init")
@click.option("--toml", is_flag=True, help=f"Also write a {TOML} that names the lake into this folder.")
def init(call: Call, toml: bool) -> None:
    """Make an empty lake; one that is there already stays as it is.

    \b
    floodmark init
    floodmark init --lake /data/lake --toml
    """
    from floodmark.lake import Lake

    place = call.place()
    lake = Lake(place.url)
    mark = mark_of(lake)
    path = Path.cwd() / TOML
    if toml:
        _check_toml(path, lake.store.url)
    created = mark is not None and not mark.is_dir()
    if mark is None:
        # A bucket has no folders to make, but it has to be there.
        next(iter(lake.store.list("names")), None)
    else:
        _make(mark)
    if toml and not path.exists():
        path.write_text(f"lake = {json.dumps(_relative(lake.store.url), ensure_ascii=False)}\n", "utf-8")
    if call.as_json:
        document.emit(lake=lake.store.url, created=created, toml=str(path) if toml else None)
        return
    click.echo(f"made an empty lake at {lake.store.url}" if created else f"{lake.store.url} is a lake already")
    if toml:
        click.echo(f"{path} names it")


def _make(mark: Path) -> None:
    try:
        mark.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise NoLake(
            f"{mark.parent} cannot be a lake: {error.filename} is a file",
            hint="name a folder, or one that is yet to be made, with --lake",
            lake=str(mark.parent),
        ) from error


def _check_toml(path: Path, url: str) -> None:
    """Refuse before anything is made: a file that says something else is the user's."""
    if not path.exists():
        return
    said = lake_of(path)
    if said is None or (said != url and Path(said).resolve() != Path(url).resolve()):
        what = "names no lake" if said is None else f"names the lake {said}"
        raise BadToml(
            f"{path} is there already and {what}",
            hint=f"write into it yourself: lake = {json.dumps(_relative(url), ensure_ascii=False)}",
            path=str(path),
        )


def _relative(url: str) -> str:
    """A folder below this one by its relative path, so that both can move together."""
    if "://" in url:
        return url
    folder = Path(url).resolve()
    return str(folder.relative_to(Path.cwd())) if folder.is_relative_to(Path.cwd()) else str(folder)
