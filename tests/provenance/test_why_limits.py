"""`why` where something is purged, dropped or was never noted: it says so, and names what it knows."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import floodmark as fm
from floodmark.derive import commit
from floodmark.errors import RecordsPurged, UnknownRecord
from floodmark.provenance.origin import NO_DECLARATION, NO_POSITIONS
from floodmark.provenance.transactions import OpenedDatasets
from floodmark.provenance.tree import build_why_tree, render_lines
from floodmark.provenance.why import why
from floodmark.transforms import commit as publish
from limits import set_limit
from provenance.naive import OFFSET, Naive, made_of
from transforms.worlds import ALIAS, MAP, MOVING_GROUPS, ONE_TO_MANY, TWO_OUTPUTS, World, in_this_process, make_world


@pytest.fixture(autouse=True)
def _here() -> Iterator[None]:
    with in_this_process():
        yield


def test_a_write_names_its_source_and_only_its_own(tmp_path: Path) -> None:
    people = fm.Lake(tmp_path).create("people", key="id")
    people.write(pa.table({"id": [1]}), source="files", state="a.csv")
    people.write(pa.table({"id": [2]}))
    people.write(pa.table({"id": [3]}), source="files", state="b.csv")
    lake = fm.Lake(tmp_path)

    makers = [lake.why("people", {"id": n}).maker for n in (1, 2, 3)]

    assert [(m.kind, m.source, m.state) for m in makers] == [
        ("write", "files", "a.csv"),
        ("write", None, None),
        ("write", "files", "b.csv"),
    ]


def test_a_file_that_a_pipeline_took_in_is_named(tmp_path: Path) -> None:
    (tmp_path / "monday.csv").write_text("id,v\n1,10\n")
    pipeline = fm.Pipeline([fm.Source("people", files=str(tmp_path / "*.csv")), fm.DatasetSpec("people", key="id")])
    lake = fm.Lake(tmp_path / "lake")
    pipeline.run(lake)

    maker = lake.why("people", 0).maker

    assert (maker.source, (maker.state or "")[:7]) == ("files", "sha256:")
    assert Path(maker.file or "").name == "monday.csv"


def test_rows_that_are_purged_are_said_to_be_missing(tmp_path: Path) -> None:
    world = make_world(MOVING_GROUPS, tmp_path)
    world.write("a", (1, 7, 10))
    world.write("a", (2, 7, 20))
    world.run()
    world.write("a", (1, 7, 11))
    world.lake["a"].purge(2)

    found = why(world.lake, "out", 0)

    assert [one.record.values["id"] for one in found.inputs[0].records] == [2]
    assert "before offset 1 are purged" in (found.inputs[0].missing or "")
    assert not found.is_complete
    assert any("not all is known" in line for line in render_lines(build_why_tree(found)))


def test_row_that_a_purge_carried_is_found_at_its_new_offset(tmp_path: Path) -> None:
    world = make_world(MAP, tmp_path)
    world.write("a", (1, 1), (2, 2))
    world.run()
    world.write("a", (1, 10))
    world.run()
    world.lake["a"].purge(2)

    found = why(world.lake, "out", {"id": 2})

    assert (found.offsets()["a"], found.inputs[0].missing) == ({4}, None)
    [row] = found.inputs[0].records
    assert row.record.values == {"id": 2, "v": 2}
    assert (row.maker.kind, row.maker.state, found.is_complete) == ("carried", "2", True)
    assert any(
        "carried by a purge of the records before offset 2" in line for line in render_lines(build_why_tree(found))
    )


def test_a_purge_before_the_run_leaves_nothing_unknown(tmp_path: Path) -> None:
    world = make_world(MOVING_GROUPS, tmp_path)
    world.write("a", (1, 7, 10), (2, 7, 20))
    world.write("a", (1, 7, 11))
    world.lake["a"].purge(2)
    world.run()

    found = why(world.lake, "out", {"g": 7})

    assert (found.is_complete, found.inputs[0].rows) == (True, 2)


def test_the_only_row_that_a_key_can_have_is_all_there_is_whatever_was_purged(tmp_path: Path) -> None:
    world = make_world(MAP, tmp_path)
    world.write("a", (1, 1))
    world.write("a", (2, 2))
    world.run()
    world.write("a", (1, 10))
    world.lake["a"].purge(1)

    gone, there = why(world.lake, "out", 0), why(world.lake, "out", {"id": 2})

    assert (there.is_complete, there.inputs[0].missing) == (True, None)
    assert (gone.is_complete, gone.inputs[0].rows) == (False, 0)


def test_an_input_that_was_dropped_is_said_to_be(tmp_path: Path) -> None:
    world = make_world(MAP, tmp_path)
    world.write("a", (1, 1))
    world.run()
    world.lake._drop_alone("a")  # another program did it
    world.lake.create("a", key="id", schema=world.source("a").schema)  # another one of its name
    world.write("a", (1, 9))

    found = why(world.lake, "out", 0)

    assert "was dropped" in (found.inputs[0].missing or "")
    assert found.inputs[0].records == ()
    assert found.inputs[0].by == {"id": 1}
    assert "rows of a with id=1, as of record 0" in "\n".join(render_lines(build_why_tree(found)))


def test_an_input_that_was_renamed_is_found_all_the_same(tmp_path: Path) -> None:
    world = make_world(MAP, tmp_path)
    world.write("a", (1, 1))
    world.run()
    world.lake.rename("a", "b")

    assert why(world.lake, "out", 0).offsets() == {"b": {0}}


def _forget_notes(world: World) -> None:
    for kind in ("made", "declared"):
        for notes in world.calls.folder.rglob(f"info/transform/{kind}"):
            shutil.rmtree(notes)


def test_what_an_older_release_made_is_told_with_a_doubt(tmp_path: Path) -> None:
    world = make_world(MAP, tmp_path)
    world.write("a", (1, 1), (2, 2))
    world.run()
    _forget_notes(world)

    found = why(world.lake, "out", {"id": 2})

    assert found.doubts == (NO_DECLARATION, NO_POSITIONS)
    assert found.offsets() == {"a": {1}}
    assert not found.is_complete


def test_columns_under_another_name_are_known_from_the_declaration(tmp_path: Path) -> None:
    world = make_world(ALIAS, tmp_path)
    world.write("a", (1, 1))
    world.write("b", (1, 5), (2, 6))
    world.run()

    found = why(world.lake, "out", {"id": 1})

    assert [given.by for given in found.inputs] == [{"id": 1}, {"ref": 1}]
    assert made_of(found) == [{0}, {0}]


@pytest.mark.slow
def test_a_transaction_of_many_blocks_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_limit(monkeypatch, "derive.slice_bytes", 1)
    world = make_world(MAP, tmp_path)
    world.write("a", *[(n, n) for n in range(6)])
    world.run()
    world.write("a", *[(n, n + 1) for n in range(6)])
    world.run()
    assert world.lake["out"].snapshot().slices.num_rows > 4

    found = [why(world.lake, "out", offset) for offset in range(18)]

    assert [(one.block.start, one.block.end) for one in found] == [(0, 6)] * 6 + [(6, 18)] * 12
    assert [one.inputs[0].position for one in found] == [5] * 6 + [17] * 12
    assert [(t.start, t.end) for t in OpenedDatasets(world.lake).named("out").transactions()] == [(0, 6), (6, 18)]


@pytest.mark.slow
def test_an_output_that_a_killed_run_has_committed_is_traced_to_what_that_run_had_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world(TWO_OUTPUTS, tmp_path)
    naive = Naive(world)
    world.write("a", (1, 1), (2, 2))
    naive.during(world.run)
    derive = commit.commit_results

    def killed(name: str, *rest: Any) -> Any:
        if name == "out":
            raise KeyboardInterrupt
        return derive(name, *rest)

    world.write("a", (1, 3), (2, 3), (3, 3))

    def cut_short() -> None:
        with suppress(KeyboardInterrupt), monkeypatch.context() as patched:
            patched.setattr(publish, "commit_results", killed)
            world.run(run={"max_records": 2})

    naive.during(cut_short)
    world.write("a", (1, 2), (4, 2))
    naive.during(world.run)

    for output in ("out", "many"):
        for row in world.lake[output].changes_arrow().to_pylist():
            found = why(world.lake, output, row[OFFSET])
            assert made_of(found) == naive.expected(output, row[OFFSET], row), (output, row)


@fm.udf(returns="int64")
def tenfold(v: int) -> int:
    return v * 10


def test_a_computed_column_names_its_function_and_what_it_took(tmp_path: Path) -> None:
    world = make_world(MAP, tmp_path)
    world.write("a", (1, 1), (2, 2))
    world.lake["a"].add_column("tens", tenfold)
    world.lake["a"].backfill("tens")

    [column] = why(world.lake, "a", {"id": 2}).computed

    assert (column.column, column.value, column.function, column.inputs) == ("tens", 20, "tenfold", ("v",))
    assert column.version == tenfold.version
    assert world.lake.why_forward("a", {"id": 2}).computed == (column,)


def test_only_so_many_rows_are_followed_and_all_are_counted(tmp_path: Path) -> None:
    world = make_world(MOVING_GROUPS, tmp_path)
    world.write("a", *[(n, 7, n) for n in range(30)])
    world.run()

    [given] = why(world.lake, "out", {"g": 7}, rows=4).inputs

    assert (given.rows, len(given.records)) == (30, 4)


def test_what_is_not_there_is_refused(tmp_path: Path) -> None:
    world = make_world(ONE_TO_MANY, tmp_path)
    world.write("a", (1, 3))
    world.run()

    with pytest.raises(UnknownRecord, match="no record 99"):
        why(world.lake, "many", 99)
    with pytest.raises(UnknownRecord, match="no current row with id=5"):
        why(world.lake, "many", {"id": 5})
    with pytest.raises(UnknownRecord, match="3 rows of 'many' have id=1"):
        why(world.lake, "many", {"id": 1})
    world.delete("a", 1)
    world.lake["a"].purge(1)
    with pytest.raises(RecordsPurged):
        why(world.lake, "a", 0)
