"""Random misuse in Python: each write is refused as a whole with an error of ours, or accounts for every row."""

from __future__ import annotations

import dis
import logging
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from pathlib import Path
from random import Random
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

import floodmark as fm
from floodmark.storage.memory import MemoryStore
from misuse.accounts import Account, Counts, NotAccounted, Row, check_commit, check_rows, count_rows, table_rows
from misuse.odd_data import NONSENSE, as_given, odd_keys, odd_plan, odd_table
from profiles import seeds

WORLDS = 10
"""Datasets per seed, of about four tries each."""
_PRODUCT = str(Path(fm.__file__).parent)


def is_ours(error: BaseException) -> bool:
    """An error of Floodmark, or a TypeError that Floodmark itself raises for an argument of a wrong kind."""
    if isinstance(error, fm.FloodmarkError):
        return bool(error.message) and bool(error.hint)
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    assert last is not None
    code = last.tb_frame.f_code
    is_raised = code.co_code[last.tb_lasti] == dis.opmap["RAISE_VARARGS"]  # no error of an operation in our code
    return isinstance(error, TypeError) and is_raised and code.co_filename.startswith(_PRODUCT)


@dataclass
class World:
    """A dataset, what was done to it, and the rows that it must have."""

    random: Random
    history: list[str] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        random = self.random
        self.lake = fm.Lake(MemoryStore())
        merge = random.choice(["append", "append", "upsert", "upsert", "ledger", "snapshot", "changelog"])
        key = () if merge == "append" else random.choice([("id",), ("id",), ("shop", "n"), ("id", "shop")])
        self.plan = odd_plan(random, key)
        options: dict[str, Any] = {} if merge == "append" else {"merge": merge, "key": list(key)}
        if merge == "snapshot" and random.random() < 0.3:
            options["compare"] = [self.plan.names[-1]]
        if len(key) > 1 and random.random() < 0.4:
            options["lookup"] = [key[0]]
        if random.random() < 0.2:
            options["vocab"] = random.choice([{"op": "_op"}, {"offset": "_offset", "op": "what"}])
        if random.random() < 0.3:
            times = [n for n, t in zip(self.plan.names, self.plan.types, strict=True) if pa.types.is_temporal(t)]
            options["event_time"] = random.choice(times or list(self.plan.names))
            if random.random() < 0.5:
                options |= {"partition_by": random.choice(["day", "month", "year"])}
        if random.random() < 0.2:
            options["schema"] = pa.schema(list(zip(self.plan.names, self.plan.types, strict=True)))
        self.dataset = self._created(options)
        strategy = self.dataset.strategy
        op = self.dataset.system_columns[1]
        self.account = Account(strategy.kind, strategy.key, strategy.compare, op)
        self.taken: set[tuple[str, str]] = set()

    def _created(self, options: dict[str, Any]) -> fm.Dataset:
        try:
            made = self.lake.create("d", **options)
        except fm.FloodmarkError:
            options = {name: options[name] for name in ("merge", "key") if name in options}
            made = self.lake.create("d", **options)
        self.history.append(f"create {options}")
        return made

    # Tries

    def act(self) -> None:
        """One try."""
        if self.dataset.schema is None and self.random.random() < 0.9:
            self.write()
            return
        kind = self.random.choices(
            [
                *(self.write, self.write_nonsense, self.delete, self.store_chunk),
                *(self.erase, self.evolve, self.purge, self.follow),
            ],
            [14, 1, 2, 2, 1, 1, 1, 2],
        )
        kind[0]()

    def write(self) -> None:
        given = as_given(self.random, self._batch())
        options: dict[str, Any] = {}
        if self.random.random() < 0.15:
            odd: list[dict[str, Any]] = [
                {"source": "a"},
                {"state": "1"},
                {"source": "floodmark.dev/purge", "state": "1"},
            ]
            pairs = [{"source": "a", "state": str(self.random.randrange(3))} for _ in range(6)]
            options = self.random.choice([*pairs, *odd, {"source": "", "state": ""}, {"source": "b", "state": 7}])
        pair = (options.get("source"), str(options.get("state")))
        if pair in self.taken:
            self.try_again(f"write again {options} {given.text}", lambda: self.dataset.write(given.data, **options))
        elif (
            self.attempt(
                f"write {options} {given.text}",
                lambda: self.dataset.write(given.data, **options),
                None if given.rows is None else lambda: self.account.write(self._complete(given.rows or [])),
            )
            and options
        ):
            self.taken.add(pair)

    def _batch(self) -> pa.Table:
        """Rows for the dataset. A changelog gets operations that fit in most cases."""
        table = odd_table(self.random, self.plan)
        if self.account.merge != "changelog" or self.random.random() < 0.1 or self.account.op in table.column_names:
            return table
        present = self.dataset.to_arrow() if self.dataset.schema is not None else None
        parts, ops = [], []
        if present is not None and present.num_rows and self.random.random() < 0.6:
            parts.append(present.slice(self.random.randrange(present.num_rows), 2))
            ops += [1] * parts[0].num_rows
        if table.schema.names == (table if present is None else present).schema.names:
            parts.append(table)
            ops += [self.random.choice([0, 0, 0, 0, 0, 3])] * table.num_rows
        with suppress(pa.ArrowException):
            table = pa.concat_tables(parts, promote_options="permissive") if parts else table
        ops = ops if len(ops) == table.num_rows else [0] * table.num_rows
        return table.append_column(
            self.account.op, pa.array(ops, self.random.choice([pa.int32(), pa.int64(), pa.int8()]))
        )

    def write_nonsense(self) -> None:
        made = self.random.choice(NONSENSE)()
        self.attempt(f"write {made!r}", lambda: self.dataset.write(made), None)

    def delete(self) -> None:
        keys = odd_keys(self.random, self.account.rows(), self._known_keys(), self.account.key)
        rows = keys.rows
        self.attempt(
            f"delete {keys.text}",
            lambda: self.dataset.delete(keys.data),
            None if rows is None else lambda: self.account.delete(rows),
        )

    def erase(self) -> None:
        """Erase keys: their rows go, the report counts them, and no version of them is left."""
        keys = odd_keys(self.random, self.account.rows(), self._known_keys(), self.account.key)
        done: list[fm.EraseReport] = []
        self.attempt_same(f"erase {keys.text}", lambda: done.append(self.dataset.erase(keys.data)), is_checked=False)
        if not done:
            return
        if keys.rows is None:
            self.fail("what no key can be was accepted")
        gone = self.account.delete(keys.rows or []).retracted
        if done[0].current != gone or done[0].records < gone:
            self.fail(f"erase reports {done[0]}, the account {gone} rows")
        try:
            self.check_read()
        except NotAccounted as error:
            self.fail(repr(error))
        if self.dataset.schema is not None and self.dataset.history(keys.data).num_rows:
            self.fail("erased keys have a history")

    def store_chunk(self) -> None:
        given = as_given(self.random, odd_table(self.random, self.plan))
        keys = odd_keys(self.random, self.account.rows(), self._known_keys(), self.account.key)
        processed = None if self.dataset.schema is None else self.random.choice([None, keys])
        if processed is not None and processed.data is None:
            processed = None  # as without the argument
        now = self.random.choice(
            [None, None, None, 0, -1, 1e30, float("nan"), "x", True, datetime(2026, 1, 1), date(2026, 1, 1)]
        )
        now = self.random.choice([now, None, datetime(2026, 1, 1, tzinfo=UTC), pd.NaT])
        rows = None if given.rows is None or (processed is not None and processed.rows is None) else given.rows
        self.attempt(
            f"store_chunk {given.text}, {None if processed is None else processed.text}, now={now!r}",
            lambda: self.dataset.store_chunk(given.data, None if processed is None else processed.data, now),
            None
            if rows is None
            else lambda: self.account.store_chunk(self._complete(rows), None if processed is None else processed.rows),
        )

    def _known_keys(self) -> pa.Table | None:
        if self.dataset.schema is None or not self.account.key:
            return None
        table = self.dataset.to_arrow()
        absent = odd_table(self.random, self.plan)
        with suppress(pa.ArrowException, KeyError):
            names = list(self.account.key)
            table = pa.concat_tables([table.select(names), absent.select(names)], promote_options="permissive")
        return table.slice(self.random.randrange(table.num_rows), 3) if table.num_rows else table

    def evolve(self) -> None:
        """Add a column: no row changes."""
        t = self.random.choice([pa.int64(), pa.string(), "int64", "nothing", None, pa.null(), "timestamp[us, tz=UTC]"])
        name = self.random.choice(["more", "more", "id", "op", "", "MORE", "V"])
        self.attempt_same(f"evolve {name!r} {t}", lambda: self.dataset.evolve({name: t}))

    def purge(self) -> None:
        """Purge: no current row of a dataset with a key goes, and without a key the report counts what goes."""
        odd = [0, 1, 3, 100, -1, True, 1.5, None, "x", "2026-11-19", datetime(2026, 1, 1), pd.NaT]
        before = self.random.choice([*odd, datetime(2027, 1, 1, tzinfo=UTC)])
        if self.account.key:
            self.attempt_same(f"purge {before!r}", lambda: self.dataset.purge(before))
            return
        rows = len(self.account.records)
        done: list[Any] = []
        self.attempt_same(f"purge {before!r}", lambda: done.append(self.dataset.purge(before)), is_checked=False)
        if done:
            kept = [] if self.dataset.schema is None else table_rows(self.dataset.to_arrow())
            names = kept[0] if kept else ()
            had = [{name: row.get(name) for name in names} for row in self.account.records]
            lost = count_rows(kept) - count_rows(had)
            if len(kept) + done[0].records != rows or lost:
                self.fail(f"purge reports {done[0].records} of {rows} records, {len(kept)} are left, {lost} are new")
            self.account.records = kept

    def follow(self) -> None:
        """What readers and upkeep do: no row changes."""
        has_timeline = bool(self.dataset.schema) and self.random.random() < 0.2
        self.attempt_same("fold", self.dataset.update_timeline if has_timeline else self.dataset.fold)

    def try_again(self, text: str, act: Callable[[], Any]) -> None:
        self.attempt_same(text, act)

    # Checks

    def attempt(self, text: str, act: Callable[[], fm.Commit], expect: Callable[[], Counts] | None) -> bool:
        """A write. Refused: nothing has changed. Accepted: the commit and the rows are what the account says."""
        self.history.append(text)
        head = self.dataset.head
        try:
            commit = act()
        except Exception as error:
            self._refused(error, head)
            return False
        if expect is None:
            self.fail("what no dataset can hold was accepted")
            return False
        try:
            check_commit(commit, expect())
            self.check_read()
        except (NotAccounted, KeyError) as error:
            self.fail(repr(error))
        self.outcomes["accepted"] += 1
        return True

    def attempt_same(self, text: str, act: Callable[[], Any], is_checked: bool = True) -> None:
        """A call that changes no row, or is refused."""
        self.history.append(text)
        head = self.dataset.head
        try:
            act()
        except Exception as error:
            self._refused(error, head)
            return
        self.outcomes["accepted"] += 1
        if is_checked:
            try:
                self.check_read()
            except NotAccounted as error:
                self.fail(repr(error))

    def _refused(self, error: Exception, head: Any) -> None:
        if not is_ours(error):
            self.fail("".join(traceback.format_exception(error)[-6:]))
        self.outcomes["refused"] += 1
        if self.dataset.head != head:
            self.fail(f"a refused call moved the head: {error!r}")
        try:
            self.check_read()
        except NotAccounted as wrong:
            self.fail(f"a refused call ({error!r}) changed rows: {wrong}")

    def check_read(self) -> None:
        if self.dataset.schema is None:
            if self.account.rows():
                raise NotAccounted("the dataset has no columns")
            return
        check_rows(self.dataset.to_arrow(), self.account, "to_arrow")
        if self.dataset.count() != len(self.account.rows()):
            raise NotAccounted(f"count() is {self.dataset.count()}, not {len(self.account.rows())}")

    def check_readers(self) -> None:
        """All other readers give the same rows."""
        self.history.append("all readers")
        try:
            if self.dataset.schema is None:
                return
            check_rows(fm.Lake(self.lake.store)["d"].to_arrow(), self.account, "a new process")
            if self.dataset.timeline_root().version:
                names = self.dataset.schema.names
                check_rows(self.dataset.timeline_batches(columns=names).read_all(), self.account, "timeline")
            found = self.lake.sql("select count(*) n from d").column("n").to_pylist()
            if found != [len(self.account.rows())]:
                self.fail(f"sql counts {found}, not {len(self.account.rows())}")
            if self.account.key and self.account.rows():
                keys = self.dataset.to_arrow(columns=list(self.account.key))
                check_rows(self.dataset.get(keys), self.account, "get")
            if problems := self.dataset.verify().problems:
                self.fail(f"verify: {problems}")
        except fm.FloodmarkError as error:
            if "timeline" not in error.message:
                self.fail(repr(error))
        except NotAccounted as error:
            self.fail(str(error))

    def _complete(self, rows: Sequence[Row]) -> list[Row]:
        """The rows, after a check that the dataset has all their columns. Columns without values may be left out."""
        shown = self.dataset.schema
        names = [] if shown is None else shown.names
        given = (
            []
            if not rows
            else [name for name in rows[0] if self.account.merge != "changelog" or name != self.account.op]
        )
        lost = [name for name in given if name not in names and any(row[name] is not None for row in rows)]
        if lost or (rows and not set(names) <= set(given)):
            raise NotAccounted(f"rows with the columns {given} were accepted by {names}")
        left_out = set(given) - set(names)
        return [{name: value for name, value in row.items() if name not in left_out} for row in rows]

    def fail(self, why: str) -> None:
        raise AssertionError("\n".join([why[-3000:], "after:", *(line[:1500] for line in self.history)]))


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(36))
def test_every_row_of_odd_frames_is_accounted_for(seed: int, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.CRITICAL)
    outcomes: Counter[str] = Counter()
    for number in range(WORLDS):
        random = Random(f"{seed}-{number}")
        world = World(random, outcomes=outcomes)
        world.history.append(f"(world {number} of seed {seed})")
        for _ in range(random.randrange(2, 7)):
            world.act()
        if random.random() < 0.3:
            world.check_readers()
    assert min(outcomes["accepted"], outcomes["refused"]) >= 3
