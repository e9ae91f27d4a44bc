"""What is done to a timeline while it is crashed, killed or raced, and what must hold after it."""

from __future__ import annotations

import hashlib
import itertools
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

import floodmark as fm
from faults.recording import HastyFileSystem
from floodmark.dataset import Dataset
from floodmark.storage.local import LocalStore
from timeline.layouts import fold_problems, problems, purged_copies
from timeline.oracle import all_records, difference, found, within
from timeline.oracle import in_order as current
from timeline.timeline_worlds import BEGIN, DAY, column_of

NAME = "ticks"
ROW_GROUP = 20
WEEK = 8 * 86_400  # seconds; a bit more than the grace period
MINUTE = 60_000_000
SCHEMA = {"id": "int64", "at": pa.timestamp("us", "UTC"), "v": "int64"}


def rows(times: list[int], first: int = 0, value: int = 0) -> pa.Table:
    """Rows with ids from `first` on, at these minutes after the start."""
    return pa.table(
        {
            "id": pa.array(range(first, first + len(times)), pa.int64()),
            "at": column_of([BEGIN + t * MINUTE for t in times], "us utc"),
            "v": pa.array([value] * len(times), pa.int64()),
        }
    )


def open_lake(root: Path, fs: Any, later: float = 0.0) -> fm.Lake:
    return lake_on(LocalStore(root / "lake", fs), later)


def lake_on(store: Any, later: float = 0.0) -> fm.Lake:
    """A lake whose clock is so many seconds ahead of the files' times."""
    return fm.Lake(store, runtime=fm.Runtime(clock=lambda: time.time_ns() + int(later * 1e9), sleep=lambda _: None))


class Judged:
    """The same step, disturbed again and again; what is wrong with lakes of the same contents is worked out once.

    Its clock stands still and its choices are the same each time, so failures that leave the same leave the same bytes.
    """

    def __init__(self) -> None:
        self._now = time.time_ns()
        self._known: dict[tuple[str, Any], str | None] = {}

    def lake_on(self, store: Any, later: float = 0.0) -> fm.Lake:
        """A lake for the step."""
        now, chance = self._now + int(later * 1e9), random.Random("a disturbed step")
        runtime = fm.Runtime(clock=lambda: now, random_bytes=chance.randbytes, sleep=lambda _: None)
        return fm.Lake(store, runtime=runtime)

    def problem(self, files: Mapping[str, bytes | None], given: Any, find: Callable[[], str | None]) -> str | None:
        """What `find` finds, which depends on nothing but these files and what is `given`."""
        key = (_digest(files), given)
        if key not in self._known:
            self._known[key] = find()
        return self._known[key]


def _digest(files: Mapping[str, bytes | None]) -> str:
    found = hashlib.sha256()
    for path, data in sorted(files.items()):
        found.update(f"{path} {None if data is None else len(data)} ".encode())
        found.update(data or b"")
    return found.hexdigest()


Step = Callable[[fm.Lake], None]


def in_order(lake: fm.Lake) -> None:
    """Two days and a bit, in order, over several row groups."""
    lake[NAME].write(rows([10 * n for n in range(300)]))


def narrow(lake: fm.Lake) -> None:
    """Late rows within one row group."""
    lake[NAME].write(rows([501, 502, 502, 503], 1000))


def spread(lake: fm.Lake) -> None:
    """Late rows thinly over all row groups of both days."""
    lake[NAME].write(rows([37 * n + 5 for n in range(70)], 2000))


def spread_more(lake: fm.Lake) -> None:
    for number in range(4):
        lake[NAME].write(rows([41 * n + number for n in range(60)], 3000 + 100 * number))


def correct(lake: fm.Lake) -> None:
    """Rows move to another time."""
    lake[NAME].write(rows([7 * n + 1 for n in range(40)], 10, value=1))


def retract(lake: fm.Lake) -> None:
    lake[NAME].delete(list(range(20, 120)))


def evolve(lake: fm.Lake) -> None:
    lake[NAME].evolve({"note": "string"})
    lake[NAME].write(rows([3, 700, 1500], 4000).append_column("note", pa.array(["a", None, "b"])))


def update(lake: fm.Lake) -> None:
    lake[NAME].update_timeline()


def fold(lake: fm.Lake) -> None:
    lake[NAME].fold()


def fold_a_day(lake: fm.Lake) -> None:
    lake[NAME].fold("2026-11-01")


def purge(lake: fm.Lake) -> None:
    lake[NAME].purge(before=300)


def collect(lake: fm.Lake) -> None:
    lake[NAME].collect_garbage()


@dataclass(frozen=True)
class Scenario:
    """A step that is disturbed, after others that happened long ago."""

    name: str
    step: Step
    before: tuple[Step, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    later: float = 0.0  # seconds that have passed meanwhile

    def __str__(self) -> str:
        return self.name

    def prepare(self, root: Path) -> None:
        self.prepare_in(open_lake(root, HastyFileSystem()))

    def prepare_in(self, lake: fm.Lake) -> None:
        key = self.options.get("key")
        given = {"partition_by": "day", "row_group_size": ROW_GROUP, "schema": SCHEMA, **self.options}
        lake.create(NAME, event_time="at", **given, **({"merge": "upsert"} if key else {}))
        for step in self.before:
            step(lake)

    @property
    def keeps_files(self) -> bool:
        """Whether readers of the old root can go on: a purge and gc take what they must."""
        return self.step not in (purge, collect)


KEYED = {"key": ["id"]}
ALWAYS = {"late_merge": "always"}
LAZY = {"timeline": "lazy"}
SCENARIOS = [
    Scenario("first", in_order),
    Scenario("narrow", narrow, (in_order,)),
    Scenario("spread", spread, (in_order,)),
    Scenario("always", spread, (in_order, narrow), ALWAYS),
    Scenario("due", spread, (in_order, spread_more)),
    Scenario("keyed", correct, (in_order, narrow), KEYED),
    Scenario("retract", retract, (in_order, correct), {**KEYED, **ALWAYS}),
    Scenario("column", evolve, (in_order, spread)),
    Scenario("catch-up", update, (in_order, narrow, spread), LAZY),
    Scenario("lazy-fold", fold, (in_order, update, spread, narrow), LAZY),
    Scenario("fold", fold, (in_order, narrow, spread_more)),
    Scenario("keyed-fold", fold, (in_order, correct, retract, spread), KEYED),
    Scenario("fold-a-day", fold_a_day, (in_order, spread)),
    Scenario("purge", purge, (in_order, spread, fold, narrow)),
    Scenario("keyed-purge", purge, (in_order, correct, spread), KEYED),
    Scenario("collect", collect, (in_order, narrow, spread_more, fold), later=WEEK),
]

_numbers = itertools.count(9000)


def timeline_problem(dataset: Dataset) -> str | None:
    """How the timeline differs from the sorted ledger, or what is wrong with its layout; None when nothing is."""
    records = all_records(dataset)
    right = current(dataset, records)
    if problem := difference(found(dataset), right):
        return f"the timeline is not the sorted ledger: {problem}"
    day = "2026-11-01T05Z", "2026-11-02T03Z"
    if right.num_rows and (problem := difference(found(dataset, *day), within(right, dataset, *day))):
        return f"a range is wrong: {problem}"
    return "; ".join(problems(dataset, records)) or None


LEFTOVERS = "holds purged records"
"""What verify says of a root that a purge has not come to yet, and of copies that it has not deleted yet."""


def damage(dataset: Dataset, cut_short: bool = False) -> str | None:
    """What verify finds, but for the key index and the ledger's folds, which are derived and made again.

    Purged records may be left only if a purge was `cut_short`; verify must tell of each place where they are, and of no
    other.
    """
    found = [problem for problem in dataset.verify().problems if problem.kind not in ("keys", "fold")]
    told = {problem.object for problem in found if LEFTOVERS in problem.message}
    left = {*purged_copies(dataset), *([_root_key(dataset)] if is_behind_a_purge(dataset) else [])}
    if told != left:
        return f"verify tells of purged records in {sorted(told)}, and they are in {sorted(left)}"
    wrong = [problem for problem in found if not cut_short or problem.object not in told]
    return f"verify: {wrong}" if wrong else None


def is_behind_a_purge(dataset: Dataset) -> bool:
    """Whether the ledger was purged, and the timeline's root does not know of it."""
    root = dataset.timeline_root()
    return root.partitions > 0 and root.purged_before < dataset.snapshot().purged_before


def _root_key(dataset: Dataset) -> str:
    return f"{dataset.snapshot().objects.folder}/info/timeline/root"


def problem_from_here_on(lake: fm.Lake, cut_short: bool = False) -> str | None:
    """What is wrong now, after the next write, or after a fold. A purge may have been `cut_short` before this.

    An update completes one that the root does not know of; copies that were no longer named then go with a fold.
    """
    dataset = lake[NAME]
    copies_only = cut_short and not is_behind_a_purge(dataset)
    for step, may_be_left in ((look, cut_short), (write_on, copies_only), (fold_on, False)):
        step(dataset)
        if problem := timeline_problem(dataset) or damage(dataset, may_be_left):
            return f"after {step.__name__}: {problem}"
    return "; ".join(fold_problems(dataset)) or None


def problem_of_purging_again(lake: fm.Lake) -> str | None:
    """What is wrong after another purge, which completes one that was cut short wherever that was."""
    purge(lake)
    problem = timeline_problem(lake[NAME]) or damage(lake[NAME])
    return problem and f"after another purge: {problem}"


def look(dataset: Dataset) -> None:
    """As it was found."""


def write_on(dataset: Dataset) -> None:
    assert dataset.schema is not None
    table = rows([2, 502, 1777], next(_numbers) * 10)
    for name in dataset.schema.names[3:]:
        table = table.append_column(name, pa.nulls(3, pa.string()))
    assert dataset.write(table).rows == 3
    dataset.update_timeline()
    root = dataset.timeline_root()
    assert root.applied == dataset.snapshot().next_offset


def fold_on(dataset: Dataset) -> None:
    dataset.fold()


assert DAY == 1440 * MINUTE
