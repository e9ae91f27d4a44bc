"""The examples of the seed, with its names: the step as written, its two queries, and its warning.

The queries run in DuckDB over a table of input records, whose `update_ts` is the record's offset, and `step.meta`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pyarrow as pa
import pytest

import floodmark as fm
from floodmark import BatchTransform
from floodmark.rows.row_hash import hash_rows
from floodmark.transforms.snapshot import snapshot_step
from transforms.worlds import MAP, Key, World, in_this_process, make_world

V1 = """
SELECT COALESCE(input.id, transform_meta.id) AS id
FROM (SELECT id, max(update_ts) AS update_ts FROM input_table GROUP BY id) AS input
FULL OUTER JOIN transform_meta ON input.id = transform_meta.id
WHERE transform_meta.process_ts IS NULL
   OR input.update_ts > transform_meta.process_ts
   OR transform_meta.is_success != True
"""

V2 = """
WITH input_changes AS (
    SELECT id, max(update_ts) AS update_ts, min(update_ts) AS first_ts
    FROM input_table
    WHERE update_ts >= $offset  -- Early filtering by offset
    GROUP BY id
),
error_records AS (
    SELECT id
    FROM transform_meta
    WHERE is_success != True
),
-- Union all changes
all_changes AS (
    SELECT id, update_ts, first_ts
    FROM input_changes
    UNION ALL
    SELECT id, NULL as update_ts, NULL as first_ts
    FROM error_records
)
-- Then check process_ts to avoid reprocessing
SELECT all_changes.id
FROM all_changes
LEFT JOIN transform_meta ON all_changes.id = transform_meta.id
WHERE update_ts IS NULL  -- Error records
   OR process_ts IS NULL  -- Never processed
   OR (is_success = True AND update_ts > process_ts)  -- Updated after processing
GROUP BY all_changes.id
ORDER BY min(first_ts), all_changes.id
"""


@pytest.fixture(autouse=True)
def _here() -> Iterator[None]:
    with in_this_process():
        yield


@pytest.fixture
def world(tmp_path: Path) -> World:
    return make_world(MAP, tmp_path)


# Enabling offset optimization


@pytest.mark.parametrize("use_offset_optimization", [True, False])
def test_step_of_the_seed_runs_as_written(use_offset_optimization, tmp_path):
    lake = fm.Lake(tmp_path / "lake")
    input_table = lake.create("input_table", key="id", schema={"id": "int64", "v": "int64"})
    output_table = "output_table"

    def my_transform(df: pd.DataFrame) -> pd.DataFrame:
        return df.assign(v=df["v"] * 2)

    step = BatchTransform(
        func=my_transform,
        inputs=[input_table],
        outputs=[output_table],
        # Add this field to enable offset optimization
        use_offset_optimization=use_offset_optimization,
    )
    input_table.write(pd.DataFrame({"id": [1, 2], "v": [1, 2]}))
    assert step.run(lake).keys == 2
    input_table.store_chunk(pd.DataFrame({"id": [2, 3], "v": [20, 30]}))
    assert step.run(lake).keys == 2
    assert lake["output_table"].to_arrow().sort_by("id").to_pydict() == {"id": [1, 2, 3], "v": [2, 40, 60]}
    offsets = step.offsets(lake).to_pylist()
    assert [(row["transform"], row["input"], row["offset"]) for row in offsets] == [("my_transform", "input_table", 4)]


def test_output_may_be_a_dataset_of_the_step_that_was_opened_before(tmp_path):
    lake = fm.Lake(tmp_path / "lake")
    input_table = lake.create("input_table", key="id", schema={"id": "int64", "v": "int64"})
    input_table.write(pd.DataFrame({"id": [1], "v": [1]}))

    def my_transform(df: pd.DataFrame) -> pd.DataFrame:
        return df

    BatchTransform(func=my_transform, inputs=[input_table], outputs=["output_table"]).run(lake)
    output_table = lake["output_table"]
    step = BatchTransform(func=my_transform, inputs=[input_table], outputs=[output_table], use_offset_optimization=True)
    assert step.run(lake).nothing
    input_table.write(pd.DataFrame({"id": [2], "v": [2]}))
    assert step.run(lake).keys == 1
    assert output_table.count() == 2


# store_chunk(now=…)


def test_store_chunk_with_a_time_in_the_past_warns_and_loses_nothing(world, caplog):
    dt = world.lake["a"]
    data = pd.DataFrame({"id": [1, 2], "v": [1, 2]})
    dt.store_chunk(data)
    world.run()
    old_timestamp = datetime.now(UTC) - timedelta(hours=1)
    with caplog.at_level(logging.WARNING):
        dt.store_chunk(data.assign(v=[1, 20]), now=old_timestamp)
    [record] = [r for r in caplog.records if "store_chunk" in r.getMessage()]
    assert record.levelname == "WARNING"
    said = record.getMessage()
    assert said.startswith(f"store_chunk called with now={old_timestamp.isoformat()} which is 36")
    assert "s in the past." in said
    assert world.changelist(True) == world.changelist(False) == [(2,)]
    world.run()
    assert world.shown("w") == {1: 10, 2: 200}


def test_store_chunk_without_a_time_warns_of_nothing(world, caplog):
    with caplog.at_level(logging.WARNING):
        world.lake["a"].store_chunk(pd.DataFrame({"id": [1], "v": [1]}))
        world.lake["a"].store_chunk(pd.DataFrame({"id": [2], "v": [1]}), now=datetime.now(UTC) + timedelta(hours=1))
    assert caplog.records == []


# The queries


def tables(world: World) -> dict[str, pa.Table]:
    """The input's records, and the transform meta with the key and the offset up to which it was processed."""
    records = world.lake["a"].changes_arrow().select(["id", "offset"]).rename_columns(["id", "update_ts"])
    meta = world.step().meta(world.lake)
    return {"input_table": records, "transform_meta": with_seed_names(world, meta)}


def with_seed_names(world: World, meta: pa.Table) -> pa.Table:
    """id, process_ts, is_success as the seed has them; the timestamp is the offset that the run had read up to."""
    ids = sorted(set(world.lake["a"].changes_arrow()["id"].to_pylist()))
    hashes = hash_rows(pa.table({"id": pa.array(ids, pa.int64())}), ["id"])
    found = snapshot_step(world.step(), world.lake).meta
    last_offsets = found.processed_up_to(hashes, [str(world.lake["a"].id)])[:, 0].tolist()
    known = dict(zip(ids, last_offsets, strict=True))
    rows = [{**row, "process_ts": known[row["id"]]} for row in meta.select(["id", "is_success"]).to_pylist()]
    columns = [("id", pa.int64()), ("process_ts", pa.int64()), ("is_success", pa.bool_())]
    return pa.Table.from_pylist(rows, pa.schema(columns))


def ask(world: World, query: str, **parameters: Any) -> list[Key]:
    with duckdb.connect() as database:
        for name, table in tables(world).items():
            database.register(name, table)
        return database.execute(query, parameters or None).fetchall()


def v1(world: World) -> list[Key]:
    return ask(world, V1)


def v2(world: World) -> list[Key]:
    return ask(world, V2, offset=world.positions()["a"])


def needless(world: World) -> set[Key]:
    """Keys that came and went before they were processed: the seed's queries list them, and there is nothing to do."""
    there, known = world.lake["a"].to_arrow()["id"], tables(world)["transform_meta"]["id"]
    seen = {(number,) for column in (there, known) for number in column.to_pylist()}
    return set(v1(world)) - seen


def first_write(world: World) -> None:
    world.write("a", (3, 3), (1, 1), (2, 2))


def run(world: World) -> None:
    world.run()


def update(world: World) -> None:
    world.write("a", (2, 20), (4, 4))
    world.write("a", (1, 10))


def others(world: World) -> None:
    world.write("a", (7, 7), (5, 5))
    world.write("a", (1, 11))


def delete(world: World) -> None:
    world.delete("a", 3)


def fail(world: World) -> None:
    world.calls.fail((2,))


def behave(world: World) -> None:
    world.calls.behave()


def filtered(world: World) -> None:
    world.run(run={"filters": {"id": [1, 4]}})


def limited(world: World) -> None:
    world.run(run={"max_records": 1})


STORIES: dict[str, list[Callable[[World], None]]] = {
    "first run": [first_write],
    "nothing new": [first_write, run],
    "updates": [first_write, run, update],
    "a delete": [first_write, run, delete],
    "failures": [first_write, fail, run],
    "failures and updates": [first_write, fail, run, update],
    "failures that were mended": [first_write, fail, run, update, behave, run],
    "a filtered run": [first_write, run, update, filtered],
    "a filtered run and updates": [first_write, filtered, update],
    "a limited run": [first_write, update, limited],
    "a limited run and updates": [first_write, limited, update, delete],
    "a failure and updates of others": [first_write, fail, run, others],
}


@pytest.mark.slow
@pytest.mark.parametrize("story", STORIES)
def test_queries_of_the_seed_give_the_keys_of_the_changelist(story, world):
    for event in STORIES[story]:
        event(world)
    found = world.changelist(True)
    assert set(v1(world)) == set(v2(world))
    assert set(v1(world)) - needless(world) == set(found) == set(world.changelist(False))


@pytest.mark.parametrize("story", ["first run", "updates", "a failure and updates of others", "a limited run"])
def test_changelist_is_in_the_order_of_the_seeds_query(story, world):
    """Ordered by the position, then by keys; error records last. Records of one commit are in the order of keys."""
    for event in STORIES[story]:
        event(world)
    assert world.changelist(True) == v2(world)


def test_queries_of_the_seed_tell_apart_what_is_processed(world):
    """The queries can fail: with a strict filter, v2 loses the record that lies at the offset itself."""
    first_write(world)
    strict = V2.replace("update_ts >= $offset", "update_ts > $offset")
    assert len(ask(world, strict, offset=0)) == 2
    assert len(ask(world, V2, offset=0)) == 3


# When to use


def test_plan_says_that_offset_optimization_does_not_pay_for_a_small_table(world):
    first_write(world)
    world.run()
    world.write("a", (1, 10))
    advice = world.step().plan(world.lake).advice
    assert advice is not None
    assert "only 3 keys" in advice


def test_plan_says_that_offset_optimization_does_not_pay_when_everything_is_processed(world):
    first_write(world)
    advice = world.step().plan(world.lake).advice
    assert advice is not None
    assert "every key" in advice
