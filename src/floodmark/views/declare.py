"""Declaration of a view: analyse its query and commit its definition. No rows are read or written.

Declaring the same definition over the same columns again does nothing: no block, and no Spark.
"""

from __future__ import annotations

from dataclasses import replace

from floodmark.chain.events import DatasetKind
from floodmark.chain.state import parse_input_ids
from floodmark.derive.inputs import LakeLike
from floodmark.errors import BadView, DatasetExists, OutputTaken, SourceGone, close_matches
from floodmark.ledger import names
from floodmark.ledger.create import create_view
from floodmark.ledger.schema import vocabulary
from floodmark.views.analysis import Analysis, schemas_digest
from floodmark.views.analyzer import analyse_for_lake, named_in_errors
from floodmark.views.definition import ViewDefinition
from floodmark.views.replacement import ViewDatasets, find_view, redefine
from floodmark.views.sources import datasets_of, input_schema_of
from floodmark.views.stored_definition import StoredView, check_has_sources, check_refresh_policy, read_stored_view


def declare(lake: LakeLike, name: str, definition: ViewDefinition) -> None:
    """Create a view, or change its definition. Its rows do not change until it is refreshed."""
    names.check_name(name)
    known = _find_declared(lake, name)
    if known is not None and known.definition == definition and _is_unchanged(lake, name, known):
        return
    before = None if known is None else _with_free_names(lake, known.analysis)
    with named_in_errors(name):
        _check_source(lake, name, definition)
        settings = None if known is None or known.definition != definition else known.analysis.settings
        stored_view = StoredView(
            definition, analyse_for_lake(lake, definition, view=name, known=before, settings=settings)
        )
        check_has_sources(stored_view)
        check_refresh_policy(stored_view)
    if known is None:
        try:
            create_view(
                lake.store,
                lake.runtime,
                name,
                strategy=stored_view.strategy,
                transform=stored_view.transform,
                notes=stored_view.notes,
            )
            return
        except DatasetExists:  # another process created it first: check what it created
            _find_declared(lake, name)
    _check_circle(lake, name, stored_view.analysis)
    redefine(lake, name, stored_view)


def _find_declared(lake: LakeLike, name: str) -> StoredView | None:
    """The declared view with this name; None if the name is free. Other datasets are refused."""
    if name not in lake:
        return None
    datasets = find_view(lake, name)
    view = read_stored_view(datasets.refreshed.state)
    if view is None or datasets.entry.rows_of is not None:
        raise OutputTaken(
            f"{name!r} cannot become a view: it is {_describe(datasets)}",
            hint=f"give the view another name, or drop {name!r} first",
            step=name,
            output=name,
        )
    return view


def _describe(datasets: ViewDatasets) -> str:
    if datasets.entry.rows_of is not None:
        return f"the rows that view {datasets.entry.rows_of!r} had before it was replaced"
    is_derived = datasets.shown.state.dataset_kind is DatasetKind.DERIVATIVE
    return "the output of a step" if is_derived else "a dataset that data is written to"


def _is_unchanged(lake: LakeLike, name: str, known: StoredView) -> bool:
    """Whether the query's names still stand for the same datasets, with the same columns."""
    try:
        datasets = datasets_of(lake, name, known.analysis)
    except SourceGone:
        return False
    for alias, dataset in datasets.items():
        if alias in lake and lake[alias].id != dataset.id:  # it was renamed, and another dataset has the name now
            return False
    return schemas_digest(map(input_schema_of, datasets.values())) == known.analysis.schemas


def _with_free_names(lake: LakeLike, analysis: Analysis) -> Analysis:
    """The analysis with only the inputs whose names are free now; a used name stands for its current dataset."""
    return replace(analysis, sources=tuple(use for use in analysis.sources if use.alias not in lake))


def _check_source(lake: LakeLike, name: str, definition: ViewDefinition) -> None:
    """Refuse a missing input, or missing input columns of functions, before Spark is started."""
    if definition.source is None:
        return
    source = lake[definition.source]
    columns = input_schema_of(source).schema.names
    known = {*columns, *vocabulary(source.snapshot().state.vocab).reserved}
    for udf in definition.udfs if columns else ():
        missing = [column for column in udf.inputs if column not in known]
        if missing:
            near = close_matches(missing[0], columns)
            has = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(columns)}"
            raise BadView(
                f"view {name!r}: column {udf.name!r} is computed from {missing[0]!r}, which {source.name!r} lacks",
                hint=f"{has}; write (udf, [columns]) to choose the columns that a function takes",
                view=name,
                column=missing[0],
            )


def _check_circle(lake: LakeLike, name: str, analysis: Analysis) -> None:
    """Refuse a view that would read itself, directly or through other views and steps."""
    entries = list(names.entries(lake.store))
    own = str(lake[name].id)
    called = {str(entry.id): entry.name for entry in entries}
    replaced_by = {str(old): str(entry.id) for entry in entries for old in entry.previous}
    waiting = [(use.dataset_id, use.alias) for use in analysis.sources]
    seen: set[str] = set()
    while waiting:
        dataset_id, through = waiting.pop()
        if dataset_id == own:
            path = "itself" if through == name else f"itself, through {through!r}"
            raise BadView(f"view {name!r} would read {path}", hint="name another dataset", view=name)
        if dataset_id in seen or dataset_id not in called:
            continue
        seen.add(dataset_id)
        state = find_view(lake, called[dataset_id]).refreshed.state
        if state.transform is not None:
            inputs = [str(other) for other in parse_input_ids(state.transform) if other is not None]
            inputs += [replaced_by[other] for other in inputs if other in replaced_by]
            waiting += [(other, called[dataset_id]) for other in inputs]
