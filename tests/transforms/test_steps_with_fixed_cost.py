"""A step whose function costs something each time is called with whole chunks, on any number of cores."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from columns.virtual_cores import Cost, Machine, VirtualCores, best_fixed_size
from transforms.apply_world import Keys, World, processed_of


def processed(folder: Path, cost: Cost, keys: int, cores: int, chunk_size: int) -> Machine:
    """A machine on which a step was called with so many keys."""
    machine = Machine(cores, cost)

    def twice(frame: pa.Table, folder: str, seconds: float) -> pa.Table:
        machine.call(frame["k"][0].as_py(), frame.num_rows)
        return pa.table({"k": frame["k"], "y": pa.array(np.asarray(frame["x"]) * 2)})

    world = World(folder, function=twice, chunk_size=chunk_size, runner=VirtualCores(machine))
    done = world.compute(Keys(0, keys))
    assert processed_of(done.stored, range(keys)) == list(range(keys))
    assert sum(map(sum, machine.calls)) == keys
    return machine


@pytest.mark.parametrize("cores", [1, 2, 4])
@pytest.mark.parametrize(
    ("fixed", "per_row", "keys"), [(3.0, 0.0, 30_000), (30.0, 0.0, 8_000), (1.0, 1e-3, 30_000), (0.0, 3e-2, 8_000)]
)
def test_step_takes_little_longer_than_with_the_best_chunks(fixed, per_row, keys, cores, tmp_path: Path) -> None:
    def cost(first: int, rows: int, cold: bool) -> float:
        return fixed + per_row * rows

    best, size = best_fixed_size(lambda: cost, keys, cores, 1000)
    machine = processed(tmp_path, cost, keys, cores, 1000)
    assert machine.end <= 1.5 * best + 1e-6, (best, size, machine.calls)
