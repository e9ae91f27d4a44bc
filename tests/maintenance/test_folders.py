"""Folders beside the lake: one that cannot be written is said, with what to set."""

from __future__ import annotations

from pathlib import Path

from floodmark.maintenance.checks import check_cache, check_temporary


def test_temporary_files_can_be_written_and_nothing_stays(tmp_path: Path):
    assert check_temporary({}, lambda: str(tmp_path)).state == "ok"
    assert list(tmp_path.iterdir()) == []


def test_a_temporary_folder_that_is_not_there_is_bad(tmp_path: Path):
    found = check_temporary({}, lambda: str(tmp_path / "gone"))
    assert (found.state, "TMPDIR" in found.remedy) == ("bad", True)


def test_no_temporary_folder_at_all_is_bad():
    def none() -> str:
        raise FileNotFoundError("no usable temporary directory found")

    assert check_temporary({}, none).state == "bad"


def test_a_tmpdir_that_is_passed_over_is_said(tmp_path: Path):
    found = check_temporary({"TMPDIR": "/nowhere"}, lambda: str(tmp_path))
    assert (found.state, "TMPDIR=/nowhere" in found.detail) == ("warn", True)
    assert check_temporary({"TMPDIR": str(tmp_path)}, lambda: str(tmp_path)).state == "ok"


def test_a_cache_that_cannot_be_made_is_a_warning(tmp_path: Path):
    assert check_cache({"XDG_CACHE_HOME": str(tmp_path)}).state == "ok"
    assert list((tmp_path / "floodmark").iterdir()) == []
    (tmp_path / "file").touch()
    assert check_cache({"XDG_CACHE_HOME": str(tmp_path / "file")}).state == "warn"
