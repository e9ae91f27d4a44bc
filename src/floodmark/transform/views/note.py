"""What a view says it was made of: the checkpoint of its newest refresh."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from floodmark.derive import notes
from floodmark.derive.notes import BadNote, CommitNote
from floodmark.ledger.snapshot import Snapshot
from floodmark.transform.errors import BadMeta
from floodmark.transform.views.errors import NotAView

RESET = "reset"
"""The version of a view that is to be derived anew, whatever its definition."""


@dataclass(frozen=True)
class Note(CommitNote):
    """How far each source was read, what was assumed of them, and how that refresh went.

    Sources go by their dataset ids. Positions are exact, where the chain names blocks.
    """

    KIND = "floodmark.view"

    version: str  # of the definition and of what it came to
    positions: Mapping[str, int]  # the newest record that is accounted for, -1 for none
    blocks: Mapping[str, str] = field(default_factory=dict)  # those that hold these records
    purged: Mapping[str, int] = field(default_factory=dict)  # records below this one were gone
    generations: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # of the computed columns that were used
    errors: str | None = None  # the file of rows that a function failed for
    run: str = ""
    process_ts: int = 0  # milliseconds
    records: int = 0
    keys: int = 0
    seconds: float = 0.0


def note_of(name: str, snapshot: Snapshot) -> Note | None:
    """What the newest refresh of a view noted; None before the first one."""
    checkpoint = snapshot.state.checkpoint
    if checkpoint is None:
        return None
    try:
        note = notes.read(snapshot.objects, checkpoint).read_as(Note)
    except BadNote as error:
        raise BadMeta(
            f"the checkpoint of view {name!r} {error.problem}: what it was made of is not known any more",
            hint=f"put it back from a copy of the dataset, or drop {name!r} and declare it again",
            file=checkpoint.text,
            dataset=name,
        ) from error
    if note is None:
        raise NotAView(
            f"{name!r} holds the results of a step, not of a view",
            hint="give the view another name",
            view=name,
        )
    return note
