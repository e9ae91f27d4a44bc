"""`floodmark init` makes a lake, once."""

from __future__ import annotations

import tomllib


def test_init_makes_a_lake_that_list_can_read(run, folder):
    answer = run("init")
    assert answer.code == 0
    assert str(folder / "lake") in answer.out
    listed = run("list")
    assert (listed.code, listed.out) == (0, "")
    assert "no datasets" in listed.err


def test_init_again_changes_nothing(run, trips):
    before = run("list", "--json").json["datasets"]
    answer = run("init", "--json")
    assert answer.code == 0
    assert answer.json["created"] is False
    assert run("list", "--json").json["datasets"] == before


def test_lake_made_by_the_python_api_is_a_lake(run, folder):
    from floodmark import Lake

    Lake(folder / "lake").create("trips")
    assert [d["name"] for d in run("list", "--json").json["datasets"]] == ["trips"]


def test_init_writes_no_toml_unless_asked(run, folder):
    run("init")
    assert not (folder / "floodmark.toml").exists()


def test_init_with_toml_names_the_lake_relative_to_the_file(run, folder):
    answer = run("init", "--lake", str(folder / "data" / "lake"), "--toml", "--json")
    assert answer.json == {
        "lake": str(folder / "data" / "lake"),
        "created": True,
        "toml": str(folder / "floodmark.toml"),
    }
    assert tomllib.loads((folder / "floodmark.toml").read_text()) == {"lake": "data/lake"}
    assert run("init", "--toml").code == 0


def test_init_leaves_a_toml_that_says_something_else(run, folder):
    (folder / "floodmark.toml").write_text('lake = "theirs"\n')
    answer = run("init", "--lake", "mine", "--toml")
    assert answer.code == 1
    assert 'lake = "mine"' in answer.err
    assert (folder / "floodmark.toml").read_text() == 'lake = "theirs"\n'
    assert not (folder / "mine").exists()


def test_file_cannot_become_a_lake(run, folder):
    (folder / "lake").write_text("")
    answer = run("init")
    assert answer.code == 1
    assert "is a file" in answer.err
