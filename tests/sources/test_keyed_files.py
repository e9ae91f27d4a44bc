"""Files with a key: whatever happens to them, the dataset has what reading them in the order of their paths gives."""

from __future__ import annotations

import itertools
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

import floodmark as fm
from faults.recording import HastyFileSystem
from floodmark.errors import CodeLocation, MissingColumns, UnreadableFile
from floodmark.ledger import parts, staging, text_files
from floodmark.rows import buckets
from floodmark.sources.files import FilesReport, IngestFiles
from floodmark.storage.local import LocalStore
from profiles import seeds

Rows = dict[int, int]


class Inbox:
    """A folder of files with the price of each id, and the dataset that they are loaded into."""

    def __init__(self, folder: Path, declared: fm.DatasetSpec | None = None) -> None:
        self.folder = folder
        self.declared = fm.DatasetSpec("orders", key="id") if declared is None else declared
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "pipeline.py").touch()
        self.lake = fm.Lake(LocalStore(folder / "lake", fs=HastyFileSystem()))
        self.seconds = itertools.count(1_700_000_000)

    def put(self, name: str, *rows: tuple[int, int], empty_lines: int = 0) -> Path:
        path = self.folder / f"{name}.csv"
        path.write_text("id,price\n" + "".join(f"{one},{price}\n" for one, price in rows) + "\n" * empty_lines)
        os.utime(path, (next(self.seconds),) * 2)
        return path

    def run(self, *, full: bool = False) -> FilesReport:
        place = CodeLocation(str(self.folder / "pipeline.py"), 1)
        return IngestFiles("in", "orders", ["*.csv"], None, None, self.declared, place).run(self.lake, full=full)

    @property
    def rows(self) -> Rows:
        dataset = self.lake["orders"]
        if dataset.schema is None:
            return {}
        found = dataset.to_arrow()
        return dict(zip(found["id"].to_pylist(), found["price"].to_pylist(), strict=True))


@pytest.fixture
def inbox(tmp_path: Path) -> Inbox:
    return Inbox(tmp_path / "inbox")


def test_later_file_wins_also_if_an_earlier_one_changes(inbox):
    inbox.put("d1", (1, 10), (2, 20))
    inbox.put("d2", (2, 21), (3, 30))
    inbox.run()
    assert inbox.rows == {1: 10, 2: 21, 3: 30}
    for price in (22, 20):
        inbox.put("d1", (1, 10), (2, price))
        report = inbox.run()
        assert inbox.rows == {1: 10, 2: 21, 3: 30}
        assert (report.files.changed, report.replaced) == (("d1.csv",), 1)
        assert report.notes == ["1 row not written, because a later file has their keys"]


def test_removed_lines_are_retracted_or_give_way_to_the_file_before(inbox):
    inbox.put("d1", (1, 10), (2, 20), (4, 40))
    inbox.put("d2", (2, 21), (3, 30), (4, 41))
    inbox.run()
    inbox.put("d2", (4, 41))
    report = inbox.run()
    assert inbox.rows == {1: 10, 2: 20, 4: 41}
    assert (report.changed, report.retracted) == (1, 1)
    inbox.put("d1")
    inbox.run()
    assert inbox.rows == {4: 41}
    (inbox.folder / "d2.csv").write_bytes(b"")
    inbox.run()
    assert inbox.rows == {}
    assert inbox.run().files.is_empty


def test_removed_lines_go_from_datasets_with_a_lookup_prefix_and_a_timeline(tmp_path):
    options = {"lookup": "shop", "event_time": "at", "partition_by": "day"}
    declared = fm.DatasetSpec("orders", key=["shop", "id"], **options)
    inbox = Inbox(tmp_path / "inbox", declared)
    texts = {"d1": ["1,7,2026-01-01,10", "1,8,2026-01-01,10"], "d2": ["1,8,2026-01-02,20", "2,9,2026-01-02,20"]}
    for lines in (texts["d2"], ["1,8,2026-01-02,21"], []):
        for name, content in {"d1": texts["d1"], "d2": lines}.items():
            text = "\n".join(["shop,id,at,price", *content])
            (inbox.folder / f"{name}.csv").write_text(f"{text}\n")
        inbox.run()
        shown = inbox.lake["orders"].to_arrow()
        rows = sorted(zip(shown["id"].to_pylist(), shown["price"].to_pylist(), strict=True))
        expected = {int(line.split(",")[1]): int(line.split(",")[3]) for line in [*texts["d1"], *lines]}
        assert rows == sorted(expected.items())
        assert inbox.lake["orders"].timeline_batches().read_all().num_rows == len(expected)
    assert inbox.lake["orders"].verify().ok


def test_why_names_the_files_that_gave_rows_back(inbox):
    inbox.put("d1", (1, 10), (2, 20))
    inbox.put("d2", (2, 21), (3, 30))
    inbox.run()
    assert inbox.lake.why("orders", {"id": 2}).maker.file == "d2.csv"
    inbox.put("d2", (3, 31))
    inbox.run()
    assert inbox.lake.why("orders", {"id": 2}).maker.file == "d2.csv or d1.csv"
    assert inbox.lake.why("orders", {"id": 1}).maker.file == "d1.csv"


def test_last_line_of_a_key_comes_back(inbox):
    inbox.put("d1", (1, 10), (2, 20), (1, 11))
    inbox.put("d2", (1, 12))
    inbox.run()
    inbox.put("d2")
    inbox.run()
    assert inbox.rows == {1: 11, 2: 20}


def test_file_that_comes_late_does_not_win_over_files_after_it(inbox):
    inbox.put("d2", (1, 12), (2, 22))
    inbox.run()
    inbox.put("d1", (1, 11), (3, 31))
    assert inbox.run().replaced == 1
    assert inbox.rows == {1: 12, 2: 22, 3: 31}


def test_file_that_is_gone_keeps_its_rows_until_another_has_their_keys(inbox):
    inbox.put("d1", (1, 10), (2, 10))
    inbox.put("d2", (1, 20), (3, 20))
    inbox.run()
    (inbox.folder / "d2.csv").unlink()
    assert inbox.run().files.vanished == ("d2.csv",)
    inbox.put("d1", (1, 11), (2, 11))
    inbox.run()
    assert inbox.rows == {1: 20, 2: 11, 3: 20}
    inbox.put("d3", (3, 30))
    inbox.run()
    inbox.put("d3", (4, 30))
    inbox.run()
    assert inbox.rows == {1: 20, 2: 11, 4: 30}  # the row of d2 cannot be read again
    inbox.put("d1", (1, 11), (2, 11), (3, 11))
    inbox.run()
    assert inbox.rows == {1: 20, 2: 11, 3: 11, 4: 30}
    inbox.put("d2", (1, 20), (3, 20))
    assert inbox.run().files.returned == ("d2.csv",)
    assert inbox.rows == {1: 20, 2: 11, 3: 20, 4: 30}


@pytest.mark.parametrize("type_name", ["string", "int64", "list<item: int64>"])
def test_files_that_were_loaded_before_a_column_was_added_may_lack_it(inbox, type_name):
    inbox.put("a", (1, 10), (2, 20))
    inbox.put("b", (3, 30))
    inbox.run()
    inbox.lake["orders"].evolve({"more": pa.list_(pa.int64()) if type_name.startswith("list") else type_name})
    inbox.put("b", (2, 21), (3, 31))  # changed, and now the owner of key 2
    inbox.put("a", (1, 11), (2, 20))
    assert inbox.run().changed == 3
    assert inbox.rows == {1: 11, 2: 21, 3: 31}
    inbox.put("b", (3, 31))  # the row of key 2 is that of the other file again
    inbox.run()
    (inbox.folder / "a.csv").rename(inbox.folder / "c.csv")
    inbox.run()
    assert inbox.run(full=True).unchanged == 3
    assert inbox.rows == {1: 11, 2: 20, 3: 31}
    assert inbox.lake["orders"].to_arrow()["more"].null_count == 3
    inbox.put("new", (4, 40))
    with pytest.raises(MissingColumns, match=r"new\.csv lacks columns of the dataset: 'more'"):
        inbox.run()


def test_loaded_file_may_not_lack_one_of_the_first_columns(inbox):
    path = inbox.put("a", (1, 10))
    inbox.run()
    inbox.lake["orders"].evolve({"more": "string"})
    path.write_text("id,more\n1,x\n")
    with pytest.raises(MissingColumns, match="lacks columns of the dataset: 'price'"):
        inbox.run()
    path.write_text("id,price,more\n1,10,x\n")
    assert inbox.run().changed == 1
    assert inbox.lake["orders"].to_arrow()["more"].to_pylist() == ["x"]


def test_renamed_file_has_its_new_place_in_the_order(inbox):
    for name in "abc":
        inbox.put(name, (1, ord(name)), (ord(name), 0))
    inbox.run()
    assert inbox.rows[1] == ord("c")
    (inbox.folder / "a.csv").rename(inbox.folder / "d.csv")
    assert inbox.run().files.renamed == (("a.csv", "d.csv"),)
    assert inbox.rows[1] == ord("a")
    (inbox.folder / "d.csv").rename(inbox.folder / "0.csv")
    inbox.run()
    assert inbox.rows == {1: ord("c"), 97: 0, 98: 0, 99: 0}
    assert inbox.run().files.is_empty


def test_full_run_makes_good_what_was_changed_by_hand(inbox):
    inbox.put("d1", (1, 10), (2, 20))
    inbox.put("d2", (2, 21))
    inbox.run()
    inbox.lake["orders"].delete([1])
    assert inbox.run().nothing
    report = inbox.run(full=True)
    assert (report.new, inbox.rows) == (1, {1: 10, 2: 21})
    assert inbox.run(full=True).nothing


def test_rows_of_other_writers_stay(inbox):
    inbox.put("d1", (1, 10), (2, 20))
    inbox.run()
    (inbox.folder / "other").mkdir()
    (inbox.folder / "other" / "more.csv").write_text("id,price\n7,70\n")
    inbox.lake["orders"].write(inbox.folder / "other" / "more.csv")
    inbox.put("d1", (1, 10))
    inbox.run(full=True)
    assert inbox.rows == {1: 10, 7: 70}


def test_lost_log_and_lost_keys_are_found_again(inbox):
    inbox.put("d1", (1, 10), (2, 20))
    inbox.put("d2", (2, 21))
    inbox.run()
    [sources] = (inbox.folder / "lake").glob("datasets/*/info/sources")
    shutil.rmtree(sources)
    inbox.put("d1", (1, 11), (2, 22))
    report = inbox.run()
    assert inbox.rows == {1: 11, 2: 21}
    assert report.keys_lost == ("d1.csv",)  # it has changed, so lines that it had cannot be known
    assert "rows of removed lines stay: d1.csv" in report.notes[-1]
    inbox.put("d2")
    assert inbox.run().keys_lost == ()
    assert inbox.rows == {1: 11, 2: 22}


def test_keys_of_old_contents_are_removed(inbox):
    for price in range(4):
        inbox.put("d1", (1, price))
        inbox.put("d2", (2, price))
        inbox.run()
    assert len([*(inbox.folder / "lake").glob("datasets/*/info/sources/keys/*")]) == 2


def test_snapshot_of_the_last_file_counts(tmp_path):
    inbox = Inbox(tmp_path / "inbox", fm.DatasetSpec("orders", key="id", merge="snapshot"))
    inbox.put("d1", (1, 10), (2, 20))
    inbox.put("d2", (2, 21), (3, 30))
    inbox.run()
    assert inbox.rows == {2: 21, 3: 30}
    inbox.put("d1", (1, 11))
    report = inbox.run()
    assert (inbox.rows, report.superseded) == ({2: 21, 3: 30}, ("d1.csv",))
    assert report.notes == ["not written, because a later file has a newer snapshot: d1.csv"]
    inbox.put("d2", (3, 31))
    inbox.run()
    assert inbox.rows == {3: 31}
    (inbox.folder / "d2.csv").rename(inbox.folder / "d0.csv")
    inbox.run()
    assert inbox.rows == {1: 11}
    inbox.lake["orders"].delete([1])
    inbox.run(full=True)
    assert inbox.rows == {1: 11}


def test_ledger_only_gets_rows_with_new_keys(tmp_path):
    inbox = Inbox(tmp_path / "inbox", fm.DatasetSpec("orders", key="id", merge="ledger"))
    inbox.put("d1", (1, 10), (2, 20))
    inbox.run()
    inbox.put("d1", (1, 11), (3, 30))
    inbox.run()
    assert inbox.rows == {1: 10, 2: 20, 3: 30}


def test_changed_file_of_a_changelog_is_refused(tmp_path):
    inbox = Inbox(tmp_path / "inbox", fm.DatasetSpec("orders", key="id", merge="changelog"))
    path = inbox.folder / "a.csv"
    path.write_text("id,price,op\n1,10,0\n")
    inbox.run()
    path.write_text("id,price,op\n1,10,0\n2,10,0\n")
    with pytest.raises(UnreadableFile, match="its operations would be applied twice"):
        inbox.run()
    assert inbox.rows == {1: 10}


@dataclass(frozen=True)
class Text:
    """The content of a file. No two of them are equal, so that files are renamed only on purpose."""

    serial: int
    rows: tuple[tuple[int, int], ...]


class Oracle:
    """What the rows must be: those of the last file with a key. A file that is gone has only the rows it won with."""

    def __init__(self) -> None:
        self.present: dict[str, Text] = {}
        self.loaded: dict[str, Text] = {}
        self.gone: dict[str, Rows] = {}

    def run(self) -> Rows:
        missing = self.loaded.keys() - self.present.keys() - self.gone.keys()
        renamed = {self.loaded[name].serial: name for name in sorted(missing, reverse=True)}
        for name in sorted(self.present.keys() - self.loaded.keys()):
            if (old := renamed.pop(self.present[name].serial, None)) is not None:
                del self.loaded[old]
                missing.discard(old)
        before = self.files
        for name in missing:
            self.gone[name] = {key: price for key, price in before[name].items() if self.owner(key) == name}
        for name in sorted(self.present):
            self.loaded[name] = self.present[name]
            self.gone.pop(name, None)
            for other, rows in self.gone.items():
                self.gone[other] = {key: price for key, price in rows.items() if self.owner(key) == other}
        return {key: price for _, rows in sorted(self.files.items()) for key, price in rows.items()}

    @property
    def files(self) -> dict[str, Rows]:
        return {name: dict(text.rows) for name, text in self.loaded.items()} | self.gone

    def owner(self, key: int) -> str:
        return max(name for name, rows in self.files.items() if key in rows)


class History:
    """Random deliveries to an inbox: new, changed, former, renamed and removed files."""

    def __init__(self, folder: Path, chance: Random) -> None:
        self.inbox, self.oracle, self.chance = Inbox(folder), Oracle(), chance
        self.texts: dict[str, list[Text]] = {}

    def deliver(self) -> None:
        chance, present = self.chance, self.oracle.present
        name, kind = chance.choice("abcde"), chance.random()
        if name in present and kind < 0.2:
            (self.inbox.folder / f"{name}.csv").unlink()
            del present[name]
        elif name in present and kind < 0.4 and (free := [one for one in "abcde" if one not in present]):
            self._put(chance.choice(free), present.pop(name))
            (self.inbox.folder / f"{name}.csv").unlink()
        elif name in self.texts and kind < 0.6:
            self._put(name, chance.choice(self.texts[name]))
        else:
            rows = [(key, chance.randrange(1000)) for key in chance.choices(range(6), k=chance.randrange(5))]
            self._put(name, Text(sum(map(len, self.texts.values())), tuple(rows)))

    def _put(self, name: str, text: Text) -> None:
        self.inbox.put(name, *text.rows, empty_lines=text.serial)
        self.oracle.present[name] = text
        self.texts.setdefault(name, []).append(text)


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("scattered", [False, True])
@pytest.mark.parametrize("seed", seeds(10))
def test_random_deliveries_give_the_rows_of_the_files_in_order(tmp_path, monkeypatch, seed, scattered):
    """Also with parts, buckets and slices of a few rows, as large files have them."""
    if scattered:
        monkeypatch.setattr(text_files, "_BLOCK", 24)
        for module in (staging, parts):
            monkeypatch.setattr(module, "PART_BYTES", 1)
        monkeypatch.setattr(buckets.group_buckets, "__defaults__", (100,))
    chance = Random(f"{seed} {scattered}")
    history = History(tmp_path / "inbox", chance)
    for _ in range(15):
        for _ in range(chance.choice([1, 1, 2, 3])):
            history.deliver()
        expected = history.oracle.run()
        history.inbox.run(full=chance.random() < 0.2)
        assert history.inbox.rows == expected
        if not history.oracle.gone:
            fresh = Inbox(tmp_path / f"fresh{next(history.inbox.seconds)}")
            for name, text in history.oracle.present.items():
                fresh.put(name, *text.rows)
            fresh.run()
            assert fresh.rows == expected
    assert history.inbox.lake["orders"].verify().ok
