"""Which lake a command works on: --lake, FLOODMARK_LAKE, floodmark.toml, ./lake."""

from __future__ import annotations

from pathlib import Path

import pytest

READERS = [
    ["list"],
    ["log", "trips"],
    ["tail", "trips"],
    ["changes", "trips"],
    ["sql", "select * from trips"],
    ["schema", "trips"],
    ["verify"],
    ["verify", "trips"],
    ["ingest", "trips", "file.csv"],
    ["purge", "trips", "--before", "1"],
    ["drop", "trips", "--yes"],
    ["rename", "trips", "rides"],
]


def lake_of(run, *arguments):
    return Path(run("list", "--json", *arguments).json["lake"])


def test_default_is_the_folder_lake_here(run, folder):
    run("init")
    assert lake_of(run) == folder / "lake"


def test_environment_variable_names_the_lake(run, folder, monkeypatch):
    monkeypatch.setenv("FLOODMARK_LAKE", str(folder / "other"))
    run("init")
    assert lake_of(run) == folder / "other"


def test_option_wins_over_the_environment_variable(run, folder, monkeypatch):
    run("init", "--lake", "mine")
    monkeypatch.setenv("FLOODMARK_LAKE", str(folder / "other"))
    assert lake_of(run, "--lake", "mine") == folder / "mine"


def test_environment_variable_wins_over_the_toml(run, folder, monkeypatch):
    (folder / "floodmark.toml").write_text('lake = "from-toml"')
    monkeypatch.setenv("FLOODMARK_LAKE", "from-variable")
    run("init")
    assert lake_of(run) == folder / "from-variable"


def test_empty_environment_variable_names_nothing(run, folder, monkeypatch):
    monkeypatch.setenv("FLOODMARK_LAKE", "")
    run("init")
    assert lake_of(run) == folder / "lake"


def test_toml_of_a_parent_folder_is_relative_to_itself(run, folder, monkeypatch):
    (folder / "floodmark.toml").write_text('lake = "data/lake"')
    run("init")
    deep = folder / "a" / "b"
    deep.mkdir(parents=True)
    monkeypatch.chdir(deep)
    assert lake_of(run) == folder / "data" / "lake"


def test_toml_without_a_lake_leaves_it_to_the_one_above(run, folder, monkeypatch):
    (folder / "floodmark.toml").write_text('lake = "data"')
    run("init")
    (folder / "a").mkdir()
    (folder / "a" / "floodmark.toml").write_text("[pipeline]\n")
    monkeypatch.chdir(folder / "a")
    assert lake_of(run) == folder / "data"


@pytest.mark.parametrize("content", [b"lake = [", b"lake = 'a'\n\xff"])
def test_toml_that_cannot_be_read_is_named(run, folder, content):
    (folder / "floodmark.toml").write_bytes(content)
    answer = run("list")
    assert answer.code == 1
    assert str(folder / "floodmark.toml") in answer.err


@pytest.mark.parametrize("value", ["3", '""', "['a']"])
def test_toml_whose_lake_is_no_address_is_refused(run, folder, value):
    (folder / "floodmark.toml").write_text(f"lake = {value}")
    answer = run("list", "--json")
    assert answer.code == 1
    assert answer.json["error"]["type"] == "BadToml"


@pytest.mark.parametrize(
    ("entry", "hint"),
    [
        ('lak = "mine"', "did you mean 'lake'?"),
        ('Lake = "mine"', "did you mean 'lake'?"),
        ("[x]", "the entries are lake, "),
    ],
)
def test_toml_with_an_entry_that_nobody_reads_is_refused(run, folder, entry, hint):
    """Passed over, a mistyped lake would be another one."""
    run("init")
    (folder / "floodmark.toml").write_text(entry)
    answer = run("list")
    assert answer.code == 1
    assert str(folder / "floodmark.toml") in answer.err
    assert hint in answer.err


def test_broken_toml_does_not_matter_when_the_lake_is_named(run, folder):
    (folder / "floodmark.toml").write_text("lake = [")
    run("init", "--lake", "mine")
    assert run("list", "--lake", "mine").code == 0


@pytest.mark.parametrize("command", READERS, ids=" ".join)
def test_without_a_lake_a_verb_says_how_to_make_one_and_makes_nothing(run, folder, command):
    (folder / "file.csv").write_text("a\n1\n")
    answer = run(*command)
    assert answer.code == 1
    assert f"{folder / 'lake'} does not exist" in answer.err
    assert "floodmark init --lake lake" in answer.err
    assert [p.name for p in folder.iterdir()] == ["file.csv"]


def test_folder_that_is_no_lake_stays_as_it_is(run, folder):
    (folder / "lake").mkdir()
    (folder / "lake" / "photo.jpg").touch()
    answer = run("ingest", "trips", "file.csv")
    assert answer.code == 1
    assert "is not a lake" in answer.err
    assert [p.name for p in (folder / "lake").iterdir()] == ["photo.jpg"]


def test_message_says_who_named_the_lake(run, folder):
    (folder / "floodmark.toml").write_text('lake = "nowhere"')
    assert f"named by {folder / 'floodmark.toml'}" in run("list").err


def test_address_that_no_store_knows_is_refused(run):
    answer = run("list", "--lake", "ftp://host/lake")
    assert answer.code == 1
    assert "ftp://" in answer.err
