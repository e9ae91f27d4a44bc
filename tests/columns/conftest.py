"""The world of tests of computed columns from end to end."""

from __future__ import annotations

from pathlib import Path

import pytest

import floodmark as fm
from columns.counting import Calls
from columns.worlds import CrashingStore, World
from faults.recording import HastyFileSystem


@pytest.fixture
def world(tmp_path: Path) -> World:
    lake = fm.Lake(CrashingStore(tmp_path / "lake", HastyFileSystem()))
    lake.create("d", key=["id"], schema={"id": "int64", "v": "int64"})
    return World(lake, Calls(tmp_path))
