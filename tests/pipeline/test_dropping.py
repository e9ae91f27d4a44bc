"""A dataset that others are computed from is dropped only together with them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import floodmark as fm
from floodmark.errors import DatasetInUse


def _same(rows: pa.Table) -> pa.Table:
    return rows


def _step(source: str, output: str) -> fm.BatchTransform:
    return fm.BatchTransform(_same, [source], [output], name=f"make_{output}")


def _names(lake: fm.Lake) -> list[str]:
    return [dataset.name for dataset in lake]


@pytest.fixture
def lake(tmp_path: Path) -> fm.Lake:
    """a → b → c, a → d; and e, which nothing reads."""
    lake = fm.Lake(tmp_path / "lake")
    for name in ("a", "e"):
        lake.create(name, key="id").write(pa.table({"id": [1, 2]}))
    for source, output in (("a", "b"), ("b", "c"), ("a", "d")):
        _step(source, output).run(lake)
    return lake


def test_dataset_that_others_read_is_not_dropped_and_the_error_names_them(lake: fm.Lake) -> None:
    with pytest.raises(DatasetInUse, match="'a' was not dropped: b, d are computed from it") as refused:
        lake.drop("A")
    assert "cascade=True" in refused.value.hint
    assert list(refused.value.readers) == ["c", "b", "d"]
    assert _names(lake) == ["a", "b", "c", "d", "e"]
    assert lake["c"].count() == 2


def test_cascade_drops_the_readers_first(lake: fm.Lake) -> None:
    assert lake.readers("a") == ("b", "d")
    assert lake.drop_order("b") == ("c", "b")
    assert lake.drop("b", cascade=True) == ("c", "b")
    assert _names(lake) == ["a", "d", "e"]
    assert lake.drop("a", cascade=True) == ("d", "a")
    assert _names(lake) == ["e"]


def test_dataset_without_readers_is_dropped(lake: fm.Lake) -> None:
    assert lake.drop("c") == ("c",)
    assert lake.drop("b") == ("b",)
    assert lake.drop("e") == ("e",)
    assert _names(lake) == ["a", "d"]


def test_renamed_reader_is_named_as_it_is_now(lake: fm.Lake) -> None:
    lake.rename("b", "bees")
    with pytest.raises(DatasetInUse, match="bees, d are computed from it"):
        lake.drop("a")


def test_steps_run_again_after_their_outputs_were_dropped(lake: fm.Lake) -> None:
    lake.drop("b", cascade=True)
    for source, output in (("a", "b"), ("b", "c")):
        assert _step(source, output).run(lake).new == 2


def test_damaged_reader_hides_no_other_one(lake: fm.Lake, caplog: pytest.LogCaptureFixture) -> None:
    path = next(Path(lake.store.url).glob(f"datasets/{lake['b'].id.bytes.hex()}/refs/head"))
    path.write_text("nonsense")
    with pytest.raises(DatasetInUse, match="d is computed from it"):
        lake.drop("a")
    assert "dataset 'b' cannot be read" in caplog.text
