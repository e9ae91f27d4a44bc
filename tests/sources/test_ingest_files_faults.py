"""Files as a source, with a fault at every step: the next run makes up for it, and takes nothing in twice."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import floodmark as fm
from floodmark.errors import CodeLocation
from floodmark.sources.files import IngestFiles
from histories.disks import Crash, after_faults, open_lake

KEYED, PLAIN = fm.DatasetSpec("orders", key="id"), fm.DatasetSpec("orders")


def _full_disk() -> BaseException:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class Shop:
    """Files with the price of one order, and the lake they are taken into."""

    def __init__(self, folder: Path, declared: fm.DatasetSpec, began: int = 1_700_000_000) -> None:
        self.folder, self.declared = folder, declared
        folder.mkdir(exist_ok=True)
        (folder / "pipeline.py").touch()
        self._seconds = itertools.count(began)

    def put(self, name: str, *rows: tuple[int, int]) -> None:
        path = self.folder / f"{name}.csv"
        path.write_text("id,price\n" + "".join(f"{one},{price}\n" for one, price in rows))
        os.utime(path, (next(self._seconds),) * 2)

    def copied(self, folder: Path) -> Shop:
        shutil.rmtree(folder, ignore_errors=True)
        return Shop(shutil.copytree(self.folder, folder), self.declared, began=1_800_000_000)

    def lake(self, fs: Any = None) -> fm.Lake:
        return open_lake(self.folder / "lake", fs)

    def run(self, fs: Any = None) -> Any:
        place = CodeLocation(str(self.folder / "pipeline.py"), 1)
        return IngestFiles("in", "orders", ["*.csv"], None, None, self.declared, place).run(self.lake(fs))

    def rows(self) -> list[tuple[int, int]]:
        found = self.lake()["orders"].to_arrow()
        return sorted(zip(found["id"].to_pylist(), found["price"].to_pylist(), strict=True))


def faults(shop: Shop, folder: Path, error: Callable[[], BaseException]) -> Iterator[Shop]:
    """The shop after a run that a fault has cut short, for some or all of the changes that the run makes."""
    for found, _ in after_faults(lambda: shop.copied(folder), Shop.run, error):
        yield found


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("error", [Crash, _full_disk])
def test_file_that_became_again_what_it_was_is_not_lost_by_a_fault(tmp_path, error):
    shop = Shop(tmp_path / "shop", KEYED)
    for price in (10, 20):
        shop.put("a", (1, price))
        shop.run()
    shop.put("a", (1, 10))
    for cut in faults(shop, tmp_path / "cut", error):
        cut.run()
        assert cut.rows() == [(1, 10)]
        assert cut.run().nothing


@pytest.mark.slow
@pytest.mark.soak
def test_file_that_changes_back_after_a_fault_is_not_lost(tmp_path):
    """Nobody can say then whether the rows of the run that was cut short are there: they must not stay."""
    shop = Shop(tmp_path / "shop", KEYED)
    for price in (10, 20):
        shop.put("a", (1, price))
        shop.run()
    shop.put("a", (1, 10))
    for cut in faults(shop, tmp_path / "cut", Crash):
        cut.put("a", (1, 20))
        cut.run()
        assert cut.rows() == [(1, 20)]
        assert cut.run().nothing


@pytest.mark.slow
@pytest.mark.soak
def test_file_that_becomes_what_another_becomes_wins_over_those_before_it_after_a_fault(tmp_path):
    shop = Shop(tmp_path / "shop", KEYED)
    for name, price in (("a", 1), ("b", 2), ("c", 3)):
        shop.put(name, (1, price))
    shop.run()
    for name, price in (("a", 10), ("b", 20), ("c", 10)):
        shop.put(name, (1, price))
    for cut in faults(shop, tmp_path / "cut", Crash):
        cut.run()
        assert cut.rows() == [(1, 10)]
        assert cut.run().nothing


@pytest.mark.slow
@pytest.mark.soak
def test_nothing_is_taken_in_twice_after_a_fault_without_a_key(tmp_path):
    shop = Shop(tmp_path / "shop", PLAIN)
    shop.put("a", (1, 1))
    shop.run()
    for name, number in (("b", 2), ("c", 3), ("copy", 3)):
        shop.put(name, (number, 1))
    for cut in faults(shop, tmp_path / "cut", Crash):
        cut.run()
        assert cut.rows() == [(1, 1), (2, 1), (3, 1), (3, 1)]  # equal files are different files
        assert cut.run().nothing


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("error", [Crash, _full_disk])
def test_lines_that_were_removed_go_after_a_fault_too(tmp_path, error):
    """One id gets the row of the file before, one that of a file before a file that is gone, and one goes."""
    shop = Shop(tmp_path / "shop", KEYED)
    shop.put("a", (1, 1), (2, 2), (3, 3))
    shop.put("b", (3, 30), (4, 40))
    shop.put("c", (2, 200), (3, 300), (5, 500), (6, 600))
    shop.run()
    (shop.folder / "b.csv").unlink()
    shop.run()
    shop.put("c", (6, 601))
    for cut in faults(shop, tmp_path / "cut", error):
        cut.run()
        assert cut.rows() == [(1, 1), (2, 2), (3, 3), (4, 40), (6, 601)]
        assert cut.run().nothing
        cut.put("a", (3, 4))
        cut.run()
        assert cut.rows() == [(3, 4), (4, 40), (6, 601)]
