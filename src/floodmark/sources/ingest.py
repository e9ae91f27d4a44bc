"""Writes of sources to root datasets: outputs, spooled rows, merges by key or as a whole, and source states."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import pyarrow as pa

from floodmark.chain.events import AddData, DatasetKind, SetDataSchema, SourceState
from floodmark.chain.ids import Multihash
from floodmark.chain.walk import read_block, walk_back
from floodmark.errors import BadPrimaryKey, BadResult, BadStep, LostRace, NothingToWrite, OutputTaken
from floodmark.ledger.casting import can_cast, cast_column
from floodmark.ledger.commit import Commit
from floodmark.ledger.data_input import Incoming, StreamData, TableData
from floodmark.ledger.schema import check_column_name, declare_vocab, fields_from, layout_from_odf, vocabulary
from floodmark.ledger.snapshot import Snapshot
from floodmark.ledger.strategy import MergeKind, Strategy, strategy_of
from floodmark.rows.fold import fold_if_due
from floodmark.rows.merge import KeyedWrite
from floodmark.storage.parquet import Vocabulary
from floodmark.storage.scratch import explain_write_errors
from floodmark.transforms.outputs import check_declared_names, explain_row_errors
from floodmark.transforms.specs import OutputSpec
from floodmark.transforms.step import RunReport

if TYPE_CHECKING:
    from floodmark.ledger.commit import Commit


WriteMode = Literal["snapshot", "upsert"]
"""Whether missing rows are retracted (snapshot) or stay (upsert)."""


@dataclass(frozen=True)
class RootOutput:
    """An output when the step looked it up. It has no snapshot if its dataset does not exist yet."""

    spec: OutputSpec
    key: tuple[str, ...]
    snapshot: Snapshot | None

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def columns(self) -> pa.Schema | None:
        """The existing or declared columns; None if the first rows define them."""
        if self.snapshot is not None and self.snapshot.layout is not None:
            return self.snapshot.layout.data
        return None if self.spec.schema is None else fields_from(self.spec.schema)

    @property
    def vocabulary(self) -> Vocabulary:
        return vocabulary(declare_vocab(self.spec.vocab) if self.snapshot is None else self.snapshot.state.vocab)


def find_output(lake: Any, spec: OutputSpec, step: str) -> RootOutput:
    """Look up an output; refused if the dataset cannot be the output of a source."""
    declared = None if spec.key is None else tuple(spec.key)
    if spec.name not in lake:
        return RootOutput(spec, declared or (), None)
    snapshot = lake[spec.name].snapshot()
    if snapshot.state.dataset_kind is DatasetKind.DERIVATIVE:
        raise _refused(step, spec.name, "it has the results of another step", "name another output")
    strategy = strategy_of(snapshot.state)
    if strategy.kind not in ("upsert", "snapshot"):
        hint = "let the step create the dataset, or create it with key= and no merge=, so that rows can change"
        raise _refused(step, spec.name, f"it is a dataset with {strategy}", hint)
    if declared is not None and declared != strategy.key:
        hint = "leave out the key, or name another output"
        raise _refused(step, spec.name, f"its key is {list(strategy.key)}, not {list(declared)}", hint)
    check_declared_names(spec, snapshot, step)
    return RootOutput(spec, strategy.key, snapshot)


def check_has_key(output: RootOutput, step: str) -> None:
    """Refuse an output that does not exist yet and has no key."""
    if not output.key:
        raise BadStep(
            f"step {step!r} cannot create {output.name!r}: it has no key",
            hint=f"name the columns that identify a row: OutputSpec({output.name!r}, key=['id'])",
            step=step,
            output=output.name,
        )


def create_root_output(lake: Any, output: RootOutput, columns: pa.Schema | None) -> Snapshot:
    """The snapshot of the output's dataset, which is created if it does not exist."""
    if output.snapshot is not None:
        return output.snapshot
    spec = output.spec
    lake.create(spec.name, key=output.key, event_time=spec.event_time, schema=columns, vocab=spec.vocab, exist_ok=True)
    snapshot: Snapshot = lake[spec.name].snapshot()
    return snapshot


class OutputOvertaken(LostRace):
    """Another writer committed to the dataset after its snapshot was read."""


@dataclass
class SourceMerge(KeyedWrite):
    """The merge of a source's batch. Unlike a user's batch, it is never skipped because its state is on the chain."""

    expected: Multihash | None = None
    """The head for which the batch was read. At another head the batch may be stale."""

    def _committed_before(self, snapshot: Snapshot) -> Commit | None:
        # Called for every head onto which the batch is merged.
        if self.expected is not None and snapshot.head != self.expected:
            raise OutputOvertaken(f"another writer committed to {self.name!r} first")
        return None


@dataclass(frozen=True)
class OutputWrite:
    """A write of spooled rows to one output."""

    output: RootOutput
    spool: Spool
    mode: WriteMode
    state: SourceState | None = None
    expected: Multihash | None = field(default=None)

    def commit(self, lake: Any) -> Commit | None:
        """Write the changes in one commit; None if nothing changed. The dataset is created if it does not exist."""
        with explain_row_errors(self.output.name):
            return self._committed(lake)

    def _committed(self, lake: Any) -> Commit | None:
        data = self._incoming()  # before the dataset is created: bad frames must not leave an empty dataset
        if data is None:
            return None
        snapshot = create_root_output(lake, self.output, self.output.spec.schema)
        runtime = lake.runtime
        progress = runtime.progress()
        cache: dict[str, Any] = {}
        progress.start(f"writing {self.output.name}", None)
        try:
            kind = _merge_kind(strategy_of(snapshot.state), self.mode)
            merge = SourceMerge(
                self.output.name, runtime, data, self.state, progress, cache=cache, kind=kind, expected=self.expected
            )
            written = merge.run(snapshot)
        finally:
            progress.finish()
        fold_if_due(self.output.name, written.snapshot, cache, runtime)
        if written.snapshot.head == snapshot.head:
            return None
        lake[self.output.name].parts.follow(written.snapshot)
        return written.commit

    def _incoming(self) -> Incoming | None:
        known = self.output.columns
        if self.spool.rows:
            reader = self.spool.reader(known)
            for name in reader.schema.names:
                check_column_name(name, self.output.vocabulary)
            if missing := [name for name in self.output.key if name not in reader.schema.names]:
                raise BadPrimaryKey(
                    f"the rows lack the key column {missing[0]!r}", hint=f"they have {', '.join(reader.schema.names)}"
                )
            return StreamData(reader)
        has_effect = self.state is not None or (self.mode == "snapshot" and self.output.snapshot is not None)
        if known is None or not has_effect:
            return None
        return TableData(pa.schema([f.with_nullable(True) for f in known]).empty_table())


def _merge_kind(strategy: Strategy, mode: WriteMode) -> MergeKind | None:
    """The kind of merge to request; None is the dataset's own, which has the columns to compare."""
    return None if strategy.kind == mode else mode


def _refused(step: str, output: str, why: str, hint: str) -> OutputTaken:
    return OutputTaken(f"step {step!r} cannot write to {output!r}: {why}", hint=hint, step=step, output=output)


# Spooled rows

_BATCH_ROWS = 1 << 16


@dataclass
class Spool:
    """The rows for one output in temporary files. Only one frame is in memory; the caller removes the folder.

    Frames without rows are left out, because their columns often have no types.
    """

    folder: Path
    output: str
    rows: int = 0
    _files: list[tuple[Path, pa.Schema]] = field(default_factory=list)
    _writer: Any = None
    _frames: int = 0

    def add(self, table: pa.Table) -> None:
        """Store a frame. It must have the columns of the earlier frames, in any order."""
        self._frames += 1
        if table.num_rows == 0:
            return
        if self._files:
            self._check_names(table.column_names)
            table = table.select(self._files[0][1].names)
        with explain_write_errors("spooled rows", self.folder):
            if self._writer is None or self._files[-1][1] != table.schema:
                self.close()
                path = self.folder / f"spool-{id(self):x}-{len(self._files):06d}"
                self._writer = pa.ipc.new_stream(str(path), table.schema)
                self._files.append((path, table.schema))
            self._writer.write_table(table, max_chunksize=_BATCH_ROWS)
        self.rows += table.num_rows

    def reader(self, known: pa.Schema | None) -> pa.RecordBatchReader:
        """All rows in their order, cast to the output's types, or to common types where the output has none."""
        self.close()
        schema = self._schema(known)
        return pa.RecordBatchReader.from_batches(schema, self._batches(schema))

    def _schema(self, known: pa.Schema | None) -> pa.Schema:
        shared = []
        for name in self._files[0][1].names:
            types = list(dict.fromkeys(schema.field(name).type for _, schema in self._files))
            target = known.field(name).type if known is not None and name in known.names else None
            if target is None or not all(can_cast(one, target) for one in types):
                target = self._common_type(name, types)
            shared.append(pa.field(name, target))
        return pa.schema(shared)

    def _common_type(self, name: str, types: list[pa.DataType]) -> pa.DataType:
        """The common type of all frames. The cast checks whether each value fits."""
        if len(types) == 1:
            return types[0]
        try:
            both = pa.unify_schemas([pa.schema([(name, one)]) for one in types], promote_options="permissive")
        except pa.ArrowException as error:
            raise BadResult(
                f"column {name!r} for {self.output!r} is {types[0]} in one frame and {types[1]} in another",
                hint=f"cast it to one type in every frame, or set the type: OutputSpec({self.output!r}, …, schema=…)",
                output=self.output,
                column=name,
            ) from error
        common: pa.DataType = both.field(name).type
        return common

    def _batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        where = f"a frame for {self.output!r}"
        for path, _ in self._files:
            with pa.memory_map(str(path)) as file, pa.ipc.open_stream(file) as stream:
                for batch in stream:
                    table = pa.Table.from_batches([batch])
                    columns = [cast_column(table.column(f.name), f, where) for f in schema]
                    yield from pa.Table.from_arrays(columns, schema=schema).to_batches()

    def _check_names(self, names: list[str]) -> None:
        expected = self._files[0][1].names
        missing = [name for name in expected if name not in names]
        unknown = [name for name in names if name not in expected]
        if missing or unknown:
            what = f"lacks the column {missing[0]!r}" if missing else f"has another column, {unknown[0]!r}"
            raise BadResult(
                f"frame {self._frames} for {self.output!r} {what}; the first frame has {', '.join(expected)}",
                hint="give every frame the same columns, with nulls where there is no value",
                output=self.output,
                columns=missing + unknown,
            )

    def close(self) -> None:
        """Close the open file. The stored rows stay."""
        if self._writer is not None:
            with explain_write_errors("spooled rows", self.folder):
                self._writer.close()
            self._writer = None


# Datasets of a pipeline


class DatasetDeclaration(Protocol):
    """The declaration of a dataset that a source writes to; a pipeline's `DatasetSpec` implements it."""

    def make(self, lake: Any) -> Any:
        """Create the dataset if it does not exist; check its options if it does."""


def open_or_create(lake: Any, name: str, declared: DatasetDeclaration | None) -> Any:
    """Open the dataset that a source writes to, and create it if it does not exist."""
    if name in lake:
        return lake[name]
    return lake.create(name, exist_ok=True) if declared is None else declared.make(lake)


@dataclass
class SourceWrites:
    """The writes of one run of a source: the commits that changed the dataset, and those whose rows it had before."""

    dataset: Any
    commits: list[Commit] = field(default_factory=list)
    idle: list[Commit] = field(default_factory=list)

    def add(self, write: Callable[[], Commit]) -> bool:
        """Write, and count the rows; False if there are none."""
        before = self.dataset.snapshot().head
        try:
            commit = write()
        except NothingToWrite:
            return False
        if commit.rows == 0 and not self.dataset.strategy.is_keyed:
            return False  # without a key, data without rows changes nothing
        (self.idle if self.dataset.snapshot().head == before else self.commits).append(commit)
        return True


def ingest_report(step: str, lake: Any, writes: SourceWrites, calls: int, seconds: float) -> RunReport:
    """The report of a source's run; `calls` is the number of files or function calls."""
    commits, is_keyed = writes.commits, writes.dataset.strategy.is_keyed
    batches = [*commits, *writes.idle]
    return RunReport(
        step=step,
        run=lake.runtime.random_bytes(16).hex() if commits else "",
        keys=sum(_batch_rows(commit) if is_keyed else commit.rows for commit in batches),
        called=calls,
        commits=len(commits),
        new=sum(commit.new if is_keyed else commit.rows for commit in commits),
        changed=sum(commit.changed for commit in commits),
        retracted=sum(commit.retracted for commit in commits),
        unchanged=sum(commit.unchanged for commit in batches),
        duplicates=sum(commit.duplicates for commit in batches),
        seconds=seconds,
    )


def _batch_rows(commit: Commit) -> int:
    return commit.new + commit.changed + commit.unchanged + commit.duplicates


# Source states

_KIND = "floodmark.dev/state"  # not part of a source's identity


def source_state(source: str, state: str) -> SourceState:
    """A state of a source, as it is stored on the chain."""
    return SourceState(source_name=source, kind=_KIND, value=state)


def has_state(snapshot: Snapshot, source: str, state: str) -> bool:
    """Whether this state of a source is on the chain. It takes a few reads, whatever the length of the chain."""
    return snapshot.find_state(source_state(source, state)) is not None


def columns_added_later(snapshot: Snapshot) -> tuple[str, ...]:
    """The columns that a dataset got after its first ones. Files that were loaded before lack them."""
    if snapshot.layout is None:
        return ()
    events = (read_block(ref.hash, snapshot.objects.get_block(ref.hash)).event for ref in snapshot.non_routine())
    schemas = [e.columns for e in events if isinstance(e, SetDataSchema) and e.columns is not None]
    first = layout_from_odf(schemas[-1], vocabulary(snapshot.state.vocab)).data.names
    return tuple(name for name in snapshot.layout.data.names if name not in first)


def last_state(snapshot: Snapshot, source: str) -> str | None:
    """The newest state of a source. Only the blocks that others committed after it are read."""
    newest = snapshot.state.source_state
    if newest is None:
        return None
    if newest.source_name == source:
        return newest.value
    for _, _, block in walk_back(snapshot.objects.get_block, snapshot.head):
        event = block.event
        if isinstance(event, AddData) and (state := event.new_source_state) is not None and state.source_name == source:
            return state.value
    return None
