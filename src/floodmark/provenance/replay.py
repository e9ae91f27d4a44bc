"""Replay: derived data computed again from the inputs as they were then, and compared. The place to start reading.

Each transaction of a derived dataset is one question: do its keys get the same rows, from the code and the columns that
were in force? What cannot be asked any more is said to be so: it is never taken for right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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
from floodmark.provenance.origin import Origin, origin_of
from floodmark.provenance.replay_claimed import claimed
from floodmark.provenance.replay_columns import pinned_columns, replay_column
from floodmark.provenance.replay_steps import FailedAgain, StepReplay
from floodmark.provenance.replay_views import ViewReplay
from floodmark.provenance.replayed import Contradicted, NotReplayable, Outcome, Replayed
from floodmark.provenance.tree import Maker
from floodmark.provenance.why import maker_of
from floodmark.storage.errors import StorageError
from floodmark.transform.errors import BadMeta, InputMoved, TransformError
from floodmark.transform.lakes import LakeLike
from floodmark.transform.step import Step

_CANNOT = (NotReplayable, InputMoved, BadMeta, LedgerError, StorageError, OSError)
"""What is in the way of computing something again: it is never passed for that."""

_Part = tuple[Transaction, Callable[[], tuple[int, Compared]]]
"""Something to be looked at, and the commit that it is of."""


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
            # That something cannot be replayed is said once: of the transactions that these rows are of.
            is_said = any(one.outcome == "not replayable" for one in found)
            yield from (one for one in self._others(given) if one.outcome == "differs" or not is_said)
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
        except _CANNOT as error:
            return Replayed(output.name, "not replayable", maker, block, why=_said(error))
        except (FailedAgain, TransformError, ComputeError) as error:
            return Replayed(output.name, "differs", maker, block, why=_said(error))
        outcome: Outcome = "differs" if compared.differing else "same"
        return Replayed(output.name, outcome, maker, block, keys=keys, compared=compared)

    def _others(self, output: Opened) -> Iterator[Replayed]:
        """What is wrong though every transaction is right: rows that none has written, and that none took back."""
        newest = output.newest
        if newest is None:
            return  # nobody has claimed anything yet
        maker = Maker("unknown")
        try:
            origin = origin_of(output, newest)
            maker = maker_of(origin)
            for transaction, compare in self._parts(output, newest, origin):
                one = self._other(output, transaction, maker, compare)
                if one.outcome != "same":
                    yield one
        except _CANNOT as error:
            yield _unseen(output, newest, maker, error)
        except Contradicted as error:
            yield Replayed(output.name, "differs", maker, block_of(newest), why=str(error))

    def _parts(self, output: Opened, newest: Transaction, origin: Origin) -> Iterator[_Part]:
        if origin.kind == "view":
            yield newest, lambda: self.views.replay_others(output, newest, origin)
        elif origin.kind == "datatable":
            if newest.block not in {one.block for one in output.transactions()}:  # those are compared whole
                yield newest, lambda: self.steps.replay(output, newest, origin)
        elif origin.kind == "step":
            for part in claimed(self.steps, output, origin):
                yield part.replay.transaction, part.compared
        else:
            raise NotReplayable("nobody noted what made it")

    def _other(
        self, output: Opened, transaction: Transaction, maker: Maker, compare: Callable[[], tuple[int, Compared]]
    ) -> Replayed:
        try:
            keys, compared = compare()
        except _CANNOT as error:
            return _unseen(output, transaction, maker, error)
        except (FailedAgain, TransformError, ComputeError) as error:
            return Replayed(output.name, "differs", maker, block_of(transaction), why=_said(error))
        outcome: Outcome = "differs" if compared.differing else "same"
        return Replayed(output.name, outcome, maker, block_of(transaction), keys=keys, compared=compared)

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


def _unseen(output: Opened, transaction: Transaction, maker: Maker, error: Exception) -> Replayed:
    why = f"rows that should be there and are not cannot be looked for: {_said(error)}"
    return Replayed(output.name, "not replayable", maker, block_of(transaction), why=why)


def _said(error: Exception) -> str:
    return error.message if isinstance(error, FloodmarkError) else str(error)
