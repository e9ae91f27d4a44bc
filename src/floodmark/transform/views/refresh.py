"""Refreshing a view: pin, see what was touched, ask Spark about these rows alone, commit. The place to start reading.

Heads are pinned before anything is read; the view shows what it held until the one commit at the end. A refresh that
loses a race, or whose sources are replaced while it reads them, starts again with what there is then. Values of
functions are found in their checkpoints by whoever comes next. What is needed only where there is something to do is
imported only then.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from floodmark.derive.run import Derivation, run
from floodmark.derive.turns import take_dataset_turn
from floodmark.engine.shipping import NotShippable
from floodmark.errors import LostRace
from floodmark.storage.errors import StorageError
from floodmark.transform.errors import BadMeta, InputMoved
from floodmark.transform.lakes import LakeLike
from floodmark.transform.views.defined.replacement import carry_values, install
from floodmark.transform.views.note import RESET
from floodmark.transform.views.pinned import Outdated, PinnedView, is_in_place, pin_view
from floodmark.transform.views.report import Refreshed

if TYPE_CHECKING:
    from floodmark.compute.functions.udf import Udf

R = TypeVar("R")


def refresh(
    lake: LakeLike,
    name: str,
    *,
    retry_errors: bool = False,
    udfs: Sequence[Udf] = (),
    cache: dict[str, Any] | None = None,
) -> Refreshed:
    """Bring a view up to date; where there is nothing to do, little is read and nothing written.

    With `retry_errors`, functions are called again for rows that they failed for. `udfs` are functions of the view
    that this process does not know otherwise. `cache` is what the last refresh has left open of the view's key index.
    """
    return run(_Refresh(lake, name, retry_errors, tuple(udfs), cache))


def reset(lake: LakeLike, name: str) -> None:
    """Have the next refresh derive everything, whatever has moved; readers keep what there is until then."""
    run(_Reset(lake, name))


class _Renewed(InputMoved, LostRace):
    """The query was analysed again for the present columns of its sources: pin these."""


@dataclass
class _OnView(Derivation[PinnedView | Outdated, R]):
    """What a refresh and a reset share: the view as of now, its turn, and whether it has moved."""

    lake: LakeLike
    name: str

    def pin(self) -> PinnedView | Outdated:
        return pin_view(self.lake, self.name)

    def turn(self, state: PinnedView | Outdated) -> AbstractContextManager[None]:
        other = f"another refresh of {self.name}"
        return take_dataset_turn(state.snapshot.objects, other, self.lake.runtime.progress())

    def moved(self, state: PinnedView | Outdated) -> bool:
        return state.snapshot.has_moved or not is_in_place(state)


@dataclass
class _Refresh(_OnView[Refreshed]):
    retry_errors: bool
    udfs: tuple[Udf, ...]
    cache: dict[str, Any] | None
    began: float = field(default_factory=time.monotonic)
    renewed: int = 0

    replaced = (BadMeta, StorageError, OSError)

    def pin(self) -> PinnedView | Outdated:
        pinned = super().pin()
        if isinstance(pinned, PinnedView):
            pinned.check_positions()
        return pinned

    def idle(self, state: PinnedView | Outdated) -> Refreshed | None:
        if isinstance(state, Outdated) or not _is_nothing(state, self.retry_errors):
            return None
        found = _nothing(state, self.began)
        return replace(found, why=None, commits=self.renewed) if self.renewed else found

    def inputs_moved(self, state: PinnedView | Outdated) -> bool:
        return isinstance(state, PinnedView) and any(source.given.snapshot.has_moved for source in state.sources)

    def attempt(self, state: PinnedView | Outdated) -> Refreshed:
        if isinstance(state, Outdated):
            _renew(self.lake, state)
            self.renewed += 1
            raise _Renewed(
                f"the columns of the sources of view {self.name!r} kept changing",
                hint="refresh it again",
                input=self.name,
            )
        if state.is_made_anew and state.is_derived:
            return _installed(self.lake, state, _nothing(state, self.began))
        report = _installed(self.lake, state, self._derived(state))
        return replace(report, seconds=time.monotonic() - self.began)

    def _derived(self, pinned: PinnedView) -> Refreshed:
        from floodmark.transform.views.attempt import Attempt

        if pinned.replaces is not None and pinned.note is None and pinned.definition.udfs:
            carry_values(pinned.replaces, pinned.snapshot)
        # What is made anew is another dataset, of which nothing is open yet.
        known = self.cache if self.cache is not None and pinned.replaces is None else {}
        attempt = Attempt(self.lake, pinned, self.udfs, self.retry_errors, known)
        try:
            return attempt.run()
        except NotShippable:
            attempt.check_shippable()  # says more
            raise


@dataclass
class _Reset(_OnView[bool]):
    """Forgets what a view was made of, and the values of its functions."""

    def attempt(self, state: PinnedView | Outdated) -> bool:
        from floodmark.compute.stored.objects import ColumnObjects
        from floodmark.ledger.merge.derive import Moves, Results, derive

        objects, runtime = state.snapshot.objects, self.lake.runtime
        values = ColumnObjects(objects).checkpoints
        # First: whoever is killed here has lost some work, and who finds the note has to find no values.
        for key in values.list_keys():
            values.delete(key)
        if state.note is None or state.note.version == RESET:
            return True
        note = replace(state.note, version=RESET)
        moved = Moves(checkpoint=note.checkpoint, put=partial(note.put, objects))
        progress = runtime.progress()
        try:
            derive(self.name, runtime, state.snapshot, Results((), ()), moved, progress, {})
        finally:
            progress.finish()
        return True


def _is_nothing(pinned: PinnedView, retry_errors: bool) -> bool:
    failed = pinned.note is not None and pinned.note.errors is not None
    return pinned.is_up_to_date and not (retry_errors and failed and pinned.has_sources and not pinned.is_waiting)


def _nothing(pinned: PinnedView, began: float) -> Refreshed:
    return Refreshed(
        view=pinned.name,
        kind=pinned.analysis.kind,
        why=pinned.analysis.why,
        waiting=sum(source.waiting for source in pinned.sources),
        positions=pinned.named(pinned.positions),
        seconds=time.monotonic() - began,
    )


def _installed(lake: LakeLike, pinned: PinnedView, report: Refreshed) -> Refreshed:
    """Let a view that was made anew take the place of the one with its name; most views have theirs."""
    if pinned.replaces is None:
        return report
    heir = pinned.snapshot.state.dataset_id
    assert heir is not None  # every chain starts with a Seed
    kept = install(lake, pinned.name, pinned.replaces, heir)
    return replace(report, kept_as=kept, commits=report.commits + 1)


def _renew(lake: LakeLike, outdated: Outdated) -> None:
    """Analyse a query again whose sources have other columns now, and keep what it comes to."""
    from floodmark.transform.views.analysed.analyse import analyse_in
    from floodmark.transform.views.defined.replacement import redefine
    from floodmark.transform.views.defined.stored import Stored

    name, known = outdated.name, outdated.stored
    analysed = analyse_in(lake, known.definition, view=name, known=known.analysis, settings=known.analysis.settings)
    wanted = Stored(known.definition, analysed)
    redefine(lake, name, wanted, instead_of=known.definition)
