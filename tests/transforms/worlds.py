"""Small lakes for transforms, one per case, with functions that write down every key they are called with.

A function fails for the keys that a file names, so that it does so in worker processes too. What a key's result is, its
case says by a formula over plain rows: the oracle uses the same one, and nothing else of the product.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa

import floodmark as fm
from histories import disks
from histories.calls import CallLog
from histories.calls import in_this_process as in_this_process
from waiting import wait_until

Key = tuple[Any, ...]
Row = dict[str, Any]
Formula = Callable[[Key, tuple[list[Row], ...], int], tuple[list[Row], ...]]
"""A key, its rows in each input, and the factor of the version: its rows in each output."""

FACTORS = {"1": 10, "2": 100, "3": 1000}


class ToldToFail(Exception):
    """The function was told to fail for this key."""


# What functions were called with, and what they are told


class Calls(CallLog):
    """What the functions of one world have been called with, and which keys are to fail."""

    def all(self) -> list[list[tuple[Key, bool]]]:
        """Every call since the last `forget`: its keys, and whether they were to fail."""
        return [[(tuple(key), bad) for key, bad in json.loads(line)] for line in self.lines()]

    def keys(self) -> list[Key]:
        """The key of every group of rows handed to a function since the last `forget`, repeats included."""
        return [key for call in self.all() for key, _ in call]

    def count(self) -> Counter[Key]:
        return Counter(self.keys())

    def last(self) -> dict[Key, bool]:
        """Whether a key was to fail when it was last called."""
        return {key: bad for call in self.all() for key, bad in call}

    def fail(self, *keys: Key) -> None:
        """These keys, and no others, fail from now on."""
        self.order("fail", json.dumps(keys))

    def failing(self) -> set[Key]:
        return {tuple(key) for key in json.loads(self.ordered("fail") or "[]")}

    def behave(self) -> None:
        self.fail()

    def wait(self) -> None:
        """Calls last until `go_on`."""
        self.order("wait")

    def go_on(self) -> None:
        self.cancel("wait")

    def await_calls(self, count: int) -> None:
        wait_until(lambda: len(self.all()) >= count)

    # Used by the functions

    def note(self, keys: Sequence[Key]) -> None:
        """Write down a call before anything can go wrong with it, then obey the orders."""
        bad = self.failing()
        self.add(json.dumps([(key, key in bad) for key in keys]) + "\n")
        wait_until(lambda: self.ordered("wait") is None)
        for key in keys:
            if key in bad:
                raise ToldToFail(f"told to fail for {key}")


# What a case is


@dataclass(frozen=True)
class Source:
    """An input: its columns, its key (none: append-only), and its part of the transform keys."""

    name: str
    columns: Mapping[str, str]
    key: tuple[str, ...] | None
    part: Mapping[str, str]  # transform key → column
    required: bool = False
    reads: tuple[str, ...] | None = None  # the columns that the step declares to read; None: all

    def read(self, row: Row) -> Row:
        """What the step reads of a row."""
        return row if self.reads is None else {n: row[n] for n in dict.fromkeys([*self.part.values(), *self.reads])}

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([(name, pa.type_for_alias(kind)) for name, kind in self.columns.items()])

    def key_of(self, row: Row) -> dict[str, Any]:
        """The transform keys that a row has."""
        return {name: row[column] for name, column in self.part.items()}


@dataclass(frozen=True)
class Output:
    """An output: its columns and its key."""

    name: str
    columns: Mapping[str, str]
    key: tuple[str, ...]

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([(name, pa.type_for_alias(kind)) for name, kind in self.columns.items()])


@dataclass(frozen=True)
class Case:
    """What is transformed into what. `given` are transform keys that the step has to be told.

    `declared` are the transform keys if outputs lack some; `keys` are then those that all outputs have. Inputs by other
    transform keys, or by columns of another input, are looked up through its rows.
    """

    name: str
    sources: tuple[Source, ...]
    keys: tuple[str, ...]
    outputs: tuple[Output, ...]
    formula: Formula
    given: bool = False
    declared: tuple[str, ...] | None = None

    def __str__(self) -> str:
        return self.name

    def is_full(self, source: Source) -> bool:
        return set(source.part) == set(self.keys)

    def keys_in(self, inputs: Sequence[Sequence[Row]]) -> list[Key]:
        """The keys that these rows are about, whatever is required of them, in the order they come."""
        sides: dict[frozenset[str], dict[tuple[tuple[str, Any], ...], None]] = {}
        for source, rows in zip(self.sources, inputs, strict=True):
            if self._makes_keys(source):
                side = sides.setdefault(self._declared_part(source), {})
                side |= {tuple(sorted(source.key_of(row).items())): None for row in rows}
        joined = [dict(pair for side in chosen for pair in side) for chosen in product(*sides.values())]
        return list(dict.fromkeys(tuple(both[name] for name in self.keys) for both in joined))

    def rows_of(self, key: Key, inputs: Sequence[Sequence[Row]]) -> tuple[list[Row], ...]:
        """The rows of each input that belong to a key."""
        wanted = dict(zip(self.keys, key, strict=True))
        own = [
            [row for row in rows if all(row[c] == wanted[name] for name, c in s.part.items() if name in wanted)]
            for s, rows in zip(self.sources, inputs, strict=True)
        ]
        return tuple(
            rows if self._makes_keys(s) else self._linked(s, rows, own)
            for s, rows in zip(self.sources, own, strict=True)
        )

    def _declared_part(self, source: Source) -> frozenset[str]:
        return frozenset(source.part) & set(self.declared or self.keys)

    def _makes_keys(self, source: Source) -> bool:
        mine = self._declared_part(source)
        return bool(mine) and not any(mine < self._declared_part(other) for other in self.sources)

    def _linked(self, source: Source, rows: list[Row], own: Sequence[list[Row]]) -> list[Row]:
        """Those rows whose values in columns that are no keys some row of a key has."""
        others = {name: column for name, column in source.part.items() if name not in self.keys}
        through = [(s, mine) for s, mine in zip(self.sources, own, strict=True) if self._makes_keys(s)]
        there = {tuple(row.get(name) for name in others) for s, mine in through for row in mine}
        return [row for row in rows if not others or tuple(row[column] for column in others.values()) in there]

    def function(self, calls: Calls, factor: int) -> Callable[..., Any]:
        """The function for the step: as many Arrow frames as there are inputs."""

        def work(*frames: pa.Table) -> Any:
            inputs = [frame.to_pylist() for frame in frames]
            keys = self.keys_in(inputs)
            calls.note(keys)
            made: list[list[Row]] = [[] for _ in self.outputs]
            for key in keys:
                for rows, more in zip(made, self.formula(key, self.rows_of(key, inputs), factor), strict=True):
                    rows += more
            tables = [pa.Table.from_pylist(r, o.schema) for r, o in zip(made, self.outputs, strict=True)]
            return tables[0] if len(tables) == 1 else tuple(tables)

        def one(a: pa.Table) -> Any:
            return work(a)

        def two(a: pa.Table, b: pa.Table) -> Any:
            return work(a, b)

        def three(a: pa.Table, b: pa.Table, c: pa.Table) -> Any:
            return work(a, b, c)

        return [one, two, three][len(self.sources) - 1]

    def step(self, calls: Calls, version: str = "1", **options: Any) -> fm.BatchTransform:
        """The step, which fails as its calls say; options win over what the case has."""
        inputs: list[Any] = []
        for source in self.sources:
            aliased = any(name != column for name, column in source.part.items())
            aliased |= not self._makes_keys(source) and not set(source.part) <= set(self.declared or self.keys)
            keys = dict(source.part) if aliased else None
            spec: Any = source.name
            if aliased or source.reads is not None:
                spec = fm.InputSpec(source.name, keys=keys, columns=source.reads)
            inputs.append(fm.Required(spec) if source.required else spec)
        outputs: list[Any] = [
            o.name if set(o.key) == set(self.declared or self.keys) else fm.OutputSpec(o.name, key=o.key)
            for o in self.outputs
        ]
        found: dict[str, Any] = {
            "inputs": inputs,
            "outputs": outputs,
            "transform_keys": list(self.declared or self.keys) if self.given else None,
            "version": version,
            "name": "step",
            "chunk_size": 3,
            **options,
        }
        return fm.BatchTransform(self.function(calls, FACTORS[version]), **found)

    def create(self, lake: fm.Lake) -> None:
        for source in {one.name: one for one in self.sources}.values():
            lake.create(source.name, key=source.key, schema=source.schema)


# The cases


def _total(rows: Iterable[Row], column: str) -> int:
    return sum(row[column] or 0 for row in rows)


def _map(key: Key, rows: tuple[list[Row], ...], factor: int) -> tuple[list[Row], ...]:
    [row] = rows[0]
    return ([{"id": key[0], "w": None if row["v"] is None else row["v"] * factor}],)


def _many(key: Key, rows: tuple[list[Row], ...], factor: int) -> tuple[list[Row], ...]:
    [row] = rows[0]
    value = row["v"] or 0
    return ([{"id": key[0], "n": n, "w": value * factor + n} for n in range(value % 4)],)


def _join(key: Key, rows: tuple[list[Row], ...], factor: int) -> tuple[list[Row], ...]:
    a, b = rows
    sides = ("a" if a else "") + ("b" if b else "")
    return ([{"id": key[0], "z": _total(a, "v") * factor + _total(b, "y"), "sides": sides}],)


def _inner(key: Key, rows: tuple[list[Row], ...], factor: int) -> tuple[list[Row], ...]:
    a, b = rows
    assert b, f"{key} has no row in a required input"
    return _join(key, (a, b), factor)


def _lookup(key: Key, rows: tuple[list[Row], ...], factor: int) -> tuple[list[Row], ...]:
    a, cats = rows
    return ([{"id": key[0], "cat": key[1], "z": _total(a, "v") * factor, "label": _total(cats, "y")}],)


def _star(key: Key, rows: tuple[list[Row], ...], factor: int) -> tuple[list[Row], ...]:
    a, b, cats = rows
    return ([{"id": key[0], "cat": key[1], "z": _total(a, "v") * factor + _total(b, "y"), "label": _total(cats, "y")}],)


def _cross(key: Key, rows: tuple[list[Row], ...], factor: int) -> tuple[list[Row], ...]:
    [a], [b] = rows
    return ([{"i": key[0], "j": key[1], "z": (a["v"] or 0) * factor + (b["y"] or 0)}],)


def _group(key: Key, rows: tuple[list[Row], ...], factor: int) -> tuple[list[Row], ...]:
    return ([{"g": key[0], "n": len(rows[0]), "total": _total(rows[0], "v") * factor}],)


def _group_join(key: Key, rows: tuple[list[Row], ...], factor: int) -> tuple[list[Row], ...]:
    a, b = rows
    return ([{"g": key[0], "n": len(a), "total": _total(a, "v") * factor + _total(b, "y")}],)


def _two(key: Key, rows: tuple[list[Row], ...], factor: int) -> tuple[list[Row], ...]:
    return (*_map(key, rows, factor), *_many(key, rows, factor))


def _join_cross(key: Key, rows: tuple[list[Row], ...], factor: int) -> tuple[list[Row], ...]:
    a, b, [c] = rows
    assert a or b, f"{key} has no row on one side"
    return ([{"i": key[0], "j": key[1], "z": (_total(a, "v") + (c["w"] or 0)) * factor + _total(b, "y")}],)


def _auxiliary(key: Key, rows: tuple[list[Row], ...], factor: int) -> tuple[list[Row], ...]:
    a, words = rows
    return ([{"id": key[0], "z": _total(a, "v") * factor + _total(words, "y"), "sides": str(len(words))}],)


def _twice(key: Key, rows: tuple[list[Row], ...], factor: int) -> tuple[list[Row], ...]:
    a, cats, groups = rows
    z = _total(a, "v") * factor + _total(cats, "y")
    return ([{"id": key[0], "cat": key[1], "g": key[2], "z": z, "label": _total(groups, "y")}],)


def _linked(key: Key, rows: tuple[list[Row], ...], factor: int) -> tuple[list[Row], ...]:
    a, cats, groups = rows
    return ([{"id": key[0], "z": _total(a, "v") * factor + _total(cats, "y"), "label": _total(groups, "y")}],)


INT, TEXT = "int64", "string"
MAPPED = Output("out", {"id": INT, "w": INT}, ("id",))
MANY = Output("many", {"id": INT, "n": INT, "w": INT}, ("id", "n"))
JOINED = Output("out", {"id": INT, "z": INT, "sides": TEXT}, ("id",))
LOOKED_UP = Output("out", {"id": INT, "cat": INT, "z": INT, "label": INT}, ("id", "cat"))
GROUPED = Output("out", {"g": INT, "n": INT, "total": INT}, ("g",))
ID = {"id": "id"}
A = Source("a", {"id": INT, "v": INT}, ("id",), ID)
B = Source("b", {"id": INT, "y": INT}, ("id",), ID)
CATS = Source("cats", {"cat": INT, "y": INT}, ("cat",), {"cat": "cat"})
OF_CATS = Source("a", {"id": INT, "cat": INT, "v": INT}, ("id",), {"id": "id", "cat": "cat"})
CROSSED = Output("out", {"i": INT, "j": INT, "z": INT}, ("i", "j"))
SIDES = (
    Source("a", {"i": INT, "v": INT}, ("i",), {"i": "i"}),
    Source("b", {"j": INT, "y": INT}, ("j",), {"j": "j"}),
)
MEMBERS = Source("a", {"g": INT, "i": INT, "v": INT}, ("g", "i"), {"g": "g"})
MOVING = Source("a", {"id": INT, "g": INT, "v": INT}, ("id",), {"g": "g"})
EVENTS = Source("a", {"g": INT, "v": INT}, None, {"g": "g"})
GROUPS = Source("b", {"g": INT, "y": INT}, ("g",), {"g": "g"})

MAP = Case("map", (A,), ("id",), (MAPPED,), _map)
ONE_TO_MANY = Case("one_to_many", (A,), ("id",), (MANY,), _many)
JOIN = Case("join", (A, B), ("id",), (JOINED,), _join)
REQUIRED = Case("required", (A, Source("b", B.columns, ("id",), ID, required=True)), ("id",), (JOINED,), _inner)
LOOKUP = Case("lookup", (OF_CATS, CATS), ("id", "cat"), (LOOKED_UP,), _lookup, given=True)
STAR = Case("star", (OF_CATS, B, CATS), ("id", "cat"), (LOOKED_UP,), _star, given=True)
NOTES = Case(
    "notes",
    (OF_CATS, Source("notes", {"n": INT, "cat": INT, "y": INT}, ("n",), {"cat": "cat"})),
    ("id", "cat"),
    (LOOKED_UP,),
    _lookup,
    given=True,
)
CROSS = Case("cross", SIDES, ("i", "j"), (CROSSED,), _cross)
JOIN_CROSS = Case(
    "join_cross",
    (
        SIDES[0],
        Source("b", {"i": INT, "y": INT}, ("i",), {"i": "i"}),
        Source("c", {"j": INT, "w": INT}, ("j",), {"j": "j"}),
    ),
    ("i", "j"),
    (CROSSED,),
    _join_cross,
)
AUXILIARY = Case(
    "auxiliary", (A, Source("words", {"n": INT, "y": INT}, ("n",), {})), ("id",), (JOINED,), _auxiliary, given=True
)
TWICE = Case(
    "twice",
    (
        Source("a", {"id": INT, "cat": INT, "g": INT, "v": INT}, ("id",), {"id": "id", "cat": "cat", "g": "g"}),
        CATS,
        Source("cats", CATS.columns, ("cat",), {"g": "cat"}),
    ),
    ("id", "cat", "g"),
    (Output("out", {"id": INT, "cat": INT, "g": INT, "z": INT, "label": INT}, ("id", "cat", "g")),),
    _twice,
    given=True,
)
COARSE = Case(
    "coarse",
    (
        Source("a", {"id": INT, "g": INT, "v": INT}, ("id", "g"), {"id": "id", "g": "g"}),
        Source("b", {"g": INT, "y": INT}, ("g",), {"g": "g"}),
    ),
    ("g",),
    (GROUPED,),
    _group_join,
    given=True,
    declared=("id", "g"),
)
LINKED = Case(
    "linked",
    (
        Source("a", {"id": INT, "cat": INT, "g": INT, "v": INT}, ("id",), {"id": "id"}),
        CATS,
        Source("cats", CATS.columns, ("cat",), {"g": "cat"}),
    ),
    ("id",),
    (Output("out", {"id": INT, "z": INT, "label": INT}, ("id",)),),
    _linked,
    given=True,
)
LINKED_GROUPS = Case(
    "linked_groups",
    (
        Source("a", {"id": INT, "g": INT, "cat": INT, "v": INT}, ("id",), {"id": "id", "g": "g", "cat": "cat"}),
        Source("cats", CATS.columns, ("cat",), {"cat": "cat"}, required=True),
    ),
    ("g",),
    (GROUPED,),
    _group_join,
    given=True,
    declared=("id", "g", "cat"),
)
AGGREGATION = Case("aggregation", (MEMBERS,), ("g",), (GROUPED,), _group, given=True)
MOVING_GROUPS = Case("moving_groups", (MOVING,), ("g",), (GROUPED,), _group, given=True)
APPENDED = Case("appended", (EVENTS,), ("g",), (GROUPED,), _group, given=True)
GROUP_JOIN = Case("group_join", (MEMBERS, GROUPS), ("g",), (GROUPED,), _group_join)
ALIAS = Case(
    "alias", (A, Source("b", {"ref": INT, "y": INT}, ("ref",), {"id": "ref"})), ("id",), (JOINED,), _join, given=True
)
TWO_OUTPUTS = Case("two_outputs", (A,), ("id",), (MAPPED, MANY), _two)

# Inputs with a column that the step does not read
MAP_READ = Case(
    "map_read", (Source("a", {**A.columns, "other": INT}, ("id",), ID, reads=("v",)),), ("id",), (MAPPED,), _map
)
MOVING_READ = Case(
    "moving_read",
    (Source("a", {**MOVING.columns, "other": INT}, ("id",), {"g": "g"}, reads=("v",)),),
    ("g",),
    (GROUPED,),
    _group,
    given=True,
)
LOOKUP_READ = Case(
    "lookup_read",
    (
        Source("a", {**OF_CATS.columns, "other": INT}, ("id",), OF_CATS.part, reads=("v",)),
        Source("cats", {**CATS.columns, "other": INT}, ("cat",), CATS.part, reads=("y",)),
    ),
    ("id", "cat"),
    (LOOKED_UP,),
    _lookup,
    given=True,
)
CROSS_READ = Case(
    "cross_read",
    (Source("a", {**SIDES[0].columns, "other": INT}, ("i",), {"i": "i"}, reads=("v",)), SIDES[1]),
    ("i", "j"),
    (CROSSED,),
    _cross,
)

CASES = [
    MAP,
    ONE_TO_MANY,
    JOIN,
    REQUIRED,
    LOOKUP,
    STAR,
    NOTES,
    CROSS,
    JOIN_CROSS,
    AUXILIARY,
    TWICE,
    COARSE,
    LINKED,
    LINKED_GROUPS,
    AGGREGATION,
    MOVING_GROUPS,
    APPENDED,
    GROUP_JOIN,
    ALIAS,
    TWO_OUTPUTS,
    MAP_READ,
    MOVING_READ,
    LOOKUP_READ,
    CROSS_READ,
]


# A lake for a case


@dataclass
class World:
    """A lake with the inputs of a case, and the calls of the functions of its steps."""

    case: Case
    lake: fm.Lake
    calls: Calls
    options: dict[str, Any] = field(default_factory=dict)

    def write(self, name: str, *rows: tuple[Any, ...]) -> None:
        """Rows as tuples in the order of the input's columns."""
        source = self.source(name)
        table = pa.Table.from_pylist([dict(zip(source.columns, row, strict=True)) for row in rows], source.schema)
        self.lake[name].write(table)

    def delete(self, name: str, *keys: Any) -> None:
        self.lake[name].delete(list(keys))

    def source(self, name: str) -> Source:
        return next(source for source in self.case.sources if source.name == name)

    def step(self, version: str = "1", **options: Any) -> fm.BatchTransform:
        return self.case.step(self.calls, version, **{**self.options, **options})

    def run(self, version: str = "1", *, run: Mapping[str, Any] | None = None, **options: Any) -> Any:
        """Run the step; its calls are those since the start of this run. A failed run returns its report, too."""
        self.calls.forget()
        return self.step(version, **options).run(self.lake, **{"check": False, **(run or {})})

    def rows(self, output: str | None = None) -> list[Row]:
        """The rows of an output, in the order of its key."""
        found = next(o for o in self.case.outputs if output in (None, o.name))
        return in_order(self.lake[found.name].to_arrow().to_pylist(), found.key)

    def shown(self, column: str, output: str | None = None) -> dict[Any, Any]:
        """A column of an output by its key; a key of one column stands for itself."""
        found = next(o for o in self.case.outputs if output in (None, o.name))
        keys = [tuple(row[name] for name in found.key) for row in self.rows(found.name)]
        return {
            key[0] if len(key) == 1 else key: row[column] for key, row in zip(keys, self.rows(found.name), strict=True)
        }

    def changelist(self, offsets: bool = True, **options: Any) -> list[Key]:
        """The keys that a run would process, in their order."""
        table = self.step(**options).changelist(self.lake, offsets)
        return list(zip(*(table[name].to_pylist() for name in self.case.keys), strict=True))

    def positions(self) -> dict[str, int]:
        """How far each input has been read, as `offsets` shows it; -1 when not at all."""
        table = self.step().offsets(self.lake)
        found = dict(zip(table["input"].to_pylist(), table["offset"].to_pylist(), strict=True))
        return {name: -1 if offset is None else offset for name, offset in found.items()}

    def heads(self) -> dict[str, int]:
        last = {source.name: self.lake[source.name].last_offset for source in self.case.sources}
        return {name: -1 if offset is None else offset for name, offset in last.items()}


def in_order(rows: Iterable[Row], key: Sequence[str]) -> list[Row]:
    return sorted(rows, key=lambda row: [(row[name] is not None, row[name] or 0) for name in key])


def open_lake(folder: Path, runtime: fm.Runtime | None = None) -> fm.Lake:
    return disks.open_lake(folder / "lake", runtime=runtime)


def make_world(case: Case, folder: Path, runtime: fm.Runtime | None = None, **options: Any) -> World:
    """An empty world of a case in a folder of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    lake = open_lake(folder, runtime)
    case.create(lake)
    return World(case, lake, Calls(folder), options)
