"""Declaring a view: its query is analysed, and its definition committed; no data is read or written.

The same definition over the same columns again is no work at all: no block, and no Spark.
"""

from __future__ import annotations

import difflib
from dataclasses import replace

from floodmark.chain.events import DatasetKind
from floodmark.chain.state import input_ids
from floodmark.ledger import names
from floodmark.ledger.create import create_view
from floodmark.ledger.errors import DatasetExists
from floodmark.ledger.layout import vocabulary
from floodmark.transform.errors import OutputTaken
from floodmark.transform.lakes import LakeLike
from floodmark.transform.views.analysed.analyse import analyse_in, named_in_errors
from floodmark.transform.views.analysed.analysis import Analysis, schemas_digest
from floodmark.transform.views.defined.definition import Definition
from floodmark.transform.views.defined.replacement import Found, find, redefine
from floodmark.transform.views.defined.stored import (
    Stored,
    check_has_sources,
    definition_events,
    is_view,
    require_stored,
    stored,
)
from floodmark.transform.views.errors import BadView, SourceGone
from floodmark.transform.views.reading.sources import datasets_of, schema_of

__all__ = ["Stored", "declare", "definition_events", "is_view", "require_stored", "stored"]


def declare(lake: LakeLike, name: str, definition: Definition) -> None:
    """Make a view, or give it another definition; what it holds stays as it is until it is refreshed."""
    names.check_name(name)
    known = _known(lake, name)
    if known is not None and known.definition == definition and _still_holds(lake, name, known):
        return
    before = None if known is None else _renamed(lake, known.analysis)
    with named_in_errors(name):
        _check_source(lake, name, definition)
        settings = None if known is None or known.definition != definition else known.analysis.settings
        wanted = Stored(definition, analyse_in(lake, definition, view=name, known=before, settings=settings))
        check_has_sources(wanted)
    if known is None:
        try:
            create_view(
                lake.store,
                lake.runtime,
                name,
                strategy=wanted.strategy,
                transform=wanted.transform,
                notes=wanted.notes,
            )
            return
        except DatasetExists:  # somebody else was quicker; what is theirs is looked at now
            _known(lake, name)
    _check_circle(lake, name, wanted.analysis)
    redefine(lake, name, wanted)


def _known(lake: LakeLike, name: str) -> Stored | None:
    """What is declared under a name; None if there is nothing. A dataset that is no view is refused."""
    if name not in lake:
        return None
    there = find(lake, name)
    found = stored(there.worked.state)
    if found is None or there.entry.rows_of is not None:
        raise OutputTaken(
            f"{name!r} cannot become a view: it is {_what(there)}",
            hint=f"give the view another name, or drop {name!r} first",
            step=name,
            output=name,
        )
    return found


def _what(there: Found) -> str:
    if there.entry.rows_of is not None:
        return f"the rows that view {there.entry.rows_of!r} had before it was made anew"
    is_derived = there.shown.state.dataset_kind is DatasetKind.DERIVATIVE
    return "the output of a step" if is_derived else "a dataset that data is written to"


def _still_holds(lake: LakeLike, name: str, known: Stored) -> bool:
    """Whether the query still means what it meant: its names stand for the same datasets, with the same columns."""
    try:
        found = datasets_of(lake, name, known.analysis)
    except SourceGone:
        return False
    for alias, dataset in found.items():
        if alias in lake and lake[alias].id != dataset.id:  # one was renamed, and another has its name now
            return False
    return schemas_digest(map(schema_of, found.values())) == known.analysis.schemas


def _renamed(lake: LakeLike, analysis: Analysis) -> Analysis:
    """What is known of sources whose names are nobody's now; a name that is somebody's means that dataset."""
    return replace(analysis, sources=tuple(use for use in analysis.sources if use.alias not in lake))


def _check_source(lake: LakeLike, name: str, definition: Definition) -> None:
    """Refuse a source that is not there and inputs of functions that it lacks, before Spark is started."""
    if definition.source is None:
        return
    source = lake[definition.source]
    columns = schema_of(source).schema.names
    known = {*columns, *vocabulary(source.snapshot().state.vocab).reserved}
    for udf in definition.udfs if columns else ():
        missing = [column for column in udf.inputs if column not in known]
        if missing:
            near = difflib.get_close_matches(missing[0], columns, 1)
            has = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(columns)}"
            raise BadView(
                f"view {name!r}: column {udf.name!r} is computed from {missing[0]!r}, which {source.name!r} lacks",
                hint=f"{has}; (udf, [columns]) says which columns a function takes",
                view=name,
                column=missing[0],
            )


def _check_circle(lake: LakeLike, name: str, analysis: Analysis) -> None:
    """Refuse a view that would be made from itself, through whichever views and steps."""
    entries = list(names.entries(lake.store))
    own = str(lake[name].id)
    called = {str(entry.id): entry.name for entry in entries}
    replaced_by = {str(old): str(entry.id) for entry in entries for old in entry.previous}
    waiting = [(use.dataset_id, use.alias) for use in analysis.sources]
    seen: set[str] = set()
    while waiting:
        dataset_id, through = waiting.pop()
        if dataset_id == own:
            said = "itself" if through == name else f"itself, through {through!r}"
            raise BadView(f"view {name!r} would be made from {said}", hint="name another dataset", view=name)
        if dataset_id in seen or dataset_id not in called:
            continue
        seen.add(dataset_id)
        state = find(lake, called[dataset_id]).worked.state
        if state.transform is not None:
            inputs = [str(other) for other in input_ids(state.transform) if other is not None]
            inputs += [replaced_by[other] for other in inputs if other in replaced_by]
            waiting += [(other, called[dataset_id]) for other in inputs]
