"""What a dataset's chain says of a source: which states it has, and which came last."""

from __future__ import annotations

from floodmark.chain.events import AddData, SourceState
from floodmark.chain.walk import walk_back
from floodmark.ledger.snapshot import Snapshot

_KIND = "floodmark.dev/state"  # no part of a source's identity


def has_state(snapshot: Snapshot, source: str, state: str) -> bool:
    """Whether a source was read in this state; a few reads, however long the chain is."""
    return snapshot.find_state(SourceState(source_name=source, kind=_KIND, value=state)) is not None


def last_state(snapshot: Snapshot, source: str) -> str | None:
    """The newest state of a source; the chain is walked only over what others have committed after it."""
    newest = snapshot.state.source_state
    if newest is None:
        return None
    if newest.source_name == source:
        return newest.value
    for _, _, block in walk_back(snapshot.objects.get_block, snapshot.head):
        event = block.event
        if isinstance(event, AddData) and (state := event.new_source_state) is not None and state.source_name == source:
            return state.value
    return None
