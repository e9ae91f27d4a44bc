"""`vocab=`: a dataset gives system columns other names, so that its data can have a column called `offset`."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

import floodmark as fm
from floodmark.errors import BadColumnName, BadOption, BadPipeline, BadStep, DatasetExists
from floodmark.provenance.replay import replay
from transforms.worlds import in_this_process

VOCAB = {"offset": "_offset"}


@pytest.fixture
def lake(tmp_path: Path) -> fm.Lake:
    return fm.Lake(tmp_path / "lake")


def messages(*rows: tuple[int, str]) -> pa.Table:
    """Rows as Kafka has them."""
    return pa.table({"offset": [offset for offset, _ in rows], "value": [value for _, value in rows]})


def test_data_with_a_column_offset_can_be_written_and_read(lake: fm.Lake) -> None:
    clicks = lake.create("clicks", vocab=VOCAB)
    clicks.write(messages((100, "a"), (107, "b")))
    clicks.write(messages((109, "c")))
    assert clicks.system_columns == ("_offset", "op", "system_time")
    assert clicks.to_arrow() == messages((100, "a"), (107, "b"), (109, "c"))
    changes = clicks.changes_arrow(since=0)
    assert changes.column_names == ["_offset", "op", "system_time", "offset", "value"]
    assert changes["_offset"].to_pylist() == [1, 2]
    assert changes["offset"].to_pylist() == [107, 109]
    assert clicks.to_pandas(columns=["_offset", "offset"]).to_numpy().tolist() == [[0, 100], [1, 107], [2, 109]]
    assert clicks.to_arrow(as_of=0)["offset"].to_pylist() == [100]
    assert clicks.to_batches(where='"offset" > 100 and _offset < 2').read_all()["offset"].to_pylist() == [107]
    assert lake["clicks"].verify().problems == ()


def test_all_system_columns_can_have_other_names(lake: fm.Lake) -> None:
    names = {"offset": "_offset", "op": "_op", "system_time": "_system_time"}
    data = pa.table(
        {"offset": [1], "op": [7], "system_time": ["noon"], "event_time": pa.array([0], pa.timestamp("ms"))}
    )
    made = lake.create("made", vocab=names, event_time="event_time")
    made.write(data)
    assert made.system_columns == tuple(names.values())
    assert made.to_arrow().select(["offset", "op", "system_time"]) == data.select(["offset", "op", "system_time"])
    assert made.changes_arrow().column_names[:3] == list(names.values())
    assert made.verify().problems == ()


def test_sql_uses_the_data_column_and_the_new_name_is_not_in_the_result(lake: fm.Lake) -> None:
    lake.create("clicks", vocab=VOCAB).write(messages((100, "a"), (107, "b")))
    assert lake.sql('select * from clicks where "offset" > 100') == messages((107, "b"))
    assert lake.sql('select max("offset") as newest from clicks').to_pylist() == [{"newest": 107}]


def test_keyed_datasets_fold_purge_and_history_with_other_names(lake: fm.Lake) -> None:
    made = lake.create("made", key="offset", vocab={"offset": "_offset", "op": "operation"})
    made.write(messages((1, "a"), (2, "b")))
    made.write(messages((2, "c")))
    made.delete([1])
    assert made.to_arrow().to_pylist() == [{"offset": 2, "value": "c"}]
    made.fold()
    assert made.to_arrow().to_pylist() == [{"offset": 2, "value": "c"}]
    assert made.get({"offset": 2}) is not None
    history = made.history({"offset": 2})
    assert history["operation"].to_pylist() == [0, 2, 3]
    assert made.verify().problems == ()
    made.purge(before=2)
    assert made.to_arrow().to_pylist() == [{"offset": 2, "value": "c"}]


def test_a_changelog_takes_operations_from_the_column_with_the_chosen_name(lake: fm.Lake) -> None:
    made = lake.create("made", key="id", merge="changelog", vocab={"op": "kind"})
    made.write(pa.table({"id": [1, 2], "op": ["x", "y"], "kind": pa.array([0, 0], pa.int32())}))
    made.write(pa.table({"id": [1], "op": ["x"], "kind": pa.array([1], pa.int32())}))
    assert made.to_arrow().to_pylist() == [{"id": 2, "op": "y"}]


def test_a_timeline_orders_rows_of_a_dataset_with_other_names(lake: fm.Lake) -> None:
    made = lake.create("made", event_time="at", partition_by="day", vocab=VOCAB)
    times = pd.to_datetime(["2026-01-02", "2026-01-01"])
    made.write(pd.DataFrame({"offset": [9, 8], "at": times}))
    made.write(pd.DataFrame({"offset": [7], "at": pd.to_datetime(["2026-01-01"])}))
    read = made.timeline_batches("2026-01-01", "2026-01-03").read_all()
    assert read["offset"].to_pylist() == [8, 7, 9]
    assert made.verify().problems == ()


def test_computed_columns_and_provenance_work_with_other_names(lake: fm.Lake) -> None:
    made = lake.create("made", key="offset", vocab=VOCAB)
    made.write(messages((100, "a"), (107, "b")))

    @fm.udf(returns="int64")
    def twice(offset: int) -> int:
        return 2 * offset

    made.add_column("twice", twice)
    made.backfill("twice")
    assert made.to_arrow()["twice"].to_pylist() == [200, 214]
    assert "107" in str(lake.why("made", {"offset": 107}))


def double(clicks: pa.Table) -> pa.Table:
    return pa.table({"offset": clicks["offset"], "size": [2 * offset for offset in clicks["offset"].to_pylist()]})


@pytest.mark.parametrize("offsets", [True, False])
def test_a_step_reads_and_writes_datasets_with_other_names(lake: fm.Lake, offsets: bool) -> None:
    lake.create("clicks", key="offset", vocab=VOCAB)
    output = fm.OutputSpec("doubled", vocab=VOCAB)
    step = fm.BatchTransform(double, ["clicks"], [output], use_offset_optimization=offsets)
    lake["clicks"].write(messages((100, "a"), (107, "b")))
    step.run(lake)
    lake["clicks"].write(messages((107, "c"), (109, "d")))
    lake["clicks"].delete([100])
    assert step.run(lake).keys == 3
    assert lake["doubled"].system_columns[0] == "_offset"
    assert sorted(lake["doubled"].to_arrow().to_pydict()["offset"]) == [107, 109]
    assert lake["doubled"].verify().problems == ()
    assert {report.outcome for report in replay(lake, ["doubled"], [step])} == {"same"}


def test_whole_steps_write_datasets_with_other_names(lake: fm.Lake) -> None:
    lake.create("clicks", key="offset", vocab=VOCAB).write(messages((100, "a")))
    fm.DatatableTransform(double, ["clicks"], [fm.OutputSpec("doubled", vocab=VOCAB)]).run(lake)
    assert lake["doubled"].to_arrow().to_pylist() == [{"offset": 100, "size": 200}]


def test_generators_write_datasets_with_other_names(lake: fm.Lake) -> None:
    def generate() -> Any:
        yield messages((100, "a"))

    fm.BatchGenerate(generate, [fm.OutputSpec("made", key="offset", vocab=VOCAB)]).run(lake)
    assert lake["made"].to_arrow().to_pylist() == [{"offset": 100, "value": "a"}]


def test_a_pipeline_creates_its_datasets_with_their_vocabulary_and_checks_it(lake: fm.Lake, tmp_path: Path) -> None:
    (tmp_path / "clicks.csv").write_text("offset,value\n100,a\n")
    clicks = fm.DatasetSpec("clicks", key="offset", vocab=VOCAB)
    doubled = fm.DatasetSpec("doubled", key="offset", vocab=VOCAB)
    source = fm.Source(clicks, files=str(tmp_path / "clicks.csv"))
    fm.Pipeline([clicks, source, fm.BatchTransform(double, [clicks], [doubled])]).run(lake)
    assert lake["doubled"].to_arrow().to_pylist() == [{"offset": 100, "size": 200}]
    other = fm.Pipeline([fm.Source(fm.DatasetSpec("clicks", key="offset", vocab={"offset": "_o"}), files="clicks.csv")])
    with pytest.raises(fm.FloodmarkError, match="exists with the system columns _offset, op, system_time, not _o, "):
        other.run(lake)


def test_a_pipeline_refuses_a_vocabulary_for_a_view(lake: fm.Lake) -> None:
    lake.create("clicks", schema={"n": "int64"})
    view = fm.ViewSpec("counts", sql="select count(*) as n from clicks")
    with pytest.raises(BadPipeline, match="'counts' is declared with vocab=, but it is a view"):
        fm.Pipeline([fm.DatasetSpec("counts", vocab=VOCAB), view]).run(lake)


def test_sources_of_a_pipeline_fill_datasets_with_other_names(lake: fm.Lake, tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    with closing(sqlite3.connect(path)) as shop, shop:
        shop.execute("create table t (offset integer primary key, updated_at timestamp)")
        shop.execute("insert into t values (7, '2026-01-01 00:00:00')")
    polled = fm.DatasetSpec("polled", key="offset", vocab=VOCAB)
    framed = fm.DatasetSpec("framed", vocab=VOCAB)
    sources = [fm.Source(polled, table=f"sqlite:///{path}#t"), fm.Source(framed, frame=lambda: messages((5, "a")))]
    fm.Pipeline(sources).run(lake)
    assert lake["polled"].to_arrow()["offset"].to_pylist() == [7]
    assert lake["framed"].to_arrow() == messages((5, "a"))


def test_an_existing_dataset_is_opened_with_the_same_vocabulary_only(lake: fm.Lake) -> None:
    lake.create("clicks", vocab=VOCAB)
    assert lake.create("clicks", vocab={**VOCAB, "op": "op"}, exist_ok=True).system_columns[0] == "_offset"
    assert lake.create("clicks", exist_ok=True).system_columns[0] == "_offset"
    with pytest.raises(DatasetExists, match="exists with the system columns _offset, op, system_time, not offset, op"):
        lake.create("clicks", vocab={}, exist_ok=True)


@pytest.mark.parametrize(
    ("vocab", "said"),
    [
        ({"offsets": "_offset"}, "'offsets', which is not a system column"),
        ({"event_time": "at"}, "'event_time', which is not a system column"),
        ({"offset": ""}, "'' is not a column name"),
        ({"offset": 7}, "7 is not a column name"),
        ({"offset": "OP"}, "gives the name 'OP' to two columns"),
        ({"offset": "event_time"}, "gives the name 'event_time' to two columns"),
        (["offset"], "is not a mapping"),
    ],
)
def test_a_vocabulary_that_does_not_fit_is_refused_when_it_is_declared(lake: fm.Lake, vocab: Any, said: str) -> None:
    with pytest.raises(BadOption, match=said):
        lake.create("made", vocab=vocab)
    with pytest.raises(BadOption, match=said):
        fm.DatasetSpec("made", vocab=vocab)
    assert "made" not in lake


def test_the_new_name_is_reserved_instead_of_the_old_one(lake: fm.Lake) -> None:
    made = lake.create("made", vocab={"offset": "_Offset"})
    with pytest.raises(BadColumnName, match="'_offset' is reserved"):
        made.write(pa.table({"_offset": [1]}))
    made.write(messages((1, "a")))
    with pytest.raises(BadColumnName, match="'_OFFSET', which is reserved"):
        made.write(messages((1, "a")).append_column("_OFFSET", pa.array([1])))
    with pytest.raises(BadColumnName):
        lake.create("other", key="_offset", vocab=VOCAB)
    with pytest.raises(BadColumnName) as caught:
        lake.create("other").write(messages((1, "a")))
    assert "vocab={'offset': '_offset'}" in str(caught.value)


STEPS = {
    "transform": lambda function, output: fm.BatchTransform(function, ["k"], [output], name="s"),
    "table": lambda function, output: fm.DatatableTransform(function, ["k"], [output], name="s"),
    "generate": lambda function, output: fm.BatchGenerate(lambda: [function({"id": [1]})], [output], name="s"),
}


@pytest.mark.parametrize("kind", STEPS)
def test_output_with_a_column_offset_is_refused_with_what_helps(lake: fm.Lake, kind: str) -> None:
    lake.create("k", key="id").write(pa.table({"id": [1]}))

    def function(rows: Any) -> pa.Table:
        return pa.table({"id": rows["id"], "offset": rows["id"]})

    function.__annotations__["rows"] = pa.Table
    with in_this_process():
        with pytest.raises(BadColumnName, match="'offset' is reserved") as refused:
            STEPS[kind](function, fm.OutputSpec("out", key="id")).run(lake)
        wanted = "drop the output, if it exists, and declare OutputSpec('out', vocab={'offset': '_offset'})"
        assert wanted in refused.value.hint
        step = STEPS[kind](function, fm.OutputSpec("out", key="id", vocab=VOCAB))
        lake.create("out", key="id", exist_ok=True) if kind == "generate" else None
        with pytest.raises(BadStep, match="exists with the system columns offset, op, system_time, not _offset"):
            step.run(lake)
        lake.drop("out")
        step.run(lake)
    assert lake["out"].to_arrow()["offset"].to_pylist() == [1]


def test_output_with_another_event_time_than_declared_is_refused(lake: fm.Lake) -> None:
    lake.create("k", key="id").write(pa.table({"id": [1], "at": pa.array([0], pa.timestamp("us", "UTC"))}))

    def copied(rows: pa.Table) -> pa.Table:
        return rows

    with in_this_process():
        fm.BatchTransform(copied, ["k"], ["out"], name="s").run(lake)
        with pytest.raises(BadStep, match="exists with the event time None, not 'at'"):
            fm.BatchTransform(copied, ["k"], [fm.OutputSpec("out", event_time="at")], name="s").run(lake)
