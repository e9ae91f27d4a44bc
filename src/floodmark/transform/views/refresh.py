"""Refreshing a view: pin, see what was touched, ask Spark about these rows alone, commit. The place to start reading.

Heads are pinned before anything is read; the view shows what it held until the one commit at the end. A refresh that
loses a race, or whose sources are replaced while it reads them, starts again with what there is then. Values of
functions are found in their checkpoints by whoever comes next. What is needed only where there is something to do is
imported only then.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from floodmark.compute.errors import CheckpointCoverageError
from floodmark.engine.shipping import NotShippable
from floodmark.ledger.errors import CommitConflict
from floodmark.storage.errors import StorageError
from floodmark.transform.errors import BadMeta, InputMoved
from floodmark.transform.lakes import LakeLike
from floodmark.transform.turns import turn
from floodmark.transform.views.defined.succession import carry_values, install
from floodmark.transform.views.pinned import Outdated, PinnedView, pin_view
from floodmark.transform.views.report import Refreshed

if TYPE_CHECKING:
    from floodmark.compute.functions.udf import Udf

_TRIES = 20
"""How often a refresh starts again, when somebody else commits or replaces what it was reading."""


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
    began = time.monotonic()
    pinned = pin_view(lake, name)
    if isinstance(pinned, PinnedView) and _is_nothing(pinned, retry_errors):
        return _nothing(pinned, began)
    problem: Exception = InputMoved(
        f"the columns of the sources of view {name!r} kept changing", hint="refresh it again", input=name
    )
    stood, renewed, is_first = 0, 0, True
    with turn(pinned.snapshot.objects, f"another refresh of {name}", lake.runtime.progress()):
        for _ in range(_TRIES):
            if not is_first or _is_outrun(pinned):
                pinned = pin_view(lake, name)
            is_first = False
            if isinstance(pinned, Outdated):
                _renew(lake, pinned)
                renewed += 1
                continue
            if _is_nothing(pinned, retry_errors):
                found = _nothing(pinned, began)
                return replace(found, why=None, commits=renewed) if renewed else found
            if pinned.is_made_anew and pinned.is_derived:
                try:
                    return _installed(lake, pinned, _nothing(pinned, began))
                except CommitConflict as error:
                    problem = error
                    continue
            from floodmark.transform.views.attempt import Attempt

            if pinned.replaces is not None and pinned.note is None and pinned.definition.udfs:
                carry_values(pinned.replaces, pinned.snapshot)
            # What is made anew is another dataset, of which nothing is open yet.
            known = cache if cache is not None and pinned.replaces is None else {}
            attempt = Attempt(lake, pinned, tuple(udfs), retry_errors, known)
            try:
                report = _installed(lake, pinned, attempt.run())
                return replace(report, seconds=time.monotonic() - began)
            except CommitConflict as error:
                problem = error  # nothing was committed: start again with what there is now
            except (InputMoved, CheckpointCoverageError) as error:
                stood += _sources_stand(pinned)
                if stood > 1:
                    raise  # an index or a checkpoint is mended once; what is damaged stays so
                problem = error
            except NotShippable:
                attempt.check_shippable()  # says more
                raise
            except (BadMeta, StorageError, OSError) as error:
                if not _is_outrun(pinned):
                    raise
                problem = error
    raise problem


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
    from floodmark.transform.views.defined.redefine import redefine
    from floodmark.transform.views.defined.stored import Stored

    name, known = outdated.name, outdated.stored
    analysed = analyse_in(lake, known.definition, view=name, known=known.analysis, settings=known.analysis.settings)
    wanted = Stored(known.definition, analysed)
    redefine(lake, name, wanted, instead_of=known.definition)


def _sources_stand(pinned: PinnedView) -> bool:
    """Whether the sources are still as they were pinned."""
    snapshots = [source.given.snapshot for source in pinned.sources]
    return all(snapshot.objects.read_head() == snapshot.head for snapshot in snapshots)


def _is_outrun(pinned: PinnedView | Outdated) -> bool:
    """Whether somebody else has committed to the view, and may have removed what was stored."""
    return pinned.snapshot.objects.read_head() != pinned.snapshot.head
