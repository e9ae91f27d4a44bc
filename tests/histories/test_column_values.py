"""Random histories of a source and of what is asked of it, beside an oracle that knows every value by its offset."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import floodmark as fm
from columns.counting import Plan
from columns.value_worlds import ValueWorld, taken, value_world
from columns.worlds import checkpoint_path
from floodmark.errors import FunctionFailed
from histories.calls import in_this_process
from limits import set_limit
from profiles import seeds

STEPS = ["write", "write", "delete", "fold", "ask", "ask", "ask", "sparse", "sparse", "retry", "fail", "lose", "harm"]
SIZES: list[dict[str, int]] = [{}, {"max_checkpoint_size": 3}, {"task_size": 4}, {"checkpoint_size": 1}]


class History:
    """Knows of each version the rows that were computed and those that failed, as one would write it down by hand."""

    def __init__(self, world: ValueWorld, seed: int) -> None:
        self.world, self.random = world, random.Random(seed)
        self.known: dict[str, dict[int, int | None]] = {"1": {}, "2": {}}  # by version: offset → value or failure

    def udf(self, version: str) -> fm.Udf:
        def compute(v: int | None) -> int:
            if v is None or v % 5 == 0:
                raise ValueError("no")
            return v * 10 + int(version)

        return Plan("f", version, ("v",), compute).udf(self.world.calls, on_error=fm.Skip(ValueError))

    def step(self) -> None:
        chosen = self.random.choice(STEPS)
        getattr(self, chosen)()

    def write(self) -> None:
        ids = self.random.sample(range(60), self.random.randint(1, 12))
        self.world.write(ids, [self.random.randint(0, 99) for _ in ids])

    def delete(self) -> None:
        if present := self.world.dataset.to_arrow()["id"].to_pylist():
            self.world.dataset.delete(self.random.sample(present, min(3, len(present))))

    def fold(self) -> None:
        self.world.dataset.fold()

    def ask(self, wanted: list[int] | None = None, **options: Any) -> None:
        inputs = self.world.inputs()
        wanted = sorted(inputs) if wanted is None else wanted
        version = self.random.choice("12")
        known = self.known[version]
        todo = [offset for offset in wanted if offset not in known]
        if options:
            todo += [offset for offset in wanted if offset in known and known[offset] is None]
        got = self.world.ask(wanted, self.udf(version), **options, **self.random.choice(SIZES))
        assert sorted(set(self.world.calls.offsets())) == sorted(todo)
        known |= {o: None if inputs[o] is None or inputs[o] % 5 == 0 else inputs[o] * 10 + int(version) for o in wanted}
        assert taken(got, wanted) == [known[offset] for offset in wanted]
        assert got.errors["offset"].to_pylist() == [offset for offset in wanted if known[offset] is None]

    def sparse(self) -> None:
        offsets = sorted(self.world.inputs())
        self.ask(sorted(self.random.sample(offsets, self.random.randint(0, len(offsets)))))

    def retry(self) -> None:
        self.ask(retry_errors=True)

    def fail(self) -> None:
        """A row that ends it: whatever was stored until then counts, and only that."""
        offsets = sorted(self.world.inputs())
        if not offsets:
            return
        self.world.calls.raise_at(self.random.choice(offsets))
        try:
            self.ask()
        except FunctionFailed:
            self.look()
        finally:
            self.world.calls.behave()

    def lose(self) -> None:
        """A checkpoint that is gone."""
        if keys := self.world.checkpoints.list_keys():
            self.world.checkpoints.delete(self.random.choice(keys))
            self.look()

    def harm(self) -> None:
        """A checkpoint that is damaged: as if it were gone."""
        if keys := self.world.checkpoints.list_keys():
            key = self.random.choice(keys)
            self.look(without=key)
            self.world.checkpoints.store.put_derived(checkpoint_path(self.world.checkpoints, key), b"torn")

    def look(self, without: str = "") -> None:
        """What is stored, read row by row from the batches themselves."""
        found: dict[str, dict[int, int | None]] = {"1": {}, "2": {}}
        for key in self.world.checkpoints.list_keys():
            try:
                batch = None if key == without else self.world.checkpoints.get(key)
            except fm.FloodmarkError:
                continue  # damaged before, and not looked at since
            if batch is None:
                continue
            fragment = int(key.split("_frag-")[1].split("_")[0])
            version = key.split("_ver-")[1][0]
            for row in pa.Table.from_batches([batch]).to_pylist():
                offset = fragment * self.world.fragment_rows + row["_rowaddr"]
                if found[version].get(offset) is None:
                    found[version][offset] = row["b"]
        self.known = found


@pytest.mark.soak
@pytest.mark.parametrize("seed", seeds(3))
def test_every_row_is_computed_once_and_has_its_own_value(seed: int, monkeypatch: pytest.MonkeyPatch):
    set_limit(monkeypatch, "merging.many", 5)
    with tempfile.TemporaryDirectory() as folder, in_this_process():
        world = value_world(Path(folder))
        world.fragment_rows = 16
        history = History(world, seed)
        history.write()
        for _ in range(25):
            history.step()
        history.ask()
