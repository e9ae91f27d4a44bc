"""Files as a source: new ones are taken in, by content, and nothing is taken in twice."""

from __future__ import annotations

import os
import shutil
import threading
from contextlib import AbstractContextManager, nullcontext, suppress
from datetime import date
from pathlib import Path
from random import Random

import pytest

import floodmark as fm
from faults.recording import HastyFileSystem
from floodmark.errors import BadColumnName, CodeLocation, UnreadableFile
from floodmark.sources import file_log, files, ingest
from floodmark.sources.file_log import FileLog
from floodmark.sources.files import IngestFiles
from floodmark.storage.local import LocalStore
from floodmark.storage.memory import MemoryStore
from profiles import seeds

KEYED = fm.DatasetSpec("orders", key="id")


@pytest.fixture
def lake(tmp_path: Path) -> fm.Lake:
    return fm.Lake(LocalStore(tmp_path / "lake", fs=HastyFileSystem()))


@pytest.fixture
def put(tmp_path: Path):
    """`put("a.csv", 1, 2)` is a file with these ids, last written to an hour ago."""

    def write(name: str, *ids: int, price: int = 1) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("id,price\n" + "".join(f"{one},{price}\n" for one in ids))
        os.utime(path, (1_700_000_000, 1_700_000_000))
        return path

    return write


def source(tmp_path: Path, *patterns: str, declared: fm.DatasetSpec | None = None) -> IngestFiles:
    (tmp_path / "pipeline.py").touch()
    return IngestFiles("in", "orders", patterns, None, None, declared, CodeLocation(str(tmp_path / "pipeline.py"), 1))


def ids(lake: fm.Lake) -> list[int]:
    return sorted(lake["orders"].to_arrow()["id"].to_pylist())


def test_new_files_are_taken_in_and_old_ones_are_not(lake, put, tmp_path):
    put("data/a.csv", 1, 2)
    step = source(tmp_path, "data/*.csv")
    assert (step.run(lake).new, ids(lake)) == (2, [1, 2])
    again = step.run(lake)
    assert (again.nothing, again.keys) == (True, 0)
    put("data/b.csv", 3)
    assert step.pending(lake) == ["data/b.csv"]
    assert (step.run(lake).new, ids(lake)) == (1, [1, 2, 3])
    assert step.pending(lake) == []


def test_each_file_is_a_commit_with_its_hash_and_its_name_as_the_state(lake, put, tmp_path):
    put("a.csv", 1)
    put("b.csv", 2)
    assert source(tmp_path, "*.csv").run(lake).commits == 2
    state = lake["orders"].snapshot().state.source_state
    assert (state.source_name, state.value[:7], state.value[71:]) == ("files", "sha256:", ":1:b.csv")


def test_two_files_of_equal_content_are_two_files(lake, put, tmp_path):
    put("data/monday.csv", 10)
    step = source(tmp_path, "data/*.csv")
    step.run(lake)
    put("data/tuesday.csv", 10)
    report = step.run(lake)
    assert (report.new, ids(lake)) == (1, [10, 10])
    assert report.files.copies == (("data/tuesday.csv", "data/monday.csv"),)
    assert report.notes == ["1 file with the content of another, both count: data/tuesday.csv = data/monday.csv"]
    assert step.run(lake).files.is_empty
    put("data/thursday.csv", 20)
    put("data/friday.csv", 20)
    assert step.run(lake).files.copies == (("data/thursday.csv", "data/friday.csv"),)  # both in one run
    assert ids(lake) == [10, 10, 20, 20]


def test_file_that_is_written_again_with_the_same_content_is_reported(lake, put, tmp_path):
    path = put("a.csv", 1, 2)
    step = source(tmp_path, "*.csv")
    step.run(lake)
    os.utime(path, (1_700_000_100, 1_700_000_100))
    report = step.run(lake)
    assert (report.nothing, report.files.repeated, ids(lake)) == (True, ("a.csv",), [1, 2])
    assert report.notes == ["1 file written again with the same content: a.csv"]
    assert step.run(lake).notes == []


@pytest.mark.parametrize("declared", [None, KEYED])
def test_file_under_a_new_name_whose_old_name_is_gone_is_renamed(lake, put, tmp_path, declared):
    path = put("a.csv", 1, 2)
    step = source(tmp_path, "*.csv", declared=declared)
    step.run(lake)
    path.rename(tmp_path / "c.csv")
    assert (step.pending(lake), step.unseen(lake)) == ([], 0)
    report = step.run(lake)
    assert (report.new, report.changed, report.files.renamed, ids(lake)) == (0, 0, (("a.csv", "c.csv"),), [1, 2])
    assert report.notes == ["1 file renamed, with no new rows: a.csv → c.csv"]
    assert step.run(lake).files.is_empty
    put("a.csv", 1, 2)  # a file like it under the old name is another one
    assert step.run(lake).files.new == ("a.csv",)


def test_file_that_is_gone_keeps_its_rows_and_is_reported_once(lake, put, tmp_path):
    paths = [put(f"{name}.csv", number) for number, name in enumerate("abcde")]
    step = source(tmp_path, "*.csv")
    step.run(lake)
    for path in paths[1:]:
        path.unlink()
    report = step.run(lake)
    assert (report.nothing, report.files.vanished) == (True, ("b.csv", "c.csv", "d.csv", "e.csv"))
    assert report.notes == ["4 files gone, their rows stay: b.csv, c.csv, d.csv and 1 more"]
    assert step.run(lake).files.is_empty
    assert ids(lake) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("merge", ["append", "ledger", "snapshot"])
def test_file_that_became_empty_keeps_its_rows_and_is_reported_once(lake, put, tmp_path, merge):
    put("a.csv", 1)
    emptied = put("b.csv", 1, 2)
    declared = fm.DatasetSpec("orders", key=None if merge == "append" else "id", merge=merge)
    step = source(tmp_path, "*.csv", declared=declared)
    step.run(lake)
    before = ids(lake)
    emptied.write_text("")
    assert step.plan(lake).files.notes == ["1 file empty now, its rows stay: b.csv"]
    report = step.run(lake)
    assert (report.nothing, report.notes) == (True, ["1 file empty now, its rows stay: b.csv"])
    assert step.run(lake).files.is_empty
    put("b.csv", 1, 2)
    assert step.run(lake).files.repeated == ("b.csv",)
    assert ids(lake) == before


def test_file_like_one_that_went_in_an_earlier_run_is_new(lake, put, tmp_path):
    """People archive an inbox after each load, and two days may have the same content."""
    put("monday.csv", 10).unlink(missing_ok=False)
    put("monday.csv", 10)
    step = source(tmp_path, "*.csv")
    step.run(lake)
    (tmp_path / "monday.csv").unlink()
    assert step.run(lake).files.vanished == ("monday.csv",)
    put("tuesday.csv", 10)
    report = step.run(lake)
    assert (report.new, report.files.renamed, ids(lake)) == (1, (), [10, 10])
    assert report.files.copies == (("tuesday.csv", "monday.csv"),)
    put("monday.csv", 10)
    report = step.run(lake)
    assert (report.nothing, report.files.repeated) == (True, ("monday.csv",))


def test_file_that_another_source_reads_is_not_gone(lake, put, tmp_path):
    put("left/a.csv", 1)
    put("right/b.csv", 2)
    left, right = source(tmp_path, "left/*.csv"), source(tmp_path, "right/*.csv")
    for step in (left, right, left, right):
        assert step.run(lake).files.vanished == ()
    (tmp_path / "right" / "b.csv").unlink()
    assert left.run(lake).files.vanished == ()
    assert right.run(lake).files.vanished == ("right/b.csv",)


def test_file_found_by_two_patterns_is_one(lake, put, tmp_path):
    put("data/a.csv", 1)
    (tmp_path / "other").mkdir()
    step = source(tmp_path, "data/*.csv", "other/../data/*.csv", str(tmp_path / "data" / "a.csv"))
    assert (step.run(lake).new, ids(lake)) == (1, [1])


def test_copied_folder_has_no_new_files(lake, put, tmp_path):
    """The times of its files are new, and the content is not."""
    put("project/data/a.csv", 1)
    put("project/data/b.csv", 2)
    source(tmp_path / "project", "data/*.csv").run(lake)
    for path in shutil.copytree(tmp_path / "project", tmp_path / "copy", copy_function=shutil.copyfile).rglob("*.csv"):
        os.utime(path, (1_700_000_777, 1_700_000_777))
    step = source(tmp_path / "copy", "data/*.csv")
    assert (step.unseen(lake), step.pending(lake)) == (0, [])
    assert step.run(lake).files.repeated == ("data/a.csv", "data/b.csv")
    put("copy/data/a.csv", 3)
    put("copy/data/c.csv", 4)
    assert (step.unseen(lake), step.pending(lake)) == (2, ["data/a.csv", "data/c.csv"])


def test_values_in_folder_names_are_columns_of_a_source(lake, put, tmp_path):
    for day in ("2026-01-01", "2026-01-02"):
        put(f"hive/dt={day}/a.csv", 1)  # the same content on both days
    assert source(tmp_path, "hive/*/*.csv").run(lake).new == 2
    days = lake["orders"].to_arrow()["dt"].to_pylist()
    assert days == [date(2026, 1, 1), date(2026, 1, 2)]


@pytest.mark.parametrize("declared", [None, fm.DatasetSpec("orders", key="zip")])
def test_types_of_a_new_dataset_fit_all_files_that_are_there(lake, tmp_path, declared):
    for name, text in (("a", "zip,v\n12345,1\n"), ("b", "zip,v\n01234,0.5\n"), ("c", ""), ("d", "zip,v\n1,2,3\n")):
        (tmp_path / f"{name}.csv").write_text(text)
    step = source(tmp_path, "*.csv", declared=declared)
    with pytest.raises(UnreadableFile, match=r"d\.csv"):
        step.run(lake)
    assert lake["orders"].to_arrow().to_pylist() == [{"zip": "12345", "v": 1.0}, {"zip": "01234", "v": 0.5}]


def test_untouched_files_are_not_read_again(lake, put, tmp_path, monkeypatch):
    put("a.csv", 1)
    step = source(tmp_path, "*.csv")
    step.run(lake)
    monkeypatch.setattr(file_log.hashlib, "file_digest", lambda *_: pytest.fail("was read"))
    assert step.run(lake).nothing


def test_a_file_that_was_written_a_moment_ago_is_read_again(lake, put, tmp_path):
    """Within the grain of a file system's clock it may have changed without its time's showing it."""
    put("a.csv", 1).touch()
    step = source(tmp_path, "*.csv", declared=KEYED)
    step.run(lake)
    path = tmp_path / "a.csv"
    before = path.stat()
    path.write_text("id,price\n2,1\n")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    step.run(lake)
    assert ids(lake) == [2]


def test_the_note_may_be_lost_or_torn(lake, put, tmp_path):
    put("a.csv", 1)
    step = source(tmp_path, "*.csv")
    step.run(lake)
    (note,) = (tmp_path / "lake").glob("datasets/*/info/sources/files.json")
    for damage in (lambda: note.write_text('{"files": {"a.csv"'), lambda: note.write_text("[]"), note.unlink):
        damage()
        assert step.run(lake).nothing
    assert ids(lake) == [1]


def test_a_changed_file_of_a_keyed_dataset_changes_its_rows(lake, put, tmp_path):
    put("a.csv", 1, 2)
    step = source(tmp_path, "*.csv", declared=KEYED)
    step.run(lake)
    put("a.csv", 1, 2, 3, price=5)
    report = step.run(lake)
    assert (report.new, report.changed) == (1, 2)


def test_a_file_of_a_keyed_dataset_may_become_again_what_it_was(lake, put, tmp_path):
    step = source(tmp_path, "*.csv", declared=KEYED)
    for price in (1, 2, 1):
        put("a.csv", 1, price=price)
        os.utime(tmp_path / "a.csv", (1_700_000_000 + price, 1_700_000_000 + price))
        step.run(lake)
        assert lake["orders"].to_arrow()["price"].to_pylist() == [price]
    assert step.run(lake).nothing


def test_a_changed_file_of_a_dataset_without_a_key_is_refused(lake, put, tmp_path):
    put("a.csv", 1)
    step = source(tmp_path, "*.csv")
    step.run(lake)
    put("a.csv", 1, 2)
    with pytest.raises(UnreadableFile, match="its rows would be duplicated") as caught:
        step.run(lake)
    assert caught.value.path == str(tmp_path / "a.csv")
    assert ids(lake) == [1]


def test_a_file_without_rows_is_passed_over_until_it_has_some(lake, put, tmp_path):
    put("a.csv")
    put("b.csv", 7)
    step = source(tmp_path, "*.csv", declared=KEYED)
    assert step.run(lake).new == 1
    assert step.run(lake).nothing
    put("a.csv", 8)
    assert step.run(lake).new == 1


def test_a_file_without_rows_may_get_some_also_without_a_key(lake, put, tmp_path):
    put("a.csv", 7)
    step = source(tmp_path, "*.csv")
    step.run(lake)
    put("b.csv")
    assert step.run(lake).nothing
    assert step.run(lake).files.is_empty
    put("b.csv", 8)
    assert (step.run(lake).new, ids(lake)) == (1, [7, 8])


def test_a_glob_without_files_waits_and_a_path_without_a_file_is_refused(lake, tmp_path):
    assert source(tmp_path, "data/*.csv").run(lake).nothing
    with pytest.raises(UnreadableFile, match=r"no such file"):
        source(tmp_path, "data/a.csv").run(lake)


def test_run_whose_glob_finds_nothing_says_what_it_looked_for(lake, tmp_path):
    pipeline = fm.Pipeline([fm.Source("orders", files=str(tmp_path / "data" / "*.csv"))])
    outcome = pipeline.run(lake)["ingest_orders"]
    assert outcome.state == "waiting"
    assert "no file matches" in outcome.why
    assert str(tmp_path / "data" / "*.csv") in outcome.why


def test_empty_file_is_passed_over_until_it_has_something(lake, put, tmp_path):
    (tmp_path / "a.csv").touch()
    put("b.csv", 7)
    step = source(tmp_path, "*.csv")
    assert (step.run(lake).new, ids(lake)) == (1, [7])
    assert step.run(lake).nothing
    put("a.csv", 8)
    assert (step.run(lake).new, ids(lake)) == (1, [7, 8])


def test_folders_and_links_that_lead_nowhere_are_no_files(lake, put, tmp_path):
    (tmp_path / "a.csv").mkdir()
    (tmp_path / "b.csv").symlink_to(tmp_path / "nowhere")
    (tmp_path / "c.csv").symlink_to(put("elsewhere/c", 1))
    step = source(tmp_path, "*.csv")
    assert (step.run(lake).new, ids(lake)) == (1, [1])
    assert step.run(lake).nothing


def test_two_sources_of_one_dataset_share_what_they_know(lake, put, tmp_path):
    """Also when they run at the same time: neither's note takes away what the other has noted."""
    for number in range(4):
        put(f"left/{number}.csv", number)
        put(f"right/{number}.csv", 10 + number)
    put("right/same.csv", 0)
    sources = [fm.Source("orders", files=str(tmp_path / side / "*.csv"), name=side) for side in ("left", "right")]
    pipeline = fm.Pipeline(sources)
    assert pipeline.run(lake, workers=2).ok
    assert ids(lake) == [0, 0, 1, 2, 3, 10, 11, 12, 13]
    note = FileLog.of(lake["orders"].snapshot())
    assert len(note.taken) == 9


def kill_after(monkeypatch, commits: int) -> None:
    """The process ends right after so many commits: nothing is noted any more."""
    left = [commits]
    write = ingest.SourceWrites.add

    def dying(*args, **options):
        found = write(*args, **options)
        left[0] -= 1
        if left[0] == 0:
            monkeypatch.setattr(FileLog, "keep", lambda _: None)
            raise KeyboardInterrupt
        return found

    monkeypatch.setattr(ingest.SourceWrites, "add", dying)


def test_file_that_changes_after_a_kill_is_known_to_be_there_in_part(lake, put, tmp_path, monkeypatch):
    """Its rows were committed, and nobody could say so any more: the next run must not take them in twice."""
    put("a.csv", 1)
    step = source(tmp_path, "*.csv")
    with monkeypatch.context() as patched:
        kill_after(patched, 1)
        with pytest.raises(KeyboardInterrupt):
            step.run(lake)
    put("a.csv", 1, 2)
    with pytest.raises(UnreadableFile):
        step.run(lake)
    assert ids(lake) == [1]


def test_file_that_changes_after_a_kill_before_its_commit_is_taken_in(lake, put, tmp_path, monkeypatch):
    put("a.csv", 1)
    put("b.csv", 5)
    step = source(tmp_path, "*.csv")
    with monkeypatch.context() as patched:
        kill_after(patched, 1)
        with pytest.raises(KeyboardInterrupt):
            step.run(lake)
    put("b.csv", 5, 6)
    assert (step.run(lake).new, ids(lake)) == (2, [1, 5, 6])
    assert step.run(lake).nothing


def test_file_that_is_written_to_while_it_is_read_is_refused(lake, put, tmp_path, monkeypatch):
    path = put("a.csv", 1)
    write = ingest.SourceWrites.add

    def meanwhile(*args, **options):
        path.write_text("id,price\n1,1\n2,1\n")
        return write(*args, **options)

    monkeypatch.setattr(ingest.SourceWrites, "add", meanwhile)
    step = source(tmp_path, "*.csv")
    with pytest.raises(UnreadableFile, match="was modified while its rows were ingested"):
        step.run(lake)
    with pytest.raises(UnreadableFile):  # and nothing of it comes in twice
        step.run(lake)
    assert ids(lake) == [1, 2]


def test_many_files_that_are_known_cost_no_look_at_the_chain(lake, put, tmp_path, monkeypatch):
    for number in range(5):
        put(f"{number}.csv", number)
    step = source(tmp_path, "*.csv")
    step.run(lake)
    monkeypatch.setattr(files, "has_state", lambda *_: pytest.fail("looked"))
    assert step.run(lake).nothing


@pytest.mark.parametrize("has_lost_block", [True, False])
def test_note_that_is_newer_than_the_chain_is_not_believed(lake, put, tmp_path, has_lost_block):
    """The lake came from a backup, and the note did not."""
    put("a.csv", 1)
    step = source(tmp_path, "*.csv")
    step.run(lake)
    head = next((tmp_path / "lake").glob("datasets/*/refs/head"))
    backup = head.read_bytes()
    put("b.csv", 2)
    step.run(lake)
    newest = lake["orders"].head
    head.write_bytes(backup)
    if not has_lost_block:
        next((tmp_path / "lake").glob(f"datasets/*/blocks/**/{newest.text}")).unlink()
    again = fm.Lake(tmp_path / "lake")
    report = step.run(again)
    assert report.new == 1
    assert "'orders' was replaced by another copy of it" in report.notes[0]
    assert ids(again) == [1, 2]


def test_full_run_reads_every_file_whatever_its_time_says(lake, put, tmp_path):
    put("a.csv", 1)
    step = source(tmp_path, "*.csv", declared=KEYED)
    step.run(lake)
    put("a.csv", 3)  # as large and as old as it was
    assert step.run(lake).nothing
    assert (step.run(lake, full=True).new, ids(lake)) == (1, [3])


def test_files_are_looked_for_beside_the_file_that_declares_them(lake, put, tmp_path, monkeypatch):
    put("a.csv", 1)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert source(tmp_path, "*.csv").run(lake).new == 1


def test_what_fails_half_way_goes_on_after_it(lake, put, tmp_path):
    put("a.csv", 1)
    (tmp_path / "b.csv").write_text("other\nx\n")
    step = source(tmp_path, "*.csv", declared=KEYED)
    with pytest.raises(fm.FloodmarkError):
        step.run(lake)
    put("b.csv", 2)
    assert step.run(lake).new == 1
    assert ids(lake) == [1, 2]


class Bucket(MemoryStore):
    """Gives everyone a turn at once, as a bucket does."""

    def turn(self, key: str) -> AbstractContextManager[None]:
        return nullcontext()


def test_two_sources_of_one_dataset_in_a_bucket_do_not_overwrite_each_others_note(put, tmp_path, monkeypatch):
    """The first stands in the middle of its files until the second has come as far as it can."""
    lake = fm.Lake(Bucket())
    put("left/1.csv", 1)
    put("right/2.csv", 2)
    write, met = ingest.SourceWrites.add, threading.Barrier(2)

    def together(*args, **options):
        with suppress(threading.BrokenBarrierError):  # one at a time: the other does not come
            met.wait(timeout=1)
        return write(*args, **options)

    monkeypatch.setattr(ingest.SourceWrites, "add", together)
    sources = [fm.Source("orders", files=str(tmp_path / side / "*.csv"), name=side) for side in ("left", "right")]
    assert fm.Pipeline(sources).run(lake, workers=2).ok
    assert ids(lake) == [1, 2]
    assert len(FileLog.of(lake["orders"].snapshot()).taken) == 2


def test_header_without_the_end_of_its_line_is_a_file_without_rows(lake, put, tmp_path):
    (tmp_path / "a.csv").write_text("id,price")
    put("c.csv", 7)
    step = source(tmp_path, "*.csv", declared=KEYED)
    assert (step.run(lake).new, ids(lake)) == (1, [7])
    assert step.run(lake).nothing
    (tmp_path / "a.csv").write_text("id,price\n8,1")
    assert (step.run(lake).new, ids(lake)) == (1, [7, 8])


@pytest.mark.parametrize("declared", [KEYED, None])
def test_file_with_two_columns_of_one_name_is_refused_by_name(lake, put, tmp_path, declared):
    put("a.csv", 1)
    step = source(tmp_path, "*.csv", declared=declared)
    step.run(lake)
    (tmp_path / "b.csv").write_text("id,price,id\n2,1,3\n")
    with pytest.raises(BadColumnName, match=r"b\.csv has two columns named 'id'"):
        step.run(lake)
    assert ids(lake) == [1]


def test_file_whose_name_is_no_text_is_refused_in_words(lake, put, tmp_path):
    put("a.csv", 1)
    put(os.fsdecode(b"b\xff.csv"), 2)
    step = source(tmp_path, "*.csv")
    with pytest.raises(UnreadableFile, match=r"b.\.csv is not UTF-8"):
        step.run(lake)
    assert ids(lake) == [1]


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("seed", seeds(6))
def test_every_file_is_in_the_dataset_once_whatever_happens_to_it(tmp_path, put, seed):
    """Without a key: files come, are copied, renamed, touched, removed and come back."""
    lake, chance = fm.Lake(LocalStore(tmp_path / "lake", fs=HastyFileSystem())), Random(seed)
    step, names = source(tmp_path, "*.csv"), [f"{name}.csv" for name in "abcdefgh"]
    present: dict[str, int] = {}
    loaded: dict[str, int] = {}
    gone: set[str] = set()
    rows: list[int] = []
    put("0.csv", 0)
    for _ in range(15):
        for _ in range(chance.choice([1, 2, 3])):
            name = chance.choice(names)
            if name not in present:
                present[name] = loaded.get(name, chance.randrange(1, 4))  # another content would be refused
            elif chance.random() < 0.3:
                new = chance.choice(names)
                if new not in present and new not in loaded:
                    present[new] = present.pop(name)
            elif chance.random() < 0.5:
                del present[name]
        for path in tmp_path.glob("[a-h].csv"):
            path.unlink()
        for name, content in present.items():
            put(name, content)
        missing = sorted(loaded.keys() - present.keys() - gone, reverse=True)
        left = {loaded[name]: name for name in missing}
        for name in sorted(present.keys() - loaded.keys()):
            if (old := left.pop(present[name], None)) is not None:
                del loaded[old]
            else:
                rows.append(present[name])
        gone = (gone | set(missing)) & (loaded.keys() - present.keys())
        loaded |= present
        step.run(lake, full=chance.random() < 0.2)
        assert ids(lake) == sorted([0, *rows])
