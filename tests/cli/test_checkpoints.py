"""`floodmark checkpoints` shows what backfills have stored, and removes what nobody needs any more."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from floodmark.derive.checkpoint_key import CheckpointPrefix, hash_text, range_key

DAY = 86_400


@pytest.fixture
def filled(run, images):
    """The images with all of their brightness computed."""
    assert run("backfill", "images", "brightness").code == 0
    return images


@pytest.fixture
def grow_old(folder):
    """Everything in the lake was written eight days ago."""

    def age():
        then = time.time() - 8 * DAY
        for path in folder.glob("lake/datasets/*/columns/**/*"):
            if path.is_file():
                os.utime(path, (then, then))

    return age


def computations(run, *names):
    return run("checkpoints", "list", *names, "--json").json["computations"]


def brightness(modules, divisor):
    modules.write("vision", modules.vision.replace("100)", f"{divisor})"))
    return modules.load("vision").brightness


# list


def test_list_has_a_line_per_computation(run, filled):
    run("backfill", "images", "label", "--where", "id < 8")
    head, first, second = run("checkpoints", "list").lines
    assert head.split() == [
        *("dataset", "column", "function", "version", "state", "fragments"),
        *("ranges", "files", "rows", "size", "newest"),
    ]
    assert first.split()[:3] == ["images", "brightness", "brightness"]
    assert first.split()[4:6] == ["current", "3"]
    assert second.split()[:3] == ["images", "label", "label"]
    assert second.split()[4:6] == ["current", "2"]


def test_json_has_exact_numbers(run, filled):
    (found,) = computations(run, "images")
    infos = list(filled.checkpoints.infos())
    assert found["version"] == filled.column("brightness").function.version
    assert (found["ranges"] + found["files"], found["fragments"], found["rows"]) == (len(infos), 3, 10)
    assert found["size"] == sum(info.size for info in infos)
    newest = datetime.fromisoformat(found["newest"])
    assert abs(newest - datetime.now(UTC)) < timedelta(minutes=5)


def test_rows_that_two_ranges_span_count_once(run, filled, modules):
    prefix = filled.checkpoints.prefixes()[0]
    for start, end in ((0, 3), (1, 4)):
        batch = filled.checkpoints.get(filled.checkpoints.list_keys()[0])
        filled.checkpoints.put(range_key(prefix, 7, start, end), batch)
    (found,) = computations(run)
    assert (found["fragments"], found["rows"]) == (4, 14)


def test_computations_of_one_column_under_two_filters_are_one(run, images):
    run("backfill", "images", "brightness", "--where", "id < 4")
    run("backfill", "images", "brightness", "--where", "id >= 4")
    assert len(images.checkpoints.prefixes()) == 2
    (found,) = computations(run)
    assert found["rows"] == 10


def test_state_says_that_the_function_is_another_now(run, filled, modules):
    filled.alter_column("brightness", brightness(modules, 255))
    assert [c["state"] for c in computations(run)] == ["older function"]
    run("backfill", "images", "brightness")
    assert sorted(c["state"] for c in computations(run)) == ["current", "older function"]


def test_state_says_that_the_column_is_gone(run, filled):
    filled.drop_column("label")
    filled.drop_column("brightness")
    assert [c["state"] for c in computations(run)] == ["column dropped"]


def test_state_says_that_the_inputs_are_others_now(run, filled, modules):
    run("backfill", "images", "label")
    filled.alter_column("brightness", brightness(modules, 255))
    run("backfill", "images", "brightness")
    assert [(c["column"], c["state"]) for c in computations(run) if c["column"] == "label"] == [
        ("label", "older inputs")
    ]


def test_checkpoints_of_older_formats_are_listed_too(run, images):
    prefix = CheckpointPrefix("brightness", "1", "brightness", *[hash_text(None)] * 3)
    batch = pa.record_batch({"_rowaddr": pa.array([0], pa.int64())})
    images.checkpoints.put(range_key(prefix.text.removeprefix("fmt-1_"), 0, 0, 1), batch)
    images.checkpoints.put("a" * 64, batch)
    found = {(c["column"], c["version"], c["state"], c["ranges"]) for c in computations(run)}
    assert found == {("brightness", "1", "another dataset", 1), ("", "", "older format", 0)}


def test_keys_are_those_of_the_store(run, filled):
    assert run("checkpoints", "list", "images", "--keys").lines == filled.checkpoints.list_keys()
    found = run("checkpoints", "list", "--keys", "--json").json["checkpoints"]
    assert [c["key"] for c in found] == filled.checkpoints.list_keys()
    assert {c["dataset"] for c in found} == {"images"}


def test_lake_without_checkpoints_says_so(run, trips):
    for verb in (["list"], ["gc"], ["list", trips], ["list", "--keys"]):
        answer = run("checkpoints", *verb)
        assert (answer.code, answer.out) == (0, "")
        assert "no checkpoints in " in answer.err


def test_dataset_that_is_not_there_is_refused(run, trips):
    for verb in ("list", "gc"):
        answer = run("checkpoints", verb, "tripz")
        assert (answer.code, answer.out) == (1, "")
        assert "did you mean 'trips'?" in answer.err


# gc


def test_what_is_young_stays(run, filled):
    before = filled.checkpoints.list_keys()
    answer = run("checkpoints", "gc")
    many = len(before)
    assert answer.out == f"images: nothing to remove; {many} checkpoints stay: {many} younger than a week\n"
    assert filled.checkpoints.list_keys() == before


def drop_all(dataset):
    dataset.drop_column("label")
    dataset.drop_column("brightness")


def test_checkpoints_of_a_column_that_is_gone_go_when_they_are_old(run, filled, grow_old):
    drop_all(filled)
    grow_old()
    many = len(filled.checkpoints.list_keys())
    dry = run("checkpoints", "gc", "images", "--dry-run", "--json").json
    (found,) = dry["datasets"]
    assert (dry["dry_run"], found["checkpoints"], found["needed"]) == (True, many, 0)
    assert found["size"] > 0
    assert set(filled.checkpoints.list_keys()) <= set(found["keys"])
    answer = run("checkpoints", "gc")
    assert answer.out.startswith(f"images: removed {many} checkpoints")
    assert filled.checkpoints.list_keys() == []
    assert run("verify", "images").code == 0


def test_finished_files_of_a_column_are_remembered_however_old(run, filled, grow_old):
    """So that the column can be dropped and added again without a call."""
    grow_old()
    before = filled.checkpoints.list_keys()
    assert run("checkpoints", "gc").out.startswith("images: nothing to remove")
    assert filled.checkpoints.list_keys() == before


def test_dry_run_says_what_would_go_and_removes_nothing(run, filled, grow_old):
    drop_all(filled)
    grow_old()
    before = filled.checkpoints.list_keys()
    answer = run("checkpoints", "gc", "--dry-run")
    assert answer.out.startswith(f"images: would remove {len(before)} checkpoints")
    assert filled.checkpoints.list_keys() == before


def test_what_a_backfill_would_use_stays_however_old(run, filled, modules, grow_old):
    """Dropped and added again: nothing is committed, and everything can be reused."""
    filled.drop_column("label")
    filled.drop_column("brightness")
    filled.add_column("brightness", modules.load("vision").brightness)
    grow_old()
    many = len(filled.checkpoints.list_keys())
    answer = run("checkpoints", "gc")
    assert answer.out.endswith(f"; {many} checkpoints stay: {many} that a backfill would use\n")
    assert run("backfill", "images", "brightness", "--json").json["computed"] == 0


def test_old_values_of_an_altered_column_go_with_their_checkpoints(run, filled, modules, grow_old):
    filled.alter_column("brightness", brightness(modules, 255))
    run("backfill", "images", "brightness")
    grow_old()
    (found,) = run("checkpoints", "gc", "--json").json["datasets"]
    assert found["files"] > 0
    assert found["young"] == 0
    assert run("checkpoints", "gc", "--json").json["datasets"][0]["keys"] == []
    assert run("verify").code == 0
    assert max(filled.to_arrow()["brightness"].to_pylist()) == pytest.approx(95 / 255)
