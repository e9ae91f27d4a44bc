"""Replay: derived data computed again from the inputs as they were then, and compared. The place to start reading.

Each transaction of a derived dataset is one question: do its keys get the same rows, from the code and the columns that
were in force? What cannot be asked any more is said to be so: it is never taken for right.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from floodmark.chain.events import DatasetKind, ExecuteTransform
from floodmark.compute.errors import ComputeError
from floodmark.compute.functions.udf import Udf
from floodmark.compute.stored.catalog import Column
from floodmark.errors import FloodmarkError
from floodmark.ledger.errors import LedgerError
from floodmark.provenance.asked import block_of
from floodmark.provenance.comparing import SHOWN, Compared
from floodmark.provenance.opened import Datasets, Opened, Transaction
from floodmark.provenance.origin import origin_of
from floodmark.provenance.replay_columns import pinned_columns, replay_column
from floodmark.provenance.replay_steps import FailedAgain, StepReplay
from floodmark.provenance.replay_views import ViewReplay
from floodmark.provenance.replayed import NotReplayable, Outcome, Replayed
from floodmark.provenance.tree import Maker
from floodmark.provenance.why import maker_of
from floodmark.storage.errors import StorageError
from floodmark.transform.errors import BadMeta, InputMoved, TransformError
from floodmark.transform.lakes import LakeLike
from floodmark.transform.step import Step


def replay(lake: LakeLike, names: Sequence[str], steps: Sequence[Step], udfs: Sequence[Udf] = ()) -> Iterator[Replayed]:
    """Compute the derived ones of these datasets again, oldest transactions first, and then their computed columns.

    `steps` are those of the pipeline: a transaction is replayed by the one that has the code which made it. `udfs` are
    functions of views and columns that are not defined or imported otherwise.
    """
    datasets = Datasets(lake)
    by_steps = StepReplay(datasets, steps, lake.runtime.session)
    replaying = _Replaying(by_steps, ViewReplay(by_steps, udfs), udfs)
    for name in names:
        yield from replaying.dataset(datasets.named(name))


@dataclass(frozen=True)
class _Replaying:
    steps: StepReplay
    views: ViewReplay
    udfs: Sequence[Udf]

    def dataset(self, given: Opened) -> Iterator[Replayed]:
        if given.snapshot.state.dataset_kind is DatasetKind.DERIVATIVE:
            found = []
            for transaction in given.transactions():
                found.append(self._transaction(given, transaction))
                yield found[-1]
            newest = given.newest
            said = {one.outcome for one in found}
            if "differs" not in said and given.snapshot.layout is not None and newest is not None:
                # That something cannot be replayed is said once: of the transactions that these rows are of.
                yield from (one for one in self._others(given, newest) if one.outcome not in said)
        if given.snapshot.layout is not None and given.dataset.catalog.columns:
            pinned = pinned_columns(given)
            for column in pinned.catalog.columns:
                yield self._column(given, column, replay_column(given, pinned, column, self.udfs))

    def _transaction(self, output: Opened, transaction: Transaction) -> Replayed:
        assert isinstance(transaction.event, ExecuteTransform)
        block = block_of(transaction)
        try:
            origin = origin_of(output, transaction)
            maker = maker_of(origin)
        except (FloodmarkError, OSError) as error:
            return Replayed(output.name, "not replayable", Maker("unknown"), block, why=str(error))
        try:
            if origin.kind == "unknown":
                raise NotReplayable("nobody noted what made it")
            way = self.views.replay if origin.kind == "view" else self.steps.replay
            keys, compared = way(output, transaction, origin)
        except (NotReplayable, InputMoved, BadMeta, LedgerError, StorageError, OSError) as error:
            return Replayed(output.name, "not replayable", maker, block, why=_said(error))
        except (FailedAgain, TransformError, ComputeError) as error:
            return Replayed(output.name, "differs", maker, block, why=_said(error))
        outcome: Outcome = "differs" if compared.differing else "same"
        return Replayed(output.name, outcome, maker, block, keys=keys, compared=compared)

    def _others(self, output: Opened, newest: Transaction) -> Iterator[Replayed]:
        """What is wrong though every transaction is right: rows that none has written, and that none took back."""
        try:
            origin = origin_of(output, newest)
            way = self.views.replay_others if origin.kind == "view" else self.steps.replay_others
            found = way(output, newest, origin)
        except (NotReplayable, InputMoved, BadMeta, LedgerError, StorageError, OSError) as error:
            why = f"rows that should be there and are not cannot be looked for: {_said(error)}"
            yield Replayed(output.name, "not replayable", Maker("unknown"), block_of(newest), why=why)
            return
        except (FailedAgain, TransformError, ComputeError) as error:
            yield Replayed(output.name, "differs", maker_of(origin), block_of(newest), why=_said(error))
            return
        if found is not None and found[1].differing:
            yield Replayed(output.name, "differs", maker_of(origin), block_of(newest), keys=found[0], compared=found[1])

    def _column(self, given: Opened, column: Column, batches: Iterator[Compared]) -> Replayed:
        maker = Maker("column", column.function.name, column.function.version)
        rows, differing = 0, 0
        first: Compared | None = None
        try:
            for compared in batches:
                rows += compared.rows
                differing += compared.differing
                first = compared if compared.differing and first is None else first
        except (NotReplayable, LedgerError, StorageError, OSError) as error:
            return Replayed(given.name, "not replayable", maker, None, column.name, why=_said(error))
        except (FailedAgain, ComputeError) as error:
            return Replayed(given.name, "differs", maker, None, column.name, why=_said(error))
        if first is None:
            return Replayed(given.name, "same", maker, None, column.name, rows)
        shown = Compared(first.stored, first.replayed, rows, differing, first.differences[:SHOWN])
        return Replayed(given.name, "differs", maker, None, column.name, rows, compared=shown)


def _said(error: Exception) -> str:
    return error.message if isinstance(error, FloodmarkError) else str(error)
