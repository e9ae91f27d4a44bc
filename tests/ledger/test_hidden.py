"""Hidden columns are kept, hashed and verified like all others, and seen by nobody who does not name them."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

import floodmark as fm
from derive.derived_worlds import transform
from floodmark.chain.events import SetDataSchema
from floodmark.derive.commit import CommitMoves, commit_whole_result, evolve_layout
from floodmark.engine.progress import SilentProgress
from floodmark.errors import BadQuery
from floodmark.ledger.create import create_view
from floodmark.ledger.data_input import TableData
from floodmark.ledger.schema import Layout, derive_layout, layout_from_odf, vocabulary
from floodmark.ledger.strategy import declare, read_note

SHOWN = ["k", "text"]
COPY = "floodmark_copy"
COLUMNS = pa.schema([("k", pa.int64()), ("text", pa.string()), (COPY, pa.int32())])
SYSTEM = ["offset", "op", "system_time"]


class World:
    """A derivative `out` whose rows of one k are told apart by a hidden number alone."""

    def __init__(self, lake: fm.Lake) -> None:
        self.lake = lake
        source = lake.create("source", key="k")
        source.write(pa.table({"k": [1]}))
        strategy = declare("upsert", ["k", COPY], None, "k")
        create_view(lake.store, lake.runtime, "out", strategy=strategy, transform=transform(source), notes={"x": [1]})
        self.out = lake["out"]
        vocab = vocabulary(self.out.snapshot().state.vocab)
        layout = derive_layout(COLUMNS, vocab, None, strategy.key)
        self.layout = replace(layout, data=COLUMNS, hidden=(COPY,))

    def put(self, *rows: tuple[int | None, str, int], layout: Layout | None = None) -> None:
        """Let these be all rows."""
        wanted = layout or self.layout
        present = self.out.snapshot().layout
        events = () if present == wanted else (SetDataSchema(schema=wanted.to_odf()),)
        named = [dict(zip(COLUMNS.names, row, strict=True)) for row in rows]
        table = pa.Table.from_pylist(named, schema=wanted.data)
        moves = CommitMoves(definitions=events)
        commit_whole_result(
            "out", self.lake.runtime, self.out.snapshot(), TableData(table), moves, SilentProgress(), {}
        )


@pytest.fixture
def world(lake):
    made = World(lake)
    made.put((1, "a", 0), (1, "a", 1), (None, "b", 0))
    return made


READINGS = {
    "to_arrow": (lambda d, _: d.to_arrow(), SHOWN),
    "to_pandas": (lambda d, _: pa.Table.from_pandas(d.to_pandas()), SHOWN),
    "to_batches": (lambda d, _: d.to_batches().read_all(), SHOWN),
    "to_batches by SQL": (lambda d, _: d.to_batches(where="k is null or k > 0").read_all(), SHOWN),
    "an earlier state": (lambda d, _: d.to_arrow(as_of=2), SHOWN),
    "changes": (lambda d, _: d.changes_arrow(), [*SYSTEM, *SHOWN]),
    "scan": (lambda d, _: d.scan().to_table(), [*SYSTEM, *SHOWN]),
    "sql": (lambda _, lake: lake.sql("select * from out"), SHOWN),
    "history": (lambda d, _: d.history([{"k": 1}, {"k": None}]), [*SYSTEM, *SHOWN]),
    "get": (lambda d, _: d.get([{"k": 1}, {"k": None}]), SHOWN),
}


@pytest.mark.parametrize("way", READINGS)
def test_no_way_of_reading_shows_them(world, way):
    read, columns = READINGS[way]
    found = read(world.out, world.lake)
    assert found.column_names == columns
    assert found.num_rows == 3
    assert sorted(found.column("text").to_pylist()) == ["a", "a", "b"]


@pytest.mark.spark
def test_spark_does_not_show_them_either(tmp_path, spark):
    world = World(fm.Lake(tmp_path / "lake", spark=spark))
    world.put((1, "a", 0), (1, "a", 1))
    assert world.out.read().columns == SHOWN
    assert world.out.read(system=True).columns == [*SYSTEM, *SHOWN]
    assert world.out.changes().columns == [*SYSTEM, *SHOWN]
    assert world.lake.sql_spark("select * from out").columns == SHOWN
    assert sorted(map(tuple, world.out.read(columns=[COPY, "k"]).collect())) == [(0, 1), (1, 1)]


def test_the_schema_leaves_them_out(world):
    assert world.out.schema.names == SHOWN


def test_whoever_names_them_gets_them(world):
    assert world.out.to_arrow(columns=[COPY, "k"]).to_pydict() == {COPY: [0, 1, 0], "k": [1, 1, None]}
    assert world.out.get({"k": 1, COPY: 1}).to_pydict() == {"k": [1], "text": ["a"]}
    assert world.out.history({COPY: 1}).column("offset").to_pylist() == [1]


def test_a_filter_may_look_at_them(world):
    assert world.out.to_batches(where=f"{COPY} = 1").read_all().num_rows == 1


def test_an_error_does_not_offer_them(world):
    with pytest.raises(BadQuery) as caught:
        world.out.to_arrow(columns=["txet"])
    assert caught.value.hint == "choose from its columns: offset, op, system_time, k, text"


def test_a_users_own_column_of_that_name_is_shown(lake):
    dataset = lake.create("mine", key="k")
    dataset.write(pa.table({"k": [1], COPY: [7]}))
    assert dataset.to_arrow().to_pydict() == {"k": [1], COPY: [7]}
    assert dataset.schema.names == ["k", COPY]


def test_computed_columns_come_after_those_that_are_shown(world):
    world.out.add_column("twice", fm.udf(returns="int64", inputs=["k"], version="1")(lambda k: k and 2 * k))
    assert world.out.to_arrow().column_names == [*SHOWN, "twice"]
    assert world.lake.sql("select * from out").column_names == [*SHOWN, "twice"]
    assert world.out.get({"k": 1}).column_names == [*SHOWN, "twice"]


def test_a_change_in_a_hidden_column_alone_is_a_change(world):
    before = world.out.last_offset
    world.put((1, "a", 0), (1, "a", 2), (None, "b", 0))
    assert world.out.changes_arrow(since=before).column("op").to_pylist() == [1, 0]  # that row is another one now
    assert world.out.verify().ok


def test_folded_rows_have_them(world):
    world.put((1, "c", 0), (1, "a", 1), (None, "b", 0))
    before = world.out.to_arrow(columns=[*SHOWN, COPY])
    world.out.fold()
    assert world.lake["out"].to_arrow(columns=[*SHOWN, COPY]) == before
    world.put((1, "c", 0), (1, "d", 1), (None, "b", 0))
    assert sorted(world.out.to_arrow().column("text").to_pylist()) == ["b", "c", "d"]
    assert world.out.verify().ok


def test_a_column_that_is_retired_is_hidden_and_can_come_back(world):
    retired = replace(world.layout, hidden=("text", COPY))
    world.put((1, None, 0), (1, None, 1), (None, None, 0), layout=retired)
    assert world.out.schema.names == ["k"]
    assert world.out.to_arrow().column_names == ["k"]
    assert world.out.to_arrow(columns=["text"]).column("text").null_count == 3
    world.put((1, "z", 0), layout=world.layout)
    assert world.out.to_arrow().to_pydict() == {"k": [1], "text": ["z"]}
    assert world.out.verify().ok


def test_more_columns_do_not_unhide_them(world):
    layout, events = evolve_layout("out", world.layout, COLUMNS.append(pa.field("more", pa.int64())))
    assert layout.hidden == (COPY,)
    assert layout.shown.names == [*SHOWN, "more"]
    assert layout_from_odf(events[0].schema, layout.vocab) == layout


def test_the_chain_says_which_they_are(world):
    assert layout_from_odf(world.layout.to_odf(), world.layout.vocab) == world.layout
    assert replace(world.layout, hidden=()).to_odf() != world.layout.to_odf()


def test_a_query_may_pass_on_a_column_called_event_time_without_values(lake):
    world = World(lake)
    data = pa.schema([("k", pa.int64()), ("event_time", pa.string()), (COPY, pa.int32())])
    layout = replace(world.layout, data=data)
    definitions = (SetDataSchema(schema=layout.to_odf()),)
    table = pa.table({"k": [1, 2], "event_time": [None, "noon"], COPY: [0, 0]}, schema=data)
    at = world.out.snapshot()
    commit_whole_result(
        "out", lake.runtime, at, TableData(table), CommitMoves(definitions=definitions), SilentProgress(), {}
    )
    assert world.out.to_arrow().to_pydict() == {"k": [1, 2], "event_time": [None, "noon"]}
    assert world.out.event_time is None
    assert world.out.verify().ok


def test_notes_are_kept_beside_the_key(world):
    state = world.out.snapshot().state
    assert read_note(state, "x") == [1]
    assert read_note(state, "y") is None
    assert world.out.strategy == declare("upsert", ["k", COPY], None, "k")


def test_steps_are_not_given_them(world):
    def names(frame: pa.Table) -> pa.Table:
        return frame.select(["k"]).append_column("names", [[",".join(frame.column_names)] * frame.num_rows]).slice(0, 1)

    fm.BatchTransform(names, inputs=["out"], outputs=["named"], transform_keys=["k"]).run(world.lake)
    assert set(world.lake["named"].to_arrow().column("names").to_pylist()) == {"k,text"}


def test_whole_frames_of_steps_do_not_have_them(world):
    def names(frame: pa.Table) -> pa.Table:
        return pa.table({"name": frame.column_names})

    out = fm.OutputSpec("named", key=["name"])
    fm.DatatableTransform(names, inputs=["out"], outputs=[out]).run(world.lake)
    assert sorted(world.lake["named"].to_arrow().column("name").to_pylist()) == SHOWN
