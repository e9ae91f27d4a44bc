"""A view as users have it: a dataset that holds the result of a query, and is brought up to date by `refresh`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import pyarrow as pa

from floodmark.chain.ids import DatasetId
from floodmark.dataset import Dataset
from floodmark.errors import FloodmarkError
from floodmark.ledger import names
from floodmark.ledger.create import dataset_objects
from floodmark.ledger.errors import UnknownDataset
from floodmark.ledger.layout import Layout
from floodmark.ledger.ledger import Ledger
from floodmark.ledger.names import Entry
from floodmark.ledger.objects import DatasetObjects
from floodmark.ledger.scan import Scan
from floodmark.ledger.snapshot import Snapshot
from floodmark.storage.retry import read_steadily
from floodmark.transform.lakes import LakeLike
from floodmark.transform.views.analysed.analysis import Analysis, Kind
from floodmark.transform.views.defined.definition import Definition, define
from floodmark.transform.views.defined.replacement import find, find_by
from floodmark.transform.views.defined.stored import Stored, is_view, require_stored
from floodmark.transform.views.errors import BadView, NotAView, ViewChanged, never_refreshed

if TYPE_CHECKING:
    from floodmark.compute.functions.udf import Udf
    from floodmark.transform.views.plan import ViewPlan
    from floodmark.transform.views.report import Refreshed

P = ParamSpec("P")
T = TypeVar("T")


class ViewLedger(Ledger):
    """The ledger of a view, which continues with that of the dataset that takes the view's place."""

    def __init__(self, name: str, dataset_id: DatasetId, lake: LakeLike) -> None:
        super().__init__(name, dataset_objects(lake.store, dataset_id), lake.runtime)
        self._store = lake.store
        self.entry = Entry(name, dataset_id)  # of its name, as last read

    def snapshot(self) -> Snapshot:
        """The view as of its present head: of the dataset that replaced it, if it was made anew since."""
        while True:
            entry = self.find_entry()
            try:
                return super().snapshot()
            except UnknownDataset:  # dropped: the view, or only its old rows
                if self.find_entry() == entry:
                    raise

    def find_entry(self) -> Entry:
        """The entry of its present name; the view follows to the dataset that has the name now."""
        found = names.find_place(self._store, self.entry.id, self.entry.name)
        if found is None:
            raise self.gone()
        if found.id != self.entry.id:
            self.move_to(dataset_objects(self._store, found.id))
        self.entry = found
        return found

    def steadily(self, ask: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        """Ask again when the view was made anew under the question: offsets and keys are others from then on."""

        def moved(before: DatasetObjects) -> bool:
            self.snapshot()  # follows, should what was asked have been old rows, dropped since
            return self.objects is not before

        found, _ = read_steadily(
            lambda: self.objects,
            lambda before: (ask(*args, **options), self.objects is before),
            moved,
            replaced=(FloodmarkError,),
            doubted=lambda answer: not answer[1],
        )
        return found

    def layout(self, snapshot: Snapshot) -> Layout:
        """The columns of the view; `NeverRefreshed` before its first refresh."""
        if snapshot.layout is None:
            raise never_refreshed(self.name)
        return snapshot.layout

    def changes(self, since: int | None, until: int | None) -> Scan:
        """The records with offsets after `since`, which has to be an offset of the view as it is now."""
        found = super().changes(since, until)
        self._check_offset(since)
        return found

    def _check_offset(self, since: int | None) -> None:
        """Refuse an offset that was taken from the view before it was made anew, where it shows: nothing would come."""
        last = self.snapshot().next_offset - 1
        if since is not None and since > last and self.entry.previous:
            raise ViewChanged(
                f"view {self.name!r} has no offset {since} yet: it was replaced, and offsets begin at 0 again",
                hint="read all of it once, then go on from its last offset; View.id is another one when this happens",
                view=self.name,
                offset=since,
            )


class View(Dataset):
    """A query over datasets and its result, which is read like any dataset's rows.

    Made or found by `Lake.view`. What is read is the result as of the last `refresh`, whatever happens to the sources
    and to the definition meanwhile.
    """

    def __init__(self, name: str, dataset_id: DatasetId, lake: LakeLike) -> None:
        ledger = ViewLedger(name, dataset_id, lake)
        super().__init__(ledger)
        self._lake = lake
        self._ledger = ledger

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
        from floodmark.derive.positions import NOTHING
        from floodmark.transform.views.note import note_of

        note = note_of(self.name, self.snapshot())
        seen = {} if note is None else note.positions
        return {name: seen.get(dataset_id, NOTHING) for dataset_id, name in self._called().items()}

    @property
    def _stored(self) -> Stored:
        shown = self.snapshot()
        if self._ledger.entry.pending is not None:
            shown = find_by(self._lake, self._ledger.find_entry).worked
        return require_stored(self.name, shown.state)

    def _called(self) -> dict[str, str]:
        """The names of the sources by dataset id."""
        uses = self.analysis.sources
        return {
            use.dataset_id: names.find_source(self._lake.store, use.dataset_id, use.alias) or use.alias for use in uses
        }

    # Bringing it up to date

    def refresh(self, *, retry_errors: bool = False, udfs: Sequence[Udf] = ()) -> Refreshed:
        """Bring the view up to date with its sources: only what changed is derived, and only what differs is written.

        Until it is done, readers see what was there before. A refresh that is cut short is simply begun again. `udfs`
        are needed only where the functions of the view are not defined or imported; `retry_errors` also computes rows
        again for which a function has failed.
        """
        from floodmark.transform.views.refresh import refresh

        name, cache = self._ledger.find_entry().name, self.parts.rows.cache
        return refresh(self._lake, name, retry_errors=retry_errors, udfs=tuple(udfs), cache=cache)

    def reset(self) -> None:
        """Have the next refresh derive everything, and call functions for every row; readers see no change until then.

        Only what comes out different is written.
        """
        from floodmark.transform.views.refresh import reset

        reset(self._lake, self._ledger.find_entry().name)

    def plan_refresh(self) -> ViewPlan:
        """What `refresh` would do now: which records, groups or keys it touches, and why. Starts no Spark."""
        from floodmark.transform.views.plan import plan_refresh

        return plan_refresh(self._lake, self._ledger.find_entry().name)

    def errors(self) -> pa.Table:
        """The rows for which a function of the view has failed and which have no value therefore."""
        from floodmark.transform.views.failures import errors_of

        return errors_of(self.name, self.snapshot())


def opened(lake: LakeLike, name: str) -> View:
    """The view of this name; `NotAView` when that is a dataset that is none."""
    try:
        found = find(lake, name)
    except UnknownDataset as error:
        hint = f"{error.hint}; lake.view({name!r}, sql=…) declares a view"
        raise UnknownDataset(error.message, hint=hint, name=name) from error
    entry = found.entry
    if entry.rows_of is not None:
        view = names.find_place(lake.store, entry.id, entry.rows_of)
        if view is not None and view.id == entry.id:  # it is being replaced, and this name was claimed for its rows
            return View(view.name, view.id, lake)
        now = "" if view is None else f"; the view is lake.view({view.name!r})"
        raise NotAView(
            f"{entry.name!r} has the rows that view {entry.rows_of!r} had before it was made anew",
            hint=f"read it with lake[{entry.name!r}], or drop it{now}",
            view=entry.name,
        )
    require_stored(entry.name, found.worked.state)
    return View(entry.name, entry.id, lake)


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
        if found.entry.rows_of is None and is_view(found.worked.state):
            views.append(View(found.entry.name, found.entry.id, lake))
    return views


def declared(lake: LakeLike, name: str, *, source: Any, select: Any, where: Any, sql: Any) -> View:
    """The view of this name with this definition, made if it is not there yet."""
    from floodmark.transform.views.defined.declare import declare

    names.check_name(name)
    declare(lake, name, define(name, sql=sql, source=_source(lake, name, source), select=select, where=where))
    return opened(lake, name)


def _source(lake: LakeLike, name: str, given: Any) -> Any:
    """The name of a source that was given as a dataset, which has to be one of this lake."""
    if not isinstance(given, Dataset):
        return given
    wanted = given.id
    if names.stands_for(lake.store, given.name, wanted):
        return given.name
    for entry in names.entries(lake.store):
        if entry.id == wanted:
            return entry.name
    raise BadView(
        f"view {name!r}: its source {given!r} is no dataset of {lake!r}",
        hint="a view reads datasets of its own lake: write the data there first",
        view=name,
    )
