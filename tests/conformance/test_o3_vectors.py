"""The vectors of the out-of-order planner: every one of them, to the row. Their intervals are closed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from floodmark.timeline.planner import Action, CopyLate, CopyRowGroup, MergeLate, RowGroupBounds, plan, split

HERE = Path(__file__).parent


def vectors(name: str) -> list[Any]:
    return [json.loads(line) for line in (HERE / name).read_text().splitlines()]


def late_times(items: list[int | dict[str, int]]) -> np.ndarray[Any, np.dtype[np.int64]]:
    ranges = [range(i["from"], i["to"] + 1) if isinstance(i, dict) else range(i, i + 1) for i in items]
    return np.concatenate([np.array(r, np.int64) for r in ranges])


def closed(action: Action) -> list[Any]:
    """An action as the vectors write it."""
    match action:
        case MergeLate(first, last, row_lo, row_hi, late_lo, late_hi):
            groups = first if first == last else f"{first}..{last}"
            return ["MERGE", groups, row_lo, row_hi - 1, late_lo, late_hi - 1]
        case CopyRowGroup(index, row_lo, row_hi):
            return ["COPY_RG", index, row_lo, row_hi - 1]
        case CopyLate(late_lo, late_hi):
            return ["COPY_O3", late_lo, late_hi - 1]


@pytest.mark.parametrize("vector", vectors("o3-planner-vectors.jsonl"), ids=lambda v: v["test"])
def test_the_planner_does_what_the_vector_says(vector: Any):
    groups = [RowGroupBounds(*group) for group in vector["rgs"]]
    late = late_times(vector["o3"])
    actions = plan(groups, late, small=vector["small"], most=vector["max"], dedup=vector["coalesce"])
    assert [closed(action) for action in actions] == vector["expect"]


@pytest.mark.parametrize("vector", vectors("o3-split-vectors.jsonl"), ids=lambda v: str(v["total"]))
def test_merge_results_are_split_as_the_vector_says(vector: Any):
    assert split(vector["total"], vector["max"]) == vector["chunks"]


def test_all_vectors_are_here():
    assert len(vectors("o3-planner-vectors.jsonl")) == 21
    assert len(vectors("o3-split-vectors.jsonl")) == 5
