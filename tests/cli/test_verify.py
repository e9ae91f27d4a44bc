"""`floodmark verify` says ok, or exactly what is wrong."""

from __future__ import annotations

import pytest

from floodmark import Lake


@pytest.fixture
def two(run, trips, trips_file):
    run("ingest", "rides", str(trips_file))


def damage(folder, name):
    """Flip one byte in the data of a dataset."""
    dataset = folder / "lake" / "datasets" / Lake(folder / "lake")[name].id.bytes.hex()
    (data,) = [p for p in (dataset / "data").iterdir() if not p.name.startswith(".")]
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 1
    data.chmod(0o644)
    data.write_bytes(content)


def test_sound_datasets_have_a_line_each(run, two):
    answer = run("verify")
    assert answer.code == 0
    assert [line.split(" (")[0] for line in answer.lines] == ["rides: ok", "trips: ok"]
    assert "1 slice" in answer.lines[1]


def test_only_the_named_datasets_are_checked(run, two, folder):
    damage(folder, "rides")
    assert run("verify", "trips").code == 0


def test_problem_is_named_and_the_exit_code_is_3(run, two, folder):
    damage(folder, "rides")
    answer = run("verify")
    assert answer.code == 3
    assert "trips: ok" in answer.out
    found = Lake(folder / "lake")["rides"].verify().problems
    assert answer.lines[0] == f"rides: {len(found)} problem{'s' if len(found) > 1 else ''}"
    assert answer.lines[1:-1] == [f"  {p.kind} {p.object}: {p.message.strip()}" for p in found]


def test_problems_as_json(run, two, folder):
    damage(folder, "rides")
    answer = run("verify", "--json")
    assert answer.code == 3
    assert answer.json["ok"] is False
    rides, trips = answer.json["datasets"]
    assert (rides["name"], rides["ok"]) == ("rides", False)
    assert {problem["kind"] for problem in rides["problems"]} == {"data"}
    assert (trips["name"], trips["ok"], trips["problems"]) == ("trips", True, [])


def test_unknown_name_is_refused_before_anything_is_checked(run, two):
    answer = run("verify", "rides", "tripz")
    assert (answer.code, answer.out) == (1, "")
    assert "did you mean 'trips'?" in answer.err


def test_purged_slices_are_said(run, trips):
    run("purge", trips, "--before", "3", "--yes")
    assert "1 slice purged" in run("verify").out


def test_empty_lake_has_nothing_to_verify(run):
    run("init")
    answer = run("verify")
    assert (answer.code, answer.out) == (0, "")
    assert "no datasets" in answer.err
