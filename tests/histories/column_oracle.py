"""Computed columns the naive way: a dictionary from offsets to values for each column, and one of everything stored.

What a backfill must call the function for follows from both; nothing here knows of fragments' files or checkpoints'
ranges. A result that may or may not have survived (a damaged checkpoint, a call cut short) is *unsure*: it may be
computed again, and nothing else may.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from columns.counting import Plan
from rows.naive import Naive, Row

Identity = tuple[Any, ...]
Keeps = Callable[[Row], bool]

DONE, KEPT, HIDDEN = "done", "kept", "hidden"


@dataclass(frozen=True)
class Result:
    """What a function made of a row: a value, or nothing since it failed and was skipped."""

    value: int | None
    failed: bool = False


@dataclass
class Cell:
    """A result that is committed: of the present computation, of an older one, or not to be shown."""

    result: Result
    state: str = DONE


@dataclass
class Column:
    """One computed column; `identity` is the computation whose results are DONE."""

    plan: Plan
    number: int  # the order in which columns were added
    origin: Identity  # what its values depended on when it was added
    altered: bool = False
    generation: int = 0
    identity: Identity | None = None
    cells: dict[int, Cell] = field(default_factory=dict)
    lost: dict[int, Cell] = field(default_factory=dict)  # were committed until their file was lost
    torn: set[int] = field(default_factory=set)  # the fragments that have lost a file


@dataclass(frozen=True)
class Expected:
    """What a backfill has to do, in offsets."""

    wanted: frozenset[int]
    done: frozenset[int]
    reused: frozenset[int]
    missing: frozenset[int]
    unsure: frozenset[int]  # reused or missing

    @property
    def open(self) -> frozenset[int]:
        return self.wanted - self.done


@dataclass(frozen=True)
class Wave:
    """Fragments that are committed together, and the rows of them that are new."""

    fragments: frozenset[int]
    rows: frozenset[int]


@dataclass
class Oracle:
    """A dataset with its computed columns."""

    ledger: Naive
    fragment_rows: int
    columns: dict[str, Column] = field(default_factory=dict)
    stored: dict[Identity, dict[int, Result]] = field(default_factory=dict)
    unsure: dict[Identity, set[int]] = field(default_factory=dict)
    purged_before: int = 0
    numbers: int = 0
    spent: set[Identity] = field(default_factory=set)  # origins whose generation 0 does not say which values are meant

    # What readers see

    def rows(self) -> dict[int, Row]:
        """The current rows by offset, with their computed columns."""
        return {
            offset: {**row, **{name: self.value(name, offset) for name in self.columns}}
            for offset, row in self.ledger.current()
            if offset >= self.purged_before
        }

    def value(self, name: str, offset: int) -> int | None:
        cell = self.columns[name].cells.get(offset)
        return None if cell is None or cell.state == HIDDEN else cell.result.value

    def done(self, name: str) -> set[int]:
        """The current rows that the column's present function was applied to."""
        column = self.columns[name]
        if column.identity != self.identity(name):
            return set()
        return {offset for offset, cell in column.cells.items() if cell.state == DONE} & self.rows().keys()

    def errors(self, name: str, *states: str) -> set[int]:
        """The current rows that were skipped and are in one of these states."""
        cells = self.columns[name].cells
        return {o for o in self.rows() if o in cells and cells[o].result.failed and cells[o].state in states}

    # What identifies a computation

    def identity(self, name: str) -> Identity:
        plan = self.columns[name].plan
        return (name, plan.name, plan.version, *self._inputs(plan))

    def _inputs(self, plan: Plan) -> list[Any]:
        of = self.columns
        return [(i, of[i].origin, of[i].generation) if i in of else i for i in plan.inputs]

    def dependents(self, name: str) -> list[str]:
        """The columns computed from this one, directly or not, inputs first."""
        found = [name]
        for other in sorted(self.columns, key=lambda n: self.columns[n].number):  # inputs have to be there first
            if set(self.columns[other].plan.inputs) & set(found):
                found.append(other)
        return found[1:]

    # What is done to columns

    def add(self, name: str, plan: Plan) -> None:
        origin = (name, plan.version, *self._inputs(plan))
        self.columns[name] = Column(plan, self.numbers, (origin, self.numbers) if origin in self.spent else origin)
        self.numbers += 1

    def alter(self, name: str, plan: Plan) -> None:
        column = self.columns[name]
        column.altered |= plan != column.plan
        column.plan = plan

    def drop(self, name: str) -> None:
        column = self.columns.pop(name)
        had_errors = any(cell.result.failed for cell in column.cells.values())
        if column.altered or column.generation or had_errors:
            self.spent.add(column.origin)

    def purge(self, before: int) -> None:
        """Values of purged records go; a checkpoint that has one of them may take others with it."""
        self.purged_before = max(self.purged_before, before)
        for column in self.columns.values():
            column.cells = {o: cell for o, cell in column.cells.items() if o >= before}
        for identity, results in self.stored.items():
            self.stored[identity] = {o: result for o, result in results.items() if o >= before}
            near = {o for o in results if before <= o < (before // self.fragment_rows + 1) * self.fragment_rows}
            self.unsure.setdefault(identity, set()).update(near)

    # Backfill

    def expected(self, name: str, keeps: Keeps | None = None, *, retry: bool = False) -> Expected:
        rows = self.rows()
        wanted = {o for o, row in rows.items() if keeps is None or keeps(row)}
        for needed in self.columns[name].plan.inputs:
            if needed in self.columns:
                wanted &= self.done(needed)
        again = self.errors(name, DONE) & self.done(name) & wanted if retry else set()
        done = (self.done(name) & wanted) - again
        stored = self.stored.get(self.identity(name), {}).keys() - again
        unsure = self.unsure.get(self.identity(name), set()) & (wanted - done) & stored
        missing = wanted - done - stored
        parts = (wanted, done, (wanted - done) & stored - unsure, missing, unsure)
        return Expected(*map(frozenset, parts))

    def waves(self, name: str, rows: Iterable[int], granularity: int) -> list[Wave]:
        """The rows that become visible together; a fragment that has lost a file is among them in any case."""
        by_fragment: dict[int, set[int]] = {fragment: set() for fragment in self.columns[name].torn}
        for offset in rows:
            by_fragment.setdefault(offset // self.fragment_rows, set()).add(offset)
        numbers = sorted(by_fragment)
        chosen = [numbers[i : i + granularity] for i in range(0, len(numbers), granularity)]
        return [Wave(frozenset(some), frozenset().union(*[by_fragment[n] for n in some])) for some in chosen]

    def compute(self, name: str, offset: int, mended: bool) -> Result:
        row = self.rows()[offset]
        plan = self.columns[name].plan
        inputs = [row[i] for i in plan.inputs]
        try:
            return Result(plan.formula(*inputs))
        except ValueError:
            if not mended:
                return Result(None, failed=True)
            return Result(None if inputs[0] is None else -inputs[0])

    def store(self, name: str, called: Iterable[int], mended: bool, *, surely: bool = True) -> None:
        """The function was called with these rows, and what it returned was kept, surely or perhaps."""
        identity = self.identity(name)
        for offset in called:
            self.stored.setdefault(identity, {})[offset] = self.compute(name, offset, mended)
            unsure = self.unsure.setdefault(identity, set())
            (unsure.discard if surely else unsure.add)(offset)

    def commit(self, name: str, wave: Wave) -> None:
        """What is stored of these rows becomes visible, and what it makes stale becomes invisible."""
        column, identity = self.columns[name], self.identity(name)
        if column.identity != identity:
            for cell in (*column.cells.values(), *column.lost.values()):
                cell.state = KEPT if cell.state == DONE else cell.state
            column.identity = identity
        changed = self._lost_for_good(column, wave)
        for offset in wave.rows:
            before, result = column.cells.get(offset), self.stored[identity][offset]
            if before is not None and before.state != HIDDEN and before.result.value != result.value:
                changed.add(offset)
            column.cells[offset] = Cell(result)
            self.unsure.get(identity, set()).discard(offset)
        self._note_neighbours(column, identity, wave)
        if changed:
            self._change(name, changed)

    def _lost_for_good(self, column: Column, wave: Wave) -> set[int]:
        """Rows whose lost value is not known to be the same as before: an older one, or one that is not made again."""
        gone = {o: cell for o, cell in column.lost.items() if o // self.fragment_rows in wave.fragments}
        column.lost = {o: cell for o, cell in column.lost.items() if o not in gone}
        column.torn -= wave.fragments
        return {o for o, cell in gone.items() if cell.state == KEPT or (cell.state == DONE and o not in wave.rows)}

    def _note_neighbours(self, column: Column, identity: Identity, wave: Wave) -> None:
        """Values that lie in the same files as new ones may be noted with them, wherever they come from."""
        stored = self.stored.setdefault(identity, {})
        for offset, cell in column.cells.items():
            near = offset // self.fragment_rows in wave.fragments
            if near and cell.state == DONE and offset not in stored:
                stored[offset] = cell.result
                self.unsure.setdefault(identity, set()).add(offset)

    def _change(self, name: str, changed: set[int]) -> None:
        dependents = self.dependents(name)
        current = {d for d in dependents if self.columns[d].identity == self.identity(d)}
        self.columns[name].generation += 1
        for other in dependents:
            column = self.columns[other]
            stale = [cell for o, cell in column.cells.items() if o in changed and cell.state != HIDDEN]
            for cell in stale:
                cell.state = HIDDEN
            column.generation += bool(stale)
        for other in current:
            self.columns[other].identity = self.identity(other)

    # What is lost

    def doubt(self, chosen: Callable[[Identity], bool], rows: Callable[[int], bool]) -> None:
        """Results that may be gone: of these computations, at these offsets."""
        for identity, results in self.stored.items():
            if chosen(identity):
                self.unsure.setdefault(identity, set()).update(o for o in results if rows(o))

    def lose(self, name: str, start: int, end: int) -> None:
        """The committed values of some offsets are gone."""
        column = self.columns[name]
        column.torn |= {offset // self.fragment_rows for offset in range(start, end)}
        column.lost |= {o: cell for o, cell in column.cells.items() if start <= o < end}
        column.cells = {o: cell for o, cell in column.cells.items() if not start <= o < end}

    def collect(self) -> None:
        """Garbage is collected: only what a present column still needs surely stays."""
        present = {self.identity(name): name for name in self.columns}
        for identity, results in self.stored.items():
            settled = self.done(present[identity]) if identity in present else results.keys()
            self.unsure.setdefault(identity, set()).update(settled & results.keys())


def shown(rows: dict[int, Row], names: Sequence[str]) -> list[tuple[Any, ...]]:
    """Rows as tuples, in offset order."""
    return [tuple(rows[offset].get(name) for name in names) for offset in sorted(rows)]
