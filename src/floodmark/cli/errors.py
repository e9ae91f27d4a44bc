"""What the command line itself refuses."""

from __future__ import annotations

import click

from floodmark.errors import FloodmarkError


class CommandError(FloodmarkError):
    """A command that cannot be carried out as given."""


class NoLake(CommandError):
    """The place given holds no lake."""

    lake: str


class FolderTaken(CommandError):
    """A new project cannot be made where something is already."""

    path: str


class BadToml(CommandError):
    """A floodmark.toml that cannot be used."""

    path: str


class OtherEventTime(CommandError):
    """The dataset has another event time than the one given."""

    name: str


class OtherStrategy(CommandError):
    """The dataset has another key or merge strategy than the one given."""

    name: str


class OtherTimeline(CommandError):
    """The dataset has no timeline, or another one than the one given."""

    name: str


class NoKey(CommandError):
    """A key was given for a dataset that has none, or not this one."""

    name: str


class BadKeyValue(CommandError):
    """A value that does not fit the type of its key column."""

    column: str


class NoFunction(CommandError):
    """The function of a column cannot be imported, or is not where it was."""

    column: str
    module: str


class OtherVersion(CommandError):
    """The function of a column is not the one that the column was given."""

    column: str
    version: str


class OtherStep(CommandError):
    """A step of a kind that a verb, or an option of it, means nothing to."""

    step: str


class NotConfirmed(click.ClickException):
    """Something that is done only when it is asked for twice."""

    exit_code = 2


class Stopped(click.Abort):
    """Ctrl-C during work that can be gone on with; says how."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class OutputClosed(Exception):
    """Whoever read our output has stopped; there is nobody left to tell."""
