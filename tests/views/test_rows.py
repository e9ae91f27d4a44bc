"""The rows of what was touched: as of the snapshot, all of them, and nobody else's."""

from __future__ import annotations

import random
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from floodmark import Lake, Runtime
from floodmark.dataset import Dataset
from floodmark.engine.session import Session
from floodmark.rows.key_index import KeyIndex
from floodmark.views.changed_rows import LocalRows, read_all_rows, read_changed_rows, read_keys_at, read_rows_at
from limits import set_limit
from views.sourcing import analysis, as_rows, naive_rows, naive_touched, small_rows, touched_in, use

INT, TEXT = pa.int64(), pa.string()
SCHEMA = pa.schema([("id", INT), ("part", INT), ("g", INT), ("h", TEXT), ("d", pa.date32()), ("v", pa.float64())])


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake", runtime=Runtime(fold_at=None))


def _records(draw: random.Random, ids: list[int]) -> pa.Table:
    def one(i: int) -> dict[str, Any]:
        return {
            "id": i,
            "part": i % 7,
            "g": draw.choice([None, -1, 1, 2, 3, -(1 << 62), 1 << 40, 1 << 41, 1 << 42, 1 << 43, 1 << 44, 1 << 45]),
            "h": draw.choice([None, "", *"abcdefghi", "long enough to be of no use"]),
            "d": draw.choice([None, *(date(1969, 12, day) for day in range(20, 31)), date(2026, 11, 16)]),
            "v": draw.random(),
        }

    return pa.Table.from_pylist([one(i) for i in ids], SCHEMA)


def _history(lake: Lake, draw: random.Random, **options: Any) -> tuple[Dataset, int]:
    """A dataset with some writes, and a position after the first few of them."""
    source = lake.create("s", **options)
    source.write(_records(draw, list(range(60))))
    position = source.last_offset or 0
    if not options:
        source.write(_records(draw, [100, 101]))
        return source, position
    source.write(_records(draw, draw.sample(range(70), 3)))
    source.delete(pa.table({"id": [3]}))
    return source, position


@pytest.mark.slow
@pytest.mark.parametrize("columns", [["g"], ["h"], ["d"], ["g", "h"], ["h", "d", "g"]], ids="+".join)
@pytest.mark.parametrize("way", ["copies", "files", "folded", "append"])
def test_rows_of_other_columns_than_the_key_are_found(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, way: str, columns: list[str]
):
    source, position = _history(lake, random.Random(5), **({} if way == "append" else {"key": ["part", "id"]}))
    set_limit(monkeypatch, "found.row_by_key", 0.0 if way == "copies" else 1000000000.0)
    set_limit(monkeypatch, "found.piece_bytes", 2000)
    set_limit(monkeypatch, "found.looked_at", 8)
    if way == "folded":
        assert source.fold().files
    shown = ["id", "v"]
    known = analysis(
        "groups", {c: SCHEMA.field(c).type for c in columns}, [use(source, {c: c for c in columns}, shown)]
    )
    [found] = small_rows(lake, known, {"s": position})
    assert found.column_names == shown
    expected = naive_rows(source, columns, shown, naive_touched(source, columns, position))
    assert as_rows(found) == expected
    assert 0 < len(expected) < source.count()


@pytest.mark.parametrize("columns", [["id", "part"], ["part"]], ids="+".join)
@pytest.mark.parametrize("few", [0, 1 << 20], ids=["scan", "index"])
def test_rows_of_a_key_or_its_prefix_are_found(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, few: int, columns: list[str]
):
    set_limit(monkeypatch, "gather.few_rows", few)
    set_limit(monkeypatch, "found.piece_bytes", 2000)
    source, position = _history(lake, random.Random(6), key=["part", "id"], lookup=["part"])
    known = analysis("join", {f"t_{c}": INT for c in columns}, [use(source, {f"t_{c}": c for c in columns}, ["v"])])
    [found] = small_rows(lake, known, {"s": position})
    assert as_rows(found) == naive_rows(source, columns, ["v"], naive_touched(source, columns, position))


def test_row_wise_views_get_current_rows_beyond_the_position_and_look_up_nothing(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
):
    source = lake.create("s", key="id")
    source.write(pa.table({"id": [1, 2, 3], "v": [1, 2, 3]}))
    source.write(pa.table({"id": [2, 4], "v": [20, 4]}))
    source.write(pa.table({"id": [2], "v": [200]}))
    source.delete([4])
    monkeypatch.setattr(KeyIndex, "find", None)
    [found] = small_rows(lake, analysis("rows", {"id": INT}, [use(source, {"id": "id"}, ["id", "v"])]), {"s": 2})
    assert found.to_pylist() == [{"id": 2, "v": 200}]


def test_columns_come_in_the_order_of_the_source_and_injected_ones_after_them(lake: Lake):
    source = lake.create("s")
    source.write(pa.table({"a": [1, 2], "b": [3, 4], "c": [5, 6]}))
    t = {"floodmark_offset": INT}
    inject = {"s": (("floodmark_offset", "offset"), ("again", "a"))}
    known = analysis("rows", t, [use(source, {"floodmark_offset": "offset"}, ["c", "a"])], inject)
    [found] = small_rows(lake, known, {"s": 0})
    assert found.to_pylist() == [{"a": 2, "c": 6, "floodmark_offset": 1, "again": 2}]
    assert found.column_names == ["a", "c", "floodmark_offset", "again"]


def test_rows_are_those_of_the_snapshot_whatever_is_written_meanwhile(lake: Lake):
    source = lake.create("s", key="id")
    source.write(pa.table({"id": [1, 2], "g": [7, 8]}))
    known = analysis("groups", {"g": INT}, [use(source, {"g": "g"}, ["id"])])
    [input_snapshot], touched = touched_in(lake, known, {})
    source.write(pa.table({"id": [1, 3], "g": [8, 7]}))
    rows = read_changed_rows(input_snapshot, known, touched, Session())
    assert isinstance(rows, LocalRows)
    assert as_rows(rows.table) == [(1,), (2,)]


def test_column_that_came_later_is_null_in_older_rows(lake: Lake, monkeypatch: pytest.MonkeyPatch):
    source = lake.create("s", key="id")
    source.write(pa.table({"id": [1, 2], "g": [7, 8]}))
    source.evolve({"h": "string"})
    source.write(pa.table({"id": [3], "g": [7], "h": ["x"]}))
    known = analysis("groups", {"h": TEXT}, [use(source, {"h": "h"}, ["id", "h"])])
    for row_by_key in (0.0, 1e9):
        set_limit(monkeypatch, "found.row_by_key", row_by_key)
        [found] = small_rows(lake, known, {})
        assert as_rows(found) == [(1, None), (2, None), (3, "x")]


def test_damaged_copy_is_not_believed(lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    source = lake.create("s", key="id")
    source.write(pa.table({"id": list(range(100)), "g": [n % 5 for n in range(100)], "v": list(range(100))}))
    set_limit(monkeypatch, "found.row_by_key", 0.0)
    copies = [f for f in tmp_path.rglob("*") if "/rows/" in str(f) and f.is_file()]
    for copy in copies:
        held = bytearray(copy.read_bytes())
        at = held.index((57).to_bytes(8, "little") + (58).to_bytes(8, "little"))
        at = held.index((57).to_bytes(8, "little") + (58).to_bytes(8, "little"), at + 1)
        held[at] ^= 1
        copy.write_bytes(held)
    assert copies
    source.write(pa.table({"id": [100], "g": [2], "v": [100]}))
    [found] = small_rows(lake, analysis("groups", {"g": INT}, [use(source, {"g": "g"}, ["v"])]), {"s": 99})
    assert as_rows(found) == sorted(((v,) for v in [*range(2, 100, 5), 100]), key=repr)


def test_nothing_touched_is_no_row_with_the_right_columns(lake: Lake):
    source = lake.create("s", key="id")
    source.write(pa.table({"id": [1], "g": [7]}))
    [found] = small_rows(lake, analysis("groups", {"g": INT}, [use(source, {"g": "g"}, ["g", "id"])]), {"s": 0})
    assert found.num_rows == 0
    assert found.column_names == ["id", "g"]


def test_few_rows_are_all_handed_over_as_they_are(lake: Lake):
    source = lake.create("s", key="id")
    source.write(pa.table({"id": [1, 2], "g": [7, 8]}))
    source.delete([1])
    known = analysis("groups", {"g": INT}, [use(source, {"g": "g"}, ["g"])])
    [input_snapshot], _ = touched_in(lake, known, {})
    rows = read_all_rows(input_snapshot, known, Session())
    assert isinstance(rows, LocalRows)
    assert rows.table.to_pylist() == [{"g": 8}]


@pytest.mark.parametrize("fold", [False, True])
def test_rows_at_offsets_come_with_injected_columns_and_their_keys(lake: Lake, fold: bool):
    source, _ = _history(lake, random.Random(7), key=["part", "id"])
    if fold:
        source.fold()
    inject = {"s": (("floodmark_offset", "offset"), ("floodmark_key_id", "id"), ("floodmark_key_part", "part"))}
    t = {"floodmark_key_part": INT, "floodmark_key_id": INT}
    known = analysis("rows", t, [use(source, {n: n.removeprefix("floodmark_key_") for n in t}, ["v"])], inject)
    [input_snapshot], _ = touched_in(lake, known, {})
    current = source.to_batches(["offset", "part", "id", "v"]).read_all().to_pylist()[1::9]
    offsets = np.array([row["offset"] for row in current])
    expected = [(row["v"], row["offset"], row["id"], row["part"]) for row in current]
    assert as_rows(read_rows_at(input_snapshot, known, offsets)) == sorted(expected, key=repr)
    assert as_rows(read_keys_at(input_snapshot, known, offsets)) == sorted(
        ((r["part"], r["id"]) for r in current), key=repr
    )


def test_there_may_be_no_rows_at_all_any_more(lake: Lake):
    source = lake.create("s", key="id")
    source.write(pa.table({"id": [1, 2], "g": [7, 8]}))
    source.delete([1, 2])
    [found] = small_rows(lake, analysis("groups", {"g": INT}, [use(source, {"g": "g"}, ["id"])]), {"s": 1})
    assert found.num_rows == 0
