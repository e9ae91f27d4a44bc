"""Declaring a view commits its definition and nothing else; the same again does nothing, and starts no Spark.

What Spark would say of a query, a stand-in says here, so that it can be counted and changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pytest

import floodmark as fm
from floodmark.chain.events import (
    AttachmentEmbedded,
    AttachmentsEmbedded,
    SetAttachments,
    SetDataSchema,
    SetTransform,
    SetVocab,
)
from floodmark.chain.state import parse_input_ids
from floodmark.derive.commit import CommitMoves, commit_whole_result
from floodmark.engine.progress import SilentProgress
from floodmark.errors import (
    BadMeta,
    BadName,
    BadQuery,
    BadView,
    NoSchema,
    NotAView,
    OutputTaken,
    ReadOnlyDataset,
    UnknownDataset,
    ViewError,
)
from floodmark.ledger.create import commit_events
from floodmark.ledger.data_input import TableData
from floodmark.ledger.strategy import is_view
from floodmark.view import View
from floodmark.views import declare as declaring
from floodmark.views.analysis import Analysis, InputUse, layout_of, schemas_digest
from floodmark.views.definition import ViewDefinition
from floodmark.views.sources import input_schema_of
from floodmark.views.stored_definition import read_stored_view
from ledger.worlds import blocks

COLUMNS = pa.schema([("id", pa.int64()), ("v", pa.int64())])
SQL = "select id, v from flights"


@dataclass
class Analyser:
    """Says of every query that it has these columns and this key, by rows of the datasets it is told of."""

    columns: pa.Schema = COLUMNS
    key: tuple[str, ...] = ("id",)
    reads: tuple[str, ...] = ("flights",)
    calls: int = 0
    known: Analysis | None = None

    def __call__(
        self,
        lake: fm.Lake,
        definition: ViewDefinition,
        *,
        view: str | None = None,
        known: Analysis | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> Analysis:
        self.calls += 1
        self.known = known
        found = {} if known is None else {use.alias: use.dataset_id for use in known.sources}
        called = {str(dataset.id): dataset.name for dataset in lake}
        sources = {alias: input_schema_of(lake[called.get(found.get(alias, ""), alias)]) for alias in self.reads}
        uses = tuple(
            InputUse(alias, source.dataset_id, ((self.key[0], "id"),), tuple(source.schema.names), ())
            for alias, source in sources.items()
        )
        return Analysis(
            kind="rows",
            why=None,
            sources=uses,
            columns=self.columns,
            t=self.key[:1],
            key=self.key,
            hidden=pa.schema([]),
            query=definition.query,
            identity=False,
            inject={},
            schemas=schemas_digest(sources.values()),
        )


@pytest.fixture
def analyser(monkeypatch):
    found = Analyser()
    monkeypatch.setattr(declaring, "analyse_for_lake", found)
    return found


class NoSpark:
    """A session that nobody may ask for."""

    is_local = True

    def get(self) -> Any:
        raise AssertionError("Spark was asked for")


@pytest.fixture
def lake(tmp_path):
    made = fm.Lake(tmp_path / "lake", runtime=fm.Runtime(session=NoSpark()))
    made.create("flights", key="id").write(pa.table({"id": [1, 2], "v": [10, 20]}))
    return made


def filled(lake: fm.Lake, name: str, rows: pa.Table) -> None:
    """Let a view hold these rows, as a refresh would."""
    view = lake.view(name)
    snapshot = view.snapshot()
    layout = layout_of(name, view.analysis, snapshot)
    events = () if layout == snapshot.layout else (SetDataSchema(schema=layout.to_odf()),)
    commit_whole_result(
        name, lake.runtime, snapshot, TableData(rows), CommitMoves(definitions=events), SilentProgress(), {}
    )


ROWS = pa.table({"id": [1, 2], "v": [10, 20]})


def test_the_chain_of_a_new_view_says_what_it_is(lake, analyser):
    view = lake.view("daily", sql=SQL)
    events = [block.event for _, block in blocks(view)]
    assert [type(e) for e in events[1:]] == [SetVocab, SetTransform, SetAttachments]
    transform = view.snapshot().state.transform
    assert [(i.alias, i.dataset_ref) for i in transform.inputs] == [("flights", str(lake["flights"].id))]
    assert (transform.transform.engine, transform.transform.query) == ("spark", SQL)
    assert transform.transform.version == view.definition.version
    assert view.strategy.key == ("id",)
    assert view.verify().ok


def test_a_view_tells_what_it_is_without_spark(lake, analyser):
    view = lake.view("daily", sql=SQL)
    assert repr(view).startswith("View('daily'")
    assert (view.refresh_kind, view.whole_reason, view.refresh_keys, view.inputs) == (
        "rows",
        None,
        ("id",),
        ("flights",),
    )
    assert view.positions == {"flights": -1}
    assert view.definition.sql == SQL
    assert view.analysis == read_stored_view(view.snapshot().state).analysis


def test_the_same_definition_again_writes_no_block_and_analyses_nothing(lake, analyser):
    head = lake.view("daily", sql=SQL).head
    assert lake.view("daily", sql=f"{SQL};\n").head == head
    assert fm.Lake(lake.store, runtime=lake.runtime).view("daily", sql=SQL).head == head
    assert analyser.calls == 1


def test_another_definition_is_a_new_version_and_moves_no_data(lake, analyser):
    view = lake.view("daily", sql=SQL)
    filled(lake, "daily", ROWS)
    before, offset = view.definition.version, view.last_offset
    lake.view("daily", sql=f"{SQL} where v > 10")
    assert view.definition.version != before
    assert view.snapshot().state.transform.transform.version == view.definition.version
    assert view.last_offset == offset
    assert view.to_arrow() == ROWS.cast(view.schema)
    assert view.verify().ok


def test_a_definition_with_other_inputs_can_be_committed_on(lake, analyser):
    lake.create("weather", key="id").write(pa.table({"id": [1], "v": [5]}))
    view = lake.view("daily", sql=SQL)
    filled(lake, "daily", ROWS)
    analyser.reads = ("weather", "flights")
    lake.view("daily", sql="select w.id, f.v from weather w join flights f using (id)")
    filled(lake, "daily", ROWS.slice(1))
    analyser.reads = ("weather",)
    lake.view("daily", sql="select id, v from weather")
    filled(lake, "daily", ROWS.slice(0, 1))
    assert parse_input_ids(view.snapshot().state.transform) == (lake["weather"].id,)
    assert view.to_arrow().column("id").to_pylist() == [1]
    assert view.verify().ok


def test_others_attachments_stay_when_the_definition_changes(lake, analyser):
    view = lake.view("daily", sql=SQL)
    [own] = view.snapshot().state.attachments.attachments.items
    theirs = SetAttachments(AttachmentsEmbedded((AttachmentEmbedded("README.md", "# daily"), own)))
    commit_events("daily", view.snapshot, lambda _: [theirs], lake.runtime)
    lake.view("daily", sql=f"{SQL} where v > 10")
    items = view.snapshot().state.attachments.attachments.items
    assert [item.path for item in items] == ["README.md", "floodmark.json"]
    assert view.definition.sql.endswith("v > 10")


def test_more_columns_and_fewer_are_taken(lake, analyser):
    view = lake.view("daily", sql=SQL)
    filled(lake, "daily", ROWS)
    analyser.columns = pa.schema([("w", pa.string()), ("id", pa.int64())])
    lake.view("daily", sql="select 'x' w, id from flights")
    filled(lake, "daily", pa.table({"w": ["x", "y"], "id": [1, 2], "v": pa.nulls(2, pa.int64())}))
    assert view.to_arrow().to_pydict() == {"w": ["x", "y"], "id": [1, 2]}
    assert view.verify().ok


def test_a_key_looked_up_in_another_way_is_another_key_once_there_are_rows(lake, analyser, monkeypatch):
    analyser.key = ("id", "v")
    lake.view("daily", sql=SQL)
    filled(lake, "daily", ROWS)
    whole = replace(analyser(lake, lake.view("daily").definition), t=(), kind="whole", why="so")
    monkeypatch.setattr(declaring, "analyse_for_lake", lambda *_, **__: whole)
    lake.view("daily", sql=f"{SQL} limit 5")
    assert lake.view("daily").plan_refresh().stale == "its key changed, so it is rebuilt as a new dataset"


def test_before_the_first_refresh_everything_may_change(lake, analyser):
    view = lake.view("daily", sql=SQL)
    analyser.key, analyser.columns = ("v",), pa.schema([("v", pa.string())])
    lake.view("daily", sql="select cast(v as string) v from flights")
    assert view.strategy.key == ("v",)
    filled(lake, "daily", pa.table({"v": ["10", "20"]}))
    assert view.to_arrow().to_pydict() == {"v": ["10", "20"]}
    assert view.verify().ok


def test_columns_of_a_source_that_changed_are_looked_at_again(lake, analyser):
    lake.view("daily", sql=SQL)
    lake["flights"].evolve({"w": "string"})
    lake.view("daily", sql=SQL)
    lake.view("daily", sql=SQL)
    assert analyser.calls == 2
    assert lake.view("daily").analysis.sources[0].columns == ("id", "v", "w")


def test_new_records_of_a_source_are_no_reason_to_look_again(lake, analyser):
    head = lake.view("daily", sql=SQL).head
    lake["flights"].write(pa.table({"id": [3], "v": [30]}))
    assert lake.view("daily", sql=SQL).head == head
    assert analyser.calls == 1


def test_a_renamed_source_is_still_the_same(lake, analyser):
    head = lake.view("daily", sql=SQL).head
    lake.rename("flights", "trips")
    assert lake.view("daily", sql=SQL).head == head
    assert analyser.calls == 1
    assert lake.view("daily").inputs == ("trips",)
    lake["trips"].evolve({"w": "string"})
    lake.view("daily", sql=SQL)
    assert analyser.known.sources[0].dataset_id == str(lake["trips"].id)


def test_a_name_that_is_anothers_now_means_that_one(lake, analyser):
    view = lake.view("daily", sql=SQL)
    lake.rename("flights", "trips")
    lake.create("flights", key="id").write(pa.table({"id": [7], "v": [70]}))
    lake.view("daily", sql=SQL)
    assert analyser.calls == 2
    assert parse_input_ids(view.snapshot().state.transform) == (lake["flights"].id,)
    lake.view("daily", sql=SQL)
    assert analyser.calls == 2


def test_a_source_that_was_dropped_and_made_anew_is_another_one(lake, analyser):
    view = lake.view("daily", sql=SQL)
    lake._drop_alone("flights")
    assert view.inputs == ("flights",)
    lake.create("flights", key="id").write(pa.table({"id": [7], "v": [70]}))
    lake.view("daily", sql=SQL)
    assert parse_input_ids(view.snapshot().state.transform) == (lake["flights"].id,)


def test_a_view_is_opened_by_its_name_and_a_dataset_is_none(lake, analyser):
    lake.view("daily", sql=SQL)
    assert lake.view("DAILY").name == "daily"
    with pytest.raises(NotAView, match="'flights' is a dataset, not a view"):
        lake.view("flights")
    with pytest.raises(UnknownDataset) as caught:
        lake.view("dayly")
    assert "did you mean 'daily'?" in caught.value.hint
    assert "sql=" in caught.value.hint


def test_all_views_are_listed(lake, analyser):
    lake.view("b", sql=SQL)
    lake.view("a", sql=SQL)
    assert [(type(v), v.name) for v in lake.views()] == [(View, "a"), (View, "b")]
    assert [is_view(d.snapshot().state) for d in lake] == [True, True, False]


def test_reading_before_the_first_refresh_says_so(lake, analyser):
    view = lake.view("daily", sql=SQL)
    for read in (view.to_arrow, view.changes_arrow, view.to_batches, lambda: view.get(1), lambda: view.history(1)):
        with pytest.raises(ViewError, match="'daily' was never refreshed"):
            read()
    assert view.schema is None
    with pytest.raises(NoSchema) as caught:
        lake["daily"].to_arrow()
    assert "refresh it if it is a view" in caught.value.hint


def test_names_that_are_taken_are_refused(lake, analyser):
    def step(frame: pa.Table) -> pa.Table:
        return frame

    fm.BatchTransform(step, inputs=["flights"], outputs=["stepped"], transform_keys=["id"]).run(lake)
    for name, whose in (("flights", "data is written to"), ("stepped", "the output of a step")):
        head = lake[name].head
        with pytest.raises(OutputTaken, match=whose):
            lake.view(name, sql=SQL)
        assert lake[name].head == head
    assert analyser.calls == 0


@pytest.mark.parametrize("name", ["", "a b", "../x", 7])
def test_names_that_are_no_names_are_refused(lake, analyser, name):
    with pytest.raises(BadName):
        lake.view(name, sql=SQL)
    assert analyser.calls == 0


def test_a_step_may_not_write_to_a_view(lake, analyser):
    def step(frame: pa.Table) -> pa.Table:
        return frame

    view = lake.view("daily", sql=SQL)
    head = view.head
    with pytest.raises(OutputTaken, match="'daily': it is a view"):
        fm.BatchTransform(step, inputs=["flights"], outputs=["daily"], transform_keys=["id"]).run(lake)
    out = fm.OutputSpec("daily", key=["id"])
    with pytest.raises(OutputTaken, match="'daily': it is a view"):
        fm.DatatableTransform(step, inputs=["flights"], outputs=[out]).run(lake)
    with pytest.raises(ReadOnlyDataset):
        view.write(ROWS)
    assert view.head == head


def test_a_source_may_be_given_itself_also_after_a_rename(lake, analyser):
    flights = lake["flights"]
    assert lake.view("a", source=flights).definition.source == "flights"
    lake.rename("flights", "trips")
    analyser.reads = ("trips",)
    assert lake.view("b", source=flights).definition.source == "trips"


def test_a_source_of_another_lake_is_refused(lake, analyser, tmp_path):
    other = fm.Lake(tmp_path / "other").create("flights", key="id")
    with pytest.raises(BadView, match="is not a dataset of"):
        lake.view("daily", source=other)
    with pytest.raises(UnknownDataset, match="'flihgts'"):
        lake.view("daily", source="flihgts")
    assert analyser.calls == 0
    assert "daily" not in lake


def test_inputs_of_functions_that_the_source_lacks_are_refused(lake, analyser):
    double = fm.udf(returns="int64", version="1")(lambda v: 2 * v)
    with pytest.raises(BadView) as caught:
        lake.view("daily", source="flights", select={"id": "id", "d": (double, ["vv"])})
    assert caught.value.message == "view 'daily': column 'd' is computed from 'vv', which 'flights' lacks"
    assert "did you mean 'v'?" in caught.value.hint
    assert analyser.calls == 0
    lake.view("daily", source="flights", select={"id": "id", "d": (double, ["offset"])})
    lake["flights"].add_column("twice", double)
    lake.view("other", source="flights", select={"id": "id", "d": (double, ["twice"])})


def test_a_view_made_from_itself_is_refused_however_far_round(lake, analyser):
    lake.view("a", sql=SQL)
    filled(lake, "a", ROWS)
    analyser.reads = ("a",)
    lake.view("b", sql="select id, v from a")
    filled(lake, "b", ROWS)
    head = lake["a"].head
    for reads, complaint in ((("a",), "would read itself\n"), (("b",), "would read itself, through 'b'")):
        analyser.reads = reads
        with pytest.raises(BadView, match=complaint):
            lake.view("a", sql=f"select id, v from {reads[0]}")
    assert lake["a"].head == head


def test_a_query_over_nothing_is_refused(lake, analyser):
    analyser.reads = ()
    with pytest.raises(BadView, match="view 'daily': the query reads no dataset"):
        lake.view("daily", sql="select 1")
    assert "daily" not in lake


def test_what_spark_says_against_a_query_comes_with_the_views_name(lake, monkeypatch):
    def refuse(*_: Any, **__: Any) -> Analysis:
        raise BadQuery("there is no column 'w'", hint="look again", column="w")

    monkeypatch.setattr(declaring, "analyse_for_lake", refuse)
    with pytest.raises(BadQuery) as caught:
        lake.view("daily", sql="select w from flights")
    assert caught.value.message == "view 'daily': there is no column 'w'"
    assert (caught.value.hint, caught.value.column) == ("look again", "w")


def test_two_who_declare_at_once_make_one_view(lake, analyser, monkeypatch):
    def overtaken(*args: Any, **options: Any) -> Analysis:
        monkeypatch.setattr(declaring, "analyse_for_lake", analyser)
        lake.view("daily", sql=f"{SQL} where v > 10")
        return analyser(*args, **options)

    monkeypatch.setattr(declaring, "analyse_for_lake", overtaken)
    view = lake.view("daily", sql=SQL)
    assert view.definition.sql == SQL  # whoever comes last has the last word
    assert [d.name for d in lake] == ["daily", "flights"]
    assert view.verify().ok


def test_a_dataset_that_takes_the_name_meanwhile_stays(lake, analyser, monkeypatch):
    def overtaken(*args: Any, **options: Any) -> Analysis:
        lake.create("daily")
        return analyser(*args, **options)

    monkeypatch.setattr(declaring, "analyse_for_lake", overtaken)
    with pytest.raises(OutputTaken):
        lake.view("daily", sql=SQL)


@pytest.mark.parametrize(
    "note", ["{}", '{"definition": {}}', "7", '{"definition": {"sql": 1, "source": 2, "select": 3, "where": 4}}']
)
def test_a_damaged_definition_is_said_to_be_so(lake, analyser, note):
    view = lake.view("daily", sql=SQL)
    content = f'{{"key": ["id"], "lookup": ["id"], "view": {note}}}'
    damaged = SetAttachments(AttachmentsEmbedded((AttachmentEmbedded("floodmark.json", content),)))
    commit_events("daily", view.snapshot, lambda _: [damaged], lake.runtime)
    with pytest.raises(BadMeta, match="cannot be read"):
        lake.view("daily")
    with pytest.raises(BadMeta):
        lake.view("daily", sql=SQL)


def test_a_view_that_is_open_stands_a_rename(lake, analyser):
    view = lake.view("daily", sql=SQL)
    lake.rename("daily", "weekly")
    assert view.plan_refresh().view == "weekly"
    lake.drop("weekly")
    with pytest.raises(UnknownDataset):
        view.plan_refresh()
