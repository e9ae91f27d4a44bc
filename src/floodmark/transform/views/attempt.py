"""One attempt to refresh a view: from what was pinned to a commit."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa

from floodmark.compute.functions.udf import Udf
from floodmark.compute.options import Options
from floodmark.derive.positions import blocks_at
from floodmark.engine import Progress
from floodmark.engine.rounds import Runner
from floodmark.ledger.commit import Commit
from floodmark.ledger.incoming import Frame, SparkFrame
from floodmark.ledger.selection import NOBODY
from floodmark.storage.arrays import I64
from floodmark.storage.scratch import staging_area
from floodmark.transform.lakes import LakeLike
from floodmark.transform.views import failures
from floodmark.transform.views.computed import Computed, Computing
from floodmark.transform.views.defined.definition import UdfColumn
from floodmark.transform.views.defined.functions import function_of
from floodmark.transform.views.evaluate import Evaluator, IsolatedSession, empty_answer
from floodmark.transform.views.failing import failing
from floodmark.transform.views.failures import Failures
from floodmark.transform.views.local_frame import local_frame
from floodmark.transform.views.note import Note
from floodmark.transform.views.pinned import PinnedView
from floodmark.transform.views.publish import Answer, Publisher
from floodmark.transform.views.reading.rows import Large, Small, rows_at, rows_of, whole_of
from floodmark.transform.views.reading.sources import PinnedSource
from floodmark.transform.views.reading.touched import keys_at, touched
from floodmark.transform.views.report import Refreshed

MOST = 0.5
"""When more than this part of a source's rows is new, everything is derived: finding what was touched does not pay."""

FEW_RECORDS = 10_000
"""So few new records are always worth looking at alone."""

_MS = 10**6
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Attempt:
    """A refresh of a view as it was pinned."""

    lake: LakeLike
    pinned: PinnedView
    udfs: tuple[Udf, ...]
    retry_errors: bool
    cache: dict[str, Any] = field(repr=False)  # what is open of the view's key index

    def run(self) -> Refreshed:
        """Compute what there is to compute, and commit it."""
        pinned, runtime = self.pinned, self.lake.runtime
        progress = runtime.progress()
        progress.start(f"refreshing {pinned.name}", None)
        try:
            with staging_area(pinned.snapshot.objects.store) as folder:
                publisher = Publisher(pinned, runtime, folder, progress, self.cache)
                if (stale := self._stale) is not None or pinned.analysis.kind == "whole":
                    return self._everything(publisher, stale)
                return self._touched(publisher)
        finally:
            progress.finish()

    @cached_property
    def functions(self) -> tuple[tuple[UdfColumn, Udf], ...]:
        """The columns that functions compute, with these."""
        return tuple((c, function_of(self.pinned.name, c, self.udfs)) for c in self.pinned.definition.udfs)

    def check_shippable(self) -> None:
        """Refuse functions that cannot be sent to workers, and say what it is about them."""
        for _, udf in self.functions:
            udf.check_shippable()

    @property
    def _stale(self) -> str | None:
        """Why everything is derived, if so."""
        if self.pinned.stale is not None:
            return self.pinned.stale
        for source in self.pinned.moved:
            new, rows = source.head - self.pinned.positions[source.dataset_id], source.given.live_rows
            if new > max(FEW_RECORDS, MOST * rows):
                return f"most rows of {source.name!r} are new"
        return None

    # Everything

    def _everything(self, publisher: Publisher, stale: str | None) -> Refreshed:
        pinned = self.pinned
        with _timed("everything"):
            inputs = {source.alias: whole_of(source, pinned.analysis, self._session) for source in pinned.sources}
            answer = self._answer(inputs)
            computed = self._computed(answer, publisher.folder, publisher.progress)
            failed = Failures().joined({} if computed is None else computed.errors)
            note = self._note(failed, keys=0)
            with failing(pinned.name):
                commit = publisher.publish_all(answer if computed is None else computed.answer, note, failed)
        return self._report(commit, stale, 0, computed)

    # What was touched

    def _touched(self, publisher: Publisher) -> Refreshed:
        pinned, before = self.pinned, self._failures
        with _timed("touched"):
            found = touched(pinned.sources, pinned.analysis, pinned.positions, self._runner)
            again = before.offsets if self.retry_errors else NOBODY
        if not len(found) and not len(again):
            note = self._note(before, keys=0)
            return self._report(publisher.publish_nothing(note, before), None, 0, None)
        with _timed("rows"):
            inputs = {s.alias: rows_of(s, pinned.analysis, found, self._session) for s in pinned.sources}
            keys = found.keys
            if len(again):
                keys, inputs = self._with_failed(again, keys, inputs)
        with _timed("query"):
            answer = self._answer(inputs)
        with _timed("functions"):
            computed = self._computed(answer, publisher.folder, publisher.progress)
            failed = before if computed is None else before.without(computed.offsets).joined(computed.errors)
        note = self._note(failed, keys=keys.num_rows)
        with _timed("commit"), failing(pinned.name):
            rows: Answer = answer if computed is None else computed.answer
            commit = publisher.publish_some(rows, keys, note, failed)
        return self._report(commit, None, keys.num_rows, computed)

    def _with_failed(
        self, offsets: I64, keys: pa.Table, inputs: Mapping[str, Small | Large]
    ) -> tuple[pa.Table, dict[str, Small | Large]]:
        """With the rows that functions failed for: they are current, so nothing new is known of their keys."""
        analysis, [source] = self.pinned.analysis, self.pinned.sources
        more, rows = rows_at(source, analysis, offsets), inputs[source.alias]
        if isinstance(rows, Large):
            rows = Large(rows.frame.unionAll(local_frame(more, self._session.get())))
        else:
            rows = Small(pa.concat_tables([rows.table, more]))
        return pa.concat_tables([keys, keys_at(source, analysis, offsets)]), {source.alias: rows}

    def _answer(self, inputs: Mapping[str, Small | Large]) -> Frame | SparkFrame:
        """What the query gives for these rows; for none at all nobody has to be asked, unless it counts even those."""
        is_empty = all(isinstance(rows, Small) and not rows.table.num_rows for rows in inputs.values())
        if is_empty and self.pinned.analysis.kind != "whole":
            return empty_answer(self._evaluator.columns, self.pinned.analysis.stored)
        return self._evaluator.evaluate(inputs)

    # What both need

    @cached_property
    def _session(self) -> IsolatedSession:
        return IsolatedSession(self.lake.runtime.session, self.pinned.analysis.settings)

    @cached_property
    def _runner(self) -> Runner:
        return Runner(self.lake.runtime.session)

    @property
    def _evaluator(self) -> Evaluator:
        names = frozenset(column.name for column, _ in self.functions)
        return Evaluator(self.pinned.name, self.pinned.analysis, names, self._session)

    def _computed(self, answer: Frame | SparkFrame, folder: Path, progress: Progress) -> Computed | None:
        """The answer with the columns of functions; None when there are none."""
        if not self.functions:
            return None
        [source] = self.pinned.sources
        target = self.lake.runtime.checkpoint_seconds
        options = Options(retry_errors=self.retry_errors, target_seconds=target)
        objects = self.pinned.snapshot.objects
        parts = (objects, options, self._runner, self.lake.runtime, folder, progress)
        with failing(self.pinned.name):
            return Computing(source, self.functions, *parts).complete(answer)

    @property
    def _failures(self) -> Failures:
        """The errors that were noted of rows that are still there."""
        note, objects = self.pinned.note, self.pinned.snapshot.objects
        if note is None or note.errors is None:
            return Failures()
        [source] = self.pinned.sources
        return failures.load(self.pinned.name, note.errors, objects).without(source.given.dead)

    def _note(self, failed: Failures, keys: int) -> Note:
        pinned, runtime = self.pinned, self.lake.runtime
        return Note(
            version=pinned.version,
            positions=pinned.heads,
            blocks=blocks_at(pinned.heads, [source.given for source in pinned.sources]),
            purged=pinned.purged,
            generations=pinned.generations,
            errors=failed.name,
            run=runtime.random_bytes(16).hex(),
            process_ts=runtime.clock() // _MS,
            records=self._records,
            keys=keys,
        )

    @property
    def _records(self) -> int:
        """New records of all sources."""
        return sum(max(0, _new(self.pinned, source)) for source in self.pinned.sources)

    def _report(self, commit: Commit, stale: str | None, keys: int, computed: Computed | None) -> Refreshed:
        pinned = self.pinned
        return Refreshed(
            view=pinned.name,
            kind=pinned.analysis.kind,
            why=pinned.analysis.why,
            stale=stale,
            records=self._records,
            keys=keys,
            new=commit.new,
            changed=commit.changed,
            retracted=commit.retracted,
            called=0 if computed is None else computed.called,
            reused=0 if computed is None else computed.reused,
            failed=0 if computed is None else computed.failed,
            waiting=sum(source.waiting for source in pinned.sources),
            commits=1,
            positions=pinned.named(pinned.heads),
        )


def _new(pinned: PinnedView, source: PinnedSource) -> int:
    return source.head - max(pinned.positions[source.dataset_id], source.purged_before - 1)


@contextmanager
def _timed(what: str) -> Iterator[None]:
    began = time.perf_counter()
    try:
        yield
    finally:
        _log.debug("%s: %.3f s", what, time.perf_counter() - began)
