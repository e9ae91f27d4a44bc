"""Columns as options name them: one by one, or several with commas between."""

from __future__ import annotations

import click


def named_columns(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    """What an option that may be given again comes to."""
    columns = tuple(column for value in values for column in value.split(","))
    if not all(columns):
        raise click.BadParameter("a column has no name.")
    return columns
