"""Steps that write to a dataset of `Lake.create`, which users write to, too; and steps that read what they write."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

import floodmark as fm
from floodmark.provenance.replay import replay
from maintenance.worlds import World as Old
from maintenance.worlds import collected
from transforms.worlds import in_this_process

TOTAL = {"id": "int64", "w": "int64"}
BOTH = pytest.mark.parametrize("offsets", [True, False], ids=["v2", "v1"])


@pytest.fixture(autouse=True)
def _here() -> Iterator[None]:
    with in_this_process():
        yield


@pytest.fixture
def lake(tmp_path: Path) -> fm.Lake:
    return fm.Lake(tmp_path / "lake")


def ten_times(a: pa.Table) -> pa.Table:
    return pa.table({"id": a["id"], "w": [value * 10 for value in a["v"].to_pylist()]})


def rows(lake: fm.Lake, name: str) -> list[dict[str, Any]]:
    return sorted(lake[name].to_arrow().to_pylist(), key=lambda row: row["id"])


def write(lake: fm.Lake, name: str, **columns: list[Any]) -> None:
    lake[name].write(pa.table({column: pa.array(values, pa.int64()) for column, values in columns.items()}))


def ten(offsets: bool = True, **options: Any) -> fm.BatchTransform:
    return fm.BatchTransform(ten_times, ["a"], ["out"], version="1", use_offset_optimization=offsets, **options)


# A dataset of `Lake.create` as an output


@BOTH
@pytest.mark.parametrize("schema", [None, {"id": "int64", "w": "int64"}], ids=["no schema", "schema"])
def test_dataset_made_with_create_is_the_output_of_a_step(lake: fm.Lake, offsets: bool, schema: Any) -> None:
    lake.create("a", key="id")
    out = lake.create("out", key="id", schema=schema)
    write(lake, "a", id=[1, 2, 3], v=[1, 2, 3])

    report = ten(offsets).run(lake)

    assert (report.keys, report.new, report.positions) == (3, 3, {"a": 2})
    assert sorted(out.to_arrow()["w"].to_pylist()) == [10, 20, 30]  # also for who has it open
    write(lake, "a", id=[2], v=[5])
    lake["a"].delete([1])
    report = ten(offsets).run(lake)
    assert (report.keys, report.changed, report.retracted) == (2, 1, 1)
    assert ten(offsets).run(lake).nothing
    assert rows(lake, "out") == [{"id": 2, "w": 50}, {"id": 3, "w": 30}]
    assert out.verify().problems == ()


@BOTH
def test_rows_of_users_stay_whatever_the_step_processes(lake: fm.Lake, offsets: bool) -> None:
    lake.create("a", key="id")
    lake.create("out", key="id")
    write(lake, "out", id=[7, 1], w=[77, 11])
    write(lake, "a", id=[1, 2], v=[1, 2])
    ten(offsets).run(lake)
    write(lake, "out", id=[8], w=[88])
    assert ten(offsets).run(lake).nothing  # it does not read this dataset

    kept = [{"id": 7, "w": 77}, {"id": 8, "w": 88}]
    assert rows(lake, "out") == [{"id": 1, "w": 10}, {"id": 2, "w": 20}, *kept]
    other = fm.BatchTransform(ten_times, ["a"], ["out"], name="ten_times", version="2", use_offset_optimization=offsets)
    lake["a"].delete([1])
    other.run(lake)  # everything is stale: the row of a key that is gone goes, those of users stay
    assert rows(lake, "out") == [{"id": 2, "w": 20}, *kept]
    other.reset(lake)
    write(lake, "a", id=[3], v=[3])
    lake["a"].delete([2])
    other.run(lake)
    assert rows(lake, "out") == [{"id": 3, "w": 30}, *kept]


def test_output_with_more_rows_per_key_is_looked_up_by_the_transform_keys(lake: fm.Lake) -> None:
    lake.create("a", key="id")
    write(lake, "a", id=[1, 2], v=[1, 2])

    def several(a: pa.Table) -> pa.Table:
        pairs = [(i, n) for i, v in zip(a["id"].to_pylist(), a["v"].to_pylist(), strict=True) for n in range(v)]
        return pa.table({"id": [i for i, _ in pairs], "n": [n for _, n in pairs]})

    step = fm.BatchTransform(several, ["a"], ["out"], transform_keys=["id"], version="1")
    lake.create("out", key=["id", "n"])
    with pytest.raises(fm.FloodmarkError, match=r"its rows are looked up by \['id', 'n'\]") as refused:
        step.run(lake)
    assert "lookup=['id']" in refused.value.hint
    lake.drop("out")
    lake.create("out", key=["id", "n"], lookup=["id"])
    step.run(lake)
    write(lake, "a", id=[2], v=[1])
    assert step.run(lake).retracted == 1
    assert lake["out"].count() == 2


@pytest.mark.parametrize("options", [{}, {"key": "id", "merge": "ledger"}, {"key": "id", "merge": "snapshot"}])
def test_dataset_that_cannot_be_upserted_to_is_refused(lake: fm.Lake, options: dict[str, Any]) -> None:
    lake.create("a", key="id")
    write(lake, "a", id=[1], v=[1])
    lake.create("out", **options)
    with pytest.raises(fm.FloodmarkError, match="cannot write to 'out': the dataset was created with"):
        ten().run(lake)


def test_two_steps_cannot_write_to_one_dataset(lake: fm.Lake) -> None:
    lake.create("a", key="id")
    lake.create("out", key="id")
    write(lake, "a", id=[1], v=[1])
    ten().run(lake)
    with pytest.raises(fm.FloodmarkError, match=r"has the results of step 'ten_times'"):
        fm.BatchTransform(ten_times, ["a"], ["out"], name="other", version="2").run(lake)


def test_write_of_a_user_during_a_run_makes_the_run_plan_again(lake: fm.Lake, tmp_path: Path) -> None:
    lake.create("a", key="id")
    lake.create("out", key="id")
    write(lake, "a", id=[1, 2], v=[1, 2])
    written = []

    def slow(a: pa.Table) -> pa.Table:
        if not written:
            written.append(True)
            write(lake, "out", id=[2, 9], w=[0, 99])
        return ten_times(a)

    report = fm.BatchTransform(slow, ["a"], ["out"], version="1").run(lake)

    assert report.commits == 1
    assert rows(lake, "out") == [{"id": 1, "w": 10}, {"id": 2, "w": 20}, {"id": 9, "w": 99}]


# A step that reads its own output


def update_frames(df1: pd.DataFrame, df2: pd.DataFrame) -> pd.DataFrame:
    df1, df2 = df1.set_index(["item_id", "pipeline_id"]), df2.set_index(["item_id", "pipeline_id"])
    df1.update(df2)
    return df1.reset_index()


@BOTH
def test_step_reads_and_writes_one_dataset(lake: fm.Lake, offsets: bool) -> None:
    """Datapipe: test_batch_transform_with_dt_on_input_and_output."""
    frame = pd.DataFrame({"item_id": range(10), "pipeline_id": [i // 5 for i in range(10)], "a": range(10)})
    key = ["item_id", "pipeline_id"]
    corrected = frame.loc[3:8].assign(a=lambda df: df["a"] + 10)
    lake.create("tbl1", key=key).store_chunk(frame, now=0)
    lake.create("tbl2", key=key).store_chunk(corrected, now=0)
    step = fm.BatchTransform(update_frames, ["tbl1", "tbl2"], ["tbl2"], version="1", use_offset_optimization=offsets)

    assert step.run(lake).keys == 10

    found = lake["tbl2"].to_pandas().sort_values("item_id").reset_index(drop=True)
    expected = frame.set_index(key)
    expected.update(corrected.set_index(key))
    pd.testing.assert_frame_equal(found, expected.reset_index()[list(found.columns)])
    assert step.run(lake).nothing
    lake["tbl2"].store_chunk(pd.DataFrame({"item_id": [0], "pipeline_id": [0], "a": [50]}))
    assert step.plan(lake).keys == 1
    assert step.status(lake).behind == 2
    assert step.run(lake).keys == 1
    assert (step.run(lake).nothing, step.status(lake).behind) == (True, 0)


def doubled(a: pa.Table, total: pa.Table) -> pa.Table:
    """The total so far, twice, and the value: it shows how often and on what it was called."""
    before = dict(zip(total["id"].to_pylist(), total["w"].to_pylist(), strict=True))
    values = dict(zip(a["id"].to_pylist(), a["v"].to_pylist(), strict=True))
    made = {i: 2 * before.get(i, 0) + v for i, v in values.items()}
    return pa.table({"id": pa.array(made, pa.int64()), "w": pa.array(made.values(), pa.int64())})


def accumulating(offsets: bool = True, **options: Any) -> fm.BatchTransform:
    found = {"version": "1", "use_offset_optimization": offsets, "name": "totals", **options}
    return fm.BatchTransform(doubled, ["a", "total"], ["total"], **found)


@BOTH
def test_own_rows_are_no_changes_and_those_of_users_are(lake: fm.Lake, offsets: bool) -> None:
    lake.create("a", key="id")
    lake.create("total", key="id", schema=TOTAL)
    write(lake, "a", id=[1, 2], v=[1, 5])
    step = accumulating(offsets)
    step.run(lake)
    assert rows(lake, "total") == [{"id": 1, "w": 1}, {"id": 2, "w": 5}]
    write(lake, "a", id=[1], v=[3])
    assert step.run(lake).keys == 1
    assert rows(lake, "total") == [{"id": 1, "w": 5}, {"id": 2, "w": 5}]
    write(lake, "total", id=[2], w=[100])
    assert step.changelist(lake, True)["id"].to_pylist() == step.changelist(lake, False)["id"].to_pylist() == [2]
    assert step.run(lake).keys == 1
    assert rows(lake, "total") == [{"id": 1, "w": 5}, {"id": 2, "w": 205}]
    assert step.run(lake).nothing


def test_output_that_only_steps_write_to_cannot_be_read_by_its_step(lake: fm.Lake) -> None:
    lake.create("a", key="id")
    write(lake, "a", id=[1], v=[1])
    with pytest.raises(fm.FloodmarkError, match="total"):
        accumulating().run(lake)
    fm.BatchTransform(ten_times, ["a"], ["total"], version="1", name="totals").run(lake)
    with pytest.raises(fm.FloodmarkError, match="which only steps write to") as refused:
        accumulating().run(lake)
    assert "lake.create('total', key=…)" in refused.value.hint


def test_output_that_is_read_is_the_first(lake: fm.Lake) -> None:
    for name in ("a", "total"):
        lake.create(name, key="id")
    write(lake, "a", id=[1], v=[1])
    step = fm.BatchTransform(lambda a, total: (a, a), ["a", "total"], ["copy", "total"], version="1")
    with pytest.raises(fm.FloodmarkError, match="which is not its first"):
        step.run(lake)


@BOTH
def test_purge_of_the_output_applies_no_change_again(lake: fm.Lake, offsets: bool) -> None:
    """It moves rows of the step behind a row of a user that no run has seen."""
    lake.create("a", key="id")
    lake.create("total", key="id", schema=TOTAL)
    write(lake, "a", id=[1, 2], v=[1, 5])
    step = accumulating(offsets)
    step.run(lake)
    write(lake, "total", id=[2], w=[7])
    assert lake["total"].purge(before=2).carried == 1
    assert step.changelist(lake, True)["id"].to_pylist() == step.changelist(lake, False)["id"].to_pylist() == [2]
    assert step.run(lake).keys == 1
    assert rows(lake, "total") == [{"id": 1, "w": 1}, {"id": 2, "w": 19}]
    assert step.run(lake).nothing
    write(lake, "a", id=[1], v=[3])
    assert step.run(lake).keys == 1
    assert rows(lake, "total") == [{"id": 1, "w": 5}, {"id": 2, "w": 19}]


@BOTH
def test_unseen_rows_of_users_that_a_purge_moved_are_changes(lake: fm.Lake, offsets: bool) -> None:
    lake.create("a", key="id")
    lake.create("total", key="id", schema=TOTAL)
    write(lake, "a", id=[1, 2], v=[1, 5])
    step = accumulating(offsets)
    step.run(lake)
    write(lake, "total", id=[1], w=[7])
    write(lake, "total", id=[2], w=[9])
    lake["total"].purge(before=4)
    with pytest.raises(fm.FloodmarkError, match="purged before they were processed"):
        step.run(lake)


# What goes with it


def test_why_of_a_row_tells_results_from_writes_of_users(lake: fm.Lake) -> None:
    lake.create("a", key="id")
    lake.create("out", key="id", schema=TOTAL)
    write(lake, "a", id=[1, 2], v=[1, 2])
    ten().run(lake)
    write(lake, "out", id=[9], w=[9])

    made, written = lake.why("out", {"id": 1}), lake.why("out", {"id": 9})

    assert (made.maker.kind, made.maker.name, made.doubts) == ("step", "ten_times", ())
    [of_a] = made.inputs
    assert (of_a.dataset, of_a.position, [one.record.values for one in of_a.records]) == ("a", 1, [{"id": 1, "v": 1}])
    assert (written.maker.kind, written.inputs) == ("write", ())
    [derived] = lake.why_forward("a", {"id": 2}).derived
    assert (derived.record.dataset, derived.record.values) == ("out", {"id": 2, "w": 20})


def test_why_of_a_step_that_reads_its_output_shows_the_result_before(lake: fm.Lake) -> None:
    lake.create("a", key="id")
    lake.create("total", key="id", schema=TOTAL)
    write(lake, "total", id=[1], w=[4])
    for value in (1, 2):
        write(lake, "a", id=[1], v=[value])
        accumulating().run(lake)

    found = lake.why("total", {"id": 1})

    of_a, before = found.inputs
    assert [one.record.values for one in of_a.records] == [{"id": 1, "v": 2}]
    [earlier] = before.records
    assert (earlier.record.values, earlier.maker.kind) == ({"id": 1, "w": 9}, "step")
    assert not found.is_complete
    assert found.record.values == {"id": 1, "w": 20}


def test_replay_repeats_what_the_step_wrote_and_leaves_out_what_users_wrote(lake: fm.Lake) -> None:
    lake.create("a", key="id")
    lake.create("total", key="id", schema=TOTAL)
    write(lake, "total", id=[1, 7], w=[4, 70])
    step = accumulating()
    for value in (1, 2):
        write(lake, "a", id=[1, 2], v=[value, value])
        step.run(lake)
    write(lake, "total", id=[2], w=[1000])

    found = list(replay(lake, ["total"], [step]))

    assert [(one.outcome, one.keys) for one in found] == [("same", 3), ("same", 2)]
    wrong = fm.BatchTransform(lambda a, total: a.rename_columns(["id", "w"]), ["a", "total"], ["total"], version="1")
    assert {one.outcome for one in replay(lake, ["total"], [wrong])} == {"differs"}


def test_garbage_collection_keeps_the_meta_of_the_step(tmp_path: Path) -> None:
    world = Old(tmp_path / "lake")
    with world.days_ago(40) as lake:
        lake.create("a", key="id")
        lake.create("out", key="id")
        write(lake, "a", id=[1, 2], v=[1, 2])
        ten().run(lake)
        write(lake, "out", id=[9], w=[9])

    collected(world.lake())

    assert ten().run(world.lake()).nothing
    write(world.lake(), "a", id=[2], v=[3])
    assert ten().run(world.lake()).keys == 1


def test_timeline_of_the_output_follows(lake: fm.Lake) -> None:
    lake.create("a", key="id").write(pa.table({"id": [2, 1], "at": pa.array([2, 1], pa.timestamp("us", "UTC"))}))
    out = lake.create("out", key="id", event_time="at", partition_by="day")
    fm.BatchTransform(lambda a: a, ["a"], ["out"], version="1").run(lake)
    assert out.timeline_stats().behind == 0
    assert out.timeline_batches(columns=["id"]).read_all()["id"].to_pylist() == [1, 2]


def test_pipeline_runs_a_step_that_reads_its_output_once(lake: fm.Lake) -> None:
    lake.create("a", key="id")
    lake.create("total", key="id", schema=TOTAL)
    write(lake, "a", id=[1], v=[1])
    pipeline = fm.Pipeline([accumulating()])
    for _ in range(2):
        pipeline.run(lake)
    assert rows(lake, "total") == [{"id": 1, "w": 1}]
