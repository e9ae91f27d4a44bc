"""What the chain of a view says of it: its definition, and what that came to when it was analysed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from floodmark.chain.events import MetadataEvent, SetTransform, TransformInput, TransformSql
from floodmark.chain.ids import DatasetId
from floodmark.chain.state import ChainState
from floodmark.ledger.snapshot import Snapshot
from floodmark.ledger.strategy import Strategy, declare, noted, strategy_of, to_derived_attachments
from floodmark.transform.errors import BadMeta
from floodmark.transform.views.analysed.analysis import Analysis
from floodmark.transform.views.defined.definition import Definition
from floodmark.transform.views.errors import BadView, NotAView, ViewChanged

ENGINE = "spark"
VIEW_NOTE = "view"
_REPLACES = "replaces"


@dataclass(frozen=True)
class Stored:
    """A view as its chain has it."""

    definition: Definition
    analysis: Analysis

    @property
    def strategy(self) -> Strategy:
        """How its rows are told apart, and found together."""
        return declare("upsert", self.analysis.key, None, self.analysis.lookup)

    @property
    def transform(self) -> SetTransform:
        """What anybody can read of it on the chain, without knowing Floodmark."""
        inputs = tuple(TransformInput(dataset_ref=use.dataset_id, alias=use.alias) for use in self.analysis.sources)
        return SetTransform(inputs, TransformSql(ENGINE, self.definition.version, self.definition.shown_query))

    @property
    def notes(self) -> dict[str, Any]:
        """What is attached to the chain besides the key."""
        return {VIEW_NOTE: {"definition": self.definition.to_json(), "analysis": self.analysis.to_json()}}


def is_view(state: ChainState) -> bool:
    """Whether the dataset with this chain is a view."""
    return noted(state, VIEW_NOTE) is not None


def stored(state: ChainState) -> Stored | None:
    """What the chain of a view says; None for a dataset that is none."""
    note = noted(state, VIEW_NOTE)
    if note is None:
        return None
    try:
        return Stored(Definition.from_json(note["definition"]), Analysis.from_json(note["analysis"]))
    except (KeyError, TypeError, ValueError, AttributeError, OSError) as error:  # OSError: Arrow's, of a schema
        raise BadMeta(
            f"the definition of the view on chain {state.dataset_id} cannot be read: {error!r}",
            hint="it was written by another release, or by hand: upgrade, or drop the view and declare it again",
            file=str(state.head_hash),
            dataset=str(state.dataset_id),
        ) from error


def require_stored(name: str, state: ChainState) -> Stored:
    """The same for what has to be a view."""
    found = stored(state)
    if found is None:
        raise NotAView(
            f"{name!r} is a dataset, but no view",
            hint=f"open it with lake[{name!r}]; a view is declared with lake.view(name, sql=…) under a name of its own",
            view=name,
        )
    return found


def replaces(state: ChainState) -> str | None:
    """The id of the dataset that this view was created to replace."""
    found: str | None = noted(state, _REPLACES)
    return found


def notes_of_replacement(wanted: Stored, replaced: DatasetId) -> dict[str, Any]:
    """What is attached to a view that is to replace another."""
    return {**wanted.notes, _REPLACES: str(replaced)}


def definition_events(snapshot: Snapshot, wanted: Stored) -> tuple[MetadataEvent, ...]:
    """What makes the chain of a view say this; nothing when it says so already.

    Records are found by the key and the lookup columns that they were written with, so neither can change any more
    once there are columns.
    """
    events: list[MetadataEvent] = []
    state = snapshot.state
    check_has_sources(wanted)
    present = strategy_of(state)
    if snapshot.layout is not None and present != wanted.strategy:
        raise ViewChanged(
            f"the rows of the view go by {_by(present)}, and with this definition by {_by(wanted.strategy)}",
            hint="declare it under another name, or drop it and declare it again",
            view=str(state.dataset_id),
            what="its key changed",
        )
    if state.transform != wanted.transform:
        events.append(wanted.transform)
    lasting = {} if (replaced := replaces(state)) is None else {_REPLACES: replaced}
    attachments = to_derived_attachments(wanted.strategy, {**wanted.notes, **lasting}, state.attachments)
    if state.attachments != attachments:
        events.append(attachments)
    return tuple(events)


def _by(strategy: Strategy) -> str:
    return ", ".join(strategy.key) + (
        "" if strategy.lookup == strategy.key else f" ({', '.join(strategy.lookup)} first)"
    )


def check_has_sources(wanted: Stored) -> None:
    """Refuse a query that reads nothing: there is nothing that it could be kept up to date with."""
    if not wanted.analysis.sources:
        raise BadView("the query reads no dataset", hint="a view is kept up to date with datasets: name one after FROM")
