"""The smallest worlds of the ledger's tests: a lake in a folder, one in memory, and a clock that is moved by hand."""

from __future__ import annotations

import pytest

import floodmark as fm
from floodmark.storage.memory import MemoryStore
from ledger.worlds import Clock


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def lake(tmp_path, clock):
    return fm.Lake(tmp_path / "lake", runtime=fm.Runtime(clock=clock))


@pytest.fixture
def memory_lake(clock):
    return fm.Lake(MemoryStore(), runtime=fm.Runtime(clock=clock))
