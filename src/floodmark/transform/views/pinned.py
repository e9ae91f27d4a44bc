"""A view as of one moment: what it holds, what that was made of, and its sources, pinned before anything is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from floodmark.derive.positions import NOTHING, bound, check_on_chain, least_watermark
from floodmark.ledger import names
from floodmark.ledger.layout import Layout
from floodmark.ledger.snapshot import Snapshot
from floodmark.transform.lakes import LakeLike
from floodmark.transform.views.analysed.analysis import Analysis, schemas_digest
from floodmark.transform.views.columns import layout_of, made_as
from floodmark.transform.views.defined.definition import Definition
from floodmark.transform.views.defined.replacement import find, misfit
from floodmark.transform.views.defined.stored import Stored, require_stored
from floodmark.transform.views.note import RESET, Note, note_of
from floodmark.transform.views.reading.sources import PinnedSource, datasets_of, pin_source, schema_of


@dataclass(frozen=True)
class PinnedView:
    """What a refresh works on; nothing that is read later is newer."""

    name: str
    snapshot: Snapshot = field(repr=False)
    stored: Stored
    note: Note | None
    sources: tuple[PinnedSource, ...]
    replaces: Snapshot | None = field(default=None, repr=False)  # the view whose place it takes once it is refreshed

    @property
    def definition(self) -> Definition:
        return self.stored.definition

    @property
    def analysis(self) -> Analysis:
        return self.stored.analysis

    @property
    def has_sources(self) -> bool:
        """Whether every source has columns; before that there is nothing to read."""
        return all(source.given.layout is not None for source in self.sources)

    @cached_property
    def version(self) -> str:
        return made_as(self.definition.version, self.analysis)

    @cached_property
    def layout(self) -> Layout:
        """The columns that the view has once it is refreshed."""
        return layout_of(self.name, self.analysis, self.snapshot)

    @property
    def positions(self) -> dict[str, int]:
        """By dataset id how far each source is done, -1 for not at all."""
        known: Mapping[str, int] = {} if self.note is None else self.note.positions
        return {s.given.dataset_id: known.get(s.given.dataset_id, NOTHING) for s in self.sources}

    @property
    def heads(self) -> dict[str, int]:
        """By dataset id the newest record that can be read now: records that wait for a computed column cannot."""
        return {s.given.dataset_id: s.head for s in self.sources}

    @property
    def purged(self) -> dict[str, int]:
        return {s.given.dataset_id: s.given.purged_before for s in self.sources}

    @property
    def generations(self) -> dict[str, dict[str, str]]:
        return {s.given.dataset_id: dict(s.generations) for s in self.sources if s.generations}

    def named(self, offsets: Mapping[str, int]) -> dict[str, int]:
        """Offsets by dataset id as users have them: by the sources' names."""
        return {s.given.name: offsets[s.given.dataset_id] for s in self.sources}

    @property
    def watermark(self) -> int | None:
        """The watermark that the view has once it is refreshed."""
        return least_watermark([s.given.watermark for s in self.sources], self.snapshot.state.watermark)

    @cached_property
    def stale(self) -> str | None:
        """Why everything has to be derived once more, if so, whatever the kind of the view."""
        note = self.note
        if note is None:
            return "it was never refreshed" if self.replaces is None else self._made_anew(self.replaces)
        if note.version == RESET:
            return "it was reset"
        if note.version.rpartition("-")[0] != self.definition.version:
            return "its definition changed"
        if note.version != self.version:
            return "the columns of its sources changed"
        for source in self.sources:
            given = source.given
            if note.purged.get(given.dataset_id, 0) != given.purged_before:
                return f"records of {given.name!r} were purged"
            for column, generation in source.generations.items():
                if note.generations.get(given.dataset_id, {}).get(column) != generation:
                    return f"the computed column {column!r} of {given.name!r} changed"
        return None

    def _made_anew(self, replaced: Snapshot) -> str:
        why = misfit(self.name, self.stored, replaced) or "its definition changed"
        return f"{why}, so that it is made anew"

    @property
    def moved(self) -> list[PinnedSource]:
        """The sources with new records."""
        return [s for s in self.sources if s.head > self.positions[s.given.dataset_id]]

    def check_positions(self) -> None:
        """`InputDiverged` if a source does not hold the records any more that the view was made of."""
        if self.note is not None and self.stale is None:
            read = bound(self.note.positions, self.note.blocks)
            remedy = f"`floodmark reset {self.name}` makes the next refresh derive everything from what there is"
            check_on_chain(f"view {self.name!r}", read, [s.given for s in self.sources], remedy)

    @property
    def is_waiting(self) -> bool:
        """Whether a source can be read no further than before where it is done: its computed columns are computed
        anew. What the view holds stays until they are there again.
        """
        return any(s.head < self.positions[s.given.dataset_id] for s in self.sources)

    @property
    def is_made_anew(self) -> bool:
        """Whether it is filled, and has yet to take the place of the view that it was made for."""
        return self.replaces is not None and self.note is not None

    @property
    def is_up_to_date(self) -> bool:
        """Whether a refresh would commit nothing: reads no data."""
        return self.is_derived and not self.is_made_anew

    @property
    def is_derived(self) -> bool:
        """Whether there is nothing to derive."""
        if not self.has_sources or self.is_waiting:
            return True
        return self.stale is None and not self.moved and self.watermark == self.snapshot.state.watermark


@dataclass(frozen=True)
class Outdated:
    """A view whose sources have other columns than when its query was analysed: it has to be analysed again."""

    name: str
    snapshot: Snapshot = field(repr=False)
    stored: Stored
    note: Note | None


def is_in_place(pinned: PinnedView | Outdated) -> bool:
    """Whether a name has the pinned dataset still, as the view or as what is to replace it."""
    dataset_id = pinned.snapshot.state.dataset_id
    assert dataset_id is not None  # every chain starts with a Seed
    entry = names.find_place(pinned.snapshot.objects.store, dataset_id, pinned.name)
    return entry is not None and dataset_id in (entry.id, entry.pending)


def pin_view(lake: LakeLike, name: str) -> PinnedView | Outdated:
    """A view as it stands now.

    The view comes first: what it has seen can then not be newer than what is pinned of its sources.
    """
    there = find(lake, name)
    snapshot = there.worked
    stored = require_stored(name, snapshot.state)
    note = note_of(name, snapshot)
    analysis = stored.analysis
    found = datasets_of(lake, name, analysis)
    if schemas_digest(schema_of(dataset) for dataset in found.values()) != analysis.schemas:
        return Outdated(name, snapshot, stored, note)
    sources = tuple(pin_source(found[use.alias], use) for use in analysis.sources)
    return PinnedView(name, snapshot, stored, note, sources, there.replaces)
