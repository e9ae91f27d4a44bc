"""`floodmark log` reads like a log: newest first, a line per block."""

from __future__ import annotations


def test_newest_block_comes_first(run, trips):
    newest, *older = run("log", trips).lines
    assert "+3 records, offsets 0–2" in newest
    assert "created root dataset" in older[-1]


def test_line_has_short_hash_number_time_and_kind(run, trips):
    entry = run("log", trips, "--json").json["entries"][0]
    line = run("log", trips, "-n", "1").lines[0]
    short, number, day, clock, kind, *_ = line.split()
    assert entry["hash"].endswith(short)
    assert number == str(entry["sequence_number"])
    assert f"{day}T{clock}"[:19] == entry["system_time"][:19]
    assert kind == entry["kind"] == "AddData"


def test_number_limits_and_says_what_is_left(run, trips):
    everything = run("log", trips).lines
    answer = run("log", trips, "-n", "2")
    assert answer.lines == everything[:2]
    assert f"{len(everything) - 2} older blocks" in answer.err


def test_whole_log_leaves_nothing(run, trips):
    assert run("log", trips).err == ""


def test_json_has_half_open_offsets_for_data_and_none_for_the_rest(run, trips):
    entries = run("log", trips, "--json").json["entries"]
    assert (entries[0]["start"], entries[0]["end"]) == (0, 3)
    assert (entries[-1]["kind"], entries[-1]["start"], entries[-1]["end"]) == ("Seed", None, None)


def test_log_is_read_as_it_is_shown(run, trips, trips_file, folder):
    """Two blocks can be shown although an older one is gone, which the whole log trips over."""
    for _ in range(2):
        run("ingest", trips, str(trips_file))
    oldest = run("log", trips, "--json").json["entries"][-1]["hash"]
    (block,) = [p for p in (folder / "lake").rglob(f"*{oldest}*") if p.is_file()]
    block.unlink()
    assert run("log", trips, "-n", "2").code == 0
    whole = run("log", trips, "--json")
    assert whole.code == 1
    assert list(whole.json) == ["error"]
