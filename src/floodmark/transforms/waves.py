"""Waves: the work of a run between two commits, in the order of the changes, and the positions after each commit.

A plain run of kind map processes ranges of records; every other run processes a list of keys. After a new version or a
reset, everything is one wave, so that readers see all new results at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from floodmark.derive.changed_keys import refuse_purged_input
from floodmark.derive.inputs import InputSnapshot
from floodmark.derive.key_shape import KeyShape
from floodmark.derive.positions import NO_POSITION, advance_positions, first_by_dataset
from floodmark.engine.rounds import TaskRunner
from floodmark.ledger.selection import NO_OFFSETS
from floodmark.transforms.changelist import (
    Changelist,
    Choice,
    build_changelist,
    build_failed_changelist,
    build_requested_changelist,
    build_stale_changelist,
    find_known_keys,
)
from floodmark.transforms.existing_keys import have_rows
from floodmark.transforms.live_keys import KeySet
from floodmark.transforms.meta import TransformMeta
from floodmark.transforms.run_scope import ChangedScope, FailedScope, RequestedScope, RunScope, parse_requested_parts
from floodmark.transforms.snapshot import StepSnapshot
from floodmark.transforms.task import Unit
from floodmark.transforms.work_planner import (
    UNIT_ROWS,
    find_unchanged_rows,
    plan_inline_units,
    plan_key_units,
    plan_map_units,
    plan_stale_map_units,
)
from floodmark.transforms.work_units import KeysUnit, RangeUnit, ScratchDir


@dataclass(frozen=True)
class Wave:
    """Some units of work, and the positions after their commit."""

    units: Sequence[Unit]
    positions: dict[str, int]
    is_complete: bool  # whether nothing is left to do after it
    checked: TransformMeta | None = None  # filters out processed rows of ranges
    unchanged: int = 0  # keys that are skipped, because no column that the step reads has changed


@dataclass(frozen=True)
class Waves:
    """The waves of a run with one snapshot and one scope. Later waves are planned when they are needed."""

    step_snapshot: StepSnapshot
    scope: RunScope
    now_ms: int
    runner: TaskRunner

    @property
    def shape(self) -> KeyShape:
        return self.step_snapshot.required_shape

    @property
    def since(self) -> dict[str, int]:
        """Where the run starts in each input."""
        positions = self.step_snapshot.positions
        return dict.fromkeys(positions, NO_POSITION) if self.step_snapshot.stale is not None else positions

    @property
    def reads_ranges(self) -> bool:
        """Whether the run processes ranges of records, without a list of keys."""
        step, scope = self.step_snapshot.step, self.scope
        if not isinstance(scope, ChangedScope) or not scope.is_whole or step.filters is not None:
            return False
        if self.shape.kind != "map" or step.order_by is not None or self.step_snapshot.inputs[0].has_own:
            return False
        if self.step_snapshot.meta.manifest.has_lost and self.step_snapshot.stale is None:
            return False
        if self.step_snapshot.stale is not None:
            return True
        if self.shape.inputs[0].compared is not None and self._most is not None:
            return False  # a commit in between would pass records of keys whose rows come later
        return step.use_offset_optimization and not self.step_snapshot.has_due(self.now_ms)

    @property
    def outputs(self) -> list[InputSnapshot]:
        """The existing outputs, as inputs to read from."""
        return [
            InputSnapshot(output.name, str(output.id), output.snapshot, has_own=output.is_shared)
            for output in self.step_snapshot.outputs
            if output.snapshot is not None
        ]

    @cached_property
    def changelist(self) -> Changelist:
        """The keys to process, in order."""
        step_snapshot, shape = self.step_snapshot, self.shape
        match self.scope:
            case RequestedScope(keys):
                parts = parse_requested_parts(shape, keys, step_snapshot.step.name)
                declared = step_snapshot.step.filters
                return build_requested_changelist(
                    shape, step_snapshot.inputs, self.outputs, parts, self.runner, declared=declared
                )
            case FailedScope():
                return build_failed_changelist(shape, step_snapshot.meta.failed())
            case ChangedScope(filters, max_records):
                step, turn = step_snapshot.step, step_snapshot.meta.manifest.generation
                choice = Choice(filters, step.order_by, max_records, step.filters, turn)
                if step_snapshot.stale is not None:
                    return build_stale_changelist(shape, step_snapshot.inputs, self.outputs, self.runner, choice=choice)
                return build_changelist(
                    shape,
                    step_snapshot.inputs,
                    self.outputs,
                    step_snapshot.meta,
                    self.now_ms,
                    self.runner,
                    version=2 if step.use_offset_optimization else 1,
                    choice=choice,
                    lost=self._lost_keys,
                )

    @property
    def _lost_keys(self) -> KeySet | None:
        """The keys whose results may include records that inputs lost."""
        meta = self.step_snapshot.meta
        if not meta.manifest.has_lost:
            return None
        known = find_known_keys(self.shape, self.step_snapshot.inputs, self.outputs, meta.failed(), self.runner)
        at = np.flatnonzero(meta.lost_keys(known.hashes))
        return KeySet(known.table.take(pa.array(at)), known.hashes.take(at))

    def run(self, scratch: ScratchDir) -> Iterator[Wave]:
        """The waves. There is at least one, even if it only moves positions."""
        return self._ranges() if self.reads_ranges else self._lists(scratch)

    @property
    def _most(self) -> int | None:
        """The most keys of a wave; None for no limit."""
        if self.step_snapshot.stale is not None or not isinstance(self.scope, ChangedScope):
            return None
        return self.scope.commit_every or self.step_snapshot.step.commit_every

    def _ranges(self) -> Iterator[Wave]:
        step_snapshot = self.step_snapshot
        [only] = step_snapshot.inputs
        since = self.since[only.dataset_id]
        is_ahead = step_snapshot.stale is None and step_snapshot.meta.is_ahead([only.dataset_id])
        checked = step_snapshot.meta if is_ahead else None
        most = self._most
        rows = UNIT_ROWS if most is None else min(UNIT_ROWS, most)
        unchanged = NO_OFFSETS
        if step_snapshot.stale is not None:
            units = plan_stale_map_units(only, self.shape, self.outputs, self.runner, rows)
            gone = [unit for unit in units if isinstance(unit, KeysUnit)]
        else:
            refuse_purged_input(only, step_snapshot.meta)
            if since != NO_POSITION or checked is not None:  # else no key was processed before
                unchanged = find_unchanged_rows(only, self.shape, since, self.runner, checked)
            units = plan_map_units(only, self.shape, since, self.runner, checked, rows, unchanged)
            gone = self._known([unit for unit in units if isinstance(unit, KeysUnit)])
        ranges = [unit for unit in units if isinstance(unit, RangeUnit)]
        # Gone keys come first: they must be processed before a position passes their retractions.
        wave: list[Unit] = [*gone]
        rows_in_wave = 0
        for unit in ranges:
            if most is not None and rows_in_wave and rows_in_wave + unit.rows > most:
                [first] = only.seen_at(np.array([unit.start])).tolist()
                yield Wave(wave, {only.dataset_id: max(since, first - 1)}, is_complete=False, checked=checked)
                wave, rows_in_wave = [], 0
            wave.append(unit)
            rows_in_wave += unit.rows
        yield Wave(wave, step_snapshot.last_offsets, is_complete=True, checked=checked, unchanged=len(unchanged))

    def _known(self, gone: Sequence[KeysUnit]) -> list[KeysUnit]:
        """Gone keys that were processed before or have rows in an output. Others have nothing to remove."""
        if not gone:
            return []
        keys = pa.concat_tables([unit.load() for unit in gone])
        hashes = self.shape.hash_keys(keys)
        kept = self.step_snapshot.meta.find(hashes).seen | have_rows(self.outputs, hashes)
        return plan_inline_units(keys.filter(pa.array(kept)))

    def _lists(self, scratch: ScratchDir) -> Iterator[Wave]:
        step_snapshot, found = self.step_snapshot, self.changelist
        keeps_positions = not isinstance(self.scope, ChangedScope) or self.scope.filters is not None
        most = self._most or max(len(found), 1)
        for start in range(0, max(len(found), 1), most):
            end = min(start + most, len(found))
            units = plan_key_units(
                found.keys.slice(start, end - start), self.shape, step_snapshot.inputs, self.runner, scratch
            )
            pending = first_by_dataset(self.shape.ids, found.first_pending(end))
            positions = (
                self.since if keeps_positions else advance_positions(self.since, step_snapshot.last_offsets, pending)
            )
            is_complete = not keeps_positions and end == len(found) == found.found
            yield Wave(units, positions, is_complete, unchanged=sum(found.unchanged))
