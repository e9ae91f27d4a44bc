"""What all tasks of a run share, what one of them is to do, and what came of it. All of it travels to workers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast

from pyroaring import BitMap

from floodmark.engine import Raised
from floodmark.transform.tasks.checkpoints import ChunkStore, Stored
from floodmark.transform.tasks.columns import Seen
from floodmark.transform.tasks.reuse import FoundIndex

if TYPE_CHECKING:
    from floodmark.functions.on_error import OnError
    from floodmark.transform.changed.shape import Shape
    from floodmark.transform.functions.function import StepFunction
    from floodmark.transform.functions.returned import OutputShape
    from floodmark.transform.meta import TransformMeta
    from floodmark.transform.rows.chunk import Chunk
    from floodmark.transform.rows.units import KeysUnit, RangeUnit


class Unit(Protocol):
    """Some keys whose rows are read together."""

    @property
    def rows(self) -> int:
        """About how many rows or keys that is."""
        ...

    def halves(self) -> tuple[Unit, Unit] | None:
        """The same keys in two units; None when there is one key only."""
        ...


@dataclass(frozen=True)
class Work:
    """One version of a transform, and its inputs as of their pinned heads."""

    store: ChunkStore
    shape: Shape
    inputs: Any  # the pinned inputs as tasks take them
    outputs: tuple[OutputShape, ...]
    function: StepFunction
    on_error: OnError
    chunk_size: int
    attempted: TransformMeta  # knows how often failed keys were tried
    checked: TransformMeta | None  # leaves out what was processed; None when nothing can have been
    now_ms: int
    target_seconds: float = 10.0
    found: FoundIndex | None = None  # results that an earlier run has left
    seen: Seen = ()  # what is known of the columns of outputs whose columns are not all known

    def chunks(self, unit: Unit, chunk_size: int) -> Iterator[Chunk]:
        from floodmark.transform.rows.chunks import read_chunks

        return read_chunks(cast("RangeUnit | KeysUnit", unit), self.shape, self.inputs, chunk_size, self.checked)

    def chunks_of_keys(self, unit: Unit) -> Iterator[Chunk]:
        """The keys of a unit, if possible without their rows: to read them may be what a worker died of."""
        from floodmark.transform.rows.chunk import Chunk
        from floodmark.transform.rows.units import KeysUnit

        if not isinstance(unit, KeysUnit):
            return self.chunks(unit, 1)
        keys = unit.load()
        return iter([Chunk(keys, self.shape.hash_keys(keys), ())])


@dataclass(frozen=True)
class Missing:
    """A unit that is to be processed, but for what these checkpoints have."""

    unit: Unit
    done: tuple[Stored, ...] = ()


@dataclass(frozen=True)
class Task:
    """Process the keys of these units, but for those that `inherited` checkpoints have."""

    id: str
    units: tuple[Unit, ...]
    chunk_size: int
    patience: float  # seconds after which a task that will take far longer gives its rest back
    inherited: tuple[Stored, ...] = ()  # of this run
    goes_ahead: bool = False  # others wait for what it learns, so it gives its rest back then
    lost: Raised | None = None  # what every worker died of that tried its only key, which is not tried again

    @property
    def rows(self) -> int:
        return sum(unit.rows for unit in self.units)

    def __str__(self) -> str:
        more = f" and {len(self.units) - 1} more" if len(self.units) > 1 else ""
        return f"to process {self.rows:,} rows ({self.units[0]}{more})"


@dataclass(frozen=True)
class Applied:
    """What came of a task. `rest` was not finished: what of it lies in `stored` is not to be done again."""

    stored: tuple[Stored, ...]  # the inherited ones, too
    inherited: tuple[Stored, ...]
    outputs: tuple[OutputShape, ...]  # with what was learnt of their columns
    seen: Seen  # as far as it was learnt here
    used: BitMap  # places in the index of found results
    rest: tuple[Unit, ...]
    done: int  # of the rows of the task's units, for progress: what it gives back, another task counts
    calls: int
    rows: int  # by which the function's speed is known, and
    seconds: float  # how long it took for them

    @property
    def left(self) -> list[Missing]:
        """What other tasks have to do; only the first unit can have been begun."""
        return [Missing(unit, self.inherited if n else self.stored) for n, unit in enumerate(self.rest)]

    @property
    def failed(self) -> int:
        """The keys that failed in this task."""
        known = {one.id for one in self.inherited}
        return sum(one.failed for one in self.stored if one.id not in known)
