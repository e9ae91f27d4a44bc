"""Which lake a command works on, and who said so."""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from floodmark.cli.errors import BadToml, NoLake
from floodmark.pipeline.project import unknown_entry

if TYPE_CHECKING:
    from floodmark.lake import Lake
    from floodmark.ledger.runtime import Runtime

VARIABLE = "FLOODMARK_LAKE"
TOML = "floodmark.toml"
DEFAULT = "lake"

# The folder of a lake that is there from `init` on, whether or not there are datasets.
_MARK = "names"


@dataclass(frozen=True)
class Place:
    """The address of a lake, and how it came to be this one, as the end of a sentence."""

    url: str
    origin: str


def find_place(option: str | None, environ: Mapping[str, str], folder: Path) -> Place:
    """--lake, else FLOODMARK_LAKE, else the nearest floodmark.toml that names a lake, else ./lake."""
    if option:
        return Place(option, "named by --lake")
    if named := environ.get(VARIABLE):
        return Place(named, f"named by {VARIABLE}")
    for parent in (folder, *folder.parents):
        path = parent / TOML
        if path.is_file() and (lake := lake_of(path)) is not None:
            return Place(lake, f"named by {path}")
    return Place(DEFAULT, "by default")


def lake_of(path: Path) -> str | None:
    """What a floodmark.toml says of the lake, relative to where the file is; None when it says nothing."""
    try:
        content = tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadToml(
            f"{path} cannot be read: {error}", hint="mend it, or name the lake with --lake", path=str(path)
        ) from error
    if (unknown := unknown_entry(content)) is not None:
        said, hint = unknown
        raise BadToml(f"{path}: {said}", hint=hint, path=str(path))
    if "lake" not in content:
        return None
    lake = content["lake"]
    if not isinstance(lake, str) or not lake:
        raise BadToml(
            f"`lake` in {path} is {lake!r}, not the address of a lake",
            hint='write a folder or a bucket in quotes: lake = "lake"',
            path=str(path),
        )
    return lake if "://" in lake else str(path.parent / Path(lake).expanduser())


def mark_of(lake: Lake) -> Path | None:
    """The folder that says that this is a lake; None for buckets, which have no folders to make."""
    return lake.store.local_path(_MARK)


def open_lake(place: Place, runtime: Runtime) -> Lake:
    """The lake at a place; a folder that is none is refused, so that a mistyped path makes nothing."""
    from floodmark.lake import Lake

    lake = Lake(place.url, runtime=runtime)
    mark = mark_of(lake)
    if mark is None or mark.is_dir():
        return lake
    what = "is no lake" if mark.parent.exists() else "does not exist"
    raise NoLake(
        f"{mark.parent} {what} (it is the lake {place.origin})",
        hint=f"make it one with `floodmark init --lake {shlex.quote(place.url)}`, or name another with --lake",
        lake=str(mark.parent),
    )
