"""What a run reports is what its description says."""

from __future__ import annotations

import pandas as pd
import pyarrow as pa

import floodmark as fm


def picky(df: pd.DataFrame) -> pd.DataFrame:
    if (df["id"] % 2).any():
        raise ValueError("odd")
    return df


def test_keys_are_counted_once_however_often_the_function_was_called_for_them(tmp_path):
    lake = fm.Lake(tmp_path / "lake")
    table = lake.create("a", key="id")
    table.write(pa.table({"id": [0, 1, 2, 3, 5]}))
    step = fm.BatchTransform(picky, ["a"], ["b"])
    first = step.run(lake)
    assert (first.keys, first.failed, first.called, first.reused) == (5, 3, 5, 0)
    table.delete([{"id": 0}, {"id": 1}])
    second = step.run(lake)  # two are gone, two are tried again
    assert (second.keys, second.failed, second.called, second.reused) == (4, 2, 2, 0)
