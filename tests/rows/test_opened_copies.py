"""Row copies stay open from one write to the next, and are not believed for it."""

from __future__ import annotations

import pyarrow as pa

import floodmark as fm
from faults.recording import HastyFileSystem
from floodmark.storage.local import LocalStore
from limits import set_limit


def people(ids, value) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "name": [f"{value} {i}" for i in ids]})


def values(dataset) -> list[str]:
    return dataset.to_arrow().sort_by("id")["name"].to_pylist()


class CountingFolder(LocalStore):
    """A folder that notes which row copies are opened."""

    def __init__(self, root):
        super().__init__(root, HastyFileSystem())
        self.opened = []

    def local_path(self, key):
        if "/info/rows/" in key:
            self.opened.append(key)
        return super().local_path(key)


def test_a_copy_is_opened_once(tmp_path):
    lake = fm.Lake(CountingFolder(tmp_path / "lake"))
    dataset = lake.create("people", key="id")
    dataset.write(people(range(50), "first"))
    for i in range(5):
        dataset.write(people([i], "second"))
    assert len(lake.store.opened) == 1
    assert values(dataset) == [*(f"second {i}" for i in range(5)), *(f"first {i}" for i in range(5, 50))]


def test_more_copies_than_stay_open_are_still_read(lake, monkeypatch):
    set_limit(monkeypatch, "rows.open_copies", 4)
    dataset = lake.create("people", key="id")
    for i in range(12):
        dataset.write(people([i], "first"))
    commit = dataset.write(people(range(12), "second"))
    assert commit.changed == 12
    assert values(dataset) == [f"second {i}" for i in range(12)]
    held = dataset.parts.rows.cache["rows"]
    assert 0 < len(held) <= 4


def test_an_open_copy_with_other_values_is_let_go(lake):
    dataset = lake.create("people", key="id")
    dataset.write(people(range(50), "first"))
    dataset.write(people([0], "second"))
    held = dataset.parts.rows.cache["rows"]
    [name] = held
    wrong = people(range(50), "wrong")
    held[name] = wrong.combine_chunks().to_batches()[0]
    commit = dataset.write(people([1], "second"))
    assert commit.changed == 1
    assert dataset.history([{"id": 1}])["name"].to_pylist() == ["first 1", "first 1", "second 1"]
    assert name not in held
