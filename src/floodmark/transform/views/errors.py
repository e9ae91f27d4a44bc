"""What can go wrong with views."""

from __future__ import annotations

from floodmark.transform.errors import TransformError


class ViewError(TransformError):
    """A view could not be declared or refreshed."""

    view: str


class BadView(ViewError):
    """A definition that cannot become a view."""


class ViewChanged(ViewError):
    """A definition that an existing view cannot take on: another key, or a column of another type.

    Such a view is made anew, unless it has computed columns, which that would lose.
    """


class NotAView(ViewError):
    """A dataset that is no view."""


class SourceGone(ViewError):
    """A dataset that a view is made from is not there any more."""

    source: str


class OtherSettings(ViewError):
    """A session in which the query of a view would mean something else, and whose settings cannot be changed."""

    setting: str
    value: str


class QueryFailed(ViewError):
    """Spark could not answer the query of a view over the data that there is."""


class NeverRefreshed(ViewError):
    """A view that has no rows and no columns yet, as nobody has refreshed it."""


def never_refreshed(view: str) -> NeverRefreshed:
    return NeverRefreshed(
        f"view {view!r} was never refreshed, so there is nothing to read yet",
        hint=f"refresh it first: lake.view({view!r}).refresh(), or `floodmark refresh {view}`",
        view=view,
    )
