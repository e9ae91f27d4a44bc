"""Units of work: ranges of records and lists of keys come to each key once, however they are cut."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from floodmark import Lake
from floodmark.derive.key_shape import KeyShape
from floodmark.derive.row_search import choose_search
from floodmark.errors import InputMoved
from floodmark.storage.memory import MemoryStore
from floodmark.transforms import work_planner, work_units
from floodmark.transforms.chunk_reader import read_chunks
from floodmark.transforms.chunks import Chunk
from floodmark.transforms.specs import InputSpec, Required
from floodmark.transforms.work_planner import plan_key_units, plan_map_units, plan_stale_map_units
from floodmark.transforms.work_units import KeysUnit, RangeUnit, ScratchDir
from limits import set_limit
from transforms.changing import World, rows_of, world


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake")


@pytest.fixture
def room(tmp_path: Path) -> Path:
    return tmp_path / "room"


def _rows(**columns: list[object]) -> pa.Table:
    return pa.table({name: pa.array(values, pa.int64()) for name, values in columns.items()})


def _shape(made: World) -> KeyShape:
    found = made.shape()
    assert found is not None
    return found


def _map_world(lake: Lake, room: Path) -> World:
    lake.create("a", key="id")
    return world(lake, room, ["k"], InputSpec("a", keys={"k": "id"}))


def _read(made: World, some: list[RangeUnit | KeysUnit], chunk_size: int = 4, *, check: bool = False) -> list[Chunk]:
    inputs = [p.task_input for p in made.input_snapshots()]
    known = made.known if check else None
    return [chunk for unit in some for chunk in read_chunks(unit, _shape(made), inputs, chunk_size, known)]


def _called(chunks: list[Chunk]) -> list[object]:
    return [key for chunk in chunks for (key,) in rows_of(chunk.keys)]


def _gone(chunks: list[Chunk]) -> list[object]:
    return [key for chunk in chunks if chunk.gone_keys is not None for (key,) in rows_of(chunk.gone_keys)]


def _units(made: World, since: int, *, unit_rows: int = 1 << 17) -> list[RangeUnit | KeysUnit]:
    return plan_map_units(made.input_snapshots()[0], _shape(made), since, made.runner, None, unit_rows)


def test_a_map_run_reads_the_rows_that_are_there_of_the_records_since(lake: Lake, room: Path) -> None:
    made = _map_world(lake, room)
    lake["a"].write(_rows(id=[1, 2, 3, 4], v=[0, 0, 0, 0]))
    position = made.input_snapshots()[0].last_offset
    lake["a"].write(_rows(id=[2, 5], v=[1, 1]))
    lake["a"].write(_rows(id=[2], v=[2]))
    chunks = _read(made, _units(made, position))
    assert sorted(_called(chunks)) == [2, 5]
    assert [row for chunk in chunks for row in chunk.frames[0].to_pylist() if row["id"] == 2] == [{"id": 2, "v": 2}]
    assert sorted(_called(_read(made, _units(made, -1)))) == [1, 2, 3, 4, 5]


def test_a_key_retracted_twice_is_gone_once_and_one_that_came_back_is_not(lake: Lake, room: Path) -> None:
    made = _map_world(lake, room)
    lake["a"].write(_rows(id=[1, 2, 3]))
    for _ in range(2):
        lake["a"].delete([1, 2])
        lake["a"].write(_rows(id=[1, 2]))
    lake["a"].delete([1])
    chunks = _read(made, _units(made, 2))
    assert (_called(chunks), _gone(chunks)) == ([2], [1])


@pytest.mark.slow
def test_ranges_cut_in_any_way_come_to_the_same_keys(lake: Lake, room: Path) -> None:
    made = _map_world(lake, room)
    for n in range(4):
        lake["a"].write(_rows(id=list(range(n * 10, n * 10 + 25)), v=[n] * 25))
    lake["a"].delete(list(range(12, 19)))
    whole = _units(made, -1)
    small = _units(made, -1, unit_rows=7)
    assert len(small) > len(whole)
    halved = [half for unit in small for half in (unit.halves() or (unit,))]
    expected = sorted(lake["a"].to_arrow().column("id").to_pylist())
    for some in (whole, small, halved):
        chunks = _read(made, some)
        assert sorted(_called(chunks)) == expected
        assert _gone(chunks) == [] or sorted(_gone(chunks)) == list(range(12, 19))
    deep = list(whole)
    while any(unit.halves() for unit in deep):
        deep = [half for unit in deep for half in (unit.halves() or (unit,))]
    assert sorted(_called(_read(made, deep))) == expected


def test_ranges_leave_out_keys_that_were_processed_ahead_of_the_position(lake: Lake, room: Path) -> None:
    made = _map_world(lake, room)
    lake["a"].write(_rows(id=[1, 2, 3], v=[0, 0, 0]))
    made.run()
    made.known.positions = {}
    lake["a"].write(_rows(id=[3, 4], v=[1, 1]))
    assert sorted(_called(_read(made, _units(made, -1), check=True))) == [3, 4]


def test_chunks_of_a_range_are_full_but_for_the_last(lake: Lake, room: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = _map_world(lake, room)
    for n in range(5):
        lake["a"].write(_rows(id=list(range(n * 7, n * 7 + 7))))
    set_limit(monkeypatch, "chunks.read_rows", 8)
    [unit] = _units(made, -1)
    assert [len(chunk) for chunk in _read(made, [unit], 4)] == [4] * 8 + [3]


def test_a_full_map_run_takes_back_results_whose_keys_are_not_there(lake: Lake, room: Path) -> None:
    made = _map_world(lake, room)
    lake["a"].write(_rows(id=[1, 2]))
    lake["a"].write(_rows(id=[3]))
    lake["a"].delete([3])
    lake["out"].write(_rows(k=[1, 3, 9]))
    chunks = _read(made, plan_stale_map_units(made.input_snapshots()[0], _shape(made), made.outputs(), made.runner))
    assert (_called(chunks), sorted(_gone(chunks))) == ([1, 2], [3, 9])


def test_a_group_larger_than_a_chunk_is_called_whole(lake: Lake, room: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.create("a", key="id")
    made = world(lake, room, ["g"], "a")
    lake["a"].write(_rows(id=list(range(50)), g=[n // 20 for n in range(50)]))
    set_limit(monkeypatch, "chunks.chunk_rows", 15)
    _, chunks = made.run(chunk_size=2)
    assert sorted((len(chunk), chunk.rows) for chunk in chunks) == [(1, 10), (1, 20), (1, 20)]


def test_many_keys_lie_in_a_file_that_units_point_into(lake: Lake, room: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (work_planner, work_units):
        monkeypatch.setattr(module, "KEYS_PART", 5)
    lake.create("a", key="id")
    lake.create("b", key="id")
    made = world(lake, room, ["id"], "a", "b")
    lake["a"].write(_rows(id=list(range(23))))
    lake["b"].write(_rows(id=list(range(10, 33))))
    found = made.changelist()
    shape, input_snapshots = _shape(made), made.input_snapshots()
    made_units = plan_key_units(
        found.keys, shape, input_snapshots, made.runner, ScratchDir(room, lake["out"].snapshot().objects)
    )
    assert len(made_units) == 7
    assert len(pickle.dumps(made_units[0])) < 4000
    inputs = pickle.loads(pickle.dumps([p.task_input for p in input_snapshots]))
    halved = [half for unit in made_units for half in (unit.halves() or (unit,))]
    for some in (made_units, halved):
        again = pickle.loads(pickle.dumps(some))
        chunks = [chunk for unit in again for chunk in read_chunks(unit, shape, inputs, 3)]
        assert sorted(_called(chunks)) == list(range(33))
        made.check(found, chunks)


def test_a_remote_store_holds_the_files_until_they_are_cleared(room: Path) -> None:
    store = MemoryStore()
    lake = Lake(store)
    lake.create("a", key="id")
    made = world(lake, room, ["g"], "a")
    lake["a"].write(_rows(id=[1, 2, 3], g=[1, 1, 2]))
    before = {info.key for info in store.list("")}
    found = made.changelist()
    place = ScratchDir(room, lake["out"].snapshot().objects)
    some = plan_key_units(found.keys, _shape(made), made.input_snapshots(), made.runner, place)
    assert {info.key for info in store.list("")} - before
    assert sorted(_called(_read(made, list(some)))) == [1, 2]
    place.clear()
    assert not [key for key in {info.key for info in store.list("")} - before if "staging" in key]


def test_an_input_without_columns_yet_gives_frames_with_its_keys_and_no_rows(lake: Lake, room: Path) -> None:
    lake.create("a", key="id")
    lake.create("b", key="other")
    made = world(lake, room, ["id"], "a", InputSpec("b", keys={"id": "other"}))
    lake["a"].write(_rows(id=[1]))
    _, [chunk] = made.run()
    assert chunk.frames[1].schema == pa.schema([("other", pa.int64())])


def test_a_required_input_without_columns_keeps_everything_out(lake: Lake, room: Path) -> None:
    lake.create("a", key="id")
    lake.create("b", key="id")
    made = world(lake, room, ["id"], "a", Required("b"))
    lake["a"].write(_rows(id=[1, 2]))
    chunks = made.chunks(_rows(id=[1, 2]))
    assert (_called(chunks), _gone(chunks)) == ([], [1, 2])
    assert len(made.run()[0]) == 0
    lake["b"].write(_rows(id=[2]))
    _, chunks = made.run()
    assert (_called(chunks), _gone(chunks)) == ([2], [])


def test_only_chosen_columns_are_handed_over(lake: Lake, room: Path) -> None:
    lake.create("a", key="id")
    made = world(lake, room, ["id"], InputSpec("a", columns=["w"]))
    lake["a"].write(_rows(id=[1], v=[2], w=[3]))
    _, [chunk] = made.run()
    assert chunk.frames[0].to_pylist() == [{"id": 1, "w": 3}]
    [ranged] = _read(made, _units(made, -1))
    assert ranged.frames[0].to_pylist() == [{"id": 1, "w": 3}]
    assert ranged.signature.same(chunk.signature).all()


@pytest.mark.parametrize("dropped", ["info/keys", "data"])
def test_what_was_replaced_meanwhile_is_said_to_need_a_new_plan(lake: Lake, room: Path, dropped: str) -> None:
    made = _map_world(lake, room)
    lake["a"].write(_rows(id=list(range(100))))
    input_snapshots, shape = made.input_snapshots(), _shape(made)
    found = made.changelist()
    some = plan_key_units(
        found.keys, shape, input_snapshots, made.runner, ScratchDir(room, lake["out"].snapshot().objects)
    )
    inputs = pickle.loads(pickle.dumps([p.task_input for p in input_snapshots]))
    objects = input_snapshots[0].snapshot.objects
    for info in list(objects.store.list(f"{objects.folder}/{dropped}")):
        objects.store.delete(info.key)
    for info in list(objects.store.list(f"{objects.folder}/info/rows")):
        objects.store.delete(info.key)
    with pytest.raises(InputMoved, match="'a'"):
        [list(read_chunks(unit, shape, inputs, 10)) for unit in some]


def test_rows_are_found_one_by_one_only_where_few_of_many_are_wanted() -> None:
    assert choose_search("key", 1_000, 1.0, 10_000_000) == "index"
    assert choose_search("prefix", 1_000, 100.0, 10_000_000) == "index"
    assert choose_search("prefix", 100_000, 100.0, 10_000_000) == "scan"
    assert choose_search("key", 10_000_000, 1.0, 10_000_000) == "scan"
    assert choose_search("key", 10, 1.0, 10) == "index"
    assert choose_search("scan", 1, 1.0, 10_000_000) == "scan"


def test_frames_are_in_offset_order_whatever_the_order_of_keys(lake: Lake, room: Path) -> None:
    lake.create("a", key=["g", "id"], lookup=["g"])
    made = world(lake, room, ["g"], "a")
    lake["a"].write(_rows(g=[3, 1, 2], id=[0, 0, 0]))
    lake["a"].write(_rows(g=[1, 2, 3], id=[1, 1, 1]))
    _, [chunk] = made.run()
    assert (np.diff(chunk.sides[0].offsets) > 0).all()
    assert chunk.frames[0].num_rows == 6
