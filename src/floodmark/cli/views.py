"""Finding views: those that a command names, or all of them, each after the views that it is made from."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from floodmark.cli import functions, interrupts
from floodmark.cli.call import Call
from floodmark.cli.place import mark_of
from floodmark.errors import FloodmarkError
from floodmark.ledger.errors import UnknownDataset

if TYPE_CHECKING:
    from floodmark.compute.functions.udf import Udf
    from floodmark.lake import Lake
    from floodmark.transform.views.analysed.analysis import Kind
    from floodmark.view import View


def find_view(lake: Lake, name: str) -> View | None:
    """The view of this name, if there is one."""
    from floodmark.transform.views.errors import NotAView

    try:
        return lake.view(name) if name in lake else None
    except NotAView:
        return None


def open_view(lake: Lake, name: str) -> View:
    """The view of this name; an error that names the nearest view there is, or says that the name is none."""
    from floodmark.transform.views.errors import NotAView

    there = [] if (found := find_view(lake, name)) is not None else [view.name for view in all_views(lake)[0]]
    if found is not None:
        return found
    declares = f"`floodmark view {name if name not in lake else 'NAME'} --sql …` declares"
    if (near := nearest(name, there)) is not None:
        hint = f"did you mean {near!r}?"
    else:
        hint = f"the views are {', '.join(there)}; {declares} another" if there else f"{declares} one"
    if name in lake:
        raise NotAView(f"{name!r} is a dataset, but no view", hint=hint, view=name)
    raise UnknownDataset(f"there is no view {name!r} in {lake.store.url}", hint=hint, name=name)


def all_views(lake: Lake) -> tuple[list[View], dict[str, FloodmarkError]]:
    """All views in alphabetical order, and the datasets that cannot be read, views or not, with what is wrong."""
    found: list[View] = []
    broken: dict[str, FloodmarkError] = {}
    for dataset in lake:
        try:
            found += [] if (view := find_view(lake, dataset.name)) is None else [view]
        except FloodmarkError as error:
            broken[dataset.name] = error
    return found, broken


def failed(name: str, error: FloodmarkError) -> dict[str, Any]:
    """A view that could not be looked at or refreshed, for JSON."""
    return {"view": name, "error": {"type": type(error).__name__, "message": error.message, "hint": error.hint}}


def say_failed(call: Call, name: str, error: FloodmarkError) -> None:
    """The same for people, beside the answer."""
    call.note(f"error: {name}: {error.message}" + (f"\n  {error.hint}" if error.hint else ""))


def nearest(name: str, names: Sequence[str]) -> str | None:
    """Which of the names may have been meant."""
    return next(iter(difflib.get_close_matches(name, names, 1)), None)


def in_order(views: Sequence[View]) -> list[View]:
    """The views, each once and after those of them that it is made from; else in the order given."""
    named = {view.name: view for view in views}
    seen: set[str] = set()
    ordered: list[View] = []

    def add(view: View) -> None:
        if view.name in seen:
            return
        seen.add(view.name)
        for source in view.sources:
            if source in named:
                add(named[source])
        ordered.append(view)

    for view in named.values():
        add(view)
    return ordered


def size_of_sources(lake: Lake, views: Sequence[View]) -> int:
    """How many bytes there are of what views are made from; what cannot be read counts for nothing here."""
    size = 0
    for name in {source for view in views for source in view.sources}:
        with contextlib.suppress(FloodmarkError):
            size += lake[name].snapshot().size
    return size


def find_functions(lake: Lake, view: View, places: Sequence[str]) -> list[Udf]:
    """The functions of a view's columns, imported from where each was defined, or from where `places` says.

    A place is MODULE:NAME, and is meant for columns whose function has this name.
    """
    named = {_meant(place): place for place in places}
    sought = [functions.Sought(column.name, column.function, _retake(view)) for column in view.definition.udfs]
    found = [functions.find_function(one, named.get(one.function.name), mark_of(lake)) for one in sought]
    interrupts.stop_if_pressed()
    return found


def check_places(views: Sequence[View], places: Sequence[str]) -> None:
    """Refuse a place that is meant for no function of these views: it was mistyped, or is not needed."""
    there = sorted({column.function.name for view in views for column in view.definition.udfs})
    for place in places:
        if _meant(place) not in there:
            has = f"they have {', '.join(there)}" if there else "they have none"
            raise click.UsageError(f"--udf {place} is for a function that the views do not have: {has}.")


def _meant(place: str) -> str:
    return place.rpartition(":")[2].rpartition(".")[2]


def _retake(view: View) -> Callable[[str], str]:
    def said(function: str) -> str:
        declared = f"lake.view({view.name!r}, …) with {function} in it"
        return f"to compute the view with it from now on, declare it again, in Python: {declared}"

    return said


def described(view: View) -> str:
    """How a view is refreshed, as the end of a sentence."""
    if view.way == "whole":
        return f"a refresh computes everything, because {view.why}"
    return f"a refresh goes by {refreshed_by(view.way, view.by)} of {', '.join(view.sources)}"


def refreshed_by(kind: Kind, by: Sequence[str]) -> str:
    """What refreshes of a view go by, in a few words; `by` are the columns that tell groups or join keys apart."""
    match kind:
        case "rows":
            return "records"
        case "groups":
            return f"groups ({', '.join(by)})"
        case "join":
            return f"join keys ({', '.join(by)})"
        case _:
            return "everything"
