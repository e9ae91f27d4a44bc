"""Temporary folders: private, removed with their process, and after a kill by the next one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from floodmark.errors import StorageError
from floodmark.storage.memory import MemoryStore
from floodmark.storage.scratch import TemporaryFolder

HOLD = """
import sys
from floodmark.storage.scratch import TemporaryFolder
folder = TemporaryFolder()
(folder.path / "rows").write_bytes(b"rows")
print(folder.path, flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The temporary folder of the machine."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def aged(path: Path) -> None:
    long_ago = time.time() - 3600
    os.utime(path, (long_ago, long_ago))


def test_only_its_user_can_look_into_it_and_it_goes(machine: Path) -> None:
    folder = TemporaryFolder()
    assert folder.path.parent == machine
    assert folder.path.stat().st_mode & 0o777 == 0o700
    (folder.path / "rows").write_bytes(b"rows")
    folder.remove()
    assert list(machine.iterdir()) == []


def test_it_goes_with_the_object_that_has_it(machine: Path) -> None:
    store = MemoryStore()
    assert store.staging().parent == machine
    del store
    assert list(machine.iterdir()) == []


@pytest.mark.process
def test_folder_of_a_killed_process_goes_with_the_next_and_that_of_a_running_one_stays(machine: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        held = Path(process.stdout.readline().strip())
        aged(held)
        TemporaryFolder().remove()
        assert (held / "rows").exists()
        process.kill()
        process.wait()
    assert held.exists()
    TemporaryFolder().remove()
    assert not held.exists()


@pytest.mark.parametrize("name", ["floodmark-lake", "floodmark-tmp-mine", "floodmark-tmp-ABCDEFGH", "other"])
def test_folder_of_another_kind_stays(name: str, machine: Path) -> None:
    (machine / name).mkdir()
    aged(machine / name)
    TemporaryFolder().remove()
    assert (machine / name).exists()


def test_young_folder_and_link_stay(machine: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "file").touch()
    aged(elsewhere)
    (machine / "floodmark-tmp-aaaaaaaa").mkdir()  # its process has not locked it yet
    (machine / "floodmark-tmp-bbbbbbbb").symlink_to(elsewhere)
    TemporaryFolder().remove()
    assert len(list(machine.iterdir())) == 2
    assert (elsewhere / "file").exists()


def test_folder_that_cannot_be_made_is_explained(machine: Path) -> None:
    assert tempfile.gettempdir() == str(machine)
    shutil.rmtree(machine)
    with pytest.raises(StorageError, match="temporary files") as refused:
        TemporaryFolder()
    assert str(machine) in refused.value.hint
