"""Floodmark's attributes on blocks: event-time bounds, the part of a commit, row counts, purges, carried rows, erased
records.

The chain is complete without them. With them, an index can be rebuilt without opening a data file.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime
from typing import Annotated, Any

from floodmark.chain.events import AddData, DataEvent, MetadataEvent, SetDataSchema, SourceState
from floodmark.chain.ids import Multihash
from floodmark.chain.schema import DataSchema, ExtraAttributes
from floodmark.storage.facts import Natural, build

SLICE_KEY = "floodmark.dev/slice"
COMMIT_KEY = "floodmark.dev/commit"
PURGE_SOURCE = "floodmark.dev/purge"
PURGE_KEY = "floodmark.dev/purge"
CARRIED_KEY = "floodmark.dev/carried"
RESTORED_KEY = "floodmark.dev/restored"
ERASE_SOURCE = "floodmark.dev/erase"
ERASE_KEY = "floodmark.dev/erase"

_OFFSET = re.compile("[0-9]{1,18}")
_END = 1 << 63


def _hash_text(value: str) -> str:
    Multihash.parse(value)
    return value


HashText = Annotated[str, _hash_text]


@dataclass(frozen=True)
class BatchTally:
    """Row counts of a batch by outcome, and the time that its writer gave, if any (ISO 8601)."""

    new: int = 0
    changed: int = 0
    retracted: int = 0
    unchanged: int = 0
    duplicates: int = 0  # rows that a later row of the same batch and key replaced
    unknown: int = 0  # keys to retract that did not exist
    now: str | None = None

    def __add__(self, other: BatchTally) -> BatchTally:
        mine, theirs = asdict(self), asdict(other)
        now = mine.pop("now") or theirs.pop("now")
        return BatchTally(**{name: mine[name] + theirs[name] for name in mine}, now=now)


def data_attributes(
    low: int | None, high: int | None, part: int, parts: int, tally: BatchTally | None
) -> ExtraAttributes:
    """The attributes of a data block: its slice's event-time bounds, and its position in the commit.

    The last block of a commit also has the tally of the batch, unless all rows were new.
    """
    counts = tally_note(tally) if tally is not None and part == parts - 1 else {}
    return ExtraAttributes.of(
        {SLICE_KEY: {"event_time": [low, high]}, COMMIT_KEY: {"part": part, "parts": parts, **counts}}
    )


def carried_attributes(low: int | None, high: int | None, part: int, parts: int, before: int) -> ExtraAttributes:
    """The attributes of a slice of carried rows: those of a data block, and the purge that they were kept from.

    Its records repeat current rows that are among the records before offset `before`, which the same commit purges.
    """
    notes = {SLICE_KEY: {"event_time": [low, high]}, COMMIT_KEY: {"part": part, "parts": parts}}
    return ExtraAttributes.of({**notes, CARRIED_KEY: {"before": before}})


def carried_before(event: DataEvent) -> int:
    """The offset before which the rows of this slice were written first, if a purge carried them; else 0."""
    return _natural(_note(event, CARRIED_KEY).get("before"))


def with_restored_files(event: AddData, names: Sequence[str]) -> AddData:
    """The event with the names of the files that gave rows back, besides the file in its source state."""
    notes = {} if event.extra is None else event.extra.known
    return replace(event, extra=ExtraAttributes.of({**notes, RESTORED_KEY: {"files": list(names)}}))


def restored_files(event: DataEvent) -> list[str]:
    """The names of further files whose rows a commit may contain."""
    names = _note(event, RESTORED_KEY).get("files")
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def tally_attributes(tally: BatchTally) -> ExtraAttributes:
    """The attributes of a commit whose batch changed nothing."""
    return ExtraAttributes.of({COMMIT_KEY: {"part": 0, "parts": 1, **tally_note(tally)}})


def tally_note(tally: BatchTally) -> dict[str, Any]:
    return {"tally": {name: value for name, value in asdict(tally).items() if value}}


def tally_of(event: DataEvent) -> BatchTally | None:
    """The tally of a commit's batch, read from the last block of the commit; None if the block has none."""
    note = _note(event, COMMIT_KEY).get("tally")
    if not isinstance(note, dict):
        return None
    numbers = {f.name: note.get(f.name, 0) for f in fields(BatchTally) if f.name != "now"}
    if any(number != _natural(number) for number in numbers.values()):
        return None
    return BatchTally(**numbers, now=_time(note.get("now")))


def _time(value: object) -> str | None:
    """A time in the form that `BatchTally` keeps; None for any other value, which another writer may have stored."""
    try:
        return value if isinstance(value, str) and datetime.fromisoformat(value) else None
    except ValueError:
        return None


def event_time_bounds(event: DataEvent) -> tuple[int | None, int | None]:
    """The event-time bounds that the writer noted, in nanoseconds; (None, None) for blocks of other tools."""
    bounds = _note(event, SLICE_KEY).get("event_time")
    if isinstance(bounds, list) and len(bounds) == 2 and all(type(b) is int and abs(b) < 1000 * _END for b in bounds):
        return bounds[0], bounds[1]
    return None, None


def commit_part(event: DataEvent) -> tuple[int, int]:
    """The position of this block in its commit, from 0, and the number of blocks; (0, 1) without a note."""
    note = _note(event, COMMIT_KEY)
    part, parts = note.get("part"), note.get("parts")
    if isinstance(part, int) and isinstance(parts, int) and 0 <= part < parts:
        return part, parts
    return 0, 1


def purge_state(before: int) -> SourceState:
    """The source state that records a purge on the chain: offsets below `before` are removed."""
    return SourceState(source_name=PURGE_SOURCE, kind="floodmark.dev/offset", value=str(before))


def purge_attributes(slices: int, size: int, carried: int) -> ExtraAttributes:
    """The attributes of a purge: how many slices and bytes it removed, and how many current rows it carried."""
    return ExtraAttributes.of(
        {PURGE_KEY: {"slices": slices, "bytes": size, **({"carried": carried} if carried else {})}}
    )


def purged_amount(event: DataEvent) -> tuple[int, int]:
    """How many slices and bytes this event purged."""
    note = _note(event, PURGE_KEY)
    return _natural(note.get("slices")), _natural(note.get("bytes"))


def carried_amount(event: DataEvent) -> int:
    """How many current rows this event's purge carried."""
    return _natural(_note(event, PURGE_KEY).get("carried"))


def purged_before(state: SourceState) -> int:
    """The offset below which records are purged according to a source state; 0 if it is not a purge."""
    return int(state.value) if state.source_name == PURGE_SOURCE and _OFFSET.fullmatch(state.value) else 0


@dataclass(frozen=True)
class ErasedSlice:
    """A slice that was written again without the values of some of its records."""

    start: Natural
    before: HashText  # the physical hash of the file that is gone
    after: HashText  # the physical hash of the file that replaced it
    logical: HashText  # the logical hash of the records in the new file
    size_before: Natural
    size: Natural
    erased: tuple[Natural, ...]  # the offsets of all records of the slice without values, also of earlier erasures


@dataclass(frozen=True)
class Erasure:
    """What a block says was erased: the hashes of the keys, in hex, and the slices that had their records."""

    keys: tuple[str, ...]
    slices: tuple[ErasedSlice, ...]


def erase_state(erasure: Erasure) -> SourceState:
    """The source state that records an erasure on the chain."""
    digest = hashlib.sha3_256(json.dumps(asdict(erasure), sort_keys=True).encode()).hexdigest()
    return SourceState(source_name=ERASE_SOURCE, kind="floodmark.dev/erase", value=digest[:16])


def erase_attributes(erasure: Erasure) -> ExtraAttributes:
    """The attributes of an erasure."""
    return ExtraAttributes.of({ERASE_KEY: asdict(erasure)})


def erasure_schema(schema: DataSchema, erasure: Erasure) -> DataSchema:
    """The schema with an erasure as an extra attribute: derived chains have no other block with attributes."""
    known = {} if schema.extra is None else schema.extra.known
    return replace(schema, extra=ExtraAttributes.of({**known, ERASE_KEY: asdict(erasure)}))


def erasure_of(event: MetadataEvent) -> Erasure | None:
    """What this event erased; None if it erased nothing."""
    try:
        return build(Erasure, _note(event, ERASE_KEY))
    except ValueError:
        return None


def _note(event: MetadataEvent, key: str) -> dict[str, Any]:
    extra = event.extra if isinstance(event, AddData) else None
    if isinstance(event, SetDataSchema) and event.schema is not None:
        extra = event.schema.extra
    if extra is None:
        return {}
    note = extra.known.get(key, {})
    return note if isinstance(note, dict) else {}


def _natural(value: object) -> int:
    """The number in a note; 0 for any other value, which another writer may have stored."""
    return value if type(value) is int and 0 <= value < _END else 0
