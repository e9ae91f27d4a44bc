"""A lake with an input and an output that is derived from it, and a step that is done by hand."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

import floodmark as fm
from floodmark.chain.events import ExecuteTransform, MetadataEvent, SetTransform, TransformInput, TransformSql
from floodmark.dataset import Dataset
from floodmark.derive.commit import CommitMoves, KeyResults, commit_results, write_hashes, write_results
from floodmark.engine.progress import SilentProgress
from floodmark.ledger.append import WriteResult
from floodmark.ledger.create import derived_layout
from floodmark.ledger.snapshot import Snapshot
from floodmark.rows.row_hash import hash_rows
from ledger.worlds import blocks

COLUMNS = pa.schema([("k", pa.int64()), ("part", pa.string()), ("value", pa.int64()), ("text", pa.string())])
Row = dict[str, Any]


def transform(*inputs: Dataset, version: str = "1") -> SetTransform:
    """A transform of these inputs."""
    named = tuple(TransformInput(i.id.text, i.name) for i in inputs)
    return SetTransform(named, TransformSql("floodmark", version, "def step(frame): ..."))


def row(k: int | None, part: str, value: int) -> Row:
    return {"k": k, "part": part, "value": value, "text": None if value % 3 == 0 else f"t{value}"}


@dataclass
class World:
    """`output` has a row per k (`key` is k), or any number of them, one per part (`key` is k, part)."""

    lake: fm.Lake
    folder: Path
    key: tuple[str, ...]
    schema: pa.Schema = COLUMNS
    cache: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        if "input" not in self.lake:
            self.lake.create("input", key="k").write(pa.table({"k": [1, 2, 3]}))
        self.input = self.lake["input"]
        if "output" not in self.lake:
            self.lake.create_derived(
                "output", key=self.key, lookup="k", schema=self.schema, transform=transform(self.input)
            )
        self.output = self.lake["output"]

    def results(
        self, rows: Sequence[Row], processed: Iterable[int | None], schema: pa.Schema | None = None
    ) -> KeyResults:
        """Rows and processed keys as files: two of each, as two tasks would write them."""
        snapshot, strategy = self.output.snapshot(), self.output.strategy
        layout = snapshot.layout if schema is None else derived_layout(schema, strategy, snapshot.state.vocab)[0]
        assert layout is not None
        where = (self.folder, snapshot.objects, "datasets/results")
        keys = list(processed)
        files = []
        for some in (rows[::2], rows[1::2]):
            table = pa.Table.from_pylist(list(some), schema=schema or self.schema)
            files.append(write_results(table, layout, strategy, *where))
        hashes = []
        for few in (keys[::2], keys[1::2]):
            values = pa.table({"k": pa.array(few, pa.int64())})
            hashes.append(write_hashes(hash_rows(values, ["k"]), *where))
        return KeyResults(files, hashes)

    def moved_input(self) -> CommitMoves:
        """The input, read up to its head."""
        return CommitMoves(inputs={self.input.id: (self.input.head, self.input.last_offset)})

    def derive(
        self,
        rows: Sequence[Row],
        processed: Iterable[int | None],
        moves: CommitMoves | None = None,
        snapshot: Snapshot | None = None,
    ) -> WriteResult:
        """Commit rows for some keys."""
        results = self.results(rows, processed)
        return self.commit(results, moves if moves is not None else CommitMoves(), snapshot)

    def commit(self, results: KeyResults, moves: CommitMoves, snapshot: Snapshot | None = None) -> WriteResult:
        at = self.output.snapshot() if snapshot is None else snapshot
        return commit_results("output", self.lake.runtime, at, results, moves, SilentProgress(), self.cache)

    def rows(self, **options: Any) -> list[Row]:
        """What the output holds, sorted."""
        return in_order(self.output.to_arrow(**options).to_pylist())

    def transactions(self) -> list[ExecuteTransform]:
        """The transform's events in the output's chain, oldest first."""
        return [b.event for _, b in blocks(self.output) if isinstance(b.event, ExecuteTransform)]

    def events(self) -> list[MetadataEvent]:
        return [b.event for _, b in blocks(self.output)]


def in_order(rows: Iterable[Row]) -> list[Row]:
    return sorted(rows, key=lambda r: (r["k"] is None, r["k"] or 0, r["part"]))
