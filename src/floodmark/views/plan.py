"""`RefreshPlan`, what a refresh would do and why, and `RefreshReport`, what a refresh did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from floodmark.derive.inputs import LakeLike
from floodmark.derive.positions import NO_POSITION
from floodmark.views.snapshot import OutdatedView, ViewSnapshot, take_view_snapshot
from floodmark.views.sources import datasets_of

if TYPE_CHECKING:
    import pyarrow as pa

    from floodmark.views.analysis import RefreshKind
    from floodmark.views.sources import ViewInputSnapshot


_SAMPLE_KEYS = 10


@dataclass(frozen=True)
class ViewInputPlan:
    """How far a refresh would read one input: the `behind` records after `position`, up to and including `head`.

    `waiting` more records are left for later, because a computed column that the view reads is not computed for them.
    """

    name: str
    position: int
    head: int
    behind: int
    waiting: int = 0


@dataclass(frozen=True)
class RefreshPlan:
    """What a refresh would do, and why.

    The inputs have `records` new records. They change `keys` of the view: input rows, or groups or join keys by the
    columns `by`; `sample` has a few of them. If the whole view must be recomputed, the changed keys are not known;
    `stale` is the reason for this refresh, and `why` the reason that applies to every refresh. `moved` describes what
    happened since the last refresh.
    """

    view: str
    kind: RefreshKind
    why: str | None
    stale: str | None
    moved: str | None
    sources: tuple[ViewInputPlan, ...]
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
        """Whether the whole view would be recomputed."""
        return not self.nothing_to_do and (self.stale is not None or self.why is not None)

    @property
    def behind(self) -> int:
        """The number of new records in all inputs."""
        return sum(source.behind for source in self.sources)


def plan_refresh(lake: LakeLike, name: str) -> RefreshPlan:
    """What `refresh` would do now. Starts no Spark and writes nothing."""
    view_snapshot = take_view_snapshot(lake, name)
    if isinstance(view_snapshot, OutdatedView):
        return _plan_outdated(lake, view_snapshot)
    analysis = view_snapshot.analysis
    sources = tuple(_plan_input(view_snapshot, source) for source in view_snapshot.sources)
    if view_snapshot.is_up_to_date:
        return RefreshPlan(name, analysis.kind, analysis.why, None, None, sources, analysis.t)
    records = sum(source.behind for source in sources)
    plan = RefreshPlan(
        name,
        analysis.kind,
        analysis.why,
        view_snapshot.stale or view_snapshot.mostly_new,
        _describe_changes(view_snapshot),
        sources,
        analysis.t,
        records,
    )
    if plan.is_whole:
        return replace(plan, keys=None)
    if not records or analysis.kind == "changes":
        return replace(plan, keys=None) if records else plan
    from floodmark.engine.rounds import TaskRunner
    from floodmark.views.changed_rows import find_changes

    changed = find_changes(view_snapshot.sources, analysis, view_snapshot.positions, TaskRunner(lake.runtime.session))
    return replace(plan, keys=changed.keys.num_rows, sample=_sample(changed.keys))


def _plan_input(view_snapshot: ViewSnapshot, source: ViewInputSnapshot) -> ViewInputPlan:
    given = source.given
    position = view_snapshot.positions[given.dataset_id]
    return ViewInputPlan(given.name, position, source.last_offset, given.unread(position), source.waiting)


def _describe_changes(view_snapshot: ViewSnapshot) -> str:
    names = [repr(source.given.name) for source in view_snapshot.moved]
    if not names and view_snapshot.is_filled_replacement:
        return "it was rebuilt as a new dataset, which is not installed yet"
    if not names:
        return "the watermark of its sources has moved"
    return f"{' and '.join(names)} {'has' if len(names) == 1 else 'have'} new records"


def _sample(keys: pa.Table) -> tuple[dict[str, object], ...]:
    return tuple(keys.slice(0, _SAMPLE_KEYS).to_pylist())


def _plan_outdated(lake: LakeLike, outdated: OutdatedView) -> RefreshPlan:
    """The plan before the query is analysed again. It is not known yet which rows must be recomputed."""
    analysis = outdated.stored.analysis
    positions = {} if outdated.note is None else outdated.note.positions
    sources = []
    for dataset in datasets_of(lake, outdated.name, analysis).values():
        position, head = positions.get(str(dataset.id), NO_POSITION), dataset.snapshot().next_offset - 1
        sources.append(ViewInputPlan(dataset.name, position, head, max(0, head - position)))
    stale = "it was never refreshed" if outdated.note is None else None
    moved = "the columns of its sources changed, so its query is analysed again"
    records = sum(source.behind for source in sources)
    known = (outdated.name, analysis.kind, analysis.why, stale, moved)
    return RefreshPlan(*known, tuple(sources), analysis.t, records, keys=None)


@dataclass(frozen=True)
class RefreshReport:
    """What a refresh did.

    The inputs had `records` new records since the last refresh. They changed `keys` of the view: input rows, groups or
    join keys, each with all its rows. If the whole view was recomputed, `stale` is the reason for this refresh, and
    `why` the reason that applies to every refresh; only the differences are written in any case. `new`, `changed` and
    `retracted` count rows of the view. Functions were `called` for that many rows, `reused` results came from
    checkpoints, `carried` results were those of the replaced input rows, whose inputs were the same, and `failed` rows
    have an error and no value. `waiting` records are left for later, because a computed column that the view reads is
    not computed for them. `positions` has the last offset read of each input. If the key or types of the view changed,
    it was replaced by a new dataset; `kept_as` is the dataset with its old rows.
    """

    view: str
    kind: RefreshKind
    why: str | None = None
    stale: str | None = None
    records: int = 0
    keys: int = 0
    new: int = 0
    changed: int = 0
    retracted: int = 0
    called: int = 0
    reused: int = 0
    failed: int = 0
    waiting: int = 0
    commits: int = 0
    positions: Mapping[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    kept_as: str | None = None
    carried: int = 0

    @property
    def nothing(self) -> bool:
        """Whether there was nothing to do and nothing was committed."""
        return self.commits == 0

    @property
    def is_whole(self) -> bool:
        """Whether the whole view was recomputed."""
        return not self.nothing and (self.stale is not None or self.why is not None)
