"""What a refresh would do and why: how far each source moved, and which records, groups or keys that touches."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from floodmark.derive.positions import NOTHING
from floodmark.transform.lakes import LakeLike
from floodmark.transform.views.pinned import Outdated, PinnedView, pin_view
from floodmark.transform.views.reading.sources import datasets_of

if TYPE_CHECKING:
    import pyarrow as pa

    from floodmark.transform.views.analysed.analysis import Kind
    from floodmark.transform.views.reading.sources import PinnedSource

_SHOWN = 10


@dataclass(frozen=True)
class SourcePlan:
    """A source: records after `position` up to and with `head` are new, `behind` of them.

    `waiting` more are left for later: a computed column that the view reads is not there for them yet.
    """

    name: str
    position: int
    head: int
    behind: int
    waiting: int = 0


@dataclass(frozen=True)
class ViewPlan:
    """What a refresh would do, and why.

    `records` of the sources are new; they touch `keys` of the view: source rows, groups or join keys by `by`, of which
    `sample` has a few. Where everything is to be derived, `stale` says why it is this time, or `why` why it always is;
    which keys are touched is not known then. `moved` says what happened since the last refresh.
    """

    view: str
    kind: Kind
    why: str | None
    stale: str | None
    moved: str | None
    sources: tuple[SourcePlan, ...]
    by: tuple[str, ...] = ()
    records: int = 0
    keys: int | None = 0
    sample: tuple[dict[str, object], ...] = ()

    @property
    def nothing_to_do(self) -> bool:
        """Whether a refresh would commit nothing."""
        return self.stale is None and self.moved is None

    @property
    def is_whole(self) -> bool:
        """Whether everything is to be derived."""
        return not self.nothing_to_do and (self.stale is not None or self.why is not None)

    @property
    def behind(self) -> int:
        """New records of all sources."""
        return sum(source.behind for source in self.sources)


def plan_refresh(lake: LakeLike, name: str) -> ViewPlan:
    """What `refresh` would do now; no Spark is started, and nothing written."""
    pinned = pin_view(lake, name)
    if isinstance(pinned, Outdated):
        return _outdated(lake, pinned)
    pinned.check_positions()
    analysis = pinned.analysis
    sources = tuple(_source(pinned, source) for source in pinned.sources)
    if pinned.is_up_to_date:
        return ViewPlan(name, analysis.kind, analysis.why, None, None, sources, analysis.t)
    records = sum(source.behind for source in sources)
    plan = ViewPlan(name, analysis.kind, analysis.why, pinned.stale, _moved(pinned), sources, analysis.t, records)
    if plan.is_whole:
        return replace(plan, keys=None)
    if not records:
        return plan
    from floodmark.engine.rounds import Runner
    from floodmark.transform.views.reading.touched import touched

    found = touched(pinned.sources, analysis, pinned.positions, Runner(lake.runtime.session))
    return replace(plan, keys=found.keys.num_rows, sample=_sample(found.keys))


def _source(pinned: PinnedView, source: PinnedSource) -> SourcePlan:
    given = source.given
    position = pinned.positions[given.dataset_id]
    behind = max(0, source.head - max(position, given.purged_before - 1))
    return SourcePlan(given.name, position, source.head, behind, source.waiting)


def _moved(pinned: PinnedView) -> str:
    names = [repr(source.given.name) for source in pinned.moved]
    if not names and pinned.is_made_anew:
        return "it was made anew, and has yet to take its place"
    if not names:
        return "the watermark of its sources has moved"
    return f"{' and '.join(names)} {'has' if len(names) == 1 else 'have'} new records"


def _sample(keys: pa.Table) -> tuple[dict[str, object], ...]:
    return tuple(keys.slice(0, _SHOWN).to_pylist())


def _outdated(lake: LakeLike, found: Outdated) -> ViewPlan:
    """Before the query is analysed again, nobody knows whether everything is to be derived."""
    analysis = found.stored.analysis
    positions = {} if found.note is None else found.note.positions
    sources = []
    for dataset in datasets_of(lake, found.name, analysis).values():
        position, head = positions.get(str(dataset.id), NOTHING), dataset.snapshot().next_offset - 1
        sources.append(SourcePlan(dataset.name, position, head, max(0, head - position)))
    stale = "it was never refreshed" if found.note is None else None
    moved = "the columns of its sources changed, so that its query is analysed again"
    records = sum(source.behind for source in sources)
    known = (found.name, analysis.kind, analysis.why, stale, moved)
    return ViewPlan(*known, tuple(sources), analysis.t, records, keys=None)
