"""`View`: a dataset that holds the result of a query, kept up to date by `refresh`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import pyarrow as pa

from floodmark.chain.ids import DatasetId
from floodmark.dataset import Dataset, DatasetParts
from floodmark.derive.inputs import LakeLike
from floodmark.errors import (
    BadPosition,
    BadView,
    FloodmarkError,
    NotAView,
    UnknownDataset,
    ViewChanged,
    never_refreshed,
)
from floodmark.ledger import names
from floodmark.ledger.create import dataset_objects
from floodmark.ledger.ledger import Ledger
from floodmark.ledger.names import NameEntry
from floodmark.ledger.objects import DatasetObjects
from floodmark.ledger.position import Position
from floodmark.ledger.scan import Scan
from floodmark.ledger.schema import Layout
from floodmark.ledger.snapshot import Snapshot
from floodmark.ledger.strategy import is_view
from floodmark.storage.pointer import read_consistently
from floodmark.views.analysis import Analysis, RefreshKind
from floodmark.views.definition import ViewDefinition, define
from floodmark.views.replacement import find_view, find_view_by
from floodmark.views.stored_definition import StoredView, require_stored_view

if TYPE_CHECKING:
    from floodmark.functions.udf import Udf
    from floodmark.views.explanation import Explanation
    from floodmark.views.plan import RefreshPlan, RefreshReport

P = ParamSpec("P")
T = TypeVar("T")


class ViewLedger(Ledger):
    """The ledger of a view. When another dataset replaces the view's dataset, it switches to that one."""

    def __init__(self, name: str, dataset_id: DatasetId, lake: LakeLike) -> None:
        super().__init__(name, dataset_objects(lake.store, dataset_id), lake.runtime)
        self._store = lake.store
        self.entry = NameEntry(name, dataset_id)  # of the view's name, as last read

    def snapshot(self) -> Snapshot:
        """The view at its current head; after a replacement, the head of the new dataset."""
        while True:
            entry = self.find_entry()
            try:
                return super().snapshot()
            except UnknownDataset:  # the view was dropped, or only the dataset that was replaced
                if self.find_entry() == entry:
                    raise

    def find_entry(self) -> NameEntry:
        """The entry of the view's current name. Switches to the dataset that has this name now."""
        entry = names.find_entry_of(self._store, self.entry.id, self.entry.name)
        if entry is None:
            raise self.gone()
        if entry.id != self.entry.id:
            self.move_to(dataset_objects(self._store, entry.id))
        self.entry = entry
        return entry

    def retry_if_replaced(self, read: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        """Read again if the view was replaced during the read, because its offsets and keys are different then."""

        def moved(before: DatasetObjects) -> bool:
            self.snapshot()  # switches datasets, in case the old one was replaced and dropped
            return self.objects is not before

        answer, _ = read_consistently(
            lambda: self.objects,
            lambda before: (read(*args, **options), self.objects is before),
            moved,
            replaced=(FloodmarkError,),
            doubted=lambda pair: not pair[1],
        )
        return answer

    def layout(self, snapshot: Snapshot) -> Layout:
        """The columns of the view; `ViewError` before its first refresh."""
        if snapshot.layout is None:
            raise never_refreshed(self.name)
        return snapshot.layout

    def changes(self, since: int | Position | None, until: int | Position | None) -> Scan:
        """The records after `since`, which must be in the view's current dataset."""
        try:
            return super().changes(since, until)
        except BadPosition as error:
            if not self.entry.previous:
                raise
            at = since.offset if isinstance(since, Position) else since
            no_such = f"does not have the position {at}" if isinstance(since, Position) else f"has no offset {at} yet"
            raise ViewChanged(
                f"view {self.name!r} {no_such}: it was replaced, and offsets begin at 0 again",
                hint="read the whole view once, then continue from its View.position(), which names the view's new id",
                view=self.name,
                offset=at,
            ) from error


class View(Dataset):
    """A query over datasets together with its stored result, which is read like any dataset.

    `Lake.view` creates or opens one. Reads return the result as of the last `refresh`, even if the inputs or the
    definition have changed since.
    """

    _lake: LakeLike
    _ledger: ViewLedger

    @classmethod
    def of_lake(cls, name: str, dataset_id: DatasetId, lake: LakeLike) -> View:
        """The view with this name and id."""
        view = object.__new__(cls)
        view._lake = lake
        view._ledger = ViewLedger(name, dataset_id, lake)
        view.parts = DatasetParts.of(view._ledger)
        return view

    # Definition

    @property
    def definition(self) -> ViewDefinition:
        """The declared query."""
        return self._stored.definition

    @property
    def analysis(self) -> Analysis:
        """The result of analysing the query: how the view is refreshed, its key, and its inputs."""
        return self._stored.analysis

    @property
    def refresh_kind(self) -> RefreshKind:
        """How it is refreshed: by changed input rows, groups or join keys, changes by operator, or as a whole."""
        return self.analysis.kind

    @property
    def whole_reason(self) -> str | None:
        """Why it can only be refreshed as a whole; None if it can be refreshed in parts."""
        return self.analysis.why

    @property
    def refresh_keys(self) -> tuple[str, ...]:
        """The columns of the groups or join keys; empty if the view is refreshed as a whole."""
        return self.analysis.t

    def explain(self) -> Explanation:
        """The query as a tree: the rule by which each operator is maintained, and what the last refresh did there.

        `print` it, or use its parts. Reads no data and starts no Spark.
        """
        from floodmark.views.explanation import explain
        from floodmark.views.snapshot import read_note

        return explain(self.name, self.analysis, read_note(self.name, self.snapshot()))

    @property
    def inputs(self) -> tuple[str, ...]:
        """The current names of its input datasets. A dropped one has the name that the query uses."""
        return tuple(self._called().values())

    @property
    def positions(self) -> dict[str, int]:
        """Per input, the offset of the newest record that the view includes; -1 if there is none."""
        from floodmark.derive.positions import NO_POSITION
        from floodmark.views.snapshot import read_note

        note = read_note(self.name, self.snapshot())
        seen = {} if note is None else note.positions
        return {name: seen.get(dataset_id, NO_POSITION) for dataset_id, name in self._called().items()}

    @property
    def _stored(self) -> StoredView:
        shown = self.snapshot()
        if self._ledger.entry.pending is not None:
            shown = find_view_by(self._lake, self._ledger.find_entry).refreshed
        return require_stored_view(self.name, shown.state)

    def _called(self) -> dict[str, str]:
        """The names of the inputs by dataset id."""
        uses = self.analysis.sources
        return {
            use.dataset_id: names.find_input_name(self._lake.store, use.dataset_id, use.alias) or use.alias
            for use in uses
        }

    # Refresh

    def refresh(self, *, retry_errors: bool = False, udfs: Sequence[Udf] = ()) -> RefreshReport:
        """Bring the view up to date with its inputs: recompute only what changed, write only what differs.

        Readers see the old result until the refresh is done. An interrupted refresh can be started again. `udfs` are
        needed only where the functions of the view are neither defined nor imported; `retry_errors` also recomputes the
        rows whose function failed. Raises `FunctionFailed`, a `RunFailed`, at the first row that fails and that
        `on_error` does not skip; then the view stays as it was.
        """
        from floodmark.views.refresh import refresh

        name, cache = self._ledger.find_entry().name, self.parts.rows.cache
        return refresh(self._lake, name, retry_errors=retry_errors, udfs=tuple(udfs), cache=cache)

    def reset(self) -> None:
        """Make the next refresh recompute every row and call its functions again. Readers see no change until then.

        Only the differences are written.
        """
        from floodmark.views.refresh import reset

        reset(self._lake, self._ledger.find_entry().name)

    def plan_refresh(self) -> RefreshPlan:
        """What `refresh` would do now, and why: the records, groups or keys that it would process. Starts no Spark."""
        from floodmark.views.plan import plan_refresh

        return plan_refresh(self._lake, self._ledger.find_entry().name)

    def errors(self) -> pa.Table:
        """The rows that have no value because a function of the view failed for them."""
        from floodmark.views.functions import read_errors

        return read_errors(self.name, self.snapshot())


def open_view(lake: LakeLike, name: str) -> View:
    """The view with this name; `NotAView` if the dataset is not a view."""
    try:
        found = find_view(lake, name)
    except UnknownDataset as error:
        hint = f"{error.hint}; lake.view({name!r}, sql=…) declares a view"
        raise UnknownDataset(error.message, hint=hint, name=name) from error
    entry = found.entry
    if entry.rows_of is not None:
        view = names.find_entry_of(lake.store, entry.id, entry.rows_of)
        if view is not None and view.id == entry.id:  # an unfinished replacement reserved this name for the old rows
            return View.of_lake(view.name, view.id, lake)
        now = "" if view is None else f"; the view is lake.view({view.name!r})"
        raise NotAView(
            f"{entry.name!r} has the rows that view {entry.rows_of!r} had before it was replaced",
            hint=f"read it with lake[{entry.name!r}], or drop it{now}",
            view=entry.name,
        )
    require_stored_view(entry.name, found.refreshed.state)
    return View.of_lake(entry.name, entry.id, lake)


def list_views(lake: LakeLike) -> list[View]:
    """The views of a lake in alphabetical order."""
    views: list[View] = []
    for entry in names.entries(lake.store):
        try:
            found = find_view(lake, entry.name)
        except UnknownDataset:
            if names.exists(lake.store, entry.name):
                raise
            continue  # dropped since it was listed
        if found.entry.rows_of is None and is_view(found.refreshed.state):
            views.append(View.of_lake(found.entry.name, found.entry.id, lake))
    return views


def declare_view(lake: LakeLike, name: str, *, source: Any, **given: Any) -> View:
    """The view with this name and definition; created if it does not exist."""
    from floodmark.views.declare import declare

    names.check_name(name)
    declare(lake, name, define(name, source=_resolve_source(lake, name, source), **given))
    return open_view(lake, name)


def _resolve_source(lake: LakeLike, name: str, given: Any) -> Any:
    """The name of an input that was given as a dataset, which must be in this lake."""
    if not isinstance(given, Dataset):
        return given
    dataset_id = given.id
    if names.names_dataset(lake.store, given.name, dataset_id):
        return given.name
    for entry in names.entries(lake.store):
        if entry.id == dataset_id:
            return entry.name
    raise BadView(
        f"view {name!r}: its input {given!r} is not a dataset of {lake!r}",
        hint="a view can only read datasets in the same lake: copy the data into this lake first",
        view=name,
    )
