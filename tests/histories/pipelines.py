"""Graphs of sources, steps, computed columns and views in which everything looks alike, and a naive oracle of them.

All datasets have a key `id`, a group `g` and a number `n`. Functions add a number that a file says, fail when a file
says so, and write down for which ids they were called. Queries of views are answered by a few lines of Python instead
of Spark, from an analysis that is written by hand.
"""

from __future__ import annotations

import itertools
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa

import floodmark as fm
from floodmark.errors import BadQuery
from floodmark.ledger.data_input import TableData
from floodmark.views import analyzer, declare
from floodmark.views.analysis import OFFSET_COLUMN, Analysis, InputUse, schemas_digest
from floodmark.views.changed_rows import LocalRows
from floodmark.views.definition import ViewDefinition
from floodmark.views.evaluator import Evaluator
from floodmark.views.sources import input_schema_of
from histories.disks import Crash, DyingFileSystem, open_lake
from views.refresh_worlds import NoSession

Row = tuple[int, int]
Rows = dict[int, Row]
"""By id: the group and the number."""

KEYED = ("a", "b")
LOG = "log"  # append-only
DATASETS = (*KEYED, LOG)  # that are written to directly
FILES, FRAME = "files", "frame"  # that the pipeline takes in
SOURCES = (*DATASETS, FILES, FRAME)
IDS_PER_FILE = 3
SCHEMA = pa.schema([("id", pa.int64()), ("g", pa.int64()), ("n", pa.int64())])


def as_frame(rows: Rows) -> pa.Table:
    return pa.Table.from_pylist([{"id": key, "g": g, "n": n} for key, (g, n) in rows.items()], SCHEMA)


def by_id(frame: pa.Table, value: str = "n") -> Rows:
    return {row["id"]: (row["g"], row[value]) for row in frame.to_pylist()}


# What nodes compute: as functions and queries do, and as the oracle does


def mapped(more: int, one: Rows) -> Rows:
    return {key: (g, n + more) for key, (g, n) in one.items() if n % 5}


def joined(more: int, one: Rows, other: Rows) -> Rows:
    found = {}
    for key in {*one, *other}:
        (g, n), (h, m) = one.get(key, (0, 0)), other.get(key, (0, 0))
        found[key] = ((g + h) % 3, 2 * n + m + more)
    return found


def added_up(more: int, *all_of: Rows) -> Rows:
    return {number: (len(rows), sum(n for _, n in rows.values()) + more) for number, rows in enumerate(all_of)}


def grouped(more: int, one: Rows) -> Rows:
    """`more` plays no part: a query has no function."""
    members: dict[int, list[int]] = defaultdict(list)
    for g, n in one.values():
        members[g].append(n)
    return {g: (len(numbers), sum(numbers)) for g, numbers in members.items()}


def kept(more: int, one: Rows) -> Rows:
    return {key: (g, n) for key, (g, n) in one.items() if n > 5}


def raised(more: int, one: Rows) -> Rows:
    return {key: (g, n + more) for key, (g, n) in one.items()}


KINDS: dict[str, Callable[..., Rows]] = {
    "map": mapped,
    "join": joined,
    "table": added_up,
    "groups": grouped,
    "rows": kept,
    "function": raised,
    "column": raised,
}
VIEWS = ("groups", "rows", "function")


@dataclass(frozen=True)
class Drawn:
    """A node of a graph. What it writes has its name: a dataset, or a column of the dataset that it reads.

    `taken` is the column that it takes the number from; `skips` is whether rows of a column that fail are skipped, and
    tried again by each run, or stop it.
    """

    name: str
    kind: str
    reads: tuple[str, ...]
    taken: str = "n"
    skips: bool = False

    @property
    def called(self) -> str:
        """What the pipeline calls it."""
        if self.kind == "column":
            return f"{self.reads[0]}.{self.name}"
        return self.name if self.kind in VIEWS else f"make_{self.name}"

    @property
    def sql(self) -> str:
        [read] = self.reads
        if self.kind == "groups":
            return f"select g as id, count(*) as g, sum({self.taken}) as n from {read} group by g"
        return f"select id, g, {self.taken} as n from {read} where {self.taken} > 5"

    def comes_to(self, more: int, *inputs: Rows) -> Rows:
        return KINDS[self.kind](more, *inputs)

    def declared(self, folder: Path, version: str) -> Any:
        name, compute = self.name, KINDS[self.kind]
        flag, added, calls = (str(folder / f"{name}.{what}") for what in ("fails", "added", "calls"))

        def told(ids: Sequence[int]) -> int:
            """Writes down the call, fails if it is to, and says what is added."""
            with Path(calls).open("a") as file:
                file.writelines(f"{key}\n" for key in ids)
            fails = Path(flag).read_text() if Path(flag).exists() else ""
            if fails == "all" or (fails == "some" and any(key % 2 for key in ids)):
                raise ValueError("told to fail")
            return int(Path(added).read_text()) if Path(added).exists() else 0

        def call(*frames: pa.Table) -> pa.Table:
            inputs = [by_id(frame) for frame in frames]
            return as_frame(compute(told(sorted({key for rows in inputs for key in rows})), *inputs))

        def one(a: pa.Table) -> pa.Table:
            return call(a)

        def two(a: pa.Table, b: pa.Table) -> pa.Table:
            return call(a, b)

        def raise_n(key: int, n: int | None) -> int | None:
            more = told([key])
            return None if n is None else n + more

        func, output = one if len(self.reads) == 1 else two, [fm.DatasetSpec(name, key="id", schema=SCHEMA)]
        if self.kind == "table":
            return fm.DatatableTransform(func, list(self.reads), output, name=self.called, version=version)
        if self.kind in ("map", "join"):
            return fm.BatchTransform(func, list(self.reads), output, name=self.called, version=version, chunk_size=3)
        if self.kind in ("groups", "rows"):
            return fm.ViewSpec(name, sql=self.sql)
        udf = fm.udf(returns="int64", name=name, version=version, on_error=[fm.Skip(ValueError)] if self.skips else [])(
            raise_n
        )
        if self.kind == "function":
            return fm.ViewSpec(
                name, source=self.reads[0], select={"id": "id", "g": "g", "n": (udf, ["id", self.taken])}
            )
        options = {"checkpoint_size": 2, "retry_errors": self.skips}
        return fm.ColumnSpec(self.reads[0], name, udf, ["id", self.taken], **options)


# What Spark would make of the queries


def analysed(node: Drawn, lake: fm.Lake, definition: ViewDefinition) -> Analysis:
    """How a query is kept up to date, as Spark's plan of it would tell."""
    [read] = node.reads
    source = input_schema_of(lake[read])
    if node.taken not in source.schema.names:
        raise BadQuery(f"{read!r} has no column {node.taken!r}", hint="compute it")
    first = "g" if node.kind == "groups" else "id"
    wanted = {"id", "g"} if node.kind == "function" else {"g", node.taken} | {first}
    inputs = wanted | ({"id", node.taken} if node.kind == "function" else set())
    offset = ((OFFSET_COLUMN, source.offset),)
    use = InputUse(
        read,
        source.dataset_id,
        (("id", first),),
        tuple(name for name in source.schema.names if name in wanted),
        tuple(name for name in source.computed if name in inputs),
    )
    return Analysis(
        kind="groups" if node.kind == "groups" else "rows",
        why=None,
        sources=(use,),
        columns=SCHEMA,
        t=("id",),
        key=("id",),
        hidden=pa.schema([]),
        query=definition.compose((OFFSET_COLUMN,)) if node.kind == "function" else node.sql,
        identity=False,
        inject={read: offset} if node.kind == "function" else {},
        schemas=schemas_digest([source]),
    )


def answered(node: Drawn, rows: pa.Table) -> pa.Table:
    """The answer to a view's query over some rows of its source."""
    if node.kind == "function":  # the functions come after the query
        return rows.select(["id", "g", OFFSET_COLUMN])
    if node.kind == "groups":
        made = [{"id": number, "g": row["g"], "n": row[node.taken]} for number, row in enumerate(rows.to_pylist())]
        rows = pa.Table.from_pylist(made, SCHEMA)
        return as_frame(node.comes_to(0, by_id(rows)))
    return as_frame(node.comes_to(0, by_id(rows, node.taken)))


@contextmanager
def without_spark(nodes: Sequence[Drawn], folder: Path) -> Iterator[None]:
    """Views of a graph are declared and refreshed by what is written here; their queries may be told to fail, too."""
    known = {node.name: node for node in nodes}

    def analyse_in(lake: fm.Lake, definition: ViewDefinition, *, view: str, **_: Any) -> Analysis:
        return analysed(known[view], lake, definition)

    def evaluate(self: Evaluator, inputs: Mapping[str, Any]) -> TableData:
        [given] = inputs.values()
        assert isinstance(given, LocalRows)
        node, flag = known[self.view], folder / f"{self.view}.fails"
        if node.kind != "function":
            asked = given.table.column("g" if node.kind == "groups" else "id").to_pylist()
            with (folder / f"{self.view}.calls").open("a") as file:
                file.writelines(f"{key}\n" for key in asked)
            if flag.exists() and flag.read_text():
                raise ValueError("told to fail")
        return TableData(answered(node, given.table))

    with (
        mock.patch.object(analyzer, "analyse_for_lake", analyse_in),
        mock.patch.object(declare, "analyse_for_lake", analyse_in),
        mock.patch.object(Evaluator, "evaluate", evaluate),
    ):
        yield


# The world that they are in


@dataclass
class World:
    """A lake in a folder, files and a frame to take in, the rows that all sources have, and a graph over them."""

    folder: Path
    nodes: Sequence[Drawn]
    rows: dict[str, Rows] = field(default_factory=lambda: {name: {} for name in SOURCES})
    more: dict[str, int] = field(default_factory=dict)
    versions: dict[str, int] = field(default_factory=dict)
    written: list[tuple[str, int, Row]] = field(default_factory=list)  # all that sources were given, in its order

    def __post_init__(self) -> None:
        for name in DATASETS:
            self.lake().create(name, key="id" if name in KEYED else None, schema=SCHEMA)
        self._seconds = itertools.count(1_700_000_000)

    def lake(self, disk: Any = None) -> fm.Lake:
        return open_lake(self.folder / "lake", disk, fm.Runtime(session=NoSession()))

    def taken_in(self) -> list[fm.Source]:
        """Sources of the pipeline that nodes read."""
        every = {
            FILES: fm.Source(fm.DatasetSpec(FILES, key="id", schema=SCHEMA), files=str(self.folder / "*.csv")),
            FRAME: fm.Source(
                fm.DatasetSpec(FRAME, key="id", schema=SCHEMA),
                frame=lambda: as_frame(self.rows[FRAME]) if self.rows[FRAME] else None,
            ),
        }
        read = {name for node in self.nodes for name in node.reads}
        return [source for name, source in every.items() if name in read]

    @property
    def pipeline(self) -> fm.Pipeline:
        """As it is declared now, in an order of no use."""
        versions = [str(self.versions.get(node.name, 0)) for node in self.nodes]
        made = [node.declared(self.folder, version) for node, version in zip(self.nodes, versions, strict=True)]
        return fm.Pipeline([*reversed(made), *self.taken_in()])

    # What happens to it

    def write(self, source: str, rows: Rows) -> None:
        if source == LOG:
            rows = {len(self.rows[LOG]) + number: row for number, row in enumerate(rows.values())}
        self.rows[source].update(rows)
        self.written += [(source, key, row) for key, row in rows.items()]
        if source in DATASETS:
            self.lake()[source].write(as_frame(rows))
        elif source == FILES:
            for number in sorted({key // IDS_PER_FILE for key in rows}):
                self._put(number)

    def _put(self, number: int) -> None:
        """Write a file with all rows of its ids; its time is never that of another."""
        found = {key: row for key, row in self.rows[FILES].items() if key // IDS_PER_FILE == number}
        path = self.folder / f"{number}.csv"
        path.write_text("id,g,n\n" + "".join(f"{key},{g},{n}\n" for key, (g, n) in found.items()))
        os.utime(path, (next(self._seconds),) * 2)

    def delete(self, source: str, ids: Sequence[int]) -> None:
        there = [key for key in ids if self.rows[source].pop(key, None) is not None]
        self.lake()[source].delete(pa.table({"id": pa.array(there, pa.int64())}))

    def fail(self, node: Drawn, how: str) -> None:
        (self.folder / f"{node.name}.fails").write_text(how)

    def mend(self) -> None:
        for node in self.nodes:
            self.fail(node, "")

    def change(self, node: Drawn, more: int) -> None:
        """The function of a node adds another number; its version stays."""
        self.more[node.name] = more
        (self.folder / f"{node.name}.added").write_text(str(more))

    def run(self, workers: int, *nodes: Drawn, **options: Any) -> fm.PipelineReport:
        names = [node.called for node in nodes]
        return self.pipeline.run(self.lake(), names, workers=workers, check=False, **options)

    def killed_run(self, changes: int) -> None:
        """A run whose process ends after this many changes of the disk.

        It has one thread: an interrupt of others may come where a file was just opened, and Python warns of files that
        are not closed.
        """
        disk = DyingFileSystem(changes)
        try:
            self.pipeline.run(self.lake(disk), workers=1, check=False)
        except Crash:
            assert disk.dead

    # What it comes to

    def oracle(self) -> dict[str, Rows]:
        """All datasets, and columns by their names, computed from the sources and from nothing else."""
        found = {name: dict(rows) for name, rows in self.rows.items()}
        for node in self.nodes:
            inputs = [found[name if node.taken == "n" else node.taken] for name in node.reads]
            found[node.name] = node.comes_to(self.more.get(node.name, 0), *inputs)
        return found

    def shown(self) -> dict[str, Rows]:
        """The same, as the lake has it."""
        found = {name: self._shown(name) for name in SOURCES}
        for node in self.nodes:
            is_column = node.kind == "column"
            found[node.name] = self._shown(node.reads[0], node.name) if is_column else self._shown(node.name)
        return found

    def _shown(self, dataset: str, value: str = "n") -> Rows:
        """What was never made, because there was nothing to make it of, has no rows."""
        lake = self.lake()
        if dataset not in lake or not lake[dataset].count():
            return {}
        return by_id(lake[dataset].to_arrow(), value)

    def standing(self) -> dict[str, Any]:
        """What a run with nothing to do must leave as it is."""
        return {dataset.name: (dataset.head, dataset.catalog) for dataset in self.lake()}

    def called(self) -> dict[str, list[int]]:
        """By node the ids (of a view of groups: the groups) that it was called with since the last time."""
        found = {}
        for node in self.nodes:
            log = self.folder / f"{node.name}.calls"
            found[node.name] = sorted(map(int, log.read_text().split())) if log.exists() else []
            log.unlink(missing_ok=True)
        return found
