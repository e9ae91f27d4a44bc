"""A view's definition and analysis as stored on its chain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from floodmark.chain.events import MetadataEvent, SetTransform, TransformInput, TransformSql
from floodmark.chain.ids import DatasetId
from floodmark.chain.state import ChainState
from floodmark.errors import BadView, NotAView, ViewChanged
from floodmark.ledger.snapshot import Snapshot
from floodmark.ledger.strategy import (
    VIEW_NOTE,
    Strategy,
    declare,
    read_note,
    strategy_of,
    to_derived_attachments,
    unreadable_view,
    view_note,
)
from floodmark.views.analysis import Analysis
from floodmark.views.definition import ViewDefinition

ENGINE = "spark"
_REPLACES = "replaces"


@dataclass(frozen=True)
class StoredView:
    """The definition and analysis of a view."""

    definition: ViewDefinition
    analysis: Analysis

    @property
    def strategy(self) -> Strategy:
        """The merge strategy of its dataset: the key and the lookup columns."""
        return declare("upsert", self.analysis.key, None, self.analysis.lookup)

    @property
    def transform(self) -> SetTransform:
        """The query as a standard SetTransform event, readable without Floodmark."""
        inputs = tuple(TransformInput(dataset_ref=use.dataset_id, alias=use.alias) for use in self.analysis.sources)
        return SetTransform(inputs, TransformSql(ENGINE, self.definition.version, self.definition.shown_query))

    @property
    def notes(self) -> dict[str, Any]:
        """The attachments on the chain besides the key."""
        return {VIEW_NOTE: {"definition": self.definition.to_json(), "analysis": self.analysis.to_json()}}


def read_stored_view(state: ChainState) -> StoredView | None:
    """Read the definition from a chain; None if the dataset is not a view."""
    note = view_note(state)
    if note is None:
        return None
    try:
        return StoredView(ViewDefinition.from_json(note["definition"]), Analysis.from_json(note["analysis"]))
    except (KeyError, TypeError, ValueError, AttributeError, OSError) as error:  # Arrow raises OSError for a bad schema
        raise unreadable_view(state, error) from error


def require_stored_view(name: str, state: ChainState) -> StoredView:
    """Like `read_stored_view`, but `NotAView` if the dataset is not a view."""
    view = read_stored_view(state)
    if view is None:
        raise NotAView(
            f"{name!r} is a dataset, not a view",
            hint=f"open it with lake[{name!r}]; declare a view under another name with lake.view(name, sql=…)",
            view=name,
        )
    return view


def replaced_id(state: ChainState) -> str | None:
    """The id of the dataset that this view was created to replace."""
    replaced: str | None = read_note(state, _REPLACES)
    return replaced


def replacement_notes(view: StoredView, replaced: DatasetId) -> dict[str, Any]:
    """The attachments of a view that will replace another."""
    return {**view.notes, _REPLACES: str(replaced)}


def definition_events(snapshot: Snapshot, view: StoredView) -> tuple[MetadataEvent, ...]:
    """The events that store this definition on a view's chain; empty if it is already there.

    Records are looked up by the key and lookup columns that they were written with, so neither can change once the view
    has columns.
    """
    events: list[MetadataEvent] = []
    state = snapshot.state
    check_has_sources(view)
    present = strategy_of(state)
    if snapshot.layout is not None and present != view.strategy:
        raise ViewChanged(
            f"the key of the view is {_describe_key(present)}, "
            f"but this definition has the key {_describe_key(view.strategy)}",
            hint="declare it under another name, or drop it and declare it again",
            view=str(state.dataset_id),
            what="its key changed",
        )
    if state.transform != view.transform:
        events.append(view.transform)
    lasting = {} if (replaced := replaced_id(state)) is None else {_REPLACES: replaced}
    attachments = to_derived_attachments(view.strategy, {**view.notes, **lasting}, state.attachments)
    if state.attachments != attachments:
        events.append(attachments)
    return tuple(events)


def _describe_key(strategy: Strategy) -> str:
    return ", ".join(strategy.key) + (
        "" if strategy.lookup == strategy.key else f" ({', '.join(strategy.lookup)} first)"
    )


def check_refresh_policy(view: StoredView) -> None:
    """Refuse a query that is computed whole, if its declaration asks for refreshes in parts."""
    analysis = view.analysis
    if view.definition.refresh != "incremental" or analysis.kind != "whole":
        return
    raise BadView(
        f"the query cannot be maintained in parts: {analysis.why}",
        hint='change the query, or leave out refresh="incremental": each refresh then computes everything',
        reason=analysis.why,
    )


def check_has_sources(view: StoredView) -> None:
    """Refuse a query without inputs, because nothing would ever change it."""
    if not view.analysis.sources:
        raise BadView("the query reads no dataset", hint="name a dataset after FROM")
