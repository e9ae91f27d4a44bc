"""The columns that the records of a view have: those of its query, hidden ones, and those it once had."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from floodmark.ledger.layout import Layout, check_distinct, derive, vocabulary
from floodmark.ledger.snapshot import Snapshot
from floodmark.ledger.strategy import strategy_of
from floodmark.transform.views.analysed.analysis import Analysis
from floodmark.transform.views.errors import ViewChanged


def layout_of(view: str, analysis: Analysis, snapshot: Snapshot) -> Layout:
    """The layout for what a query comes to now, on top of what older records have.

    Columns come in the order of the query, then hidden ones, then those that the query has no more: records keep them,
    without a value from now on, and nobody sees them. Every column may be null: so may the values of sources.
    """
    wanted = analysis.stored
    present = snapshot.layout
    if present is None:
        made = derive(wanted, vocabulary(snapshot.state.vocab), None, analysis.key)
        nullable = pa.schema([f.with_nullable(True) for f in made.data])
        return replace(made, data=nullable, hidden=tuple(f.name for f in analysis.hidden))
    key = strategy_of(snapshot.state).key
    if key != tuple(analysis.key):
        raise ViewChanged(
            f"the rows of view {view!r} are told apart by {_listed(key)}, and now by {_listed(analysis.key)}",
            hint=f"give it another name, or drop {view!r} and declare it again",
            view=view,
            what="its key changed",
        )
    retired = [f for f in present.data if f.name not in wanted.names]
    _check_spelling(view, wanted, retired)
    kept = [_kept(view, f, present.data.field(f.name)) if f.name in present.data.names else f for f in wanted]
    fields = [f.with_nullable(True) for f in [*kept, *retired]]
    return replace(present, data=pa.schema(fields), hidden=tuple(f.name for f in [*analysis.hidden, *retired]))


def _check_spelling(view: str, wanted: pa.Schema, retired: Sequence[pa.Field]) -> None:
    """Refuse a column whose name a column of older records has, too, but for capitals, which do not count."""
    check_distinct(wanted.names)
    spelled = {f.name.lower(): f.name for f in retired}
    for name in wanted.names:
        if (before := spelled.get(name.lower())) is not None:
            raise ViewChanged(
                f"view {view!r} has, or had, a column {before!r}, and its query now calls it {name!r}",
                hint=f"call it {before!r}, or give the view another name",
                view=view,
                column=name,
                what=f"column {before!r} is spelled {name!r} now",
            )


def _kept(view: str, wanted: pa.Field, present: pa.Field) -> pa.Field:
    """The column as older records have it, which is never of another type: values that do not fit would come later."""
    if wanted.type != present.type:
        raise ViewChanged(
            f"column {present.name!r} of view {view!r} is {present.type}, and its query now gives {wanted.type}",
            hint=f"cast it in the query, give the column another name, or drop {view!r} and declare it again",
            view=view,
            column=present.name,
            what=f"column {present.name!r} has another type",
        )
    return present


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(names)


def made_as(definition_version: str, analysis: Analysis) -> str:
    """The version of what a view holds: its definition, and all of what that came to that shows in its records."""
    said = [
        [[f.name, str(f.type)] for f in analysis.columns],
        [[f.name, str(f.type)] for f in analysis.hidden],
        list(analysis.key),
        list(analysis.t),
        analysis.identity,
        sorted([use.dataset_id, [list(pair) for pair in use.keys]] for use in analysis.sources),
    ]
    return f"{definition_version}-{hashlib.sha3_256(json.dumps(said).encode()).hexdigest()[:8]}"
