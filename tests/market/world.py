"""A market in a folder of its own, what comes in day by day, and what naive Python makes of all of it."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from waiting import PATIENCE

NODES = ["ingest_orders", "ingest_goods", "price", "priced.tax", "totals"]
_ITEMS = ("nut", "bolt", "washer", "hinge", "latch")


@dataclass
class Market:
    """A project with its files; `orders` and `goods` are what the files say, the last word on each."""

    folder: Path
    orders: dict[int, tuple[str, int]] = field(default_factory=dict)
    goods: dict[str, int] = field(default_factory=dict)
    _files: int = 0

    @classmethod
    def make(cls, folder: Path, lake: str = "lake", spark: Mapping[str, str] | None = None) -> Market:
        """The project's files, copied to where nobody else imports them from; its settings are those of a user."""
        shutil.copytree(Path(__file__).with_name("project"), folder, ignore=shutil.ignore_patterns("__pycache__"))
        (folder / "data").mkdir()
        (folder / "gate").mkdir()
        settings = "".join(f"{json.dumps(name)} = {json.dumps(value)}\n" for name, value in (spark or {}).items())
        (folder / "floodmark.toml").write_text(
            f'lake = "{lake}"\npipeline = "pipeline.py"\n[defaults]\ncheckpoint_seconds = 0.5\n[spark]\n{settings}'
        )
        return cls(folder)

    @property
    def pipeline(self) -> Path:
        return self.folder / "pipeline.py"

    # What comes in

    def first_days(self) -> None:
        """Six hundred orders in three files, and the prices of what is ordered."""
        self.price({item: 10 * (number + 1) for number, item in enumerate(_ITEMS)})
        for first in (0, 200, 400):
            self.order({n: (_ITEMS[n % len(_ITEMS)], n % 7 + 1) for n in range(first, first + 200)})

    def order(self, orders: dict[int, tuple[str, int]]) -> None:
        """A file of orders: new ones, and some that have changed."""
        lines = [f"{number},{item},{pieces}" for number, (item, pieces) in orders.items()]
        self._write("orders", ["id,item,pieces", *lines])
        self.orders |= orders

    def price(self, goods: dict[str, int]) -> None:
        """A file of goods with their prices."""
        self._write("goods", ["item,cents", *(f"{item},{cents}" for item, cents in goods.items())])
        self.goods |= goods

    def _write(self, kind: str, lines: list[str]) -> None:
        self._files += 1
        (self.folder / "data" / f"{kind}-{self._files:03}.csv").write_text("\n".join(lines) + "\n")

    # The gate

    def close_gate(self) -> None:
        """From now on the price of one order waits."""
        (self.folder / "gate" / "closed").touch()

    def open_gate(self) -> None:
        (self.folder / "gate" / "closed").unlink()

    def who_waits(self, running: subprocess.Popen[str]) -> tuple[int, Path]:
        """The process that waits at the gate, and the folder it works in, as soon as a run has come there."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end and running.poll() is None:
            for path in (self.folder / "gate").glob("waits-*"):
                if text := path.read_text():
                    return int(path.name.removeprefix("waits-")), Path(text)
            time.sleep(0.05)
        running.kill()
        raise AssertionError(f"nobody came to the gate: {running.communicate()}")

    # What should be there

    def expected(self) -> dict[str, list[tuple[Any, ...]]]:
        """The rows of what is derived, computed one by one."""
        priced = [
            (n, item, pieces * self.goods[item]) for n, (item, pieces) in self.orders.items() if item in self.goods
        ]
        totals: dict[str, list[int]] = {}
        for _, item, cents in priced:
            total = totals.setdefault(item, [0, 0, 0])
            total[0] += 1
            total[1] += cents
            total[2] += cents * 20 // 100
        return {
            "priced": sorted((n, item, cents, cents * 20 // 100) for n, item, cents in priced),
            "totals": sorted((item, *total) for item, total in totals.items()),
        }


def found(lake: Any) -> dict[str, list[tuple[Any, ...]]]:
    """The same rows, as the lake has them."""
    return {
        "priced": _rows(lake["priced"], "id", "item", "cents", "tax"),
        "totals": _rows(lake["totals"], "item", "orders", "cents", "tax"),
    }


def _rows(dataset: Any, *columns: str) -> list[tuple[Any, ...]]:
    table = dataset.to_arrow()
    return sorted(zip(*(table[name].to_pylist() for name in columns), strict=True))


def every_offset(dataset: Any) -> list[int]:
    """The offsets of all records that were ever written."""
    return sorted(dataset.changes_arrow()["offset"].to_pylist())
