"""A dataset that another tool fetches by polling has the merge strategy that its polling source declares."""

from __future__ import annotations

import pytest

from floodmark.chain.events import AddPushSource, MetadataBlock, SetPollingSource
from floodmark.chain.ids import Multihash
from floodmark.chain.source_steps import (
    FetchStepUrl,
    MergeStrategyAppend,
    MergeStrategyLedger,
    MergeStrategySnapshot,
    ReadStepParquet,
)
from floodmark.chain.state import EMPTY, ChainState, apply_block
from floodmark.ledger.strategy import APPEND, Strategy, strategy_of


def after(*events) -> ChainState:
    state = EMPTY
    for number, event in enumerate(events):
        block = MetadataBlock(system_time=number, prev_block_hash=None, sequence_number=number, event=event)
        state = apply_block(state, Multihash.sha3_256(bytes([number])), block)
    return state


def polled(merge) -> SetPollingSource:
    return SetPollingSource(fetch=FetchStepUrl("file:///prices"), read=ReadStepParquet(), merge=merge)


@pytest.mark.parametrize(
    ("merge", "strategy"),
    [
        (MergeStrategyAppend(), APPEND),
        (MergeStrategyLedger(("id",)), Strategy("ledger", ("id",), None, ("id",))),
        (MergeStrategySnapshot(("id",), ("price",)), Strategy("snapshot", ("id",), ("price",), ("id",))),
    ],
)
def test_strategy_of_a_polling_source_counts(merge, strategy: Strategy):
    assert strategy_of(after(polled(merge))) == strategy


def test_newest_polling_source_counts():
    assert strategy_of(after(polled(MergeStrategyAppend()), polled(MergeStrategyLedger(("id",))))).kind == "ledger"


def test_push_source_is_asked_first():
    pushed = AddPushSource(source_name="default", read=ReadStepParquet(), merge=MergeStrategyAppend())
    assert strategy_of(after(polled(MergeStrategyLedger(("id",))), pushed)) == APPEND


def test_state_found_by_skip_pointers_knows_the_polling_source():
    source = polled(MergeStrategySnapshot(("id",), None))
    block = MetadataBlock(system_time=0, prev_block_hash=None, sequence_number=0, event=source)
    state = ChainState.from_newest((Multihash.sha3_256(b"0"), block), {"SetPollingSource": block})
    assert strategy_of(state).kind == "snapshot"
