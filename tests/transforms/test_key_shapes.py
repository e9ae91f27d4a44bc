"""Key shapes of the seed's own tests (epoch8/datapipe), under their names, and what follows from them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import floodmark as fm
from floodmark.provenance.replay import replay
from transforms.oracle import assert_right
from transforms.worlds import AUXILIARY, COARSE, JOIN_CROSS, LINKED, LINKED_GROUPS, World, in_this_process, make_world

BOTH = pytest.mark.parametrize("offsets", [True, False], ids=["v2", "v1"])


@pytest.fixture(autouse=True)
def _here() -> Iterator[None]:
    with in_this_process():
        yield


@pytest.fixture
def world(tmp_path: Path) -> Callable[..., World]:
    return lambda case, **options: make_world(case, tmp_path / case.name, **options)


@pytest.fixture
def lake(tmp_path: Path) -> fm.Lake:
    return fm.Lake(tmp_path / "lake")


def _ids(prefix: str, numbers: range) -> list[str]:
    return [f"{prefix}{n}" for n in numbers]


# A join in a cross join


@BOTH
def test_check_full_step_idx_count_when_some_idxs_are_deleted(offsets, lake):
    item = lake.create("item", key="item_id")
    item2 = lake.create("item2", key="item_id")
    pipeline = lake.create("pipeline", key="pipeline_id")

    def pairs(item: pd.DataFrame, item2: pd.DataFrame, pipeline: pd.DataFrame) -> pd.DataFrame:
        both = item.merge(item2, on="item_id")
        return both[["item_id"]].merge(pipeline[["pipeline_id"]], how="cross")

    step = fm.BatchTransform(
        pairs,
        ["item", "item2", "pipeline"],
        ["output"],
        transform_keys=["item_id", "pipeline_id"],
        chunk_size=50,
        use_offset_optimization=offsets,
    )
    item.write(pd.DataFrame({"item_id": _ids("i", range(10)), "a": range(10)}))
    item2.write(pd.DataFrame({"item_id": _ids("i", range(100)), "b": range(100)}))
    pipeline.write(pd.DataFrame({"pipeline_id": _ids("p", range(3)), "c": range(3)}))
    for dataset in (item, item2):
        dataset.delete(_ids("i", range(5)))
    listed = step.changelist(lake).select(["item_id", "pipeline_id"]).to_pylist()
    assert len(listed) == len({tuple(key.values()) for key in listed}) == 95 * 3
    step.run(lake)
    found = {tuple(row.values()) for row in lake["output"].to_arrow().select(["item_id", "pipeline_id"]).to_pylist()}
    assert found == {(i, p) for i in _ids("i", range(5, 10)) for p in _ids("p", range(3))}
    item.delete(["i7"])
    report = step.run(lake)
    assert (report.keys, report.retracted) == (3, 3)


@BOTH
def test_row_of_either_joined_input_makes_a_side_and_without_any_the_pairs_are_gone(offsets, world):
    lake = world(JOIN_CROSS, use_offset_optimization=offsets)
    lake.write("a", (1, 5))
    lake.write("c", (1, 7), (2, 8))
    assert lake.run().keys == 2
    lake.write("b", (1, 3), (2, 4))
    assert lake.changelist(True) == lake.changelist(False) == [(1, 1), (1, 2), (2, 1), (2, 2)]
    lake.run()
    assert_right(lake)
    lake.delete("a", 1)
    report = lake.run()
    assert (report.keys, report.called, report.changed) == (2, 2, 2)
    lake.delete("b", 1)
    report = lake.run()
    assert (report.keys, report.called, report.retracted) == (2, 0, 2)
    assert_right(lake)


def test_function_gets_whole_rectangles_of_pairs_with_all_rows_of_both_joined_inputs(world):
    lake = world(JOIN_CROSS, chunk_size=4)
    lake.write("a", *[(i, i) for i in range(6)])
    lake.write("b", *[(i, i) for i in range(3, 9)])
    lake.write("c", *[(j, j) for j in range(3)])
    lake.run()
    assert len(lake.calls.all()) < 27, "the pairs are not called one by one"
    assert set(lake.calls.count().values()) == {1}
    lake.write("c", (1, 10))
    lake.write("a", (0, 10))
    assert lake.run().keys == 9 + 3 - 1
    assert set(lake.calls.count().values()) == {1}
    assert_right(lake)


# One dataset as two inputs


def _follows(lake: fm.Lake, offsets: bool, **options: Any) -> fm.BatchTransform:
    def names(follows: pd.DataFrame, leaders: pd.DataFrame, followers: pd.DataFrame) -> pd.DataFrame:
        found = follows.merge(leaders.rename(columns={"id": "leader", "name": "leads"}), on="leader", how="left")
        found = found.merge(followers.rename(columns={"id": "follower", "name": "follows"}), on="follower", how="left")
        return found[["id", "leader", "follower", "leads", "follows"]]

    users = [fm.InputSpec("users", keys={name: "id"}) for name in ("leader", "follower")]
    found = {"transform_keys": ["id", "leader", "follower"], "use_offset_optimization": offsets, **options}
    return fm.BatchTransform(names, ["follows", *users], ["out"], **found)


def _fill_follows(lake: fm.Lake) -> tuple[fm.Dataset, fm.Dataset]:
    users, follows = lake.create("users", key="id"), lake.create("follows", key="id")
    users.write(pd.DataFrame({"id": ["u1", "u2", "u3"], "name": ["Ann", "Bob", "Cy"]}))
    rows = [("s1", "u2", "u1"), ("s2", "u3", "u2"), ("s3", "u1", "u3")]
    follows.write(pd.DataFrame(rows, columns=["id", "leader", "follower"]))
    return users, follows


@BOTH
def test_dataset_may_be_looked_up_by_two_keys(offsets, lake):
    users, _ = _fill_follows(lake)
    step = _follows(lake, offsets)
    assert step.run(lake).keys == 3
    users.write(pd.DataFrame({"id": ["u1"], "name": ["Anna"]}))
    assert [step.changelist(lake, way)["id"].to_pylist() for way in (True, False)] == [["s1", "s3"]] * 2
    assert step.run(lake, max_records=1).keys == 1
    assert step.offsets(lake)["input"].to_pylist() == ["follows", "users"]
    assert step.offsets(lake)["offset"].to_pylist() == [2, 2], "a key is left, so the position waits for it"
    assert step.run(lake).keys == 1
    rows = lake["out"].to_arrow().sort_by("id").select(["id", "leads", "follows"]).to_pylist()
    assert [tuple(row.values()) for row in rows] == [("s1", "Bob", "Anna"), ("s2", "Cy", "Bob"), ("s3", "Anna", "Cy")]
    assert step.run(lake).nothing
    assert step.run_changelist(lake, {"users": ["u1"]}).keys == 2


def test_why_and_forward_follow_both_inputs_of_one_dataset(lake):
    _fill_follows(lake)
    _follows(lake, True).run(lake)
    made = lake.why("out", {"id": "s1", "leader": "u2", "follower": "u1"}).inputs
    assert [(one.dataset, one.by, one.rows) for one in made][1:] == [
        ("users", {"id": "u2"}, 1),
        ("users", {"id": "u1"}, 1),
    ]
    assert sorted(one.record.values["id"] for one in lake.why_forward("users", {"id": "u1"}).derived) == ["s1", "s3"]


def test_dataset_that_is_an_input_twice_by_the_same_keys_is_refused():
    with pytest.raises(fm.FloodmarkError, match="reads 'users' twice by the same keys"):
        fm.BatchTransform(lambda a, b: a, ["users", fm.InputSpec("users")], ["out"])


# Outputs whose keys lack transform keys


@BOTH
def test_deleted_records_with_join_keys(offsets, lake):
    users, subscriptions = lake.create("users", key="id"), lake.create("subscriptions", key="id")
    users.write(pd.DataFrame({"id": ["u1", "u2", "u3"], "name": ["Alice", "Bob", "Charlie"]}))
    columns = ["id", "follower_id", "following_id"]
    rows = [("sub1", "u1", "u2"), ("sub2", "u2", "u3"), ("sub3", "u3", "u1")]
    subscriptions.write(pd.DataFrame(rows, columns=columns))

    def enrich(subscriptions: pd.DataFrame, followers: pd.DataFrame, followings: pd.DataFrame) -> pd.DataFrame:
        assert len(followers) == followers["id"].nunique()
        found = subscriptions.merge(followers, left_on="follower_id", right_on="id", how="left", suffixes=("", "_f"))
        found = found.merge(followings, left_on="following_id", right_on="id", how="left", suffixes=("", "_following"))
        return found[["id", "name", "name_following"]].rename(columns={"name": "follower", "name_following": "leader"})

    step = fm.BatchTransform(
        enrich,
        [
            "subscriptions",
            fm.InputSpec("users", keys={"follower_id": "id"}),
            fm.InputSpec("users", keys={"following_id": "id"}),
        ],
        ["enriched"],
        transform_keys=["id"],
        chunk_size=10,
        use_offset_optimization=offsets,
    )

    def shown() -> dict[str, tuple[str, str]]:
        rows = lake["enriched"].to_arrow().select(["id", "follower", "leader"]).to_pylist()
        return {row["id"]: (row["follower"], row["leader"]) for row in rows}

    assert step.run(lake).keys == 3
    assert shown() == {"sub1": ("Alice", "Bob"), "sub2": ("Bob", "Charlie"), "sub3": ("Charlie", "Alice")}
    subscriptions.delete(["sub1"])
    subscriptions.write(pd.DataFrame([("sub2", "u1", "u3")], columns=columns))
    assert step.changelist(lake, True).equals(step.changelist(lake, False))
    assert step.run(lake).keys == 2
    assert shown() == {"sub2": ("Alice", "Charlie"), "sub3": ("Charlie", "Alice")}
    users.write(pd.DataFrame({"id": ["u1", "u2"], "name": ["Alicia", "Bo"]}))
    assert step.run(lake).keys == 2, "user 2 is in no subscription any more"
    assert shown() == {"sub2": ("Alicia", "Charlie"), "sub3": ("Charlie", "Alicia")}
    assert step.run(lake).nothing

    made = lake.why("enriched", {"id": "sub2"}).inputs
    assert [(one.dataset, one.by, one.rows) for one in made][1:] == [
        ("users", {"id": "u1"}, 1),
        ("users", {"id": "u3"}, 1),
    ]
    derived = lake.why_forward("users", {"id": "u1"}).derived
    assert sorted(one.record.values["id"] for one in derived if one.is_current) == ["sub2", "sub3"]


@BOTH
@pytest.mark.parametrize("made", ["declared", "created"])
def test_offset_update_does_not_require_transform_keys_in_output(made, offsets, lake):
    key = ["id", "group_id", "creator_profile_id"]
    items = lake.create("items", key=key)

    def aggregate(items: pd.DataFrame) -> pd.DataFrame:
        return items.groupby("group_id", as_index=False).agg(status=("status", "max"), items=("id", "count"))

    if made == "created":
        lake.create("group_status", key="group_id")
    step = fm.BatchTransform(
        aggregate,
        ["items"],
        ["group_status" if made == "created" else fm.OutputSpec("group_status", key=["group_id"])],
        transform_keys=key,
        chunk_size=10,
        use_offset_optimization=offsets,
    )
    items.write(pd.DataFrame([("p1", "c1", "u1", "on_moderation")], columns=[*key, "status"]))
    assert step.run(lake).keys == 1
    assert lake["group_status"].to_arrow().select(["group_id", "status"]).to_pylist() == [
        {"group_id": "c1", "status": "on_moderation"}
    ]
    assert step.offsets(lake)["offset"].to_pylist() == [0]
    rows = [(f"p{n}", f"c{n % 3}", "u2", "ready") for n in range(30)]
    items.write(pd.DataFrame(rows, columns=[*key, "status"]))
    assert step.run(lake).keys == 3, "one call has all items of a group"
    assert sorted(lake["group_status"].to_pandas()["items"]) == [10, 10, 11]
    items.delete([dict(zip(key, row[:3], strict=True)) for row in rows if row[1] == "c1"])
    assert step.run(lake).changed == 1
    items.delete([{"id": "p1", "group_id": "c1", "creator_profile_id": "u1"}])
    assert step.run(lake).retracted == 1


@BOTH
@pytest.mark.parametrize("schema", [None, {"pipeline_id": "string", "attribute": "string"}], ids=["learnt", "declared"])
def test_output_with_no_transform_key_gets_them_as_columns_and_each_call_has_one_key(schema, offsets, lake):
    """The seed's complex_train_pipeline, without the inputs that are its own outputs."""
    datasets = lake.create("frozen_dataset", key="dataset_id"), lake.create("train_config", key="config_id")
    for dataset, column in zip(datasets, ("dataset_id", "config_id"), strict=True):
        dataset.write(pd.DataFrame({column: [0, 1], "params": ["a", "b"]}))

    def train(frozen_dataset: pd.DataFrame, train_config: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
        dataset_id, config_id = frozen_dataset["dataset_id"].iloc[0], train_config["config_id"].iloc[0]
        models = pd.DataFrame(
            {"pipeline_id": [f"new_{dataset_id}", "best"], "attribute": train_config["params"].iloc[0]}
        )
        return models, pd.DataFrame({"dataset_id": [dataset_id], "config_id": [config_id], "pipeline_id": "best"})

    outputs = [
        fm.OutputSpec("pipeline", key="pipeline_id", schema=schema),
        fm.OutputSpec("is_trained_on", key=["pipeline_id", "dataset_id", "config_id"]),
    ]
    keys = ["dataset_id", "config_id"]
    step = fm.BatchTransform(
        train, list(lake), outputs, transform_keys=keys, use_offset_optimization=offsets, on_error="fail_fast"
    )
    step.run(lake)
    rows = lake["pipeline"].to_arrow().select([*keys, "pipeline_id", "attribute"]).to_pylist()
    assert {tuple(row.values()) for row in rows} == {
        (d, c, p, "ab"[c]) for d in (0, 1) for c in (0, 1) for p in (f"new_{d}", "best")
    }
    assert lake["is_trained_on"].count() == 4
    datasets[0].delete([0])
    report = step.run(lake)
    assert (report.called, report.retracted) == (0, 2 * 2 + 2)
    datasets[1].write(pd.DataFrame({"config_id": [1], "params": ["c"]}))
    assert step.run(lake).changed == 2
    assert step.run(lake).nothing
    assert [one.outcome for one in replay(lake, ["pipeline"], [step])].count("same") > 0


def test_group_of_a_coarse_output_fails_as_a_whole_and_is_never_called_in_parts(world):
    lake = world(COARSE, chunk_size=1)
    lake.write("a", *[(i, i % 2, i) for i in range(8)])
    lake.write("b", (0, 100), (1, 200), (5, 500))
    lake.calls.fail((1,))
    report = lake.run(run={"commit_every": 1})
    assert (report.keys, report.failed) == (2, 1)
    assert [list(map(tuple, call)) for call in lake.calls.all()] == [[((0,), False)], [((1,), True)]]
    lake.calls.behave()
    lake.run()
    assert_right(lake)
    lake.write("b", (5, 600), (0, 1))
    assert lake.changelist(True) == lake.changelist(False) == [(0,)], "group 5 has no item"


@BOTH
def test_order_is_by_position_then_keys_if_a_key_is_reached_through_several_rows(offsets, world):
    lake = world(LINKED, use_offset_optimization=offsets)
    lake.write("cats", (1, 1), (2, 2), (3, 3))
    lake.write("a", (7, 2, 1, 0), (5, 1, 1, 0), (6, 3, 2, 0), (4, 3, 3, 0))
    lake.run()
    lake.write("cats", (3, 30))
    lake.write("cats", (1, 10), (2, 20))
    assert lake.changelist() == [(4,), (6,), (5,), (7,)]
    lake.run(run={"max_records": 1})
    assert lake.changelist() == [(6,), (5,), (7,)]
    lake.run()
    assert_right(lake)


@pytest.mark.parametrize("way", [True, False], ids=["v2", "v1"])
def test_key_with_several_rows_is_listed_by_the_first_new_record_of_what_they_look_up(way, world):
    lake = world(LINKED_GROUPS)
    lake.write("cats", (1, 1), (2, 2), (3, 3))
    lake.write("a", (1, 0, 1, 5), (2, 0, 2, 6), (3, 1, 3, 7))
    lake.run()
    lake.write("cats", (3, 30))
    lake.write("cats", (2, 20))
    assert lake.changelist(way) == [(1,), (0,)]
    lake.run()
    assert_right(lake)


def test_step_waits_while_an_input_has_no_columns_yet(lake):
    lake.create("users", key="user").write(pd.DataFrame({"user": [1], "name": ["Ann"]}))
    follows = lake.create("follows", key="id")

    def names(follows: pd.DataFrame, users: pd.DataFrame) -> pd.DataFrame:
        return follows.merge(users, left_on="leader", right_on="user")[["id", "name"]]

    step = fm.BatchTransform(
        names, ["follows", fm.InputSpec("users", keys={"leader": "user"})], ["out"], transform_keys=["id"]
    )
    assert step.run(lake).nothing
    follows.write(pd.DataFrame({"id": [7], "leader": [1]}))
    assert step.run(lake).new == 1


# Auxiliary inputs


@BOTH
def test_aux_input(offsets, lake):
    items1 = lake.create("items1", key="id")
    items2 = lake.create("items2", key=["id", "id2"])
    aux = lake.create("aux", key="aux_id")
    items1.write(pd.DataFrame({"id": range(10), "a": range(10)}))
    pairs = [(i, j) for j in range(10) for i in range(10)]
    items2.write(pd.DataFrame({"id": [i for i, _ in pairs], "id2": [j for _, j in pairs], "a": range(100)}))
    aux.write(pd.DataFrame({"aux_id": range(10), "a": range(10)}))

    def first(items1: pd.DataFrame, items2: pd.DataFrame, aux: pd.DataFrame) -> pd.DataFrame:
        assert len(aux) == 10
        return items1

    step = fm.BatchTransform(
        first,
        ["items1", "items2", "aux"],
        ["out"],
        transform_keys=["id"],
        chunk_size=3,
        use_offset_optimization=offsets,
    )
    assert sorted(step.changelist(lake)["id"].to_pylist()) == list(range(10))
    plan = step.plan(lake).inputs[2]
    assert plan.reads.endswith("; every call gets all rows")
    assert step.run(lake).keys == 10
    assert step.run(lake).nothing


@BOTH
def test_complex_pipeline(offsets, lake):
    item = lake.create("item", key="item_id")
    pipeline = lake.create("pipeline", key="pipeline_id")
    prediction = lake.create("prediction", key=["item_id", "pipeline_id", "keypoint_name"])
    keypoint = lake.create("keypoint", key=["keypoint_id", "keypoint_name"])
    items, pipelines, keypoints = _ids("i", range(10)), _ids("p", range(3)), _ids("k", range(5))
    item.write(pd.DataFrame({"item_id": items, "item__attribute": items}))
    pipeline.write(pd.DataFrame({"pipeline_id": pipelines, "pipeline__attribute": pipelines}))
    every = [(i, p, k) for i in items for p in pipelines for k in keypoints]
    prediction.write(pd.DataFrame(every, columns=["item_id", "pipeline_id", "keypoint_name"]))
    keypoint.write(pd.DataFrame({"keypoint_id": range(5), "keypoint_name": keypoints}))

    def combine(item, pipeline, prediction, keypoint):
        found = item.merge(prediction, on="item_id").merge(pipeline, on="pipeline_id")
        found = found.merge(keypoint, on="keypoint_name")
        return found.groupby(["item_id", "pipeline_id"], as_index=False).agg(keypoints=("keypoint_id", "nunique"))

    step = fm.BatchTransform(
        combine,
        ["item", "pipeline", "prediction", "keypoint"],
        ["output"],
        transform_keys=["item_id", "pipeline_id"],
        chunk_size=7,
        use_offset_optimization=offsets,
    )
    assert step.run(lake).keys == 30
    assert lake["output"].to_pandas()["keypoints"].tolist() == [5] * 30
    keypoint.delete([{"keypoint_id": 4, "keypoint_name": "k4"}])
    report = step.run(lake)
    assert (report.keys, report.changed) == (30, 30)
    assert lake["output"].to_pandas()["keypoints"].tolist() == [4] * 30


@BOTH
def test_change_of_an_auxiliary_input_processes_every_key_and_other_changes_only_theirs(offsets, world):
    lake = world(AUXILIARY, use_offset_optimization=offsets, chunk_size=2)
    lake.write("a", *[(i, i) for i in range(5)])
    assert lake.run().keys == 5, "an auxiliary input may be empty"
    lake.write("words", (1, 10), (2, 20))
    assert lake.changelist(True) == lake.changelist(False) == [(i,) for i in range(5)]
    lake.run()
    assert_right(lake)
    lake.write("a", (3, 30))
    assert lake.changelist(True) == lake.changelist(False) == [(3,)]
    lake.run()
    assert_right(lake)
    lake.delete("words", 1, 2)
    assert lake.run().keys == 5
    assert_right(lake)
    assert lake.run().nothing


def test_keys_of_an_auxiliary_input_stand_for_every_key(world):
    lake = world(AUXILIARY)
    lake.write("a", *[(i, i) for i in range(3)])
    lake.write("words", (1, 10))
    lake.run()
    assert lake.step().run_changelist(lake.lake, {"words": [{"n": 1}]}).keys == 3


def test_required_auxiliary_input_without_rows_leaves_no_key(lake):
    lake.create("a", key="id").write(pd.DataFrame({"id": [1, 2]}))
    words = lake.create("words", key="word", schema={"word": "string"})

    def count(a: pd.DataFrame, words: pd.DataFrame) -> pd.DataFrame:
        return a.assign(words=len(words))

    step = fm.BatchTransform(count, ["a", fm.Required("words")], ["out"], transform_keys=["id"])
    assert step.run(lake).keys == 0
    words.write(pd.DataFrame({"word": ["x"]}))
    assert step.run(lake).new == 2
    words.delete(["x"])
    report = step.run(lake)
    assert (report.called, report.retracted) == (0, 2)


def test_why_names_all_rows_of_an_auxiliary_input(world):
    lake = world(AUXILIARY)
    lake.write("a", (1, 1), (2, 2))
    lake.write("words", (1, 10), (2, 20))
    lake.run()
    made = lake.lake.why("out", {"id": 1}).inputs
    assert [(one.dataset, one.by, one.rows) for one in made] == [("a", {"id": 1}, 1), ("words", None, 2)]
