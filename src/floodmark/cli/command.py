"""What all commands share: the options --lake and --json, and which lake a call works on."""

from __future__ import annotations

import functools
import os
import shlex
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from floodmark.cli import exit_codes
from floodmark.cli.exit_codes import BadToml, NoLake
from floodmark.cli.output import escape_lines
from floodmark.pipeline.project import find_unknown_entry

if TYPE_CHECKING:
    from floodmark.engine.session import Runtime
    from floodmark.engine.spark_launch import Profile
    from floodmark.lake import Lake
    from floodmark.pipeline.project import ProjectSettings


@dataclass(frozen=True)
class Invocation:
    """One call of a command: the lake that was named, and the format of the answer."""

    lake_option: str | None
    as_json: bool

    def place(self) -> LakeAddress:
        return find_lake_address(self.lake_option, os.environ, Path.cwd())

    def lake(self) -> Lake:
        """Open the lake for work that starts Spark only if the data is large."""
        from floodmark.engine.spark_launch import Profile

        return self._lake(Profile.FULL)

    def quick_lake(self) -> Lake:
        """Open the lake for small work that needs Spark, with settings that make Spark start faster."""
        from floodmark.engine.spark_launch import Profile

        return self._lake(Profile.SHORT)

    def _lake(self, profile: Profile) -> Lake:
        lake = open_lake(self.place(), self.runtime(profile))
        exit_codes.raise_if_interrupted()
        return lake

    def runtime(self, profile: Profile) -> Runtime:
        """A Spark session that starts on first use, and progress on stderr unless --json is given."""
        from floodmark.engine.progress import SilentProgress, progress_for
        from floodmark.engine.session import Runtime, Session

        project = self._project()
        session = Session(settings=project.spark, profile=profile)
        given = {name: getattr(project.defaults, name) for name in ("checkpoint_seconds", "fold_at")}
        options = {name: value for name, value in given.items() if value is not None}
        if self.as_json:
            return Runtime(session=session, progress=SilentProgress, **options)
        return Runtime(session=session, progress=lambda: progress_for(sys.stderr), **options)

    def _project(self) -> ProjectSettings:
        """The settings of floodmark.toml. An unreadable file is an error only if the lake is not named elsewhere."""
        from floodmark.errors import UnreadableToml
        from floodmark.pipeline.project import ProjectSettings, load_settings

        try:
            return load_settings(Path.cwd())
        except UnreadableToml:
            if not self.lake_option and not os.environ.get(LAKE_VARIABLE):
                raise
            return ProjectSettings()

    def note(self, text: str) -> None:
        """Print a note to stderr; with --json print nothing."""
        if not self.as_json:
            click.echo(escape_lines(text), err=True)

    @contextmanager
    def waiting(self, text: str) -> Iterator[None]:
        """Show what the command waits for: a spinner on a terminal, one line elsewhere."""
        if self.as_json or not sys.stderr.isatty():
            self.note(f"{text} …")
            yield
            return
        from rich.console import Console

        with Console(file=sys.stderr).status(f"{text} …"):
            yield


def verb(name: str) -> Callable[[Callable[..., None]], click.Command]:
    """Make a click command from a function whose first argument is the `Invocation`."""

    def decorate(function: Callable[..., None]) -> click.Command:
        @functools.wraps(function)
        def run(lake: str | None, as_json: bool, **arguments: Any) -> None:
            function(Invocation(lake, as_json), **arguments)

        command = click.command(name)(run)
        command.params += [
            click.Option(
                ["--lake"],
                metavar="PATH",
                help="Folder or bucket of the lake. Default: FLOODMARK_LAKE, floodmark.toml, ./lake.",
            ),
            click.Option(["--json", "as_json"], is_flag=True, help="Print one JSON document."),
        ]
        return command

    return decorate


LAKE_VARIABLE = "FLOODMARK_LAKE"
TOML = "floodmark.toml"
DEFAULT = "lake"

# `init` creates this folder of a lake, so it exists even if there are no datasets.
_MARK = "names"


@dataclass(frozen=True)
class LakeAddress:
    """The address of a lake, and where it was configured, as the end of a sentence."""

    url: str
    origin: str


def find_lake_address(option: str | None, environ: Mapping[str, str], folder: Path) -> LakeAddress:
    """The lake of --lake, else of FLOODMARK_LAKE, else of the nearest floodmark.toml with a `lake`, else ./lake."""
    if option:
        return LakeAddress(option, "named by --lake")
    if named := environ.get(LAKE_VARIABLE):
        return LakeAddress(named, f"named by {LAKE_VARIABLE}")
    for parent in (folder, *folder.parents):
        path = parent / TOML
        if path.is_file() and (lake := lake_in_toml(path)) is not None:
            return LakeAddress(lake, f"named by {path}")
    return LakeAddress(DEFAULT, "by default")


def lake_in_toml(path: Path) -> str | None:
    """The lake that a floodmark.toml names, relative to the folder of the file; None if it names no lake."""
    try:
        content = tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadToml(
            f"{path} cannot be read: {error}", hint="correct the file, or name the lake with --lake", path=str(path)
        ) from error
    if (unknown := find_unknown_entry(content)) is not None:
        said, hint = unknown
        raise BadToml(f"{path}: {said}", hint=hint, path=str(path))
    if "lake" not in content:
        return None
    lake = content["lake"]
    if not isinstance(lake, str) or not lake:
        raise BadToml(
            f"`lake` in {path} must be the address of a lake, not {lake!r}",
            hint='write a folder or a bucket in quotes: lake = "lake"',
            path=str(path),
        )
    return lake if "://" in lake else str(path.parent / Path(lake).expanduser())


def marker_folder(lake: Lake) -> Path | None:
    """The folder that marks a lake; None for a bucket, which needs no folder."""
    return lake.store.local_path(_MARK)


def open_lake(place: LakeAddress, runtime: Runtime) -> Lake:
    """Open the lake at an address. A folder that is not a lake is refused, so that a mistyped path creates nothing."""
    from floodmark.lake import Lake

    lake = Lake(place.url, runtime=runtime)
    mark = marker_folder(lake)
    if mark is None or mark.is_dir():
        return lake
    what = "is not a lake" if mark.parent.exists() else "does not exist"
    raise NoLake(
        f"{mark.parent} {what} (the lake {place.origin})",
        hint=f"create it with `floodmark init --lake {shlex.quote(place.url)}`, or name another lake with --lake",
        lake=str(mark.parent),
    )
