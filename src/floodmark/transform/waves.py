"""Waves: what a run processes between two commits, in the order of the changes, and how far that moves positions.

A plain run of a function of single rows takes ranges of records as they lie there; whatever else is asked for is a list
of keys. A new version and a reset are one wave: readers see all of it at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from floodmark.derive.positions import NOTHING, reached
from floodmark.engine.rounds import Runner
from floodmark.transform.asked import asked_parts
from floodmark.transform.changed.changelist import Changelist, Choice, asked_keys, changelist, failed_only, stale_keys
from floodmark.transform.changed.changes import check_purge
from floodmark.transform.changed.inputs import PinnedInput
from floodmark.transform.changed.shape import Shape
from floodmark.transform.changed.universe import have_rows
from floodmark.transform.meta import TransformMeta
from floodmark.transform.pinned import PinnedStep
from floodmark.transform.rows.gather import UNIT_ROWS, held_units, key_units, map_units, stale_map_units
from floodmark.transform.rows.room import Room
from floodmark.transform.rows.units import KeysUnit, RangeUnit
from floodmark.transform.tasks.work import Unit
from floodmark.transform.wanted import Asked, Changed, Failed, Wanted


@dataclass(frozen=True)
class Wave:
    """Some units, and the positions once they are committed. Nothing is left to do after one that is complete."""

    units: Sequence[Unit]
    positions: dict[str, int]
    is_complete: bool
    checked: TransformMeta | None = None  # what ranges of records have to be compared with


@dataclass(frozen=True)
class Waves:
    """What is wanted of a pinned step, wave by wave. Later waves are planned when they are asked for."""

    pinned: PinnedStep
    wanted: Wanted
    now_ms: int
    runner: Runner

    @property
    def shape(self) -> Shape:
        return self.pinned.required_shape

    @property
    def since(self) -> dict[str, int]:
        """Where the run starts in each input."""
        positions = self.pinned.positions
        return dict.fromkeys(positions, NOTHING) if self.pinned.stale is not None else positions

    @property
    def reads_ranges(self) -> bool:
        """Whether records are processed as they lie there, without a list of keys."""
        step, wanted = self.pinned.step, self.wanted
        if not isinstance(wanted, Changed) or not wanted.is_whole or step.filters is not None:
            return False
        if self.shape.kind != "map" or step.order_by is not None:
            return False
        if self.pinned.stale is not None:
            return True
        return step.use_offset_optimization and not self.pinned.has_due(self.now_ms)

    @property
    def outputs(self) -> list[PinnedInput]:
        """The outputs that there are, as they are read."""
        return [
            PinnedInput(output.name, str(output.id), output.snapshot)
            for output in self.pinned.outputs
            if output.snapshot is not None
        ]

    @cached_property
    def changelist(self) -> Changelist:
        """The keys to be processed, in order."""
        pinned, shape = self.pinned, self.shape
        match self.wanted:
            case Asked(keys):
                parts = asked_parts(shape, keys, pinned.step.name)
                declared = pinned.step.filters
                return asked_keys(shape, pinned.inputs, self.outputs, parts, self.runner, declared=declared)
            case Failed():
                return failed_only(shape, pinned.meta.failed())
            case Changed(filters, max_records):
                step, turn = pinned.step, pinned.meta.manifest.generation
                choice = Choice(filters, step.order_by, max_records, step.filters, turn)
                if pinned.stale is not None:
                    return stale_keys(shape, pinned.inputs, self.outputs, self.runner, choice=choice)
                return changelist(
                    shape,
                    pinned.inputs,
                    self.outputs,
                    pinned.meta,
                    self.now_ms,
                    self.runner,
                    version=2 if step.use_offset_optimization else 1,
                    choice=choice,
                )

    def run(self, room: Room) -> Iterator[Wave]:
        """The waves; there is at least one, which may have nothing to do but to move positions."""
        return self._ranges() if self.reads_ranges else self._lists(room)

    @property
    def _most(self) -> int | None:
        """How many keys a wave may have."""
        if self.pinned.stale is not None or not isinstance(self.wanted, Changed):
            return None
        return self.wanted.commit_every or self.pinned.step.commit_every

    def _ranges(self) -> Iterator[Wave]:
        pinned = self.pinned
        [only] = pinned.inputs
        since = self.since[only.dataset_id]
        is_ahead = pinned.stale is None and pinned.meta.is_ahead([only.dataset_id])
        checked = pinned.meta if is_ahead else None
        most = self._most
        rows = UNIT_ROWS if most is None else min(UNIT_ROWS, most)
        if pinned.stale is not None:
            units = stale_map_units(only, self.shape, self.outputs, self.runner, rows)
            gone = [unit for unit in units if isinstance(unit, KeysUnit)]
        else:
            check_purge(only, pinned.meta)
            units = map_units(only, self.shape, since, self.runner, checked, rows)
            gone = self._known([unit for unit in units if isinstance(unit, KeysUnit)])
        ranges = [unit for unit in units if isinstance(unit, RangeUnit)]
        # Keys that are gone come first: a position must not pass their retractions before they are done.
        wave: list[Unit] = [*gone]
        held = 0
        for unit in ranges:
            if most is not None and held and held + unit.rows > most:
                yield Wave(wave, {only.dataset_id: unit.start - 1}, is_complete=False, checked=checked)
                wave, held = [], 0
            wave.append(unit)
            held += unit.rows
        yield Wave(wave, pinned.heads, is_complete=True, checked=checked)

    def _known(self, gone: Sequence[KeysUnit]) -> list[KeysUnit]:
        """Keys that are gone, without those that were never processed: nothing is left of them."""
        if not gone:
            return []
        keys = pa.concat_tables([unit.load() for unit in gone])
        hashes = self.shape.hash_keys(keys)
        kept = self.pinned.meta.find(hashes).seen | have_rows(self.outputs, hashes)
        return held_units(keys.filter(pa.array(kept)))

    def _lists(self, room: Room) -> Iterator[Wave]:
        pinned, found = self.pinned, self.changelist
        keeps_positions = not isinstance(self.wanted, Changed) or self.wanted.filters is not None
        most = self._most or max(len(found), 1)
        for start in range(0, max(len(found), 1), most):
            end = min(start + most, len(found))
            units = key_units(found.keys.slice(start, end - start), self.shape, pinned.inputs, self.runner, room)
            pending = dict(zip(self.shape.ids, found.first_pending(end), strict=True))
            positions = self.since if keeps_positions else reached(self.since, pinned.heads, pending)
            is_complete = not keeps_positions and end == len(found) == found.found
            yield Wave(units, positions, is_complete)
