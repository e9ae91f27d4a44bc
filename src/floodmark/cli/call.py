"""What all verbs share: the lake option, JSON output, and what a verb gets to work with."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from floodmark.cli import interrupts
from floodmark.cli.place import VARIABLE, Place, find_place, open_lake

if TYPE_CHECKING:
    from floodmark.engine import Profile
    from floodmark.lake import Lake
    from floodmark.ledger.runtime import Runtime
    from floodmark.pipeline.project import Project


@dataclass(frozen=True)
class Call:
    """One call of a verb: which lake was named, and in which form to answer."""

    lake_option: str | None
    as_json: bool

    def place(self) -> Place:
        return find_place(self.lake_option, os.environ, Path.cwd())

    def lake(self) -> Lake:
        """The lake, ready for work that needs Spark only if there is a lot of it."""
        from floodmark.engine import Profile

        return self._lake(Profile.FULL)

    def quick_lake(self) -> Lake:
        """The lake, ready for work that needs Spark though there is little of it: one that starts faster."""
        from floodmark.engine import Profile

        return self._lake(Profile.SHORT)

    def _lake(self, profile: Profile) -> Lake:
        lake = open_lake(self.place(), self.runtime(profile))
        interrupts.stop_if_pressed()
        return lake

    def runtime(self, profile: Profile) -> Runtime:
        """Spark when it is needed, and progress where it is wanted."""
        from floodmark.engine import Session, SilentProgress, progress_for
        from floodmark.ledger.runtime import Runtime

        project = self._project()
        session = Session(settings=project.spark, profile=profile)
        given = {name: getattr(project.defaults, name) for name in ("checkpoint_seconds", "fold_at")}
        options = {name: value for name, value in given.items() if value is not None}
        if self.as_json:
            return Runtime(session=session, progress=SilentProgress, **options)
        return Runtime(session=session, progress=lambda: progress_for(sys.stderr), **options)

    def _project(self) -> Project:
        """The settings of the project; those of a file that is no TOML do not matter where the lake is named."""
        from floodmark.pipeline.errors import UnreadableToml
        from floodmark.pipeline.project import Project, project_of

        try:
            return project_of(Path.cwd())
        except UnreadableToml:
            if not self.lake_option and not os.environ.get(VARIABLE):
                raise
            return Project()

    def note(self, text: str) -> None:
        """A word to the user, beside the answer: on stderr, and none with --json."""
        if not self.as_json:
            click.echo(text, err=True)

    @contextmanager
    def waiting(self, text: str) -> Iterator[None]:
        """Says what is being waited for: a spinner on a terminal, one line elsewhere."""
        if self.as_json or not sys.stderr.isatty():
            self.note(f"{text} …")
            yield
            return
        from rich.console import Console

        with Console(file=sys.stderr).status(f"{text} …"):
            yield


def verb(name: str) -> Callable[[Callable[..., None]], click.Command]:
    """Make a verb of a function whose first argument is the Call."""

    def decorate(function: Callable[..., None]) -> click.Command:
        @functools.wraps(function)
        def run(lake: str | None, as_json: bool, **arguments: Any) -> None:
            function(Call(lake, as_json), **arguments)

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
