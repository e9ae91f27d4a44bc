"""Verify finds what is wrong with computed columns, and nothing when all is well, whoever works on them meanwhile."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest
from pyroaring import BitMap

from columns.checkpoint_worlds import range_batch
from columns.column_worlds import ROWS, add, column, fill, manifest, objects_at, rewrite, segment, with_errors
from floodmark.columns import definition, verify
from floodmark.columns.column_file import write_segment
from floodmark.columns.manifest import Fragment
from floodmark.columns.purge import drop_purged
from floodmark.columns.verify import find_column_problems
from floodmark.derive.checkpoint_key import range_key
from profiles import sample
from rows.harm import HARM
from rows.harm import replace as put


@pytest.fixture(params=["folder", "bucket"])
def objects(request, tmp_path):
    made = objects_at(request.param, tmp_path)
    add(made, "a")
    add(made, "b", ["a"])
    fill(made, "a", 0, [float(n) for n in range(ROWS)])
    fill(made, "a", ROWS, [1.0, 2.0])
    fill(made, "b", 0, [1.0, None])
    with_errors(made, "b", [1])
    return made


def test_whole_columns_have_no_problems(objects):
    assert find_column_problems(objects) == []


def test_a_dataset_without_columns_has_no_problems(tmp_path):
    assert find_column_problems(objects_at("folder", tmp_path)) == []


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("harm", HARM)
@pytest.mark.parametrize("folder", ["files", "manifests", "errors"])
def test_damage_to_any_file_in_use_is_found(objects, folder, harm):
    used = [key for name in "ab" for key in manifest(objects, name).keys(objects)]
    used += [objects.manifest_key(column(objects, name).manifest) for name in "ab"]
    for key in [key for key in used if f"/{folder}/" in key]:
        data = objects.store.get(key)
        for harmed in {HARM[harm](data, at) for at in sample(range(5, len(data), 31), 4)} - {data}:
            put(objects.store, key, harmed)
            (problem,) = find_column_problems(objects)
            assert (problem.kind, problem.object) == ("column", key)
            assert problem.column in ("a", "b")
        put(objects.store, key, data)
    assert find_column_problems(objects) == []


def test_a_damaged_catalog_is_the_only_problem(objects):
    put(objects.store, objects.catalog_key, b"FMCOLS1\n")
    (problem,) = find_column_problems(objects)
    assert problem.object == objects.catalog_key


def test_a_file_of_another_field_is_found(objects):
    owner = column(objects, "b")
    foreign = segment(objects, owner, 0, [1.0] * ROWS)
    rewrite(objects, "a", Fragment(0, (foreign,), BitMap([0])))
    (problem,) = find_column_problems(objects)
    assert "field 2, not for 1" in problem.message


def test_a_file_with_other_rows_than_the_manifest_says_is_found(objects):
    owner = column(objects, "a")
    short = replace(segment(objects, owner, 0, [1.0]), end=ROWS)
    rewrite(objects, "a", Fragment(0, (short,), BitMap([0])))
    (problem,) = find_column_problems(objects)
    assert "has 1 rows" in problem.message


def part(objects, start, rows):
    return write_segment(objects, column(objects, "a").field, start, [pa.nulls(rows, pa.float64())])


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda o: Fragment(0, (part(o, 4, ROWS),)), "outside of its window 0–7"),
        (lambda o: Fragment(0, (part(o, 0, 4), part(o, 3, 2))), "two files for offset 3"),
        (lambda o: Fragment(0, (part(o, 4, 2), part(o, 0, 2))), "out of order"),
        (
            lambda o: Fragment(0, (part(o, 0, 4),), BitMap([1, 5])),
            "no file for 1 computed rows, the first at offset 5",
        ),
        (lambda o: Fragment(1, (part(o, ROWS, 4),), BitMap(), BitMap(), BitMap([6])), "the first at offset 14"),
        (
            lambda o: Fragment(0, (part(o, 0, 4),), BitMap([1, 2]), BitMap([2])),
            "1 rows in two states, the first at offset 2",
        ),
        (lambda o: Fragment(0, (part(o, 0, 4),), BitMap([1]), BitMap(), BitMap([1])), "in two states"),
        (lambda o: Fragment(0, (part(o, 0, 4),), BitMap(), BitMap([3]), BitMap([3])), "in two states"),
    ],
)
def test_a_manifest_that_contradicts_itself_is_found(objects, wrong, says):
    rewrite(objects, "a", wrong(objects))
    (problem,) = find_column_problems(objects)
    assert says in problem.message
    assert problem.object == objects.manifest_key(column(objects, "a").manifest)


@pytest.mark.parametrize("state", ["done", "kept", "hidden"])
def test_values_that_no_set_knows_of_are_found(objects, state):
    """Nobody would hide them when their inputs change."""
    made = segment(objects, column(objects, "a"), 2 * ROWS + 1, [1.0, None, 3.0, 4.0])
    rewrite(objects, "a", Fragment(2, (made,), **{state: BitMap([1, 3, 4])}))
    assert find_column_problems(objects) == []
    rewrite(objects, "a", Fragment(2, (made,), **{state: BitMap([1])}))
    (problem,) = find_column_problems(objects)
    assert (problem.object, problem.column) == (made.key(objects), "a")
    assert "2 values" in problem.message
    assert f"the first at offset {2 * ROWS + 3}" in problem.message


def test_what_columns_have_of_purged_records_is_found(objects):
    """A purge that ended before the columns heard of it."""
    first, second = find_column_problems(objects, 2)
    assert (first.column, second.column) == ("a", "b")
    assert "purge(2) again" in first.message
    assert [problem.column for problem in find_column_problems(objects, ROWS + 1)] == ["a", "b"]
    drop_purged(objects, 2)
    assert find_column_problems(objects, 2) == []


def test_files_and_checkpoints_that_a_purge_left_behind_are_found(objects):
    drop_purged(objects, 4)
    stay = range_key("a", 1, 0, 2)
    left = {range_key("a", 0, 3, 5), "f" * 64}
    for key in (stay, *left):
        objects.checkpoints.put(key, range_batch([3]))
    segment(objects, column(objects, "a"), 4, [1.0])
    file = segment(objects, column(objects, "a"), 3, [1.0, 2.0]).key(objects)
    assert {problem.object for problem in find_column_problems(objects)} == {file, *left}
    drop_purged(objects, 4)
    assert find_column_problems(objects) == []


def test_beside_a_purge_that_ended_halfway_a_damaged_manifest_is_found(objects):
    drop_purged(objects, 4)
    objects.checkpoints.put(range_key("a", 0, 0, 2), range_batch([0]))
    key = objects.manifest_key(column(objects, "a").manifest)
    put(objects.store, key, b"nonsense")
    assert [problem.object for problem in find_column_problems(objects)] == [key]


def test_errors_of_rows_in_other_fragments_are_found(objects):
    with_errors(objects, "b", [1, ROWS])
    (problem,) = find_column_problems(objects)
    assert "errors of fragment 0 belong to other rows" in problem.message


def test_what_was_dropped_meanwhile_is_no_problem(objects, monkeypatch):
    real, left = verify._segment_problem, [1]

    def drop_first(*args):
        if left[0]:
            left[0] = 0
            definition.drop(objects, "b")
            for info in list(objects.files()):
                if info.key in gone:
                    objects.store.delete(info.key)
        return real(*args)

    gone = manifest(objects, "b").keys(objects)
    monkeypatch.setattr(verify, "_segment_problem", drop_first)
    assert find_column_problems(objects) == []
