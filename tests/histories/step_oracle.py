"""Transforms the naive way: everything from scratch with lists and dictionaries, and what a run has to call.

Nothing of the product's `transform` is used: rows come from `to_arrow()`, records from `changes_arrow()`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import floodmark as fm
from transforms.worlds import Case, Key, Row, Source, World, in_order

Content = tuple[Any, ...]
"""Everything that a key's result depends on, as values."""

Since = Callable[[Key], Sequence[int]]


def input_rows(lake: fm.Lake, case: Case) -> list[list[Row]]:
    """The current rows of every input, in the columns that the step reads."""
    return [[s.read(row) for row in rows] for s, rows in zip(case.sources, whole_rows(lake, case), strict=True)]


def whole_rows(lake: fm.Lake, case: Case) -> list[list[Row]]:
    """The current rows of every input in all its columns."""
    schemas = [lake[s.name].schema for s in case.sources]
    return [
        [] if schema is None else lake[s.name].to_arrow().to_pylist()
        for s, schema in zip(case.sources, schemas, strict=True)
    ]


def input_records(lake: fm.Lake, source: Source) -> list[Row]:
    """The records of an input that change what the step reads of it."""
    records = lake[source.name].changes_arrow().to_pylist() if lake[source.name].schema is not None else []
    if source.reads is None:
        return records
    same = set()
    for old, new in pairwise(records):
        if (old["op"], new["op"]) == (2, 3) and source.read(old) == source.read(new):
            same |= {old["offset"], new["offset"]}
    return [record for record in records if record["offset"] not in same]


def universe(case: Case, inputs: Sequence[Sequence[Row]]) -> list[Key]:
    """The keys that have a result: those of the full inputs, or all pairs; each required input has a row for them."""
    return [
        key
        for key in case.keys_in(inputs)
        if all(rows or not s.required for s, rows in zip(case.sources, case.rows_of(key, inputs), strict=True))
    ]


def expected(
    case: Case,
    inputs: Sequence[Sequence[Row]],
    factor: int,
    failed: Collection[Key] = (),
    good: Mapping[Key, Sequence[list[Row]]] | None = None,
) -> dict[str, list[Row]]:
    """Every output, recomputed from nothing; keys that failed have the rows of their last good result, if any."""
    found: dict[str, list[Row]] = {output.name: [] for output in case.outputs}
    for key in universe(case, inputs):
        made = case.formula(key, case.rows_of(key, inputs), factor) if key not in failed else (good or {}).get(key, ())
        for output, rows in zip(case.outputs, made, strict=False):
            found[output.name] += rows
    return {output.name: in_order(found[output.name], output.key) for output in case.outputs}


def shown(lake: fm.Lake, case: Case) -> dict[str, list[Row]]:
    """Every output as readers see it; one that is not there yet has no rows."""
    found = {}
    for output in case.outputs:
        there = output.name in lake and lake[output.name].schema is not None
        rows = lake[output.name].to_arrow().to_pylist() if there else []
        found[output.name] = in_order(rows, output.key)
    return found


def keys_with_value(
    lake: fm.Lake, case: Case, keys: Collection[Key], column: str, values: Collection[Any], since: Since
) -> set[Key]:
    """The keys with a row that has one of these values: a current row, or a record that no run of the key has seen.

    `since` gives, by key, the last record of each input that counts as seen.
    """
    found = set()
    inputs = whole_rows(lake, case)
    for number, source in enumerate(case.sources):
        if column not in source.columns or lake[source.name].schema is None:
            continue
        records = lake[source.name].changes_arrow().to_pylist()
        for key in keys:
            pending = [record for record in records if record["offset"] > since(key)[number]]
            rows = [*inputs[:number], [*inputs[number], *pending], *inputs[number + 1 :]]
            if any(row[column] in values for row in case.rows_of(key, rows)[number]):
                found.add(key)
    return found


def assert_right(world: World, factor: int = 10, failed: Collection[Key] = ()) -> None:
    """The outputs are what recomputing everything gives, and the chains are sound."""
    inputs = input_rows(world.lake, world.case)
    assert shown(world.lake, world.case) == expected(world.case, inputs, factor, failed)
    for dataset in world.lake:
        assert dataset.verify().problems == ()


def content(case: Case, inputs: Sequence[Sequence[Row]], key: Key) -> Content:
    """What a key's result depends on."""
    return tuple(tuple(sorted(repr(sorted(row.items())) for row in rows)) for rows in case.rows_of(key, inputs))


def heads(lake: fm.Lake, case: Case) -> tuple[int, ...]:
    """The offset of the newest record of each input, -1 when there is none."""
    last = [lake[source.name].last_offset for source in case.sources]
    return tuple(-1 if offset is None else offset for offset in last)


@dataclass(frozen=True)
class Done:
    """How a key was when it was last processed."""

    content: Content
    heads: tuple[int, ...]


@dataclass
class Memory:
    """What has been processed, as far as anybody can tell from outside: by inputs, calls and acknowledged runs."""

    case: Case
    done: dict[Key, Done] = field(default_factory=dict)
    perhaps: dict[Key, list[Done]] = field(default_factory=dict)  # by runs that were cut short
    failed: dict[Key, bool] = field(default_factory=dict)  # how a key's last call ended

    def now(self, lake: fm.Lake) -> Now:
        records = [input_records(lake, source) for source in self.case.sources]
        return Now(self.case, input_rows(lake, self.case), records, heads(lake, self.case))

    def must(self, now: Now) -> set[Key]:
        """Keys whose result is missing, older than what it depends on, or failed: a run has to call for them."""
        found = set()
        for key in now.universe:
            last = [self.done[key]] if key in self.done else []
            known = [done.content for done in [*last, *self.perhaps.get(key, [])]]
            if self.failed.get(key) or content(self.case, now.inputs, key) not in known:
                found.add(key)
        return found - {key for key in self.perhaps if self.failed.get(key)}  # its failure may be stored, or not

    def may(self, now: Now) -> set[Key]:
        """Keys for which a run may call: others have no record newer than the run that processed them."""
        found = set(now.universe) - self.done.keys()
        found |= {key for key, bad in self.failed.items() if bad} | self.perhaps.keys()
        for key, last in self.done.items():
            if any(newest > seen for newest, seen in zip(now.newest(key), last.heads, strict=True)):
                found.add(key)
        return found

    def processed(self, keys: Collection[Key], now: Now) -> None:
        """An acknowledged run has processed these keys."""
        for key in keys:
            self.perhaps.pop(key, None)
            if key in now.universe:
                self.done[key] = Done(content(self.case, now.inputs, key), now.heads)
            else:
                self.done.pop(key, None)
                self.failed.pop(key, None)

    def cut_short(self, keys: Collection[Key], now: Now) -> None:
        """A run that was not acknowledged may have processed these keys."""
        for key in keys:
            self.perhaps.setdefault(key, []).append(Done(content(self.case, now.inputs, key), now.heads))

    def called(self, last: dict[Key, bool]) -> None:
        """How calls ended; a key that is called again forgets how it failed."""
        self.failed |= last

    def replaced(self) -> None:
        """Another version has committed: what is done is no more, what was cut short may still lie about."""
        self.done.clear()
        self.failed = {key: bad for key, bad in self.failed.items() if key in self.perhaps}

    def forget(self) -> None:
        """Everything is to be processed again."""
        self.done.clear()
        self.perhaps.clear()
        self.failed.clear()

    def broken(self) -> set[Key]:
        return {key for key, bad in self.failed.items() if bad}


@dataclass(frozen=True)
class Now:
    """The inputs at one moment."""

    case: Case
    inputs: list[list[Row]]
    records: list[list[Row]]
    heads: tuple[int, ...]

    @property
    def universe(self) -> list[Key]:
        return universe(self.case, self.inputs)

    def newest(self, key: Key) -> tuple[int, ...]:
        """The offset of the newest record about a key in each input, whatever it did; -1 when there is none."""
        about = self.case.rows_of(key, self.records)
        return tuple(max((row["offset"] for row in rows), default=-1) for rows in about)
