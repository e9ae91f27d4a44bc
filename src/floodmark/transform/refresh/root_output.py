"""A step's output that is a root dataset: opened or made, and written by key, or as the whole of what there is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow as pa

from floodmark.chain.events import DatasetKind, SourceState
from floodmark.chain.hashes import Multihash
from floodmark.errors import LostRace
from floodmark.ledger.commit import Commit
from floodmark.ledger.errors import BadPrimaryKey
from floodmark.ledger.fold import fold_if_due
from floodmark.ledger.incoming import Batches, Frame, Incoming
from floodmark.ledger.layout import check_column_name, fields_from, vocabulary
from floodmark.ledger.merge.write import Merge
from floodmark.ledger.snapshot import Snapshot
from floodmark.ledger.strategy import Kind, Strategy, strategy_of
from floodmark.storage.slices import Vocabulary
from floodmark.transform.errors import BadStep, OutputTaken
from floodmark.transform.refresh.explained import explained_for
from floodmark.transform.refresh.spool import Spool
from floodmark.transform.specs import OutputSpec

Way = Literal["snapshot", "upsert"]
"""Whether rows that do not come are gone (snapshot) or stay as they are (upsert)."""


@dataclass(frozen=True)
class RootOutput:
    """An output as it was when the step looked: without a snapshot it is yet to be made."""

    spec: OutputSpec
    key: tuple[str, ...]
    snapshot: Snapshot | None

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def columns(self) -> pa.Schema | None:
        """The columns that it has, or is declared with; None when its first rows decide."""
        if self.snapshot is not None and self.snapshot.layout is not None:
            return self.snapshot.layout.data
        return None if self.spec.schema is None else fields_from(self.spec.schema)

    @property
    def vocabulary(self) -> Vocabulary:
        return vocabulary(None if self.snapshot is None else self.snapshot.state.vocab)


def find_output(lake: Any, spec: OutputSpec, step: str) -> RootOutput:
    """The output as it is now; refused if it is no dataset that a step like this may write to."""
    declared = None if spec.key is None else tuple(spec.key)
    if spec.name not in lake:
        return RootOutput(spec, declared or (), None)
    snapshot = lake[spec.name].snapshot()
    if snapshot.state.dataset_kind is DatasetKind.DERIVATIVE:
        raise _taken(step, spec.name, "it holds the results of another step", "name another output")
    strategy = strategy_of(snapshot.state)
    if strategy.kind not in ("upsert", "snapshot"):
        hint = "rows must be able to change and go: let the step make the dataset, or create it with key= and no merge="
        raise _taken(step, spec.name, f"it is a dataset with {strategy}", hint)
    if declared is not None and declared != strategy.key:
        hint = "leave out the key, or name another output"
        raise _taken(step, spec.name, f"its key is {list(strategy.key)}, not {list(declared)}", hint)
    return RootOutput(spec, strategy.key, snapshot)


def check_has_key(output: RootOutput, step: str) -> None:
    """Refuse an output that is yet to be made when nobody says what identifies its rows."""
    if not output.key:
        raise BadStep(
            f"step {step!r} cannot make {output.name!r}: it has no key",
            hint=f"say which columns identify a row: OutputSpec({output.name!r}, key=['id'])",
            step=step,
            output=output.name,
        )


def make_output(lake: Any, output: RootOutput, columns: pa.Schema | None) -> Snapshot:
    """The output's dataset, made now if it was not there."""
    if output.snapshot is not None:
        return output.snapshot
    spec = output.spec
    lake.create(spec.name, key=output.key, event_time=spec.event_time, schema=columns, exist_ok=True)
    made: Snapshot = lake[spec.name].snapshot()
    return made


class Overtaken(LostRace):
    """Somebody committed to the dataset after it was looked at."""


@dataclass
class RowMerge(Merge):
    """A batch that a step brings. It is not taken for one that was committed before, as a user's is by its state."""

    expected: Multihash | None = None
    """The head that the batch was read for; at another one it may be out of date."""

    def _committed_before(self, snapshot: Snapshot) -> Commit | None:
        # Called for every head that the batch is about to be merged onto.
        if self.expected is not None and snapshot.head != self.expected:
            raise Overtaken(f"others wrote to {self.name!r} first")
        return None


@dataclass(frozen=True)
class Refresh:
    """The rows of one output on their way, and what they are to become."""

    output: RootOutput
    spool: Spool
    way: Way
    state: SourceState | None = None
    expected: Multihash | None = field(default=None)

    def commit(self, lake: Any) -> Commit | None:
        """Write what changed, in one commit; None when nothing did. The dataset is made if it was not there."""
        with explained_for(self.output.name):
            return self._committed(lake)

    def _committed(self, lake: Any) -> Commit | None:
        data = self._incoming()  # before it is made: frames that do not go together leave no empty dataset behind
        if data is None:
            return None
        snapshot = make_output(lake, self.output, self.output.spec.schema)
        runtime = lake.runtime
        progress = runtime.progress()
        cache: dict[str, Any] = {}
        progress.start(f"writing {self.output.name}", None)
        try:
            kind = _way_of(strategy_of(snapshot.state), self.way)
            merge = RowMerge(
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
            return Batches(reader)
        is_told = self.state is not None or (self.way == "snapshot" and self.output.snapshot is not None)
        if known is None or not is_told:
            return None
        return Frame(pa.schema([f.with_nullable(True) for f in known]).empty_table())


def _way_of(strategy: Strategy, way: Way) -> Kind | None:
    """The kind of merge to ask for; None is the dataset's own, which knows which columns count."""
    return None if strategy.kind == way else way


def _taken(step: str, output: str, why: str, hint: str) -> OutputTaken:
    return OutputTaken(f"step {step!r} cannot write to {output!r}: {why}", hint=hint, step=step, output=output)
