"""A view as users have it: a dataset that holds the result of a query, and is brought up to date by `refresh`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from floodmark.chain.ids import DatasetId
from floodmark.compute.pinned import Pinned
from floodmark.compute.stored.gc import Garbage
from floodmark.dataset import Dataset
from floodmark.errors import FloodmarkError
from floodmark.ledger import dataset as ledger
from floodmark.ledger import names
from floodmark.ledger.create import dataset_objects
from floodmark.ledger.errors import UnknownDataset
from floodmark.ledger.fold import Fold
from floodmark.ledger.layout import Layout
from floodmark.ledger.objects import DatasetObjects
from floodmark.ledger.scan import Scan
from floodmark.ledger.selection import AsOf
from floodmark.ledger.snapshot import Snapshot
from floodmark.storage.retry import read_steadily
from floodmark.transform.lakes import LakeLike
from floodmark.transform.views.analysed.analysis import Analysis, Kind
from floodmark.transform.views.defined.definition import Definition, define
from floodmark.transform.views.defined.stored import Stored, is_view, predecessors, require_stored
from floodmark.transform.views.defined.succession import (
    find,
    is_settled,
    last_in_line,
    source_name,
    succeeded_by,
    worked,
)
from floodmark.transform.views.errors import BadView, NotAView, ViewChanged, never_refreshed

if TYPE_CHECKING:
    from floodmark.compute.functions.udf import Udf
    from floodmark.transform.views.plan import ViewPlan
    from floodmark.transform.views.report import Refreshed

T = TypeVar("T")


class View(Dataset):
    """A query over datasets and its result, which is read like any dataset's rows.

    Made or found by `Lake.view`. What is read is the result as of the last `refresh`, whatever happens to the sources
    and to the definition meanwhile.
    """

    def __init__(self, name: str, dataset_id: DatasetId, lake: LakeLike) -> None:
        super().__init__(name, dataset_objects(lake.store, dataset_id), lake.runtime)
        self._lake = lake
        self._followed = dataset_id  # known when nothing is left that could be asked for it

    def __repr__(self) -> str:
        return f"View({self._name!r}, {self._objects.store.url!r})"

    # What it is

    @property
    def definition(self) -> Definition:
        """The query as declared."""
        return self._stored.definition

    @property
    def analysis(self) -> Analysis:
        """What the query came to when it was analysed: how the view is refreshed, its key, and what it reads."""
        return self._stored.analysis

    @property
    def way(self) -> Kind:
        """How it is refreshed: by source rows, groups or join keys that changed, or the whole of it."""
        return self.analysis.kind

    @property
    def why(self) -> str | None:
        """Why it can only be refreshed as a whole; None where it need not be."""
        return self.analysis.why

    @property
    def by(self) -> tuple[str, ...]:
        """The columns that groups or join keys go by; none where everything is derived."""
        return self.analysis.t

    @property
    def sources(self) -> tuple[str, ...]:
        """The datasets that it is made from, by their present names; one that is gone by its name in the query."""
        return tuple(self._called().values())

    @property
    def positions(self) -> dict[str, int]:
        """By source the offset of the newest record that the view accounts for; -1 when there is none."""
        from floodmark.transform.positions import NOTHING
        from floodmark.transform.views.note import note_of

        note = note_of(self._name, self.snapshot())
        seen = {} if note is None else note.positions
        return {name: seen.get(dataset_id, NOTHING) for dataset_id, name in self._called().items()}

    def snapshot(self) -> Snapshot:
        """The view as of its present head: of the dataset that took its place, if it was made anew since."""
        while True:
            try:
                found = super().snapshot()
            except UnknownDataset:  # dropped: the view, or only its old rows, which nobody needs
                last = last_in_line(self._lake, str(self._followed), self._name)
                if last is None:
                    raise
                self._follow(last.id)
                continue
            to = succeeded_by(found.state)
            if to is None or not is_settled(self._lake.store, found, to):
                return found
            self._follow(to.id)

    def _follow(self, to: DatasetId) -> None:
        self._latest, self._cache, self._key_cache = None, {}, {}
        self._objects = dataset_objects(self._lake.store, to)
        self._followed = to

    def _steadily(self, ask: Callable[[], T]) -> T:
        """Ask again when the view was made anew under the question: offsets and keys are others from then on."""

        def moved(before: DatasetObjects) -> bool:
            self.snapshot()  # follows, should what was asked have been old rows, dropped since
            return self._objects is not before

        found, _ = read_steadily(
            lambda: self._objects,
            lambda before: (ask(), self._objects is before),
            moved,
            replaced=(FloodmarkError,),
            doubted=lambda answer: not answer[1],
        )
        return found

    @property
    def _stored(self) -> Stored:
        while True:
            shown = self.snapshot()
            try:
                found = worked(self._lake, self._name, shown)
            except UnknownDataset:  # what was to take its place was discarded, or took it and was replaced itself
                if self.snapshot().head == shown.head:
                    raise
                continue
            if found is not shown or succeeded_by(shown.state) is None:
                return require_stored(self._name, found.state)

    @property
    def _name_now(self) -> str:
        """What it is called now: whoever has it open need not know of a rename."""
        while True:
            before = self.id
            found = _name_now(self._lake, self)
            if self.id != before:  # made anew meanwhile: that may be the name of the old rows
                continue
            if found is None:
                raise self._gone()
            return found

    def _called(self) -> dict[str, str]:
        """The names of the sources by dataset id."""
        uses = self.analysis.sources
        return {use.dataset_id: source_name(self._lake, use.dataset_id, use.alias) or use.alias for use in uses}

    # Bringing it up to date

    def refresh(self, *, retry_errors: bool = False, udfs: Sequence[Udf] = ()) -> Refreshed:
        """Bring the view up to date with its sources: only what changed is derived, and only what differs is written.

        Until it is done, readers see what was there before. A refresh that is cut short is simply begun again. `udfs`
        are needed only where the functions of the view are not defined or imported; `retry_errors` also computes rows
        again for which a function has failed.
        """
        from floodmark.transform.views.refresh import refresh

        name, cache = self._name_now, self._key_cache
        return refresh(self._lake, name, retry_errors=retry_errors, udfs=tuple(udfs), cache=cache)

    def reset(self) -> None:
        """Have the next refresh derive everything, and call functions for every row; readers see no change until then.

        Only what comes out different is written.
        """
        from floodmark.transform.views.reset import reset

        reset(self._lake, self._name_now)

    def plan_refresh(self) -> ViewPlan:
        """What `refresh` would do now: which records, groups or keys it touches, and why. Starts no Spark."""
        from floodmark.transform.views.plan import plan_refresh

        return plan_refresh(self._lake, self._name_now)

    def errors(self) -> pa.Table:
        """The rows for which a function of the view has failed and which have no value therefore."""
        from floodmark.transform.views.failures import errors_of

        return errors_of(self._name, self.snapshot())

    # What a dataset does

    def get(self, keys: Any) -> pa.Table:
        """The current rows with these keys, without a JVM; those that are not there are left out."""
        return self._steadily(partial(super().get, keys))

    def history(self, keys: Any) -> pa.Table:
        """Every record with these keys in offset order: what became of a row, when, and by which operation."""
        return self._steadily(partial(super().history, keys))

    def count(self) -> int:
        """How many rows there are; reads no data."""
        return self._steadily(super().count)

    def fold(self, partition: str | None = None) -> Fold:
        """Copy the living rows of small or half-dead slices into large files, from which reading is quick."""
        return self._steadily(partial(super().fold, partition))

    def _columns_garbage(self) -> Garbage:
        return self._steadily(super()._columns_garbage)

    def _current_scan(self, as_of: AsOf, columns: Sequence[str] | None) -> Scan:
        return self._steadily(partial(super()._current_scan, as_of, columns))

    def _changes(self, since: int | None, until: int | None) -> Scan:
        found = self._steadily(partial(super()._changes, since, until))
        self._check_offset(since)
        return found

    def _check_offset(self, since: int | None) -> None:
        """Refuse an offset that was taken from the view before it was made anew, where it shows: nothing would come."""
        state = self.snapshot().state
        last = -1 if state.last_offset is None else state.last_offset
        if since is not None and since > last and predecessors(state):
            raise ViewChanged(
                f"view {self._name!r} has no offset {since} yet: it was made anew, and offsets begin at 0 again",
                hint="read all of it once, then go on from its last offset; View.id is another one when this happens",
                view=self._name,
                offset=since,
            )

    def _pinned(self) -> Pinned:
        return self._steadily(super()._pinned)

    def _layout(self, snapshot: Snapshot) -> Layout:
        if snapshot.layout is None:
            raise never_refreshed(self._name)
        return snapshot.layout


def opened(lake: LakeLike, name: str) -> View:
    """The view of this name; `NotAView` when that is a dataset that is none."""
    try:
        found = find(lake, name)
    except UnknownDataset as error:
        hint = f"{error.hint}; lake.view({name!r}, sql=…) declares a view"
        raise UnknownDataset(error.message, hint=hint, name=name) from error
    if (to := succeeded_by(found.shown.state)) is not None and found.replaces is None:
        last = last_in_line(lake, str(found.id), to.name)
        now = "" if last is None else f"; the view is lake.view({last.name!r})"
        raise NotAView(
            f"{found.name!r} has the rows that view {to.name!r} had before it was made anew",
            hint=f"read it with lake[{found.name!r}], or drop it{now}",
            view=found.name,
        )
    require_stored(found.name, found.worked.state)
    return View(found.name, found.id, lake)


def all_of(lake: LakeLike) -> list[View]:
    """The views of a lake in alphabetical order."""
    views: list[View] = []
    for entry in names.entries(lake.store):
        try:
            found = find(lake, entry.name)
        except UnknownDataset:
            if names.exists(lake.store, entry.name):
                raise
            continue  # dropped since it was listed
        to = succeeded_by(found.shown.state)
        has_place = to is None or to.name.lower() == found.name.lower()  # in a swap the old rows have another name, too
        if has_place and is_view(found.worked.state):
            views.append(View(found.name, found.id, lake))
    return views


def declared(lake: LakeLike, name: str, *, source: Any, select: Any, where: Any, sql: Any) -> View:
    """The view of this name with this definition, made if it is not there yet."""
    from floodmark.transform.views.defined.declare import declare

    names.check_name(name)
    declare(lake, name, define(name, sql=sql, source=_source(lake, name, source), select=select, where=where))
    return opened(lake, name)


def _source(lake: LakeLike, name: str, given: Any) -> Any:
    """The name of a source that was given as a dataset, which has to be one of this lake."""
    if not isinstance(given, ledger.Dataset):
        return given
    if (called := _name_now(lake, given)) is not None:
        return called
    raise BadView(
        f"view {name!r}: its source {given!r} is no dataset of {lake!r}",
        hint="a view reads datasets of its own lake: write the data there first",
        view=name,
    )


def _name_now(lake: LakeLike, dataset: ledger.Dataset) -> str | None:
    """The name under which a lake has a dataset now; None if it is none of its datasets."""
    wanted = dataset.id
    if names.stands_for(lake.store, dataset.name, wanted):
        return dataset.name
    return next((entry.name for entry in names.entries(lake.store) if entry.id == wanted), None)
