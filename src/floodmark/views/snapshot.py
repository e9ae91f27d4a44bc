"""`ViewSnapshot`: a consistent snapshot of a view and its inputs; `ViewNote`: the record of its last refresh."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from floodmark.derive import notes
from floodmark.derive.inputs import LakeLike
from floodmark.derive.lost_records import LostRecords, find_lost_records
from floodmark.derive.notes import BadNote, CommitNote
from floodmark.derive.positions import NO_POSITION, bind_blocks, minimum_watermark
from floodmark.errors import BadMeta, NotAView
from floodmark.ledger import names
from floodmark.ledger.schema import Layout
from floodmark.ledger.snapshot import Snapshot
from floodmark.views.analysis import Analysis, content_version, layout_of, schemas_digest
from floodmark.views.definition import ViewDefinition
from floodmark.views.replacement import find_misfit, find_view
from floodmark.views.sources import ViewInputSnapshot, datasets_of, input_schema_of, take_input_snapshot
from floodmark.views.stored_definition import StoredView, require_stored_view

MAX_NEW_FRACTION = 0.5
"""If more than this fraction of an input's rows is new, a refresh of the whole view is faster than finding keys."""

FEW_RECORDS = 10_000
"""Up to this many new records, finding the changed keys is always faster."""


@dataclass(frozen=True)
class ViewSnapshot:
    """The snapshot that a refresh works on. Data that is read later is never newer."""

    name: str
    snapshot: Snapshot = field(repr=False)
    stored: StoredView
    note: ViewNote | None
    sources: tuple[ViewInputSnapshot, ...]
    replaces: Snapshot | None = field(default=None, repr=False)  # the view that it replaces once it is refreshed

    @property
    def definition(self) -> ViewDefinition:
        return self.stored.definition

    @property
    def analysis(self) -> Analysis:
        return self.stored.analysis

    @property
    def has_inputs(self) -> bool:
        """Whether every input has columns; until then there is nothing to read."""
        return all(source.given.layout is not None for source in self.sources)

    @cached_property
    def version(self) -> str:
        return content_version(self.definition.version, self.analysis)

    @cached_property
    def layout(self) -> Layout:
        """The columns of the view after the refresh."""
        return layout_of(self.name, self.analysis, self.snapshot)

    @property
    def positions(self) -> dict[str, int]:
        """By dataset id, the last offset that the view includes of each input; -1 for none."""
        known: Mapping[str, int] = {} if self.note is None else self.note.positions
        return {s.given.dataset_id: known.get(s.given.dataset_id, NO_POSITION) for s in self.sources}

    @property
    def last_offsets(self) -> dict[str, int]:
        """By dataset id, the newest readable record: records that lack computed columns are not readable yet."""
        return {s.given.dataset_id: s.last_offset for s in self.sources}

    @property
    def purged(self) -> dict[str, int]:
        return {s.given.dataset_id: s.given.purged_before for s in self.sources}

    @property
    def generations(self) -> dict[str, dict[str, str]]:
        return {s.given.dataset_id: dict(s.generations) for s in self.sources if s.generations}

    def named(self, offsets: Mapping[str, int]) -> dict[str, int]:
        """Offsets by dataset id converted to offsets by the inputs' names."""
        return {s.given.name: offsets[s.given.dataset_id] for s in self.sources}

    @property
    def watermark(self) -> int | None:
        """The watermark of the view after the refresh."""
        return minimum_watermark([s.given.watermark for s in self.sources], self.snapshot.state.watermark)

    @cached_property
    def stale(self) -> str | None:
        """Why this refresh must recompute everything; None if it need not."""
        note = self.note
        if note is None:
            return "it was never refreshed" if self.replaces is None else self._rebuild_reason(self.replaces)
        if note.version == RESET_VERSION:
            return "it was reset"
        if note.version.rpartition("-")[0] != self.definition.version:
            return "its definition changed"
        if note.version != self.version:
            return "the columns of its sources changed"
        for lost in self.lost:
            return str(lost)
        for source in self.sources:
            given = source.given
            if self._has_lost_rows(source, note):
                return f"records of {given.name!r} were purged"
            for column, generation in source.generations.items():
                if note.generations.get(given.dataset_id, {}).get(column) != generation:
                    return f"the computed column {column!r} of {given.name!r} changed"
        return None

    @property
    def mostly_new(self) -> str | None:
        """Why a refresh of the whole view is faster: most rows of an input are new. None if it is not."""
        for source in self.moved:
            new = source.given.unread(self.positions[source.dataset_id])
            if new > max(FEW_RECORDS, MAX_NEW_FRACTION * source.given.live_rows):
                return f"most rows of {source.name!r} are new"
        return None

    def _has_lost_rows(self, source: ViewInputSnapshot, note: ViewNote) -> bool:
        """Whether a purge since the last refresh may have removed rows that the view includes, or has yet to read.

        With a key, a purge keeps current rows, but they get other offsets.
        """
        given = source.given
        if note.purged.get(given.dataset_id, 0) == given.purged_before:
            return False
        if not given.strategy.is_keyed or given.layout is None:
            return True
        read = {*source.use.columns, *(column for _, column in source.use.keys)}
        return not read.isdisjoint(given.layout.vocab.reserved) or given.unread_purged(note.positions)

    def _rebuild_reason(self, replaced: Snapshot) -> str:
        why = find_misfit(self.name, self.stored, replaced) or "its definition changed"
        return f"{why}, so it is rebuilt as a new dataset"

    @property
    def moved(self) -> list[ViewInputSnapshot]:
        """The inputs with new records."""
        return [s for s in self.sources if s.last_offset > self.positions[s.given.dataset_id]]

    @cached_property
    def lost(self) -> tuple[LostRecords, ...]:
        """The inputs that were replaced by another copy since the last refresh.

        Which rows of the view came from the lost records cannot be known, so the whole view is computed again.
        """
        if self.note is None:
            return ()
        read = bind_blocks(self.note.positions, self.note.blocks)
        return tuple(find_lost_records(read, (), [s.given for s in self.sources]).values())

    @property
    def is_waiting(self) -> bool:
        """Whether an input cannot be read up to the view's position, because its computed columns are being recomputed.

        The view keeps its rows until they are available again. An input that lost records may end before the position.
        """
        return any(
            s.last_offset < min(self.positions[s.given.dataset_id], s.given.snapshot.next_offset - 1)
            for s in self.sources
        )

    @property
    def is_filled_replacement(self) -> bool:
        """Whether it is refreshed but has not replaced its view yet."""
        return self.replaces is not None and self.note is not None

    @property
    def is_up_to_date(self) -> bool:
        """Whether a refresh would commit nothing. Reads no data."""
        return self.is_computed and not self.is_filled_replacement

    @property
    def is_computed(self) -> bool:
        """Whether there is nothing to compute."""
        if not self.has_inputs or self.is_waiting:
            return True
        return self.stale is None and not self.moved and self.watermark == self.snapshot.state.watermark


@dataclass(frozen=True)
class OutdatedView:
    """A view whose inputs have other columns than when its query was analysed, so it must be analysed again."""

    name: str
    snapshot: Snapshot = field(repr=False)
    stored: StoredView
    note: ViewNote | None


def has_name(view_snapshot: ViewSnapshot | OutdatedView) -> bool:
    """Whether the snapshot's dataset still has a name, as the view or as its replacement."""
    dataset_id = view_snapshot.snapshot.state.dataset_id
    assert dataset_id is not None  # every chain starts with a Seed
    entry = names.find_entry_of(view_snapshot.snapshot.objects.store, dataset_id, view_snapshot.name)
    return entry is not None and dataset_id in (entry.id, entry.pending)


def take_view_snapshot(lake: LakeLike, name: str) -> ViewSnapshot | OutdatedView:
    """Take a snapshot of a view and its inputs.

    The view is read first, so its positions are never newer than the snapshots of its inputs.
    """
    datasets = find_view(lake, name)
    snapshot = datasets.refreshed
    stored = require_stored_view(name, snapshot.state)
    note = read_note(name, snapshot)
    analysis = stored.analysis
    inputs = datasets_of(lake, name, analysis)
    if schemas_digest(input_schema_of(dataset) for dataset in inputs.values()) != analysis.schemas:
        return OutdatedView(name, snapshot, stored, note)
    sources = tuple(take_input_snapshot(inputs[use.alias], use) for use in analysis.sources)
    return ViewSnapshot(name, snapshot, stored, note, sources, datasets.replaces)


# The note of a refresh

RESET_VERSION = "reset"
"""The version of a view that must be recomputed whatever its definition is."""


@dataclass(frozen=True)
class ViewNote(CommitNote):
    """How far a refresh read each input, what it assumed about them, and its statistics.

    Inputs are identified by dataset id. Positions are exact, while the positions on the chain name blocks.
    """

    KIND = "floodmark.view"

    version: str  # of the definition and its analysis
    positions: Mapping[str, int]  # the newest record that is included; -1 for none
    blocks: Mapping[str, str] = field(default_factory=dict)  # the blocks that contain these records
    purged: Mapping[str, int] = field(default_factory=dict)  # the records before this offset were purged
    generations: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # of the computed columns that were read
    errors: str | None = None  # the file with the errors of failed rows
    run: str = ""
    process_ts: int = 0  # milliseconds: when the refresh began
    records: int = 0
    keys: int = 0
    seconds: float = 0.0
    carried: int = 0  # values of functions that input rows took over from the rows that they replaced
    by_plan: bool = False  # whether Spark's plan of the query was run, which leaves no order of rows open
    work: Mapping[str, Any] | None = None  # `RefreshWork`: what was read and computed at each operator
    states: Mapping[str, str | None] = field(default_factory=dict)  # by operator, its state's file; None: not kept

    @property
    def files(self) -> frozenset[str]:
        """The names of the files that it needs."""
        return frozenset(name for name in (self.errors, *self.states.values()) if name is not None)


def read_note(name: str, snapshot: Snapshot) -> ViewNote | None:
    """The note of the newest refresh of a view; None before the first one."""
    checkpoint = snapshot.state.checkpoint
    if checkpoint is None:
        return None
    try:
        note = notes.load_note(snapshot.objects, checkpoint).read_as(ViewNote)
    except BadNote as error:
        raise BadMeta(
            f"the checkpoint of view {name!r} {error.problem}, so its positions in its inputs are unknown",
            hint=f"restore the file from a backup of the dataset, or drop {name!r} and declare it again",
            file=checkpoint.text,
            dataset=name,
        ) from error
    if note is None:
        raise NotAView(
            f"{name!r} is the output of a step, not a view",
            hint="give the view another name",
            view=name,
        )
    return note
