"""What Floodmark writes into the free attributes of its blocks, and how purges and commits read from them.

The chain is complete without these notes; with them an index can be rebuilt without opening a data file.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from datetime import datetime
from typing import Any

from floodmark.chain.events import AddData, DataEvent, SourceState
from floodmark.chain.schema import ExtraAttributes

SLICE_KEY = "floodmark.dev/slice"
COMMIT_KEY = "floodmark.dev/commit"
PURGE_SOURCE = "floodmark.dev/purge"
PURGE_KEY = "floodmark.dev/purge"


@dataclass(frozen=True)
class Tally:
    """What a batch came to, in rows; and the time that its writer gave, if any (ISO 8601)."""

    new: int = 0
    changed: int = 0
    retracted: int = 0
    unchanged: int = 0
    duplicates: int = 0  # rows that a later row of the same batch and key replaced
    unknown: int = 0  # keys to be retracted that were not there
    now: str | None = None

    def __add__(self, other: Tally) -> Tally:
        mine, theirs = asdict(self), asdict(other)
        now = mine.pop("now") or theirs.pop("now")
        return Tally(**{name: mine[name] + theirs[name] for name in mine}, now=now)


def data_attributes(low: int | None, high: int | None, part: int, parts: int, tally: Tally | None) -> ExtraAttributes:
    """The notes of a data block: its slice's event-time bounds, and its place among the blocks of its commit.

    The commit's last block says what the commit's batch came to, if that is more than new rows.
    """
    said = tally_note(tally) if tally is not None and part == parts - 1 else {}
    return ExtraAttributes.of(
        {SLICE_KEY: {"event_time": [low, high]}, COMMIT_KEY: {"part": part, "parts": parts, **said}}
    )


def tally_attributes(tally: Tally) -> ExtraAttributes:
    """The notes of a commit whose batch changed nothing."""
    return ExtraAttributes.of({COMMIT_KEY: {"part": 0, "parts": 1, **tally_note(tally)}})


def tally_note(tally: Tally) -> dict[str, Any]:
    return {"tally": {name: value for name, value in asdict(tally).items() if value}}


def tally_of(event: DataEvent) -> Tally | None:
    """What the batch of a commit came to, from its last block; None where nothing is noted."""
    said = _note(event, COMMIT_KEY).get("tally")
    if not isinstance(said, dict):
        return None
    numbers = {f.name: said.get(f.name, 0) for f in fields(Tally) if f.name != "now"}
    if not all(isinstance(n, int) for n in numbers.values()):
        return None
    return Tally(**numbers, now=_time(said.get("now")))


def _time(said: object) -> str | None:
    """A time as `Tally` has it; what another writer put there may be anything."""
    try:
        return said if isinstance(said, str) and datetime.fromisoformat(said) else None
    except ValueError:
        return None


def event_time_bounds(event: DataEvent) -> tuple[int | None, int | None]:
    """The event-time bounds that the writer noted, in nanoseconds; (None, None) in blocks from elsewhere."""
    bounds = _note(event, SLICE_KEY).get("event_time")
    if isinstance(bounds, list) and len(bounds) == 2 and all(isinstance(b, int) for b in bounds):
        return bounds[0], bounds[1]
    return None, None


def commit_part(event: DataEvent) -> tuple[int, int]:
    """Which block of how many this is within its commit, from 0; (0, 1) where nothing is noted."""
    note = _note(event, COMMIT_KEY)
    part, parts = note.get("part"), note.get("parts")
    if isinstance(part, int) and isinstance(parts, int) and 0 <= part < parts:
        return part, parts
    return 0, 1


def purge_state(before: int) -> SourceState:
    """A purge, as the source state that records it on the chain: offsets below `before` are gone."""
    return SourceState(source_name=PURGE_SOURCE, kind="floodmark.dev/offset", value=str(before))


def purge_attributes(slices: int, size: int) -> ExtraAttributes:
    """The notes of a purge: how many slices and bytes it removed."""
    return ExtraAttributes.of({PURGE_KEY: {"slices": slices, "bytes": size}})


def purged_amount(event: DataEvent) -> tuple[int, int]:
    """The slices and bytes that this event purged."""
    note = _note(event, PURGE_KEY)
    slices, size = note.get("slices"), note.get("bytes")
    return (slices, size) if isinstance(slices, int) and isinstance(size, int) else (0, 0)


def purged_before(state: SourceState) -> int:
    """The offset below which a source state says that records are purged; 0 if it is no purge."""
    return int(state.value) if state.source_name == PURGE_SOURCE and state.value.isdigit() else 0


def _note(event: DataEvent, key: str) -> dict[str, Any]:
    if not isinstance(event, AddData) or event.extra is None:
        return {}
    try:
        note = event.extra.parsed.get(key, {})
    except ValueError:
        return {}  # another writer's attributes are its own business
    return note if isinstance(note, dict) else {}
