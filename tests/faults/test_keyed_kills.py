"""A writer that upserts, killed at any change of the disk: what it logged is there, and the next write is right."""

from __future__ import annotations

import random

import pytest

import floodmark as fm
from faults import keyed_writers, mortal
from faults.keyed_writers import KEYS, NAME, SCHEMA, assert_agree, rows, table
from faults.mortal import Log
from faults.recording import HastyFileSystem
from floodmark.storage.local import LocalStore
from profiles import seeds
from rows.naive import Naive

pytestmark = pytest.mark.process

WRITER = 1
KILLS = 6  # per seed


def modelled(end: int) -> Naive:
    """The naive model after the writer's batches up to a number."""
    model = Naive("upsert", ("id",))
    for number in range(end):
        model.write(rows(WRITER, number))
    return model


@pytest.mark.soak
@pytest.mark.parametrize("seed", seeds(1))
def test_writer_that_is_killed_again_and_again_agrees_with_its_model(seed, tmp_path):
    chance = random.Random(seed)
    lake = fm.Lake(LocalStore(tmp_path / "lake", HastyFileSystem()))
    lake.create(NAME, key=["id"], merge="upsert", schema=SCHEMA)
    log = Log(tmp_path / "log")
    for _ in range(KILLS):
        mortal.killed(keyed_writers.write_until_killed, lake.store.url, WRITER, chance.randrange(120), log.path)
        said = len(log.numbers())
        dataset = lake[NAME]
        found = dataset.count() and dataset.changes_arrow().num_rows
        model = modelled(said)
        if found != len(model.records):
            # The last one may have been committed without having been logged: then the next process logs it again.
            model = modelled(said + 1)
        assert_agree(dataset, model)
        assert dataset.verify().problems == ()
    batch = [{"id": key, "by": "end"} for key in KEYS]
    lake[NAME].write(table(batch))
    assert lake[NAME].to_arrow().to_pylist() == batch
    left = [entry.name for entry in lake.store.staging().iterdir() if entry.is_dir()]
    assert [name for name in left if not name.startswith("new-")] == []
